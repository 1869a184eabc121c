"""One named type per hop of a request; docs/architecture.md draws the way. No torch here.

HTTP body or Python call ─► messages ─► MediaRef ─► MediaItem ─► Request ─► (engine)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Message = Mapping[str, Any]  # an OpenAI-style chat message: role, content (text or a list of parts)


@dataclass(frozen=True)
class ImageHeader:
    """What an image's header says; width and height are as displayed, after EXIF orientation."""

    format: str  # Pillow's name: JPEG, PNG, WEBP, …; RGB for raw pixels handed over in memory
    width: int
    height: int
    orientation: int  # EXIF 1..8; 5..8 mean that stored width and height are swapped


@dataclass(frozen=True)
class VideoHeader:
    """What demuxing a video says, without decoding a frame; width and height are as displayed."""

    format: str
    width: int
    height: int
    frame_count: int  # packets of the video stream
    fps: float
    duration: float  # seconds, frame_count / fps


@dataclass(frozen=True)
class MediaRef:
    """Encoded bytes, their SHA-256 and their header. No pixel has been decoded."""

    kind: Literal["image", "video"]
    data: bytes = field(repr=False)
    digest: bytes  # SHA-256 of data (and of the size, for raw pixels), 32 bytes
    header: ImageHeader | VideoHeader
    source: str  # for messages to the user: a path, a shortened URL, "<bytes>"


@dataclass(frozen=True)
class MediaItem:
    """One image or video of a request, with everything that follows from its header."""

    ref: MediaRef
    key: bytes  # 32 bytes: digest, processor fingerprint and sampling; equal keys mean equal embedding rows
    grid: tuple[int, int, int]  # (frames / temporal_patch, rows, columns) in patches
    resized: tuple[int, int]  # (height, width) in pixels
    frame_indices: tuple[int, ...]  # frames of a video to decode, ascending, repeats allowed; empty for an image
    frame_times: tuple[float, ...]  # seconds of those frames; empty for an image
    rows: int  # embedding rows: grid volume / merge²

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class MediaSpan:
    """Where rows of an item stand in the prompt: token_ids[start : start + count] take rows[row : row + count]."""

    item: int  # index into Request.items
    start: int
    count: int
    row: int


@dataclass(frozen=True)
class StructuredOutput:
    """The form that an answer must have. `text` is a JSON schema, a regular expression, a Lark grammar, or empty."""

    kind: Literal["json_schema", "json_object", "regex", "lark"]
    text: str = ""
    after_reasoning: bool = False  # it is the form of what follows </think>; before, anything goes


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. Fields left None take the model's generation_config, else the value named here."""

    max_tokens: int | None = None  # 256
    min_tokens: int = 0  # no end token and no stop before this many
    temperature: float | None = None  # 1.0; 0 means greedy
    top_p: float | None = None  # 1.0
    top_k: int | None = None  # 0, all
    min_p: float | None = None  # 0.0
    repetition_penalty: float | None = None  # 1.0; divides the score of every token seen, in prompt or answer
    presence_penalty: float = 0.0  # taken off the score of every token in the answer
    frequency_penalty: float = 0.0  # taken off once per occurrence in the answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to the scores of these tokens
    seed: int | None = None
    n: int = 1  # answers to the same prompt
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False  # log-probability of each chosen token, from the model's own logits
    top_logprobs: int = 0  # and of this many of the likeliest
    structured: StructuredOutput | None = None  # the form that the answer must have


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt that is complete: ids, where media rows go, positions. Built from headers alone."""

    token_ids: NDArray[np.int32]  # [tokens]
    positions: NDArray[np.int32]  # [3, tokens]: time, height, width
    position_delta: int  # position of token n >= tokens, on all axes, is n + position_delta
    items: tuple[MediaItem, ...]
    spans: tuple[MediaSpan, ...]  # ascending by start, not overlapping

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model found a token, before penalties and temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the likeliest, best first


@dataclass(frozen=True)
class Completion:
    """An answer."""

    text: str
    token_ids: tuple[int, ...]  # an end token that stopped the answer included
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    timings: Mapping[str, float]  # seconds per stage, in order
    cached_tokens: int = 0  # prompt tokens whose keys and values were there already
    media_items: int = 0  # images and videos of the prompt
    encoded_items: int = 0  # of these, how many the tower ran on for this answer; the others were known
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if asked for
    index: int = 0  # which of the n answers
