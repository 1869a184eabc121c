"""A family from elsewhere: pictures as a global view and as tiles of a padded canvas, through a tower of its own.

Its tower has learned positions and no rotary; rows of a line end with a learned newline, and a learned separator stands between
the global view and the tiles. It takes no videos. The language model is Qwen3-VL's, without deepstack features.
"""

from typing import Any

from sightline.models.families.qwen3_vl import FAMILY as QWEN3
from sightline.models.family import Family
from sightline.spec import ModelSpec

from .config import read_spec
from .processor import read_processor
from .weights import weights


def tower(spec: ModelSpec) -> Any:
    from .tower import TileTower

    return TileTower(spec.vision)  # type: ignore[arg-type]


_TEXT = QWEN3.sizes["tiny"]["text_config"]

FAMILY = Family(
    name="tiles-vl",
    model_type="tiles_vl",
    architecture="TilesForConditionalGeneration",
    read_spec=read_spec,
    read_processor=read_processor,
    weight_table=weights,
    sizes={
        "tiny": {
            "text_config": {**_TEXT, "model_type": "tiles_vl_text"},
            "vision_config": {
                "model_type": "tiles_vl_vision",
                "num_layers": 2,
                "hidden_size": 64,
                "num_heads": 4,
                "intermediate_size": 96,
                "out_hidden_size": _TEXT["hidden_size"],
                "patch_size": 96,  # few patches a tile, so that prompts of tests are short
                "tile_size": 384,
                "merge_size": 2,
            },
            "tie_word_embeddings": False,
        }
    },
    preprocessor={
        "canvases": [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3]],
        "image_mean": [0.48, 0.46, 0.41],
        "image_std": [0.27, 0.26, 0.28],
        "processor_class": "TilesProcessor",
    },
    video_preprocessor=None,
    token_fields={"image_token_id": "<|image_pad|>"},
    text_token_fields={"eos_token_id": "<|im_end|>"},
    eos_tokens=("<|im_end|>", "<|endoftext|>"),
    special_tokens=QWEN3.special_tokens,
    chat_template=QWEN3.chat_template,
    tower=tower,
)
