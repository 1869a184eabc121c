"""How long prompts and answers may be: `max_model_len` tokens, and as many positions, hold a prompt and its answer."""

from sightline.errors import PromptTooLongError
from sightline.prompt.tokenizer import Tokenizer
from sightline.types import Request


def longest_prompt(max_model_len: int) -> int:
    """There is room for one token of an answer, or the request would be pointless."""
    return max_model_len - 1


def longest_answer(request: Request, max_tokens: int, max_model_len: int) -> int:
    """How many tokens an answer may have: `max_tokens`, or as many as there is room for; one there always is."""
    # Positions run ahead of tokens only where a video's clock does.
    used = max(len(request), len(request) + request.position_delta)
    return max(1, min(max_tokens, max_model_len - used))


def in_its_rope_regime(request: Request, long_from: int | None) -> tuple[Request, bool]:
    """(the request with the positions that it has in the rotary tables, whether its prompt is long).

    A prompt of more than `long_from` tokens takes the frequencies of long sequences, which stand behind the others in the
    tables (models/rotary_tables.py). One that grows longer with its answer changes to them: schedule/long_rope.py.
    """
    if long_from is None or len(request) <= long_from:
        return request, False
    return request.moved(long_from), True


def check_tokens(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise PromptTooLongError(f"The prompt has {tokens} tokens, more than the limit of {limit}.")


def check_positions(positions: int, limit: int) -> None:
    if positions > limit:
        raise PromptTooLongError(f"The prompt's positions reach {positions}, more than the limit of {limit}.")


def refuse_far_too_long(prompt: str, tokenizer: Tokenizer, limit: int) -> None:
    """Encoding takes a hundred times the memory of the text: what is far beyond the limit is refused without it."""
    if (least := tokenizer.least_tokens(len(prompt))) > limit:
        raise PromptTooLongError(f"The prompt has {least} tokens or more, more than the limit of {limit}.")
    beginning = prompt[: 16 * limit]  # three or four times the limit in most languages; of long runs of blanks it may be less
    if len(beginning) < len(prompt) and (count := len(tokenizer.encode(beginning))) > 2 * limit:
        whole = count * len(prompt) // len(beginning)
        raise PromptTooLongError(f"The prompt has about {whole} tokens, more than the limit of {limit}.")
