"""/v1/completions: what is special to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sightline.server.admission import Entry
from sightline.server.body_files import Files
from sightline.server.call import Call, PromptFacts
from sightline.server.completion_reply import CompletionReply
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.protocol import CompletionRequest
from sightline.server.reply import ReplyOptions
from sightline.server.response_format import checked, structure_of
from sightline.server.sampling import resolve, sampling_params, submission
from sightline.submission import Submission
from sightline.timing import StageClock
from sightline.types import Request, SamplingParams, StructuredOutput

_MOST_ANSWERS = 1024


@dataclass(frozen=True)
class BegunCompletion:
    body: CompletionRequest
    model: str  # the name to answer with
    params: SamplingParams
    requests: tuple[Request, ...]
    structured: StructuredOutput | None
    beginnings: tuple[str, ...]  # of the answers, which are to repeat their prompts
    clock: StageClock


class CompletionEndpoint:
    route = "/v1/completions"
    prefix = "cmpl-"
    body = CompletionRequest

    def media_urls(self, body: CompletionRequest) -> Iterator[str]:
        return iter(())

    def begin(
        self, context: ServerContext, body: CompletionRequest, files: Files, on_loop: bool, caller: str
    ) -> BegunCompletion:
        model, params = context.check_model(body.model), sampling_params(context, body)
        resolve(context, params)  # what is wrong with it is said before prompts are read
        prompts = _prompts(body.prompt)
        if len(prompts) * params.n > _MOST_ANSWERS:
            raise ApiError(
                400,
                f"{len(prompts)} prompts with n = {params.n} ask for more than the {_MOST_ANSWERS} answers allowed.",
                param="prompt",
            )
        clock = StageClock()
        with clock.stage("prompt"):
            requests = tuple(_request(context, prompt) for prompt in prompts)
        beginnings = _beginnings(context, body, prompts)
        return BegunCompletion(body, model, params, requests, structure_of(body), beginnings, clock)

    async def prepare(
        self, context: ServerContext, begun: BegunCompletion, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], Callable[[], CompletionReply]]:
        body = begun.body
        call.stream = bool(body.stream)
        params = replace(begun.params, structured=await checked(context, begun.structured, opens_reasoning=False))
        how = (body, params, resolve(context, params), begun.clock, caller)
        prompts = tuple(submission(context, request, *how) for request in begun.requests)
        call.prompts = tuple(map(PromptFacts.of, prompts))
        options = ReplyOptions.of(context, body, begun.model, prompts)
        return prompts, partial(CompletionReply, call, options, body.logprobs, begun.beginnings)


def _beginnings(context: ServerContext, body: CompletionRequest, prompts: list[str | list[int]]) -> tuple[str, ...]:
    if not body.echo:
        return ()
    if body.logprobs is not None:
        raise ApiError(
            400,
            "echo with logprobs asks for log-probabilities of the prompt, which are not computed; leave one of them out.",
            param="echo",
            code="unsupported_value",
        )
    decode = context.files.tokenizer.decode
    return tuple(prompt if isinstance(prompt, str) else decode(prompt, False) for prompt in prompts)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """A text, texts, ids, or lists of ids, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [part for part in prompt if isinstance(part, int)]
    others = [part for part in prompt if not isinstance(part, int)]
    if not prompt or (ids and others):
        raise ApiError(400, "prompt must be a text, a list of texts, a list of token ids or a list of those.", param="prompt")
    return [ids] if ids else others


def _request(context: ServerContext, prompt: str | list[int]) -> Request:
    return context.prompts.text(prompt) if isinstance(prompt, str) else context.prompts.token_ids(prompt)
