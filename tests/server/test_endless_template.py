"""A checkpoint whose template loops for ever: each request is a 400, and the server is as well as before."""

import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

from server.running import running, wait_for
from server.test_errors import error_of

ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
)
REQUESTS = 20


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_after_twenty_such_requests_the_server_is_idle(tmp_path: Path) -> None:
    """Small bodies and large ones: rendered on the event loop and in threads. Red when a rendering goes on after
    its request was refused, or holds up the event loop, or when the server cannot be stopped."""
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(Path(str(resources.files("sightline.data"))) / "embedded", checkpoint)
    (checkpoint / "chat_template.jinja").write_text("{% if messages[0].content[0] == 'L' %}" + ENDLESS + "{% endif %}x")

    def ask(number: int) -> str:
        content = "Loop" + "x" * (5000 if number % 2 else 0)
        response = server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
        return str(error_of(response, 400)["message"])

    with running(tmp_path, "--model", str(checkpoint), "--kv-cache-gb", "0.1") as server:
        with ThreadPoolExecutor(REQUESTS) as pool:
            asked = [pool.submit(ask, number) for number in range(REQUESTS)]
            while not all(answer.done() for answer in asked):
                began = time.monotonic()
                assert server.http.get("/health").status_code == 200
                assert time.monotonic() - began < 2, "/health waits for templates"
            assert all("does not come to an end" in answer.result() for answer in asked)
        wait_for(lambda: is_idle(server.process.pid) or None, "the processor to be idle")
        began = time.monotonic()
        assert server.http.get("/health").status_code == 200
        assert server.post(messages=[{"role": "user", "content": "Hello"}], max_tokens=1).status_code == 200
        assert server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began < 10


def is_idle(pid: int) -> bool:
    before = cpu_seconds(pid)
    time.sleep(1.0)
    return cpu_seconds(pid) - before < 0.2
