"""What replies of OpenAI's two older shapes have in common: how they end, how events are written, what they tell on request."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sightline.prompt.tokenizer import Tokenizer
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.protocol import ChatRequest, CompletionRequest
from sightline.submission import Submission

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(message: object) -> bytes:
    return b"data: " + _encoder.encode(message) + b"\n\n"


def named_event(name: str, message: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(message)


def failure_event(error: ApiError) -> bytes:
    """The last event of a stream that has begun and cannot go on."""
    return event(error.body())


@dataclass(frozen=True)
class ReplyOptions:
    model: str  # the name to answer with
    tokenizer: Tokenizer
    last_usage: bool  # at the end of a stream, in an event of its own
    usage_so_far: bool  # with each event of a stream
    timings: bool
    prompt_ids: tuple[list[int], ...] | None  # of each prompt, where ids are asked for

    @property
    def tells_tokens(self) -> bool:
        """Whether tokens without a text are worth an event."""
        return self.usage_so_far or self.prompt_ids is not None

    @classmethod
    def of(
        cls, context: ServerContext, body: ChatRequest | CompletionRequest, model: str, prompts: Sequence[Submission]
    ) -> "ReplyOptions":
        asked = body.stream_options
        return cls(
            model=model,
            tokenizer=context.files.tokenizer,
            last_usage=asked is not None and bool(asked.include_usage),
            usage_so_far=asked is not None and bool(asked.continuous_usage_stats),
            timings=bool(body.return_timings) or context.config.server.enable_response_timings,
            prompt_ids=tuple(prompt.request.token_ids.tolist() for prompt in prompts) if body.return_token_ids else None,
        )
