"""What the page size costs: time of a prefill step and of a decode step for each size, on the model and device given.

Small pages share more of a prefix and waste less at its end; large ones mean fewer gathers. The default is chosen from this.
"""

import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch

from benchmarks.measure.prompts import add_greedy, random_prompt
from sightline.config import EngineConfig
from sightline.engine.engine import Engine
from sightline.engine.load import local_executor, make_engine
from sightline.llm import LLM


@dataclass(frozen=True)
class PageSizeResult:
    page_size: int
    prefill_tokens: int
    prefill_ms: float  # one step over a fresh prompt, median
    decode_sequences: int
    decode_context: int
    decode_ms: float  # one step of all sequences, median


def measure_page_sizes(
    llm: LLM, sizes: list[int], prefill: int = 2048, sequences: int = 32, context: int = 1024, repeats: int = 20
) -> list[PageSizeResult]:
    return [_measure(llm, size, prefill, sequences, context, repeats) for size in sizes]


def _measure(llm: LLM, size: int, prefill: int, sequences: int, context: int, repeats: int) -> PageSizeResult:
    tokens = prefill + sequences * (context + repeats + 16) + 2 * size * sequences
    text = llm.spec.text
    token_bytes = text.token_bytes(llm.dtype.itemsize)
    config = EngineConfig(
        page_size=size,
        kv_cache_gb=tokens * token_bytes / 1024**3,
        embedding_cache_gb=0.1,
        max_num_batched_tokens=max(prefill, context),
        enable_prefix_caching=False,
        overlap=False,  # a step lasts until its own tokens are read
    )
    longest = max(prefill, context) + repeats + 16
    engine = make_engine(local_executor(llm.model, llm.processor, config, longest), llm.tokenizer, config, longest)
    random = np.random.default_rng(0)
    prefills = []
    for _ in range(5):
        number = add_greedy(engine, random_prompt(random, text.vocab_size, prefill), 1)
        prefills.append(_timed_step(engine, llm.device))
        engine.abort(number)
    for _ in range(sequences):
        add_greedy(engine, random_prompt(random, text.vocab_size, context), repeats + 8)
    while not all(sequence.decoding for sequence in engine.schedule.running) or engine.schedule.waiting:
        engine.step()
    decodes = [_timed_step(engine, llm.device) for _ in range(repeats)]
    engine.close()
    return PageSizeResult(size, prefill, statistics.median(prefills[1:]), sequences, context, statistics.median(decodes[3:]))


def _timed_step(engine: Engine, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    engine.step()
    return 1000 * (time.perf_counter() - start)


def as_json(results: list[PageSizeResult], llm: LLM) -> dict[str, object]:
    return {
        "torch": torch.__version__,
        "model": f"{llm.spec.family}, {llm.spec.text.num_layers} layers of {llm.spec.text.hidden_size}, {llm.dtype}",
        "results": [asdict(result) for result in results],
    }
