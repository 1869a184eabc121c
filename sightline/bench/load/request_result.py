"""What an OpenAI-style answer says and when, as plain facts: the raw material of every figure.

Which times count is vLLM's choice, so that figures of `vllm bench serve` can stand beside ours: a chunk with choices counts
even if it has only a role or only the reason to end; the chunk with usage does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True)
class RequestFailure:
    kind: str  # by which failures are counted: "HTTP 429", "timeout", "connection lost", …
    message: str


@dataclass
class RequestResult:
    """Times are seconds of one clock. A token count is None if the server does not tell."""

    start: float
    queued: float = 0.0  # seconds between the time at which it was due and the start
    chunk_times: list[float] = field(default_factory=list)  # of each chunk with choices; empty if it was not streamed
    first_text: float | None = None  # when text, reasoning or a tool call came first
    end: float = 0.0  # the last chunk with choices; if not streamed, the end of the body
    text: str = ""
    text_chunks: int = 0
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    vision_tokens: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)  # what Sightline adds with return_timings
    failure: RequestFailure | None = None

    @property
    def latency(self) -> float:
        return self.end - self.start

    @property
    def ttft(self) -> float | None:
        return self.chunk_times[0] - self.start if self.chunk_times else None

    @property
    def itls(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.chunk_times, self.chunk_times[1:], strict=False)]

    @property
    def output_tokens(self) -> int:
        """As the server counts; else chunks with text, which is too few where chunks carry several tokens."""
        return self.completion_tokens if self.completion_tokens is not None else self.text_chunks


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    image_tokens: int | None = None
    video_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _ChunkBody(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    metadata: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_ChunkBody)
_DATA = b"data:"


class StreamReader:
    """Takes the bytes of a stream of server-sent events, in whatever pieces they come, and fills an answer."""

    def __init__(self, answer: RequestResult, begun: Callable[[RequestResult], None] = lambda answer: None) -> None:
        """`begun` is told when the first chunk with choices has come."""
        self._answer = answer
        self._begun = begun
        self._rest = b""
        self._texts: list[str] = []
        self._ended = False

    def feed(self, stamp: float, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        for line in lines:
            if line.startswith(_DATA) and self._answer.failure is None:
                self._event(stamp, line[len(_DATA) :].strip())

    def _event(self, stamp: float, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._ended = True
            return
        answer = self._answer
        try:
            body = _decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            answer.failure = RequestFailure("unreadable chunk", f"{error}: {shown(payload)}")
            return
        if body.error is not None:
            answer.failure = RequestFailure("error in the stream", message_of(body.error))
            return
        _take_shared(answer, body)
        if not body.choices:
            return
        answer.chunk_times.append(stamp)
        answer.end = stamp
        if len(answer.chunk_times) == 1:
            self._begun(answer)
        for choice in body.choices:
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            delta = choice.delta
            if delta is not None and (delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls):
                answer.text_chunks += 1
                if answer.first_text is None:
                    answer.first_text = stamp
                self._texts.append(delta.content or "")

    def finish(self, stamp: float) -> None:
        """The stream has ended; was it whole?"""
        answer = self._answer
        answer.text = "".join(self._texts)
        if answer.failure is None and not answer.chunk_times:
            answer.failure = RequestFailure("empty stream", "The stream ended without a chunk that has choices.")
        elif answer.failure is None and not self._ended and answer.finish_reason is None:
            answer.failure = RequestFailure("broken stream", "The stream ended without [DONE] and without a reason to finish.")
        if not answer.chunk_times:
            answer.end = stamp


def read_whole(answer: RequestResult, stamp: float, data: bytes) -> None:
    """An answer that was not streamed."""
    answer.end = stamp
    try:
        body = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        answer.failure = RequestFailure("unreadable answer", f"{error}: {shown(data)}")
        return
    if body.error is not None or not body.choices:
        said = message_of(body.error) if body.error is not None else "The answer has no choices."
        answer.failure = RequestFailure("error in the answer", said)
        return
    _take_shared(answer, body)
    message = body.choices[0].message
    answer.text = (message.content or "") if message is not None else ""
    answer.finish_reason = body.choices[0].finish_reason


def read_refusal(answer: RequestResult, status: int, stamp: float, data: bytes) -> None:
    answer.end = stamp
    try:
        said = message_of(msgspec.json.decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = shown(data)
    answer.failure = RequestFailure(f"HTTP {status}", said)


def message_of(error: Any) -> str:
    """The sentence in an error object, which servers nest differently."""
    if isinstance(error, dict):
        for key in ("error", "message", "detail"):
            if error.get(key):
                return message_of(error[key])
    return error if isinstance(error, str) else shown(msgspec.json.encode(error))


def shown(data: bytes, most: int = 200) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= most else text[:most] + " …"


def _take_shared(answer: RequestResult, body: _ChunkBody) -> None:
    if body.usage is not None:
        usage = body.usage
        answer.prompt_tokens, answer.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            details = usage.prompt_tokens_details
            answer.cached_tokens = details.cached_tokens
            if details.image_tokens is not None or details.video_tokens is not None:
                answer.vision_tokens = (details.image_tokens or 0) + (details.video_tokens or 0)
    if isinstance(body.metadata, dict):
        answer.metadata = body.metadata
