"""Counts, no clocks: how often the tower runs, what is decoded, what lies on the device."""

from pathlib import Path
from typing import Any

import pytest

from engine.harness import driver, loaded, plain_answer, request_of, sized_driver, small_picture


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


@pytest.mark.parametrize("page_size", [4, 16])
def test_a_conversation_encodes_one_image_a_round(folder: Path, page_size: int) -> None:
    """Eight rounds, one new image each, everything sent again: one decode and one run of the tower per round. Red when an
    image is looked up by request instead of by content, or when cached prefixes still touch their images."""
    llm = loaded(folder)
    run = driver(folder, page_size=page_size)
    messages: list[dict[str, Any]] = []
    before = 0  # tokens of the last round's prompt
    for round_number in range(8):
        picture = {"type": "image", "image": small_picture(100 + round_number)}
        messages.append({"role": "user", "content": [picture, {"type": "text", "text": f"Round {round_number}?"}]})
        request = llm.prompts.chat(messages)
        assert len(request.items) == round_number + 1
        number = run.add(request, tokens=6)
        run.run()
        assert run.tokens(number) == plain_answer(folder, request, 6)
        counts = run.engine.counts
        assert (counts.decoded, counts.encoded) == (round_number + 1, round_number + 1)
        completion = run.completions[number, 0]
        assert (completion.media_items, completion.encoded_items) == (round_number + 1, 1)
        assert run.completions[number, 0].cached_tokens >= before // page_size * page_size
        before = len(request)
        messages.append({"role": "assistant", "content": run.completions[number, 0].text})


def test_only_images_that_meet_the_chunk_are_on_the_device(folder: Path) -> None:
    """Twenty images, chunks of ten tokens: a chunk meets at most three images of six rows."""
    request = request_of(folder, *(small_picture(200 + k) for k in range(20)), "All?")
    assert {item.rows for item in request.items} == {6}
    run = driver(folder, max_num_batched_tokens=10)
    number = run.add(request)
    most_pinned = 0
    while run.engine.has_work:
        before = run.engine.counts.encoded
        chunk_start = run.engine.schedule.running[0].computed if run.engine.schedule.running else 0
        run.step()
        encoded = run.engine.counts.encoded - before
        meeting = sum(span.start < chunk_start + 10 and span.start + span.count > chunk_start for span in request.spans)
        assert encoded <= meeting <= 3  # others may be decoded on the host meanwhile
        most_pinned = max(most_pinned, run.engine.schedule.embeddings.pinned_blocks)
    counts = run.engine.counts
    assert counts.peak_items <= 3 and counts.encoded == counts.decoded == 20
    assert run.tokens(number) == plain_answer(folder, request)


def test_five_hundred_images_in_one_request(folder: Path) -> None:
    """Peak rows and patches stay inside their bounds, far below what all images together would need."""
    images = [small_picture(seed, 32, 32) for seed in range(500)]
    request = request_of(folder, *images, "Count.")
    patches, rows = sum(item.patches for item in request.items), sum(item.rows for item in request.items)
    assert len(request.items) == 500
    budget, arena_rows = 64, 64
    run = sized_driver(folder, len(request) + 20, arena_rows, max_patches_per_step=budget, max_num_batched_tokens=128)
    number = run.add(request, tokens=2)
    run.run()
    counts = run.engine.counts
    assert counts.encoded == 500 and counts.patches == patches
    assert counts.peak_patches <= budget < patches / 10
    assert run.engine.executor.worker.arena.rows.shape[0] <= arena_rows < rows / 4
    assert len(run.tokens(number)) == 2


def test_ten_times_the_memory(folder: Path) -> None:
    """Forty requests that need ten times the pages and ten times the rows there are, eight at a time: nothing outgrows its
    bounds and every answer is right."""
    requests = [
        request_of(folder, f"Request {k} ", small_picture(300 + k % 25), " and ", small_picture(400 + k), " so?")
        for k in range(40)
    ]
    tokens = sum(len(request) + 8 for request in requests)
    rows = sum(item.rows for item in {item.key: item for request in requests for item in request.items}.values())
    run = sized_driver(folder, tokens // 10, rows // 10, max_num_seqs=8, max_num_batched_tokens=64, page_size=4)
    schedule, caches = run.engine.schedule, run.engine.executor.worker.caches
    page_shape = caches[0].keys.shape
    numbers = [run.add(request) for request in requests]
    while run.engine.has_work:
        run.step()
        assert schedule.embeddings.used_blocks <= schedule.embeddings.blocks
        assert schedule.pages.private_pages + schedule.pages.tree_pages <= schedule.pages.usable_pages
    assert caches[0].keys.shape == page_shape
    assert schedule.embeddings.evictions > 0
    for number, request in zip(numbers, requests, strict=True):
        assert run.tokens(number) == plain_answer(folder, request)


def test_images_of_queued_requests_are_encoded_ahead(folder: Path) -> None:
    """With one place to run, the second request's image is ready before it starts; without look-ahead it is not."""
    requests = [request_of(folder, f"{k} ", small_picture(500 + k)) for k in range(2)]
    for patches, ahead in ((1000, True), (0, False)):
        run = driver(folder, max_num_seqs=1, lookahead_patches=patches)
        numbers = [run.add(request) for request in requests]
        run.step()
        assert (run.engine.counts.encoded == 2) is ahead
        run.run()
        assert run.engine.counts.encoded == 2
        assert [run.tokens(n) for n in numbers] == [plain_answer(folder, r) for r in requests]
