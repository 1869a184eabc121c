"""Qwen2.5-VL: window attention in the tower, no learned positions, blocked M-RoPE, video as one block on a time axis."""

from pathlib import Path

from sightline.models.families.qwen2_5_vl.config import read_spec
from sightline.models.families.qwen2_5_vl.processor import read_processor
from sightline.models.families.qwen2_5_vl.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS
from sightline.models.families.qwen2_5_vl.weights import weights
from sightline.models.family import Family

FAMILY = Family(
    name="qwen2.5-vl",
    model_type="qwen2_5_vl",
    architecture="Qwen2_5_VLForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes=SIZES,
    preprocessor=PREPROCESSOR,
    video_preprocessor=None,
    token_fields={
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    # Without the last, transformers fills in an id that a small vocabulary has not.
    text_token_fields={"eos_token_id": "<|im_end|>", "pad_token_id": "<|endoftext|>", "bos_token_id": "<|endoftext|>"},
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
    coordinates="pixels",
)
