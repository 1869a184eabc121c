"""Experts: each token goes to a few of many gated MLPs, and what they put out is weighted and added up.

A *pair* is a token and one of the experts chosen for it: pair number token * chosen + n. A shared expert, which every token
goes to, is one more expert behind the others: it is in the same grouped GEMMs, and there is no second way through the layer.
There may be several of them.

Where ranks have whole experts, each some that stand together, `held` are those of this one: experts are then numbered from its
first, and a pair of another rank's has the expert -1: it is in no list, nothing is computed for it, and no sum takes it.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import EXACT, ExampleMaker, Tolerance, op
from sightline.ops.fp8 import BLOCK, SIDE_MULTIPLE, fp8_block_linear, fp8_linear, quantise_blocks, quantise_channels

Scores = Literal["softmax", "sigmoid"]
Shared = Literal["none", "plain", "gated"]
Held: TypeAlias = tuple[int, int]  # the first expert that a rank has, and how many
Groups: TypeAlias = tuple[int, int]  # how many there are, and how many of them are chosen from
Lists: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # what `group_pairs` gives
_TINY = 1e-20  # added to a sum of weights, which sigmoids can make zero


def _route_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, count, chosen in ((1, 8, 2), (7, 128, 8), (33, 60, 4), (5, 512, 10)):
        logits = make.normal(tokens, count)
        softmax = {"bias": None, "chosen": chosen, "scores": "softmax", "scale": 1.0}
        yield {"logits": logits, **softmax, "shared": "none"}
        yield {"logits": make.normal(tokens, count + 1), **softmax, "shared": "gated"}
        bias = make.normal(count, dtype=torch.float32)
        sigmoid = {"bias": bias, "chosen": chosen, "scores": "sigmoid", "scale": 2.5}
        yield {"logits": make.normal(tokens, count, dtype=torch.float32), **sigmoid, "shared": "plain"}
        more = {"shared": "plain", "held": None, "shared_count": 2, "normalise": False}
        yield {"logits": make.normal(tokens, count), **softmax, **more, "scale": 1.5}
        yield {"logits": make.normal(tokens, count, dtype=torch.float32), **sigmoid, **more}
        if count % 4 == 0:
            usual = {"held": None, "shared_count": 1, "normalise": True}
            groups = {**usual, "groups": (4, max(2, -(-chosen * 4 // count)))}
            yield {"logits": make.normal(tokens, count), **softmax, "shared": "none", **groups}
            yield {"logits": make.normal(tokens, count, dtype=torch.float32), **sigmoid, "shared": "plain", **groups}
    equal = torch.zeros_like(make.normal(3, 16))  # ties: all experts, and two groups of them
    equal[1, 5:9] = 1
    equal[2, 3] = -float("inf")
    yield {"logits": equal, "bias": None, "chosen": 6, "scores": "softmax", "scale": 1.0, "shared": "none"}
    flat = torch.zeros(16, dtype=torch.float32, device=equal.device)
    yield {"logits": equal[:2].float(), "bias": flat, "chosen": 6, "scores": "sigmoid", "scale": 1.0, "shared": "plain"}
    for held in ((0, 3), (5, 12)):
        logits = make.normal(33, 17)
        yield {"logits": logits, "bias": None, "chosen": 6, "scores": "softmax", "scale": 1.0, "shared": "gated", "held": held}


@op(examples=_route_examples, tolerances={torch.float32: Tolerance(1e-6, 1e-5), torch.bfloat16: Tolerance(1e-6, 8e-3)})
def route_tokens(
    logits: torch.Tensor, bias: torch.Tensor | None, chosen: int, scores: Scores, scale: float, shared: Shared,
    held: Held | None = None, shared_count: int = 1, normalise: bool = True, groups: Groups | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Which experts each token goes to, the best first, and how much each counts.

    logits [tokens, count], with the logit of the shared expert's gate behind them where shared is "gated"; bias [count] float32
    or None. Chosen by score + bias, or by the logit itself where there is no bias; of equal ones the one with the lower number,
    and not-a-number last; with groups, of the best of these alone (ExpertsSpec). Weights are scores, divided by their sum if
    `normalise`, and times `scale`, rounded to the dtype of `logits`.

    experts [tokens, chosen] int32 and weights likewise, float32. Where there are shared experts more columns, `shared_count` of
    them, have their numbers, from `count` on, and their weight: 1, or the sigmoid of the logit.
    """
    count = logits.shape[1] - (shared == "gated")
    wide = logits[:, :count].float()
    found = wide.softmax(1) if scores == "softmax" else wide.sigmoid()
    key = wide if bias is None else found + bias
    key = torch.where(key.isnan(), -torch.inf, key)
    if groups is not None:
        key = _of_the_best_groups(key, groups, 1 if bias is None else 2)
    experts = key.sort(dim=1, descending=True, stable=True).indices[:, :chosen]
    weights = found.gather(1, experts)
    weights = (weights / (weights.sum(1, keepdim=True) + _TINY) if normalise else weights) * scale
    if shared != "none":
        own = logits[:, count:].float().sigmoid() if shared == "gated" else torch.ones_like(weights[:, :1])
        numbers = torch.arange(count, count + shared_count, device=experts.device)
        experts = torch.cat((experts, numbers.expand(len(experts), -1)), 1)
        weights = torch.cat((weights, own.expand(-1, shared_count)), 1)
    if held is not None:
        experts = experts - held[0]
        experts = torch.where((experts >= 0) & (experts < held[1]), experts, -1)
    return experts.int(), weights.to(logits.dtype).float()


def _of_the_best_groups(key: torch.Tensor, groups: Groups, summed: int) -> torch.Tensor:
    """key [tokens, count] with -inf for experts of other groups. A group is as good as its `summed` best experts together."""
    apart = key.unflatten(1, (groups[0], -1))
    value = apart.topk(summed, dim=2).values.sum(2)
    best = value.sort(dim=1, descending=True, stable=True).indices[:, : groups[1]]
    kept = torch.zeros_like(value, dtype=torch.bool).scatter_(1, best, True)
    return torch.where(kept[:, :, None], apart, -torch.inf).flatten(1)


def _distinct(make: ExampleMaker, tokens: int, count: int, chosen: int) -> torch.Tensor:
    """Experts of each token, no two of them the same. [tokens, chosen] int32"""
    return make.normal(tokens, count, dtype=torch.float32).argsort(1)[:, :chosen].int().contiguous()


def _group_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, count, chosen in ((1, 8, 2), (7, 128, 8), (300, 17, 5), (2500, 9, 3)):
        yield {"experts": _distinct(make, tokens, count, chosen), "count": count}
    yield {"experts": make.tensor([[3, 1]] * 70), "count": 5}  # all tokens to the same two
    yield {"experts": make.tensor([[-1, 2, -1], [0, -1, 1], [-1, -1, -1]] * 50), "count": 3}  # others with another rank


@op(examples=_group_examples, tolerances={torch.float32: EXACT})
def group_pairs(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs of each expert. experts [tokens, chosen] int32, those of a token all different, or -1.

    counts [count] int32, and pairs [count, tokens] int32: the numbers of an expert's pairs in their order, then -1.
    """
    tokens, flat = len(experts), experts.flatten().long()
    counts = torch.bincount(flat[flat >= 0], minlength=count)
    order = flat.argsort(stable=True)
    order = order[flat[order] >= 0]
    owner = flat[order]
    index = torch.arange(len(order), device=flat.device) - (counts.cumsum(0) - counts)[owner]
    pairs = torch.full((count, tokens), -1, dtype=torch.int32, device=flat.device)
    pairs[owner, index] = order.int()
    return counts.int(), pairs


def _matrices(make: ExampleMaker, count: int, out: int, size: int, scales: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = make.normal(count, out, size) * size**-0.5
    if scales == "none":
        return weight, None
    each = [(quantise_channels if scales == "channel" else quantise_blocks)(matrix) for matrix in weight]
    return torch.stack([values for values, _ in each]), torch.stack([scale for _, scale in each])


def _expert_examples(make: ExampleMaker, gated: bool) -> Iterator[dict[str, Any]]:
    """Few tokens and many; each to its own experts, or all to the same; sides that no tile divides, and square ones."""
    for scales in ("none", "channel", "block"):
        for tokens, count, chosen, size, inner in (
            (1, 8, 2, 48, 24),
            (6, 4, 2, 144, 80),
            (24, 2, 1, 64, 64),
            (70, 2, 2, 32, 16),
        ):
            out, size = (2 * inner, size) if gated else (size, inner)
            if scales != "none" and size % SIDE_MULTIPLE:
                continue
            experts = _distinct(make, tokens, count, chosen)
            if tokens == 24:
                experts.fill_(1)
            weight, scale = _matrices(make, count, out, size, scales)
            lists = group_pairs.definition(experts, count) if needs_lists(experts, count) else None
            yield {
                "x": make.normal(tokens if gated else tokens * chosen, size),
                "experts": experts,
                "lists": lists,
                "weight": weight,
                "weight_scale": scale,
            }


_TOLERANCES = {torch.float32: Tolerance(1e-4, 1e-4), torch.bfloat16: Tolerance(5e-2, 2e-2)}


@op(examples=lambda make: _expert_examples(make, gated=True), tolerances=_TOLERANCES)
def expert_gate_up(
    x: torch.Tensor, experts: torch.Tensor, lists: Lists | None, weight: torch.Tensor, weight_scale: torch.Tensor | None
) -> torch.Tensor:
    """silu(gate) * up of each pair, [pairs, inner] in x's dtype, where gate and up are the halves of x weight[expert]^T.

    x [tokens, size], experts [tokens, chosen] int32, those of a token all different, or -1: nobody knows what is put out for
    these. lists: theirs by `group_pairs`, or None where pairs are few (`needs_lists`). weight [count, 2 * inner, size]: in x's
    dtype without scales, or e4m3 with scales
    [count, rows] or [count, ceil(rows / 128), ceil(columns / 128)], float32. Then x is quantised as `fp8_linear` and
    `fp8_block_linear` quantise it.
    """
    out = x.new_empty(experts.numel(), weight.shape[1] // 2)
    for expert, pairs in _grouped(experts, lists):
        gate, up = _product(x[pairs // experts.shape[1]], weight, weight_scale, expert).chunk(2, dim=1)
        out[pairs] = F.silu(gate) * up
    return out


def _down_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for example in _expert_examples(make, gated=False):
        yield {**example, "pair_weights": make.normal(*example["experts"].shape, dtype=torch.float32).sigmoid()}


@op(examples=_down_examples, tolerances=_TOLERANCES)
def expert_down(
    x: torch.Tensor, experts: torch.Tensor, lists: Lists | None, weight: torch.Tensor, weight_scale: torch.Tensor | None,
    pair_weights: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """x weight[expert]^T times the pair's weight, [tokens, chosen, size] in x's dtype.

    x [pairs, inner], weight [count, size, inner] with scales or without, pair_weights [tokens, chosen] float32; else as above.
    """
    out = x.new_empty(len(x), weight.shape[1])
    for expert, pairs in _grouped(experts, lists):
        product = _product(x[pairs], weight, weight_scale, expert)
        out[pairs] = (product.float() * pair_weights.flatten()[pairs, None]).to(x.dtype)
    return out.view(*experts.shape, -1)


def needs_lists(experts: torch.Tensor, count: int) -> bool:
    """Whether pairs are so many that some of them share an expert. Else each is a tile of its own."""
    return experts.numel() > count // 2


def _grouped(experts: torch.Tensor, lists: Lists | None) -> Iterator[tuple[int, torch.Tensor]]:
    """Experts that have pairs, with the numbers of these."""
    if lists is None:
        lists = group_pairs.definition(experts, int(experts.max()) + 1)
    for expert, (size, pairs) in enumerate(zip(lists[0].tolist(), lists[1], strict=True)):
        if size:
            yield expert, pairs[:size].long()


def _product(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, expert: int) -> torch.Tensor:
    if scale is None:
        return F.linear(x, weight[expert])
    product = fp8_linear if scale.ndim == 2 else fp8_block_linear
    return product.definition(x, weight[expert], scale[expert], None)


def scale_group(scale: torch.Tensor | None, size: int) -> int:
    """How many numbers of a row share a scale where matrices have these scales; 0 if they have none."""
    if scale is None:
        return 0
    return size if scale.ndim == 2 else BLOCK


def _sum_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, chosen, size in ((1, 8, 72), (5, 9, 2048), (70, 3, 1032)):
        outputs = make.normal(tokens, chosen, size)
        yield {"outputs": outputs, "residual": None}
        yield {"outputs": outputs, "residual": make.normal(tokens, size)}
        experts = make.normal(tokens, chosen, dtype=torch.float32).argsort(1).int() - 2
        yield {"outputs": outputs, "residual": None, "experts": experts.clamp(min=-1)}


@op(examples=_sum_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(1e-2, 1.6e-2)})
def sum_expert_outputs(
    outputs: torch.Tensor, residual: torch.Tensor | None, experts: torch.Tensor | None = None
) -> torch.Tensor:
    """The sum over a token's experts, in float32 and always in the same order. outputs [tokens, chosen, size].

    [tokens, size]; with a residual of this shape, that and the sum, in its memory. With experts [tokens, chosen] int32 outputs
    of those that are -1 are left out, whatever they are.
    """
    wide = outputs.float()
    total = (wide if experts is None else torch.where(experts[:, :, None] >= 0, wide, 0.0)).sum(1)
    if residual is None:
        return total.to(outputs.dtype)
    return residual.copy_(residual.float() + total)
