"""The files of the playground over HTTP: all there, nothing from elsewhere, nothing else to be had."""

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from server.running import RunningServer

DEMO = Path(str(resources.files("sightline.data"))) / "demo"
SAMPLES = json.loads((DEMO / "questions.json").read_text())


def test_the_page_may_load_nothing_from_elsewhere(server: RunningServer) -> None:
    response = server.http.get("/")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_every_file_that_the_page_names_is_there(server: RunningServer) -> None:
    """Red when a file is renamed, or left out of the package. Nothing is inline, and nothing comes from another host."""
    page = server.http.get("/").text
    assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=", page)
    waiting = set(re.findall(r'(?:src|href)="([^"#]+)"', page)) - {"/docs", "/metrics"}
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        response = server.http.get(path)
        assert path.startswith("/playground/") and response.status_code == 200, path
        if path.endswith(".js"):
            assert response.headers["content-type"].startswith("text/javascript")
            waiting |= {f"/playground/{name}" for name in re.findall(r'(?:from|import) "\./([\w.]+)"', response.text)} - seen
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", response.text), path
        plain = re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", response.text)  # names of kinds of elements
        assert "http://" not in plain and "https://" not in plain
    assert len(seen) >= 13


def test_what_is_from_others_comes_with_its_licence(server: RunningServer) -> None:
    assert "katex" in server.http.get("/playground/katex.js").text
    assert server.http.get("/playground/katex.LICENSE.txt").text.startswith("The MIT License (MIT)")


def test_the_page_is_told_what_kind_of_model_answers(server: RunningServer) -> None:
    assert server.http.get("/playground/about").json() == {"embedded": True, "coordinates": "thousandths"}


def test_samples_are_those_of_the_demo_without_answers(server: RunningServer) -> None:
    listed = server.http.get("/playground/samples").json()
    assert [one["question"] for one in listed] == [one["question"] for one in SAMPLES]
    assert all(set(one) == {"question", "media"} for one in listed)
    for one in listed:
        for medium in one["media"]:
            response = server.http.get(medium["url"])
            assert response.content == (DEMO / medium["url"].rsplit("/", 1)[1]).read_bytes()
            assert response.headers["content-type"].startswith(f"{medium['kind']}/")


@pytest.mark.parametrize(
    "path", ["nothing.js", "..%2fapp.py", "%2e%2e/app.py", "samples/..%2f__init__.py", "samples/nothing.png"]
)
def test_other_files_cannot_be_had(server: RunningServer, path: str) -> None:
    response = server.http.get(f"/playground/{path}")
    assert response.status_code == 404 and response.json()["error"]["code"] == "unknown_endpoint"


def test_unchanged_files_are_not_sent_again(server: RunningServer) -> None:
    tag = server.http.get("/playground/app.js").headers["etag"]
    again = server.http.get("/playground/app.js", headers={"If-None-Match": tag})
    assert again.status_code == 304 and not again.content
