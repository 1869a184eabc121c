#!/usr/bin/env bash
# Two versions of the package on one machine, in turn: what changed, beside what differs between two runs of the same version.
#   benchmarks/before_after.sh BEFORE AFTER OUT [ROUND ...]    clones: folders with the packages `sightline` and `benchmarks` (versions
#     without the second have `sightline bench`); rounds: b1 a1 b2 a2 (default: all). One client, that of AFTER, asks both servers.
# Each round starts a server with random weights of Qwen3-VL-8B's sizes (SIZE: another size), takes the figures that a running
# server is held to, then those of the language model and of the tower (PARTS: fewer of them); OUT/ROUND.json has them all.
# benchmarks/compare_rounds.py prints the table. About three minutes a round.
set -uo pipefail
[[ $# -ge 3 ]] || { sed -n 2,8p "$0"; exit 2; }
before=$(realpath "$1") after=$(realpath "$2"); mkdir -p "$3"; out=$(realpath "$3"); shift 3
rounds=("$@"); ((${#rounds[@]})) || rounds=(b1 a1 b2 a2)
size=${SIZE:-8b} port=${PORT:-8123} parts=${PARTS:-language tower}
keys=ttft_ms.560,ttft_ms.720p,ttft_ms.1080p,ttft_ms.2k,round7_ttft_ms.720p,round7_ttft_ms.1080p,round7_ttft_ms.2k,serve_rps.560,decode_tok_s.32
work=$(mktemp -d); cd "$work" # `python -m` looks into the working directory first
for round in "${rounds[@]}"; do
  tree=$before; [[ $round == a* ]] && tree=$after
  sightline() { PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" python -m sightline.cli.main "$@"; }
  measure() { # measure NAME ARGUMENT ...: in the package of this round
    if [[ -e $tree/benchmarks/$1.py ]]; then PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" python -m "benchmarks.$1" "${@:2}"
    else sightline bench "$@"; fi
  }
  ask() { PYTHONPATH="$after${PYTHONPATH:+:$PYTHONPATH}" python -m benchmarks.targets "$@"; }
  [[ -d $size ]] || sightline model new "$size" --family "${FAMILY:-qwen3-vl}" --size "$size" --no-weights > /dev/null
  started=$SECONDS
  PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" python -m sightline.cli.main serve "$size" --load-format dummy --port "$port" \
    --served-model-name m > "$out/$round.serve.log" 2>&1 &
  server=$!
  until curl -sf "http://127.0.0.1:$port/ready" > /dev/null; do
    kill -0 "$server" 2> /dev/null || { echo "$round: the server ended, see $out/$round.serve.log"; exit 1; }
    sleep 0.5
  done
  echo "$round: ready after $((SECONDS - started)) s"
  ask --port "$port" --model m --only "$keys" --seed 1 --summary "$out/$round.json" > "$out/$round.log" 2>&1
  kill "$server"; wait "$server" 2> /dev/null
  if [[ $parts == *language* ]]; then
    measure language --model "$size" --load-format dummy --summary "$out/$round.json" >> "$out/$round.log" 2>&1
  fi
  if [[ $parts == *tower* ]]; then
    measure tower --model "$size" --dtype bfloat16 --repeats 10 --summary "$out/$round.json" >> "$out/$round.log" 2>&1
  fi
  echo "$round: done after $((SECONDS - started)) s"
done
