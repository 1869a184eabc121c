"""Bodies of requests to /v1/messages and its count_tokens. Fields that can change nothing are Ignored, as in protocol.py.

`cache_control` is among these: prefixes are cached by themselves.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from sightline.server.protocol import Body, Effort, Ignored, LoadingOptions, Positive, ProcessorOptions, Sampling, Unsupported


class TextBlock(Body, tag_field="type", tag="text"):
    text: str
    cache_control: Ignored = None
    citations: Unsupported = None


class Base64Source(Body, tag_field="type", tag="base64"):
    media_type: Annotated[str, Meta(max_length=100)]
    data: str


class UrlSource(Body, tag_field="type", tag="url"):
    url: Annotated[str, Meta(min_length=1)]


class PdfSource(Body, tag_field="type", tag="base64"):
    media_type: Literal["application/pdf"]
    data: str


class TextSource(Body, tag_field="type", tag="text"):
    media_type: Literal["text/plain"]
    data: str


class ImageBlock(Body, tag_field="type", tag="image"):
    source: Base64Source | UrlSource
    cache_control: Ignored = None


class Citations(Body):
    enabled: Literal[False] | None = None


class DocumentBlock(Body, tag_field="type", tag="document"):
    source: PdfSource | UrlSource | TextSource
    title: Annotated[str, Meta(max_length=500)] | None = None
    context: str | None = None
    citations: Citations | None = None
    cache_control: Ignored = None


class ToolUseBlock(Body, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Ignored = None
    caller: Ignored = None


class ToolResultBlock(Body, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None
    cache_control: Ignored = None


class ThinkingBlock(Body, tag_field="type", tag="thinking"):
    thinking: str
    signature: Ignored = None


UserContent: TypeAlias = str | list[TextBlock | ImageBlock | DocumentBlock | ToolResultBlock]
AssistantContent: TypeAlias = str | list[TextBlock | ThinkingBlock | ToolUseBlock]


class UserMessage(Body, tag_field="role", tag="user"):
    content: UserContent


class AssistantMessage(Body, tag_field="role", tag="assistant"):
    content: AssistantContent


class SystemMessage(Body, tag_field="role", tag="system"):
    content: str | list[TextBlock]


Message: TypeAlias = UserMessage | AssistantMessage | SystemMessage


class Tool(Body):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: Ignored = None  # arguments are kept to where a call is forced
    cache_control: Ignored = None
    eager_input_streaming: Ignored = None
    input_examples: Unsupported = None


class AutoChoice(Body, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Body, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Body, tag_field="type", tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Body, tag_field="type", tag="none"):
    pass


class ThinkingEnabled(Body, tag_field="type", tag="enabled"):
    budget_tokens: Positive | None = None  # a target; max_tokens is the limit
    display: Ignored = None


class ThinkingAdaptive(Body, tag_field="type", tag="adaptive"):
    display: Ignored = None


class ThinkingDisabled(Body, tag_field="type", tag="disabled"):
    pass


class SchemaFormat(Body, tag_field="type", tag="json_schema"):
    schema: dict[str, Any]


class OutputConfig(Body):
    effort: Effort | None = None
    format: SchemaFormat | None = None


class _Prompted(Sampling, kw_only=True):
    """What both endpoints take. To count tokens, what else a request has may stay in it."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[Tool], Meta(max_length=1024)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolChoice | NoChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    media_io_kwargs: LoadingOptions | None = None
    stop_sequences: list[str] | None = None
    cache_control: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    speed: Ignored = None
    user_profile_id: Ignored = None
    workspace_id: Ignored = None
    container: Unsupported = None
    context_management: Unsupported = None
    mcp_servers: Unsupported = None
    output_format: Unsupported = None


class MessagesRequest(_Prompted, kw_only=True):
    max_tokens: Positive


class CountTokensRequest(_Prompted, kw_only=True):
    max_tokens: Positive | None = None
