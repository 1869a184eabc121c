"""What the API process and an engine process say to each other: msgpack headers, then raw buffers as frames. No pickle.

```
to the engine     Start │ Add with a Submission, its arrays and the bytes of its media as frames │ Abort │ Flush │ Ping │ Stop
from the engine   LoadProgress │ Ready │ EngineRefused │ EngineBroken │ News │ Stats │ Done
                  Heartbeat, on a socket of its own
```

Arrays and media bytes travel as frames of their own (wire.py), so that nobody copies them into a message; bytes that the engine
still has (engine/file_cache.py) do not travel. No torch here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sightline.config import Config
from sightline.engine.file_cache import FileCache, FileCacheIndex
from sightline.engine.remote.wire import Identity, RowsHead
from sightline.submission import Submission
from sightline.types import Completion, MediaItem, TokenLogprob
from sightline.wire import FrameDecoder, to_frames

Frames: TypeAlias = list[Any]  # bytes or anything with a buffer; the first is the header


# ---- To the engine


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message: what to load."""

    config: Config


class Add(msgspec.Struct, frozen=True, tag="add"):
    """A request. The submission is as the engine gets it, but for the bytes of media, which are arrays of their own."""

    number: int  # the API process's name for it
    submission: Submission
    # Bytes of each item, none of one that is named by its digest; None: kept, or a page before it has the same
    media: tuple[NDArray[np.uint8] | None, ...]


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


class EncodeFile(msgspec.Struct, frozen=True, tag="encode"):
    """To an engine that is an encoder: answered by EncodedRows, unless it is aborted."""

    number: int
    item: MediaItem  # without bytes
    data: NDArray[np.uint8]

    def with_data(self) -> MediaItem:
        return replace(self.item, ref=replace(self.item.ref, data=self.data.tobytes()))


ToEngine: TypeAlias = Start | Add | Abort | EncodeFile | Flush | Ping | Stop


# ---- From the engine


class LoadProgress(msgspec.Struct, frozen=True, tag="progress"):
    done: int
    total: int


class MemoryReport(msgspec.Struct, frozen=True):
    """Where the memory goes, in bytes."""

    weights: int
    kv_cache: int
    kv_tokens: int
    embeddings: int
    embedding_rows: int
    host_embeddings: int
    states: int = 0  # of running sequences and of snapshots, in models with layers that keep one
    state_snapshots: int = 0  # that fit
    # On a GPU what the plan sets aside (worker/memory.py); 0 on a CPU.
    language: int = 0  # a step of the language model at its limits, sampling and workspaces included
    vision: int = 0  # the tower and the pixels on their way to it
    graphs: int = 0
    margin: int = 0
    others: int = 0  # contexts, libraries, other processes
    total: int = 0  # of the GPU

    @property
    def unplanned(self) -> int:
        """What gpu_memory_utilization leaves alone, on a GPU."""
        planned = (self.weights, self.kv_cache, self.embeddings, self.states, self.language, self.vision)
        return max(0, self.total - sum(planned) - self.graphs - self.margin - self.others)


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    device: str
    dtype: str
    max_model_len: int
    memory: MemoryReport
    load_stages: dict[str, float]  # seconds of each part of the start, since the process began
    quantization: str = ""  # what is in 8-bit floats, in words
    gpu_decoder: str = ""  # the library that decodes images on the GPU; empty: Pillow does, on the CPU
    gpu_kinds: tuple[str, ...] = ()  # of files that it decodes
    tilings: str = ""  # hash of the choices for small-M GEMMs; empty: nothing is chosen
    identity: Identity | None = None  # of an encoder
    page_size: int = 0  # tokens of a page of keys and values; 0: there are none


class EngineRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The model cannot be loaded, by the user's fault: a second attempt would end the same."""

    message: str


class EngineBroken(msgspec.Struct, frozen=True, tag="broken"):
    """The last words of an engine whose worker is gone, or of which one of several ranks is; a new one may do better."""

    message: str


class EngineFailure(msgspec.Struct, frozen=True):
    """Why a request ends without an answer."""

    kind: Literal["invalid", "missing_media", "out_of_memory", "encoder_away", "internal"]
    message: str


class Finish(msgspec.Struct, frozen=True):
    """The fields of a Completion but its text and tokens, which were told before."""

    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    timings: dict[str, float]  # seconds per stage
    cached_tokens: int = 0
    media_items: int = 0
    encoded_items: int = 0
    matched_stop: int | str | None = None

    @classmethod
    def of(cls, completion: Completion) -> "Finish":
        return msgspec.convert(completion, cls, from_attributes=True)


class UpdateHead(msgspec.Struct, frozen=True, array_like=True):
    """News of one answer."""

    number: int
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    failure: EngineFailure | None = None

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
    state_evictions: int  # snapshots that made room for others
    states_taken: int  # snapshots
    state_tokens_lost: int  # whose pages were cached, and which were computed again for want of a snapshot
    itl_target_exceeded: int  # steps that were allowed to take longer than the target, because more waited
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
    frames_shared: int
    items_restored: int
    patches_encoded: int
    preemptions: int
    steps: int
    tokens: int
    graphs: int  # captured CUDA graphs
    step_seconds: float  # that the device worked on steps
    tower_seconds: float  # that it worked on images in steps, not beside them
    gpu_bytes: int  # that torch has taken from the GPU, used or kept for later
    encoder_up: int  # whether the server that encodes elsewhere (encoder_url) answers
    encoder_encoded: int  # items that it has encoded
    encoder_away: int  # that it was to encode, and did not for being away
    encoder_refused: int  # of which it said that they cannot be encoded
    encoder_bytes: int  # of embeddings that came from it


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A command that asks for an answer has been carried out."""

    number: int


class EncodedRows(msgspec.Struct, frozen=True, tag="encoded"):
    """Of EncodeFile. The bytes of the rows are a frame of their own behind it, unless it failed."""

    number: int
    head: RowsHead | None = None
    failure: EngineFailure | None = None


IDLE = "idle"


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The process lives (engine/liveness.py)."""

    what: str  # the step or the stage of the start that it is working on, or IDLE
    seconds: float  # since that began or last advanced

    @property
    def idle(self) -> bool:
        return self.what == IDLE


FromEngine: TypeAlias = LoadProgress | Ready | EngineRefused | EngineBroken | News | Stats | Done | EncodedRows

_encoder = msgspec.msgpack.Encoder()
_to_engine: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_heartbeat: msgspec.msgpack.Decoder[Heartbeat] = msgspec.msgpack.Decoder(Heartbeat)


def encode(message: ToEngine | FromEngine | Heartbeat) -> bytes:
    """A message that has no arrays."""
    return _encoder.encode(message)


def decode_command(*frames: Any) -> ToEngine:
    return _to_engine.decode(frames)


def decode_report(frame: Any) -> FromEngine:
    return _from_engine.decode(frame)


def decode_heartbeat(message: bytes) -> Heartbeat:
    return _heartbeat.decode(message)


def add_frames(file_index: FileCacheIndex, number: int, submission: Submission) -> Frames:
    """`file_index` is told of the request's files, so these frames must be sent: what they leave out, the engine has."""
    files, sent = [item.ref for item in submission.request.items], set[bytes]()
    media: list[NDArray[np.uint8] | None] = []
    for file, name in zip(files, _names(submission), strict=True):
        known = bool(file.data) and (name in sent or file_index.use(name, len(file.data))[0])
        if file.data and file.file_digest:
            sent.add(name)
        media.append(None if known else np.frombuffer(file.data, np.uint8))
    try:
        return to_frames(Add(number, _with_media(submission, [b""] * len(files)), tuple(media)))
    except Exception:
        file_index.clear()  # the engine will not hear of these files; it may well have more than the index says
        raise


def submission_of(add: Add, kept: FileCache) -> Submission:
    """What `add_frames` was given. `kept` is told of the request's files, too."""
    request = add.submission.request
    if len(add.media) != len(request.items):
        raise ValueError(f"bytes of {len(add.media)} items for a request that has {len(request.items)}")
    files: list[bytes] = []
    sent: dict[bytes, bytes] = {}  # files that several items have: the first has brought them
    for item, name, data in zip(request.items, _names(add.submission), add.media, strict=True):
        if data is None:
            file = sent[name] if name in sent else kept.recall(name)
        else:
            file = kept.take(name, data.tobytes())
        if item.ref.file_digest and (data is None or data.size):
            sent[name] = file
        files.append(file)
    # The copies can be written, of which torch makes a point, and hold no message in memory.
    own = replace(request, token_ids=request.token_ids.copy(), positions=request.positions.copy())
    return _with_media(replace(add.submission, request=own), files)


def _names(submission: Submission) -> list[bytes]:
    """What the request's files are kept by: each tenant sends its own. Pages of a PDF are of one file."""
    return [(item.ref.file_digest or item.ref.digest) + submission.cache_salt.encode() for item in submission.request.items]


def _with_media(submission: Submission, files: Sequence[bytes]) -> Submission:
    request = submission.request
    items = tuple(replace(item, ref=replace(item.ref, data=data)) for item, data in zip(request.items, files, strict=True))
    return replace(submission, request=replace(request, items=items))
