"""Qwen3-VL, dense: interpolated positions, deepstack features, interleaved M-RoPE, timestamped video frames."""

from pathlib import Path

from sightline.models.families.qwen3_vl.config import read_spec
from sightline.models.families.qwen3_vl.processor import read_processor
from sightline.models.families.qwen3_vl.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS, VIDEO_PREPROCESSOR
from sightline.models.families.qwen3_vl.weights import weights
from sightline.models.family import Family

FAMILY = Family(
    name="qwen3-vl",
    model_type="qwen3_vl",
    architecture="Qwen3VLForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes=SIZES,
    preprocessor=PREPROCESSOR,
    video_preprocessor=VIDEO_PREPROCESSOR,
    token_fields={
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    text_token_fields={"eos_token_id": "<|im_end|>", "pad_token_id": "<|endoftext|>"},
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
)
