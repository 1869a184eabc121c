"""`sightline bench multiturn` and `probe` against a scripted server: what they send, and what they make of the answers."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.stub import RunningStub, Script, chunk, event, refusal, stream, usage
from sightline.cli.main import main


def images_in(body: dict[str, Any]) -> list[str]:
    """URLs of all pictures of a request, in order."""
    parts = [part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def answered(text: str, tower_ms: float, encoded: int, prompt: int = 50, cached: int = 0) -> Script:
    told = {"timings_ms": {"encode": tower_ms, "ttft": 1.0}, "encoded_items": encoded, "images": 1}
    pieces = [
        chunk({"role": "assistant", "content": text}, "length", metadata=told),
        chunk(None, usage=usage(prompt, 1, cached)),
    ]
    return Script([(0.01, b"".join(pieces) + event(b"[DONE]"))])


def bench(what: str, url: str, *flags: str) -> int:
    return main(["bench", what, "--base-url", url, "--seed", "1", *flags])


# Red if a round leaves out what was said, changes an earlier picture, or adds none.
def test_rounds_repeat_all_that_was_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = [answered(f"answer {number}", 7.5 + number, 1, 100 * number, 64 * number) for number in range(3)]
    file = tmp_path / "out.jsonl"
    with RunningStub(*scripts, owner="sightline") as stub:
        flags = ["--rounds", "3", "--resolutions", "32x48", "--no-warmup", "--output-len", "5", "--no-progress"]
        assert bench("multiturn", stub.url, *flags, "--output", str(file)) == 0
    bodies = [seen.body for seen in stub.questions]
    assert [[message["role"] for message in body["messages"]] for body in bodies] == [
        ["user"],
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant", "user"],
    ]
    assert bodies[2]["messages"][:3] == bodies[1]["messages"]
    assert [message["content"] for message in bodies[2]["messages"] if message["role"] == "assistant"] == [
        "answer 0",
        "answer 1",
    ]
    assert [len(set(images_in(body))) for body in bodies] == [1, 2, 3]
    assert all(body["return_timings"] and body["ignore_eos"] and body["max_completion_tokens"] == 5 for body in bodies)
    record = json.loads(file.read_text())
    assert record["kind"] == "multiturn" and record["num_rounds"] == 3
    assert [found["tower_ms"] for found in record["rounds"]] == [7.5, 8.5, 9.5]
    assert [found["encoded_items"] for found in record["rounds"]] == [1, 1, 1]
    assert [found["cached_tokens"] for found in record["rounds"]] == [0, 64, 128]
    assert all(found["ttft_ms"] >= 10 and found["error"] is None for found in record["rounds"])
    out = capsys.readouterr().out
    assert "TTFT, ms" in out and re.search(r"round 2 +9\.50\n", out) and "images encoded" in out


# Red if a foreign server is sent a field that it may refuse, or figures that it does not tell are made up.
def test_other_servers_are_asked_nothing_special(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStub(stream([0.01], usage(10, 1))) as stub:
        flags = ["--rounds", "2", "--resolutions", "16x16", "24x24", "--conversations", "2", "--stop-at-eos", "--no-progress"]
        assert bench("multiturn", stub.url, *flags, "--output", str(tmp_path / "o.jsonl")) == 0
    assert len(stub.questions) == 2 * (2 + 2 * 2)  # a warm-up and two conversations of two rounds, at two resolutions
    assert all("return_timings" not in seen.body and "ignore_eos" not in seen.body for seen in stub.questions)
    new = [images_in(seen.body)[-1] for seen in stub.questions]
    assert len(set(new)) == 12
    out = capsys.readouterr().out
    assert "vision tower" not in out and "cached" not in out
    rounds = json.loads((tmp_path / "o.jsonl").read_text())["rounds"]
    assert [(found["resolution"], found["round"]) for found in rounds] == [
        ("16x16", 0),
        ("16x16", 1),
        ("24x24", 0),
        ("24x24", 1),
    ]
    assert all(len(found["ttfts_ms"]) == 2 for found in rounds)


def test_a_conversation_that_breaks_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "o.jsonl"
    with RunningStub(stream([0.0], usage(10, 1)), refusal(400, "Too long.")) as stub:
        flags = ["--rounds", "4", "--resolutions", "16x16", "--no-warmup", "--no-progress", "--output", str(file)]
        assert bench("multiturn", stub.url, *flags) == 0
    assert len(stub.questions) == 2
    assert "16x16, round 1: HTTP 400: Too long." in capsys.readouterr().out
    rounds = json.loads(file.read_text())["rounds"]
    assert [found["ttft_ms"] is None for found in rounds] == [False, True, True, True]
    assert [bool(found["error"]) for found in rounds] == [False, True, False, False]


def up_to(most: int) -> Any:
    def choose(body: dict[str, Any]) -> Script:
        count = len(images_in(body))
        return refusal(400, f"{count} images.") if count > most else answered("yes", 2.0 * count, count, 10 * count)

    return choose


# Red if the search misses the true number, tries more than it needs, or shows a picture twice.
@pytest.mark.parametrize(
    ("limit", "most", "tried", "largest"),
    [
        (11, 64, [1, 2, 4, 8, 16, 12, 10, 11], 11),
        (64, 64, [1, 2, 4, 8, 16, 32, 64], 64),
        (100, 20, [1, 2, 4, 8, 16, 20], 20),
        (0, 8, [1], 0),
        (1, 8, [1, 2], 1),
        (7, 8, [1, 2, 4, 8, 6, 7], 7),
    ],
)
def test_the_largest_number_of_images(
    limit: int, most: int, tried: list[int], largest: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "o.jsonl"
    with RunningStub(choose=up_to(limit), owner="sightline") as stub:
        flags = ["--resolutions", "8x8", "--max-images", str(most), "--no-warmup", "--output", str(file)]
        assert bench("probe", stub.url, *flags) == (0 if largest else 1)
    counts = [len(images_in(seen.body)) for seen in stub.questions]
    assert counts == tried
    shown = [url for seen in stub.questions for url in images_in(seen.body)]
    assert len(set(shown)) == len(shown)
    record = json.loads(file.read_text())
    assert record["largest"] == {"8x8": largest}
    assert [probe["images"] for probe in record["probes"]] == sorted(tried)
    for probe in record["probes"]:
        if probe["images"] <= limit:
            assert probe["ttft_ms"] >= 10 and probe["tower_ms"] == 2.0 * probe["images"] and probe["error"] is None
        else:
            assert probe["ttft_ms"] is None and probe["error"] == f"HTTP 400: {probe['images']} images."
    out = capsys.readouterr().out
    *_, heading, row = out.splitlines()
    assert heading.startswith("resolution  images  TTFT, ms") and row.startswith(f"8x8 {largest:14d}  ")
    assert row.endswith("no limit found" if limit >= most else "HTTP 400")


# Red if a step shows other pictures than the one before it, more than one new one, or goes on after the first that fails.
def test_a_growing_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def choose(body: dict[str, Any]) -> Script:
        count = len(images_in(body))
        return refusal(400, "Too many.") if count > 5 else answered("yes", 2.0, 1, 10 * count, 10 * (count - 1))

    file = tmp_path / "o.jsonl"
    with RunningStub(choose=choose, owner="sightline") as stub:
        flags = ["--resolutions", "8x8", "--growing", "--every", "2", "--max-images", "9", "--output", str(file)]
        assert bench("probe", stub.url, *flags) == 0
    warm_up, *shown = [images_in(seen.body) for seen in stub.questions]
    assert [len(one) for one in shown] == [1, 2, 3, 4, 5, 6] and warm_up[0] not in shown[-1]
    assert all(after[:-1] == before for before, after in itertools.pairwise(shown)) and len(set(shown[-1])) == 6
    record = json.loads(file.read_text())
    assert record["growing"] and record["largest"] == {"8x8": 5}
    assert [probe["encoded_items"] for probe in record["probes"]] == [1] * 5 + [None]
    assert [probe["cached_tokens"] for probe in record["probes"]] == [0, 10, 20, 30, 40, None]
    lines = re.findall(r"^8x8 +(\d+)  (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [count for count, _ in lines] == ["1", "2", "4", "6", "5"]  # the last line is that of the table
    assert "Too many." in lines[3][1] and lines[4][1].endswith("HTTP 400")


def test_numbers_that_are_asked_for(tmp_path: Path) -> None:
    with RunningStub(choose=up_to(5)) as stub:
        assert bench("probe", stub.url, "--resolutions", "8x8", "--counts", "6", "3", "3", "5") == 0
    assert [len(images_in(seen.body)) for seen in stub.questions] == [1, 3, 5, 6]  # the first warms up


@pytest.mark.parametrize(
    ("what", "flags", "said"),
    [
        ("multiturn", ["--rounds", "0"], "The number of rounds is 0"),
        ("multiturn", ["--resolutions", "huge"], "The resolution 'huge' is unknown"),
        ("probe", ["--max-images", "0"], "The most images to try is 0"),
        ("probe", ["--counts", "3", "0"], "A number of images is 0"),
        ("probe", ["--growing", "--every", "0"], "--every is 0"),
    ],
)
def test_mistakes(what: str, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(what, "http://127.0.0.1:9", *flags) == 1
    assert said in capsys.readouterr().err
