"""Makes the folder that training starts from: config, tokenizer, template and processor files of the embedded model.

`python training/start.py DIR` — the weights come from training/train.py. At most 12 million parameters, 24 MB in bfloat16.
"""

import json
import sys
from pathlib import Path

from make_tokenizer import VOCABULARY, make_tokenizer
from sightline.models.families.qwen3_vl import FAMILY
from sightline.prompt.tokenizer import Tokenizer

TEXT = {
    "num_hidden_layers": 5, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 640, "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "attention_bias": False, "hidden_act": "silu", "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    "model_type": "qwen3_vl_text", "dtype": "bfloat16",
}  # fmt: skip
VISION = {
    "depth": 6, "hidden_size": 256, "num_heads": 4, "intermediate_size": 640, "deepstack_visual_indexes": [1, 3],
    "num_position_embeddings": 256, "out_hidden_size": 256, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "hidden_act": "gelu_pytorch_tanh", "model_type": "qwen3_vl_vision",
}  # fmt: skip
PIXELS = {"shortest_edge": 64 * 64, "longest_edge": 512 * 512}


def start(folder: Path, examples: int = 800) -> None:
    make_tokenizer(folder, examples)
    of = Tokenizer.from_folder(folder).id_of
    end, pad = of("<|im_end|>"), of("<|endoftext|>")
    config = {
        "architectures": [FAMILY.architecture],
        "model_type": FAMILY.model_type,
        "text_config": {**TEXT, "eos_token_id": end, "pad_token_id": pad},
        "vision_config": VISION,
        "tie_word_embeddings": True,
        **{field: of(token) for field, token in FAMILY.token_fields.items()},
    }
    video = {**(FAMILY.video_preprocessor or {}), "size": {"shortest_edge": 64 * 64, "longest_edge": 16 * 256 * 256}}
    files = {
        "config.json": config,
        "generation_config.json": {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad, "max_new_tokens": 64},
        "preprocessor_config.json": {**FAMILY.preprocessor, "size": PIXELS},
        "video_preprocessor_config.json": video,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(FAMILY.chat_template.read_text())


if __name__ == "__main__":
    start(Path(sys.argv[1]))
