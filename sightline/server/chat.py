"""/v1/chat/completions, and what its translations (/v1/responses, /v1/messages) share with it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sightline.sampling_params import ResolvedSampling
from sightline.server.admission import Entry
from sightline.server.body_files import Files, media_urls
from sightline.server.call import Call, PromptFacts
from sightline.server.chat_prompt import ChatPrompt, PromptDraft, complete_prompt, draft_prompt, options_of
from sightline.server.chat_reply import ChatReply
from sightline.server.context import ServerContext
from sightline.server.errors import ApiError
from sightline.server.protocol import ChatRequest
from sightline.server.reply import ReplyOptions
from sightline.server.response_format import ResponseFormat, checked, response_format_of
from sightline.server.sampling import resolve, sampling_params, submission
from sightline.server.template_fields import final_text, template_kwargs
from sightline.stream.answer_parts import AnswerParser
from sightline.stream.call_forms import CallReader, call_reader
from sightline.submission import Submission
from sightline.types import SamplingParams


@dataclass(frozen=True)
class BegunChat:
    body: ChatRequest
    model: str  # the name to answer with
    form: ResponseFormat
    params: SamplingParams
    draft: PromptDraft
    beginning: str  # of the answer, from the last message


@dataclass(frozen=True)
class PreparedChat:
    """A chat that is ready for the engine, and what its reply needs to know."""

    submission: Submission
    sampling: ResolvedSampling
    prompt: ChatPrompt
    form: ResponseFormat
    call: CallReader | None  # what reads a call, where the model writes none as JSON

    @property
    def new_parser(self) -> Callable[[], AnswerParser]:
        """It knows nothing of the prompt, whose media may go."""
        return partial(
            AnswerParser,
            tools=bool(self.form.tools),
            reasoning=True,
            starts_in_reasoning=self.prompt.opens_reasoning,
            forced_calls=self.form.forced_calls,
            call=self.call,
        )


def begin_chat(context: ServerContext, body: ChatRequest, files: Files, on_loop: bool, caller: str) -> BegunChat:
    model, params = context.check_model(body.model), sampling_params(context, body)
    form = response_format_of(body, context.prompts.template.call_form)
    params = replace(params, stop=(*params.stop, *form.stop))
    beginning = final_text(body.messages) if body.continue_final_message else ""
    if body.echo and not beginning:
        raise ApiError(400, "echo repeats a message that is continued, but continue_final_message is not set.", param="echo")
    kwargs = template_kwargs(context.prompts.template, body)
    fields = (body.messages, form.tools, kwargs, options_of(body))
    known = context.known_files.of(context.tenant(caller, body.cache_salt))
    draft = draft_prompt(context, *fields, files, on_loop, bool(body.continue_final_message), known)
    return BegunChat(body, model, form, params, draft, beginning if body.echo else "")


async def prepare_chat(context: ServerContext, begun: BegunChat, call: Call, caller: str, entry: Entry) -> PreparedChat:
    body = begun.body
    prompt = await complete_prompt(context, begun.draft, caller, entry)
    params = replace(begun.params, structured=await checked(context, begun.form.structured, prompt.opens_reasoning))
    sampling = resolve(context, params)
    call.stream = bool(body.stream)
    made = submission(context, prompt.request, body, params, sampling, begun.draft.clock, caller)
    call.prompts = (PromptFacts.of(made),)
    reader = call_reader(context.prompts.template.call_form, begun.form.tools)
    return PreparedChat(made, sampling, prompt, begun.form, reader)


class ChatEndpoint:
    route = "/v1/chat/completions"
    prefix = "chatcmpl-"
    body = ChatRequest

    def media_urls(self, body: ChatRequest) -> Iterator[str]:
        return media_urls(body.messages)

    def begin(self, context: ServerContext, body: ChatRequest, files: Files, on_loop: bool, caller: str) -> BegunChat:
        return begin_chat(context, body, files, on_loop, caller)

    async def prepare(
        self, context: ServerContext, begun: BegunChat, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], Callable[[], ChatReply]]:
        prepared = await prepare_chat(context, begun, call, caller, entry)
        options = ReplyOptions.of(context, begun.body, begun.model, [prepared.submission])
        logprobs = prepared.sampling.logprobs
        return (prepared.submission,), partial(ChatReply, call, options, prepared.new_parser, logprobs, begun.beginning)
