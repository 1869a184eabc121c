"""The fields of a request that say how to answer, as SamplingParams, and with them what the engine is given."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from sightline.errors import PromptError
from sightline.sampling_params import ResolvedSampling, resolve_sampling
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.protocol import ChatRequest, CompletionRequest, Message, TextPart, UserMessage
from sightline.submission import Submission, answer_returns, end_tokens_of, of_tenant
from sightline.timing import StageClock
from sightline.types import Request, SamplingParams

_MOST_STOPS, _LONGEST_STOP = 64, 1024


def sampling_params(context: ServerContext, body: ChatRequest | CompletionRequest) -> SamplingParams:
    server, defaults = context.config.server, context.files.defaults.sampling
    wanted = body.max_tokens
    if isinstance(body, ChatRequest):
        if body.max_completion_tokens is not None:
            wanted = body.max_completion_tokens
        logprobs, top = bool(body.logprobs), body.top_logprobs or 0
    else:
        logprobs, top = body.logprobs is not None, body.logprobs or 0
    if wanted is None and "max_tokens" not in defaults:
        wanted = server.default_max_tokens
    if wanted is not None and wanted > server.max_output_tokens:
        raise ApiError(
            400,
            f"max_tokens is {wanted}, but at most {server.max_output_tokens} are allowed (max_output_tokens).",
            param="max_tokens",
        )
    n = body.n or 1
    if n > server.max_n:
        raise ApiError(400, f"n is {n}, but at most {server.max_n} are allowed (max_n).", param="n")
    return SamplingParams(
        max_tokens=wanted,
        min_tokens=body.min_tokens or 0,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias),
        seed=body.seed,
        n=n,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        top_logprobs=top,
        skip_special_tokens=body.skip_special_tokens is not False,
    )


def resolve(context: ServerContext, params: SamplingParams) -> ResolvedSampling:
    try:
        return resolve_sampling(params, context.files.defaults.sampling, context.files.spec.text.vocab_size)
    except PromptError as error:
        name = str(error).split(" ", 1)[0]
        raise ApiError(400, str(error), param=name if name.isidentifier() else None) from None


def submission(
    context: ServerContext,
    request: Request,
    body: ChatRequest | CompletionRequest,
    params: SamplingParams,
    sampling: ResolvedSampling,
    clock: StageClock,
    caller: str,
) -> Submission:
    """A prompt with all that the engine needs to answer it; `sampling` is what `params` came to."""
    several, tenant = context.config.server.data_parallel_size > 1, context.tenant(caller, body.cache_salt)
    return Submission(
        request=of_tenant(request, tenant),
        sampling=sampling,
        end_tokens=end_tokens_of(params, context.files.defaults.eos_token_ids),
        stop=params.stop,
        priority=body.priority or 0,
        affinity=beginning_of(body.messages) if several and isinstance(body, ChatRequest) else b"",
        answer_returns=isinstance(body, ChatRequest) and answer_returns(bool(body.tools), body.chat_template_kwargs),
        cache_salt=tenant,
        seconds=dict(clock.seconds),
    )


def beginning_of(messages: Sequence[Message]) -> bytes:
    """Equal for the rounds of a conversation: a digest of all up to its first user turn, texts of media left out."""
    end = next((index for index, message in enumerate(messages) if isinstance(message, UserMessage)), len(messages) - 1)
    contents = [message.content for message in messages[: end + 1]]
    texts = [[part.text for part in it if isinstance(part, TextPart)] if isinstance(it, list) else it for it in contents]
    return hashlib.sha256(msgspec.json.encode(texts)).digest()


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS:
        raise ApiError(400, f"stop has {len(stops)} strings, but at most {_MOST_STOPS} are allowed.", param="stop")
    for text in stops:
        if not text or len(text) > _LONGEST_STOP:
            raise ApiError(400, f"stop has a string of {len(text)} characters; it may have 1 to {_LONGEST_STOP}.", param="stop")
    return stops


def _logit_bias(bias: dict[str, Any] | None) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in (bias or {}).items()}
    except ValueError:
        raise ApiError(400, "logit_bias must map token ids to numbers.", param="logit_bias") from None
