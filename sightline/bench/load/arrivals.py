"""When requests are due."""

import math

import numpy as np

from sightline.errors import ConfigError


def arrival_times(count: int, rate: float, seed: int) -> list[float]:
    """Seconds after the start: a Poisson process, stretched to have exactly the rate; all at once if it is infinite.

    Without stretching, a run of 40 requests would have a rate that is typically 16 % off.
    """
    if not rate > 0:
        raise ConfigError(f"The request rate is {rate:g}, but must be more than 0, or inf.")
    if math.isinf(rate):
        return [0.0] * count
    times = np.random.default_rng((seed, 0xA221)).exponential(1.0, max(count, 1)).cumsum()
    times -= times[0]
    if count < 2:
        return [0.0] * count
    return [float(due) for due in times * ((count - 1) / rate / times[-1])]
