"""How long other people's answers stand still while somebody sends files that are small, legal and costly to decode.

    python benchmarks/hostile_media.py --json out.json            a server of its own, with the embedded model
    python benchmarks/hostile_media.py --base-url http://…:8000   a server that runs
    python benchmarks/hostile_media.py --old                      a server from before limits on the cost of decoding

jpeg    12000x12000, grey, 195 scans of which nearly all say nothing: some 0.3 MB
png     12200x12200 RGBA of one colour: some 0.6 MB
video   60,000 frames of 1280x720 that all show the same: some 2 MB

Clients stream answers to questions without images all the time. A case is without hostile files, with one of them sent by
several clients at once, each with a copy that differs in a byte, to a server with its default limits (it may refuse them), or
the same with limits raised so far that they are decoded. It is over when the hostile requests are answered, or after --case-s
seconds. The figure is the longest that a client waited for its next token; requests of clients that failed are counted. Memory
is that of the engine and its helpers, the sum of their resident sets at its highest, with a server of its own on Linux.
"""

import argparse
import asyncio
import base64
import contextlib
import io
import json
import platform
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import httpx
import numpy as np
from PIL import Image

from sightline.bench.server_process import serving

RAISED = (
    "--max-image-decode-mpx", "1000000", "--max-request-image-decode-mpx", "1000000",
    "--max-video-gigapixels", "100000", "--max-request-video-gigapixels", "100000",
)  # fmt: skip
SETTLE_S = 3.0
SAMPLE_S = 0.1
FPS = 240  # so many frames in so little time that few enough are sampled for a small model


# ---- The files


def many_scans(side: int, scans: int) -> bytes:
    """A grey progressive JPEG whose last scan, a refinement that refines nothing, comes again and again."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 99).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    places = [found.start() for found in re.finditer(b"\xff\xda", data)]
    pieces = [data[start:end] for start, end in zip(places, [*places[1:], len(data) - 2], strict=True)]
    del pieces[4]  # refines the mean of each block by a bit: most of the file, and it changes nothing here
    return data[: places[0]] + b"".join(pieces) + pieces[-1] * (scans - len(pieces)) + data[-2:]


def flat_png(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGBA", (side, side), (9, 99, 200, 128)).save(buffer, "PNG", compress_level=9)
    return buffer.getvalue()


def still_video(frames: int, width: int = 1280, height: int = 720, group: int = 250) -> bytes:
    """H.264 in an MP4: one group of pictures is encoded, and its packets are written as often as needed."""
    picture = av.VideoFrame.from_ndarray(np.full((height, width, 3), 99, np.uint8), format="rgb24")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=FPS, options={"bf": "0", "g": str(group), "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        packets = []
        for number in range(group):
            picture.pts, picture.time_base = number, Fraction(1, FPS)
            packets += stream.encode(picture)
        packets += stream.encode()
        contents = [bytes(packet) for packet in packets]
        for number in range(frames):
            packet = av.Packet(contents[number % group])
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, FPS)
            packet.is_keyframe = number % group == 0
            output.mux(packet)
    return buffer.getvalue()


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    path = Path(tempfile.gettempdir()) / "sightline-hostile-media" / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(make())
    return path.read_bytes()


def variant(kind: str, data: bytes, number: int) -> bytes:
    """The same picture in other bytes, so that nothing known of one file helps with the next."""
    tail = number.to_bytes(1, "big")
    return data + (b"\0\0\0\x09free" + tail if kind == "video" else tail)


def content_part(kind: str, data: bytes) -> dict[str, object]:
    media_type, field_name = {
        "jpeg": ("image/jpeg", "image_url"),
        "png": ("image/png", "image_url"),
        "video": ("video/mp4", "video_url"),
    }[kind]
    return {"type": field_name, field_name: {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}}


# ---- The clients


@dataclass
class HostileCase:
    file: str  # "none", "jpeg", "png" or "video"
    limits: str  # "default" or "raised"
    hostile_clients: int
    seconds: float = 0.0
    tokens: int = 0  # that the other clients got
    longest_gap_s: float = 0.0
    failed_requests: int = 0  # of the other clients
    hostile_answers: dict[str, int] = field(default_factory=dict)  # by status, or "unanswered"
    hostile_sentence: str = ""
    peak_memory_mb: int | None = None


class Gaps:
    """How long each stream waited for its next token, from when it was asked for; one that still waits counts too."""

    def __init__(self, case: HostileCase) -> None:
        self._case = case
        self._waiting: dict[int, float] = {}  # since when

    def asked(self, client: int) -> None:
        self._waiting.setdefault(client, time.perf_counter())

    def token(self, client: int) -> None:
        now = time.perf_counter()
        self._case.longest_gap_s = max(self._case.longest_gap_s, now - self._waiting[client])
        self._waiting[client] = now
        self._case.tokens += 1

    def finish(self) -> None:
        now = time.perf_counter()
        self._case.longest_gap_s = max([self._case.longest_gap_s, *(now - since for since in self._waiting.values())])


async def stream_for_ever(client: httpx.AsyncClient, number: int, gaps: Gaps, case: HostileCase, model: str) -> None:
    """Answers of 200 tokens, one after the other. A request that fails is sent again: its client waits on."""
    turn = 0
    while True:
        turn += 1
        body = {
            "model": model, "stream": True, "max_tokens": 200, "temperature": 0,
            "ignore_eos": True, "logprobs": True,  # a chunk for each token, even if its text is empty
            "messages": [{"role": "user", "content": f"Tell me about number {number} for the {turn}th time."}],
        }  # fmt: skip
        gaps.asked(number)
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        if "error" in json.loads(line[6:]):
                            raise httpx.HTTPError("the stream ended with an error")
                        gaps.token(number)
        except httpx.HTTPError:
            case.failed_requests += 1
            await asyncio.sleep(0.5)


async def send_hostile(client: httpx.AsyncClient, part: dict[str, object], case: HostileCase, model: str) -> None:
    text = {"type": "text", "text": "What is this?"}
    body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": [part, text]}]}
    try:
        answer = await client.post("/v1/chat/completions", json=body)
        status = str(answer.status_code)
        if answer.status_code != 200:
            case.hostile_sentence = answer.json()["error"]["message"]
    except httpx.HTTPError as error:
        status = type(error).__name__
    case.hostile_answers[status] = case.hostile_answers.get(status, 0) + 1


def memory_of(root: int) -> int:
    """Bytes in the resident sets of all processes that a server started, itself not included."""
    total, parents = 0, [root]
    while parents:
        parent = parents.pop()
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(word) for word in path.read_text().split()]
                parents += children
                total += sum(int(Path(f"/proc/{child}/statm").read_text().split()[1]) * 4096 for child in children)
    return total


async def watch_memory(root: int, case: HostileCase) -> None:
    case.peak_memory_mb = 0
    while True:
        case.peak_memory_mb = max(case.peak_memory_mb, memory_of(root) // 1_000_000)
        await asyncio.sleep(SAMPLE_S)


async def run_case(case: HostileCase, url: str, data: bytes | None, root: int | None, arguments: argparse.Namespace) -> None:
    gaps = Gaps(case)
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(arguments.case_s + 30)) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        tasks = [asyncio.create_task(stream_for_ever(client, n, gaps, case, model)) for n in range(arguments.clients)]
        await asyncio.sleep(SETTLE_S)
        case.tokens, case.longest_gap_s, case.failed_requests = 0, 0.0, 0  # of what came before, nothing counts
        if root is not None and Path("/proc").exists():
            tasks.append(asyncio.create_task(watch_memory(root, case)))
        began = time.perf_counter()
        if data is None:
            await asyncio.sleep(arguments.quiet_s)
        else:
            parts = [content_part(case.file, variant(case.file, data, number)) for number in range(case.hostile_clients)]
            hostile = [asyncio.create_task(send_hostile(client, part, case, model)) for part in parts]
            _, unanswered = await asyncio.wait(hostile, timeout=arguments.case_s)
            if unanswered:
                case.hostile_answers["unanswered"] = len(unanswered)
            else:
                await asyncio.sleep(SETTLE_S)
            tasks += unanswered
        gaps.finish()
        case.seconds = time.perf_counter() - began
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- The whole


def show(cases: Sequence[HostileCase]) -> None:
    print(f"{'file':6} {'limits':8} {'longest gap':>12} {'tokens/s':>9} {'failed':>7} {'memory':>9}  hostile answers")
    for case in cases:
        memory = "-" if case.peak_memory_mb is None else f"{case.peak_memory_mb:,} MB"
        answers = ", ".join(f"{count} x {status}" for status, count in case.hostile_answers.items())
        rate = f"{case.tokens / case.seconds:9.0f} {case.failed_requests:7}"
        print(f"{case.file:6} {case.limits:8} {case.longest_gap_s:10.2f} s {rate} {memory:>9}  {answers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a server that runs; by default one is started for each case")
    parser.add_argument("--old", action="store_true", help="the server knows no limits on the cost of decoding")
    parser.add_argument("--serve-flags", nargs="*", default=[], help="for servers that are started, such as a model")
    parser.add_argument("--clients", type=int, default=4, help="that stream answers")
    parser.add_argument("--hostile-clients", type=int, default=3)
    parser.add_argument("--files", nargs="+", default=["jpeg", "png", "video"], choices=["jpeg", "png", "video"])
    parser.add_argument("--limits", nargs="+", default=["default", "raised"], choices=["default", "raised"])
    parser.add_argument("--jpeg-side", type=int, default=12_000)
    parser.add_argument("--jpeg-scans", type=int, default=195)
    parser.add_argument("--png-side", type=int, default=12_200)
    parser.add_argument("--video-frames", type=int, default=60_000)
    parser.add_argument("--case-s", type=float, default=90.0, help="most seconds of a case")
    parser.add_argument("--quiet-s", type=float, default=10.0, help="seconds of the case without hostile files")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    arguments = parser.parse_args()

    Image.MAX_IMAGE_PIXELS = None
    makers: dict[str, Callable[[], bytes]] = {
        "jpeg": lambda: many_scans(arguments.jpeg_side, arguments.jpeg_scans),
        "png": lambda: flat_png(arguments.png_side),
        "video": lambda: still_video(arguments.video_frames),
    }
    sizes = {
        "jpeg": f"{arguments.jpeg_side}x{arguments.jpeg_scans}",
        "png": str(arguments.png_side),
        "video": f"{arguments.video_frames}x{FPS}",
    }
    files = {name: cached(f"{name}-{sizes[name]}", makers[name]) for name in arguments.files}
    limits = ["default"] if arguments.old or arguments.base_url else arguments.limits
    cases = [HostileCase("none", "default", 0)]
    cases += [HostileCase(name, limit, arguments.hostile_clients) for limit in limits for name in files]
    for case in cases:
        data = files.get(case.file)
        if arguments.base_url:
            asyncio.run(run_case(case, arguments.base_url, data, None, arguments))
        else:
            flags = [*arguments.serve_flags, *(RAISED if case.limits == "raised" else ())]
            with serving(flags) as server:
                server.until_ready()
                asyncio.run(run_case(case, server.url(), data, server.process.pid, arguments))
        show([case])
    print()
    show(cases)
    if arguments.json is not None:
        figures = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "clients": arguments.clients,
            "file_bytes": {name: len(data) for name, data in files.items()},
            "cases": [asdict(case) for case in cases],
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
