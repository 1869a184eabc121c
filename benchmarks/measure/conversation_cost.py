"""What a conversation of screenshots costs the API process: each round sends one more, and all before it again."""

import json
import socket
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.measure.round_trip import ask
from benchmarks.measure.timed_server import STAGES
from sightline.bench.load.body import RequestOptions, RequestSample, image_part, request_body, text_part
from sightline.bench.load.datasets import make_images
from sightline.bench.load.images import ImageKind
from sightline.bench.load.texts import random_text
from sightline.bench.server_process import serving
from sightline.config import ServerConfig

ROUNDS = 12
SCREENS = ImageKind("1080p", "screen", "png")
_TIMED = ("benchmarks.measure.timed_server",)


@dataclass(frozen=True)
class RoundCost:
    """Milliseconds on the clock, medians over conversations."""

    number: int  # so many images are known
    body_mb: float
    client_ms: float  # from the first byte sent to the first event of the answer
    stages: dict[str, float]  # of the API process, up to the engine process


def conversation_cost(
    model: Path, conversations: int, kind: ImageKind, known: bool = True, rounds: int = ROUNDS
) -> list[RoundCost]:
    """One warm-up conversation, then as many as are asked for; each shows other pictures. Without `known` every file is hashed
    and read again, as if it had not come before."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stages.jsonl"
        kept = str(ServerConfig().kept_media_mb)
        with serving([str(log), str(int(known)), "0", str(model), kept], 120, _TIMED) as server:
            server.until_ready()
            address = urlsplit(server.url())
            assert address.hostname is not None and address.port is not None
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                talks = []
                for number in range(conversations + 1):
                    bodies = conversation_bodies(kind, number, rounds)
                    talks.append([(len(body), sum(ask(connection, body))) for body in bodies])
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == rounds * (conversations + 1), (len(lines), rounds, conversations)
    return [_round(number, talks[1:], lines[rounds:], rounds) for number in range(rounds)]


def _round(
    number: int, talks: Sequence[Sequence[tuple[int, float]]], lines: Sequence[dict[str, float]], rounds: int
) -> RoundCost:
    stages = {stage: statistics.median(line[stage] for line in lines[number::rounds]) for stage in STAGES}
    size, _ = talks[0][number]
    return RoundCost(number, size / 1e6, statistics.median(talk[number][1] for talk in talks), stages)


def conversation_bodies(kind: ImageKind, conversation: int, rounds: int) -> list[bytes]:
    first = conversation * rounds
    pictures = make_images(kind, (0, 9), range(first, first + rounds))
    bodies, messages = [], []
    for number, picture in enumerate(pictures):
        question = random_text(32, 1.0, (0, 9, first + number))
        messages.append({"role": "user", "content": [image_part(picture), text_part(question)]})
        bodies.append(b"".join(request_body(RequestSample(messages, 1), RequestOptions(""))))
        messages.append({"role": "assistant", "content": random_text(16, 1.0, (1, 9, first + number))})
    return bodies


def as_json(costs: Sequence[RoundCost]) -> list[dict[str, object]]:
    return [
        {
            "round": cost.number,
            "body_mb": round(cost.body_mb, 3),
            "client_ms": round(cost.client_ms, 3),
            **{f"{stage}_ms": round(cost.stages[stage], 3) for stage in STAGES},
            "api_ms": round(sum(cost.stages.values()), 3),
        }
        for cost in costs
    ]
