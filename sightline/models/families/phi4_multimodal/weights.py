"""Which tensors of a checkpoint make which parameter, by the names of the published one.

Linear layers of the decoder are stored as `base_layer` and low-rank pairs `lora_A` and `lora_B` of two adapters. What is of
audio, its adapter included, is known and not loaded, nor is what comes behind the tower's last features.
"""

from sightline.models.families.phi4_multimodal.config import CropTowerSpec
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Reshape, Stored, flatten
from sightline.models.weights.layers import adapted_linear, decoder, linear, merged_linear, norm
from sightline.spec import AttentionSpec, GatedMLPSpec, ModelSpec

_EMBED = "model.embed_tokens_extend"
_IMAGE = f"{_EMBED}.image_embed"
_TOWER = f"{_IMAGE}.img_processor"


def weights(spec: ModelSpec) -> WeightTable:
    vision, adapters = spec.vision, spec.text.adapters
    assert isinstance(vision, CropTowerSpec)
    table = WeightTable(
        ignored=(
            f"{_EMBED}.audio_embed.*",
            "text.layers.*.lora_[AB].speech.weight",
            f"{_TOWER}.encoder.layers.{vision.depth}.*",
            f"{_TOWER}.post_layernorm.*",
            f"{_TOWER}.head.*",
        ),
        prefixes={"text.": "model."},
    )
    _tower(table, vision)

    def attention(table: WeightTable, ours: str, layer: str, spec: AttentionSpec, hidden: int) -> None:
        heads, size, theirs = spec.num_heads, spec.head_dim, f"{layer}.self_attn"
        adapted_linear(table, f"{ours}.qkv", f"{theirs}.qkv_proj", (heads + 2 * spec.num_kv_heads) * size, hidden, adapters)
        adapted_linear(table, f"{ours}.out", f"{theirs}.o_proj", hidden, heads * size, adapters)

    def mlp(table: WeightTable, ours: str, layer: str, spec: GatedMLPSpec, hidden: int) -> None:
        inner, theirs = spec.intermediate_size, f"{layer}.mlp"
        adapted_linear(table, f"{ours}.gate_up", f"{theirs}.gate_up_proj", 2 * inner, hidden, adapters)
        adapted_linear(table, f"{ours}.down", f"{theirs}.down_proj", hidden, inner, adapters)

    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    decoder(table, spec.text, norms, {AttentionSpec: attention, GatedMLPSpec: mlp})
    return table


def _tower(table: WeightTable, vision: CropTowerSpec) -> None:
    size, patch, inner = vision.hidden_size, vision.patch_size, vision.intermediate_size
    kernel = Stored(f"{_TOWER}.embeddings.patch_embedding.weight", (size, 3, patch, patch))
    table["vision.patch_embed.weight"] = flatten(kernel, 1)
    table["vision.patch_embed.bias"] = Stored(f"{_TOWER}.embeddings.patch_embedding.bias", (size,))
    table["vision.positions"] = Stored(f"{_TOWER}.embeddings.position_embedding.weight", (vision.side**2, size))
    for index in range(vision.depth):
        ours, theirs = f"vision.blocks.{index}", f"{_TOWER}.encoder.layers.{index}"
        norm(table, f"{ours}.norm1", f"{theirs}.layer_norm1", size, True)
        norm(table, f"{ours}.norm2", f"{theirs}.layer_norm2", size, True)
        qkv = tuple((f"{theirs}.self_attn.{name}_proj", size) for name in "qkv")
        merged_linear(table, f"{ours}.qkv", qkv, size, True)
        linear(table, f"{ours}.proj", f"{theirs}.self_attn.out_proj", size, size, True)
        linear(table, f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1", inner, size, True)
        linear(table, f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2", size, inner, True)
    out = vision.out_hidden_size
    linear(table, "vision.fc1", f"{_IMAGE}.img_projection.0", out, size, True)
    linear(table, "vision.fc2", f"{_IMAGE}.img_projection.2", out, out, True)
    table["vision.newline"] = Reshape((size,), Stored(f"{_IMAGE}.sub_GN", (1, 1, 1, size)))
    table["vision.separator"] = Reshape((size,), Stored(f"{_IMAGE}.glb_GN", (1, 1, size)))
