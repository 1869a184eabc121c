#!/usr/bin/env bash
# Takes the figures of docs/performance.md on the GPU of this machine, with random weights of Qwen3-VL-8B's sizes.
#   benchmarks/take.sh OUT [PART ...]      parts: language tower pixels kernels stages pages lookahead start server soak (default: all)
# OUT gets summary.json and a JSON file and a log per part. Takes about 25 minutes, of which the soak is ten.
# PHOTOS, if set, is a folder of JPEGs that `pixels` compares decoders on. SIZE is another size of the family, such as 2b, FAMILY
# another family: FAMILY=qwen3.5 SIZE=9b benchmarks/take.sh OUT language server.
set -uo pipefail
[[ $# -ge 1 ]] || { sed -n 2,6p "$0"; exit 2; }
out=$1; shift
parts=("$@")
((${#parts[@]})) || parts=(language tower pixels kernels stages pages lookahead start server soak)
sightline=${SIGHTLINE:-sightline}
python=${PYTHON:-python}
size=${SIZE:-8b}
model=(--model "$size" --load-format dummy)
port=${PORT:-8123}
mkdir -p "$out"
failed=0

[[ -d $size ]] || $sightline model new "$size" --family "${FAMILY:-qwen3-vl}" --size "$size" --no-weights > /dev/null || exit 1

bench() { # bench NAME COMMAND ... : keeps NAME.json and NAME.log, adds to summary.json
  local name=$1; shift
  local started=$SECONDS summary=(--summary "$out/summary.json")
  [[ $name == pages ]] && summary=()
  if "$@" --json "$out/$name.json" "${summary[@]}" > "$out/$name.log" 2>&1; then
    echo "$name: done in $((SECONDS - started)) s"
  else
    echo "$name: failed after $((SECONDS - started)) s, see $out/$name.log"; failed=1
  fi
}

serving() { # serving COMMAND ... : runs it while a server answers
  $sightline serve "$size" --load-format dummy --port "$port" --served-model-name m --admin-api-key soak > "$out/serve.log" 2>&1 &
  local server=$!
  for _ in $(seq 240); do curl -sf "http://127.0.0.1:$port/ready" > /dev/null && break; sleep 0.5; done
  "$@"
  kill "$server"; wait "$server" 2> /dev/null
}

for part in "${parts[@]}"; do
  case $part in
    language) bench language $python -m benchmarks.language "${model[@]}" --profile --tower --profile-text "$out/profile.txt" ;;
    tower) bench tower $python -m benchmarks.tower --model "$size" --dtype bfloat16 --definitions --repeats 10 ;;
    pixels) bench pixels $python -m benchmarks.pixels "${model[@]}" ${PHOTOS:+--photos "$PHOTOS"} ;;
    kernels) bench kernels $python -m benchmarks.kernels --model "$size" --dtype bfloat16 --repeats 7 ;;
    stages) bench stages $python -m benchmarks.stages "${model[@]}" --repeats 5 --plot "$out/stages.png" ;;
    pages) bench pages $python -m benchmarks.pages "${model[@]}" ;;
    lookahead) bench lookahead $python -m benchmarks.lookahead "${model[@]}" --image-resolution 1080p --a=--no-async-encode --b=--async-encode ;;
    start) bench start $python -m benchmarks.start --serve "$size --load-format dummy" --fresh-caches ;;
    server) serving bench targets $python -m benchmarks.targets --port "$port" --model m ;;
    soak) serving bench soak $sightline bench soak --port "$port" --model m --admin-api-key soak --minutes "${MINUTES:-10}" ;;
    *) echo "there is no part $part"; exit 2 ;;
  esac
done
[[ -f $out/summary.json ]] && $python -m benchmarks.targets --list --summary "$out/summary.json" --plot "$out/targets.png"
exit $failed
