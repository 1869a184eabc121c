"""GLM-4.6V-Flash: GLM-4.1V's tower and decoder, with another way of sampling video and of writing its times.

Its config.json has GLM-4.1V's model_type and classes; the processor's class tells them apart.
"""

import functools
from pathlib import Path

from sightline.models.families.glm4v import END_TOKENS, TEXT_TOKEN_FIELDS, TOKEN_FIELDS, tower
from sightline.models.families.glm4v.config import read_spec
from sightline.models.families.glm4v.weights import weights
from sightline.models.families.glm46v.processor import read_processor
from sightline.models.families.glm46v.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS, VIDEO_PREPROCESSOR
from sightline.models.family import Family

FAMILY = Family(
    name="glm-4.6v-flash",
    model_type="glm4v",
    processor_class="Glm46VProcessor",
    architecture="Glm4vForConditionalGeneration",
    read_spec=functools.partial(read_spec, family="glm-4.6v-flash"),
    read_processor=read_processor,
    weight_table=weights,
    sizes=SIZES,
    preprocessor=PREPROCESSOR,
    video_preprocessor=VIDEO_PREPROCESSOR,
    token_fields=TOKEN_FIELDS,
    text_token_fields=TEXT_TOKEN_FIELDS,
    eos_tokens=END_TOKENS,
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
    tower=tower,
)
