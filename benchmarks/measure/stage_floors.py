"""The least that each stage of a request can take: its operations and its bytes, at the rates given.

A stage's bytes are what it must read and write if nothing in between leaves the chip; its floor is the longer of arithmetic and
traffic. Stages follow one another, so the floor of the whole is their sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sightline.models.tower_batch import window_order
from sightline.spec import AttentionSpec, ExpertsSpec, GatedMLPSpec, MixerSpec, PatchTowerSpec, TextSpec
from sightline.types import Grid

STAGES = {  # in the order in which a request goes through them, and as tables show them
    "decode": "decode",
    "upload": "upload",
    "resize_patchify": "resize + patchify",
    "patch_embed": "patch embed",
    "position_embed": "position embed",
    "rotary": "rotary",
    "blocks": "blocks",
    "mergers": "mergers",
    "prefill": "prefill",
}


@dataclass(frozen=True)
class Rates:
    """Of an H200, as measured; decoding is nvJPEG's of many images at once, upload the link's own figure."""

    operations: float = 790e12  # multiplications and additions per second, bf16
    bandwidth: float = 4.3e12  # bytes read and written per second
    upload: float = 63e9  # bytes per second from the host (PCIe 5.0 x16)
    decode: float = 9e9  # pixels per second


@dataclass(frozen=True)
class Work:
    """Something that the device does in one go."""

    operations: float
    bytes_moved: float

    def seconds(self, rates: Rates) -> float:
        return max(self.operations / rates.operations, self.bytes_moved / rates.bandwidth)


@dataclass(frozen=True)
class StageLoad:
    """What a request has of everything."""

    pixels: int  # of its images as they are sent
    grids: tuple[Grid, ...]
    prompt_tokens: int
    features: int  # numbers per patch
    itemsize: int  # bytes per number

    @property
    def patches(self) -> int:
        return sum(t * h * w for t, h, w in self.grids)


def stage_floors(vision: PatchTowerSpec, text: TextSpec, load: StageLoad, rates: Rates) -> dict[str, float]:
    """Milliseconds by stage."""
    patches, size, itemsize = load.patches, vision.block.hidden_size, load.itemsize
    hidden_bytes = itemsize * patches * size
    patch_bytes = itemsize * patches * load.features
    work = {
        "resize_patchify": [Work(0, 3 * load.pixels + patch_bytes)],
        "patch_embed": [
            Work(2.0 * patches * load.features * size, patch_bytes + itemsize * load.features * size + hidden_bytes)
        ],
        "position_embed": _position_work(vision, hidden_bytes, itemsize),
        "rotary": [Work(0, 2 * 2 * hidden_bytes)] * vision.depth,  # q and k, read and written
        "blocks": _block_work(vision, load.grids, hidden_bytes, itemsize),
        "mergers": _merger_work(vision, patches, itemsize),
        "prefill": prefill_work(text, load.prompt_tokens, itemsize),
    }
    seconds = {
        "decode": load.pixels / rates.decode,
        "upload": 3 * load.pixels / rates.upload,
        **{stage: sum(part.seconds(rates) for part in parts) for stage, parts in work.items()},
    }
    return {stage: 1000 * seconds[stage] for stage in STAGES}


def _position_work(vision: PatchTowerSpec, hidden_bytes: float, itemsize: int) -> list[Work]:
    if vision.position_grid is None:
        return []
    return [Work(0, 2 * hidden_bytes + itemsize * vision.position_grid.side**2 * vision.block.hidden_size)]


def _block_work(vision: PatchTowerSpec, grids: Sequence[Grid], hidden_bytes: float, itemsize: int) -> list[Work]:
    size = vision.block.hidden_size
    weights = 4 * size * size + vision.block.mlp_matrices * size * vision.block.intermediate_size
    linear = 2.0 * sum(t * h * w for t, h, w in grids) * weights
    frames = 4.0 * size * sum(t * (h * w) ** 2 for t, h, w in grids)
    in_windows = 4.0 * size * _window_pairs(vision, grids)
    found = []
    for layer in range(vision.depth):
        windowed = vision.window is not None and layer not in vision.window.full_attention_layers
        found.append(Work(linear + (in_windows if windowed else frames), itemsize * weights + 2 * hidden_bytes))
    return found


def _window_pairs(vision: PatchTowerSpec, grids: Sequence[Grid]) -> int:
    """How many pairs of patches meet in windows."""
    if vision.window is None:
        return 0
    side = vision.window.window_pixels // vision.patch_embed.patch_size // vision.merge_size
    _, counts = window_order(np.array(grids, np.int64), vision.merge_size, side)
    return int(((counts * vision.merge_size**2) ** 2).sum())


def _merger_work(vision: PatchTowerSpec, patches: int, itemsize: int) -> list[Work]:
    out, joined = vision.out_hidden_size, vision.joined_size
    rows = patches // vision.merge_size**2
    weights = [vision.merger.weights(joined, out), *(joined * (joined + out) for _ in vision.deepstack_layers)]
    return [Work(2.0 * rows * count, itemsize * (count + rows * (joined + out))) for count in weights]


@runtime_checkable
class CountedMixer(Protocol):
    """A mixer that is not attention and says what it takes."""

    def weights(self, hidden_size: int) -> int:
        """Numbers in its matrices."""

    def operations(self, tokens: int) -> float:
        """Beside those of its matrices, for a sequence of so many."""


def prefill_work(text: TextSpec, tokens: int, itemsize: int) -> list[Work]:
    """All layers over all tokens, then the scores of one: that reads the head's matrix for a single row.

    Of the last layer, if it attends, only keys and values are needed of all tokens, the rest of the one that is scored.
    """
    found = []
    for layer in text.layers[:-1]:
        used, read = mlp_weights(text, layer.mlp, tokens)
        mixing, beside = _mixer_work(text, layer.mixer, tokens)
        found.append(Work(2.0 * tokens * (mixing + used) + beside, itemsize * (mixing + read)))
    mixer = text.layers[-1].mixer
    used, read = mlp_weights(text, text.layers[-1].mlp, 1)
    mixing, beside = _mixer_work(text, mixer, tokens)
    if isinstance(mixer, AttentionSpec):
        for_all = text.hidden_size * 2 * mixer.num_kv_heads * mixer.head_dim
        beside = 4.0 * mixer.num_heads * mixer.head_dim * tokens
    else:
        for_all = mixing
    last = Work(2.0 * tokens * for_all + 2.0 * (mixing - for_all + used) + beside, itemsize * (mixing + read))
    head = text.vocab_size * text.hidden_size
    return [*found, last, Work(2.0 * head, itemsize * head)]


def _mixer_work(text: TextSpec, mixer: MixerSpec, tokens: int) -> tuple[int, float]:
    """Numbers in its matrices, and operations beside those, for a prompt."""
    if not isinstance(mixer, AttentionSpec):
        assert isinstance(mixer, CountedMixer), f"no floor is known of {mixer}"
        return mixer.weights(text.hidden_size), mixer.operations(tokens)
    heads = mixer.num_heads * mixer.head_dim
    matrices = 2 + mixer.output_gate
    causal = 4.0 * heads * tokens * (tokens + 1) / 2
    return text.hidden_size * (matrices * heads + 2 * mixer.num_kv_heads * mixer.head_dim), causal


def mlp_weights(text: TextSpec, mlp: object, tokens: int) -> tuple[float, float]:
    """Weights that a token is multiplied with, and those that so many tokens together read, with uniform routing."""
    if isinstance(mlp, ExpertsSpec):
        each, router = 3 * text.hidden_size * mlp.intermediate_size, mlp.count * text.hidden_size
        return mlp.per_token * each + router, mlp.touched(tokens) * each + router
    assert isinstance(mlp, GatedMLPSpec), f"no floor is known of {mlp}"
    dense = 3 * text.hidden_size * mlp.intermediate_size
    return dense, dense
