"""MMMU's questions as load: the prompts that `sightline eval mmmu` asks, in an order drawn from the seed."""

from pathlib import Path

import numpy as np

from sightline.bench.load.body import RequestSample
from sightline.errors import ConfigError
from sightline.evals.benchmarks.mmmu import MMMU
from sightline.evals.benchmarks.published import load_benchmark
from sightline.evals.conversation import as_openai


def read_mmmu(path: Path | None, output_len: int, seed: int, most: int) -> list[RequestSample]:
    """At most so many questions of the validation split, evenly spread over its subjects."""
    try:
        task = load_benchmark(MMMU, path, samples=most)
    except ConfigError as error:
        raise ConfigError(str(error).replace("--data", "--dataset-path")) from None
    samples = [RequestSample(as_openai(sample.conversation), output_len) for sample in task.samples()]
    return [samples[index] for index in np.random.default_rng((seed, 5)).permutation(len(samples))]
