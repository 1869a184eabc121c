"""Which tensors of a checkpoint make which parameter."""

from sightline.models.families.deepseek_vl2.spec import LatentAttentionSpec, SiglipTowerSpec
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Reshape, Stored, flatten, part_of_groups, transpose
from sightline.models.weights.layers import decoder, experts, linear, norm, usual_parts
from sightline.spec import ExpertLayout, ExpertsSpec, ModelSpec

LAYOUTS: tuple[ExpertLayout, ...] = ("per_expert",)
_PREFIXES = {"text.": "language.model.", "lm_head.": "language.lm_head."}


def weights(spec: ModelSpec) -> WeightTable:
    vision = spec.vision
    assert isinstance(vision, SiglipTowerSpec)
    table = WeightTable(ignored=("vision.attn_pool.*",), prefixes=_PREFIXES)  # a head that is not used
    _tower(table, vision)

    def moe(table: WeightTable, ours: str, layer: str, part: ExpertsSpec, hidden: int) -> None:
        experts(table, ours, f"{layer}.mlp", part, hidden, LAYOUTS[0], shared="shared_experts")

    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, {**usual_parts(), ExpertsSpec: moe, LatentAttentionSpec: _latent_attention})
    return table


def _tower(table: WeightTable, vision: SiglipTowerSpec) -> None:
    size, patch, out = vision.hidden_size, vision.patch_size, vision.out_hidden_size
    table["vision.patch_embed.weight"] = flatten(Stored("vision.patch_embed.proj.weight", (size, 3, patch, patch)), 1)
    table["vision.patch_embed.bias"] = Stored("vision.patch_embed.proj.bias", (size,))
    table["vision.positions"] = Reshape((vision.side**2, size), Stored("vision.pos_embed", (1, vision.side**2, size)))
    for index in range(vision.depth):
        block = f"vision.blocks.{index}"
        norm(table, f"{block}.norm1", f"{block}.norm1", size, True)
        norm(table, f"{block}.norm2", f"{block}.norm2", size, True)
        linear(table, f"{block}.qkv", f"{block}.attn.qkv", 3 * size, size, True)
        linear(table, f"{block}.proj", f"{block}.attn.proj", size, size, True)
        linear(table, f"{block}.mlp.fc1", f"{block}.mlp.fc1", vision.intermediate_size, size, True)
        linear(table, f"{block}.mlp.fc2", f"{block}.mlp.fc2", size, vision.intermediate_size, True)
    norm(table, "vision.norm", "vision.norm", size, True)
    # Columns of theirs are, number by number of a patch, those of all patches that are joined; ours patch by patch.
    inner, patches = vision.projector_size, vision.join**2
    first = Stored("projector.layers.0.weight", (inner, size * patches))
    table["vision.fc1.weight"] = flatten(transpose(Reshape((inner, size, patches), first)), 1)
    table["vision.fc1.bias"] = Stored("projector.layers.0.bias", (inner,))
    linear(table, "vision.fc2", "projector.layers.2", out, inner, True)
    table["vision.newline"] = Stored("image_newline", (out,))
    table["vision.separator"] = Stored("view_seperator", (out,))  # spelled so in checkpoints


def _latent_attention(table: WeightTable, ours: str, layer: str, spec: LatentAttentionSpec, hidden: int) -> None:
    """Keys and values of a head stand together in what expands a latent."""
    theirs, heads, rank = f"{layer}.self_attn", spec.num_heads, spec.rank
    linear(table, f"{ours}.q", f"{theirs}.q_proj", heads * spec.query_dim, hidden, False)
    linear(table, f"{ours}.latent", f"{theirs}.kv_a_proj_with_mqa", rank + spec.rope.rotary_dim, hidden, False)
    norm(table, f"{ours}.latent_norm", f"{theirs}.kv_a_layernorm", rank, False)
    both = Stored(f"{theirs}.kv_b_proj.weight", (heads * (spec.nope_dim + spec.value_dim), rank))
    for name, start, size in (("keys", 0, spec.nope_dim), ("values", spec.nope_dim, spec.value_dim)):
        own = part_of_groups(both, 0, heads, start, size)
        table[f"{ours}.{name}"] = Reshape((heads, size, rank), own)
    linear(table, f"{ours}.out", f"{theirs}.o_proj", hidden, heads * spec.value_dim, False)
