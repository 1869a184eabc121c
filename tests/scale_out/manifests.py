"""The files of deploy/kubernetes, as data."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.rglob("*.yaml"))
# What the endpoint picker asks of a model server (model server protocol of the Gateway API inference extension), all gauges.
SPECS = ("queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec", "cacheInfoSpec")


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def container() -> Any:
    (found,) = manifest("server/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    return found


def picker_engine() -> dict[str, str]:
    """How the picker is told that our metrics are called."""
    plugins = manifest("gateway/endpoint-picker-config.yaml")["plugins"]
    (extractor,) = (plugin for plugin in plugins if plugin["type"] == "core-metrics-extractor")
    (engine,) = extractor["parameters"]["engineConfigs"]
    assert engine["name"] == extractor["parameters"]["defaultEngine"]
    return dict(engine)
