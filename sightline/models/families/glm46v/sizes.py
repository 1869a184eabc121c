"""What `sightline model new` writes: GLM-4.1V's sizes, with other rotary frequencies, positions and special tokens."""

from sightline.models.families.glm4v import sizes as glm4v
from sightline.prompt.byte_tokenizer import SpecialTokens

_THETA = 500000.0
_9B_TEXT = {**glm4v.TEXT_9B, "max_position_embeddings": 131072}

SIZES = {
    "tiny": glm4v.make_size(glm4v.TINY_TEXT, glm4v.TINY_TOWER, glm4v.TINY_SECTIONS, _THETA),
    "9b": glm4v.make_size(_9B_TEXT, glm4v.TOWER_9B, glm4v.SECTIONS_9B, _THETA),
}
PREPROCESSOR = {
    **glm4v.PREPROCESSOR,
    "processor_class": "Glm46VProcessor",
    "image_processor_type": "Glm46VImageProcessor",
}
VIDEO_PREPROCESSOR = {
    **glm4v.VIDEO_PREPROCESSOR,
    "processor_class": "Glm46VProcessor",
    "video_processor_type": "Glm46VVideoProcessor",
}
# The ids of the first 14, of <|image|> and of <|video|> are those of its config.json. The names between them are in the order
# of the tokenizer that GLM-4.5 and those after it share, as far as its description shows it.
SPECIAL_TOKENS = SpecialTokens(
    glm4v.SPECIAL_TOKENS.first,
    (
        *glm4v.SPECIAL_TOKENS.names[:14],
        *("<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>", "<|end_of_transcription|>"),
        *("<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>", "<think>", "</think>"),
        *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink", "<|begin_of_box|>", "<|end_of_box|>"),
        *("<|image|>", "<|video|>"),
    ),
)
