"""Text to token ids and back, over the `tokenizers` library: the same ids as transformers, without its import time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sightline.errors import CheckpointError, PromptError
from sightline.json_files import read_json

_LONG = 10_000  # characters or ids; work on more than this is left to calls that let other threads run meanwhile
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def special_token_names(folder: str | Path) -> dict[str, str]:
    """bos_token, eos_token, … as tokenizer_config.json names them, for templates; what is null or absent is left out."""
    file = Path(folder) / "tokenizer_config.json"
    if not file.is_file():
        return {}
    config = read_json(file)
    names = {}
    for key in _NAMED_TOKENS:
        token = config.get(key)
        if isinstance(token, dict):  # a serialised AddedToken
            token = token.get("content")
        if isinstance(token, str):
            names[key] = token
    return names


class Tokenizer:
    """A checkpoint's tokenizer.json. Nothing is added around a text; special tokens written in it become their ids."""

    def __init__(self, backend: tokenizers.Tokenizer, origin: str) -> None:
        self.origin = origin  # for messages: the file it came from
        # Some published files carry truncation or padding settings; a prompt must get neither.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self._longest = max(map(len, vocabulary), default=1)  # in bytes for byte-level vocabularies
        self._vocab_size = max(vocabulary.values(), default=-1) + 1

    @classmethod
    def from_folder(cls, path: str | Path, added: Sequence[str] = ()) -> "Tokenizer":
        """`added`: special tokens that take the next ids, in this order, where the file lacks them."""
        file = Path(path) / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(f"{Path(path)} has no tokenizer.json.")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception for whatever is wrong in the file
            raise CheckpointError(f"{file} is not a usable tokenizer: {error}") from error
        missing = [name for name in added if backend.token_to_id(name) is None]
        backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in missing])
        return cls(backend, str(file))

    def encode(self, text: str) -> list[int]:
        try:
            if len(text) > _LONG:
                return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        except (TypeError, UnicodeEncodeError) as error:  # half of a surrogate pair, which JSON can smuggle into a str
            bad = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
            if bad is None:
                raise
            raise PromptError(f"The text has a lone surrogate {text[bad]!a} at character {bad}.") from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        if len(ids) > _LONG:
            return str(self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def id_of(self, token: str) -> int:
        """The id of a token given by its exact name."""
        token_id = self._backend.token_to_id(token)
        if token_id is None:
            raise CheckpointError(f"{self.origin} has no token {token!r}.")
        return int(token_id)

    def token_of(self, token_id: int) -> str:
        """The name of a token given by its id."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            raise CheckpointError(f"{self.origin} has no token with id {token_id}.")
        return str(token)

    def definition(self) -> dict[str, Any]:
        """What tokenizer.json says: model, vocabulary, added tokens, decoder. Takes a while for a large vocabulary."""
        return dict(json.loads(self._backend.to_str()))

    def least_tokens(self, characters: int) -> int:
        """A number of tokens that a text of so many characters has in any case, without reading it.

        No token is longer than the longest, and a normaliser that joins characters (NFC) joins four at most.
        """
        return characters // (4 * self._longest)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id; ids below it may be unused."""
        return self._vocab_size
