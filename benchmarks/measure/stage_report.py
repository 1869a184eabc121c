"""Figures of `python -m benchmarks.stages` as a table, as JSON, and by the keys of summary.json."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from benchmarks.measure.stage_floors import STAGES, Rates
from benchmarks.measure.stages import StageCost

_NAMES = {**STAGES, "other": "other", "ttft": "TTFT"}


@dataclass(frozen=True)
class StageRow:
    stage: str  # a key of STAGES, "other" or "ttft"
    before_ms: float
    after_ms: float
    share_before: float  # of TTFT
    share_after: float
    floor_ms: float | None  # None where there is no work to count
    ratio: float | None  # after / floor


def rows(cost: StageCost) -> list[StageRow]:
    """Stages, other, TTFT: all but the last add up to the last."""
    before = {**cost.before.stages, "other": cost.before.other_ms, "ttft": cost.before.ttft_ms}
    after = {**cost.after.stages, "other": cost.after.other_ms, "ttft": cost.after.ttft_ms}
    floors = {**cost.floors, "ttft": sum(cost.floors.values())}
    found = []
    for stage in _NAMES:
        floor = floors.get(stage) or None
        found.append(
            StageRow(
                stage=stage,
                before_ms=before[stage],
                after_ms=after[stage],
                share_before=before[stage] / cost.before.ttft_ms,
                share_after=after[stage] / cost.after.ttft_ms,
                floor_ms=floor,
                ratio=after[stage] / floor if floor is not None else None,
            )
        )
    return found


def table(cost: StageCost) -> str:
    load = cost.load
    lines = [
        f"{cost.name}: {cost.images} image{'s' * (cost.images > 1)} of {load.pixels / 1e6:.2f} megapixels in all, "
        f"{load.patches:,} patches, {load.prompt_tokens:,} prompt tokens",
        f"{'':18s}{'before, ms':>12s}{'after, ms':>12s}{'faster':>9s}{'share before':>14s}{'share after':>13s}"
        f"{'floor, ms':>12s}{'after/floor':>13s}",
    ]
    for row in rows(cost):
        faster = f"{row.before_ms / row.after_ms:.2f}x" if row.after_ms > 0 and row.stage != "other" else "-"
        floor = "-" if row.floor_ms is None else f"{row.floor_ms:.4g}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.4g}"
        lines.append(
            f"{_NAMES[row.stage]:18s}{row.before_ms:12.3f}{row.after_ms:12.3f}{faster:>9s}{100 * row.share_before:12.1f} %"
            f"{100 * row.share_after:11.1f} %{floor:>12s}{ratio:>13s}"
        )
    before, after = cost.before, cost.after
    lines.append(
        f"In one piece, as the engine runs them: bytes to patches {before.pixels_ms:.3f} -> {after.pixels_ms:.3f} ms, "
        f"patches to rows {before.vision_ms:.3f} -> {after.vision_ms:.3f} ms."
    )
    return "\n".join(lines)


def figures(costs: Sequence[StageCost]) -> dict[str, float]:
    """By the keys of summary.json: milliseconds with kernels."""
    found = {}
    for cost in costs:
        after = cost.after
        found[f"pixels_ms.{cost.name}"] = after.pixels_ms
        found[f"patch_embed_ms.{cost.load.patches}"] = after.stages["patch_embed"]
        if cost.floors["position_embed"]:
            found[f"pos_embed_ms.{cost.name}"] = after.stages["position_embed"]
        for row in rows(cost):
            found[f"ttft_stage_ms.{row.stage}.{cost.name}"] = row.after_ms
    return found


def as_json(costs: Sequence[StageCost], rates: Rates, model: str) -> dict[str, object]:
    return {
        "torch": torch.__version__,
        "model": model,
        "rates": asdict(rates),
        "requests": [
            {
                "name": cost.name,
                "images": cost.images,
                "pixels": cost.load.pixels,
                "patches": cost.load.patches,
                "prompt_tokens": cost.load.prompt_tokens,
                "stages": [asdict(row) for row in rows(cost)],
                **{
                    when: {"pixels_ms": times.pixels_ms, "vision_ms": times.vision_ms, "ttfts_ms": list(times.ttfts_ms)}
                    for when, times in (("before", cost.before), ("after", cost.after))
                },
            }
            for cost in costs
        ],
    }
