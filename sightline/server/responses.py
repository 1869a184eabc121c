"""Bodies of responses as types, in OpenAI's shapes. A field that is left UNSET is left out."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["stop", "length", "tool_calls"]


class _Body(msgspec.Struct, kw_only=True):
    """What all bodies have in common."""


class PromptTokensDetails(_Body, kw_only=True):
    cached_tokens: int
    image_tokens: int
    video_tokens: int


class CompletionTokensDetails(_Body, kw_only=True):
    reasoning_tokens: int


class Usage(_Body, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    reasoning_tokens: int  # the same once more, where SGLang has it


class Metadata(_Body, kw_only=True):
    """What a request took, where it asks (return_timings) or the server always tells (--enable-response-timings)."""

    request_id: str
    timings_ms: dict[str, float]  # e2e, ttft and queue run from the arrival; the others are work
    images: int
    videos: int
    encoded_items: int  # images and videos that the tower ran on for this request; the others were known
    # As SGLang has them, in seconds: e2e, ttft and queue of timings_ms.
    e2e_latency: float
    ttft_latency: float
    queue_latency: float
    weight_version: str  # the revision of the checkpoint that was asked for


# ---- Chat


class TopLogprob(_Body, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(_Body, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Body, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(_Body, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCall(_Body, kw_only=True):
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(_Body, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    refusal: None = None


class ChatChoice(_Body, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    matched_stop: int | str | None
    token_ids: list[int] | UnsetType = UNSET  # where the request has return_token_ids


class ChatCompletion(_Body, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class ChatDelta(_Body, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(_Body, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    matched_stop: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(_Body, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


# ---- Plain completions


class CompletionLogprobs(_Body, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(_Body, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    matched_stop: int | str | UnsetType | None = UNSET  # left out while an answer goes on
    token_ids: list[int] | UnsetType = UNSET  # these two where the request has return_token_ids
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(_Body, kw_only=True):
    """Also the shape of its chunks, whose choices have only what is new."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    metadata: Metadata | UnsetType = UNSET


# ---- The rest


class Model(_Body, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "sightline"
    root: str
    max_model_len: int


class ModelList(_Body, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


class TokenizeResponse(_Body, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeResponse(_Body, kw_only=True):
    prompt: str


class ErrorDetails(_Body, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(_Body, kw_only=True):
    error: ErrorDetails


class Version(_Body, kw_only=True):
    version: str


class ModelInfo(_Body, kw_only=True):
    """/get_model_info, as SGLang's clients read it. Its paths are the served name: where a model lies is nobody's business."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True
    weight_version: str
    has_image_understanding: bool
    has_video_understanding: bool
    model_type: str


class EngineInfo(_Body, kw_only=True):
    status: Literal["starting", "ready", "hung", "restarting", "failed", "stopped"]
    restarts: int
    device: str | None  # None until the engine is ready
    dtype: str | None
    tilings: str | None  # hash of the tilings that are chosen (docs/performance.md); None also where none are


class ServerInfo(_Body, kw_only=True):
    """/server_info: what runs, and with which settings of the engine."""

    version: str
    model_path: str
    served_model_name: list[str]
    weight_version: str
    max_model_len: int
    engine: dict[str, bool | int | float | str | None]
    internal_states: list[EngineInfo]  # of each engine, of which there is one: sglang.bench_serving looks into the first


class Readiness(_Body, kw_only=True):
    ready: bool
    engine: Literal["starting", "ready", "hung", "restarting", "failed", "stopped"]
    restarts: int
    message: str | UnsetType = UNSET  # why requests are not answered
