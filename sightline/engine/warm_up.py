"""Graphs, and a few private requests, before the first real one: kernels are compiled and libraries loaded at first use.

The requests take the way of every request, from JPEG bytes to sampled tokens, and leave nothing behind: caches are flushed, and
counters begin again.
"""

import io
from dataclasses import replace

from PIL import Image

from sightline.config import MediaConfig
from sightline.engine.engine import Engine
from sightline.errors import PromptTooLongError
from sightline.models.files import ModelFiles
from sightline.sampling_params import resolve_sampling
from sightline.submission import Submission
from sightline.timing import StageClock
from sightline.types import Request, SamplingParams

_TEXTS = ("One request of a few words.", "Another one, whose number of tokens is not that of the first.")
_WAYS = (  # of drawing a token: each has kernels of its own
    SamplingParams(temperature=0, max_tokens=4),
    SamplingParams(temperature=1, top_p=0.9, top_k=0, max_tokens=4),
    SamplingParams(temperature=1, top_k=20, max_tokens=4),
    SamplingParams(temperature=1, repetition_penalty=1.1, logprobs=True, top_logprobs=1, max_tokens=4),
)
_PICTURE = (330, 250)  # pixels: no multiple of any family's patches, so that it is resized along both axes


def warm_up(engine: Engine, files: ModelFiles, clock: StageClock) -> None:
    """Raises what a request would fail with."""
    with clock.stage("graphs"):
        engine.executor.capture_graphs(clock.advance)
    with clock.stage("first requests"):
        for request in _requests(engine, files):  # alone, as decoding alone has kernels of its own; then all together
            _answer(engine, [(request, _WAYS[0])], clock)
            engine.flush()
        _answer(engine, [(request, way) for request in _requests(engine, files) for way in _WAYS], clock)
        engine.flush()
    _count_anew(engine)


def _requests(engine: Engine, files: ModelFiles) -> list[Request]:
    with_picture = files.processor.placeholders("image")[0] + _TEXTS[0]
    builder = replace(files, max_model_len=engine.max_model_len).prompt_builder(MediaConfig())
    found = []
    for prompt, media in ((_TEXTS[0], ()), (_TEXTS[1], ()), (with_picture, (("image", sample_jpeg()),))):
        try:
            found.append(builder.text(prompt, media))
        except PromptTooLongError:  # then no request of this kind will come
            continue
    return found


def sample_jpeg() -> bytes:
    data = io.BytesIO()
    Image.linear_gradient("L").resize(_PICTURE).convert("RGB").save(data, "JPEG")
    return data.getvalue()


def _answer(engine: Engine, asked: list[tuple[Request, SamplingParams]], clock: StageClock) -> None:
    for request, params in asked:
        engine.add(Submission(request, resolve_sampling(params, {})))
    while engine.has_work:
        for update in engine.step():
            if update.error is not None:
                raise update.error
        clock.advance()


def _count_anew(engine: Engine) -> None:
    engine.counts.clear()
    engine.busy.seconds.clear()
    pages, rows = engine.schedule.pages, engine.schedule.embeddings
    pages.hits = pages.evictions = 0
    rows.hits = rows.misses = rows.evictions = rows.host_hits = 0
    engine.schedule.preemptions = 0
