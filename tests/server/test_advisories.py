"""What published advisories of comparable servers describe, tried on this one; docs/media-safety.md has the table."""

import ast
import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import sightline
from server.media import data_url, jpeg, png, text_part
from server.running import RunningServer, running
from server.test_errors import error_of
from server.wire import exchange

ASK = [{"role": "user", "content": "Hello"}]
PACKAGE = Path(sightline.__file__).parent


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("keyed"), "--api-key", "the-key", "--kv-cache-gb", "0.1", key="the-key") as made:
        yield made


def picture(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(file, "PNG")
    return file.getvalue()


def part(kind: str, url: str) -> dict[str, Any]:
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 2), (2, 1), (1, 200), (200, 1), (27, 1), (28, 28), (29, 27)])
def test_tiny_images(server: RunningServer, width: int, height: int) -> None:
    """CVE-2026-22773: an image of 1×1 pixels ended the engine. Red when a tiny one is anything but answered."""
    pid = server.stats()["engine_pid"]
    content = [part("image", data_url(picture(width, height))), text_part("What?")]
    assert server.post(messages=[{"role": "user", "content": content}], max_tokens=1).status_code == 200
    assert server.stats()["engine_pid"] == pid


def test_an_image_beyond_the_aspect_ratio(server: RunningServer) -> None:
    content = [part("image", data_url(picture(201, 1))), text_part("What?")]
    assert "--max-aspect-ratio" in error_of(server.post(messages=[{"role": "user", "content": content}]), 400)["message"]


@pytest.mark.parametrize("kind", ["image", "video"])
def test_lists_of_frames_in_a_data_url(server: RunningServer, kind: str) -> None:
    """CVE-2026-34755, CVE-2026-5497: frames of a `video/jpeg` URL, between commas, passed every limit on frames. Here it is one
    file where an image is asked for; as a video its frames count against what a request may have, before one is looked at, and
    against what the model takes."""
    frame = base64.b64encode(jpeg(1)).decode()

    def refused(count: int) -> str:
        url = "data:video/jpeg;base64," + ",".join([frame] * count)
        answer = server.post(messages=[{"role": "user", "content": [part(kind, url), text_part("What?")]}])
        return str(error_of(answer, 400)["message"])

    if kind == "image":
        assert "base64" in refused(500)
    else:
        assert "has 5,000 frames, more than the 4,096 allowed (--max-request-frames)" in refused(5000)
        assert "A list of 800 frames is too long: the model takes" in refused(800)


@pytest.mark.parametrize("host", ["x/health?", "x/docs#", "localhost/v1/../health?", "localhost:1/health", "a@b/health?"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/tokenize"])
def test_a_path_in_the_host_header_opens_no_door(keyed: RunningServer, host: str, path: str) -> None:
    """CVE-2026-48746: which routes need a key was decided by a URL that the Host header is part of."""
    method = "GET" if path == "/v1/models" else "POST"
    data = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    assert exchange(keyed, data).status in (400, 401)


def test_every_route_that_does_something_needs_the_key(keyed: RunningServer) -> None:
    """Side routes without a key: red when one is added that answers strangers."""
    described = keyed.http.get("/openapi.json").json()["paths"]
    tried = set()
    for path, methods in described.items():
        for method, operation in methods.items():
            status = exchange(
                keyed, f"{method.upper()} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode()
            ).status
            open_to_all = path in ("/health", "/ready", "/version")
            assert (status == 200) if open_to_all else (status == 401), (path, status)
            assert bool(operation.get("security")) is not open_to_all
            tried.add(path)
    assert {"/v1/chat/completions", "/tokenize", "/stats", "/flush_cache"} <= tried


@pytest.mark.parametrize(
    "field",
    [
        {"prompt_embeds": base64.b64encode(b"\x80\x04.").decode()},
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": {"tokenize": True, "chat_template": "{{ 1 }}", "messages": []}},
        {"n": 10**9},
        {"n": 2**62},
        {"lora_request": {"path": "/"}},
        {"guided_decoding_backend": "x"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_fields_that_opened_doors_elsewhere(server: RunningServer, field: dict[str, Any]) -> None:
    """CVE-2025-62164 (tensors of a client), CVE-2025-62426 (keyword arguments of the renderer), CVE-2026-34756 (any number of
    answers), templates that a client sends. Red when one of them is accepted."""
    error_of(server.post(messages=ASK, max_tokens=1, **field), 400)


def test_nothing_is_unpickled() -> None:
    """CVE-2026-3059, -3060, -7301, CVE-2025-62164: code in what a socket or a checkpoint brings. Red when pickle, marshal,
    shelve or torch.load comes into the package, or YAML that makes objects."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"} & set(names), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                called = f"{node.func.value.id}.{node.func.attr}"
                assert called not in ("torch.load", "yaml.load", "yaml.unsafe_load", "np.load", "numpy.load"), path


def test_sockets_of_the_engine_are_no_network(server: RunningServer) -> None:
    """Brokers that listened on all interfaces. Red when any process of ours listens on another port than the API's."""
    pids = {server.process.pid, int(server.stats()["engine_pid"])}
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(link.readlink().name)
            except OSError:
                continue
    listening = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{server.process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.add(int(fields[1].rsplit(":", 1)[1], 16))
    assert listening == {server.port}


def test_damaged_forms_of_tools_are_refused(server: RunningServer) -> None:
    """CVE-2025-48944: a pattern or a type that is none ended the worker."""
    for schema in ({"type": "something"}, {"type": "string", "pattern": "("}, {"type": ["object", 3]}, {"$ref": "#/nothing"}):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}}
        answer = server.post(messages=ASK, max_tokens=1, tools=[tool], tool_choice="required")
        assert answer.status_code in (200, 400), answer.text
    assert server.post(
        messages=[{"role": "user", "content": [part("image", data_url(png(5))), text_part("?")]}], max_tokens=1
    ).is_success


def test_the_table_names_tests_that_exist() -> None:
    """Red when a test that docs/media-safety.md promises is renamed or lost."""
    tests = Path(__file__).parents[1]
    text = (tests.parent / "docs" / "media-safety.md").read_text(encoding="utf-8")
    rows = [
        row for row in text.split("## What others were found to lack")[1].split("\n## ")[0].splitlines() if row.startswith("|")
    ][2:]
    assert len(rows) > 20
    for row in rows:
        file = ""
        for name in re.findall(r"`([\w/]+\.py(?:::\w+)?|test_\w+)`", row.rsplit("|", 2)[1]):
            path, _, function = name.partition("::")
            file, function = (path, function) if path.endswith(".py") else (file, path)
            assert (tests / file).is_file(), name
            assert not function or f"def {function}(" in (tests / file).read_text(encoding="utf-8"), name
