"""Qwen3.5 and 3.6 with experts: all but the decoder's MLPs is the dense family's."""

import dataclasses

from sightline.models.families import qwen3_5
from sightline.models.families.qwen3_5_moe.config import read_spec
from sightline.models.families.qwen3_5_moe.sizes import SIZES
from sightline.models.families.qwen3_5_moe.weights import LAYOUTS, weights

FAMILY = dataclasses.replace(
    qwen3_5.FAMILY,
    name="qwen3.5-moe",
    model_type="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    read_spec=read_spec,
    weight_table=weights,
    sizes=SIZES,
    expert_layouts=LAYOUTS,
)
