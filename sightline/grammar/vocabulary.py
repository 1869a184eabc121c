"""A tokenizer as the grammar library needs it: the bytes of every token.

```
ids   0 … vocab_size - 1    the tokenizer's; an id that is not used has no bytes and is never allowed
      vocab_size            "the answer may end here": a token of our own, so that a request's end tokens can be its own affair
```

Tokens that the detokeniser hides (`special`) are no text and match nothing. Added tokens that it shows, such as <tool_call>,
are text like any other: a grammar that asks for their characters allows the token.
"""

import functools

import llguidance

from sightline.errors import ConfigError
from sightline.prompt.byte_tokenizer import byte_characters
from sightline.prompt.tokenizer import Tokenizer

_END = b"<|the answer may end here|>"


class _Vocabulary:
    """What llguidance.TokenizerWrapper reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        definition = tokenizer.definition()
        _check_byte_level(definition, tokenizer.origin)
        byte_of = {char: byte for byte, char in enumerate(byte_characters())}
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.vocab_size
        self.bos_token_id = None
        self.tokens = [b""] * tokenizer.vocab_size + [_END]
        for name, token_id in definition["model"]["vocab"].items():
            # A name with other characters belongs to an added token, which comes below.
            self.tokens[token_id] = bytes(byte_of[char] for char in name) if byte_of.keys() >= set(name) else b""
        self.special_token_ids = [self.eos_token_id]
        for added in definition["added_tokens"]:
            self.tokens[added["id"]] = added["content"].encode()
            if added["special"]:
                self.special_token_ids.append(added["id"])

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


@functools.lru_cache(maxsize=4)
def vocabulary_of(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """Made once for a tokenizer; about a second for 150,000 tokens."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(tokenizer)))


def _check_byte_level(definition: dict[str, object], origin: str) -> None:
    decoder = definition.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        kind = decoder.get("type") if isinstance(decoder, dict) else None
        raise ConfigError(f"{origin} has a decoder of type {kind!r}, but structured output needs byte-level tokens.")
