"""A body of /v1/responses as a chat.

Items of the input are messages, but for those of one turn of the assistant: thoughts, what it said and its calls are items of
their own there, and one message of a chat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.server.errors import ApiError
from sightline.server.instead import unsupported
from sightline.server.origins import Origin
from sightline.server.protocol import (
    AssistantMessage,
    ChatRequest,
    DeveloperMessage,
    File,
    FilePart,
    Function,
    FunctionCall,
    ImagePart,
    JsonSchema,
    JsonSchemaFormat,
    Message,
    NamedFunction,
    NamedTool,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    Url,
    UserMessage,
)
from sightline.server.protocol import Part as ChatPart
from sightline.server.responses_api.body import (
    ChosenFunction,
    FunctionTool,
    InputFile,
    InputImage,
    InputItem,
    Part,
    ReasoningText,
    ResponsesRequest,
    SchemaFormat,
)

# What fields of a chat are called here.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
_FIELDS = {  # needed, allowed besides
    "message": (("role", "content"), ()),
    "function_call": (("call_id", "name", "arguments"), ()),
    "function_call_output": (("call_id", "output"), ()),
    "reasoning": ((), ("content", "summary")),
}
_ROLES: dict[str, type[UserMessage | SystemMessage | DeveloperMessage]] = {
    "user": UserMessage,
    "system": SystemMessage,
    "developer": DeveloperMessage,
}
_ALL_FIELDS = ("role", "content", "call_id", "name", "arguments", "output", "summary")


@dataclass(frozen=True)
class Translated:
    chat: ChatRequest
    origins: list[Origin]


def translated(body: ResponsesRequest) -> Translated:
    _refuse_state(body)
    messages, origins = _messages(body)
    wanted, text, logprobs = body.reasoning, body.text, _wants_logprobs(body)
    schema = text.format if text is not None else None
    if isinstance(schema, SchemaFormat):
        response_format = JsonSchemaFormat(json_schema=JsonSchema(schema=schema.schema))
    else:
        response_format = schema  # type: ignore[assignment] # the others are those of a chat
    chat = ChatRequest(
        **{name: getattr(body, name) for name in _SAME},
        messages=messages,
        max_tokens=body.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
        response_format=response_format,
        tools=[_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=_choice(body.tool_choice),
        reasoning_effort=wanted.effort if wanted is not None else None,
        verbosity=text.verbosity if text is not None else None,
    )
    return Translated(chat, origins)


_SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "min_tokens", "ignore_eos"),
    *("priority", "cache_salt", "return_timings", "presence_penalty", "frequency_penalty", "stop", "parallel_tool_calls"),
    *("chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs"),
)


def _refuse_state(body: ResponsesRequest) -> None:
    for name, given, instead in (
        ("store", body.store, "leave it out or send false"),
        ("background", body.background, "use stream, or wait for the answer"),
    ):
        if given:
            raise ApiError(
                400, f"{name} is true, but responses are not stored; {instead}.", param=name, code="unsupported_value"
            )


def _wants_logprobs(body: ResponsesRequest) -> bool:
    return bool(body.top_logprobs) or "message.output_text.logprobs" in (body.include or ())


def _tool(tool: FunctionTool) -> Tool:
    return Tool(function=Function(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict))


def _choice(choice: Any) -> Any:
    return NamedTool(function=NamedFunction(name=choice.name)) if isinstance(choice, ChosenFunction) else choice


# ---- Messages


def _messages(body: ResponsesRequest) -> tuple[list[Message], list[Origin]]:
    messages: list[Message] = []
    origins: list[Origin] = []
    if body.instructions is not None:
        messages.append(SystemMessage(content=body.instructions))
        origins.append(Origin("instructions", "instructions"))
    if isinstance(body.input, str):
        return [*messages, UserMessage(content=body.input)], [*origins, Origin("input", "input")]
    for number, item in enumerate(body.input):
        where = f"input[{number}]"
        _check_fields(item, where)
        last = messages[-1] if messages else None
        turn = last if isinstance(last, AssistantMessage) and number else None
        if item.type in ("function_call", "reasoning") or item.role == "assistant":
            if turn is None or (item.type in (None, "message") and turn.content is not None):
                messages.append(turn := AssistantMessage())
                origins.append(_origin(where, "content", item.content))
            _add_to_turn(turn, item, where)
        elif item.type == "function_call_output":
            assert item.output is not None
            messages.append(ToolMessage(content=_content(item.output, f"{where}.output"), tool_call_id=item.call_id))
            origins.append(_origin(where, "output", item.output))
        else:
            assert item.content is not None
            messages.append(_ROLES[str(item.role)](content=_content(item.content, f"{where}.content")))
            origins.append(_origin(where, "content", item.content))
    for message in messages:
        if isinstance(message, AssistantMessage) and message.content is None and not message.tool_calls:
            message.content = ""  # thoughts alone
    return messages, origins


def _origin(where: str, field: str, content: str | list[Part] | None) -> Origin:
    own = f"{where}.{field}"
    return Origin(where, own, tuple(f"{own}[{index}]" for index in range(len(content))) if isinstance(content, list) else ())


def _add_to_turn(turn: AssistantMessage, item: InputItem, where: str) -> None:
    if item.type == "function_call":
        call = FunctionCall(name=item.name or "", arguments=item.arguments or "{}")
        turn.tool_calls = [*(turn.tool_calls or ()), ToolCall(function=call, id=item.call_id)]
    elif item.type == "reasoning":
        turn.reasoning_content = "".join([turn.reasoning_content or "", *_thoughts(item, where)])
    else:
        assert item.content is not None
        turn.content = _content(item.content, f"{where}.content")


def _thoughts(item: InputItem, where: str) -> Iterator[str]:
    """The content; a summary only where that is all there is."""
    if isinstance(item.content, list):
        for index, part in enumerate(item.content):
            if not isinstance(part, ReasoningText):
                raise _wrong_part(f"{where}.content[{index}]", part)
            yield part.text
    elif item.content is not None:
        yield item.content
    else:
        yield from (part.text for part in item.summary or ())


def _content(content: str | list[Part], where: str) -> str | list[ChatPart]:
    return content if isinstance(content, str) else [_part(part, f"{where}[{n}]") for n, part in enumerate(content)]


def _part(part: Part, where: str) -> ChatPart:
    if isinstance(part, InputImage):
        if not part.image_url:
            raise ApiError(400, f"{where} has no 'image_url'.", param=f"{where}.image_url", code="missing_field")
        detail = None if part.detail == "original" else part.detail
        return ImagePart(image_url=Url(url=part.image_url, detail=detail))
    if isinstance(part, InputFile):
        if bool(part.file_data) == bool(part.file_url):
            raise ApiError(400, f"{where} must have either 'file_data' or 'file_url'.", param=where, code="missing_field")
        return FilePart(file=File(file_data=part.file_data or None, file_url=part.file_url or None, filename=part.filename))
    if isinstance(part, ReasoningText):
        raise _wrong_part(where, part)
    return TextPart(text=part.text)


def _wrong_part(where: str, part: Part) -> ApiError:
    kind = part.__struct_config__.tag
    return ApiError(400, f"Field '{where}.type' is {kind!r}, which does not belong there.", param=f"{where}.type")


def _check_fields(item: InputItem, where: str) -> None:
    """As the parser would, if items of each type had a class of their own."""
    needed, allowed = _FIELDS[item.type or "message"]
    for name in _ALL_FIELDS:
        given = getattr(item, name) is not None
        if given and name not in needed and name not in allowed:
            path = f"{where}.{name}"
            raise ApiError(400, unsupported(path), param=path, code="unsupported_field")
        if not given and name in needed:
            path = f"{where}.{name}"
            raise ApiError(400, f"Field '{path}' is missing.", param=path, code="missing_field")


def media_urls(items: str | Sequence[InputItem]) -> Iterator[str]:
    for item in items if not isinstance(items, str) else ():
        for content in (item.content, item.output):
            for part in content if isinstance(content, list) else ():
                if isinstance(part, InputImage):
                    yield part.image_url or ""
                elif isinstance(part, InputFile):
                    yield part.file_data or part.file_url or ""
