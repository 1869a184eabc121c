"""Step3-VL: a Perception Encoder with layer scales over windows and the whole picture, two convolutions, Qwen3's decoder."""

from pathlib import Path
from typing import TYPE_CHECKING

from sightline.models.families.step3_vl.config import read_spec
from sightline.models.families.step3_vl.processor import read_processor
from sightline.models.families.step3_vl.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS, TINY_PREPROCESSOR
from sightline.models.families.step3_vl.weights import weights
from sightline.models.family import Family
from sightline.spec import ModelSpec

if TYPE_CHECKING:
    from sightline.models.tower import Tower


def tower(spec: ModelSpec) -> "Tower":
    from sightline.models.families.step3_vl.tower import StepTower

    return StepTower(spec.patch_tower)


FAMILY = Family(
    name="step3-vl",
    model_type="step_robotics",
    architecture="StepVLForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes=SIZES,
    preprocessor=PREPROCESSOR,
    preprocessor_of_size={"tiny": TINY_PREPROCESSOR},
    video_preprocessor=None,
    token_fields={"image_token_id": "<im_patch>"},
    text_token_fields={"eos_token_id": "<|im_end|>", "pad_token_id": "<|endoftext|>"},
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
    replaces_code=True,
    tower=tower,
)
