"""What the API process and an engine process say to each other: msgpack headers, then raw buffers as frames. No pickle.

```
to the engine     Start │ Add, token ids, positions, bytes of items │ Abort │ Flush │ Ping │ Stop
from the engine   Progress │ Ready │ Refused │ News │ Stats │ Done
```

Arrays and media bytes travel as frames of their own, so that nobody copies them into a message; bytes that the engine still has
(engine/kept_files.py) do not travel. No torch here.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from sightline.config import Config
from sightline.engine.kept_files import FileBooks, KeptFiles
from sightline.run.sampling_params import ResolvedSampling
from sightline.types import ImageHeader, MediaItem, MediaRef, MediaSpan, Request, TokenLogprob, VideoHeader

Frames: TypeAlias = list[Any]  # bytes or anything with a buffer; the first is the header


# ---- To the engine


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message: what to load."""

    config: Config


class ItemHead(msgspec.Struct, frozen=True):
    """A MediaItem without its bytes."""

    sent: bool  # its bytes are a frame; else the engine has them
    kind: Literal["image", "video"]
    digest: bytes
    image: ImageHeader | None
    video: VideoHeader | None
    source: str
    key: bytes
    grid: tuple[int, int, int]
    resized: tuple[int, int]
    frame_indices: tuple[int, ...]
    frame_times: tuple[float, ...]
    rows: int


class Add(msgspec.Struct, frozen=True, tag="add"):
    """A request. Frames: token ids (int32), positions (int32, 3 × tokens), then the bytes of items that are sent."""

    number: int  # the API process's name for it
    sampling: ResolvedSampling
    end_tokens: tuple[int, ...]
    stop: tuple[str, ...]
    priority: int
    cache_salt: str
    seconds: dict[str, float]  # what the stages so far took
    position_delta: int
    items: tuple[ItemHead, ...]
    spans: tuple[MediaSpan, ...]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    number: int


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Forget all that is cached; answered by Done."""

    number: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answered by Stats, then Done."""

    number: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End after the step in progress."""


ToEngine: TypeAlias = Start | Add | Abort | Flush | Ping | Stop


# ---- From the engine


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    done: int
    total: int


class Memory(msgspec.Struct, frozen=True):
    """Where the memory goes, in bytes."""

    weights: int
    kv_cache: int
    kv_tokens: int
    embeddings: int
    embedding_rows: int
    host_embeddings: int
    # On a GPU what the plan sets aside (engine/memory.py); 0 on a CPU.
    language: int = 0  # a step of the language model at its limits, sampling included
    vision: int = 0  # the tower and the pixels on their way to it
    graphs: int = 0
    margin: int = 0
    others: int = 0  # contexts, libraries, other processes
    total: int = 0  # of the GPU

    @property
    def unplanned(self) -> int:
        """What gpu_memory_utilization leaves alone, on a GPU."""
        planned = (self.weights, self.kv_cache, self.embeddings, self.language, self.vision)
        return max(0, self.total - sum(planned) - self.graphs - self.margin - self.others)


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    device: str
    dtype: str
    max_model_len: int
    memory: Memory
    load_stages: dict[str, float]  # seconds of each part of the start, since the process began
    quantization: str = ""  # what is in 8-bit floats, in words
    jpeg_decoder: str = ""  # the library that decodes JPEGs on the GPU; empty: Pillow does, on the CPU


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The model cannot be loaded, by the user's fault: a second attempt would end the same."""

    message: str


class Failure(msgspec.Struct, frozen=True):
    """Why a request ends without an answer."""

    kind: Literal["invalid", "missing_media", "internal"]
    message: str


class Finish(msgspec.Struct, frozen=True):
    """What is known at the end of an answer, besides its text and tokens, which were told before."""

    reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    media_items: int
    encoded_items: int
    timings: dict[str, float]  # seconds per stage


class UpdateHead(msgspec.Struct, frozen=True, array_like=True):
    """News of one answer."""

    number: int
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    failure: Failure | None = None

    @property
    def last(self) -> bool:
        return self.finish is not None or self.failure is not None


class News(msgspec.Struct, frozen=True, tag="news"):
    """All that one step brought."""

    updates: tuple[UpdateHead, ...]


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Gauges, and counters since the engine started."""

    running: int
    waiting: int
    pages: int
    pages_used: int  # by running sequences
    pages_cached: int  # by prefixes that nobody uses now
    prefix_pages: int  # by all prefixes that can be found
    prefix_evictions: int
    prefix_tokens_asked: int
    prefix_tokens_found: int
    embedding_hits: int
    embedding_misses: int
    embedding_evictions: int
    embedding_bytes: int
    embedding_bytes_used: int
    host_hits: int
    host_bytes_used: int
    items_decoded: int
    items_encoded: int
    videos_decoded: int  # the videos among the items
    videos_encoded: int
    items_restored: int
    patches_encoded: int
    preemptions: int
    steps: int
    tokens: int
    graphs: int  # recorded CUDA graphs
    step_seconds: float  # that the device worked on steps
    tower_seconds: float  # that it worked on images in steps, not beside them
    gpu_bytes: int  # that torch has taken from the GPU, used or kept for later


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A command that asks for an answer has been carried out."""

    number: int


FromEngine: TypeAlias = Progress | Ready | Refused | News | Stats | Done

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    return _encoder.encode(message)


def decode_command(frame: Any) -> ToEngine:
    return _to_engine.decode(frame)


def decode_report(frame: Any) -> FromEngine:
    return _from_engine.decode(frame)


def add_frames(
    books: FileBooks,
    number: int,
    request: Request,
    sampling: ResolvedSampling,
    end_tokens: Sequence[int],
    stop: tuple[str, ...] = (),
    priority: int = 0,
    cache_salt: str = "",
    seconds: dict[str, float] | None = None,
) -> Frames:
    """`books` are told of the request's files, so these frames must be sent: what they leave out, the engine has."""
    sent = [not books.use(item.ref.digest, len(item.ref.data))[0] if item.ref.data else True for item in request.items]
    head = Add(
        number=number,
        sampling=sampling,
        end_tokens=tuple(end_tokens),
        stop=stop,
        priority=priority,
        cache_salt=cache_salt,
        seconds=seconds or {},
        position_delta=request.position_delta,
        items=tuple(_item_head(item, travels) for item, travels in zip(request.items, sent, strict=True)),
        spans=request.spans,
    )
    try:
        header = encode(head)
    except Exception:
        books.clear()  # the engine will not hear of these files; it may well have more than the books say
        raise
    arrays = [np.ascontiguousarray(request.token_ids), np.ascontiguousarray(request.positions)]
    return [header, *arrays, *(item.ref.data for item, travels in zip(request.items, sent, strict=True) if travels)]


def request_of(head: Add, buffers: Sequence[Any], files: KeptFiles) -> Request:
    """The request that `add_frames` was given, from its header and the frames behind it. `files` are told of it, too."""
    ids, positions, *media = buffers
    token_ids = np.frombuffer(ids, np.int32).copy()  # writable, and free of the message
    sent = sum(item.sent for item in head.items)
    if len(media) != sent:
        raise ValueError(f"{len(media)} frames of media for {sent} items")
    frames = iter(media)
    return Request(
        token_ids=token_ids,
        positions=np.frombuffer(positions, np.int32).reshape(3, -1).copy(),
        position_delta=head.position_delta,
        items=tuple(
            _item(item, files.take(item.digest, bytes(next(frames))) if item.sent else files.recall(item.digest))
            for item in head.items
        ),
        spans=head.spans,
    )


def _item_head(item: MediaItem, sent: bool) -> ItemHead:
    header = item.ref.header
    return ItemHead(
        sent=sent,
        kind=item.ref.kind,
        digest=item.ref.digest,
        image=header if isinstance(header, ImageHeader) else None,
        video=header if isinstance(header, VideoHeader) else None,
        source=item.ref.source,
        key=item.key,
        grid=item.grid,
        resized=item.resized,
        frame_indices=item.frame_indices,
        frame_times=item.frame_times,
        rows=item.rows,
    )


def _item(head: ItemHead, data: bytes) -> MediaItem:
    header = head.image or head.video
    assert header is not None
    return MediaItem(
        ref=MediaRef(head.kind, data, head.digest, header, head.source),
        key=head.key,
        grid=head.grid,
        resized=head.resized,
        frame_indices=head.frame_indices,
        frame_times=head.frame_times,
        rows=head.rows,
    )
