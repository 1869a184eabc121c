"""What the language model costs in the engine's own loop: text prefill by length, a step of decoding by batch.

Everything goes through Engine.add and Engine.step, so planning, sampling and reading the tokens count. Prompts are random and
new, so that no prefix is known. Whether the engine reads its results at once or a step later does not matter here: a prefill
lasts until its token is told, a step of decoding from one round of tokens to the next.
"""

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.measure.device_profile import DeviceProfile, profile_device, profile_fields
from benchmarks.measure.prompts import add_greedy, random_prompt
from benchmarks.measure.stage_floors import Rates, prefill_work
from benchmarks.measure.tower import SHAPES, random_batch
from sightline.config import Config
from sightline.engine.engine import Engine
from sightline.engine.executor import local_worker
from sightline.engine.load import load_engine
from sightline.errors import ConfigError
from sightline.models.experts import Experts
from sightline.models.files import read_model_files

_SETTLE = 8  # rounds of decoding before the clock starts
_PROFILED_STEPS = 20
_PROFILED_PREFILLS = 2


@dataclass(frozen=True)
class PrefillCost:
    tokens: int
    ms: float  # median
    all_ms: tuple[float, ...]
    floor_ms: float
    busy_ms: float | None  # in which the device ran a kernel; only known on a GPU, from a second, watched run


@dataclass(frozen=True)
class DecodeCost:
    batch: int
    context: int
    ms: float  # median
    p99_ms: float
    steps: int
    floor_ms: float
    busy_ms: float | None

    @property
    def idle_share(self) -> float | None:
        """Of the device, in steps that nobody watches."""
        return None if self.busy_ms is None else max(0.0, 1 - self.busy_ms / self.ms)


class LanguageBench:
    def __init__(self, config: Config, rates: Rates, repeats: int, steps: int) -> None:
        for flag, value in (("--repeats", repeats), ("--steps", steps)):
            if value < 1:
                raise ConfigError(f"{flag} is {value}, but must be at least 1.")
        self.files = read_model_files(config.model, config.media)
        self.rates, self.repeats, self.steps = rates, repeats, steps
        self.engine: Engine = load_engine(config, self.files)
        self._worker = local_worker(self.engine.executor)
        self.profiles: dict[str, DeviceProfile] = {}
        self._text = self.files.spec.text
        self._random = np.random.default_rng()

    def close(self) -> None:
        self.engine.close()

    @property
    def device(self) -> torch.device:
        return self._worker.device

    @property
    def dtype(self) -> torch.dtype:
        return self._worker.arena.rows.dtype

    def check(self, length: int, flag: str) -> None:
        most = self.files.max_model_len
        if not 1 <= length <= most:
            raise ConfigError(f"{flag} asks for {length} tokens in a sequence, but must ask for 1 to {most}.")

    def measure_prefill(self, tokens: int) -> PrefillCost:
        self.check(tokens + 1, "--prefill")
        self._prefill(tokens)
        times = [self._prefill(tokens) for _ in range(self.repeats)]
        busy = None
        if self.device.type == "cuda":
            busy = self.profile(f"prefill {tokens}", lambda: self._prefill(tokens), _PROFILED_PREFILLS).busy_ms_per_run
        work = prefill_work(self._text, tokens, self.dtype.itemsize)
        floor = 1000 * sum(part.seconds(self.rates) for part in work)
        return PrefillCost(tokens, statistics.median(times), tuple(times), floor, busy)

    def _prefill(self, tokens: int) -> float:
        """Milliseconds until the first token of a new prompt is told."""
        self._add(tokens, 1)
        self._wait()
        start = time.perf_counter()
        next(self._rounds())
        taken = 1000 * (time.perf_counter() - start)
        self._drain()
        return taken

    def measure_decode(self, batch: int, context: int) -> DecodeCost:
        fill = -(-batch * context // self.engine.config.max_num_batched_tokens)  # steps until the last has begun, at least
        answer = _SETTLE + self.steps + _PROFILED_STEPS + 2 * fill + 8
        prompt = max(1, context - _SETTLE - self.steps // 2)  # so that half of the timed steps are on either side of it
        self.check(prompt + answer, "--context")
        if batch > self.engine.config.max_num_seqs:
            raise ConfigError(f"--decode asks for {batch} sequences, but max_num_seqs is {self.engine.config.max_num_seqs}.")
        waiting = {self._add(prompt, answer) for _ in range(batch)}
        requests = sorted(waiting)
        rounds = self._rounds()
        while waiting:  # until each has its first token
            waiting -= set(next(rounds))
        full = (len(told) == batch for told in rounds)
        for _ in range(_SETTLE):
            next(full)
        times, last = [], time.perf_counter()
        for whole in itertools.islice(full, self.steps):
            now = time.perf_counter()
            if not whole:
                raise RuntimeError(f"A step told fewer than {batch} tokens: this is no steady decode.")
            times.append(1000 * (now - last))
            last = now
        busy = None
        if self.device.type == "cuda":
            busy = self.profile(f"decode {batch}", lambda: next(full), _PROFILED_STEPS).busy_ms_per_run
        for request in requests:
            self.engine.abort(request)
        self._drain()
        return DecodeCost(
            batch=batch,
            context=context,
            ms=statistics.median(times),
            p99_ms=float(np.percentile(times, 99)),
            steps=len(times),
            floor_ms=1000 * self._decode_bytes(batch, context) / self.rates.bandwidth,
            busy_ms=busy,
        )

    def profile_tower(self, shape: str = "1080p") -> DeviceProfile:
        model = self._worker.model
        batch = random_batch(model.spec.patch_tower, SHAPES[shape], self.device, self.dtype)
        model.encode(batch)
        return self.profile(f"tower {shape}", lambda: model.encode(batch), 3)

    def profile_decode(self, batch: int, context: int) -> None:
        """On a CPU, where measuring alone does not profile."""
        ids = [self._add(context, _SETTLE + 4) for _ in range(batch)]
        rounds = self._rounds()
        next(rounds)
        self.profile(f"decode {batch}", lambda: next(rounds), 2)
        for request in ids:
            self.engine.abort(request)
        self._drain()

    def profile_prefill(self, tokens: int) -> None:
        self.profile(f"prefill {tokens}", lambda: self._prefill(tokens), 1)

    def profile(self, name: str, run: Any, runs: int) -> DeviceProfile:
        self.profiles[name] = profile_device(run, runs, self.device)
        return self.profiles[name]

    def _decode_bytes(self, batch: int, context: int) -> float:
        """What a step must move: every matrix once, of experts those that are chosen, the keys and values of each sequence, and
        its states, which are written too."""
        text, spec = self._worker.model.text, self._text
        weights: float = sum(tensor.nbytes for tensor in itertools.chain(text.parameters(), text.buffers()))
        if not spec.tie_word_embeddings:
            weights -= text.embed_tokens.weight.nbytes  # of the table of tokens only a few rows
        weights -= sum(_unread_bytes(module, batch) for module in text.modules() if isinstance(module, Experts))
        itemsize = self._worker.arena.rows.dtype.itemsize
        return float(weights + batch * (context * spec.token_bytes(itemsize) + 2 * spec.state_bytes(itemsize)))

    def _add(self, length: int, answer: int) -> int:
        return add_greedy(self.engine, random_prompt(self._random, self._text.vocab_size, length), answer)

    def _rounds(self) -> Iterator[list[int]]:
        """Steps the engine; for each step that told tokens, the requests they belong to."""
        while self.engine.has_work:
            told = []
            for update in self.engine.step():
                if update.error is not None:
                    raise update.error
                told += [update.request_id] if update.token_ids else []
            if told:
                yield told

    def _drain(self) -> None:
        for _ in self._rounds():
            pass

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _unread_bytes(experts: Experts, tokens: int) -> float:
    """Of experts that so many tokens do not go to, with uniform routing."""
    spec = experts.router.spec
    stacked = sum(tensor.nbytes for part in (experts.gate_up, experts.down) for tensor in part.parameters())
    count = len(experts.gate_up.weight)
    return stacked * (count - spec.touched(tokens)) / count


def figures(prefills: list[PrefillCost], decodes: list[DecodeCost], name: str = "") -> dict[str, float]:
    """By the keys of summary.json; `name`: of the model, where it is not the usual one."""
    of = f"{name}." if name else ""
    found = {f"prefill_ms.{of}{cost.tokens}": cost.ms for cost in prefills}
    for cost in decodes:
        found[f"decode_ms.{of}{cost.batch}"] = cost.ms
        if cost.idle_share is not None:
            found[f"decode_idle_share.{of}{cost.batch}"] = cost.idle_share
    return found


def as_json(bench: LanguageBench, prefills: list[PrefillCost], decodes: list[DecodeCost]) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "rates": asdict(bench.rates),
        "prefill": [asdict(cost) for cost in prefills],
        "decode": [{**asdict(cost), "idle_share": cost.idle_share} for cost in decodes],
        "profiles": {name: profile_fields(found) for name, found in bench.profiles.items()},
    }
