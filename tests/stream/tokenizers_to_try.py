"""Tokenizers that decode in different ways, to stream text from."""

import json
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

import assets
from prompt.builders import byte_tokenizer
from sightline.prompt.tokenizer import Tokenizer

WORDS = ("▁", "▁▁", "▁the", "▁stop", "a", "aa", "b", ".", "日", "é", "\u0301", "▁🦙")
SPECIAL = "<|end|>"  # id 256 of the small ones


@lru_cache
def bytes_only() -> Tokenizer:
    """One token per byte; special tokens from 256 on, <think> among those that are text."""
    return byte_tokenizer(Path(mkdtemp(prefix="sightline-tokenizer-")), "qwen3-vl", 256)


@lru_cache
def leading_space(kind: str) -> Tokenizer:
    """Decoders that drop the space before the first word: ids 0 … 255 are bytes, then a special token and WORDS."""
    names = [f"<0x{byte:02X}>" for byte in range(256)] + [SPECIAL, *WORDS]
    backend = tokenizers.Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, [], byte_fallback=True))
    backend.add_special_tokens([AddedToken(SPECIAL, special=True)])
    replace: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    metaspace: list[Any] = [decoders.ByteFallback(), decoders.Metaspace()]
    backend.decoder = decoders.Sequence({"strip": replace, "metaspace": metaspace}[kind])
    return Tokenizer(backend, kind)


@lru_cache
def published(kind: str) -> Tokenizer:
    """A real byte-level BPE; skips the calling test without the assets."""
    return Tokenizer.from_folder(assets.asset(f"tokenizer/{kind}"))


@lru_cache
def short_ids(kind: str) -> list[int]:
    """Ids of a published tokenizer whose tokens are pieces of characters or short: the hard ones to stream."""
    vocabulary = json.loads((assets.asset(f"tokenizer/{kind}") / "tokenizer.json").read_text())["model"]["vocab"]
    broken = [token for token in range(0, 60_000, 7) if "\ufffd" in published(kind).decode([token])]
    return [token for name, token in vocabulary.items() if len(name) == 1] + broken
