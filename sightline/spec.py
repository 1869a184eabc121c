"""What a model is, in numbers: frozen descriptions read once from a checkpoint's JSON files.

A family differs from another only in these values and in what its own file under models/ adds. Nothing here imports torch, so
that prompt building and admission run in a process without it.
"""

from dataclasses import dataclass
from typing import Literal

Norm = Literal["rms", "layer"]


@dataclass(frozen=True)
class PositionGridSpec:
    """A learned square table of position embeddings, resampled to each image's patch grid."""

    side: int  # the table has side * side rows
    mode: Literal["bilinear", "bicubic"]
    align_corners: bool


@dataclass(frozen=True)
class WindowSpec:
    """Attention inside square windows, except in a few layers that see the whole frame."""

    window_pixels: int  # side of a window in pixels
    full_attention_layers: tuple[int, ...]


@dataclass(frozen=True)
class VisionSpec:
    """The vision tower: pre-norm blocks over patches, then a merger from merge x merge patches to one row."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    out_hidden_size: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    norm: Norm
    norm_eps: float
    mlp: Literal["gelu_tanh", "gated_silu"]
    mlp_bias: bool
    qkv_bias: bool
    proj_bias: bool
    patch_bias: bool
    patch_norm: bool  # RMSNorm straight after the patch embedding (GLM)
    position_grid: PositionGridSpec | None
    window: WindowSpec | None
    deepstack_layers: tuple[int, ...]  # outputs of these blocks are merged too and fed to the first decoder layers
    merger: Literal["norm_mlp", "conv_gated"]
    merger_norm: Norm
    merger_intermediate_size: int
    rope_theta: float
    tokens_per_second: float = 1.0  # speed of the time axis of video positions; only Qwen2.5-VL has it, in vision_config

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def row_width(self) -> int:
        """Numbers per embedding row: the merged row and, beside it, one row per deepstack tap."""
        return self.out_hidden_size * (1 + len(self.deepstack_layers))


@dataclass(frozen=True)
class TextRopeSpec:
    """Rotary positions of the language model: which axis (time, height, width) drives which frequency, and how dims pair up."""

    theta: float
    rotary_dim: int  # the first rotary_dim numbers of a head are rotated, the rest pass through
    sections: tuple[int, int, int]  # frequencies per axis (time, height, width); they sum to rotary_dim / 2
    layout: Literal["blocked", "interleaved"]
    pairing: Literal["halves", "adjacent"]  # dim i pairs with i + rotary_dim/2, or 2i with 2i + 1


@dataclass(frozen=True)
class TextSpec:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    sandwich_norm: bool  # one more RMSNorm after attention and after the MLP, before each residual add (GLM)
    tie_word_embeddings: bool
    rope: TextRopeSpec
    max_position: int


@dataclass(frozen=True)
class ImageSpec:
    """How an image becomes patches."""

    min_pixels: int
    max_pixels: int
    # GLM counts a still as temporal_patch_size frames against its pixel budget and enlarges sides below the factor first.
    budget: Literal["per_image", "per_clip"]
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factor(self) -> int:
        """Both sides of a resized image are multiples of this many pixels."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True)
class VideoSpec:
    """How a video is sampled and becomes patches. `style` is the family's rule for sampling, prompt and positions."""

    style: Literal["qwen2_5", "qwen3", "glm"]
    min_pixels: int
    max_pixels: int  # per frame for qwen2_5, for the whole clip otherwise
    fps: float
    min_frames: int
    max_frames: int
    max_seconds: float  # GLM samples longer clips as if they had this length
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    tokens_per_second: float  # qwen2_5 only: how fast the time axis of the positions runs

    @property
    def factor(self) -> int:
        return self.patch_size * self.merge_size


@dataclass(frozen=True)
class MediaTokens:
    """Token ids around and in place of images and videos.

    A rendered template holds, per image, image_start image image_end, and per video, video_start video video_end. Rows of a
    video stand in the prompt as `video_row` (GLM writes image ids there).
    """

    image: int
    video: int
    video_row: int
    image_start: int
    image_end: int
    video_start: int
    video_end: int


@dataclass(frozen=True)
class Fp8Spec:
    """How a checkpoint stores those of its matrices that are 8-bit floats (e4m3)."""

    scales: Literal["channel", "block"]  # one per output channel (or one for all of them), or one per block of 128 x 128
    scale_suffix: str  # a matrix 'x.weight' has its scales in 'x.weight' + this
    quantised_inputs: bool  # whether what a matrix is multiplied by is quantised too


@dataclass(frozen=True)
class ModelSpec:
    family: str  # as in `sightline model new --family`
    text: TextSpec
    vision: VisionSpec
    tokens: MediaTokens
    dtype: Literal["bfloat16", "float16", "float32"]
    eos_token_ids: tuple[int, ...]
    fp8: Fp8Spec | None = None


@dataclass(frozen=True)
class ProcessorSpec:
    image: ImageSpec
    video: VideoSpec
