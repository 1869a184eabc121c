"""What pages of other sites can make a browser send: to a server on loopback without a key, and to one with allowed names."""

import re
from collections.abc import Iterator

import httpx
import pytest

from server.running import RunningServer, running
from server.test_errors import error_of
from server.wire import exchange
from sightline.config import ServerConfig
from sightline.errors import ConfigError
from sightline.server.browsers import host_name, is_loopback

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
CHAT = "/v1/chat/completions"
POSTS = (CHAT, "/v1/completions", "/tokenize", "/detokenize", "/flush_cache")
GETS = ("/v1/models", "/v1/models/other-name", "/stats", "/metrics", "/health", "/ready", "/version", "/openapi.json", "/")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """As behind a proxy that forwards the public Host, with a page of another site that may call it."""
    flags = ("--allowed-hosts", "models.example", "--allowed-origins", "https://pages.example", "--kv-cache-gb", "0.1")
    with running(tmp_path_factory.mktemp("named"), *flags) as made:
        yield made


@pytest.mark.parametrize("path", [*POSTS, *GETS])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"])
def test_a_name_that_was_made_to_lead_here_reads_nothing(server: RunningServer, path: str, host: str) -> None:
    """DNS rebinding: the browser takes us for the page's own site. Red when any route answers under a stranger's name."""
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    error = error_of(server.http.request("POST" if path in POSTS else "GET", path, headers=headers), 403)
    assert error["code"] == "host_not_allowed" and "--allowed-hosts" in error["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "a.localhost", "localhost."]
)
def test_names_of_loopback_are_served(server: RunningServer, host: str) -> None:
    assert server.http.get("/v1/models", headers={"Host": host}).status_code == 200


def test_two_names_at_once_are_none(server: RunningServer) -> None:
    """Red when one of two Host headers is enough."""
    assert exchange(server, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n").status in (400, 403)
    assert exchange(server, b"GET /health HTTP/1.0\r\n\r\n").status == 200  # a probe without Host, which no browser leaves out


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},  # a form
    ],
    ids=lambda headers: " ".join(headers.values()),
)
def test_pages_of_other_sites_cannot_post(server: RunningServer, path: str, headers: dict[str, str]) -> None:
    """Red when a body that needs no preflight is worked on, whoever sends it."""
    response = server.http.post(path, json=HELLO, headers={"Content-Type": "text/plain", **headers})
    assert error_of(response, 403)["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in response.headers


def test_own_pages_and_plain_clients_may_call(server: RunningServer) -> None:
    """Also behind a proxy that changes Host, if the browser says that it is the same site."""
    for headers in ({"Origin": server.url}, {"Origin": "https://models.example", "Sec-Fetch-Site": "same-origin"}, {}):
        assert server.http.post(CHAT, json=HELLO, headers=headers).status_code == 200, headers


def test_links_from_other_sites_lead_to_pages_only(server: RunningServer) -> None:
    click = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for path in ("/", "/docs", "/metrics"):
        assert server.http.get(path, headers=click).status_code == 200
        assert server.http.get(path, headers={**click, "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert server.http.get("/v1/models", headers=click).status_code == 403


def test_allowed_hosts_and_origins(named: RunningServer) -> None:
    """CORS for origins that are named, nothing for others."""
    public = {"Host": "models.example"}
    assert named.http.post(CHAT, json=HELLO, headers=public).status_code == 200
    assert named.http.post(CHAT, json=HELLO, headers={"Host": "other.example"}).status_code == 403
    page = {**public, "Origin": "https://pages.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    answer = named.http.post(CHAT, json=HELLO, headers=page)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://pages.example"

    def preflight(origin: str) -> httpx.Response:
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        return named.http.options(CHAT, headers={**public, **asks, "Access-Control-Request-Private-Network": "true"})

    allowed = preflight("https://pages.example")
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-private-network"] == "true"
    refused = preflight("https://evil.example")
    assert refused.status_code == 403 and not any(name.startswith("access-control") for name in refused.headers)


def test_the_description_is_a_page_that_needs_nothing_from_elsewhere(server: RunningServer) -> None:
    """Red when /docs loads a script of another host: without the internet it was a blank page."""
    response = server.http.get("/docs")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"https?:|<script|url\(", response.text)
    for link in re.findall(r'(?:src|href)="([^"#]+)"', response.text):
        assert link.startswith("/") and server.http.get(link).status_code == 200, link
    described = server.http.get("/openapi.json").json()
    for path in described["paths"]:
        assert path in response.text
    for name, schema in described["components"]["schemas"].items():
        assert f'id="{name}"' in response.text
        assert all(f">{field}<" in response.text for field in schema.get("properties", ())), name
    assert {f"#{name}" for name in described["components"]["schemas"]} >= set(re.findall(r'href="(#[^"]+)"', response.text))


@pytest.mark.parametrize(
    ("host", "name", "loopback"),
    [
        *(("Localhost:80", "localhost", True), ("[::1]:8000", "::1", True), ("[::1]", "::1", True), ("::1", "::1", True)),
        *(("evil.example:8000", "evil.example", False), ("127.0.0.1@evil", "127.0.0.1@evil", False), ("", "", False)),
        *(("[evil", "evil", False), ("0.0.0.0", "0.0.0.0", False), ("10.0.0.1", "10.0.0.1", False)),
    ],
)
def test_names_in_host_headers(host: str, name: str, loopback: bool) -> None:
    assert host_name(host) == name and is_loopback(name) is loopback


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("allowed_hosts", "models.example:443"), ("allowed_hosts", "https://models.example")),
        *(("allowed_origins", "pages.example"), ("allowed_origins", "https://pages.example/")),
    ],
)
def test_names_that_no_browser_sends_are_refused_at_the_start(field: str, value: str) -> None:
    """Red when a setting that can never match is taken, and its user wonders."""
    with pytest.raises(ConfigError, match=re.escape(repr(value))):
        ServerConfig(**{field: (value,)})
