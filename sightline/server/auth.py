"""Who may ask: API keys, compared in constant time."""

import hashlib
import hmac

from starlette.datastructures import Headers

from sightline.server.errors import ApiError


class KeyRing:
    def __init__(self, keys: tuple[str, ...], admin_key: str | None) -> None:
        self._keys = [_digest(key.encode()) for key in keys]
        self._admin = _digest(admin_key.encode()) if admin_key is not None else None

    def caller(self, headers: Headers) -> str:
        """Whose request it is, as a name that does not give the key away; "" where no keys are asked for."""
        if not self._keys:
            return ""
        given = _given(headers)
        if not _is_among(given, self._keys + ([self._admin] if self._admin is not None else [])):
            raise ApiError(
                401,
                "The request brings no valid API key; send one as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return given.hex()

    def require_admin(self, headers: Headers) -> None:
        if self._admin is None:
            raise ApiError(403, "Admin endpoints are off: the server has no admin_api_key.", code="admin_disabled")
        if not _is_among(_given(headers), [self._admin]):
            raise ApiError(
                401,
                "This endpoint needs the admin API key as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _given(headers: Headers) -> bytes:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return _digest(key.strip().encode("latin-1") if scheme.lower() == "bearer" else b"")  # as headers are read


def _is_among(given: bytes, known: list[bytes]) -> bool:
    """Looks at every key, whether one has matched or not."""
    found = False
    for key in known:
        found |= hmac.compare_digest(given, key)
    return found
