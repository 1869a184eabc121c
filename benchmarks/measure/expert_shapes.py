"""Shapes at which ops of expert layers are timed: rows of decoding, rows of prefill, tokens that go to all experts alike."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting
from sightline.ops.experts import group_pairs, needs_lists
from sightline.spec import ExpertsSpec

_QWEN3_VL_30B = ExpertsSpec(count=128, chosen=8, intermediate_size=768)  # of models without experts


def _experts(at: Setting) -> ExpertsSpec:
    if at.spec.text.experts is not None:
        return at.spec.text.experts
    return _QWEN3_VL_30B if at.spec.text.hidden_size >= 1024 else ExpertsSpec(4, 2, 32)


def chosen_experts(at: Setting, spec: ExpertsSpec, rows: int) -> torch.Tensor:
    """[rows, chosen], uniform."""
    scores = torch.rand(rows, spec.count, device=at.device)
    return scores.topk(spec.chosen, dim=1).indices.int()


def _route_tokens(at: Setting) -> Iterator[KernelCase]:
    spec = _experts(at)

    def make(rows: int) -> Arguments:
        gated = spec.shared_expert == "gated"
        dtype = torch.float32 if spec.routed_in_float32 else at.dtype
        return {
            "logits": at.normal(rows, spec.count + gated, dtype=dtype),
            "bias": at.normal(spec.count, dtype=torch.float32) if spec.scores == "sigmoid" else None,
            "chosen": spec.chosen,
            "scores": spec.scores,
            "scale": spec.scale,
            "shared": spec.shared_expert,
            "shared_count": spec.shared_count,
            "normalise": spec.normalised,
            "groups": spec.groups,
        }

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{spec.count}", partial(make, rows), rows * (at.itemsize * spec.count + 8 * spec.per_token))


def _group_pairs(at: Setting) -> Iterator[KernelCase]:
    spec = _experts(at)

    def make(rows: int) -> Arguments:
        return {"experts": chosen_experts(at, spec, rows), "count": spec.count}

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{spec.chosen} of {spec.count}", partial(make, rows), 8 * rows * spec.chosen)


def _product(at: Setting, gate_up: bool) -> Iterator[KernelCase]:
    spec, hidden = _experts(at), at.spec.text.hidden_size
    height, size = (2 * spec.intermediate_size, hidden) if gate_up else (hidden, spec.intermediate_size)

    def make(rows: int) -> Arguments:
        experts = chosen_experts(at, spec, rows)
        made: Arguments = {
            "x": at.normal(rows if gate_up else rows * spec.chosen, size),
            "experts": experts,
            "lists": group_pairs(experts, spec.count) if needs_lists(experts, spec.count) else None,
            "weight": size**-0.5 * at.normal(spec.count, height, size),
            "weight_scale": None,
        }
        return made if gate_up else {**made, "pair_weights": at.normal(rows, spec.chosen, dtype=torch.float32)}

    for rows in at.sizes.rows:
        pairs = rows * spec.chosen
        read = spec.touched(rows) * height * size + (rows if gate_up else pairs) * size
        written = pairs * (spec.intermediate_size if gate_up else hidden)
        shape = f"{rows}x{size} to {height}, {spec.chosen} of {spec.count}"
        yield KernelCase(shape, partial(make, rows), at.itemsize * (read + written), 2.0 * pairs * height * size)


def _sum_expert_outputs(at: Setting) -> Iterator[KernelCase]:
    spec, size = _experts(at), at.spec.text.hidden_size

    def make(rows: int) -> Arguments:
        return {"outputs": at.normal(rows, spec.per_token, size), "residual": at.normal(rows, size)}

    for rows in at.sizes.rows:
        moved = at.itemsize * rows * size * (spec.per_token + 2)
        yield KernelCase(f"{rows}x{spec.per_token}x{size}", partial(make, rows), moved)


def _linear_to_float32(at: Setting) -> Iterator[KernelCase]:
    spec, size = _experts(at), at.spec.text.hidden_size

    def make(rows: int) -> Arguments:
        return {"x": at.normal(rows, size), "weight": size**-0.5 * at.normal(spec.count, size)}

    for rows in at.sizes.rows:
        moved = at.itemsize * size * (rows + spec.count) + 4 * rows * spec.count
        yield KernelCase(f"{rows}x{size} to {spec.count}", partial(make, rows), moved, 2.0 * rows * size * spec.count)


EXPERT_SHAPES: dict[str, Maker] = {
    "route_tokens": _route_tokens,
    "linear_to_float32": _linear_to_float32,
    "group_pairs": _group_pairs,
    "expert_gate_up": partial(_product, gate_up=True),
    "expert_down": partial(_product, gate_up=False),
    "sum_expert_outputs": _sum_expert_outputs,
}
