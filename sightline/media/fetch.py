"""Fetches one image or video over http(s), within limits of size, time and place."""

import asyncio
import functools
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx

from sightline.config import MediaConfig
from sightline.errors import MediaError

MAX_REDIRECTS = 5
# Some hosts refuse clients that do not name themselves. Pictures do not shrink under gzip, and unpacking needs a limit too.
_HEADERS = {"User-Agent": "sightline", "Accept": "*/*", "Accept-Encoding": "identity"}


def fetch(url: str, name: str, limits: MediaConfig, max_bytes: int) -> bytes:
    """The body behind `url`; `name` is how messages call it. Blocks; may be called with or without a running event loop."""
    # A thread of its own, because asyncio.run refuses to nest (notebooks have a running loop); asyncio at all, because it alone
    # can hold the whole exchange to a deadline: timeouts of blocking sockets start anew with every byte that trickles in.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, fetch_async(url, name, limits, max_bytes)).result()


async def fetch_async(url: str, name: str, limits: MediaConfig, max_bytes: int) -> bytes:
    if not limits.allow_http:
        raise MediaError(f"{name} cannot be fetched: http(s) URLs are switched off (allow_http).")
    try:
        async with asyncio.timeout(limits.fetch_timeout_s):
            return await _follow(url, name, limits, max_bytes)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise MediaError(f"{name} cannot be fetched: it took longer than {limits.fetch_timeout_s:g} s.") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise MediaError(f"{name} cannot be fetched: {reason}.") from error


async def _follow(url: str, name: str, limits: MediaConfig, max_bytes: int) -> bytes:
    """Follows redirects by hand: each hop must be allowed before it is asked."""
    target = httpx.URL(url)
    async with httpx.AsyncClient(verify=_tls(), headers=_HEADERS, timeout=limits.fetch_timeout_s) as client:
        for _ in range(1 + MAX_REDIRECTS):
            _check_allowed(target, name, limits)
            async with client.stream("GET", target, follow_redirects=False) as response:
                if not response.has_redirect_location:
                    return await _body(response, name, max_bytes)
                target = target.join(response.headers["location"])
    raise MediaError(f"{name} cannot be fetched: it redirects more than {MAX_REDIRECTS} times.")


def _check_allowed(target: httpx.URL, name: str, limits: MediaConfig) -> None:
    # The URL is parsed once, by the library that will connect: a second parser could see another host in the same text.
    if target.scheme not in ("http", "https") or not target.host or not 0 < (target.port or 80) < 65536:
        raise MediaError(f"{name} cannot be fetched: {str(target)[:100]!r} is not an http(s) URL with a host.")
    allowed = [domain.lower() for domain in limits.allowed_media_domains]
    if allowed and target.host not in allowed:
        raise MediaError(f"{name} cannot be fetched: host {target.host!r} is not among allowed_media_domains.")


async def _body(response: httpx.Response, name: str, max_bytes: int) -> bytes:
    if response.status_code != 200:
        raise MediaError(f"{name} cannot be fetched: the server answered with status {response.status_code}.")
    too_large = MediaError(f"{name} cannot be fetched: it is larger than the {max_bytes / 1e6:g} MB allowed.")
    announced = response.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Reading the list of certificate authorities takes tens of milliseconds: once is enough."""
    return httpx.create_ssl_context()
