"""The table of benchmarks/accuracy.sh: python accuracy_table.py OUT VARIANT ..., the first of which the others are held to."""

import json
import sys
from pathlib import Path
from typing import Any

_TASKS = ("mmmu", "ocrbench")


def main(folder: Path, variants: list[str]) -> None:
    headings = [f"{task:>9}  same answers  p-value" for task in _TASKS]
    print("\n" + "   ".join([f"{'':14}", *headings, "  seconds   input tokens   output tokens"]))
    for variant in variants:
        cells = [_cells(folder, task, variant) for task in _TASKS]
        print("   ".join([f"{variant.replace('_', ' '):14}", *cells, _cost(folder, variant)]))


def _cells(folder: Path, task: str, variant: str) -> str:
    """Score, share of answers that are those of the first variant, and the p-value of the difference in scores."""
    found, agreement = _read(folder / f"{task}.{variant}.json"), _read(folder / f"{task}.{variant}.agree.json")
    score = f"{found['overall']['score']:.1%}" if found else "-"
    if not agreement:
        return f"{score:>9}  {'-':>12}  {'-':>7}"
    overall = agreement["overall"]
    return f"{score:>9}  {overall['same_answer'] / overall['n']:>12.1%}  {overall['p_value']:>7.3g}"


def _cost(folder: Path, variant: str) -> str:
    """Of all tasks."""
    found = [one for task in _TASKS if (one := _read(folder / f"{task}.{variant}.json"))]
    seconds, given, made = (sum(one[name] for one in found) for name in ("seconds", "prompt_tokens", "completion_tokens"))
    return f"{seconds:9.1f}   {given:12,}   {made:13,}"


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
