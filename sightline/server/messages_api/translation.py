"""A body of /v1/messages as a chat.

What tools gave is part of a user's turn there, and messages of its own in a chat. A last turn of the assistant is one to go on
with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sightline.prompt.template import ChatTemplate
from sightline.server import protocol as chat
from sightline.server.errors import ApiError
from sightline.server.messages_api.body import (
    AnyChoice,
    AssistantMessage,
    Base64Source,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    Message,
    MessagesRequest,
    NoChoice,
    PdfSource,
    SystemMessage,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ThinkingDisabled,
    ThinkingEnabled,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
    UserMessage,
)
from sightline.server.origins import Origin
from sightline.server.template_fields import thinking

# What fields of a chat are called here.
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "continue_final_message": "messages",
}
_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "min_tokens", "ignore_eos"),
    *("priority", "cache_salt", "return_timings", "max_tokens", "mm_processor_kwargs", "media_io_kwargs"),
)
_Placed: TypeAlias = tuple[chat.Part, str]  # and where it comes from


@dataclass(frozen=True)
class Translated:
    chat: chat.ChatRequest
    origins: list[Origin]


def translated(body: MessagesRequest | CountTokensRequest, template: ChatTemplate) -> Translated:
    messages: list[chat.Message] = []
    origins: list[Origin] = []
    if body.system is not None:
        messages.append(chat.SystemMessage(content=_plain(body.system)))
        origins.append(_origin("system", "system", body.system))
    for number, message in enumerate(body.messages):
        for made, origin in _messages(message, f"messages[{number}]"):
            messages.append(made)
            origins.append(origin)
    choice, parallel = _choice(body)
    config = body.output_config
    schema = config.format.schema if config is not None and config.format is not None else None
    request = chat.ChatRequest(
        **{name: getattr(body, name) for name in _SAME},
        messages=messages,
        stop=body.stop_sequences,
        tools=[_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=chat.JsonSchemaFormat(json_schema=chat.JsonSchema(schema=schema)) if schema is not None else None,
        reasoning_effort=config.effort if config is not None else None,
        chat_template_kwargs={**(body.chat_template_kwargs or {}), **_thinking(body, template)} or None,
        continue_final_message=isinstance(body.messages[-1], AssistantMessage) or None,
    )
    return Translated(request, origins)


def _thinking(body: MessagesRequest | CountTokensRequest, template: ChatTemplate) -> dict[str, Any]:
    """Adaptive is what the template does by itself."""
    if isinstance(body.thinking, ThinkingEnabled | ThinkingDisabled):
        return thinking(template, isinstance(body.thinking, ThinkingEnabled))
    return {}


def refuse_thoughts(body: MessagesRequest, opens_reasoning: bool) -> None:
    if opens_reasoning and isinstance(body.thinking, ThinkingDisabled):
        raise ApiError(
            400,
            "thinking is disabled, but the model's chat template has no switch for it; leave it out.",
            param="thinking",
            code="unsupported_value",
        )


def _choice(body: MessagesRequest | CountTokensRequest) -> tuple[Any, bool | None]:
    """tool_choice and parallel_tool_calls of a chat."""
    given = body.tool_choice
    if given is None:
        return None, None
    if isinstance(given, NoChoice):
        return "none", None
    parallel = False if given.disable_parallel_tool_use else None
    if isinstance(given, ToolChoice):
        return chat.NamedTool(function=chat.NamedFunction(name=given.name)), parallel
    return ("required" if isinstance(given, AnyChoice) else "auto"), parallel


def _tool(tool: Tool) -> chat.Tool:
    return chat.Tool(function=chat.Function(name=tool.name, description=tool.description, parameters=tool.input_schema))


# ---- Messages


def _messages(message: Message, where: str) -> Iterator[tuple[chat.Message, Origin]]:
    own = f"{where}.content"
    if isinstance(message, SystemMessage):
        yield chat.SystemMessage(content=_plain(message.content)), _origin(where, own, message.content)
    elif isinstance(message, AssistantMessage):
        yield _assistant(message), _origin(where, own, message.content)
    elif isinstance(message.content, str):
        yield chat.UserMessage(content=message.content), Origin(where, own)
    else:
        yield from _user(message, where, own)


def _user(message: UserMessage, where: str, own: str) -> Iterator[tuple[chat.Message, Origin]]:
    """What tools gave, each a message, and the blocks between, a message each time."""
    parts: list[chat.Part] = []
    names: list[str] = []
    for number, block in enumerate(message.content):
        name = f"{own}[{number}]"
        if isinstance(block, ToolResultBlock):
            if parts:
                yield chat.UserMessage(content=parts), Origin(where, own, tuple(names))
                parts, names = [], []
            yield _result(block, name)
        elif not isinstance(block, str):
            for part, place in _parts(block, name):
                parts.append(part)
                names.append(place)
    if parts:
        yield chat.UserMessage(content=parts), Origin(where, own, tuple(names))


def _assistant(message: AssistantMessage) -> chat.AssistantMessage:
    if isinstance(message.content, str):
        return chat.AssistantMessage(content=message.content)
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    calls = [
        chat.ToolCall(function=chat.FunctionCall(name=block.name, arguments=block.input), id=block.id)
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    return chat.AssistantMessage(
        content="".join(texts) if texts or not calls else None,
        reasoning_content="".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _result(block: ToolResultBlock, where: str) -> tuple[chat.ToolMessage, Origin]:
    """A chat has no field for whether a tool failed: the model is told in words."""
    own = f"{where}.content"
    if not isinstance(block.content, list):
        text = ("Error: " if block.is_error else "") + (block.content or "")
        return chat.ToolMessage(content=text, tool_call_id=block.tool_use_id), Origin(where, own)
    placed: list[_Placed] = [(chat.TextPart(text="Error: "), own)] if block.is_error else []
    for number, one in enumerate(block.content):
        placed += _parts(one, f"{own}[{number}]")
    message = chat.ToolMessage(content=[part for part, _ in placed], tool_call_id=block.tool_use_id)
    return message, Origin(where, own, tuple(place for _, place in placed))


def _plain(content: str | Sequence[TextBlock]) -> str | list[chat.Part]:
    return content if isinstance(content, str) else [chat.TextPart(text=block.text) for block in content]


def _parts(block: TextBlock | ImageBlock | DocumentBlock, where: str) -> Iterator[_Placed]:
    """A document's title and context are told to the model before it."""
    if isinstance(block, TextBlock):
        yield chat.TextPart(text=block.text), where
    elif isinstance(block, ImageBlock):
        yield chat.ImagePart(image_url=chat.Url(url=_url(block.source))), where
    else:
        for field, text in (("title", block.title), ("context", block.context)):
            if text:
                yield chat.TextPart(text=f"{text}\n"), f"{where}.{field}"
        yield _document(block, where)


def _document(block: DocumentBlock, where: str) -> _Placed:
    source = block.source
    if isinstance(source, TextSource):
        return chat.TextPart(text=f"{source.data}\n"), f"{where}.source.data"
    title = block.title if block.title is not None and len(block.title) <= 256 and block.title.isprintable() else None
    return chat.FilePart(file=chat.File(file_data=_url(source), filename=title)), where


def _url(source: Base64Source | PdfSource | UrlSource) -> str:
    return source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"


def _origin(message: str, content: str, blocks: str | Sequence[Any] | None) -> Origin:
    own = () if blocks is None or isinstance(blocks, str) else tuple(f"{content}[{n}]" for n in range(len(blocks)))
    return Origin(message, content, own)


def media_urls(messages: Sequence[Message]) -> Iterator[str]:
    """Those that are data: or http(s) URLs as they stand."""
    for message in messages:
        blocks = message.content if isinstance(message, UserMessage) and not isinstance(message.content, str) else ()
        for block in blocks:
            inner = block.content if isinstance(block, ToolResultBlock) else [block]
            for one in inner if isinstance(inner, list) else ():
                if isinstance(one, ImageBlock | DocumentBlock) and isinstance(one.source, UrlSource):
                    yield one.source.url
