"""/v1/chat/completions: what is special to it."""

from dataclasses import dataclass, replace

import msgspec

from sightline.server.body_files import Files
from sightline.server.call import Call, PromptFacts
from sightline.server.chat_prompt import PromptDraft, complete_prompt, draft_prompt
from sightline.server.chat_reply import ChatReply
from sightline.server.context import ServerContext
from sightline.server.engine_client import Submission
from sightline.server.form import Form, checked, form_of
from sightline.server.inflight import Entry
from sightline.server.protocol import ChatRequest
from sightline.server.sampling import resolve, sampling_params, submission
from sightline.stream.answer_parts import AnswerParser
from sightline.types import SamplingParams


@dataclass(frozen=True)
class BegunChat:
    body: ChatRequest
    model: str  # the name to answer with
    form: Form
    params: SamplingParams
    draft: PromptDraft


class ChatShape:
    route = "/v1/chat/completions"
    prefix = "chatcmpl"
    decoder = msgspec.json.Decoder(ChatRequest)

    def begin(self, context: ServerContext, body: ChatRequest, files: Files, on_loop: bool) -> BegunChat:
        model, form, params = context.check_model(body.model), form_of(body), sampling_params(context, body)
        fields = (body.messages, form.tools, body.chat_template_kwargs, body.mm_processor_kwargs)
        return BegunChat(body, model, form, params, draft_prompt(context, *fields, files, on_loop))

    async def prepare(
        self, context: ServerContext, begun: BegunChat, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], ChatReply]:
        body, form = begun.body, begun.form
        prompt = await complete_prompt(context, begun.draft, caller, entry)
        params = replace(begun.params, structured=await checked(context, form, prompt.opens_reasoning))
        sampling = resolve(context, params)
        call.stream = bool(body.stream)
        prompts = (submission(context, prompt.request, body, params, sampling, begun.draft.clock),)
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
            begun.model,
            context.files.tokenizer,
            parser,
            logprobs=sampling.logprobs,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            timings=bool(body.return_timings) or context.config.server.enable_response_timings,
        )
