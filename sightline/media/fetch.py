"""Fetches one image or video over http(s), within limits of size, time and place.

The one idea: the host is looked up once per hop, every address it has must be allowed, and the connection is made to one of
those very addresses, while the Host header and the certificate's name stay the host's. So a name that answers differently the
second time (DNS rebinding) changes nothing. Each redirect goes through the same checks. No proxy is used.
"""

import asyncio
import functools
import io
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore
import httpx

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.addresses import Address, Resolver, is_plain_name, is_public, literal_address
from sightline.media.limits import ByteAllowance
from sightline.media.lookups import LOOK_UPS

RoomFor = Callable[[int], Awaitable[None]]
MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_ADDRESSES = 4  # tried one after another
_PATIENCE_S = 3.0  # with each but the last: the rest of the time is for the others
# Some hosts refuse clients that do not name themselves. Pictures do not shrink under gzip, and unpacking needs a limit too.
_HEADERS = {"User-Agent": "sightline", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}


def fetch(url: str, limits: MediaConfig, allowance: ByteAllowance, resolver: Resolver | None = None) -> bytes:
    """The body behind `url`. Blocks; may be called with or without a running event loop."""
    # A thread of its own, because asyncio.run refuses to nest (notebooks have a running loop); asyncio at all, because it alone
    # can hold the whole exchange to a deadline: timeouts of blocking sockets start anew with every byte that trickles in.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, fetch_async(url, limits, allowance, resolver)).result()


async def fetch_async(
    url: str,
    limits: MediaConfig,
    allowance: ByteAllowance,
    resolver: Resolver | None = None,
    room_for: RoomFor | None = None,
) -> bytes:
    """The body behind `url`. `allowance` counts its bytes and has the name that messages use. `room_for` waits until there is
    room for so many bytes more, which is not held against the host."""
    subject = allowance.subject
    try:
        async with asyncio.timeout(limits.fetch_timeout_s) as limit:
            room = room_for and _unhurried(limit, room_for)
            return await _follow(url, limits, allowance, resolver or LOOK_UPS.resolver(), room)
    except (TimeoutError, httpcore.TimeoutException) as error:
        raise MediaError(
            f"{subject} cannot be fetched: it took longer than {limits.fetch_timeout_s:g} s (--fetch-timeout-s)."
        ) from error
    except Exception as error:
        if isinstance(error, MediaError):
            raise
        reason = _reason(error)
        if reason is None:
            raise
        raise MediaError(f"{subject} cannot be fetched: {reason}.") from error


def _unhurried(limit: asyncio.Timeout, room_for: RoomFor) -> RoomFor:
    """The same, with the clock stopped."""
    loop = asyncio.get_running_loop()

    async def wait(count: int) -> None:
        end = limit.when()
        assert end is not None
        left_s = end - loop.time()
        limit.reschedule(None)
        await room_for(count)
        limit.reschedule(loop.time() + left_s)

    return wait


def _reason(error: Exception) -> str | None:
    """Why an exchange failed, in words that tell nothing about addresses and answers inside a network."""
    causes: list[BaseException | None] = [error, error.__cause__, error.__context__]
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return "the certificate of its host is not valid"
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "its host does not speak TLS as it should"
    if isinstance(error, httpcore.ConnectError):
        return "no connection could be made to its host"
    if isinstance(error, httpcore.ProtocolError):
        return "the answer of its host is not valid HTTP"
    if isinstance(error, httpcore.NetworkError | OSError):
        return "the connection to its host broke"
    if isinstance(error, httpx.InvalidURL | ValueError):  # ValueError: text that is no Unicode
        return "it is not a valid URL"
    return None


async def _follow(
    url: str, limits: MediaConfig, allowance: ByteAllowance, resolver: Resolver, room_for: RoomFor | None
) -> bytes:
    """Follows redirects by hand: each hop must be allowed before it is asked."""
    target = httpx.URL(url)
    for _ in range(1 + MAX_REDIRECTS):
        host, port = _host_and_port(target, allowance.subject)
        addresses = await _checked_addresses(host, port, limits, allowance.subject, resolver)
        backend = PinnedBackend(host, addresses)
        async with httpcore.AsyncConnectionPool(ssl_context=_tls(), network_backend=backend, http2=False) as pool:
            headers = {"Host": target.netloc.decode("ascii"), **_HEADERS}
            request = httpcore.URL(scheme=target.raw_scheme, host=target.raw_host, port=port, target=target.raw_path)
            async with pool.stream("GET", request, headers=list(headers.items())) as response:
                location = _header(response, "location")
                if response.status not in _REDIRECTS or location is None:
                    return await _body(response, allowance, room_for)
                target = target.join(location)
    raise MediaError(f"{allowance.subject} cannot be fetched: it redirects more than {MAX_REDIRECTS} times.")


def _host_and_port(target: httpx.URL, subject: str) -> tuple[str, int]:
    """The host in ASCII, and the port. The URL was parsed once: what is checked here is what will be connected to."""
    host = target.raw_host.decode("ascii")
    port = target.port if target.port is not None else 443 if target.scheme == "https" else 80
    if target.scheme not in ("http", "https") or not host or not 0 < port < 65536:
        raise MediaError(f"{subject} cannot be fetched: {str(target)[:100]!r} is not an http(s) URL with a host.")
    if target.userinfo:
        raise MediaError(f"{subject} cannot be fetched: its URL holds a user name or password.")
    if literal_address(host) is None and not is_plain_name(host):
        raise MediaError(f"{subject} cannot be fetched: {host[:100]!r} is neither a plain host name nor an IP address.")
    return host, port


def _reasons_against(host: str, port: int, limits: MediaConfig) -> list[str]:
    """Every setting that forbids a URL by what it says itself."""
    reasons = []
    if not limits.allow_http:
        reasons.append("http(s) URLs are switched off (--allow-http)")
    if not _is_listed(host, limits):
        reasons.append(f"host {host[:100]!r} is not among --allowed-media-domains")
    if limits.allowed_media_ports and port not in limits.allowed_media_ports:
        allowed = ", ".join(map(str, limits.allowed_media_ports))
        reasons.append(f"port {port} is not among {allowed} (--allowed-media-ports)")
    return reasons


def _is_listed(host: str, limits: MediaConfig) -> bool:
    return not limits.allowed_media_domains or host in _domains(limits.allowed_media_domains)


@functools.lru_cache(maxsize=64)
def _domains(allowed: tuple[str, ...]) -> frozenset[str]:
    """In the spelling of parsed URLs: lower case, international names in ASCII."""
    return frozenset(httpx.URL(scheme="http", host=name).raw_host.decode("ascii") for name in allowed)


async def _checked_addresses(
    host: str, port: int, limits: MediaConfig, subject: str, resolver: Resolver
) -> tuple[Address, ...]:
    """All addresses of a host, if each of them is allowed; else one sentence with every setting that forbids the URL.

    A name that nobody knows and one that leads inside get the same sentence: which names exist inside is nobody's business. A
    host that is forbidden by its name is not looked up.
    """
    reasons = _reasons_against(host, port, limits)
    literal = literal_address(host)
    addresses: tuple[Address, ...] = (literal,) if literal is not None else ()
    looked_up = literal is None and limits.allow_http and _is_listed(host, limits)
    if looked_up:
        try:
            found = [literal_address(text) for text in await resolver(host, port)]
        except (OSError, UnicodeError):
            found = []
        addresses = tuple(address for address in found if address is not None) if None not in found else ()
    is_public_host = bool(addresses) and all(map(is_public, addresses))
    if not limits.allow_private_media and not is_public_host and (looked_up or addresses or host == "localhost"):
        reasons.append("its host has no address, or one that is not on the public internet (--allow-private-media)")
    elif looked_up and not addresses:
        reasons.append("its host has no address")
    if reasons:
        raise MediaError(f"{subject} cannot be fetched: {'; '.join(reasons)}.")
    return addresses


async def _body(response: httpcore.Response, allowance: ByteAllowance, room_for: RoomFor | None) -> bytes:
    if response.status != 200:
        raise MediaError(f"{allowance.subject} cannot be fetched: the server answered with status {response.status}.")
    packing = _header(response, "content-encoding") or "identity"
    if packing.strip().lower() != "identity":
        raise MediaError(f"{allowance.subject} cannot be fetched: the server sent it with Content-Encoding {packing[:40]!r}.")
    announced = _header(response, "content-length") or ""
    size, room = 0, 0
    if announced.isdecimal() and len(announced) < 20:
        allowance.check(int(announced))
        room = int(announced)
        if room_for is not None:
            await room_for(room)
    body = io.BytesIO()  # gives its bytes away without a copy
    async for part in response.aiter_stream():
        allowance.take(len(part))
        size += len(part)
        if room_for is not None and size > room:
            await room_for(size - room)
            room = size
        body.write(part)
    return body.getvalue()


def _header(response: httpcore.Response, name: str) -> str | None:
    wanted = name.encode("ascii")
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == wanted), None)


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, whatever the name of the host would resolve to now."""

    def __init__(self, host: str, addresses: Sequence[Address]) -> None:
        self._host = host
        self._addresses = addresses[:_MAX_ADDRESSES]
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        assert host == self._host, "the host that is asked for is the one that was checked"
        for address in self._addresses[:-1]:
            try:
                return await self._network.connect_tcp(str(address), port, timeout=_PATIENCE_S)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(str(self._addresses[-1]), port)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise AssertionError("no URL leads to a local socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Reading the list of certificate authorities takes tens of milliseconds: once is enough."""
    return httpx.create_ssl_context()
