"""Tensor parallelism as data: what a rank's model looks like, and which part of each parameter it has.

                      column: a rank has some outputs          row: a rank has some inputs, outputs are parts of a sum
    attention         qkv: its heads                           out: its heads
    gated MLP         gate_up: a part of gate, the same of up  down: the same part
    experts           as a gated MLP, each of them, or whole ones of them; the router every rank has whole
    vocabulary        embed_tokens, lm_head: its tokens
    a family's own    as Family.shards says

A rank's spec has its own numbers of heads and its own widths, so that modules, caches and the memory plan know of no ranks.
What is not named in `shares` every rank has whole: norms, the tower's mergers, and the tower's blocks but under `tensor`
(encoder/vision_parallel.py says who runs what of the tower).
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.errors import ConfigError
from sightline.models.registry import family_named
from sightline.models.weights.expressions import Share
from sightline.parallel.split import Span, even_spans, head_shares, spans
from sightline.spec import AttentionSpec, ExpertsSpec, GatedMLPSpec, LayerSpec, ModelSpec, PatchTowerSpec

_BLOCK = 128  # a matrix of 8-bit floats with a scale for each block of 128 x 128 is cut between blocks


@dataclass(frozen=True)
class PartShard:
    """A mixer or an MLP of a layer as a rank has it."""

    spec: Any
    shares: Mapping[str, Share]  # by name of the parameter within the module


# (spec of the part, rank, ranks, smallest unit that widths are cut in) -> what that rank has of it
ShardPart = Callable[[Any, int, int, int], PartShard]


@dataclass(frozen=True)
class ModelShard:
    """A model as a rank has it."""

    rank: int
    spec: ModelSpec
    shares: Mapping[str, Share]  # by name of the parameter; all of those that it does not name
    vocabulary: tuple[Span, ...]  # of all ranks

    @property
    def vocabulary_size(self) -> int:
        return self.vocabulary[self.rank][1]


def shard_attention(spec: AttentionSpec, rank: int, ranks: int, unit: int) -> PartShard:
    share, size = head_shares(spec.num_heads, spec.num_kv_heads, ranks)[rank], spec.head_dim
    keys = spec.num_heads * size
    values = keys + spec.num_kv_heads * size
    kv = share.first_kv * size, share.kv_count * size
    queries = share.first * size, share.count * size
    rows = Share(0, (queries, (keys + kv[0], kv[1]), (values + kv[0], kv[1])))
    shares = {"qkv.weight": rows, "out.weight": Share(1, (queries,))}
    if spec.qkv_bias:
        shares["qkv.bias"] = rows
    if spec.output_gate:
        shares["gate.weight"] = Share(0, (queries,))
    return PartShard(dataclasses.replace(spec, num_heads=share.count, num_kv_heads=share.kv_count), shares)


def shard_gated_mlp(spec: GatedMLPSpec, rank: int, ranks: int, unit: int) -> PartShard:
    first, length = even_spans(spec.intermediate_size, ranks, unit)[rank]
    gate_up = Share(0, ((first, length), (spec.intermediate_size + first, length)))
    return PartShard(GatedMLPSpec(length), {"gate_up.weight": gate_up, "down.weight": Share(1, ((first, length),))})


def shard_experts(spec: ExpertsSpec, rank: int, ranks: int, unit: int) -> PartShard:
    """A part of each expert, so that ranks have as much to do whichever are chosen."""
    first, length = even_spans(spec.intermediate_size, ranks, unit)[rank]
    gate_up = Share(1, ((first, length), (spec.intermediate_size + first, length)))
    own = dataclasses.replace(spec, intermediate_size=length)
    return PartShard(own, {"gate_up.weight": gate_up, "down.weight": Share(2, ((first, length),))})


def spread_experts(spec: ExpertsSpec, rank: int, ranks: int, unit: int) -> PartShard:
    """Whole experts, the shared one as the last of them, in place of a part of each."""
    if ranks > spec.matrices:
        raise ConfigError(f"tensor_parallel_size is {ranks}, but there are only {spec.matrices} experts to spread.")
    held = spans(spec.matrices, ranks)[rank]
    shares = {"gate_up.weight": Share(0, (held,)), "down.weight": Share(0, (held,))}
    return PartShard(dataclasses.replace(spec, held=held), shares)


BUILT_IN: Mapping[type, ShardPart] = {
    AttentionSpec: shard_attention,
    GatedMLPSpec: shard_gated_mlp,
    ExpertsSpec: shard_experts,
}


def shard_model(
    spec: ModelSpec,
    rank: int,
    ranks: int,
    split_tower: bool = False,
    parts: Mapping[type, ShardPart] | None = None,
    whole_experts: bool = False,
) -> ModelShard:
    """What a rank has of the model. `parts`: how each kind of mixer and MLP is cut, if not as its family says."""
    text = spec.text
    if whole_experts and text.experts is None:
        raise ConfigError("expert_parallel is on, but the model has no experts.")
    parts = {**BUILT_IN, **family_named(spec.family).shards} if parts is None else parts
    if whole_experts:
        parts = {**parts, ExpertsSpec: spread_experts}
    unit = _BLOCK if spec.fp8 is not None and spec.fp8.scales == "block" else 1
    vocabulary = even_spans(text.vocab_size, ranks)
    shares = {"text.embed_tokens.weight": Share(0, (vocabulary[rank],))}
    if not text.tie_word_embeddings:
        shares["text.lm_head.weight"] = Share(0, (vocabulary[rank],))
    layers = []
    for index, layer in enumerate(text.layers):
        found = {}
        for name, part in (("mixer", layer.mixer), ("mlp", layer.mlp)):
            if type(part) not in parts:
                raise ConfigError(
                    f"tensor_parallel_size is {ranks}, but layers of the kind {type(part).__name__} cannot be split over ranks."
                )
            shard = parts[type(part)](part, rank, ranks, unit)
            shares |= {f"text.layers.{index}.{name}.{parameter}": share for parameter, share in shard.shares.items()}
            found[name] = shard.spec
        layers.append(LayerSpec(found["mixer"], found["mlp"]))
    if text.adapters:
        shares |= dict(_pair_shares(shares))
    own = dataclasses.replace(spec, text=dataclasses.replace(text, layers=tuple(layers)))
    if split_tower:
        vision, more = shard_tower(spec.patch_tower, rank, ranks)
        own, shares = dataclasses.replace(own, vision=vision), shares | more
    return ModelShard(rank, own, shares, vocabulary)


def _pair_shares(shares: Mapping[str, Share]) -> Iterator[tuple[str, Share]]:
    """Of the low-rank pairs of matrices of layers: of B the outputs that a rank has of the matrix, or of A its inputs."""
    for name, share in shares.items():
        if name.startswith("text.layers.") and name.endswith(".weight"):
            yield name.removesuffix("weight") + ("low_rank.up" if share.axis == 0 else "low_rank.down"), share


def shard_tower(spec: PatchTowerSpec, rank: int, ranks: int) -> tuple[PatchTowerSpec, dict[str, Share]]:
    """The tower's blocks: heads, and the inner width of the MLP."""
    block = spec.block
    if ranks > block.num_heads:
        raise ConfigError(f"tensor_parallel_size is {ranks}, but the tower has only {block.num_heads} heads to split.")
    first, count = (number * block.head_dim for number in spans(block.num_heads, ranks)[rank])
    qkv = Share(0, tuple((part * block.hidden_size + first, count) for part in range(3)))
    inner = even_spans(block.intermediate_size, ranks)[rank]
    if block.mlp != "gated_silu":
        up, wide, down = "fc1", Share(0, (inner,)), "fc2"
    else:
        up, wide, down = "gate_up", Share(0, (inner, (block.intermediate_size + inner[0], inner[1]))), "down"
    shares = {"qkv.weight": qkv, "proj.weight": Share(1, ((first, count),))}
    shares |= {f"mlp.{up}.weight": wide, f"mlp.{down}.weight": Share(1, (inner,))}
    if block.qkv_bias:
        shares["qkv.bias"] = qkv
    if block.mlp_bias:
        shares[f"mlp.{up}.bias"] = wide
    own = dataclasses.replace(block, held_heads=count // block.head_dim, intermediate_size=inner[1])
    named = {f"vision.blocks.{index}.{name}": share for index in range(spec.depth) for name, share in shares.items()}
    return dataclasses.replace(spec, block=own), named
