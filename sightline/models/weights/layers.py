"""Weights of the usual layers: linear layers and norms, attention, dense MLPs, experts; and a decoder made of them.

Each helper puts the parameters of one layer into a table: `ours` is how our names begin, `theirs` how the checkpoint's do. A
decoder whose layers are of several kinds is a list of calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Cast, Concat, Part, Stack, Stored, Weight, part_of_groups, transpose
from sightline.spec import AdapterSpec, AttentionSpec, ExpertLayout, ExpertsSpec, GatedMLPSpec, TextSpec


def linear(table: WeightTable, ours: str, theirs: str, rows: int, columns: int, bias: bool) -> None:
    table[f"{ours}.weight"] = Stored(f"{theirs}.weight", (rows, columns))
    if bias:
        table[f"{ours}.bias"] = Stored(f"{theirs}.bias", (rows,))


def merged_linear(table: WeightTable, ours: str, theirs: tuple[tuple[str, int], ...], columns: int, bias: bool) -> None:
    """One linear layer of ours from several of theirs, each (name, rows)."""
    table[f"{ours}.weight"] = Concat(0, tuple(Stored(f"{name}.weight", (rows, columns)) for name, rows in theirs))
    if bias:
        table[f"{ours}.bias"] = Concat(0, tuple(Stored(f"{name}.bias", (rows,)) for name, rows in theirs))


def adapted_linear(
    table: WeightTable, ours: str, theirs: str, rows: int, columns: int, adapters: Sequence[AdapterSpec]
) -> None:
    """A linear layer without bias, and the low-rank pairs of its adapters, by the names that the peft library gives them."""
    table[f"{ours}.weight"] = Stored(f"{theirs}.base_layer.weight", (rows, columns))
    downs = tuple(Stored(f"{theirs}.lora_A.{adapter.name}.weight", (adapter.rank, columns)) for adapter in adapters)
    ups = tuple(Stored(f"{theirs}.lora_B.{adapter.name}.weight", (rows, adapter.rank)) for adapter in adapters)
    table[f"{ours}.low_rank.down"], table[f"{ours}.low_rank.up"] = Concat(0, downs), Concat(1, ups)


def norm(table: WeightTable, ours: str, theirs: str, size: int, bias: bool, zero_centred: bool = False) -> None:
    stored = Stored(f"{theirs}.weight", (size,), mean=0.0 if zero_centred else None)
    table[f"{ours}.weight"] = Cast("float32", stored, plus=1.0) if zero_centred else stored
    if bias:
        table[f"{ours}.bias"] = Stored(f"{theirs}.bias", (size,))


def attention(table: WeightTable, ours: str, theirs: str, spec: AttentionSpec, hidden: int) -> None:
    """`qkv` from q, k and v, `out`, the norms of q and k if there are any, and `gate`, whose rows stand among those of q."""
    rows = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    if spec.output_gate:
        assert not spec.qkv_bias
        size = spec.head_dim  # of each head, so many rows are its query's and as many its gate's
        q_and_gate = Stored(f"{theirs}.q_proj.weight", (2 * spec.num_heads * size, hidden))
        k, v = (Stored(f"{theirs}.{name}_proj.weight", (rows[name] * size, hidden)) for name in "kv")
        table[f"{ours}.qkv.weight"] = Concat(0, (part_of_groups(q_and_gate, 0, spec.num_heads, 0, size), k, v))
        table[f"{ours}.gate.weight"] = part_of_groups(q_and_gate, 0, spec.num_heads, size, size)
    else:
        qkv = tuple((f"{theirs}.{name}_proj", count * spec.head_dim) for name, count in rows.items())
        merged_linear(table, f"{ours}.qkv", qkv, hidden, spec.qkv_bias)
    linear(table, f"{ours}.out", f"{theirs}.o_proj", hidden, spec.num_heads * spec.head_dim, False)
    if spec.qk_norm:
        for name in ("q_norm", "k_norm"):
            norm(table, f"{ours}.{name}", f"{theirs}.{name}", spec.head_dim, False, spec.zero_centred_norms)


def gated_mlp(
    table: WeightTable, ours: str, theirs: str, *, hidden: int, intermediate: int, bias: bool = False, fused: bool = False
) -> None:
    """`gate_up` and `down`. `fused`: the checkpoint has gate and up as one matrix, gate's rows first."""
    if fused:
        linear(table, f"{ours}.gate_up", f"{theirs}.gate_up_proj", 2 * intermediate, hidden, bias)
    else:
        halves = ((f"{theirs}.gate_proj", intermediate), (f"{theirs}.up_proj", intermediate))
        merged_linear(table, f"{ours}.gate_up", halves, hidden, bias)
    linear(table, f"{ours}.down", f"{theirs}.down_proj", hidden, intermediate, bias)


def _one_gated_mlp(theirs: str, hidden: int, intermediate: int) -> tuple[Weight, Weight]:
    """(gate_up, down) of a checkpoint's MLP."""
    halves = tuple(Stored(f"{theirs}.{name}_proj.weight", (intermediate, hidden)) for name in ("gate", "up"))
    return Concat(0, halves), Stored(f"{theirs}.down_proj.weight", (hidden, intermediate))


def _cut_gated_mlp(theirs: str, hidden: int, intermediate: int, count: int) -> Iterator[tuple[Weight, Weight]]:
    """(gate_up, down) of `count` MLPs of this width, which together are one of the checkpoint's: what they put out adds up."""
    whole = count * intermediate
    gate, up = (Stored(f"{theirs}.{name}_proj.weight", (whole, hidden)) for name in ("gate", "up"))
    down = Stored(f"{theirs}.down_proj.weight", (hidden, whole))
    for first in range(0, whole, intermediate):
        yield Concat(0, tuple(Part(0, first, intermediate, half) for half in (gate, up))), Part(1, first, intermediate, down)


def stacked_experts(
    theirs: str, *, count: int, hidden: int, intermediate: int, layout: ExpertLayout, shared: str | None = None,
    shared_count: int = 1,
) -> tuple[Weight, Weight]:  # fmt: skip
    """Gate and up [count, 2 * intermediate, hidden] and down [count, hidden, intermediate], whatever the checkpoint has.

    `shared`: the name of one more MLP, which is put behind them: one of this size, or `shared_count` times as wide and cut.
    """
    gate_up: Weight
    down: Weight
    if layout == "fused":
        gate_up = Stored(f"{theirs}.gate_up_proj", (count, 2 * intermediate, hidden), experts=True)
        down = Stored(f"{theirs}.down_proj", (count, hidden, intermediate), experts=True)
    elif layout == "fused_transposed":
        gate_up = transpose(Stored(f"{theirs}.gate_up_proj", (count, hidden, 2 * intermediate), experts=True, transposed=True))
        down = transpose(Stored(f"{theirs}.down_proj", (count, intermediate, hidden), experts=True, transposed=True))
    else:
        each = [_one_gated_mlp(f"{theirs}.{index}", hidden, intermediate) for index in range(count)]
        gate_up, down = (Stack(tuple(parts)) for parts in zip(*each, strict=True))
    if shared is None:
        return gate_up, down
    if shared_count == 1:
        own = [_one_gated_mlp(shared, hidden, intermediate)]
    else:
        own = list(_cut_gated_mlp(shared, hidden, intermediate, shared_count))
    own_gate_up, own_down = (Stack(tuple(parts)) for parts in zip(*own, strict=True))
    return Concat(0, (gate_up, own_gate_up)), Concat(0, (down, own_down))


def experts(
    table: WeightTable, ours: str, theirs: str, spec: ExpertsSpec, hidden: int, layout: ExpertLayout, shared: str = ""
) -> None:
    """A router and its experts. `theirs` is the checkpoint's MLP, `shared` what it calls the shared expert inside."""
    router: Weight = Stored(f"{theirs}.gate.weight", (spec.count, hidden))
    if spec.shared_expert == "gated":
        router = Concat(0, (router, Stored(f"{theirs}.{shared}_gate.weight", (1, hidden))))
    table[f"{ours}.router.weight"] = router
    if spec.scores == "sigmoid":
        table[f"{ours}.router.bias"] = Cast("float32", Stored(f"{theirs}.gate.e_score_correction_bias", (spec.count,)))
    table[f"{ours}.gate_up.weight"], table[f"{ours}.down.weight"] = stacked_experts(
        f"{theirs}.experts",
        count=spec.count,
        hidden=hidden,
        intermediate=spec.intermediate_size,
        layout=layout,
        shared=None if spec.shared_expert == "none" else f"{theirs}.{shared}",
        shared_count=spec.shared_count,
    )


# Puts a mixer or an MLP of a layer into a table: (table, ours, name of the checkpoint's layer, its spec, hidden size).
PartWeights: TypeAlias = Callable[[WeightTable, str, str, Any, int], None]


def usual_parts(fused_gate_up: bool = False) -> dict[type, PartWeights]:
    """By the type of their specs."""

    def mixer(table: WeightTable, ours: str, layer: str, spec: AttentionSpec, hidden: int) -> None:
        attention(table, ours, f"{layer}.self_attn", spec, hidden)

    def mlp(table: WeightTable, ours: str, layer: str, spec: GatedMLPSpec, hidden: int) -> None:
        gated_mlp(table, ours, f"{layer}.mlp", hidden=hidden, intermediate=spec.intermediate_size, fused=fused_gate_up)

    return {AttentionSpec: mixer, GatedMLPSpec: mlp}


def decoder(table: WeightTable, text: TextSpec, norms: Mapping[str, str], parts: Mapping[type, PartWeights]) -> None:
    """The language model. `norms` maps our norm names inside a layer to the checkpoint's; `parts` fill in its mixer and MLP."""
    size = text.hidden_size
    table["text.embed_tokens.weight"] = Stored("text.embed_tokens.weight", (text.vocab_size, size))
    for index, spec in enumerate(text.layers):
        layer = f"text.layers.{index}"
        for our_norm, their_norm in norms.items():
            norm(table, f"{layer}.{our_norm}", f"{layer}.{their_norm}", size, False, text.zero_centred_norms)
        parts[type(spec.mixer)](table, f"{layer}.mixer", layer, spec.mixer, size)
        parts[type(spec.mlp)](table, f"{layer}.mlp", layer, spec.mlp, size)
    norm(table, "text.norm", "text.norm", size, False, text.zero_centred_norms)
    if not text.tie_word_embeddings:
        table["text.lm_head.weight"] = Stored("lm_head.weight", (text.vocab_size, size))
