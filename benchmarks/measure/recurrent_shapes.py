"""Shapes of the ops of recurrent layers: those of the model, or of Qwen3.5-9B where it has no such layer."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting
from sightline.ops.sequences import PagedSequences, StateIndices
from sightline.spec import StateCacheSpec


@dataclass(frozen=True)
class _Layer:
    value_heads: int
    key_dim: int
    value_dim: int
    before: int  # tokens that the convolution looks back
    channels: int

    @property
    def state(self) -> int:
        """Numbers."""
        return self.value_heads * self.key_dim * self.value_dim


def _layer(at: Setting) -> _Layer:
    for layer in at.spec.text.layers:
        cache = layer.mixer.cache
        if isinstance(cache, StateCacheSpec) and [len(tensor.shape) for tensor in cache.tensors] == [3, 2]:
            return _Layer(*cache.tensors[0].shape, *cache.tensors[1].shape)
    return _Layer(32, 128, 128, 3, 8192)


def _sequences(at: Setting, lengths: tuple[int, ...]) -> tuple[PagedSequences, StateIndices]:
    starts = at.tensor([sum(lengths[:count]) for count in range(len(lengths) + 1)])
    table = torch.zeros(len(lengths), 1, dtype=torch.int32, device=at.device)
    sequences = PagedSequences(table, starts, at.tensor(lengths), lengths, lengths)
    slots = torch.arange(len(lengths), device=at.device)
    return sequences, StateIndices(slots, torch.zeros(len(lengths), dtype=torch.bool, device=at.device))


def _lengths(at: Setting) -> Iterator[tuple[int, ...]]:
    for count in at.sizes.decode_rows:
        yield (1,) * count
    for tokens in at.sizes.prefill_rows:
        yield (tokens,)


def _shape(lengths: tuple[int, ...]) -> str:
    return f"{len(lengths)} x {lengths[0]}"


def _causal_conv(at: Setting) -> Iterator[KernelCase]:
    layer = _layer(at)

    def make(lengths: tuple[int, ...]) -> Arguments:
        sequences, states = _sequences(at, lengths)
        return {
            "x": at.normal(sum(lengths), layer.channels),
            "weight": at.normal(layer.channels, layer.before + 1),
            "kept": at.normal(len(lengths), layer.before, layer.channels),
            "sequences": sequences,
            "states": states,
        }

    for lengths in _lengths(at):
        moved = at.itemsize * layer.channels * (2 * sum(lengths) + 2 * layer.before * len(lengths) + layer.before + 1)
        yield KernelCase(_shape(lengths), partial(make, lengths), moved)


def _gated_delta_rule(at: Setting) -> Iterator[KernelCase]:
    layer = _layer(at)
    heads, out = layer.value_heads, layer.value_heads * layer.value_dim

    def make(lengths: tuple[int, ...]) -> Arguments:
        sequences, states = _sequences(at, lengths)
        tokens = sum(lengths)
        return {
            "qkv": at.normal(tokens, layer.channels),
            "b": at.normal(tokens, heads),
            "a": at.normal(tokens, heads),
            "a_log": at.normal(heads, dtype=torch.float32),
            "dt_bias": at.normal(heads, dtype=torch.float32),
            "kept": at.normal(len(lengths), heads, layer.key_dim, layer.value_dim, dtype=torch.float32),
            "sequences": sequences,
            "states": states,
        }

    for lengths in _lengths(at):
        tokens = sum(lengths)
        moved = at.itemsize * tokens * (layer.channels + out + 2 * heads) + 2 * 4 * len(lengths) * layer.state
        # What a chunk's tokens do to the state and read of it; what they do to each other is a fifth of it.
        yield KernelCase(_shape(lengths), partial(make, lengths), moved, 2.0 * 3 * tokens * layer.state)


def _gated_rms_norm(at: Setting) -> Iterator[KernelCase]:
    layer = _layer(at)
    width = layer.value_heads * layer.value_dim

    def make(rows: int) -> Arguments:
        return {
            "x": at.normal(rows, layer.value_heads, layer.value_dim),
            "gate": at.normal(rows, width),
            "weight": at.normal(layer.value_dim, dtype=torch.float32),
            "eps": 1e-6,
            "activation": "silu",
        }

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{width}", partial(make, rows), 3 * at.itemsize * rows * width)


def _sigmoid_mul(at: Setting) -> Iterator[KernelCase]:
    attention = at.spec.text.attention
    width = attention.num_heads * attention.head_dim

    def make(rows: int) -> Arguments:
        return {"x": at.normal(rows, width), "gate": at.normal(rows, width)}

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{width}", partial(make, rows), 3 * at.itemsize * rows * width)


RECURRENT_SHAPES: dict[str, Maker] = {
    "causal_conv": _causal_conv,
    "gated_delta_rule": _gated_delta_rule,
    "gated_rms_norm": _gated_rms_norm,
    "sigmoid_mul": _sigmoid_mul,
}
