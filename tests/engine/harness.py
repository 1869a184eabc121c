"""An engine on a tiny model, driven by hand, checked after every step; and the plain loop's answers to compare with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from device import DEVICE
from engine.instant_decoder import InstantDecoder
from parity.conversations import picture
from plain_loop import SingleSequence, encode_items
from sightline.config import Config, EngineConfig, MediaConfig, ModelConfig
from sightline.engine.engine import Drafter, Engine, Update
from sightline.engine.executor import local_worker
from sightline.engine.load import local_executor, make_engine
from sightline.llm import LLM
from sightline.sampling_params import resolve_sampling
from sightline.submission import Submission
from sightline.types import Completion, Request, SamplingParams

# Small images keep prompts short: a 64 x 96 picture is 6 rows for Qwen3-VL and a few more for the others.
SMALL_IMAGES = MediaConfig(min_pixels=1024, limit_mm_per_prompt='{"image": 1000}')


@lru_cache(maxsize=4)
def loaded(folder: Path) -> LLM:
    """The model and its prompt side; its own engine stays idle."""
    idle = EngineConfig(kv_cache_gb=0.05, embedding_cache_gb=0.02, warm_up=False)
    return LLM(folder, Config(ModelConfig(device=DEVICE, dtype="float32", max_model_len=2048), SMALL_IMAGES, idle))


def request_of(folder: Path, *parts: Any) -> Request:
    """A user turn of strings and pictures."""
    llm = loaded(folder)
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return llm.prompts.chat([{"role": "user", "content": content}])


def small_picture(seed: int, width: int = 96, height: int = 64) -> Any:
    return picture(width, height, seed)


@dataclass
class Driver:
    """Runs requests on an engine to their end."""

    engine: Engine
    completions: dict[tuple[int, int], Completion] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    steps: int = 0

    def add(self, request: Request, tokens: int = 8, **options: Any) -> int:
        names = ("priority", "cache_salt", "end_tokens", "stop")
        own = {name: options.pop(name) for name in names if name in options}
        params = SamplingParams(**{"max_tokens": tokens, "temperature": 0, **options})
        return self.engine.add(Submission(request, resolve_sampling(params, {}), **own))

    def step(self) -> list[Update]:
        updates = self.engine.step()
        self.engine.check_integrity()
        self.steps += 1
        for update in updates:
            if update.completion is not None:
                self.completions[update.request_id, update.index] = update.completion
            if update.error is not None:
                self.errors[update.request_id] = update.error
        return updates

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while self.engine.has_work and not until():
            self.step()
            assert self.steps < 20_000

    def tokens(self, request_id: int, index: int = 0) -> list[int]:
        return list(self.completions[request_id, index].token_ids)


OVERLAP: bool | None = None  # set by tests/engine/conftest.py, as is the next
ASYNC_ENCODE: bool | None = None


def driver(folder: Path, drafter: Drafter | None = None, threads: bool = False, **settings: Any) -> Driver:
    """Pixels are there when they are asked for, unless real `threads` decode them."""
    llm = loaded(folder)
    usual = {"kv_cache_gb": 0.05, "embedding_cache_gb": 0.02, "page_size": 4, "overlap": OVERLAP, "async_encode": ASYNC_ENCODE}
    config = EngineConfig(**{**usual, **settings})
    executor = local_executor(llm.model, llm.processor, config, llm.max_model_len)
    engine = make_engine(executor, llm.tokenizer, config, llm.max_model_len, drafter=drafter)
    if not threads:
        engine.encoder._decoder.close()
        engine.encoder._decoder = InstantDecoder()  # type: ignore[assignment]
    return Driver(engine)


def made_engine(llm: LLM, config: EngineConfig, longest: int | None = None) -> Driver:
    """An engine over a model that is loaded, with real threads that decode. `longest`: tokens of a sequence."""
    longest = longest or llm.max_model_len
    executor = local_executor(llm.model, llm.processor, config, longest)
    return Driver(make_engine(executor, llm.tokenizer, config, longest))


def sized_driver(folder: Path, tokens: int, rows: int, **settings: Any) -> Driver:
    """An engine with pages for about `tokens` tokens and blocks for about `rows` rows."""
    made = driver(folder, **settings)
    engine, worker = made.engine, local_worker(made.engine.executor)
    from sightline.cache.embeddings import EmbeddingCache
    from sightline.cache.pages import PageCache
    from sightline.worker.arena import EmbeddingArena
    from sightline.worker.caches import allocate_caches

    block_rows = 4
    pages, blocks = -(-tokens // engine.config.page_size) + 1, -(-rows // block_rows)
    spec, rows_now = worker.model.spec, worker.arena.rows
    engine.schedule.pages = PageCache(pages, engine.config.page_size)
    host = int(engine.config.embedding_host_cache_gb * 1024**3)
    row_bytes = engine.executor.facts.memory.row_bytes
    engine.schedule.embeddings = engine.encoder._embeddings = EmbeddingCache(blocks, block_rows, row_bytes, host)
    layers, quantised = spec.text.layers, engine.config.quantised_cache
    worker.caches = allocate_caches(layers, pages, engine.config.page_size, 0, rows_now.device, rows_now.dtype, quantised)
    # NaN everywhere: a slot or a row that is read before it is written spoils the answer.
    arena = EmbeddingArena(blocks * block_rows, spec.vision.embedding_width, rows_now.device, rows_now.dtype)
    worker.arena = worker.encodes._arena = arena
    worker.arena.rows.fill_(float("nan"))
    return made


_answers: dict[tuple[Path, bytes, bytes, int], list[int]] = {}


@torch.inference_mode()
def plain_answer(folder: Path, request: Request, count: int = 8) -> list[int]:
    """Greedy tokens of the plain loop."""
    keys = b"".join(item.key for item in request.items)
    known = (folder, np.asarray(request.token_ids).tobytes(), keys, count)
    if known not in _answers:
        model = loaded(folder).model
        sequence = SingleSequence(model, request, len(request) + count, page_size=16)
        logits = sequence.prefill(encode_items(model, request, loaded(folder).processor))
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(int(logits[0].argmax()))
            logits = sequence.decode(tokens[-1])
        _answers[known] = tokens
    return _answers[known]
