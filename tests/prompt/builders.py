"""Small models, tokenizers and media, made by hand, for the tests of prompt building."""

from pathlib import Path

from sightline.prompt.byte_tokenizer import special_tokens, write_byte_tokenizer
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import ImageSpec, MediaTokens, ModelSpec, ProcessorSpec, TextRopeSpec, TextSpec, VideoSpec, VisionSpec
from sightline.types import ImageHeader, MediaItem, MediaRef, VideoHeader

FAMILIES = ("qwen2.5-vl", "qwen3-vl", "glm-4.1v")
STYLES = {"qwen2.5-vl": "qwen2_5", "qwen3-vl": "qwen3", "glm-4.1v": "glm"}
EOS = {"qwen2.5-vl": "<|im_end|>", "qwen3-vl": "<|im_end|>", "glm-4.1v": "<|endoftext|>"}


def byte_tokenizer(folder: Path, family: str, base: int | None = 256) -> Tokenizer:
    write_byte_tokenizer(folder, special_tokens(family, base), EOS[family])
    return Tokenizer.from_folder(folder)


def media_tokens(family: str, base: int | None = 256) -> MediaTokens:
    ids = special_tokens(family, base)
    if family == "glm-4.1v":
        return MediaTokens(
            image=ids["<|image|>"],
            video=ids["<|video|>"],
            video_row=ids["<|image|>"],
            image_start=ids["<|begin_of_image|>"],
            image_end=ids["<|end_of_image|>"],
            video_start=ids["<|begin_of_video|>"],
            video_end=ids["<|end_of_video|>"],
        )
    start, end = ids["<|vision_start|>"], ids["<|vision_end|>"]
    image, video = ids["<|image_pad|>"], ids["<|video_pad|>"]
    return MediaTokens(
        image=image, video=video, video_row=video, image_start=start, image_end=end, video_start=start, video_end=end
    )


def model_spec(family: str, max_position: int = 4096) -> ModelSpec:
    """Only what prompt building reads is meant: the media tokens, the merge size and max_position."""
    text = TextSpec(
        num_layers=1,
        hidden_size=16,
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=16,
        vocab_size=512,
        norm_eps=1e-6,
        qkv_bias=False,
        qk_norm=False,
        sandwich_norm=False,
        tie_word_embeddings=True,
        rope=TextRopeSpec(theta=1e4, rotary_dim=16, sections=(2, 3, 3), layout="blocked", pairing="halves"),
        max_position=max_position,
    )
    vision = VisionSpec(
        depth=1,
        hidden_size=16,
        num_heads=1,
        intermediate_size=16,
        out_hidden_size=16,
        in_channels=3,
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        norm="rms",
        norm_eps=1e-6,
        mlp="gated_silu",
        mlp_bias=False,
        qkv_bias=False,
        proj_bias=False,
        patch_bias=False,
        patch_norm=False,
        position_grid=None,
        window=None,
        deepstack_layers=(),
        merger="norm_mlp",
        merger_norm="rms",
        merger_intermediate_size=16,
        rope_theta=1e4,
    )
    return ModelSpec(
        family=family, text=text, vision=vision, tokens=media_tokens(family), dtype="float32", eos_token_ids=(256,)
    )


def processor_spec(family: str) -> ProcessorSpec:
    half = (0.5, 0.5, 0.5)
    image = ImageSpec(
        min_pixels=28 * 28,
        max_pixels=280 * 280,
        budget="per_clip" if family == "glm-4.1v" else "per_image",
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        mean=half,
        std=half,
    )
    video = VideoSpec(
        style=STYLES[family],  # type: ignore[arg-type]
        min_pixels=28 * 28,
        max_pixels=280 * 280 * 8,
        fps=2.0,
        min_frames=4,
        max_frames=16,
        max_seconds=300.0,
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        mean=half,
        std=half,
        tokens_per_second=2.0,
    )
    return ProcessorSpec(image=image, video=video)


def image_item(gh: int, gw: int, name: bytes = b"image") -> MediaItem:
    """An image of gh x gw embedding rows, merged 2 x 2 from patches of 14 pixels."""
    height, width = gh * 28, gw * 28
    header = ImageHeader(format="PNG", width=width, height=height, orientation=1)
    ref = MediaRef(kind="image", data=b"", digest=name.ljust(32, b"\0"), header=header, source="<bytes>")
    grid = (1, gh * 2, gw * 2)
    return MediaItem(
        ref=ref, key=ref.digest, grid=grid, resized=(height, width), frame_indices=(), frame_times=(), rows=gh * gw
    )


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
        grid=(groups, gh * 2, gw * 2),
        resized=(height, width),
        frame_indices=frames,
        frame_times=tuple(index / fps for index in frames),
        rows=groups * gh * gw,
    )


# --- prompts with media ---

QWEN_IMAGE, QWEN_VIDEO = "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
GLM_IMAGE = "<|begin_of_image|><|image|><|end_of_image|>"
GLM_VIDEO = "<|begin_of_video|><|video|><|end_of_video|>"
IMAGE = {"qwen2.5-vl": QWEN_IMAGE, "qwen3-vl": QWEN_IMAGE, "glm-4.1v": GLM_IMAGE}
VIDEO = {"qwen2.5-vl": QWEN_VIDEO, "qwen3-vl": QWEN_VIDEO, "glm-4.1v": GLM_VIDEO}
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
    bare = "<|image|>" if family == "glm-4.1v" else "<|image_pad|>"
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
