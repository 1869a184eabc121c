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
        found = _first_among(_given(headers), self._keys + ([self._admin] if self._admin is not None else []))
        if found is None:
            raise ApiError(
                401,
                "The request brings no valid API key; send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return found.hex()

    def require_admin(self, headers: Headers) -> None:
        if self._admin is None:
            raise ApiError(403, "Admin endpoints are off: the server has no admin_api_key.", code="admin_disabled")
        if _first_among(_given(headers), [self._admin]) is None:
            raise ApiError(
                401,
                "This endpoint needs the admin API key as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _given(headers: Headers) -> list[bytes]:
    """Clients of OpenAI's API send the first, those of Anthropic's the second, and some send both, one of no use."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    keys = (key.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip())
    return [_digest(key.encode("latin-1")) for key in keys]  # as headers are read


def _first_among(given: list[bytes], known: list[bytes]) -> bytes | None:
    """Looks at every key, whether one has matched or not."""
    found = [one for one in given for key in known if hmac.compare_digest(one, key)]
    return found[0] if found else None
