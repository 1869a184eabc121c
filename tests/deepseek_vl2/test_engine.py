"""Through the engine: tiles, learned rows and pages of latents give transformers' tokens, however a prompt is computed."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from deepseek_vl2.conftest import SIZES
from deepseek_vl2.oracle import joined_oracle
from engine.harness import Driver, driver, loaded, request_of, sized_driver
from parity.conversations import picture
from sightline.engine.executor import local_worker
from sightline.errors import ConfigError, MediaError, PromptError
from sightline.ops.latent_cache import LatentCache
from sightline.types import ImageHeader, Request
from sightline.worker.caches import tensors_of

ANSWER = 6
ODD = [(1371, 911), (77, 1203), (384, 384), (301, 53)]  # widths and heights: many tiles, a column of them, one tile each

every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "tiny-mla-sigmoid" else kind for kind in SIZES]
)
compressed = pytest.mark.parametrize("kind", ["tiny-mla"])
compressed_at_once = pytest.mark.parametrize(
    "kind", [kind if kind == "tiny-mla" else pytest.param(kind, marks=pytest.mark.slow) for kind in SIZES]
)


class Prompt:
    """A user turn of strings and pictures, and the tokens that follow it."""

    def __init__(self, folder: Path, *parts: str | Image.Image) -> None:
        self.folder, self.images = folder, [part for part in parts if isinstance(part, Image.Image)]
        self.request: Request = request_of(folder, *parts)

    @lru_cache(maxsize=4)  # noqa: B019  (prompts live as long as a test)
    def expected(self, count: int = ANSWER) -> list[int]:
        reference = joined_oracle(self.folder)
        return reference.greedy(self.request, reference.rows(self.images) if self.images else None, count)


def check(made: Driver, prompts: list[Prompt], count: int = ANSWER, **options: Any) -> list[int]:
    """Runs them side by side; returns their numbers."""
    numbers = [made.add(prompt.request, count, **options) for prompt in prompts]
    made.run()
    assert not made.errors
    assert [made.tokens(number) for number in numbers] == [prompt.expected(count) for prompt in prompts]
    return numbers


@every_kind
@pytest.mark.parametrize("patches", [25, pytest.param(60, marks=pytest.mark.slow), 65_536])
def test_pictures_of_odd_sizes_at_once(checkpoints: dict[str, Path], kind: str, patches: int) -> None:
    """Encoded together, or tile by tile; alone and beside so many others that none has tiles. Red if items of an encode take
    each other's rows, or a picture that has tiles in one request is taken for the one that has none in another."""
    pictures = [picture(*size, number) for number, size in enumerate(ODD)]
    prompts = [Prompt(checkpoints[kind], "Which? ", *pictures), *(Prompt(checkpoints[kind], one, "?") for one in pictures)]
    made = driver(checkpoints[kind], max_patches_per_step=patches, lookahead_patches=0)
    encodes, sizes = local_worker(made.engine.executor).encodes, []
    run = encodes._run_piece
    encodes._run_piece = lambda parts, grids: sizes.append(sum(map(len, parts))) or run(parts, grids)  # type: ignore
    check(made, prompts)
    tiles = [sum(grid[0] for grid in prompt.request.items[0].grids) for prompt in prompts[1:]]
    assert tiles == [1 + 8, 1 + 4, 1, 1] and [item.rows for item in prompts[0].request.items] == [25] * 4
    # Those of one tile are the same picture in both requests, and encoded once.
    assert made.engine.counts.encoded == 6 and max(sizes) <= patches and sum(sizes) == 25 * (sum(tiles) + 2)


@compressed_at_once
def test_chunks_that_end_at_every_offset(checkpoints: dict[str, Path], kind: str) -> None:
    """A chunk ends inside lines, at newlines and at the separator. Red if rows of an arranged item are counted otherwise than
    tokens, or a query that is absorbed sees other keys than one whose keys are expanded."""
    prompt = Prompt(checkpoints[kind], "ab", picture(640, 320, 3), "c")
    for size in range(1, len(prompt.request) + 1):
        check(driver(checkpoints[kind], max_num_batched_tokens=size), [prompt])


@every_kind
def test_prefix_hits_that_end_inside_a_picture(checkpoints: dict[str, Path], kind: str) -> None:
    """Red if page keys ignore which row stands where, or rows after the hit are not made again."""
    image = picture(640, 320, 4)
    first, second = Prompt(checkpoints[kind], "abc", image, "one"), Prompt(checkpoints[kind], "abc", image, "two, and more")
    (span,) = first.request.spans
    end = span.start + span.count
    inside = [size for size in range(5, 40, 3) if span.start < (end + 1) // size * size < end]  # the newline is equal, too
    assert inside
    for size in inside:
        made = driver(checkpoints[kind], page_size=size)
        check(made, [first])
        made.engine.schedule.embeddings.clear()
        (number,) = check(made, [second])
        assert span.start < made.completions[number, 0].cached_tokens < end and made.engine.counts.encoded == 2


@every_kind
def test_a_prefix_that_ends_inside_a_page_is_copied(checkpoints: dict[str, Path], kind: str) -> None:
    """Red if pages of one kind of cache are left out where one is copied."""
    made = driver(checkpoints[kind], page_size=16)
    for tensor in tensors_of(local_worker(made.engine.executor).caches):
        tensor.fill_(float("nan"))
    prompt = Prompt(checkpoints[kind], "a b c d e f")
    check(made, [prompt])
    copied: list[int] = []
    worker = local_worker(made.engine.executor)
    copy = worker._copy_pages
    worker._copy_pages = lambda pages: copied.append(0 if pages is None else len(pages)) or copy(pages)  # type: ignore
    (number,) = check(made, [prompt])
    assert sum(copied) == 1 and made.completions[number, 0].cached_tokens == len(prompt.request) - 1


@every_kind
def test_preemption(checkpoints: dict[str, Path], kind: str) -> None:
    """Pages for little more than one of four requests: they take turns. Red if one that comes back takes other rows, or reads
    what was not written."""
    words = ("a", "bb", "ccc", "dddd")
    prompts = [Prompt(checkpoints[kind], word, picture(640, 320, seed), "?") for seed, word in enumerate(words)]
    longest = max(len(prompt.request) for prompt in prompts)
    made = sized_driver(checkpoints[kind], tokens=longest + 40, rows=80, page_size=2)
    for tensor in tensors_of(local_worker(made.engine.executor).caches):
        tensor.fill_(float("nan"))
    check(made, prompts, 24)
    assert made.engine.schedule.preemptions > 0


# ---- Pages of latents


@compressed
def test_what_a_page_takes(checkpoints: dict[str, Path], kind: str) -> None:
    """Red if keys and values of each head are kept beside latents, or the memory plan counts something else."""
    spec = loaded(checkpoints[kind]).spec.text
    for settings, token in (({}, 4 * 80), ({"kv_cache_dtype": "fp8"}, 80 + 8)):
        made = driver(checkpoints[kind], **settings)
        memory, caches = made.engine.executor.facts.memory, local_worker(made.engine.executor).caches
        assert memory.page_bytes == 4 * token * spec.num_layers
        assert sum(tensor.nbytes for tensor in tensors_of(caches)) == memory.kv_bytes
        assert all(isinstance(cache, LatentCache) and cache.latents.shape[2] == 64 + 16 for cache in caches)


def log_probabilities(made: Driver, request: Request) -> list[float]:
    number = made.add(request, 1, logprobs=True, top_logprobs=20)
    made.run()
    (first,) = made.completions[number, 0].logprobs
    return [probability for _, probability in sorted(first.top)]


@compressed
def test_latents_in_8_bit_floats(checkpoints: dict[str, Path], kind: str) -> None:
    """Answers stay near those of plain latents, and do not depend on how a prompt is cut or found. Red when scales are those of
    other tokens, or one part's is taken for both."""
    folder, parts = checkpoints[kind], ("What is ", picture(96, 64, 1), " then?")
    request = request_of(folder, *parts)
    exact = torch.tensor(log_probabilities(driver(folder), request))
    near = torch.tensor(log_probabilities(driver(folder, kv_cache_dtype="fp8"), request))
    assert not torch.equal(exact, near), "nothing was rounded"
    torch.testing.assert_close(near, exact, atol=0.15, rtol=0.05)
    found = []
    for size in (7, 33, 2048):
        made = driver(folder, kv_cache_dtype="fp8", max_num_batched_tokens=size)
        numbers = [made.add(request, ANSWER)]
        made.run()
        numbers.append(made.add(request, ANSWER))
        made.run()
        found += [made.tokens(number) for number in numbers]
        assert made.completions[numbers[1], 0].cached_tokens > 0
    assert all(tokens == found[0] for tokens in found)


@compressed
def test_a_backend_is_refused(checkpoints: dict[str, Path], kind: str) -> None:
    with pytest.raises(ConfigError, match="attention_backend is 'sdpa', but the attention of this model"):
        driver(checkpoints[kind], attention_backend="sdpa")


# ---- What is refused


def test_a_video_is_refused(checkpoints: dict[str, Path]) -> None:
    content = [{"type": "video", "video": b"no clip"}, {"type": "text", "text": "What moves?"}]
    with pytest.raises(PromptError, match=r"The model \S+/tiny takes no videos, and the prompt has 1\."):
        loaded(checkpoints["tiny"]).prompts.chat([{"role": "user", "content": content}])


def test_a_picture_too_thin_is_refused(checkpoints: dict[str, Path]) -> None:
    """Red if a picture of which nothing would be left reaches the tower as a tile of grey."""
    processor = loaded(checkpoints["tiny"]).processor
    with pytest.raises(MediaError, match="An image of 2000 x 2 pixels is too thin"):
        processor.layout(ImageHeader("PNG", 2000, 2, 1))
    assert processor.layout(ImageHeader("PNG", 1500, 2, 1)).views[0].resized == (1, 384)
