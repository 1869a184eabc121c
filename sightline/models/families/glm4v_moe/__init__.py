"""GLM-4.5V and GLM-4.6V: GLM-4.1V's tower, a decoder with experts. They differ as GLM-4.1V and GLM-4.6V-Flash do: in video."""

import dataclasses
import functools

from sightline.models.families import glm4v, glm46v
from sightline.models.families.glm4v_moe.config import read_spec
from sightline.models.families.glm4v_moe.sizes import SIZES_4_5, SIZES_4_6
from sightline.models.families.glm4v_moe.weights import LAYOUTS, weights

_GLM_4_5V = dataclasses.replace(
    glm4v.FAMILY,
    name="glm-4.5v",
    model_type="glm4v_moe",
    architecture="Glm4vMoeForConditionalGeneration",
    read_spec=functools.partial(read_spec, family="glm-4.5v"),
    weight_table=weights,
    sizes=SIZES_4_5,
    expert_layouts=LAYOUTS,
    special_tokens=glm46v.FAMILY.special_tokens,
    chat_template=glm46v.FAMILY.chat_template,
)
_GLM_4_6V = dataclasses.replace(
    _GLM_4_5V,
    name="glm-4.6v",
    processor_class=glm46v.FAMILY.processor_class,
    read_spec=functools.partial(read_spec, family="glm-4.6v"),
    read_processor=glm46v.FAMILY.read_processor,
    sizes=SIZES_4_6,
    preprocessor=glm46v.FAMILY.preprocessor,
    video_preprocessor=glm46v.FAMILY.video_preprocessor,
)
FAMILIES = (_GLM_4_5V, _GLM_4_6V)
