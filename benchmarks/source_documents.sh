#!/usr/bin/env bash
# The loads of docs/source-documents.md on the GPU of this machine, with random weights of the documents' sizes.
#   benchmarks/source_documents.sh OUT [PART ...]      parts: s1 s0 s3 (default: all)
#   s1  505 requests like MMMU's (342 tokens of a picture, 88 of text), 1,024 tokens out each, no limit, caches off: Qwen2.5-VL-7B
#   s0  a video of 12,000 tokens, asked twice: Qwen3-VL-8B
#   s3  20 pictures of 960x1280 by stage: Qwen3-VL-8B
# OUT gets a JSON file and a log per part. The documents' own: S1 Qwen2.5-VL-7B, 12,450 tokens a second in all (vLLM 11,095); S0
# Qwen3-VL-8B on two GPUs, 2.59 s and 0.88 s; S3 Qwen3-VL-235B on eight GPUs, 510 ms. S1_MODEL and MODEL are other checkpoints
# ("" is the embedded one), LOAD and FLAGS what their engines get, REQUESTS, OUTPUT, CLIP, PICTURE and SIZE smaller loads.
set -uo pipefail
[[ $# -ge 1 ]] || { sed -n 2,10p "$0"; exit 2; }
out=$1; shift
parts=("$@")
((${#parts[@]})) || parts=(s1 s0 s3)
sightline=${SIGHTLINE:-sightline}
load=${LOAD---load-format dummy} port=${PORT:-8123}
mkdir -p "$out"
failed=0

model_of() { # model_of FAMILY SIZE: a folder with that model's configuration
  [[ -d $out/$1-$2 ]] || $sightline model new "$out/$1-$2" --family "$1" --size "$2" --no-weights > /dev/null
  echo "$out/$1-$2"
}

# shellcheck disable=SC2086 # LOAD, FLAGS and flags are words
serving() { # serving PART MODEL "FLAG ..." COMMAND ...: the command, while a server answers
  local part=$1 model=$2 flags=$3; shift 3
  $sightline serve ${model:+"$model"} $load ${FLAGS:-} $flags --port "$port" --served-model-name m > "$out/$part.serve.log" 2>&1 &
  local server=$!
  for _ in $(seq 600); do
    curl -sf "http://127.0.0.1:$port/ready" > /dev/null && break
    kill -0 "$server" 2> /dev/null || { echo "$part: the server ended, see $out/$part.serve.log"; failed=1; return; }
    sleep 0.5
  done
  "$@" || failed=1
  kill "$server"; wait "$server" 2> /dev/null
}

ask() { # ask PART FLAG ...: adds a line to PART.jsonl
  local part=$1; shift
  $sightline bench serve --port "$port" --model m --no-progress --output "$out/$part.jsonl" "$@" >> "$out/$part.log" 2>&1
}

twice() { # the same clip, new to the server and then known
  local clip=(--dataset-name video ${CLIP:---video-resolution 720p --video-frames 104 --video-fps 8})
  clip+=(--num-prompts 1 --input-len 300 --output-len 64 --max-concurrency 1)
  ask s0 "${clip[@]}" --seed 1 --num-warmups 1 --label first && ask s0 "${clip[@]}" --seed 1 --num-warmups 0 --label again
}

for part in "${parts[@]}"; do
  case $part in
    s1) serving s1 "${S1_MODEL-$(model_of qwen2.5-vl 7b)}" "--disable-radix-cache --embedding-cache-gb 0 --chunked-prefill-size 8192" \
      ask s1 --num-prompts "${REQUESTS:-505}" --image-resolution "${PICTURE:-504x532}" --input-len 66 \
      --output-len "${OUTPUT:-1024}" --ignore-eos ;;
    s0) serving s0 "${MODEL-$(model_of qwen3-vl 8b)}" "--enable-cache-report" twice ;;
    s3) # shellcheck disable=SC2086
      model=${MODEL-$(model_of qwen3-vl 8b)}
      ${PYTHON:-python} -m benchmarks.stages ${model:+--model "$model"} $load ${FLAGS:-} --sizes "${SIZE:-960x1280}" --images 20 \
        --json "$out/s3.json" > "$out/s3.log" 2>&1 || failed=1 ;;
    *) echo "there is no part $part"; exit 2 ;;
  esac
  echo "$part: $( ((failed)) && echo failed || echo done), see $out/$part.log"
done
exit $failed
