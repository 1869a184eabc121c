"""How long a server takes from the start of its process to its first answer, again and again: caches of compilers are warm
from the second start on."""

from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from sightline.bench.load.body import RequestOptions, RequestSample, image_part, request_body
from sightline.bench.load.datasets import user_message
from sightline.bench.load.images import ImageKind, make_image
from sightline.bench.load.server_metrics import device_in, read_metrics
from sightline.bench.server_process import ServerError, serving


@dataclass(frozen=True)
class StartTimes:
    """Seconds after the process was started."""

    listening_s: float
    ready_s: float
    answer_s: float  # the end of the first answer, of one token
    device: str
    engine_stages_s: dict[str, float]  # of the engine's process


def measure_start(flags: Sequence[str], resolution: str | None, patience_s: float) -> StartTimes:
    """One start. The first question shows a picture of that size, or none."""
    parts = [image_part(make_image(ImageKind(resolution, quality=90), (0,)))] if resolution is not None else []
    sample = RequestSample(user_message(parts, "What is this?"), 1)
    with serving(flags, patience_s) as server:
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
