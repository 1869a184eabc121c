"""Tables of images through Ray Data, with the embedded model."""

import base64
import functools
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.media import png
from sightline.errors import ConfigError

PROMPT = "What is it?"
SAMPLING = {"max_tokens": 6, "temperature": 0}
SMALL = {"device": "cpu", "cpu_threads": 1, "decode_threads": 1, "restart_backoff_s": 0.2}


@pytest.fixture(scope="module")
def data(ray_here: Any) -> Any:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("images")
    for seed in range(4):
        (made / f"{seed}.png").write_bytes(png(seed))
    return made


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Of the library, for the images 0 to 3."""
    from sightline import LLM, SamplingParams

    with LLM(device="cpu") as llm:
        parts = [[{"type": "image", "image": png(seed)}, {"type": "text", "text": PROMPT}] for seed in range(4)]
        found = llm.chat([[{"role": "user", "content": part}] for part in parts], SamplingParams(**SAMPLING))
    return [one.text for one in found]


def batch(ds: Any, **named: Any) -> list[dict[str, Any]]:
    from sightline.ray import batch

    fields: dict[str, Any] = {"prompt": PROMPT, "sampling": SAMPLING, "num_cpus": 0.5, **SMALL, **named}
    return sorted(batch(ds, **fields).take_all(), key=lambda row: int(row["number"]))


def test_images_by_path_bytes_url_and_array(data: Any, folder: Path, web: str, expected: list[str]) -> None:
    """Red when one kind is answered otherwise than by the library, or a column of the table is lost."""
    from PIL import Image

    kinds: dict[str, list[Any]] = {
        "path": [str(folder / f"{seed}.png") for seed in range(4)],
        "bytes": [png(seed) for seed in range(4)],
        "url": [f"{web}/{seed}.png" for seed in range(4)],
        "mapping": [{"bytes": png(seed), "path": None} for seed in range(4)],
        "list": [[str(folder / f"{seed}.png")] for seed in range(4)],
        "array": [np.asarray(Image.open(folder / f"{seed}.png")) for seed in range(4)],
    }
    for kind, images in kinds.items():
        ds = data.from_items([{"number": number, "image": image} for number, image in enumerate(images)])
        port = int(web.rsplit(":", 1)[1])
        options = {"allow_private_media": True, "allowed_media_ports": [port]} if kind == "url" else {}
        rows = batch(ds, image_column="image", **options)
        assert [row["error"] for row in rows] == [None] * 4, kind
        assert [row["answer"] for row in rows] == expected, kind
        assert [row["number"] for row in rows] == [0, 1, 2, 3]


def test_bad_rows_stand_in_the_column_of_errors(data: Any, folder: Path, expected: list[str]) -> None:
    images = [str(folder / "0.png"), str(folder / "gone.png"), None, base64.b64encode(b"no picture").decode()]
    ds = data.from_items([{"number": number, "image": image} for number, image in enumerate(images)])
    rows = batch(ds, image_column="image", prompt=lambda row: {0: PROMPT, 1: PROMPT, 2: "Hello"}.get(row["number"]) or 1 / 0)
    assert [row["answer"] is None for row in rows] == [False, True, False, True]
    assert rows[0]["answer"] == expected[0]
    assert "gone.png" in rows[1]["error"] and rows[3]["error"].startswith("prompt() failed on this row with ZeroDivisionError")


def test_names_that_are_not_there_are_refused(data: Any) -> None:
    ds = data.from_items([{"number": 0}])
    with pytest.raises(Exception, match="The table has no column 'picture'; it has number"):
        batch(ds, image_column="picture")
    with pytest.raises(Exception, match="The table has a column 'number' already"):
        batch(ds, answer_column="number")
    with pytest.raises(ConfigError, match=r"sightline\.ray\.batch has an option 'max_pixel' that does not exist; did you mean"):
        batch(ds, max_pixel=3)


RUN = """
import sys, ray
sys.path[:0] = {path!r}
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
from sightline.ray import batch
ds = ray.data.from_items([{{"number": number}} for number in range({rows})])
batch(ds, prompt=lambda row: f"Count to {{row['number']}}.", sampling={sampling!r}, checkpoint={checkpoint!r}, num_cpus=0.5,
      max_num_seqs=4, batch_size=8, **{small!r}).materialize()
"""


def test_a_run_that_was_killed_goes_on(data: Any, tmp_path: Path) -> None:
    """Red when a row that had an answer is asked again, or one is lost."""
    rows, checkpoint = 120, tmp_path / "checkpoint"
    sampling = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    script = RUN.format(path=sys.path, rows=rows, sampling=sampling, checkpoint=str(checkpoint), small=SMALL)
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        end = time.monotonic() + 120
        while len(lines(checkpoint)) < 20:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
    finally:
        from scale_out.inside.conftest import descendants, end_all

        started = descendants(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_all(started, patience_s=0)
    torn = next(checkpoint.glob("*.jsonl"))
    with torn.open("ab") as file:
        file.write(b'{"key":"00')
    before = set(lines(checkpoint))
    assert 20 <= len(before) < rows
    from sightline.ray import batch

    ds = data.from_items([{"number": number} for number in range(rows)])
    again = batch(
        ds, prompt=lambda row: f"Count to {row['number']}.", sampling=sampling, checkpoint=str(checkpoint), num_cpus=0.5,
        **SMALL,
    ).take_all()  # fmt: skip
    assert sorted(row["number"] for row in again) == list(range(rows)) and all(row["answer"] for row in again)
    assert len(set(lines(checkpoint)) - before) == rows - len(before)
    assert len(lines(checkpoint)) == rows


def lines(checkpoint: Path) -> list[bytes]:
    return [line for path in checkpoint.glob("*.jsonl") for line in path.read_bytes().split(b"\n") if line.endswith(b"}")]


def test_an_actor_that_dies_loses_no_row(data: Any, tmp_path: Path) -> None:
    rows, checkpoint = 100, tmp_path / "checkpoint"
    ds = data.from_items([{"number": number} for number in range(rows)])
    before, killed = engine_parents(), []

    def kill() -> None:
        while not killed and time.monotonic() < end:
            there = engine_parents() - before
            if there and len(lines(checkpoint)) >= 10:
                killed.append(there.pop())
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.02)

    end = time.monotonic() + 120
    killer = threading.Thread(target=kill)
    killer.start()
    sampling = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    found = batch(
        ds, prompt=lambda row: f"Say {row['number']}.", sampling=sampling, checkpoint=str(checkpoint), replicas=2, batch_size=8,
        max_num_seqs=4,
    )  # fmt: skip
    killer.join()
    assert killed and [row["number"] for row in found] == list(range(rows))
    assert [(row["answer"], row["error"]) for row in found if row["answer"] is None or row["error"] is not None] == []


def engine_parents() -> set[int]:
    """Processes that have an engine."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = (stat.parent / "cmdline").read_bytes().split(b"\0")
            if b"sightline.engine.main" in words:
                found.add(int(stat.read_text().rsplit(")", 1)[1].split()[1]))
        except OSError:
            continue
    return found
