"""A cluster for a first look: deploys to the one that this process is connected to, or starts one on this machine."""

from sightline.config import Config
from sightline.ray.environment import set_environment
from sightline.ray.settings import Resources, Scaling

NAME = "sightline"


def run(
    config: Config | None = None,
    scaling: Scaling | None = None,
    resources: Resources | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Returns when the application answers at `host` and `port`. Run again with another configuration, it is rolled out."""
    set_environment(only_this_machine=host == "127.0.0.1")
    import ray  # reads the environment when it is imported
    from ray import serve

    from sightline.ray.serving import app

    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    serve.start(http_options={"host": host, "port": port})
    serve.run(app(config, scaling, resources), name=NAME, route_prefix="/")
