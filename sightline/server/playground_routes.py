"""The pages: the playground at `/`, plain files and the pictures that come with the package as examples, and `/docs`.

All files are read once, at the start; a request names one of them, never a path.
"""

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpg": "image/jpeg",
    "mkv": "video/x-matroska",
    "mp4": "video/mp4",
    "json": "application/json",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time; mostly answered with 304
}


def page_routes(docs: bytes, embedded: bool, coordinates: str) -> list[Route]:
    """`docs` is the page at `/docs`; `embedded` says that the model is the one that comes with the package, `coordinates`
    how it writes boxes and points (models/family.py)."""
    about = {"embedded": embedded, "coordinates": coordinates}
    known = _File(msgspec.json.encode(about), "json")
    described = _File(docs, "html")
    page = _files(resources.files("sightline.server") / "playground")
    demo = resources.files("sightline.data") / "demo"
    samples = _files(demo)
    index = _File(msgspec.json.encode(_sample_list(demo)), "json")
    return [
        Route("/", _serve(lambda request: page["index.html"]), methods=["GET"]),
        Route("/docs", _serve(lambda request: described), methods=["GET"]),
        Route("/playground/about", _serve(lambda request: known), methods=["GET"]),
        Route("/playground/samples", _serve(lambda request: index), methods=["GET"]),
        Route("/playground/samples/{name}", _serve(lambda request: samples[request.path_params["name"]]), methods=["GET"]),
        Route("/playground/{name}", _serve(lambda request: page[request.path_params["name"]]), methods=["GET"]),
    ]


class _File:
    def __init__(self, data: bytes, kind: str) -> None:
        self.data = data
        self.headers = {**_HEADERS, "Content-Type": _TYPES[kind], "ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"'}


def _files(folder: Traversable) -> dict[str, _File]:
    return {file.name: _File(file.read_bytes(), file.name.rpartition(".")[2]) for file in folder.iterdir() if file.is_file()}


def _sample_list(demo: Traversable) -> list[dict[str, Any]]:
    """Questions with their media, without the right answers."""
    asked = msgspec.json.decode((demo / "questions.json").read_bytes())
    return [
        {
            "question": one["question"],
            "media": [
                {"kind": kind, "url": f"/playground/samples/{name}"}
                for kind, names in (("image", one["images"]), ("video", one["videos"]))
                for name in names
            ],
        }
        for one in asked
    ]


def _serve(find: Callable[[Request], _File]) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        try:
            file = find(request)
        except KeyError:
            raise HTTPException(404) from None
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.data, headers=file.headers)

    return show
