"""/v1/chat/completions: what is special to it."""

from dataclasses import replace

import msgspec

from sightline.server.call import Call, PromptFacts
from sightline.server.chat_prompt import chat_prompt
from sightline.server.chat_reply import ChatReply
from sightline.server.context import ServerContext
from sightline.server.engine_client import Submission
from sightline.server.form import checked, form_of
from sightline.server.inflight import Entry
from sightline.server.protocol import ChatRequest
from sightline.server.sampling import resolve, sampling_params, submission
from sightline.stream.answer_parts import AnswerParser
from sightline.timing import StageClock


class ChatShape:
    route = "/v1/chat/completions"
    prefix = "chatcmpl"
    decoder = msgspec.json.Decoder(ChatRequest)

    async def prepare(
        self, context: ServerContext, body: ChatRequest, call: Call, caller: str, entry: Entry, off_loop: bool
    ) -> tuple[tuple[Submission, ...], ChatReply]:
        model = context.check_model(body.model)
        form = form_of(body)
        params = sampling_params(context, body)
        clock = StageClock()
        fields = (body.messages, form.tools, body.chat_template_kwargs, body.mm_processor_kwargs)
        prompt = await chat_prompt(context, *fields, caller, clock, entry, off_loop)
        params = replace(params, structured=await checked(context, form, prompt.opens_reasoning))
        sampling = resolve(context, params)
        call.stream = bool(body.stream)
        prompts = (submission(context, prompt.request, body, params, sampling, clock),)
        call.prompts = tuple(map(PromptFacts.of, prompts))

        def parser() -> AnswerParser:
            return AnswerParser(
                tools=bool(form.tools),
                reasoning=True,
                starts_in_reasoning=prompt.opens_reasoning,
                forced_calls=form.forced_calls,
            )

        return prompts, ChatReply(
            call,
            model,
            context.files.tokenizer,
            parser,
            logprobs=sampling.logprobs,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            timings=bool(body.return_timings) or context.config.server.enable_response_timings,
        )
