"""How single tokens are written in log-probabilities: as text, and as bytes where a token is a part of a character."""

from sightline.errors import CheckpointError
from sightline.prompt.tokenizer import Tokenizer
from sightline.server.responses import ChatLogprobs, CompletionLogprobs, TopLogprob
from sightline.server.responses import TokenLogprob as ShownLogprob
from sightline.types import TokenLogprob

_BROKEN = "\ufffd"


def token_text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.decode([token], skip_special_tokens=False)


def token_bytes(tokenizer: Tokenizer, token: int) -> list[int] | None:
    """The bytes of a token; None if the tokenizer does not know it."""
    text = token_text(tokenizer, token)
    if _BROKEN not in text:
        return list(text.encode())
    try:
        return [_BYTES[char] for char in tokenizer.token_of(token)]
    except (CheckpointError, KeyError):
        return None


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level vocabularies write a byte as itself where it is visible Latin-1, and as 256, 257, … in turn where not."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(256, 512))
    return {chr(byte if byte in visible else next(hidden)): byte for byte in range(256)}


_BYTES = _byte_level_alphabet()


def chat_logprobs(tokenizer: Tokenizer, logprobs: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs(
        content=[
            ShownLogprob(
                token=token_text(tokenizer, entry.token_id),
                logprob=entry.logprob,
                bytes=token_bytes(tokenizer, entry.token_id),
                top_logprobs=[
                    TopLogprob(token=token_text(tokenizer, token), logprob=value, bytes=token_bytes(tokenizer, token))
                    for token, value in entry.top
                ],
            )
            for entry in logprobs
        ]
    )


def completion_logprobs(tokenizer: Tokenizer, logprobs: list[TokenLogprob], offset: int, top: bool) -> CompletionLogprobs:
    """`offset` is where in the answer's text the first of these tokens begins."""
    tokens = [token_text(tokenizer, entry.token_id) for entry in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[entry.logprob for entry in logprobs],
        top_logprobs=[{token_text(tokenizer, t): value for t, value in entry.top} for entry in logprobs] if top else None,
        text_offset=offsets,
    )
