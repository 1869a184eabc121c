"""Tables of images through Ray Data: each row is a request, each actor a model (rows.py)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.data import ActorPoolStrategy, Dataset

from sightline.cli.batch import REQUEST_TIMEOUT_S
from sightline.cli.serve import config_of_options
from sightline.config import Config
from sightline.errors import ConfigError
from sightline.ray.rows import RowAnswers, RowPlan
from sightline.ray.serving import gpus_of
from sightline.server.engine_client import ENGINE_COMMAND

_TASKS_AT_ONCE = 2  # of an actor, so that it goes on with the next block while the last rows of one are answered
_BATCHES_AT_ONCE = 4  # of a task; Ray's default for functions that wait


def batch(
    ds: Dataset,
    *,
    model: str = "",
    prompt: str | Callable[[Mapping[str, Any]], str],
    image_column: str | None = None,
    replicas: int | tuple[int, int] = 1,
    sampling: Mapping[str, Any] | None = None,
    checkpoint: str | None = None,
    answer_column: str = "answer",
    error_column: str = "error",
    batch_size: int = 128,
    num_cpus: float = 1.0,
    num_gpus: float | None = None,
    engine_command: Sequence[str] = ENGINE_COMMAND,
    **options: Any,
) -> Dataset:
    """The table with two columns more: the answer, and for a row without one the reason.

    `prompt` is asked of every row, or makes a question of a row. Images are paths, http(s) or data URLs, encoded bytes, what
    `read_images` reads, a mapping with `bytes` or `path`, or a list of these; a row may have none. `sampling` has further
    fields of a chat request, such as max_tokens. `replicas` are actors, each with a model of its own, or the fewest and the
    most of them.

    With `checkpoint`, a folder that all nodes see, answers are written there as they come. Run again, rows that have one are
    not asked; a row whose request is another one is. `options` are those of `sightline serve`, by name.
    """
    config = _config(model, options)
    if (replicas != 1 and isinstance(replicas, int) and replicas < 1) or batch_size < 1:
        raise ConfigError(f"replicas is {replicas} and batch_size {batch_size}, but both must be at least 1.")
    fewest, most = (replicas, replicas) if isinstance(replicas, int) else replicas
    in_progress = batch_size * _BATCHES_AT_ONCE * _TASKS_AT_ONCE
    config = dataclasses.replace(
        config,
        server=dataclasses.replace(config.server, max_inflight_requests=in_progress, request_timeout_s=REQUEST_TIMEOUT_S),
    )
    plan = RowPlan(prompt, image_column, dict(sampling or {}), checkpoint, answer_column, error_column)
    answered: Dataset = ds.map_batches(
        RowAnswers,
        fn_constructor_args=(config, plan, tuple(engine_command)),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=fewest, max_size=most, max_concurrent_calls_per_actor=_TASKS_AT_ONCE),
        num_cpus=num_cpus,
        num_gpus=gpus_of(config) if num_gpus is None else num_gpus,
        udf_modifying_row_count=False,
    )
    return answered


def _config(model: str, options: Mapping[str, Any]) -> Config:
    """Whoever has the table may name files, as in the library and in `sightline batch`."""
    config = config_of_options({**({"model": model} if model else {}), **options}, "sightline.ray.batch")
    local = options.get("allowed_local_media_path", "/")
    return dataclasses.replace(config, media=dataclasses.replace(config.media, allowed_local_media_path=local))
