"""How long a server takes from the start of its process to its first answer, again and again: caches of compilers are warm
from the second start on."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from sightline.bench.load.body import RequestOptions, RequestSample, image_part, request_body
from sightline.bench.load.datasets import user_message
from sightline.bench.load.images import ImageKind, make_image
from sightline.bench.load.server_metrics import device_in, read_metrics
from sightline.bench.server_process import ServerError, serving
from sightline.errors import ConfigError


@dataclass(frozen=True)
class StartTimes:
    """Seconds after the process was started."""

    listening_s: float
    ready_s: float
    answer_s: float  # the end of the first answer, of one token
    device: str
    engine_stages_s: dict[str, float]  # of the engine's process


@contextlib.contextmanager
def compiler_caches(fresh: bool) -> Iterator[Mapping[str, str]]:
    """The environment of a server: as it is, or with empty caches of Triton, torch, CUDA's driver and ours.

    Checkpoints of the Hub stay where they are, and files that the system has in memory stay there: the first start of a machine
    reads them, too.
    """
    if not fresh:
        yield os.environ
        return
    named = (os.environ.get(name) for name in ("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", "QUACK_CACHE_DIR"))
    if any(named):
        raise ConfigError("--fresh-caches needs FLASH_ATTENTION_CUTE_DSL_CACHE_DIR and QUACK_CACHE_DIR unset.")
    hub = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    with tempfile.TemporaryDirectory() as folder:
        names = ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
        yield {**os.environ, "HF_HOME": hub, **{name: str(Path(folder) / name.lower()) for name in names}}


def measure_start(
    flags: Sequence[str], resolution: str | None, patience_s: float, environment: Mapping[str, str] | None = None
) -> StartTimes:
    """One start. The first question shows a picture of that size, or none."""
    parts = [image_part(make_image(ImageKind(resolution, quality=90), (0,)))] if resolution is not None else []
    sample = RequestSample(user_message(parts, "What is this?"), 1)
    with serving(flags, patience_s, environment=environment) as server:
        url = server.url()
        listening = server.age
        ready = server.until_ready()
        with httpx.Client(base_url=url, timeout=patience_s) as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            body = b"".join(request_body(sample, RequestOptions(model, stream=False)))
            reply = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
            answered = server.age
            if reply.status_code != 200:
                raise ServerError(f"The first question was answered with {reply.status_code}: {reply.text[:200]}")
            return StartTimes(listening, ready, answered, _device(client), server.load_stages())


def _device(client: httpx.Client) -> str:
    return device_in(read_metrics(client.get("/metrics").text))
