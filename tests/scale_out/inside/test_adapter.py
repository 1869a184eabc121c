"""The interfaces of Ray that are alpha or private are as sightline/ray/adapter.py uses them. Red when Ray moves one."""

from pathlib import Path
from typing import Any

import pytest

from sightline.errors import ConfigError


def test_the_interfaces_are_where_they_were() -> None:
    from sightline.ray.adapter import check_interfaces

    check_interfaces()


@pytest.mark.parametrize("name", ["_with_ingress_request_router", "choose_replica"])
def test_one_that_has_gone_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.deployment import Application
    from ray.serve.handle import DeploymentHandle

    from sightline.ray.adapter import check_interfaces

    owner = next(kind for kind in (Application, DeploymentHandle) if hasattr(kind, name))
    monkeypatch.delattr(owner, name)
    with pytest.raises(ConfigError, match=f"{owner.__name__}.{name} has gone or takes other arguments"):
        check_interfaces()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from sightline.ray.adapter import check_interfaces

    monkeypatch.setattr(ray, "__version__", "2.61.0")
    with pytest.raises(ConfigError, match=r"Ray 2\.61\.0 is not as .* written for Ray 2\.60: it is another minor version"):
        check_interfaces()


def test_a_router_that_is_asked_in_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.ray.adapter import check_interfaces

    read = Path.read_text

    def moved(path: Path, *arguments: Any, **named: Any) -> str:
        return read(path, *arguments, **named).replace("/internal/route", "/internal/choose")

    monkeypatch.setattr(Path, "read_text", moved)
    with pytest.raises(ConfigError, match="the router is asked at another path"):
        check_interfaces()


def test_no_private_name_is_used_elsewhere() -> None:
    """Red when another file than the adapter reaches into Ray."""
    import sightline.ray as package

    for path in Path(package.__file__).parent.glob("*.py"):
        if path.name != "adapter.py":
            assert "ray.serve._private" not in path.read_text() and "._private" not in path.read_text(), path
