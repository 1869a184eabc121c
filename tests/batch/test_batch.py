"""`sightline batch` with the embedded model: what is answered, what is not, and that it goes on where it was ended."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from batch.running import (
    CHAT,
    PATIENCE_S,
    batch,
    begun,
    chat,
    command,
    count_lines,
    environment,
    ids_of,
    image_url,
    lines_of,
    row,
    write,
)
from server.media import data_url, png
from server.running import process_exists, wait_for
from server.slow_web import slow_web
from server.watch import descendants
from sightline import LLM, SamplingParams
from sightline.cli.main import main

SIGN = Path(__file__).resolve().parents[2] / "sightline/data/demo/sign.png"


def test_every_way_to_name_an_image_and_every_endpoint(tmp_path: Path) -> None:
    """The answers of the library. Red when a row is lost, asked twice, or answered otherwise than the library does."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "sign.png").write_bytes(SIGN.read_bytes())
    with slow_web(SIGN.read_bytes(), first=100) as web:
        web.go_on.set()
        pictures = {
            "data": data_url(SIGN.read_bytes()),
            "path": str(tmp_path / "pictures/sign.png"),
            "file": f"file://{tmp_path}/pictures/sign.png",
            "http": web.url(),
        }
        rows = [chat(name, image_url(url), model="auto") for name, url in pictures.items()]
        hello = [{"role": "user", "content": "Hello"}]
        rows += [
            row("completions", "/v1/completions", prompt="a", max_tokens=3),
            row("responses", "/v1/responses", input="a", max_output_tokens=3),
            row("messages", "/v1/messages", model="auto", messages=hello, max_tokens=3),
        ]
        requests, answers = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
        done = batch(requests, answers, "--allow-private-media", "--allowed-media-ports")
    assert re.search(r"^7 rows answered; .* 4 images, [\d,]+ tokens in, \d+ out$", done.stdout), done.stdout
    found = {line["custom_id"]: line for line in lines_of(answers)}
    assert set(found) == {one["custom_id"] for one in rows} and count_lines(answers) == 7
    assert not (tmp_path / "out.errors.jsonl").exists()
    for line in found.values():
        assert list(line) == ["id", "custom_id", "response", "error"] and line["error"] is None
        assert line["response"]["status_code"] == 200 and line["response"]["body"]["id"] == line["response"]["request_id"]
    with LLM() as llm:
        parts = [{"type": "image", "image": str(SIGN)}, {"type": "text", "text": "What does the sign say?"}]
        expected = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=8, temperature=0)).text
    assert expected and {text_of(found[name]) for name in pictures} == {expected}
    assert "━" not in done.stderr, "a bar where there is no terminal"
    written = answers.read_bytes()
    again = batch(requests, answers)
    assert again.stdout.startswith("0 rows answered, 7 answered before") and answers.read_bytes() == written
    assert "The model is ready" not in again.stderr, "a model was loaded for nothing"


def text_of(line: dict[str, Any]) -> str:
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


def test_bad_rows_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    """With the line and the reason; they are asked again by the next run. Red when one ends the batch, or hides another."""
    inside, outside = tmp_path / "inside", tmp_path / "outside.png"
    inside.mkdir()
    outside.write_bytes(png(1))
    good = row("good", "/v1/completions", prompt="a", max_tokens=2)
    rows = [
        good,
        {**good, "custom_id": "endpoint", "url": "/v1/embeddings"},
        {**good, "custom_id": "method", "method": "GET"},
        {**good, "custom_id": 7},
        good,
        {"custom_id": "body", "method": "POST", "url": CHAT},
        row("stream", messages=[{"role": "user", "content": "Hello"}], stream=True),
        row("field", messages=[{"role": "user", "content": "Hello"}], tempreature=1),
        row("model", "/v1/completions", prompt="a", model="gpt-4o"),
        chat("outside", image_url(str(outside))),
        chat("missing", image_url(str(inside / "later.png"))),
        chat("no image", image_url(data_url(b"no image"))),
        row("last", "/v1/completions", prompt="a", max_tokens=2),
    ]
    requests, answers = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with requests.open("a") as file:
        file.write("\n  \nno JSON\n{")
    flags = ["--allowed-local-media-path", str(inside), "--error-file", str(tmp_path / "bad.jsonl")]
    done = batch(requests, answers, *flags, code=3)
    assert "Rows without an answer: " in done.stdout and "2 rows answered, 13 without an answer" in done.stdout
    assert sorted(ids_of(answers)) == ["good", "last"]
    bad = {line["error"]["line"]: line for line in lines_of(tmp_path / "bad.jsonl")}
    codes = {number: (line["custom_id"], line["error"]["code"]) for number, line in bad.items() if line["response"] is None}
    assert codes == {
        2: ("endpoint", "invalid_url"),
        3: ("method", "invalid_method"),
        4: (None, "missing_required_parameter"),
        5: ("good", "duplicate_custom_id"),
        6: ("body", "missing_required_parameter"),
        16: (None, "invalid_json_line"),
        17: (None, "invalid_json_line"),
    }
    asked = {line["custom_id"]: line for line in bad.values() if line["response"] is not None}
    assert {name: line["response"]["status_code"] for name, line in asked.items()} == {
        **dict.fromkeys(("stream", "field", "outside", "missing", "no image"), 400),
        "model": 404,
    }
    for line in asked.values():
        assert line["error"]["message"] == line["response"]["body"]["error"]["message"]
    assert "tempreature" in asked["field"]["error"]["message"] and asked["field"]["error"]["line"] == 8
    assert "--allowed-local-media-path" in asked["outside"]["error"]["message"]
    (inside / "later.png").write_bytes(png(2))
    done = batch(requests, answers, *flags, code=3)
    assert "1 row answered, 12 without an answer, 2 answered before" in done.stdout
    assert sorted(ids_of(answers)) == ["good", "last", "missing"] and count_lines(tmp_path / "bad.jsonl") == 12


def long_rows(count: int) -> list[dict[str, Any]]:
    return [chat(f"row {number}", image_url(data_url(png(number))), max_tokens=24, ignore_eos=True) for number in range(count)]


def test_it_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """kill -9 in the middle, twice, with a line torn behind it. Red when a row is lost or asked again, or a piece of one is
    left."""
    requests, answers = write(tmp_path / "in.jsonl", long_rows(40)), tmp_path / "out.jsonl"
    kept: list[str] = []
    for whole in (7, 19):
        with begun(requests, answers, "--concurrency", "3") as process:
            wait_for(lambda whole=whole: count_lines(answers) >= whole or None, "answers")
            left = descendants(process.pid)
            process.kill()
        wait_for(lambda left=left: not any(map(process_exists, left)) or None, "its engine to end")
        text = answers.read_bytes()
        torn = text[: text.rfind(b"\n") + 1] + text.splitlines()[0][: 20 * whole]
        answers.write_bytes(torn)
        found = ids_of(tmp_path / "out.jsonl") if torn.endswith(b"\n") else [*whole_ids(torn)]
        assert found[: len(kept)] == kept and len(found) >= whole
        kept = found
    done = batch(requests, answers)
    assert f"{40 - len(kept)} rows answered, {len(kept)} answered before" in done.stdout
    found = ids_of(answers)
    assert found[: len(kept)] == kept and sorted(found) == sorted(f"row {number}" for number in range(40))


def whole_ids(text: bytes) -> list[str]:
    return re.findall(r'"custom_id":"(row \d+)","response":.*"error":null}\n', text.decode())


@pytest.mark.slow
def test_it_can_be_killed_at_any_moment(tmp_path: Path) -> None:
    """From its first moment on, again and again, until it is through."""
    requests, answers = write(tmp_path / "in.jsonl", long_rows(60)), tmp_path / "out.jsonl"
    kept: list[str] = []
    for patience_s in (0.2, 1.0, 2.0, 3.0, 4.0, 5.0, 5.5, 6.0):
        with begun(requests, answers, "--concurrency", "2") as process:
            time.sleep(patience_s)
            process.kill()
        found = whole_ids(answers.read_bytes()) if answers.exists() else []
        assert found[: len(kept)] == kept
        kept = found
    batch(requests, answers)
    assert sorted(ids_of(answers)) == sorted(f"row {number}" for number in range(60)) and ids_of(answers)[: len(kept)] == kept


@pytest.mark.slow
def test_an_engine_that_dies_costs_no_row(tmp_path: Path) -> None:
    """Red when the rows that were in it are lost, or are in the file of errors."""
    requests, answers = write(tmp_path / "in.jsonl", long_rows(30)), tmp_path / "out.jsonl"
    with begun(requests, answers, "--concurrency", "4", "--restart-backoff-s", "0.1") as process:
        wait_for(lambda: count_lines(answers) >= 5 or None, "answers")
        for pid in descendants(process.pid):
            if b"sightline.engine.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (out, err)
    assert "was killed by signal 9" in err and out.startswith("30 rows answered;")
    assert sorted(ids_of(answers)) == sorted(f"row {number}" for number in range(30))


@pytest.mark.slow
def test_an_engine_that_cannot_be_kept_ends_it_and_keeps_the_answers(tmp_path: Path) -> None:
    requests, answers = write(tmp_path / "in.jsonl", long_rows(60)), tmp_path / "out.jsonl"
    with begun(requests, answers, "--concurrency", "2", "--max-restarts", "0") as process:
        wait_for(lambda: count_lines(answers) >= 3 or None, "answers")
        for pid in descendants(process.pid):
            if b"sightline.engine.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1 and "sightline: The engine process was killed by signal 9" in err
    assert 3 <= count_lines(answers) < 60 and not (tmp_path / "out.errors.jsonl").exists()


@pytest.mark.slow
def test_a_signal_ends_it(tmp_path: Path) -> None:
    requests, answers = write(tmp_path / "in.jsonl", long_rows(60)), tmp_path / "out.jsonl"
    with begun(requests, answers, "--concurrency", "2") as process:
        wait_for(lambda: count_lines(answers) >= 2 or None, "answers")
        left = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143 and "run it again to go on" in err and "Traceback" not in err
    assert not any(map(process_exists, left))
    assert len(ids_of(answers)) == count_lines(answers) < 60


@pytest.mark.slow
def test_several_engines(tmp_path: Path) -> None:
    requests, answers = write(tmp_path / "in.jsonl", long_rows(24)), tmp_path / "out.jsonl"
    done = batch(requests, answers, "--data-parallel-size", "2")
    assert "Engine 2 of 2 is ready." in done.stderr and len(ids_of(answers)) == 24


@pytest.mark.slow
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    requests, answers = write(tmp_path / "in.jsonl", long_rows(3)), tmp_path / "out.jsonl"
    own, terminal = pty.openpty()
    try:
        words = {**environment(), "TERM": "xterm-256color", "COLUMNS": "160"}
        process = subprocess.Popen(command(requests, answers), stdout=subprocess.DEVNULL, stderr=terminal, env=words)
        os.close(terminal)
        said = b""
        while True:
            try:
                said += os.read(own, 65536)
            except OSError:  # the other end is closed
                break
        assert process.wait(PATIENCE_S) == 0
    finally:
        os.close(own)
    assert "━" in said.decode() and "100%" in said.decode() and "3 rows answered" in said.decode()


# ---- What is refused before a model is loaded


def refusal(capsys: pytest.CaptureFixture[str], requests: Path, answers: Path, *flags: str) -> str:
    assert main(["batch", str(requests), str(answers), *flags]) == 1
    return capsys.readouterr().err


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests, answers = write(tmp_path / "in.jsonl", long_rows(1)), tmp_path / "out.jsonl"
    said = refusal(capsys, tmp_path / "nowhere.jsonl", answers)
    assert not answers.exists()
    assert said == f"sightline: The file of requests {tmp_path}/nowhere.jsonl cannot be read: No such file or directory.\n"
    assert "IN and OUT are the same file" in refusal(capsys, requests, tmp_path / "x" / ".." / "in.jsonl")
    assert "--concurrency is 0, but must be at least 1." in refusal(capsys, requests, answers, "--concurrency", "0")
    notes = tmp_path / "notes"
    for text in ("my notes", "my notes\n", '{"custom_id": "row 0"}\n'):
        notes.write_text(text)
        assert "exists and holds no answers of a batch: see its line 1" in refusal(capsys, requests, notes)
        assert "exists and holds no errors of a batch" in refusal(capsys, requests, answers, "--error-file", str(notes))
        assert notes.read_text() == text
    with answers.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "is being written by another process" in refusal(capsys, requests, answers)
