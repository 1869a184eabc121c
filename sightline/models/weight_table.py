"""Which tensors of a checkpoint make which parameter of ours, as data.

A parameter comes from one tensor or from several stacked along the first axis (q, k and v; gate and up), possibly reshaped on
the way. The table lists every parameter once, with the exact shape each tensor must have, so the same table loads a checkpoint
and writes one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.spec import ModelSpec, TextSpec

if TYPE_CHECKING:
    import torch  # only to name a type: reading configs loads no torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Where a parameter comes from: tensors by their canonical names, stacked along axis 0 after conversion."""

    tensors: tuple[tuple[str, Shape], ...]
    convert: "Callable[[torch.Tensor], torch.Tensor] | None" = None


WeightTable = dict[str, Source]  # by our parameter name

# Hub checkpoints name the two halves differently by age; the table uses the right-hand side.
_CANONICAL_PREFIXES = (
    ("model.visual.", "visual."),
    ("model.language_model.", "text."),
    ("language_model.model.", "text."),
    ("language_model.lm_head.", "lm_head."),
    ("model.embed_tokens.", "text.embed_tokens."),
    ("model.layers.", "text.layers."),
    ("model.norm.", "text.norm."),
)


def canonical_name(name: str) -> str:
    for prefix, replacement in _CANONICAL_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def hub_name(name: str) -> str:
    """The name that current checkpoints of these families use for a canonical one."""
    for prefix, replacement in (("visual.", "model.visual."), ("text.", "model.language_model.")):
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def is_derived(name: str) -> bool:
    """Buffers that old checkpoints stored although they follow from the config."""
    return name.endswith(("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq"))


def single(name: str, *shape: int) -> Source:
    return Source(((name, shape),))


def linear(table: WeightTable, ours: str, theirs: str, rows: int, columns: int, bias: bool) -> None:
    table[f"{ours}.weight"] = single(f"{theirs}.weight", rows, columns)
    if bias:
        table[f"{ours}.bias"] = single(f"{theirs}.bias", rows)


def stacked(table: WeightTable, ours: str, theirs: tuple[tuple[str, int], ...], columns: int, bias: bool) -> None:
    """One linear layer of ours from several of theirs, each (name, rows)."""
    table[f"{ours}.weight"] = Source(tuple((f"{name}.weight", (rows, columns)) for name, rows in theirs))
    if bias:
        table[f"{ours}.bias"] = Source(tuple((f"{name}.bias", (rows,)) for name, rows in theirs))


def patch_embedding(table: WeightTable, spec: ModelSpec) -> None:
    """The Conv3d weight [out, channels, time, rows, columns] flattened to a linear map."""
    vision = spec.vision
    kernel = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
    table["vision.patch_embed.weight"] = Source(
        (("visual.patch_embed.proj.weight", (vision.hidden_size, *kernel)),), convert=lambda weight: weight.flatten(1)
    )
    if vision.patch_bias:
        table["vision.patch_embed.bias"] = single("visual.patch_embed.proj.bias", vision.hidden_size)


def tower_attention(table: WeightTable, spec: ModelSpec, norm_bias: bool) -> None:
    """Norms and attention of the tower's blocks: the same names in every family."""
    vision = spec.vision
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}", f"visual.blocks.{index}"
        for norm in ("norm1", "norm2"):
            table[f"{ours}.{norm}.weight"] = single(f"{theirs}.{norm}.weight", vision.hidden_size)
            if norm_bias:
                table[f"{ours}.{norm}.bias"] = single(f"{theirs}.{norm}.bias", vision.hidden_size)
        linear(table, f"{ours}.qkv", f"{theirs}.attn.qkv", 3 * vision.hidden_size, vision.hidden_size, vision.qkv_bias)
        linear(table, f"{ours}.proj", f"{theirs}.attn.proj", vision.hidden_size, vision.hidden_size, vision.proj_bias)


def tower_gated_mlp(table: WeightTable, spec: ModelSpec) -> None:
    vision = spec.vision
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}.mlp", f"visual.blocks.{index}.mlp"
        gate_up = ((f"{theirs}.gate_proj", vision.intermediate_size), (f"{theirs}.up_proj", vision.intermediate_size))
        stacked(table, f"{ours}.gate_up", gate_up, vision.hidden_size, vision.mlp_bias)
        linear(table, f"{ours}.down", f"{theirs}.down_proj", vision.hidden_size, vision.intermediate_size, vision.mlp_bias)


def decoder(table: WeightTable, text: TextSpec, norms: dict[str, str], fused_gate_up: bool) -> None:
    """The language model. `norms` maps our norm names inside a layer to the checkpoint's."""
    size = text.hidden_size
    table["text.embed_tokens.weight"] = single("text.embed_tokens.weight", text.vocab_size, size)
    for index in range(text.num_layers):
        ours, theirs = f"text.layers.{index}", f"text.layers.{index}"
        for our_norm, their_norm in norms.items():
            table[f"{ours}.{our_norm}.weight"] = single(f"{theirs}.{their_norm}.weight", size)
        rows = {"q": text.num_heads, "k": text.num_kv_heads, "v": text.num_kv_heads}
        qkv = tuple((f"{theirs}.self_attn.{name}_proj", heads * text.head_dim) for name, heads in rows.items())
        stacked(table, f"{ours}.attention.qkv", qkv, size, text.qkv_bias)
        linear(table, f"{ours}.attention.out", f"{theirs}.self_attn.o_proj", size, text.num_heads * text.head_dim, False)
        if text.qk_norm:
            for name in ("q_norm", "k_norm"):
                table[f"{ours}.attention.{name}.weight"] = single(f"{theirs}.self_attn.{name}.weight", text.head_dim)
        if fused_gate_up:
            linear(table, f"{ours}.mlp.gate_up", f"{theirs}.mlp.gate_up_proj", 2 * text.intermediate_size, size, False)
        else:
            halves = tuple((f"{theirs}.mlp.{name}_proj", text.intermediate_size) for name in ("gate", "up"))
            stacked(table, f"{ours}.mlp.gate_up", halves, size, False)
        linear(table, f"{ours}.mlp.down", f"{theirs}.mlp.down_proj", size, text.intermediate_size, False)
    table["text.norm.weight"] = single("text.norm.weight", size)
    if not text.tie_word_embeddings:
        table["text.lm_head.weight"] = single("lm_head.weight", text.vocab_size, size)
