"""What /v1/messages answers: a message of blocks, whole or as events. A field that is left UNSET is left out."""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from sightline.server.responses import Metadata

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""  # thoughts are not sealed here


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] | msgspec.Raw


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, kw_only=True):
    input_tokens: int  # without those that were cached
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens: int


class Message(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    timings: Metadata | UnsetType = UNSET  # not Anthropic's: where the request has return_timings, or the server always tells


class Delta(msgspec.Struct, kw_only=True):
    """What is new: of a block, with a type, or of the message."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: StopReason | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET


EventType: TypeAlias = Literal[
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"
]


class MessageEvent(msgspec.Struct, kw_only=True):
    """One event of a stream; its type says which of the other fields it has."""

    type: EventType
    message: Message | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: Block | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    usage: MessageUsage | UnsetType = UNSET
    timings: Metadata | UnsetType = UNSET


class TokenCount(msgspec.Struct, kw_only=True):
    input_tokens: int


class Model(msgspec.Struct, kw_only=True):
    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str  # as of RFC 3339
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int


class ModelList(msgspec.Struct, kw_only=True):
    """All that are served, on one page."""

    data: list[Model]
    has_more: Literal[False] = False
    first_id: str
    last_id: str


class ErrorDetails(msgspec.Struct, kw_only=True):
    type: str
    message: str
    param: str | None  # this and code are not Anthropic's
    code: str | None


class Error(msgspec.Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: ErrorDetails
