"""What pages of other sites make a browser send is refused: every page that a user opens reaches a server on loopback.

Two ways lead there. A page may send requests straight to the server; the browser then says where they come from
(Sec-Fetch-Site, Origin). Or the page's own name is made to lead to 127.0.0.1 (DNS rebinding), and the browser takes the server
for the page's own site; then the name in Host is not one of ours.

Clients that are no browsers send none of these headers, and the right Host.
"""

import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from sightline.config import ServerConfig
from sightline.server.errors import ApiError

_ALL = "*"
_SENT = (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")
# What people open in a browser. A link on another site may lead there: that site sees nothing of what is shown.
_PAGES = ("/", "/docs", "/openapi.json", "/health", "/ready", "/version", "/metrics")


class BrowserGuard:
    """An ASGI application in front of another. `hosts` are the names it may be called by, besides those of loopback; None: by
    any. `origins` are those whose pages may call it."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self._app, self._origins = app, frozenset(origins)
        self._hosts = None if hosts is None or _ALL in hosts else frozenset(map(host_name, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response(scope["path"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        sent: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in _SENT:  # one that is sent twice is none that is known
                sent[name] = f"{sent[name]}, {value.decode('latin-1')}" if name in sent else value.decode("latin-1")
        host, origin = sent.get(b"host", ""), sent.get(b"origin")
        if self._hosts is not None and not self._is_ours(host):
            return ApiError(
                403,
                f"The server is not called by the name {host[:100]!r}; --allowed-hosts can name it.",
                code="host_not_allowed",
            )
        if not _comes_from_elsewhere(sent.get(b"sec-fetch-site"), origin, host):
            return None
        if origin is not None and not self._origins.isdisjoint((_ALL, origin)):
            return None
        if sent.get(b"sec-fetch-mode") == "navigate" and scope["method"] in ("GET", "HEAD") and scope["path"] in _PAGES:
            return None
        page = f"Pages of {origin[:100]}" if origin is not None else "Pages of other sites"
        return ApiError(
            403, f"{page} may not call this server; --allowed-origins names those that may.", code="origin_not_allowed"
        )

    def _is_ours(self, host: str) -> bool:
        """No browser leaves Host out; some probes do."""
        name = host_name(host)
        return not host or (self._hosts is not None and name in self._hosts) or is_loopback(name)


def guarded(app: ASGIApp, server: ServerConfig, on_loopback: bool) -> ASGIApp:
    """`on_loopback`: nobody else's machine reaches the server. Where keys are asked for, a foreign page has none."""
    checks_names = bool(server.allowed_hosts) or (on_loopback and not server.api_key)
    return BrowserGuard(app, server.allowed_hosts if checks_names else None, server.allowed_origins)


def _comes_from_elsewhere(site: str | None, origin: str | None, host: str) -> bool:
    """Behind a proxy that changes Host, only what the browser says of the site is right; older ones say nothing."""
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin.partition("://")[2].lower() != host.lower()


def host_name(host: str) -> str:
    """The name or address in a Host header, without the port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower().removesuffix(".")


def is_loopback(name: str) -> bool:
    """Whether a name or an address can only mean this machine."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
