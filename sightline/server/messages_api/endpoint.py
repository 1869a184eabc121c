"""/v1/messages and /v1/messages/count_tokens: what is special to them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sightline.server.admission import Entry
from sightline.server.body_files import Files
from sightline.server.call import Call
from sightline.server.chat import BegunChat, begin_chat, prepare_chat
from sightline.server.chat_prompt import complete_prompt
from sightline.server.context import ServerContext
from sightline.server.errors import ANTHROPIC
from sightline.server.messages_api.body import CountTokensRequest, MessagesRequest
from sightline.server.messages_api.output import TokenCount
from sightline.server.messages_api.reply import MessagesReply
from sightline.server.messages_api.translation import NAMES, media_urls, refuse_thoughts, translated
from sightline.server.origins import Origin, in_words_of
from sightline.submission import Submission


@dataclass(frozen=True)
class BegunMessage:
    body: MessagesRequest
    chat: BegunChat
    origins: list[Origin]


class MessagesEndpoint:
    route = ANTHROPIC
    prefix = "msg_"
    body = MessagesRequest

    def media_urls(self, body: MessagesRequest) -> Iterator[str]:
        return media_urls(body.messages)

    def begin(self, context: ServerContext, body: MessagesRequest, files: Files, on_loop: bool, caller: str) -> BegunMessage:
        made = translated(body, context.prompts.template)
        with in_words_of(made.origins, NAMES):
            return BegunMessage(body, begin_chat(context, made.chat, files, on_loop, caller), made.origins)

    async def prepare(
        self, context: ServerContext, begun: BegunMessage, call: Call, caller: str, entry: Entry
    ) -> tuple[tuple[Submission, ...], Callable[[], MessagesReply]]:
        with in_words_of(begun.origins, NAMES):
            prepared = await prepare_chat(context, begun.chat, call, caller, entry)
        refuse_thoughts(begun.body, prepared.prompt.opens_reasoning)
        timings = bool(begun.body.return_timings) or context.config.server.enable_response_timings
        return (prepared.submission,), partial(MessagesReply, call, begun.chat.model, prepared.new_parser, timings)


def begin_count(context: ServerContext, body: CountTokensRequest, caller: str) -> tuple[BegunChat, list[Origin]]:
    """For a thread: the template may take its time."""
    made = translated(body, context.prompts.template)
    with in_words_of(made.origins, NAMES):
        return begin_chat(context, made.chat, {}, False, caller), made.origins


async def finish_count(
    context: ServerContext, begun: BegunChat, origins: list[Origin], caller: str, entry: Entry
) -> TokenCount:
    with in_words_of(origins, NAMES):
        prompt = await complete_prompt(context, begun.draft, caller, entry)
    return TokenCount(input_tokens=len(prompt.request))
