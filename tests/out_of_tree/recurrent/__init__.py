"""A family from elsewhere: three layers of four keep a recurrent state, every fourth attends. All else is Qwen3-VL's."""

import dataclasses

from sightline.models.families.qwen3_vl import FAMILY as QWEN3
from sightline.models.families.qwen3_vl.weights import weights
from sightline.models.fields import Fields
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Stored
from sightline.models.weights.layers import linear, merged_linear
from sightline.spec import LayerSpec, ModelSpec, StateCacheSpec, StateTensor

EVERY = 4  # of so many layers the last is attention


@dataclasses.dataclass(frozen=True)
class MemorySpec:
    heads: int
    head_dim: int
    hidden_size: int

    @property
    def cache(self) -> StateCacheSpec:
        memory = StateTensor((self.heads, self.head_dim, self.head_dim), "float32")
        return StateCacheSpec((memory, StateTensor((self.hidden_size,), "model")))


def read_spec(config: Fields) -> ModelSpec:
    heads, head_dim = config.integer("memory_heads"), config.integer("memory_dim")
    spec = QWEN3.read_spec(config)
    memory = MemorySpec(heads, head_dim, spec.text.hidden_size)
    layers = tuple(
        layer if index % EVERY == EVERY - 1 else LayerSpec(memory, layer.mlp) for index, layer in enumerate(spec.text.layers)
    )
    return dataclasses.replace(spec, family="recurrent-vl", text=dataclasses.replace(spec.text, layers=layers))


def memory_weights(table: WeightTable, ours: str, layer: str, spec: MemorySpec, hidden: int) -> None:
    inner, theirs = spec.heads * spec.head_dim, f"{layer}.memory"
    table[f"{ours}.shift"] = Stored(f"{theirs}.shift", (hidden,))
    merged_linear(table, f"{ours}.qkv", tuple((f"{theirs}.{name}_proj", inner) for name in "qkv"), hidden, False)
    linear(table, f"{ours}.fade", f"{theirs}.fade_proj", spec.heads, hidden, False)
    linear(table, f"{ours}.out", f"{theirs}.out_proj", hidden, inner, False)


def modules() -> dict[type, object]:
    from .mixer import Memory

    return {MemorySpec: lambda spec, text: Memory(spec)}


_TINY = QWEN3.sizes["tiny"]
FAMILY = dataclasses.replace(
    QWEN3,
    name="recurrent-vl",
    model_type="recurrent_vl",
    architecture="RecurrentForConditionalGeneration",
    read_spec=read_spec,
    weight_table=lambda spec: weights(spec, {MemorySpec: memory_weights}),
    modules=modules,
    sizes={
        "tiny": {
            **_TINY,
            "memory_heads": 2,
            "memory_dim": 16,
            "text_config": {**_TINY["text_config"], "num_hidden_layers": 2 * EVERY},
            "vision_config": {**_TINY["vision_config"], "deepstack_visual_indexes": []},
        }
    },
)
