"""Graphs, and a few private requests, before the first real one: kernels are compiled and libraries loaded at first use.

The requests take the way of every request, from JPEG bytes to sampled tokens, and leave nothing behind: caches are flushed, and
counters begin again.
"""

import io

from PIL import Image

from sightline.config import MediaConfig
from sightline.engine.engine import Engine
from sightline.errors import PromptTooLongError
from sightline.models.files import ModelFiles
from sightline.prompt.expand import MediaText
from sightline.prompt.request import build_request_from_text
from sightline.run.runner import RunnerCounts
from sightline.run.sampling_params import resolve_sampling
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
        engine.runner.record_graphs()
    with clock.stage("first requests"):
        for request in _requests(engine, files):  # alone, as decoding alone has kernels of its own; then all together
            _answer(engine, [(request, _WAYS[0])])
            engine.flush()
        _answer(engine, [(request, way) for request in _requests(engine, files) for way in _WAYS])
        engine.flush()
    _count_anew(engine)


def _requests(engine: Engine, files: ModelFiles) -> list[Request]:
    text = MediaText.of(files.spec.tokens, files.tokenizer)
    with_picture = f"{text.image_start}{text.image}{text.image_end}{_TEXTS[0]}"
    limits = MediaConfig()
    found = []
    for prompt, media in ((_TEXTS[0], ()), (_TEXTS[1], ()), (with_picture, (("image", _jpeg()),))):
        try:
            request = build_request_from_text(
                prompt,
                media,
                tokenizer=files.tokenizer,
                spec=files.spec,
                processor=files.processor,
                limits=limits,
                max_len=engine.max_model_len - 1,
            )
        except PromptTooLongError:  # then no request of this kind will come
            continue
        found.append(request)
    return found


def _jpeg() -> bytes:
    data = io.BytesIO()
    Image.linear_gradient("L").resize(_PICTURE).convert("RGB").save(data, "JPEG")
    return data.getvalue()


def _answer(engine: Engine, asked: list[tuple[Request, SamplingParams]]) -> None:
    for request, params in asked:
        engine.add(request, resolve_sampling(params, {}), end_tokens=frozenset())
    while engine.has_work:
        for update in engine.step():
            if update.error is not None:
                raise update.error


def _count_anew(engine: Engine) -> None:
    engine.runner.counts = RunnerCounts()
    engine.busy.seconds.clear()
    pages, rows = engine.schedule.pages, engine.schedule.embeddings
    pages.hits = pages.evictions = 0
    rows.hits = rows.misses = rows.evictions = rows.host_hits = 0
    engine.schedule.preemptions = 0
