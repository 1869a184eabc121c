"""Embeddings in place of an image: the same answer as the image's, without a tower."""

from pathlib import Path

import pytest
import torch

from conftest import FAMILIES, IN_VIEWS
from engine.harness import driver, loaded, plain_answer, request_of, small_picture
from engine.test_process_executor import started
from sightline.errors import PromptError
from sightline.media.arrays import ImageEmbeddings
from sightline.submission import of_tenant
from sightline.types import Request


def given_for(folder: Path, seed: int, dtype: torch.dtype = torch.float32) -> ImageEmbeddings:
    image = small_picture(seed)
    (rows,) = loaded(folder).embed_images([image], deepstack=True)
    return ImageEmbeddings.of(rows.to(dtype), width=image.width, height=image.height)


def both(folder: Path, seed: int) -> tuple[Request, Request]:
    """A request with an image, and the same with its embeddings."""
    return (
        request_of(folder, "What is ", small_picture(seed), " then?"),
        request_of(folder, "What is ", given_for(folder, seed), " then?"),
    )


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_the_answer_is_the_images(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red if rows go to other places, if deepstack features are lost, if positions are others, or if the tower runs."""
    folder = tiny_checkpoints[family]
    image, given = both(folder, 1)
    assert (given.positions == image.positions).all() and given.token_ids.tolist() == image.token_ids.tolist()
    for settings in ({}, {"max_num_batched_tokens": 7}):
        run = driver(folder, **settings)
        number = run.add(given)
        run.run()
        assert run.tokens(number) == plain_answer(folder, image)
        counts, answer = run.engine.counts, run.completions[number, 0]
        assert (counts.encoded, counts.decoded, counts.patches, answer.encoded_items, answer.media_items) == (0, 0, 0, 0, 1)


def test_embeddings_of_another_image_are_not_found(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if they are known by their size alone, or by the image's own key; or if another tenant finds them."""
    folder = tiny_checkpoints["qwen3-vl"]
    (one, as_rows), (two, other_rows) = both(folder, 1), both(folder, 2)
    run = driver(folder)
    for request, answer in ((as_rows, one), (other_rows, two), (one, one), (as_rows, one), (of_tenant(as_rows, "t"), one)):
        number = run.add(request)
        run.run()
        assert run.tokens(number) == plain_answer(folder, answer)
    keys = {of_tenant(request, tenant).items[0].key for request in (one, as_rows, two, other_rows) for tenant in ("", "t")}
    assert len(keys) == 8
    assert run.engine.counts.encoded == 1 and run.engine.schedule.embeddings.misses >= 3


def test_they_come_back_when_they_were_evicted(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if bytes are thrown away with their first use: without a cache rows are stored anew for each request."""
    folder = tiny_checkpoints["qwen3-vl"]
    image, given = both(folder, 3)
    run = driver(folder, embedding_cache_gb=0, enable_prefix_caching=False)
    for _ in range(2):
        number = run.add(given)
        run.run()
        assert run.tokens(number) == plain_answer(folder, image)
        assert run.engine.schedule.embeddings.used_blocks == 0


def test_they_cross_to_a_worker_process(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    image, given = both(folder, 1)
    run = started(folder)
    try:
        number = run.add(given)
        run.run()
        assert run.tokens(number) == plain_answer(folder, image)
        again = run.add(given)
        run.run()
        assert run.completions[again, 0].cached_tokens == len(given) - 1 and run.tokens(again) == run.tokens(number)
    finally:
        run.engine.close()


def test_what_the_model_cannot_have_made_is_refused(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if rows of another width or number reach the arena."""
    folder = tiny_checkpoints["qwen3-vl"]
    right = given_for(folder, 1)
    rows, width = right.shape
    model = loaded(folder)
    for wrong in (
        ImageEmbeddings.of(torch.zeros(rows, model.spec.text.hidden_size), width=96, height=64),
        ImageEmbeddings.of(torch.zeros(rows + 1, width), width=96, height=64),
        ImageEmbeddings(right.data, right.dtype, right.shape, 96, 640),
    ):
        with pytest.raises(PromptError, match=rf"shape \[{wrong.shape[0]}, {wrong.shape[1]}\]; an image of 96x\d+ pixels has"):
            request_of(folder, "?", wrong)
