#!/usr/bin/env bash
# Accuracy with each optimisation on and off: MMMU and OCRBench, answered by MODEL in this process.
#   benchmarks/accuracy.sh MODEL OUT [VARIANT ...]      variants: no_graphs cpu_decoder no_caches fp8 (default: all)
# MODEL is a checkpoint, or "embedded". The published datasets come from the Hub's cache, or from the folders $MMMU and $OCRBENCH;
# $FLAGS are for all runs, such as "--samples 100". OUT gets the answers (.jsonl), the scores (.json) and how they agree with
# those of the engine as it comes (.agree.json); then one table is printed. A run that was interrupted goes on where it was.
# OCRBench is asked as in SGLang's pull request 22038: 10 at once, at most 8192 tokens, no thinking.
set -uo pipefail
[[ $# -ge 2 ]] || { sed -n 2,8p "$0"; exit 2; }
model=(--model "$1"); [[ $1 == embedded ]] && model=()
out=$2; shift 2
variants=("$@")
((${#variants[@]})) || variants=(no_graphs cpu_decoder no_caches fp8)
sightline=${SIGHTLINE:-sightline}
here=$(dirname "$(realpath "$0")")
mkdir -p "$out"
failed=0

flags_of() { # flags_of VARIANT: what it changes
  case $1 in
    as_it_comes) ;;
    no_graphs) echo --no-tower-graphs --no-step-graphs ;;
    cpu_decoder) echo --image-decoder cpu ;;
    no_caches) echo --no-enable-prefix-caching --embedding-cache-gb 0 ;;
    fp8) echo --quantization fp8 ;;
    *) echo "there is no variant $1" >&2; return 2 ;;
  esac
}

for variant in "${variants[@]}"; do flags_of "$variant" > /dev/null || exit 2; done
for variant in as_it_comes "${variants[@]}"; do
  changed=$(flags_of "$variant")
  for task in mmmu ocrbench; do
    asked=(--concurrency 64); data=${MMMU:-}
    if [[ $task == ocrbench ]]; then
      asked=(--concurrency 10 --max-tokens 8192 --extra-body '{"chat_template_kwargs": {"enable_thinking": false}}')
      data=${OCRBENCH:-}
    fi
    name=$out/$task.$variant
    # shellcheck disable=SC2086 # FLAGS and the variant's are words
    if ! $sightline eval "$task" "${model[@]}" ${data:+--data "$data"} "${asked[@]}" ${FLAGS:-} $changed \
      --samples-out "$name.jsonl" --json "$name.json" > "$name.log" 2>&1; then
      echo "$task, $variant: failed, see $name.log"; failed=1; continue
    fi
    echo "$task, $variant: $(grep '^Time ' "$name.log")"
    [[ $variant == as_it_comes ]] && continue
    $sightline eval agree "$out/$task.as_it_comes.jsonl" "$name.jsonl" --json "$name.agree.json" >> "$name.log" 2>&1 || failed=1
  done
done
python3 "$here/accuracy_table.py" "$out" as_it_comes "${variants[@]}" || failed=1
exit $failed
