"""/v1/chat/completions: what is special to it."""

import msgspec

from sightline.server.call import Call
from sightline.server.chat_prompt import chat_prompt
from sightline.server.chat_reply import ChatReply
from sightline.server.context import ServerContext
from sightline.server.engine_client import Submission
from sightline.server.errors import ApiError
from sightline.server.protocol import ChatRequest, TextFormat
from sightline.server.sampling import end_tokens, sampling_of
from sightline.stream.answer_parts import AnswerParser
from sightline.timing import StageClock


class ChatShape:
    route = "/v1/chat/completions"
    prefix = "chatcmpl"
    decoder = msgspec.json.Decoder(ChatRequest)

    async def prepare(self, context: ServerContext, body: ChatRequest, call: Call, caller: str, off_loop: bool) -> ChatReply:
        model = context.check_model(body.model)
        if body.response_format is not None and not isinstance(body.response_format, TextFormat):
            raise ApiError(400, "Field 'response_format' is not supported.", param="response_format", code="unsupported_field")
        if body.tools:
            raise ApiError(400, "Field 'tools' is not supported.", param="tools", code="unsupported_field")
        params, sampling = sampling_of(context, body)
        clock = StageClock()
        prompt = await chat_prompt(
            context, body.messages, None, body.chat_template_kwargs, body.mm_processor_kwargs, caller, clock, off_loop
        )
        call.stream = bool(body.stream)
        call.prompts = (
            Submission(
                request=prompt.request,
                sampling=sampling,
                end_tokens=end_tokens(context, params),
                stop=params.stop,
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
                seconds=dict(clock.seconds),
            ),
        )

        def parser() -> AnswerParser:
            return AnswerParser(tools=False, reasoning=True, starts_in_reasoning=prompt.opens_reasoning)

        return ChatReply(
            call,
            model,
            context.files.tokenizer,
            parser,
            logprobs=sampling.logprobs,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            timings=bool(body.return_timings) or context.config.server.enable_response_timings,
        )
