"""DeepSeek-VL2: SigLIP over tiles and a global view, learned newlines, a DeepSeek-V2 decoder with experts.

Tiny has attention with keys and values of each head; small and base keep compressed ones.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.models.families.deepseek_vl2.config import read_spec
from sightline.models.families.deepseek_vl2.processor import read_processor
from sightline.models.families.deepseek_vl2.sharding import shard_latent_attention
from sightline.models.families.deepseek_vl2.sizes import ADDED_TOKENS, EOS, PROCESSOR, SIZES, SPECIAL_TOKENS
from sightline.models.families.deepseek_vl2.spec import LatentAttentionSpec
from sightline.models.families.deepseek_vl2.weights import LAYOUTS, weights
from sightline.models.family import Family
from sightline.spec import ModelSpec

if TYPE_CHECKING:
    from sightline.models.decoder import Modules
    from sightline.models.tower import Tower


def tower(spec: ModelSpec) -> "Tower":
    from sightline.models.families.deepseek_vl2.tower import SiglipTower

    vision: Any = spec.vision
    return SiglipTower(vision)


def modules() -> "Modules":
    from sightline.models.families.deepseek_vl2.latent_attention import LatentAttention

    return {LatentAttentionSpec: lambda spec, text: LatentAttention(spec, text.hidden_size)}


FAMILY = Family(
    name="deepseek-vl2",
    model_type="deepseek_vl_v2",
    architecture="DeepseekVLV2ForCausalLM",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    tower=tower,
    modules=modules,
    shards={LatentAttentionSpec: shard_latent_attention},
    sizes=SIZES,
    preprocessor=PROCESSOR,
    preprocessor_file="processor_config.json",
    video_preprocessor=None,
    token_fields={},
    tokenizer_fields={"image_token_id": "<image>"},
    added_tokens=ADDED_TOKENS,
    text_section="language_config",
    text_token_fields={"eos_token_id": EOS},
    eos_tokens=(EOS,),
    special_tokens=SPECIAL_TOKENS,
    chat_template=Path(__file__).with_name("chat_template.jinja"),
    lends_template=True,
    expert_layouts=LAYOUTS,
)
