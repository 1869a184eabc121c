"""GLM-4.1V: bicubic positions, convolutional merger, sandwich norms, half-rotary adjacent pairs, numbered video frames."""

from pathlib import Path
from typing import TYPE_CHECKING

from sightline.models.families.glm4v.config import read_spec
from sightline.models.families.glm4v.processor import read_processor
from sightline.models.families.glm4v.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS, VIDEO_PREPROCESSOR
from sightline.models.families.glm4v.weights import weights
from sightline.models.family import Family
from sightline.spec import ModelSpec

if TYPE_CHECKING:
    from sightline.models.tower import Tower

END_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
TOKEN_FIELDS = {
    "image_token_id": "<|image|>",
    "video_token_id": "<|video|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_end_token_id": "<|end_of_video|>",
}
TEXT_TOKEN_FIELDS = {"eos_token_id": END_TOKENS, "pad_token_id": "<|endoftext|>"}


def tower(spec: ModelSpec) -> "Tower":
    from sightline.models.families.glm4v.tower import make_tower

    return make_tower(spec)


FAMILY = Family(
    name="glm-4.1v",
    model_type="glm4v",
    architecture="Glm4vForConditionalGeneration",
    read_spec=read_spec,
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
