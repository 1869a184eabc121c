"""Small models, tokenizers and media, made by hand, for the tests of prompt building."""

from pathlib import Path
from typing import Any

from family_processors import FAMILIES, make_processor, patch_spec
from sightline.config import MediaConfig
from sightline.models.registry import family_named
from sightline.prompt.builder import PromptBuilder
from sightline.prompt.byte_tokenizer import write_byte_tokenizer
from sightline.prompt.template import ChatTemplate
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import (
    MediaTokens,
    MlpMergerSpec,
    ModelSpec,
    PatchEmbeddingSpec,
    PatchTowerSpec,
    ProcessorSpec,
    TextSpec,
    TowerBlockSpec,
)
from sightline.types import ImageHeader, MediaItem, MediaRef, VideoHeader, View

EOS = {family: family_named(family).eos_tokens[0] for family in FAMILIES}


def own_template(family: str) -> str:
    return family_named(family).chat_template.read_text(encoding="utf-8")


def byte_tokenizer(folder: Path, family: str, base: int | None = 256) -> Tokenizer:
    write_byte_tokenizer(folder, family_named(family).special_tokens.ids(base), EOS[family])
    return Tokenizer.from_folder(folder)


def prompt_builder(folder: Path, family: str, max_model_len: int = 4096, limits: MediaConfig | None = None) -> PromptBuilder:
    return PromptBuilder(
        template=ChatTemplate(own_template(family)),
        tokenizer=byte_tokenizer(folder, family),
        spec=model_spec(family),
        processor=processor_spec(family),
        limits=limits or MediaConfig(),
        max_model_len=max_model_len,
        model="a model",
    )


def media_tokens(family: str, base: int | None = 256) -> MediaTokens:
    ids, fields = family_named(family).special_tokens.ids(base), family_named(family).token_fields
    return MediaTokens(ids[fields["image_token_id"]], ids[fields["video_token_id"]])


def model_spec(family: str, max_position: int = 4096) -> ModelSpec:
    """Only what prompt building reads is meant: the media tokens, the merge size and max_position."""
    text = TextSpec(
        layers=(),
        hidden_size=16,
        vocab_size=512,
        norm_eps=1e-6,
        sandwich_norm=False,
        tie_word_embeddings=True,
        max_position=max_position,
    )
    vision = PatchTowerSpec(
        out_hidden_size=16,
        depth=1,
        patch_embed=PatchEmbeddingSpec(in_channels=3, patch_size=14, temporal_patch_size=2, bias=False, norm=False),
        block=TowerBlockSpec(
            hidden_size=16,
            num_heads=1,
            intermediate_size=16,
            norm="rms",
            norm_eps=1e-6,
            mlp="gated_silu",
            mlp_bias=False,
            qkv_bias=False,
            proj_bias=False,
        ),
        rope_theta=1e4,
        merge_size=2,
        merger=MlpMergerSpec("rms"),
    )
    return ModelSpec(
        family=family, text=text, vision=vision, tokens=media_tokens(family), dtype="float32", eos_token_ids=(256,)
    )


def processor_spec(family: str, **own: Any) -> ProcessorSpec:
    return make_processor(family, patch_spec(28 * 28, 280 * 280), patch_spec(28 * 28, 280 * 280 * 8), **own)


def image_item(gh: int, gw: int, name: bytes = b"image") -> MediaItem:
    """An image of gh x gw embedding rows, merged 2 x 2 from patches of 14 pixels."""
    height, width = gh * 28, gw * 28
    header = ImageHeader(format="PNG", width=width, height=height, orientation=1)
    ref = MediaRef(kind="image", data=b"", digest=name.ljust(32, b"\0"), header=header, source="<bytes>")
    grid = (1, gh * 2, gw * 2)
    view = View.whole((height, width))
    return MediaItem(ref=ref, key=ref.digest, views=(view,), grids=(grid,), frame_indices=(), frame_times=(), rows=gh * gw)


def video_item(
    groups: int, gh: int, gw: int, fps: float, indices: tuple[int, ...] | None = None, frame_count: int | None = None
) -> MediaItem:
    """A video of groups x gh x gw rows, two frames per group; by default every frame of the clip is sampled."""
    frames = tuple(range(groups * 2)) if indices is None else indices
    assert len(frames) == groups * 2
    height, width = gh * 28, gw * 28
    total = frame_count or max(frames[-1] + 1, len(frames))
    header = VideoHeader(format="mp4", width=width, height=height, frame_count=total, fps=fps, duration=total / fps)
    ref = MediaRef(kind="video", data=b"", digest=b"video".ljust(32, b"\0"), header=header, source="<bytes>")
    return MediaItem(
        ref=ref,
        key=ref.digest,
        views=(View.whole((height, width)),),
        grids=((groups, gh * 2, gw * 2),),
        frame_indices=frames,
        frame_times=tuple(index / fps for index in frames),
        rows=groups * gh * gw,
    )


# --- prompts with media ---

QWEN_IMAGE, QWEN_VIDEO = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
GLM_IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"
IMAGE = {family: GLM_IMAGE if family.startswith("glm") else QWEN_IMAGE for family in FAMILIES}
VIDEO = {family: GLM_VIDEO if family.startswith("glm") else QWEN_VIDEO for family in FAMILIES}
CASES = {  # I: an image, V: a video, P: an image's placeholder without its start and end marks; the rest is text
    "one": "What is I?",
    "several": "a I bb I, c I!",
    "first and last": "P to P",
    "marks first and last": "I and V and I",
    "adjacent": "IIVI",
    "videos": "V.V",
    "only": "I",
    "text": "Hello",
}
SIZES = [(3, 5), (4, 2), (1, 7), (2, 2)]
FRAMES = [((0, 5, 9, 13, 20, 29), 4.0), ((0, 7, 15, 22), 7.5)]


def written(case: str, family: str) -> tuple[str, list[MediaItem]]:
    """The case as a prompt of the family, and hand-made items for it."""
    bare = "<|image|>" if family.startswith("glm") else "<|image_pad|>"
    forms = {"I": IMAGE[family], "P": bare, "V": VIDEO[family]}
    items: list[MediaItem] = []
    for char in case:
        size = SIZES[len(items) % len(SIZES)]
        if char in "IP":
            items.append(image_item(*size))
        elif char == "V":
            frames, fps = FRAMES[len(items) % len(FRAMES)]
            items.append(video_item(len(frames) // 2, *size, fps=fps, indices=frames))
    return "".join(forms.get(char, char) for char in case), items
