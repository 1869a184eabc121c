"""One named type per hop of a request; docs/architecture.md draws the way. No torch here.

HTTP body or Python call ─► messages ─► MediaRef ─► MediaItem ─► Request ─► (engine)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sightline.sampling_rules import (
    NUMBERS,
    WHOLE,
    check_bias,
    check_min_tokens,
    check_token,
    check_top_logprobs,
    number,
    whole,
)

PDF = "PDF"  # the format of an image that is a page; its bytes are the whole file
FRAMES = "frames"  # the format of a video that came as a list of images
CallForm = Literal["json", "xml", "glm"]  # how a model writes calls of tools: stream/answer_parts.py, xml_call.py, glm_call.py
Message = Mapping[str, Any]  # an OpenAI-style chat message: role, content (text or a list of parts)


class ImageHeader(msgspec.Struct, frozen=True, tag="image"):  # tagged: a message tells a video's header from an image's
    """What an image's header says; width and height are as displayed, after EXIF orientation."""

    format: str  # Pillow's name: JPEG, PNG, WEBP, …; RGB for raw pixels handed over in memory
    width: int
    height: int
    orientation: int  # EXIF 1..8; 5..8 mean that stored width and height are swapped
    channels: int = 3  # bytes of a stored pixel when it is unpacked: 4 for RGBA, twice as many with 16 bits a channel
    scans: int = 1  # of a JPEG: how often decoding goes over the picture
    page: int = 0  # of a PDF, from 0


EMBEDDINGS = "EMBEDDINGS"  # the format of an image that came as embeddings


class EmbeddingsHeader(ImageHeader, frozen=True, tag="embeddings", kw_only=True):
    """Of an image that came as its embeddings, in the model's order; width and height are the image's."""

    dtype: str  # float32, float16 or bfloat16, little-endian
    shape: tuple[int, int]  # rows, and numbers of each


class VideoHeader(msgspec.Struct, frozen=True, tag="video"):
    """What demuxing a video says, without decoding a frame; width and height are as displayed."""

    format: str
    width: int
    height: int
    frame_count: int  # packets of the video stream
    fps: float
    duration: float  # seconds, frame_count / fps
    still_megapixels: float = 0.0  # of a list of images: work to decode them all, as media/cost.py counts it


@dataclass(frozen=True)
class MediaRef:
    """Encoded bytes, their SHA-256 and their header. No pixel has been decoded."""

    kind: Literal["image", "video"]
    data: bytes = field(repr=False)
    digest: bytes  # SHA-256 of data (and of the size, for raw pixels; of page and scale, for a page of a PDF), 32 bytes
    header: ImageHeader | EmbeddingsHeader | VideoHeader
    source: str  # for messages to the user: a path, a shortened URL, "<bytes>"
    file_digest: bytes = b""  # SHA-256 of data where several items have the same: pages of a PDF

    @property
    def is_embeddings(self) -> bool:
        """There is nothing to decode and nothing for the tower."""
        return isinstance(self.header, EmbeddingsHeader)


Size = tuple[int, int]  # (height, width) in pixels
Resample = Literal["bicubic", "bilinear"]  # as Pillow does it, which averages when it shrinks
# (tiles of all temporal groups, rows, columns of one) in patches; what is left of a tile behind whole patches nobody sees
Grid = tuple[int, int, int]


MOST_CANVAS_PIXELS = 1 << 26  # of a canvas that other views are made of: 8192 x 8192


@dataclass(frozen=True)
class View:
    """A rectangle that the tower sees of a picture: the picture resized, laid on a canvas of one colour, cut into tiles.

    ```
    canvas ┌──────┬──────┐   tile: one of these four
           │  ┌───┼───┐  │   resized: the picture inside, whose top left corner is at `offset`
           ├──┼───┼───┼──┤
           │  └───┼───┘  │   where nothing is cut or padded, canvas and tile are as large as the resized picture
           └──────┴──────┘
    ```

    Where the picture is not all on the canvas, the view is of a part of it: `offset` is negative, or it ends beyond the canvas.
    With `of`, all this is done to each tile of that other view, in place of the picture.
    """

    resized: Size
    canvas: Size
    tile: Size
    offset: Size = (0, 0)  # (top, left) on the canvas
    resample: Resample = "bicubic"
    colour: tuple[int, int, int] | None = None  # of the canvas; None: the mean colour
    of: "View | None" = None
    reduced: Size | None = None  # the canvas as torch interpolates it to this size (ops/thumbnail.py): it is then one tile

    @property
    def shown(self) -> Size:
        """What is cut into tiles."""
        return self.reduced or self.canvas

    @classmethod
    def whole(cls, size: Size, resample: Resample = "bicubic", of: "View | None" = None) -> "View":
        return cls(resized=size, canvas=size, tile=size, resample=resample, of=of)

    @property
    def tiles(self) -> int:
        """Of one picture."""
        (height, width), (high, wide) = self.shown, self.tile
        return (height // high) * (width // wide) * (1 if self.of is None else self.of.tiles)


@dataclass(frozen=True)
class MediaLayout:
    """What a family makes of an image or video, known from its header."""

    views: tuple[View, ...]  # of each picture; a video has the same for every frame
    grids: tuple[Grid, ...]  # one per view
    rows: int  # embedding rows
    fingerprint: str  # all that decides what the rows of given bytes are; a change of how they are made belongs here
    frame_indices: tuple[int, ...] = ()  # frames of a video to decode, ascending, repeats allowed; empty for an image
    frame_times: tuple[float, ...] = ()  # seconds of those frames; empty for an image


@dataclass(frozen=True)
class MediaItem:
    """One image or video of a request, with everything that follows from its header."""

    ref: MediaRef
    key: bytes  # 32 bytes: digest and fingerprint of the layout; equal keys and equal decoders mean equal embeddings
    views: tuple[View, ...]  # these five as in MediaLayout
    grids: tuple[Grid, ...]
    frame_indices: tuple[int, ...]
    frame_times: tuple[float, ...]
    rows: int

    @property
    def patches(self) -> int:
        return sum(math.prod(grid) for grid in self.grids)

    @property
    def grid(self) -> Grid:
        """Of an item with one view."""
        (grid,) = self.grids
        return grid

    @property
    def resized(self) -> Size:
        """Of an item with one view."""
        (view,) = self.views
        return view.resized

    def cut_to(self, groups: int) -> "MediaItem":
        """Of a video, so many of its temporal patches."""
        return replace(self, grids=tuple((groups, height, width) for _, height, width in self.grids))

    def without_bytes(self) -> "MediaItem":
        return replace(self, ref=replace(self.ref, data=b""))


@dataclass(frozen=True)
class PromptForm:
    """How an item is written in a prompt: text with one pad token per run, and the rows that each run takes, in order."""

    text: str
    runs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RunPositions:
    """Positions of a run of rows that starts where the next token of text would be at position p."""

    offsets: NDArray[np.int32]  # [3, rows]: time, height, width, all from p on
    advance: int  # the token after the run is at p + advance


@dataclass(frozen=True)
class MediaSpan:
    """Where rows of an item stand in the prompt: token_ids[start : start + count] take rows[row : row + count]."""

    item: int  # index into Request.items
    start: int
    count: int
    row: int


@dataclass(frozen=True)
class StructuredOutput:
    """The form that an answer must have. `text` is a JSON schema, a regular expression, a grammar, or empty."""

    kind: Literal["json_schema", "json_object", "regex", "lark", "gbnf"]
    text: str = ""
    white_space: bool = False  # JSON may have some between its parts; compact without
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
    skip_special_tokens: bool = True  # tokens such as <|vision_start|> are left out of the text

    def __post_init__(self) -> None:
        """Lists and a single stop text become tuples; a ParameterError names a value that no model takes."""
        stop: Any = self.stop
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for rules, check in ((WHOLE, whole), (NUMBERS, number)):
            for name in rules:
                if getattr(self, name) is not None:
                    check(name, getattr(self, name))
        check_min_tokens(self.min_tokens, self.max_tokens)
        check_top_logprobs(self.top_logprobs, self.logprobs)
        check_bias(self.logit_bias)
        for token in self.stop_token_ids:
            check_token("stop_token_ids", token, None)


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt that is complete: ids, where media rows go, positions. Built from headers alone."""

    token_ids: NDArray[np.int32]  # [tokens]
    positions: NDArray[np.int32]  # [3, tokens]: time, height, width
    position_delta: int  # position of token n >= tokens, on all axes, is n + position_delta
    items: tuple[MediaItem, ...]
    spans: tuple[MediaSpan, ...]  # ascending by start, not overlapping
    adapter: int = -1  # which of the model's adapters all of its tokens use; -1: none

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])

    def moved(self, by: int) -> "Request":
        """With all positions so much later, those of its answer too."""
        return replace(self, positions=self.positions + np.int32(by), position_delta=self.position_delta + by)


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the model found a token, before penalties and temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob) of the likeliest, best first


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer asks for."""

    id: str
    name: str
    arguments: str  # JSON


@dataclass(frozen=True)
class Completion:
    """An answer, or why one of a list of conversations has none."""

    text: str
    token_ids: tuple[int, ...]  # an end token that stopped the answer included
    finish_reason: Literal["stop", "length", "error"]
    prompt_tokens: int
    timings: Mapping[str, float]  # seconds per stage, in order
    cached_tokens: int = 0  # prompt tokens whose keys and values were there already
    media_items: int = 0  # images and videos of the prompt
    encoded_items: int = 0  # of these, how many the tower ran on for this answer; the others were known
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, if asked for
    index: int = 0  # which of the n answers
    matched_stop: int | str | None = None  # the end token or stop string; None where neither ended the answer
    # What the library takes the text apart into (stream/answer_parts.py); the engine does not.
    content: str = ""  # the text without reasoning and calls
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    error: Exception | None = None  # finish_reason is "error", and there is no text
