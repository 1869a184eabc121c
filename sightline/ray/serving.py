"""An application of Ray Serve: replicas of the server, a router that knows images, and how many replicas there are."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve as ray_serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.schema import LoggingConfig

from sightline.cli.serve import config_of_options
from sightline.config import Config
from sightline.errors import ConfigError
from sightline.ray.adapter import attach_router, check_interfaces, environment_found
from sightline.ray.environment import check_environment
from sightline.ray.replica import Replica
from sightline.ray.router import AffinityRouter, IngressRouter
from sightline.ray.settings import Resources, Scaling
from sightline.server.engine_client import ENGINE_COMMAND

_POLICY = "sightline.ray.autoscaling.Policy"
_DRAIN_MARGIN_S = 40.0  # Ray keeps a replica reachable for 30 s before it drains it, and sees in steps that it has
_HEALTH_S = 5.0
_LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)  # the server has a log of requests of its own


def app(
    config: Config | None = None,
    scaling: Scaling | None = None,
    resources: Resources | None = None,
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> Application:
    """What `serve.run` takes. Another configuration, run under the same name, is rolled out replica by replica."""
    check_interfaces()
    check_environment(environment_found())
    config, scaling, resources = config or Config(), scaling or Scaling(), resources or Resources()
    replica = ray_serve.deployment(
        Replica,
        name="Replica",
        ray_actor_options={
            "num_cpus": resources.num_cpus,
            "num_gpus": gpus_of(config) if resources.num_gpus is None else resources.num_gpus,
            **({"runtime_env": dict(resources.runtime_env)} if resources.runtime_env else {}),
        },
        # The server has limits of its own, which it counts in requests and in bytes, and says so in the shape of the API.
        max_ongoing_requests=config.server.max_inflight_requests + 1,
        max_queued_requests=-1,
        autoscaling_config=AutoscalingConfig(
            min_replicas=scaling.min_replicas,
            initial_replicas=max(1, scaling.min_replicas),
            max_replicas=scaling.max_replicas,
            target_ongoing_requests=scaling.target_ongoing_requests,
            upscale_delay_s=scaling.upscale_delay_s,
            downscale_delay_s=scaling.downscale_delay_s,
            look_back_period_s=scaling.look_back_period_s,
            policy=AutoscalingPolicy(policy_function=_POLICY, policy_kwargs=dataclasses.asdict(scaling)),
        ),
        request_router_config=RequestRouterConfig(
            request_router_class=AffinityRouter, request_router_kwargs={"sequences": sequences_of(config)}
        ),
        health_check_period_s=_HEALTH_S,
        logging_config=_LOGGING,
        graceful_shutdown_timeout_s=config.server.drain_timeout_s + _DRAIN_MARGIN_S,
    ).bind(config, engine_command)
    router = ray_serve.deployment(
        IngressRouter, name="IngressRouter", max_ongoing_requests=4096, max_queued_requests=-1, logging_config=_LOGGING
    )
    return attach_router(replica, router.options(ray_actor_options={"num_cpus": 0}).bind(replica))


def build(options: Mapping[str, Any]) -> Application:
    """For `serve run sightline.ray:build model=… max_replicas=4`, and for the `args` of a Serve config file.

    Options are those of `sightline serve`, by name, and the fields of Scaling and Resources.
    """
    left = dict(options)
    scaling, resources = _take(Scaling, left), _take(Resources, left)
    return app(config_of_options(left, "sightline.ray"), scaling, resources)


def _take(kind: type[Any], options: dict[str, Any]) -> Any:
    """The fields of `kind` among the options, which on a command line are texts."""
    given = {}
    for field in dataclasses.fields(kind):
        if field.name in options:
            value = options.pop(field.name)
            try:
                given[field.name] = _number(field.type)(value) if isinstance(value, str | int | float) else value
            except ValueError:
                raise ConfigError(f"sightline.ray has {field.name} = {value!r}, but it must be a number.") from None
    return kind(**given)


def _number(kind: Any) -> type[int] | type[float]:
    return int if kind is int else float


def sequences_of(config: Config) -> int:
    """That run at once in a replica."""
    return config.engine.max_num_seqs * config.server.data_parallel_size


def gpus_of(config: Config) -> int:
    if config.model.device == "cpu" or not config.model.model:
        return 0
    return config.engine.tensor_parallel_size * config.server.data_parallel_size
