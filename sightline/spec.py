"""What a model is, in numbers: frozen descriptions read once from a checkpoint's JSON files.

A family differs from another only in these values and in what its own folder under models/families/ adds. Nothing here imports
torch, so that prompt building and admission run in a process without it.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.errors import ConfigError, ParameterError
from sightline.types import ImageHeader, MediaItem, MediaLayout, MediaSpan, PromptForm, RunPositions, VideoHeader

Norm = Literal["rms", "layer"]


# ---- The tower: what makes embedding rows of pictures


@dataclass(frozen=True)
class VisionSpec(ABC):
    """What others ask of a vision tower, whichever it is. Each kind of tower has a spec of its own that derives from this."""

    out_hidden_size: int  # as wide as the language model

    @property
    def num_deepstack_features(self) -> int:
        """How many of the first decoder layers are given features of their own for each row."""
        return 0

    @property
    def embedding_width(self) -> int:
        """Numbers per embedding row: the row itself and, beside it, its deepstack features."""
        return self.out_hidden_size * (1 + self.num_deepstack_features)

    @property
    @abstractmethod
    def summary(self) -> str:
        """The tower in a few words, for `sightline model info`."""


@dataclass(frozen=True)
class PatchEmbeddingSpec:
    """One linear map per patch."""

    in_channels: int
    patch_size: int
    temporal_patch_size: int
    bias: bool
    norm: bool  # RMSNorm straight after it

    @property
    def compact_width(self) -> int:
        """Numbers of a still's patch, once."""
        return self.in_channels * self.patch_size**2

    @property
    def full_width(self) -> int:
        """Numbers of a patch of as many frames as it spans."""
        return self.compact_width * self.temporal_patch_size


@dataclass(frozen=True)
class TowerBlockSpec:
    """A pre-norm block: attention over patches with rotary positions, then an MLP."""

    hidden_size: int
    num_heads: int
    intermediate_size: int
    norm: Norm
    norm_eps: float
    mlp: Literal["gelu_tanh", "quick_gelu", "gated_silu"]
    mlp_bias: bool
    qkv_bias: bool
    proj_bias: bool
    layer_scale: bool = False  # what attention and the MLP add to the stream is scaled, a learned factor for each number
    held_heads: int | None = None  # where ranks have some each; intermediate_size is then its own, too

    @property
    def own_heads(self) -> int:
        return self.num_heads if self.held_heads is None else self.held_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.mlp == "gated_silu" else 2


class MergerSpec(Protocol):
    """What makes one row of merge x merge patches. A family may bring its own, with the module that computes it."""

    def weights(self, joined: int, out: int) -> int:
        """Numbers in its matrices, from `joined` (those of the patches of one row) to `out`."""


@dataclass(frozen=True)
class MlpMergerSpec:
    """Norm, then two linear maps with GELU between."""

    norm: Norm

    def weights(self, joined: int, out: int) -> int:
        return joined * (joined + out)


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
class PatchTowerSpec(VisionSpec):
    """The tower that most families share: blocks over patches, then a merger from merge x merge patches to one row."""

    depth: int
    patch_embed: PatchEmbeddingSpec
    block: TowerBlockSpec
    rope_theta: float
    merge_size: int
    merger: MergerSpec
    position_grid: PositionGridSpec | None = None
    window: WindowSpec | None = None
    columns_first: bool = False  # the first half of a head's pairs is turned by columns of patches, not by rows
    deepstack_layers: tuple[int, ...] = ()  # outputs of these blocks are merged too and fed to the first decoder layers
    # Patches along a side of an image, of which the tower has rotary positions. smart_resize keeps areas below some 17 M pixels
    # and aspects below 200, which is at most 4,160 patches of 14 pixels; min_pixels and max_pixels can be set to other areas.
    max_grid_side: int = 8192

    @property
    def num_deepstack_features(self) -> int:
        return len(self.deepstack_layers)

    @property
    def joined_size(self) -> int:
        """Numbers of the patches that become one row."""
        return self.block.hidden_size * self.merge_size**2

    @property
    def summary(self) -> str:
        return f"{self.depth} blocks of {self.block.hidden_size}, {self.block.num_heads} heads of {self.block.head_dim}"


@dataclass(frozen=True)
class LongRopeSpec:
    """Frequencies of two regimes: those of sequences as long as the model was first trained on, and of longer ones.

    All tokens of a sequence have the same: one that grows longer is computed anew (schedule/long_rope.py).
    """

    short_factors: tuple[float, ...]  # [rotary_dim / 2]: each frequency is divided by its factor
    long_factors: tuple[float, ...]
    original_length: int  # tokens; longer sequences take the long factors
    attention_factor: float  # cosines and sines of both are multiplied by it


@dataclass(frozen=True)
class TextRopeSpec:
    """Rotary positions of the language model: which axis (time, height, width) drives which frequency, and how dims pair up."""

    theta: float
    rotary_dim: int  # the first rotary_dim numbers of a head are rotated, the rest pass through
    sections: tuple[int, int, int]  # frequencies per axis (time, height, width); they sum to rotary_dim / 2
    layout: Literal["blocked", "interleaved"]
    pairing: Literal["halves", "adjacent"]  # dim i pairs with i + rotary_dim/2, or 2i with 2i + 1
    long: LongRopeSpec | None = None  # None: sequences of all lengths have the same frequencies


# ---- Caches: what a layer keeps of a sequence between steps


@dataclass(frozen=True)
class PagedCacheSpec:
    """Keys and values of every token, in pages that sequences with a common prefix share."""

    num_kv_heads: int
    head_dim: int

    def token_bytes(self, itemsize: int, quantised: bool = False) -> int:
        """`quantised`: in 8-bit floats, with a float32 scale per head."""
        return 2 * self.num_kv_heads * (self.head_dim + 4 if quantised else self.head_dim * itemsize)


@dataclass(frozen=True)
class LatentCacheSpec:
    """Of every token one vector that keys and values of all heads are made of, and a rotated part of keys that all heads share;
    in pages as well."""

    rank: int
    rope_dim: int

    def token_bytes(self, itemsize: int, quantised: bool = False) -> int:
        """`quantised`: in 8-bit floats, with a float32 scale for each of the two."""
        size = self.rank + self.rope_dim
        return size + 8 if quantised else size * itemsize


@dataclass(frozen=True)
class StateTensor:
    shape: tuple[int, ...]  # of one sequence
    dtype: Literal["float32", "model"]  # "model": what the model computes in


@dataclass(frozen=True)
class StateCacheSpec:
    """A state of fixed size per sequence, which every token changes: it can be copied, never cut."""

    tensors: tuple[StateTensor, ...]

    def sequence_bytes(self, itemsize: int) -> int:
        return sum(math.prod(tensor.shape) * (4 if tensor.dtype == "float32" else itemsize) for tensor in self.tensors)


CacheSpec = PagedCacheSpec | LatentCacheSpec | StateCacheSpec


# ---- The decoder: a list of layers, each a mixer (between tokens) and an MLP (within a token)


class MixerSpec(Protocol):
    """What mixes tokens in a layer. A family may bring its own, with the module that computes it (Family.modules)."""

    @property
    def cache(self) -> CacheSpec: ...


@dataclass(frozen=True)
class AttentionSpec:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool
    qk_norm: bool
    rope: TextRopeSpec
    output_gate: bool = False  # what attention gives times sigmoid of one more projection
    zero_centred_norms: bool = False  # of queries and keys: weights are stored less 1

    @property
    def cache(self) -> PagedCacheSpec:
        return PagedCacheSpec(self.num_kv_heads, self.head_dim)


@dataclass(frozen=True)
class GatedMLPSpec:
    """down(silu(gate(x)) * up(x))"""

    intermediate_size: int


@dataclass(frozen=True)
class ExpertsSpec:
    """A router sends each token to some of many gated MLPs; what they put out is weighted and added up.

    scores   softmax   over the router's logits, which are rounded to the model's dtype, as are the weights
             sigmoid   of each logit, all in float32; a bias per expert, float32, is added to choose and not to weigh
    Weights are the scores of the chosen experts, divided by their sum if `normalised`, and times `scale`.

    groups   (n, m): experts stand in n groups of equal size, and those of the best m are chosen from: of groups with the best
             expert, or, where there is a bias, with the best two together

    shared_expert   plain   `shared_count` more experts of the same size, which every token goes to with weight 1. Where a
                            checkpoint has one MLP as wide as all of them, each is a part of it
                    gated   one, likewise, with the weight sigmoid(g x); g is a row of its own
    """

    count: int
    chosen: int  # for each token, the shared one not among them
    intermediate_size: int  # of each
    scores: Literal["softmax", "sigmoid"] = "softmax"
    scale: float = 1.0
    shared_expert: Literal["none", "plain", "gated"] = "none"
    held: tuple[int, int] | None = None  # of a rank with whole experts: its first one and how many; shared ones are the last
    shared_count: int = 1
    normalised: bool = True
    float32_softmax: bool = False  # nothing of the softmax is rounded
    groups: tuple[int, int] | None = None

    @property
    def shared(self) -> int:
        """Experts that every token goes to."""
        return 0 if self.shared_expert == "none" else self.shared_count

    @property
    def routed_in_float32(self) -> bool:
        return self.scores == "sigmoid" or self.float32_softmax

    @property
    def matrices(self) -> int:
        """Experts, the shared ones among them."""
        return self.count + self.shared

    @property
    def per_token(self) -> int:
        """Experts that a token passes through."""
        return self.chosen + self.shared

    def touched(self, tokens: int) -> float:
        """Experts that so many tokens go to, if each goes to any of them alike."""
        return self.count * (1 - (1 - self.chosen / self.count) ** tokens) + self.shared


@dataclass(frozen=True)
class AdapterSpec:
    """Low-rank pairs A, B for the matrices of all layers: x W^T + scale * (x A^T) B^T for tokens of requests that use it."""

    name: str
    rank: int
    scale: float  # of what the pair adds


@dataclass(frozen=True)
class LayerSpec:
    mixer: MixerSpec
    mlp: object  # GatedMLPSpec, ExpertsSpec, or a family's own


@dataclass(frozen=True)
class TextSpec:
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    vocab_size: int
    norm_eps: float
    sandwich_norm: bool  # one more RMSNorm after attention and after the MLP, before each residual add
    tie_word_embeddings: bool
    max_position: int
    zero_centred_norms: bool = False  # weights of RMSNorms are stored less 1
    adapters: tuple[AdapterSpec, ...] = ()  # Request.adapter is an index into these

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def attention(self) -> AttentionSpec:
        """Of the first layer that has it; all of a model's are alike. A ConfigError where none has."""
        found = next((layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionSpec)), None)
        if found is None:
            raise ConfigError("The model's attention is its family's own; this works only with keys and values of each head.")
        return found

    @property
    def has_attention(self) -> bool:
        """Whether there is such a layer."""
        return any(isinstance(layer.mixer, AttentionSpec) for layer in self.layers)

    @property
    def long_rope_from(self) -> int | None:
        """Sequences of more tokens take the long frequencies of LongRopeSpec; None: all take the same."""
        long = next((layer.mixer.rope.long for layer in self.layers if isinstance(layer.mixer, AttentionSpec)), None)
        return None if long is None else long.original_length

    @property
    def gated_mlp(self) -> GatedMLPSpec:
        """Of the first layer that has a dense one; where all have experts, an expert."""
        dense = (layer.mlp for layer in self.layers if isinstance(layer.mlp, GatedMLPSpec))
        experts = (GatedMLPSpec(layer.mlp.intermediate_size) for layer in self.layers if isinstance(layer.mlp, ExpertsSpec))
        return next(itertools.chain(dense, experts))

    @property
    def experts(self) -> ExpertsSpec | None:
        """Of the first layer that has some; None if none does."""
        return next((layer.mlp for layer in self.layers if isinstance(layer.mlp, ExpertsSpec)), None)

    def token_bytes(self, itemsize: int, quantised: bool = False) -> int:
        """Of keys and values, in all layers that keep them."""
        kept = (layer.mixer.cache for layer in self.layers)
        return sum(cache.token_bytes(itemsize, quantised) for cache in kept if not isinstance(cache, StateCacheSpec))

    def state_bytes(self, itemsize: int) -> int:
        """Of a sequence's states, in all layers that keep one; 0 if none does."""
        kept = (layer.mixer.cache for layer in self.layers)
        return sum(cache.sequence_bytes(itemsize) for cache in kept if isinstance(cache, StateCacheSpec))


@dataclass(frozen=True)
class PatchSpec:
    """How pictures become patches: images, or the frames of a video."""

    min_pixels: int  # area after resizing; a family's processor says of what
    max_pixels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def factor(self) -> int:
        """Both sides of a resized picture are multiples of this many pixels."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True)
class MediaTokens:
    """Ids of the tokens in whose place rows are put. Of a family without videos `video` is None."""

    image: int
    video: int | None

    @property
    def pads(self) -> tuple[int, ...]:
        return (self.image,) if self.video is None else (self.image, self.video)


@dataclass(frozen=True)
class Fp8Spec:
    """How a checkpoint stores those of its matrices that are 8-bit floats (e4m3)."""

    scales: Literal["channel", "block"]  # one per output channel (or one for all of them), or one per block of 128 x 128
    scale_suffix: str  # a tensor 'x.weight' (or 'experts.down_proj') has its scales under its name + this
    quantised_inputs: bool  # whether what a matrix is multiplied by is quantised too


# How a checkpoint stores E experts, each a gate and up matrix [2I, H] and a down matrix [H, I]. Square ones, and their grids of
# scales, would look alike transposed, so a family says which it is; it is never guessed from shapes.
#   fused             experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]
#   fused_transposed  experts.gate_up_proj [E, H, 2I], experts.down_proj [E, I, H]: used as x @ w
#   per_expert        experts.N.{gate,up}_proj.weight [I, H], experts.N.down_proj.weight [H, I]
ExpertLayout = Literal["fused", "fused_transposed", "per_expert"]


@dataclass(frozen=True)
class ModelSpec:
    family: str  # as in `sightline model new --family`
    text: TextSpec
    vision: VisionSpec
    tokens: MediaTokens
    dtype: Literal["bfloat16", "float16", "float32"]
    eos_token_ids: tuple[int, ...]
    fp8: Fp8Spec | None = None
    expert_layout: ExpertLayout | None = None  # how a checkpoint stores its experts; None: as the family publishes them

    @property
    def patch_tower(self) -> PatchTowerSpec:
        """For those who need the tower that most families share; another one is a ConfigError."""
        if not isinstance(self.vision, PatchTowerSpec):
            raise ConfigError(f"The family {self.family} has a tower of its own; this works only with the shared one.")
        return self.vision


@dataclass(frozen=True)
class ProcessorSpec(ABC):
    """What a model sees of images and videos, and how they stand in its prompts. Each family has a class of its own."""

    image: PatchSpec
    video: PatchSpec | None  # None: the model takes no videos

    @abstractmethod
    def layout(self, header: ImageHeader | VideoHeader) -> MediaLayout:
        """What the model sees of an image or video with this header, or a MediaError."""

    @abstractmethod
    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        """What may stand for one image or video in a prompt that a template wrote; the longer forms first."""

    @abstractmethod
    def prompt_form(self, item: MediaItem) -> PromptForm:
        """What is put where the placeholder stood."""

    @abstractmethod
    def positions(self, item: MediaItem, span: MediaSpan) -> RunPositions:
        """Positions of one of the item's runs."""

    def arrange(self, item: MediaItem) -> NDArray[np.int64] | None:
        """Which rows the item has, [item.rows]: n >= 0 is the n-th that the tower makes of its views, -1 - k the k-th of the
        rows that the tower has learned (Tower.learned_embeddings). None: those of its views, as they come."""
        return None

    def adapter(self, items: Sequence[MediaItem]) -> int:
        """Which of the model's adapters (TextSpec.adapters) all tokens of a request with these items use; -1: none."""
        return -1

    def written(self, kind: Literal["image", "video"], number: int) -> str | None:
        """What stands in the text for the number-th (from 1) image or video of a conversation, where chat templates take the
        content of a message as text. None: they take it as a list of parts."""
        return None

    def with_sampling(self, fps: float | None, num_frames: int | None, max_frames: int | None) -> "ProcessorSpec":
        """The processor with a request's own choice of frames, of which those that are not None are given; never both of the
        first two. A ParameterError names what the family cannot do."""
        raise ParameterError("fps, num_frames and max_frames cannot be chosen with this model.", "fps")

    def with_images(self, count: int) -> "ProcessorSpec":
        """The processor for a request with so many images, where what the model sees of one depends on how many there are."""
        return self

    # What the memory profile asks for

    @abstractmethod
    def most_patches_at_once(self) -> int:
        """Most patches that attend to each other in the tower, and go through it in one piece: an image, or a frame."""

    @abstractmethod
    def most_patches_per_item(self) -> int:
        """Most patches of one image or video."""
