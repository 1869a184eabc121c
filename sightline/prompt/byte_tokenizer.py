"""Our own tokenizer for small models: one token per byte, and a family's special tokens at the ids of its checkpoints.

```
ids   0 … 255      the bytes themselves, so any text round-trips and ids can be read by eye
      base + n     the family's n-th special token; base is 256 for a small model, else the published one
```
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.errors import ConfigError

SMALL_BASE = 256  # the first id after the bytes

# One token each, but text that a reader of the answer should see: skip_special_tokens keeps them.
VISIBLE = {
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<answer>", "</answer>"),
    *("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
}


@dataclass(frozen=True)
class SpecialTokens:
    """A family's special tokens in the order of their ids, and the id that the first has in published checkpoints."""

    first: int
    names: tuple[str, ...]

    def ids(self, first: int | None = None) -> dict[str, int]:
        """The published ids, or those from `first` on in the same order."""
        first = self.first if first is None else first
        if first < SMALL_BASE:
            raise ConfigError(f"Special tokens cannot start at id {first}: ids below {SMALL_BASE} are the bytes.")
        return {name: first + index for index, name in enumerate(self.names)}


def write_byte_tokenizer(folder: str | Path, special_tokens: Mapping[str, int], eos: str) -> None:
    """Writes tokenizer.json and tokenizer_config.json, loadable by `Tokenizer` and by transformers."""
    _check(special_tokens, eos)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    in_order = sorted(special_tokens.items(), key=lambda token: token[1])
    # An added token that the model's vocabulary knows takes its id from there; one it does not know would be given the next
    # free id. Listing the special strings in both is what makes gaps in the ids possible.
    vocabulary = {char: byte for byte, char in enumerate(byte_characters())} | dict(in_order)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(name) | {"id": token_id} for name, token_id in in_order],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    config = {
        "added_tokens_decoder": {str(token_id): _added_token(name) for name, token_id in in_order},
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "pad_token": "<|endoftext|>" if "<|endoftext|>" in special_tokens else eos,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (target / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _check(special_tokens: Mapping[str, int], eos: str) -> None:
    if eos not in special_tokens:
        raise ConfigError(f"The end token {eos!r} is not among the special tokens.")
    taken: dict[int, str] = {}
    for name, token_id in special_tokens.items():
        if token_id < SMALL_BASE:
            raise ConfigError(f"Special token {name!r} cannot have id {token_id}: ids below {SMALL_BASE} are the bytes.")
        if token_id in taken:
            raise ConfigError(f"Special tokens {taken[token_id]!r} and {name!r} share id {token_id}.")
        taken[token_id] = name


def _added_token(name: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": name, **flags, "special": name not in VISIBLE}


def byte_characters() -> list[str]:
    """The printable stand-in of each byte in a byte-level vocabulary: itself if visible Latin-1, else 256, 257, … in turn."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]
