"""Environment variables that Ray Serve reads in every process of a cluster, and which must be there before Ray starts."""

import os
import shlex
from collections.abc import Mapping

from sightline.errors import ConfigError

KEPT_BYTES = 64 * 1024  # of a request that HAProxy keeps, shows the router, and can send again if that is all of it

_ENVIRONMENT = {
    # HAProxy in front, which asks a router of ours (router.py) and then sends requests straight to the replica.
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
    "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE": str(KEPT_BYTES),
    # A replica dies before it has said a byte, or its engine does: another one is asked, if HAProxy has the whole request.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response 503",
    # Application and router run in their actors' own event loops: with threads of their own, each token would cross them.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
_REFUSED = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "it limits requests to 4 MiB, which a photo can exceed",
}


def environment() -> dict[str, str]:
    """To be set wherever Ray starts (`ray start`, the containers of a RayCluster)."""
    return dict(_ENVIRONMENT)


# Of a cluster that is this machine alone: nodes have the address 127.0.0.1, on which replicas listen, too.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def set_environment(only_this_machine: bool = False) -> None:
    """For a Ray that this process starts, before it imports Ray. What the user has set stays."""
    for name, value in (_ENVIRONMENT | _LOOPBACK if only_this_machine else _ENVIRONMENT).items():
        os.environ.setdefault(name, value)


def check_environment(found: Mapping[str, str]) -> None:
    """Refuses to deploy where requests would not be routed by image, or large ones not be taken. `found`: what Ray read."""
    for name, why in _REFUSED.items():
        if found.get(name, "0") not in ("", "0"):
            raise ConfigError(f"{name} is {found[name]}, but {why}; unset it before Ray starts.")
    for name in ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"):
        if found.get(name) != "1":
            raise ConfigError(
                f"{name} must be 1 before Ray starts, in every process of the cluster; "
                "`python -m sightline.ray.environment` prints all that is needed."
            )


def main() -> None:
    for name, value in _ENVIRONMENT.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
