"""What the host must know of a worker; fixed when it is loaded."""

from dataclasses import dataclass

from sightline.worker.memory import MemoryPlan
from sightline.worker.tilings import TilingFacts


@dataclass(frozen=True)
class WorkerFacts:
    memory: MemoryPlan
    device: str
    dtype: str
    vocab_size: int  # columns of the logits
    weights_bytes: int
    quantization: str  # what is in 8-bit floats, in words
    gpu_decoder: str  # the library that decodes images on the GPU; empty: none does
    gpu_kinds: tuple[str, ...]  # of files that it decodes
    tilings: TilingFacts | None = None  # None where none are chosen
    tower_digest: str = ""  # of its weights, where another server encodes
    long_rope_from: int | None = None  # tokens: longer sequences take the second part of the rotary tables (LongRopeSpec)
