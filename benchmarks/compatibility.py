"""The matrix of docs/models.md: what of each family and published size was last run where.

    python -m benchmarks.compatibility    writes it anew

Runs come from benchmarks/results/h200/summary.json, whose figures have a commit and a device, and from compatibility.json
beside this file: which model the figures of a name are of, and runs of which no figure was kept. Tests on a CPU have every
family, over several ranks those named here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.models.family import Family
from sightline.models.registry import registry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- matrix: begin, by python -m benchmarks.compatibility -->", "<!-- matrix: end -->"
_SERVED, _STEP = ("ttft_ms", "serve_rps", "decode_tok_s"), ("decode_ms", "tower_launch_ms")  # kinds of figures, see targets
_HEAD = "| family (`model_type`) | size | experts | bfloat16 | fp8 | CUDA graphs | tensor parallel |"
_CPU = "CPU"
# In tests/parallel/checkpoints.py, or by tests of their own.
_RANKS_TRIED = (
    *("qwen3-vl", "qwen2.5-vl", "qwen3-vl-moe", "qwen3.5", "qwen3.5-moe", "glm-4.6v", "glm-4.1v"),
    *("step3-vl", "phi4-multimodal", "deepseek-vl2"),
)


@dataclass(frozen=True)
class Run:
    family: str
    size: str
    numbers: str  # "bfloat16" or "fp8"
    graphs: bool
    ranks: int
    device: str
    commit: str
    date: str  # as 2026-11-16

    def __str__(self) -> str:
        return f"{self.device.removeprefix('NVIDIA ')}, {self.commit}, {self.date}"


def runs_of(data: Mapping[str, Any], summary: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """The oldest first."""
    found = [Run(**one) for one in data["runs"]]
    for name, model in data["figures"].items():
        for key, figure in summary.items():
            kind, _, rest = key.partition(".")
            own = rest.split(".")[0] == name if name else rest.split(".")[0] not in data["figures"]
            if own and kind in (*_SERVED, *_STEP):
                made = {"device": figure["device"], "commit": figure["commit"], "date": figure["time"][:10]}
                found.append(Run(**model, graphs=kind in _STEP, ranks=1, **made))
    return sorted(found, key=lambda run: run.date)


def matrix(families: Iterable[Family], runs: Iterable[Run]) -> str:
    runs = list(runs)
    lines = [_HEAD, "|---" * (_HEAD.count("|") - 1) + "|"]
    for family in families:
        kind = f"`{family.model_type}`" + (f", `{family.processor_class}`" if family.processor_class else "")
        for size, config in family.sizes.items():
            if size.startswith("tiny"):
                continue
            own = [run for run in runs if (run.family, run.size) == (family.name, size)]
            cells = (
                _last(run for run in own if run.numbers == "bfloat16") or _CPU,
                _last(run for run in own if run.numbers == "fp8") or _CPU,
                _last(run for run in own if run.graphs) or "-",
                _last(run for run in own if run.ranks > 1) or (_CPU if family.name in _RANKS_TRIED else "-"),
            )
            experts = _experts(config.get(family.text_section, config))
            lines.append("| " + " | ".join((f"`{family.name}` ({kind})", size.upper(), experts, *cells)) + " |")
    return "\n".join(lines)


def _last(runs: Iterable[Run]) -> str:
    found = list(runs)
    return str(found[-1]) if found else ""


def _experts(text: Mapping[str, Any]) -> str:
    count = text.get("num_experts", text.get("n_routed_experts"))
    return f"{text['num_experts_per_tok']} of {count}" if count else "-"


def current() -> str:
    data = json.loads((ROOT / "benchmarks" / "compatibility.json").read_text())
    summary = json.loads((ROOT / "benchmarks" / "results" / "h200" / "summary.json").read_text())
    return matrix(registry().families.values(), runs_of(data, summary))


def with_matrix(page: str, made: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_matrix(PAGE.read_text(encoding="utf-8"), current()), encoding="utf-8")
