"""The body of a request to /v1/responses. Fields that can change nothing are Ignored, as in protocol.py."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from sightline.server.protocol import (
    Body,
    Effort,
    Ignored,
    JsonObjectFormat,
    LoadingOptions,
    NonNegative,
    Positive,
    ProcessorOptions,
    Sampling,
    TextFormat,
    Unsupported,
    Verbosity,
)


class InputText(Body, tag_field="type", tag="input_text"):
    text: str
    prompt_cache_breakpoint: Ignored = None


class OutputText(Body, tag_field="type", tag="output_text"):
    """Of an answer that is sent back."""

    text: str
    annotations: Ignored = None
    logprobs: Ignored = None
    parsed: Ignored = None  # the openai client adds it to answers that it has parsed


class InputImage(Body, tag_field="type", tag="input_image"):
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: Unsupported = None
    prompt_cache_breakpoint: Ignored = None


class InputFile(Body, tag_field="type", tag="input_file"):
    file_data: str | None = None
    file_url: str | None = None
    filename: Annotated[str, Meta(max_length=256)] | None = None
    detail: Literal["auto", "high"] | None = None
    file_id: Unsupported = None
    prompt_cache_breakpoint: Ignored = None


class ReasoningText(Body, tag_field="type", tag="reasoning_text"):
    text: str


Part: TypeAlias = InputText | OutputText | InputImage | InputFile | ReasoningText


class SummaryText(Body, tag_field="type", tag="summary_text"):
    text: str


class InputItem(Body):
    """A message, a call, what a call gave, or thoughts. A message may leave its type out, so that the type cannot choose among
    classes; translation.py checks which fields belong to which."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[SummaryText] | None = None
    encrypted_content: Unsupported = None
    parsed_arguments: Ignored = None
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None


class FunctionTool(Body, tag_field="type", tag="function"):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: Ignored = None


class ChosenFunction(Body, tag_field="type", tag="function"):
    name: str


class SchemaFormat(Body, tag_field="type", tag="json_schema"):
    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None  # a schema is always kept to


class TextOptions(Body):
    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(Body):
    effort: Effort | None = None
    summary: Literal["auto"] | None = None  # auto: as the server does, which tells the thoughts themselves
    generate_summary: Literal["auto"] | None = None


class StreamOptions(Body):
    include_obfuscation: Literal[False] | None = None


Include: TypeAlias = Literal["message.output_text.logprobs", "reasoning.encrypted_content", "message.input_image.image_url"]


class ResponsesRequest(Sampling, kw_only=True):
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    top_logprobs: NonNegative | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Include] | None = None
    metadata: dict[str, str] | None = None  # comes back with the answer
    truncation: Literal["disabled"] | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    media_io_kwargs: LoadingOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Unsupported = None
    conversation: Unsupported = None
    prompt: Unsupported = None
    context_management: Unsupported = None
    max_tool_calls: Ignored = None  # of tools that a server runs, of which there are none
    user: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
