"""Bodies of requests as types. What they do not name is refused by name, at any depth.

Three kinds of fields: those that are honoured; those that cannot change an answer (`Ignored`), accepted and left alone; those
of other servers' APIs that would change it and are not offered (`Unsupported`), of which null is accepted: instead.py says what
to use.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

Ignored: TypeAlias = Any
Unsupported: TypeAlias = None

NonNegative = Annotated[int, Meta(ge=0, le=2**40)]
Positive = Annotated[int, Meta(ge=1, le=2**40)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Choices = Annotated[list[str], Meta(min_length=1, max_length=4096)]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What all bodies have in common."""


# ---- Messages


Detail: TypeAlias = Literal["auto", "low", "high"]  # low: at most LOW_DETAIL_ROWS of chat_prompt.py


class Url(Body):
    url: str | None = None  # null: the part's uuid alone says which
    detail: Detail | None = None
    min_pixels: Positive | None = None
    max_pixels: Positive | None = None


class VideoUrl(Body):
    url: str | list[str] | None = None  # a list: of frames
    detail: Detail | None = None
    min_pixels: Positive | None = None
    max_pixels: Positive | None = None
    fps: float | None = None
    num_frames: Positive | None = None
    max_frames: Positive | None = None


class File(Body):
    file_data: str | None = None
    file_url: str | None = None
    filename: Annotated[str, Meta(max_length=256)] | None = None
    file_id: Unsupported = None
    min_pixels: Positive | None = None
    max_pixels: Positive | None = None


class TextPart(Body, tag_field="type", tag="text"):
    text: str


class ImagePart(Body, tag_field="type", tag="image_url"):
    image_url: Url | str | None = None
    uuid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class VideoPart(Body, tag_field="type", tag="video_url"):
    video_url: VideoUrl | str | list[str] | None = None
    uuid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class Embeddings(Body):
    data: str  # base64 of the numbers, row by row, little-endian
    dtype: Literal["float32", "float16", "bfloat16"]
    shape: Annotated[list[Positive], Meta(min_length=2, max_length=2)]  # rows, and numbers of each
    width: Positive  # of the image that they stand for, in pixels
    height: Positive


class EmbeddingsPart(Body, tag_field="type", tag="image_embeds"):
    image_embeds: Embeddings


class FilePart(Body, tag_field="type", tag="file"):
    file: File


Part: TypeAlias = TextPart | ImagePart | VideoPart | FilePart | EmbeddingsPart
Content: TypeAlias = str | list[Part]


class FunctionCall(Body):
    name: str
    arguments: str | dict[str, Any]


class ToolCall(Body):
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: Ignored = None


class SystemMessage(Body, tag_field="role", tag="system"):
    content: Content
    name: Ignored = None


class DeveloperMessage(Body, tag_field="role", tag="developer"):
    content: Content
    name: Ignored = None


class UserMessage(Body, tag_field="role", tag="user"):
    content: Content
    name: Ignored = None


class AssistantMessage(Body, tag_field="role", tag="assistant"):
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    name: Ignored = None
    refusal: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    annotations: Ignored = None


class ToolMessage(Body, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str | None = None
    name: Ignored = None


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


# ---- Tools and formats


class Function(Body):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    function: NamedFunction
    type: Literal["function"] = "function"


class TextFormat(Body, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Body, tag_field="type", tag="json_object"):
    pass


class JsonSchema(Body):
    schema: dict[str, Any]
    name: Ignored = None
    description: Ignored = None
    strict: Ignored = None  # a schema is always kept to


class JsonSchemaFormat(Body, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


class RegexFormat(Body, tag_field="type", tag="regex"):
    regex: str


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Ignored = None
    continuous_usage_stats: bool | None = None  # as vLLM: each event has the usage so far


class ProcessorOptions(Body):
    """mm_processor_kwargs."""

    min_pixels: Positive | None = None
    max_pixels: Positive | None = None
    fps: float | None = None
    num_frames: Positive | None = None
    max_frames: Positive | None = None


class VideoLoading(Body):
    fps: float | None = None
    num_frames: Positive | None = None
    max_frames: Positive | None = None


class ImageLoading(Body):
    pass


class LoadingOptions(Body):
    """media_io_kwargs."""

    video: VideoLoading | None = None
    image: ImageLoading | None = None


# ---- Requests


class StructuredOutputs(Body):
    """The form of an answer as vLLM's clients ask for it: exactly one of the first five."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None  # false allows it; JSON is compact else
    disable_fallback: Ignored = None  # there is one library, and no other to fall back to
    disable_additional_properties: Unsupported = None
    whitespace_pattern: Unsupported = None
    structural_tag: Unsupported = None


class Sampling(Body):
    """How an answer is drawn: what all bodies share that ask for one."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: NonNegative | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    return_timings: bool | None = None


class Formed(Sampling):
    """With the fields of vLLM and SGLang that give an answer a form."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    ebnf: str | None = None
    guided_decoding_backend: Unsupported = None
    guided_whitespace_pattern: Unsupported = None
    structural_tag: Unsupported = None


class _Generation(Formed):
    """What chat and plain completions share."""

    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=4096)] | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    echo: bool | None = None
    prompt_logprobs: Unsupported = None
    best_of: Unsupported = None
    use_beam_search: Literal[False] | None = None
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
    media_io_kwargs: LoadingOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    audio: Unsupported = None
    modalities: list[Literal["text"]] | None = None
    functions: Unsupported = None
    function_call: Unsupported = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None
    chat_template: Unsupported = None


class CompletionRequest(_Generation, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]  # one text, texts, one list of ids, or lists of ids
    logprobs: NonNegative | None = None
    suffix: Unsupported = None


class TokenizeRequest(Body):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Annotated[list[Tool], Meta(max_length=1024)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: ProcessorOptions | None = None
    media_io_kwargs: LoadingOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    tokens: list[TokenId]
    model: str | None = None
