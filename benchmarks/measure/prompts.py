"""Text prompts for an engine in this process."""

import numpy as np

from sightline.engine.engine import Engine
from sightline.sampling_params import resolve_sampling
from sightline.submission import Submission
from sightline.types import Request, SamplingParams


def random_prompt(random: np.random.Generator, vocab: int, length: int) -> Request:
    """Tokens that no cache knows."""
    ids = random.integers(0, vocab, length, dtype=np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (3, length)).copy()
    return Request(ids, positions, 0, (), ())


def add_greedy(engine: Engine, request: Request, answer: int) -> int:
    """Queues the request for exactly `answer` best tokens; its id."""
    sampling = resolve_sampling(SamplingParams(max_tokens=answer, temperature=0), {})
    return engine.add(Submission(request, sampling))
