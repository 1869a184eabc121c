"""When requests are due."""

import math

import numpy as np

from sightline.errors import ConfigError


def arrival_times(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start: a Poisson process of `rate` requests per second; all at once if the rate is infinite."""
    if not rate > 0:
        raise ConfigError(f"The request rate is {rate:g}, but must be more than 0, or inf.")
    if math.isinf(rate):
        return [0.0] * count
    gaps = np.random.default_rng((seed, 0xA221)).exponential(1 / rate, count)
    return [float(due) for due in gaps.cumsum() - gaps[0]] if count else []
