"""Bodies of requests as types. What they do not name is refused by name, at any depth.

Three kinds of fields: those that are honoured; those that cannot change an answer (`Ignored`), accepted and left alone; those
of OpenAI's API that would change it and are not offered (`Refused`), of which null is accepted.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

Ignored: TypeAlias = Any
Refused: TypeAlias = None

NonNegative = Annotated[int, Meta(ge=0, le=2**40)]
Positive = Annotated[int, Meta(ge=1, le=2**40)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What all bodies have in common."""


# ---- Messages


class Url(_Body):
    url: str | None = None  # null: the part's uuid alone says which
    detail: Ignored = None
    min_pixels: Positive | None = None
    max_pixels: Positive | None = None


class TextPart(_Body, tag_field="type", tag="text"):
    text: str


class ImagePart(_Body, tag_field="type", tag="image_url"):
    image_url: Url | str | None = None
    uuid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class VideoPart(_Body, tag_field="type", tag="video_url"):
    video_url: Url | str | None = None
    uuid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


Part: TypeAlias = TextPart | ImagePart | VideoPart
Content: TypeAlias = str | list[Part]


class FunctionCall(_Body):
    name: str
    arguments: str | dict[str, Any]


class ToolCall(_Body):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: Ignored = None


class SystemMessage(_Body, tag_field="role", tag="system"):
    content: Content
    name: Ignored = None


class DeveloperMessage(_Body, tag_field="role", tag="developer"):
    content: Content
    name: Ignored = None


class UserMessage(_Body, tag_field="role", tag="user"):
    content: Content
    name: Ignored = None


class AssistantMessage(_Body, tag_field="role", tag="assistant"):
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    name: Ignored = None
    refusal: Refused = None
    audio: Refused = None
    function_call: Refused = None
    annotations: Ignored = None


class ToolMessage(_Body, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str | None = None
    name: Ignored = None


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


# ---- Tools and formats


class Function(_Body):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Body):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(_Body):
    name: str


class NamedTool(_Body):
    function: NamedFunction
    type: Literal["function"] = "function"


class TextFormat(_Body, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(_Body, tag_field="type", tag="json_object"):
    pass


class JsonSchema(_Body):
    schema: dict[str, Any]
    name: Ignored = None
    description: Ignored = None
    strict: Ignored = None  # a schema is always kept to


class JsonSchemaFormat(_Body, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


class RegexFormat(_Body, tag_field="type", tag="regex"):
    regex: str


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: Ignored = None
    continuous_usage_stats: Literal[False] = False


class ProcessorOptions(_Body):
    """mm_processor_kwargs."""

    min_pixels: Positive | None = None
    max_pixels: Positive | None = None


# ---- Requests


class _Generation(_Body):
    """How to answer: what chat and plain completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    min_tokens: NonNegative | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=4096)] | None = None
    seed: int | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    return_timings: bool | None = None
    skip_special_tokens: Literal[True] | None = None
    request_id: Ignored = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None


class ChatRequest(_Generation, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: NonNegative | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Refused = None
    audio: Refused = None
    modalities: list[Literal["text"]] | None = None
    functions: Refused = None
    function_call: Refused = None
    prediction: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None


class CompletionRequest(_Generation, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]  # one text, texts, one list of ids, or lists of ids
    logprobs: NonNegative | None = None
    echo: Literal[False] | None = None
    best_of: Refused = None
    suffix: Refused = None


class TokenizeRequest(_Body):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Annotated[list[Tool], Meta(max_length=1024)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(_Body):
    tokens: list[TokenId]
    model: str | None = None
