"""All that we use of Ray Serve which it calls alpha, private or internal. Nothing else in the package touches such names.

Ray's minor version is pinned for them. `check_interfaces` says which of them is no longer as it is used here; it is called
before anything is deployed, and by a test.

| what | how stable Ray calls it | for what |
|---|---|---|
| `serve.ingress()` without an application | undocumented | an application that is made in the replica (replica.py) |
| `RequestRouter`, `PendingRequest`, `RunningReplica` | alpha | to choose a replica (router.py) |
| `DeploymentHandle.choose_replica(_reserve=False)` | private option | to choose one without a slot, for HAProxy asks it |
| `Application._with_ingress_request_router` | private | HAProxy asks our router |
| POST /internal/route, {"replica_id": …} | internal | its question and our answer |
| `record_autoscaling_stats`, `AutoscalingPolicy` | alpha | to scale on what the engine says (autoscaling.py) |
"""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray
import uvicorn.config
from ray import serve
from ray.serve._private import constants, haproxy, haproxy_templates
from ray.serve.deployment import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from sightline.errors import ConfigError

__all__ = [
    "FIFOMixin", "PendingRequest", "RequestRouter", "RunningReplica", "asgi_deployment", "attach_router", "check_interfaces",
    "choose_replica", "environment_found", "name_of", "open_handle", "replica_name", "use_http_protocol",
]  # fmt: skip

VERSION = (2, 60)
ROUTE = "/internal/route"
T = TypeVar("T", bound=type)

if TYPE_CHECKING:

    def asgi_deployment(cls: T) -> T: ...

else:
    asgi_deployment: Callable = serve.ingress()  # the class has __serve_build_asgi_app__


def attach_router(app: Application, router: Application) -> Application:
    return app._with_ingress_request_router(router)


def open_handle(handle: DeploymentHandle[Any]) -> None:
    """Begins to follow which replicas there are, before the first request asks."""
    handle._init()


async def choose_replica(handle: DeploymentHandle[Any], key: bytes) -> str:
    """What HAProxy knows the replica by that the deployment's request router puts first for a request with this key."""
    async with handle.choose_replica(key, _reserve=False) as selection:
        found: str = selection._replica.replica_id.to_full_id_str()
        return found


def use_http_protocol(protocol: type[asyncio.Protocol]) -> None:
    """For the listener that Ray starts in this process: what is refused and what bodies cost are as in `sightline serve`."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol  # type: ignore[assignment] # names or classes


def replica_name() -> str:
    """Of the replica that this is called in."""
    return str(serve.get_replica_context().replica_id.unique_id)


def name_of(replica: RunningReplica) -> bytes:
    return str(replica.replica_id.unique_id).encode()


def environment_found() -> dict[str, str]:
    """What Ray Serve took from the environment when it was imported."""
    names = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY", "RAY_SERVE_THROUGHPUT_OPTIMIZED")
    return {name: str(int(getattr(constants, name))) for name in names}


def check_interfaces() -> None:
    """ConfigError where this Ray is not the one that this file was written for."""
    moved = _moved()
    if moved:
        wanted = ".".join(map(str, VERSION))
        raise ConfigError(
            f"Ray {ray.__version__} is not as sightline.ray needs it, which is written for Ray {wanted}: {moved[0]}."
        )


def _moved() -> list[str]:
    found = []
    if tuple(map(int, ray.__version__.split(".")[:2])) != VERSION:
        found.append("it is another minor version")
    for owner, name, parameters in (
        (Application, "_with_ingress_request_router", ("ingress_request_router",)),
        (DeploymentHandle, "choose_replica", ("args", "kwargs")),
        (DeploymentHandle, "_init", ()),
        (RequestRouter, "choose_replicas", ("candidate_replicas", "pending_request")),
        (RunningReplica, "get_queue_len", ("deadline_s",)),
    ):
        function = getattr(owner, name, None)
        there = set(inspect.signature(function).parameters) if function is not None else set()
        if function is None or not there.issuperset(parameters):
            found.append(f"{owner.__name__}.{name} has gone or takes other arguments")
    asked = Path(haproxy.__file__).with_name("ingress_request_router.lua.tmpl").read_text(encoding="utf-8")
    config = haproxy_templates.HAPROXY_CONFIG_TEMPLATE
    for what, text, where in (
        ("the router is asked at another path", f"POST {ROUTE} ", asked),
        ("the router answers with another field", '"replica_id"', asked),
        ("the router is not sent what HAProxy has of the body", "txn.sf:req_body()", asked),
        ("HAProxy does not wait for the body", "http-request wait-for-body", config),
        ("HAProxy keeps another part of the body", "tune.bufsize {{ ingress_request_router_bufsize }}", config),
        ("HAProxy does not try again as it is told", "retry-on {{ config.retry_on }}", config),
    ):
        if text not in where:
            found.append(what)
    return found
