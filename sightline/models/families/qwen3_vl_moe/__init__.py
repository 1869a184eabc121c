"""Qwen3-VL with experts: all but the decoder's MLPs is the dense family's."""

import dataclasses

from sightline.models.families import qwen3_vl
from sightline.models.families.qwen3_vl_moe.config import read_spec
from sightline.models.families.qwen3_vl_moe.sizes import SIZES
from sightline.models.families.qwen3_vl_moe.weights import LAYOUTS, weights

FAMILY = dataclasses.replace(
    qwen3_vl.FAMILY,
    name="qwen3-vl-moe",
    model_type="qwen3_vl_moe",
    architecture="Qwen3VLMoeForConditionalGeneration",
    read_spec=read_spec,
    weight_table=weights,
    sizes=SIZES,
    expert_layouts=LAYOUTS,
)
