"""The table of benchmarks/before_after.sh: `python benchmarks/compare_rounds.py OUT [--json FILE]`.

A figure is worse if the mean of both runs after is worse than that of both before by more than 3 %, or by more than the two
runs before differ, whichever is larger. Exits with 1 if one is.
"""

import argparse
import json
import sys
from pathlib import Path

LARGER_IS_BETTER = ("serve_rps", "decode_tok_s")
KINDS = ("decode_ms", "prefill_ms", "tower_ms", "ttft_ms", "round7_ttft_ms", "serve_rps", "decode_tok_s")
ALLOWED = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds = {name: json.loads((arguments.out / f"{name}.json").read_text()) for name in ("b1", "a1", "b2", "a2")}
    keys = [key for key in rounds["b1"] if key.split(".")[0] in KINDS and all(key in found for found in rounds.values())]
    rows = [_row(key, {name: found[key]["value"] for name, found in rounds.items()}) for key in keys]
    print(f"{'':24}{'b1':>10}{'a1':>10}{'b2':>10}{'a2':>10}{'change':>9}{'allowed':>9}")
    for row in rows:
        values = "".join(f"{row[name]:10.2f}" for name in ("b1", "a1", "b2", "a2"))
        print(f"{row['key']:24}{values}{row['worse']:+9.1%}{row['allowed']:9.1%}{'' if row['passed'] else '  WORSE'}")
    if arguments.json is not None:
        device = next(iter(rounds["a1"].values()))["device"]
        arguments.json.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["passed"] for row in rows) else 1


def _row(key: str, values: dict[str, float]) -> dict[str, object]:
    before, after = (values["b1"] + values["b2"]) / 2, (values["a1"] + values["a2"]) / 2
    worse = before / after - 1 if key.split(".")[0] in LARGER_IS_BETTER else after / before - 1
    allowed = max(ALLOWED, abs(values["b1"] - values["b2"]) / before)
    return {"key": key, **values, "worse": worse, "allowed": allowed, "passed": worse <= allowed}


if __name__ == "__main__":
    sys.exit(main())
