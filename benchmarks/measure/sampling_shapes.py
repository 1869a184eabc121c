"""Shapes at which the ops that choose tokens are timed: rows of decoding over the whole vocabulary."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting
from sightline.ops.sampling import DrawSettings


def _best_token(at: Setting) -> Iterator[KernelCase]:
    vocab = at.spec.text.vocab_size

    def make(rows: int) -> Arguments:
        return {"scores": at.normal(rows, vocab)}

    for rows in at.sizes.decode_rows:
        yield KernelCase(f"{rows}x{vocab}", partial(make, rows), at.itemsize * rows * vocab)


def _forbid_tokens(at: Setting) -> Iterator[KernelCase]:
    vocab = at.spec.text.vocab_size
    words = -(-vocab // 32)

    def make(rows: int) -> Arguments:
        return {
            "scores": at.normal(rows, vocab, dtype=torch.float32),
            "allowed": at.integers(-(2**31), 2**31, rows, words, dtype=torch.int32),
            "rows": torch.arange(rows, device=at.device),
        }

    for rows in at.sizes.decode_rows:
        yield KernelCase(f"{rows}x{vocab}", partial(make, rows), rows * (2 * 4 * vocab + 4 * words))


def _draw(at: Setting, asked: dict[str, dict[str, float]]) -> Iterator[KernelCase]:
    """The scores are read once at least."""
    vocab = at.spec.text.vocab_size

    def make(rows: int, wanted: dict[str, float]) -> Arguments:
        def column(value: float, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((rows, 1), value, dtype=dtype, device=at.device)

        top_k = min(int(wanted.get("top_k", 0)), vocab)
        settings = DrawSettings(
            largest_k=top_k,
            uniform=torch.rand(rows, 1, dtype=torch.float64, device=at.device),
            temperature=column(1.0, torch.float32),
            last=column((top_k or vocab) - 1, torch.int64),
            top_p=column(wanted["top_p"], torch.float64) if "top_p" in wanted else None,
            min_p=column(wanted["min_p"], torch.float32) if "min_p" in wanted else None,
        )
        return {"scores": 3 * at.normal(rows, vocab, dtype=torch.float32), "settings": settings}

    for name, wanted in asked.items():
        for rows in at.sizes.decode_rows:
            yield KernelCase(f"{rows}x{vocab}, {name}", partial(make, rows, wanted), 4 * rows * vocab)


_BY_ID: dict[str, Any] = {"no filter": {}, "min-p": {"min_p": 0.05}}
_BY_SCORE: dict[str, Any] = {
    "top-p 0.9": {"top_p": 0.9},
    "top-k 20, top-p 0.8": {"top_k": 20, "top_p": 0.8},
}

SAMPLING_SHAPES: dict[str, Maker] = {
    "forbid_tokens": _forbid_tokens,
    "best_token": _best_token,
    "draw_by_id": partial(_draw, asked=_BY_ID),
    "draw_by_score": partial(_draw, asked=_BY_SCORE),
}
