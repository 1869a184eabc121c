#!/usr/bin/env bash
# Takes the figures of models with experts on the GPU of this machine, with random weights and uniform routing.
#   benchmarks/moe.sh OUT [PART ...]      parts: layer sweep 30b glm (default: layer 30b glm)
# OUT gets a JSON file and a log per part, and summary.json. `sweep` tries tiles of the grouped GEMMs, some minutes.
set -uo pipefail
[[ $# -ge 1 ]] || { sed -n 2,4p "$0"; exit 2; }
out=$1; shift
parts=("$@")
((${#parts[@]})) || parts=(layer 30b glm)
sightline=${SIGHTLINE:-sightline}
python=${PYTHON:-python}
mkdir -p "$out"
failed=0

run() { # run NAME COMMAND ... : keeps NAME.log
  local name=$1; shift
  local started=$SECONDS
  "$@" > "$out/$name.log" 2>&1 && echo "$name: done in $((SECONDS - started)) s" || { echo "$name: failed, see $out/$name.log"; failed=1; }
}

layer() { run "layer_$1" "$python" -m benchmarks.moe_layer --json "$out/layer_$1.json" "${@:2}"; }

language() { # language NAME FAMILY SIZE ARGUMENT ... : a model in the engine's loop
  [[ -d $out/$1 ]] || $sightline model new "$out/$1" --family "$2" --size "$3" --no-weights > /dev/null || exit 1
  run "language_$1" "$python" -m benchmarks.language --model "$out/$1" --load-format dummy-uniform --name "$1" \
    --json "$out/language_$1.json" --summary "$out/summary.json" "${@:4}"
}

for part in "${parts[@]}"; do
  case $part in
    layer)
      layer 30b --parts
      layer 30b_skewed --skewed
      layer 30b_block --weights block --parts
      layer glm_channel --model glm --weights channel --parts
      layer qwen35_35b --model qwen3.5-35b --parts ;;
    sweep) layer sweep_30b --sweep; layer sweep_glm --model glm --weights channel --sweep ;;
    30b) language 30b qwen3-vl-moe 30b-a3b --profile ;;
    glm) language glm46v glm-4.6v 108b-a12b --quantization fp8 --gpu-memory-utilization 0.95 --max-model-len 65536 --decode 1 32 ;;
    *) echo "there is no part $part"; exit 2 ;;
  esac
done
exit $failed
