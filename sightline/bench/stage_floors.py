"""The least that each stage of a request can take: its operations and its bytes, at the rates given.

A stage's bytes are what it must read and write if nothing in between leaves the chip; its floor is the longer of arithmetic and
traffic. Stages follow one another, so the floor of the whole is their sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.spec import TextSpec, VisionSpec
from sightline.vision.tower_batch import Grid, window_order

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
class Load:
    """What a request has of everything."""

    pixels: int  # of its images as they are sent
    grids: tuple[Grid, ...]
    prompt_tokens: int
    features: int  # numbers per patch
    itemsize: int  # bytes per number

    @property
    def patches(self) -> int:
        return sum(t * h * w for t, h, w in self.grids)


def stage_floors(vision: VisionSpec, text: TextSpec, load: Load, rates: Rates) -> dict[str, float]:
    """Milliseconds by stage."""
    patches, size, itemsize = load.patches, vision.hidden_size, load.itemsize
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


def _position_work(vision: VisionSpec, hidden_bytes: float, itemsize: int) -> list[Work]:
    if vision.position_grid is None:
        return []
    return [Work(0, 2 * hidden_bytes + itemsize * vision.position_grid.side**2 * vision.hidden_size)]


def _block_work(vision: VisionSpec, grids: Sequence[Grid], hidden_bytes: float, itemsize: int) -> list[Work]:
    size = vision.hidden_size
    matrices = 2 if vision.mlp == "gelu_tanh" else 3
    weights = 4 * size * size + matrices * size * vision.intermediate_size
    linear = 2.0 * sum(t * h * w for t, h, w in grids) * weights
    frames = 4.0 * size * sum(t * (h * w) ** 2 for t, h, w in grids)
    in_windows = 4.0 * size * _window_pairs(vision, grids)
    found = []
    for layer in range(vision.depth):
        windowed = vision.window is not None and layer not in vision.window.full_attention_layers
        found.append(Work(linear + (in_windows if windowed else frames), itemsize * weights + 2 * hidden_bytes))
    return found


def _window_pairs(vision: VisionSpec, grids: Sequence[Grid]) -> int:
    """How many pairs of patches meet in windows."""
    if vision.window is None:
        return 0
    side = vision.window.window_pixels // vision.patch_size // vision.merge_size
    _, counts = window_order(np.array(grids, np.int64), vision.merge_size, side)
    return int(((counts * vision.merge_size**2) ** 2).sum())


def _merger_work(vision: VisionSpec, patches: int, itemsize: int) -> list[Work]:
    out, joined = vision.out_hidden_size, vision.hidden_size * vision.merge_size**2
    rows = patches // vision.merge_size**2
    if vision.merger == "conv_gated":
        main = joined * out + out * out + 3 * out * vision.merger_intermediate_size
    else:
        main = joined * (joined + out)
    weights = [main, *(joined * (joined + out) for _ in vision.deepstack_layers)]
    return [Work(2.0 * rows * count, itemsize * (count + rows * (joined + out))) for count in weights]


def prefill_work(text: TextSpec, tokens: int, itemsize: int) -> list[Work]:
    """All layers over all tokens, then the scores of one: that reads the head's matrix for a single row.

    Of the last layer only keys and values are needed of all tokens, the rest of the one that is scored.
    """
    heads = text.num_heads * text.head_dim
    keys_and_values = text.hidden_size * 2 * text.num_kv_heads * text.head_dim
    weights = keys_and_values + text.hidden_size * (2 * heads + 3 * text.intermediate_size)
    causal = 4.0 * heads * tokens * (tokens + 1) / 2
    layer = Work(2.0 * tokens * weights + causal, itemsize * weights)
    one = 2.0 * (weights - keys_and_values) + 4.0 * heads * tokens
    last = Work(2.0 * tokens * keys_and_values + one, itemsize * weights)
    head = text.vocab_size * text.hidden_size
    return [layer] * (text.num_layers - 1) + [last, Work(2.0 * head, itemsize * head)]
