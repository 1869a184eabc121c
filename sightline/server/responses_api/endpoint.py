"""/v1/responses: what is special to it. Nothing is stored, so there is nothing to get, cancel or delete."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from sightline.sampling_params import ResolvedSampling
from sightline.server.admission import Entry
from sightline.server.body_files import Files
from sightline.server.call import Call
from sightline.server.chat import BegunChat, begin_chat, prepare_chat
from sightline.server.context import ServerContext
from sightline.server.origins import Origin, in_words_of
from sightline.server.responses_api.body import ResponsesRequest
from sightline.server.responses_api.output import Response
from sightline.server.responses_api.reply import ResponsesReply
from sightline.server.responses_api.translation import NAMES, media_urls, translated
from sightline.submission import Submission


@dataclass(frozen=True)
class BegunResponse:
    body: ResponsesRequest
    chat: BegunChat
    origins: list[Origin]


class ResponsesEndpoint:
    route = "/v1/responses"
    prefix = "resp_"
    body = ResponsesRequest

    def media_urls(self, body: ResponsesRequest) -> Iterator[str]:
        return media_urls(body.input)

    def begin(self, context: ServerContext, body: ResponsesRequest, files: Files, on_loop: bool, caller: str) -> BegunResponse:
        made = translated(body)
        with in_words_of(made.origins, NAMES):
            return BegunResponse(body, begin_chat(context, made.chat, files, on_loop, caller), made.origins)

    async def prepare(
        self, context: ServerContext, begun: BegunResponse, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], Callable[[], ResponsesReply]]:
        with in_words_of(begun.origins, NAMES):
            prepared = await prepare_chat(context, begun.chat, call, caller, entry)
        sampling = prepared.sampling
        response = _beginning(begun.body, call, begun.chat.model, sampling)
        timings = bool(begun.body.return_timings) or context.config.server.enable_response_timings
        how = (context.files.tokenizer, response, sampling.logprobs, timings)
        return (prepared.submission,), partial(ResponsesReply, call, prepared.new_parser, *how)


def _beginning(body: ResponsesRequest, call: Call, model: str, sampling: ResolvedSampling) -> Response:
    """The response before anything is said: with what was asked for."""
    text = _given(body.text)
    return Response(
        id=call.id,
        created_at=call.created,
        status="in_progress",
        model=model,
        output=[],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_logprobs=sampling.top_logprobs,
        tools=[{"parameters": None, "strict": None, **_given(tool)} for tool in body.tools or ()],
        tool_choice=body.tool_choice if isinstance(body.tool_choice, str) else _given(body.tool_choice) or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text={**text, "format": text.get("format", {"type": "text"})},
        reasoning={"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
        metadata=body.metadata or {},
    )


def _given(part: msgspec.Struct | None) -> dict[str, Any]:
    """What was said of it, without what was left out."""
    plain = msgspec.to_builtins(part) if part is not None else {}
    return {name: _without_none(value) for name, value in plain.items() if value is not None}


def _without_none(value: Any) -> Any:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
