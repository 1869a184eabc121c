"""Phi-4-multimodal, text and images: SigLIP on crops, an adapter for requests with images, rotary frequencies by length."""

from pathlib import Path
from typing import TYPE_CHECKING

from sightline.models.families.phi4_multimodal.config import read_spec
from sightline.models.families.phi4_multimodal.processor import read_processor
from sightline.models.families.phi4_multimodal.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS
from sightline.models.families.phi4_multimodal.weights import weights
from sightline.models.family import Family
from sightline.spec import ModelSpec

if TYPE_CHECKING:
    from sightline.models.tower import Tower


def tower(spec: ModelSpec) -> "Tower":
    from sightline.models.families.phi4_multimodal.tower import make_tower

    return make_tower(spec)


FAMILY = Family(
    name="phi4-multimodal",
    model_type="phi4mm",
    architecture="Phi4MMForCausalLM",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes=SIZES,
    preprocessor=PREPROCESSOR,
    video_preprocessor=None,
    token_fields={"image_token_id": "<|endoftext10|>"},
    text_token_fields={"eos_token_id": "<|endoftext|>", "pad_token_id": "<|endoftext|>"},
    eos_tokens=("<|end|>", "<|endoftext|>"),
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
    replaces_code=True,
    tower=tower,
)
