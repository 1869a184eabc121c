"""Fetching over http(s): where to. Every refusal by its sentence; test_fetch_limits.py has how much and how long."""

import asyncio
import dataclasses
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from certificates import make_certificate
from media.fetching import get, refused
from media.web import JPEG, LOCAL, Names, Server, pretend_internet, serving
from sightline.config import MediaConfig
from sightline.media import fetch as fetch_module

SITE, OTHER = "93.184.216.34", "2606:2800:220:1::1"  # public addresses
NOT_PUBLIC = "its host has no address, or one that is not on the public internet (--allow-private-media)."


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


# ---- Where to


# Red if the body changes on the way, or if a running event loop (a notebook) stands in the way.
def test_fetch(server: Server) -> None:
    assert get(server.url("jpeg"), LOCAL) == JPEG

    async def inside() -> bytes:
        return get(server.url("jpeg"), LOCAL)

    assert asyncio.run(inside()) == JPEG


# Red if any of these is dialled, or if the sentence tells one kind of inside address from another.
@pytest.mark.parametrize(
    "host",
    "127.0.0.1 127.9.9.9 10.0.0.1 172.16.3.4 192.168.0.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 "
    "[::1] [::] [fd00::1] [fe80::1] [fe80::1%25lo] [ff02::1] [::ffff:127.0.0.1] [::ffff:a00:1] [64:ff9b::7f00:1] "
    "[2002:7f00:1::] [2001:0:7f00:1::] 127。0。0。1 168.63.129.16".split(),
)
def test_inside_addresses_are_refused(host: str, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server)
    refused(f"http://{host}/jpeg", NOT_PUBLIC)
    refused(f"https://{host}:8443/jpeg", NOT_PUBLIC)
    name = Names({"picture.example": [[host.strip("[]").replace("%25", "%")]]})
    if host.isascii():
        refused("http://picture.example/jpeg", NOT_PUBLIC, resolver=name)
    assert not dialled


# Red if a name that nobody knows gets another sentence: then one could find out which names exist inside.
def test_unknown_names_and_inside_names_get_the_same_sentence(server: Server) -> None:
    names = Names({"inside.example": [["10.0.0.7"]], "empty.example": [[]], "odd.example": [["not an address"]]})
    for host in ("inside.example", "nowhere.example", "empty.example", "odd.example"):
        refused(f"http://{host}/", NOT_PUBLIC, resolver=names)
    refused("http://nowhere.example/", "its host has no address.", LOCAL, names)


# Red if one public address among the answers is enough: a connection may pick any of them.
@pytest.mark.parametrize("answers", [[SITE, "127.0.0.1"], ["::1", SITE], [SITE, OTHER, "fd00::1"]])
def test_mixed_answers(answers: Sequence[str], monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE, OTHER)
    refused("http://picture.example/jpeg", NOT_PUBLIC, resolver=Names({"picture.example": [answers]}))
    assert not dialled


# Red if the name is dialled rather than the address that was checked, or if the Host header has the address.
def test_the_checked_address_is_dialled(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE, OTHER)
    names = Names({"picture.example": [[SITE]], "six.example": [[OTHER]], "xn--bcher-kva.example": [[SITE]]})
    assert get("http://Picture.EXAMPLE/jpeg?a=1#b", resolver=names) == JPEG
    assert get("http://six.example:8080/jpeg", resolver=names) == JPEG
    assert get("http://bücher.example/jpeg", resolver=names) == JPEG
    assert get(f"http://{SITE}/jpeg") == JPEG
    assert dialled == [SITE, OTHER, SITE, SITE]
    assert server.asked == [
        ("picture.example", "/jpeg?a=1"),
        ("six.example:8080", "/jpeg"),
        ("xn--bcher-kva.example", "/jpeg"),
        (SITE, "/jpeg"),
    ]


# Red if the name is looked up again for the connection.
def test_rebinding_between_check_and_connection(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE)
    names = Names({"rebind.example": [[SITE], ["127.0.0.1"]]})
    assert get("http://rebind.example/jpeg", resolver=names) == JPEG
    assert (names.asked, dialled) == (["rebind.example"], [SITE])
    refused("http://rebind.example/jpeg", NOT_PUBLIC, resolver=names)
    assert dialled == [SITE]


# The same with real sockets and no pretence: two servers on one port, and a name that moves from one to the other.
def test_rebinding_with_two_servers() -> None:
    with serving("127.0.0.1") as first:
        try:
            second_serving = serving("127.0.0.2", first.server_port)
            second = second_serving.__enter__()
        except OSError:
            pytest.skip("this machine has no 127.0.0.2")
        try:
            names = Names({"rebind.example": [["127.0.0.1"], ["127.0.0.2"]]})
            assert get(first.url("jpeg", "rebind.example"), LOCAL, names) == JPEG
            assert (first.connections, second.connections, names.asked) == (1, 0, ["rebind.example"])
        finally:
            second_serving.__exit__(None, None, None)


# Red if a redirect is followed without the checks of a first request.
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("to/127.0.0.1:80/jpeg", NOT_PUBLIC),
        ("to/[::1]:8080/jpeg", NOT_PUBLIC),
        ("to/169.254.169.254:80/latest/meta-data", NOT_PUBLIC),
        ("to/inside.example:80/jpeg", NOT_PUBLIC),
        ("to/rebind.example:80/jpeg", NOT_PUBLIC),
        ("to/user@picture.example:80/jpeg", "its URL holds a user name or password."),
        ("to/picture.example:22/jpeg", "port 22 is not among 80, 443, 8080, 8443 (--allowed-media-ports)."),
        ("to/2130706433:80/jpeg", "'2130706433' is neither a plain host name nor an IP address."),
        ("tofile", "'file:/etc/passwd' is not an http(s) URL with a host."),
        ("loop", "it redirects more than 5 times."),
        ("hop/5", "it redirects more than 5 times."),
        ("nowhere", "the server answered with status 302."),
    ],
)
def test_redirects_are_checked(path: str, reason: str, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE)
    names = Names({"picture.example": [[SITE]], "inside.example": [["192.168.0.9"]], "rebind.example": [[SITE], ["127.0.0.1"]]})
    host = "rebind.example" if "rebind" in path else "picture.example"
    refused(f"http://{host}/{path}", reason, resolver=names)
    assert set(dialled) == {SITE}


def test_redirects_that_are_fine(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE, OTHER)
    names = Names({"picture.example": [[SITE]], "six.example": [[OTHER]]})
    assert get("http://picture.example/to/six.example:80/hop/3", resolver=names) == JPEG
    assert dialled == [SITE, *[OTHER] * 5]


def test_relative_redirects(server: Server) -> None:
    assert get(server.url("hop/4"), LOCAL, Names({})) == JPEG
    assert [path for _, path in server.asked] == ["/hop/4", "/hop/3", "/hop/2", "/hop/1", "/hop/0", "/jpeg"]


# Red if a dead address ends the attempt though the host has another.
def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE)
    names = Names({"picture.example": [[OTHER, SITE]], "dead.example": [[OTHER]]})
    assert get("http://picture.example/jpeg", resolver=names) == JPEG
    assert dialled == [OTHER, SITE]
    refused("http://dead.example/jpeg", "no connection could be made to its host.", resolver=names)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.1/", "'127.1' is neither a plain host name nor an IP address."),
        ("http://0x7f000001/", "'0x7f000001' is neither a plain host name nor an IP address."),
        ("http://0x7f.0.0.1/", "'0x7f.0.0.1' is neither a plain host name nor an IP address."),
        ("http://2130706433/", "'2130706433' is neither a plain host name nor an IP address."),
        ("http://0177.0.0.1/", "it is not a valid URL."),
        ("http://１２７.0.0.1/", "it is not a valid URL."),
        ("http://localhost./", "'localhost.' is neither a plain host name nor an IP address."),
        ("http://127.0.0.1./", "'127.0.0.1.' is neither a plain host name nor an IP address."),
        ("http://%31%32%37.0.0.1/", "'%31%32%37.0.0.1' is neither a plain host name nor an IP address."),
        ("http://picture.example\\@127.0.0.1/", "its URL holds a user name or password."),
        (
            "http://127.0.0.1\\.picture.example/",
            "'127.0.0.1\\\\.picture.example' is neither a plain host name nor an IP address.",
        ),
        ("http://user:word@picture.example/", "its URL holds a user name or password."),
        ("http://picture.example@127.0.0.1/", "its URL holds a user name or password."),
        ("http://picture.example:22/", "port 22 is not among 80, 443, 8080, 8443 (--allowed-media-ports)."),
        ("https://picture.example:6379/", "port 6379 is not among 80, 443, 8080, 8443 (--allowed-media-ports)."),
        ("http://picture.example:0/", "'http://picture.example:0/' is not an http(s) URL with a host."),
        ("http://picture.example:99999/", "'http://picture.example:99999/' is not an http(s) URL with a host."),
        ("http://picture.example:x/", "it is not a valid URL."),
        ("http://", "'http:' is not an http(s) URL with a host."),
        ("http:///etc/passwd", "'http:/etc/passwd' is not an http(s) URL with a host."),
        ("http://[::1", "it is not a valid URL."),
        ("http://a\nb/", "it is not a valid URL."),
        ("http://picture.example/\ud800", "it is not a valid URL."),
        ("http://" + "a" * 70_000, "it is not a valid URL."),
    ],
)
def test_odd_urls(url: str, reason: str, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE)
    refused(url, reason, resolver=Names({"picture.example": [[SITE]]}))
    assert not dialled


# Red if only the first host is compared with the list, if letter case or spelling matters, or if a longer name passes.
def test_allowed_domains(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    dialled = pretend_internet(monkeypatch, server, SITE)
    names = Names(
        {name: [[SITE]] for name in ("picture.example", "xn--bcher-kva.example", "evil.example", "a.picture.example")}
    )
    limits = MediaConfig(allowed_media_domains=("Picture.example", "bücher.example"))
    assert get("http://picture.EXAMPLE/jpeg", limits, names) == JPEG
    assert get("http://xn--bcher-kva.example/to/picture.example:80/jpeg", limits, names) == JPEG
    dialled.clear()
    for host in ("evil.example", "a.picture.example", "picture.example.evil.example", SITE):
        refused(f"http://{host}/jpeg", f"host {host!r} is not among --allowed-media-domains.", limits, names)
    assert not dialled
    refused(
        "http://picture.example/to/evil.example:80/jpeg",
        "host 'evil.example' is not among --allowed-media-domains.",
        limits,
        names,
    )
    # the list narrows and does not widen
    inside = MediaConfig(allowed_media_domains=("localhost", "127.0.0.1"))
    refused("http://127.0.0.1/jpeg", NOT_PUBLIC, inside, names)


# Red if the next reason is told only when the one before is repaired.
def test_all_settings_that_forbid_a_url_are_named_at_once(server: Server) -> None:
    ports = "port 9000 is not among 80, 443, 8080, 8443 (--allowed-media-ports)"
    names = Names({"inside.example": [["10.0.0.7"]], "localhost": [["127.0.0.1"]]})
    for host in ("127.0.0.1", "localhost", "inside.example"):
        refused(f"http://{host}:9000/", f"{ports}; {NOT_PUBLIC}", resolver=names)
    assert names.asked == ["localhost", "inside.example"]
    listed = MediaConfig(allowed_media_domains=("picture.example",), allow_http=False)
    everything = f"http(s) URLs are switched off (--allow-http); host 'localhost' is not among --allowed-media-domains; {ports}"
    refused("http://localhost:9000/", f"{everything}; {NOT_PUBLIC}", listed, names)
    refused(
        "http://inside.example/",
        "http(s) URLs are switched off (--allow-http); host 'inside.example' is not among --allowed-media-domains.",
        listed,
        names,
    )
    assert len(names.asked) == 2, "a host that is forbidden by its name was looked up"


def test_switched_off(server: Server) -> None:
    refused(server.url("jpeg"), "http(s) URLs are switched off (--allow-http).", dataclasses.replace(LOCAL, allow_http=False))
    assert server.connections == 0


# Red if a proxy of the environment is used: it would look up the name itself, and the checks would be for nothing.
def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    with serving() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert get(server.url("jpeg"), LOCAL) == JPEG
        assert (server.connections, proxy.connections) == (1, 0)


# ---- TLS


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A certificate for picture.example that fetches trust, and its key."""
    made = make_certificate(tmp_path, "picture.example")
    trusting = ssl.create_default_context(cafile=made[0])
    monkeypatch.setattr(fetch_module, "_tls", lambda: trusting)
    return made


# Red if the certificate is compared with the address instead of the name, is not compared at all, or the name is not sent.
def test_certificates_are_the_names(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    greeted: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: greeted.append(name)
    with serving(tls=context) as server:
        dialled = pretend_internet(monkeypatch, server, SITE)
        names = Names({"picture.example": [[SITE]], "other.example": [[SITE]]})
        assert get("https://picture.example/jpeg", resolver=names) == JPEG
        refused("https://other.example/jpeg", "the certificate of its host is not valid.", resolver=names)
        refused(f"https://{SITE}/jpeg", "the certificate of its host is not valid.", resolver=names)
        assert dialled == [SITE] * 3
        assert greeted[:2] == ["picture.example", "other.example"]
        assert server.asked == [("picture.example", "/jpeg")]


def test_a_host_without_tls(server: Server) -> None:
    refused(f"https://127.0.0.1:{server.server_port}/jpeg", "its host does not speak TLS as it should.", LOCAL)
