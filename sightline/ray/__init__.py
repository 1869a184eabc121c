"""Sightline on Ray: replicas behind Ray Serve (app, build, run), tables of images through Ray Data (batch). docs/scale-out.md.

Ray does not come with the package but with its extra `ray`, and is imported when one of these is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.ray.data import batch as batch
    from sightline.ray.local import run as run
    from sightline.ray.serving import app as app
    from sightline.ray.serving import build as build
    from sightline.ray.settings import Resources as Resources
    from sightline.ray.settings import Scaling as Scaling

_WHERE = {
    "batch": "data",
    "Scaling": "settings",
    "Resources": "settings",
    "app": "serving",
    "build": "serving",
    "run": "local",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'sightline.ray' has no attribute {name!r}")
    try:
        return getattr(import_module(f"sightline.ray.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "ray":
            raise
        raise ConfigError("Ray is not installed; it comes with the extra: pip install 'sightline-vlm[ray]'.") from None
