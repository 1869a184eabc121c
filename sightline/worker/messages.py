"""What an engine and a worker process say to each other, as frames (wire.py): nothing is pickled.

```
to the worker     Load │ Submit │ SubmitMasks │ Encode │ Embed │ CaptureGraphs │ GiveMemoryBack │ End
from the worker   Advanced │ Loaded │ WorkerRefused │ Output │ Encoded │ Embedded │ GraphsCaptured │ GpuMemory │ Broken
```

Pixels do not travel: they lie in memory that both processes share, and a message names it.
"""

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sightline.config import Config
from sightline.parallel.rank_info import RankInfo
from sightline.wire import FrameDecoder
from sightline.worker.facts import WorkerFacts
from sightline.worker.step_input import EncodeInput, EncodeItem, EncodeOutput, GrammarMasks, StepInput, StepOutput

Array = NDArray[np.float32]


class SharedPixels(msgspec.Struct, frozen=True):
    """Pixels of one item: an open file of the engine process."""

    item: int  # which of the items
    descriptor: int
    shape: tuple[int, int, int, int]


class Load(msgspec.Struct, frozen=True, tag="load"):
    config: Config
    rank: RankInfo | None = None  # where several ranks hold the model together


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    step: StepInput


class SubmitMasks(msgspec.Struct, frozen=True, tag="masks"):
    masks: GrammarMasks


class Encode(msgspec.Struct, frozen=True, tag="encode"):
    given: EncodeInput
    pixels: tuple[SharedPixels, ...]


class Embed(msgspec.Struct, frozen=True, tag="embed"):
    """Answered by Embedded."""

    item: EncodeItem
    pixels: tuple[SharedPixels, ...]


class CaptureGraphs(msgspec.Struct, frozen=True, tag="capture"):
    """Answered by GraphsCaptured, with an Advanced for each before it."""


class GiveMemoryBack(msgspec.Struct, frozen=True, tag="give back"):
    pass


class End(msgspec.Struct, frozen=True, tag="end"):
    pass


ToWorker: TypeAlias = Load | Submit | SubmitMasks | Encode | Embed | CaptureGraphs | GiveMemoryBack | End


class Advanced(msgspec.Struct, frozen=True, tag="advanced"):
    """So many of all parameters are loaded; 0 of 0 where what advances cannot be counted."""

    done: int
    total: int


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    facts: WorkerFacts
    seconds: dict[str, float]  # by stage


class WorkerRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The model cannot be loaded, by the user's fault."""

    message: str


class Output(msgspec.Struct, frozen=True, tag="output"):
    output: StepOutput


class Encoded(msgspec.Struct, frozen=True, tag="encoded"):
    output: EncodeOutput


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    rows: Array | None  # [rows, width]


class GraphsCaptured(msgspec.Struct, frozen=True, tag="captured"):
    count: int


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """A rank cannot go on, and so none can: the others wait for what it was to say."""

    message: str
    lost_rank: bool = False  # it is not to blame: another one is gone


class GpuMemory(msgspec.Struct, frozen=True, tag="memory"):
    gpu_bytes: int


FromWorker: TypeAlias = Advanced | Loaded | WorkerRefused | Output | Encoded | Embedded | GraphsCaptured | GpuMemory | Broken

to_worker: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
from_worker: FrameDecoder[FromWorker] = FrameDecoder(FromWorker)
