"""Qwen3.5 and 3.6, dense: three layers of four are gated delta nets with a state per sequence, every fourth is gated attention.

Tower, processors and positions are those of Qwen3-VL, without deepstack features.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sightline.models.families.qwen3_5.config import read_spec
from sightline.models.families.qwen3_5.sharding import shard_delta_net
from sightline.models.families.qwen3_5.sizes import PREPROCESSOR, SIZES, SPECIAL_TOKENS, VIDEO_PREPROCESSOR
from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.families.qwen3_5.weights import weights
from sightline.models.families.qwen3_vl.processor import read_processor
from sightline.models.family import Family

if TYPE_CHECKING:
    from sightline.models.decoder import Modules


def modules() -> "Modules":
    from sightline.models.families.qwen3_5.delta_net import DeltaNet

    return {DeltaNetSpec: lambda spec, text: DeltaNet(spec, text.hidden_size)}


FAMILY = Family(
    name="qwen3.5",
    model_type="qwen3_5",
    architecture="Qwen3_5ForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    modules=modules,
    shards={DeltaNetSpec: shard_delta_net},
    sizes=SIZES,
    preprocessor=PREPROCESSOR,
    video_preprocessor=VIDEO_PREPROCESSOR,
    token_fields={
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    text_token_fields={"eos_token_id": "<|endoftext|>"},
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
)
