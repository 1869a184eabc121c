"""/v1/completions: what is special to it."""

from dataclasses import dataclass

import msgspec

from sightline.prompt.request import build_request_from_text, request_from_ids
from sightline.server.body_files import Files
from sightline.server.call import Call, PromptFacts
from sightline.server.completion_reply import CompletionReply
from sightline.server.context import ServerContext
from sightline.server.engine_client import Submission
from sightline.server.errors import ApiError
from sightline.server.inflight import Entry
from sightline.server.protocol import CompletionRequest
from sightline.server.sampling import resolve, sampling_params, submission
from sightline.timing import StageClock
from sightline.types import Request

_MOST_ANSWERS = 1024


@dataclass(frozen=True)
class BegunCompletion:
    body: CompletionRequest
    model: str  # the name to answer with
    prompts: tuple[Submission, ...]


class CompletionShape:
    route = "/v1/completions"
    prefix = "cmpl"
    decoder = msgspec.json.Decoder(CompletionRequest)

    def begin(self, context: ServerContext, body: CompletionRequest, files: Files, on_loop: bool) -> BegunCompletion:
        model, params = context.check_model(body.model), sampling_params(context, body)
        sampling = resolve(context, params)
        prompts = _prompts(body.prompt)
        if len(prompts) * params.n > _MOST_ANSWERS:
            raise ApiError(
                400,
                f"{len(prompts)} prompts with n = {params.n} ask for more than the {_MOST_ANSWERS} answers allowed.",
                param="prompt",
            )
        clock = StageClock()
        with clock.stage("prompt"):
            requests = [prompt_request(context, prompt) for prompt in prompts]
        submissions = tuple(submission(context, request, body, params, sampling, clock) for request in requests)
        return BegunCompletion(body, model, submissions)

    async def prepare(
        self, context: ServerContext, begun: BegunCompletion, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], CompletionReply]:
        body = begun.body
        call.stream = bool(body.stream)
        call.prompts = tuple(map(PromptFacts.of, begun.prompts))
        return begun.prompts, CompletionReply(
            call,
            begun.model,
            context.files.tokenizer,
            top_logprobs=body.logprobs,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            timings=bool(body.return_timings) or context.config.server.enable_response_timings,
        )


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """A text, texts, ids, or lists of ids, as a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [part for part in prompt if isinstance(part, int)]
    others = [part for part in prompt if not isinstance(part, int)]
    if not prompt or (ids and others):
        raise ApiError(400, "prompt must be a text, a list of texts, a list of token ids or a list of those.", param="prompt")
    return [ids] if ids else others


def prompt_request(context: ServerContext, prompt: str | list[int]) -> Request:
    files = context.files
    longest = files.max_model_len - 1  # room for one token of an answer
    if isinstance(prompt, str):
        return build_request_from_text(
            prompt,
            tokenizer=files.tokenizer,
            spec=files.spec,
            processor=files.processor,
            limits=context.config.media,
            max_len=longest,
        )
    return request_from_ids(prompt, files.spec, files.processor, longest)
