"""A step of every size that is captured, with the kernels that are captured for it, gives what the definitions give.

On a CPU in Triton's interpreter (tests/ops/test_interpreter.py starts it), with the smaller sizes. Capture is played: what
matters here is which kernels are chosen for a size, with lengths that only bound those of the step.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
from ops.interpreter import KERNEL_DEVICES, mend_the_interpreter
from ops.run_again import run_again
from parity.subject import FAMILIES
from sightline.models.inputs import LayerCache, PagedCache
from sightline.models.load import load_model
from sightline.models.registry import read_model_spec
from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import Implementation, definitions_only
from sightline.worker.batch import known_tokens, to_device
from sightline.worker.caches import allocate_caches, first_paged, tensors_of
from sightline.worker.step_graphs import StepBucket, StepGraphs, buckets
from sightline.worker.step_input import PackedBatch
from worker.test_step_graphs import attention_by_device

mend_the_interpreter()
PAGE, LONGEST, ARENA = 16, 4096, 64
LONG = 256  # tokens of a context that is long among short ones


def sizes(device: str) -> list[StepBucket]:
    if device == "cuda":
        return buckets(256, 2304)
    few = (StepBucket(4, 4, True), StepBucket(8, 8, True, uneven=True), StepBucket(16, 8, False), StepBucket(64, 64, False))
    assert set(few) <= set(buckets(64, 64))
    return list(few)


def chunk_lengths(bucket: StepBucket) -> list[int]:
    """Of a step that no smaller bucket takes, with room left: new tokens of each sequence."""
    if bucket.decoding:
        return [1] * (bucket.sequences - (bucket.sequences > 2))
    singles = 4 if bucket.sequences == 8 else 20
    large = bucket.tokens - 2 - singles - 3
    return [1] * (singles // 2) + [max(2, large), 3] + [1] * (singles - singles // 2)


def contexts_of(bucket: StepBucket, lengths: list[int], random: np.random.Generator) -> list[int]:
    """Tokens of each sequence, the new ones included; some have no others."""
    before = [int(random.choice((0, 1, 15, 16, 70))) for _ in lengths]
    if bucket.uneven:
        before = [LONG + 100, *(9 for _ in lengths[1:])]
    return [length + others for length, others in zip(lengths, before, strict=True)]


def random_step(bucket: StepBucket, vocab: int, with_rows: bool, random: np.random.Generator) -> PackedBatch:
    lengths = chunk_lengths(bucket)
    contexts = contexts_of(bucket, lengths, random)
    needed = [-(-context // PAGE) for context in contexts]
    pages = 1 + random.permutation(sum(needed)).astype(np.int32)  # page 0 is nobody's
    table = np.zeros((len(lengths), max(needed)), np.int32)
    places, slots, first = [], [], 0
    for row, (length, context, count) in enumerate(zip(lengths, contexts, needed, strict=True)):
        table[row, :count] = pages[first : first + count]
        first += count
        place = np.arange(context - length, context)
        places.append(place)
        slots.append(table[row, place // PAGE].astype(np.int64) * PAGE + place % PAGE)
    total = sum(lengths)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    token_ids = random.integers(0, vocab, total)
    token_ids[starts[:-1][0]] = -1  # sampled by the step before, and known to the device alone
    embedding_index = np.full(total, -1, np.int64)
    if with_rows:
        large = int(np.argmax(lengths))
        shown = min(lengths[large] - 1, ARENA // 2)
        embedding_index[starts[large] : starts[large] + shown] = random.permutation(ARENA)[:shown]
    position = np.concatenate(places).astype(np.int32)
    sampling = np.arange(len(lengths))
    if not bucket.decoding:  # not all sample; and the largest chunk has logits of its last two tokens, as with a draft
        sampling = np.sort(np.append(np.delete(sampling, (1, len(lengths) // 2 + 1)), int(np.argmax(lengths))))
    index = starts[1:][sampling] - 1
    index[:-1][sampling[:-1] == sampling[1:]] -= 1
    return PackedBatch(
        token_ids=token_ids,
        positions=np.stack((position, position + 2, position // 2)),
        slots=np.concatenate(slots),
        page_table=table,
        query_starts=starts.astype(np.int32),
        context_lengths=np.array(contexts, np.int32),
        query_lengths_host=tuple(lengths),
        context_lengths_host=tuple(contexts),
        embedding_index=embedding_index,
        has_rows=with_rows,
        logits_index=index.astype(np.int64),
        logits_sequence=sampling.astype(np.int64),
        state_slots=np.arange(len(lengths)),
    )


def fill(caches: list[LayerCache], batch: PackedBatch, generator: torch.Generator) -> None:
    """What sequences had before is random, all else not a number: it spoils what reads it."""
    paged = first_paged(caches)
    assert paged is not None
    known = torch.zeros(paged.keys.shape[0] * PAGE, dtype=torch.bool)
    rows = zip(batch.page_table, batch.query_lengths_host, batch.context_lengths_host, strict=True)
    for pages, length, context in rows:
        place = np.arange(context - length)
        known[torch.from_numpy(pages[place // PAGE].astype(np.int64) * PAGE + place % PAGE)] = True
    begun = torch.from_numpy(batch.state_slots[~batch.fresh])
    for cache in caches:
        for tensor in tensors_of([cache]):
            drawn = torch.randn(tensor.shape, generator=generator)
            if isinstance(cache, PagedCache):
                drawn.flatten(0, 1)[~known] = float("nan")
                tensor.copy_(drawn)
            else:
                tensor.fill_(float("nan"))
                tensor[begun] = drawn[begun].to(tensor.device)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", KERNEL_DEVICES)
@torch.inference_mode()
def test_every_bucket_gives_what_the_definitions_give(
    tiny_checkpoints: dict[str, Path], device: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, folder = torch.device(device), tiny_checkpoints[family]
    spec = read_model_spec(folder)
    model = load_model(spec, folder, where, torch.float32, 2 * LONGEST)
    decoding = [kernel for kernel in paged_attention.kernels if kernel.name == "triton decode"]
    assert decoding, "the kernel for single queries is not there"
    prompts = Implementation("by device", attention_by_device, lambda *_, **__: True, True)
    monkeypatch.setattr(paged_attention, "kernels", [*decoding, prompts])
    monkeypatch.setattr("sightline.worker.step_graphs._LONG", LONG)
    random, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    rows = torch.randn(ARENA, spec.vision.embedding_width, generator=generator).to(where)
    for number, bucket in enumerate(sizes(device)):
        batch = random_step(bucket, spec.text.vocab_size, not bucket.decoding and number % 2 == 0, random)
        pages = int(batch.page_table.max()) + 1
        caches, others = (allocate_caches(spec.text.layers, pages, PAGE, 257, where, torch.float32) for _ in range(2))
        fill(caches, batch, generator)
        for mine, theirs in zip(tensors_of(caches), tensors_of(others), strict=True):
            theirs.copy_(mine)
        sampled = torch.full((256,), 7, device=where)
        graphs = StepGraphs(model, caches, rows, sampled, run_again, 256, 2304, LONGEST)
        assert graphs.bucket_of(batch) == bucket
        found = graphs.run(batch)
        on_device = to_device(batch, where, rows, has_states=spec.text.state_bytes(4) > 0)
        with definitions_only():
            known = known_tokens(on_device.token_ids, graphs.sampled)
            expected = model(replace(on_device, token_ids=known), others)
        assert found is not None and expected.isfinite().all()
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4, msg=lambda said, at=bucket: f"{at}: {said}")
        slots = torch.from_numpy(batch.slots).to(where)
        states = torch.from_numpy(batch.state_slots).to(where)
        for mine, theirs in zip(caches, others, strict=True):
            paged = isinstance(mine, PagedCache)
            for kept, right in zip(tensors_of([mine]), tensors_of([theirs]), strict=True):
                pair = (x.flatten(0, 1)[slots] if paged else x[states] for x in (kept, right))
                torch.testing.assert_close(*pair, atol=2e-4, rtol=2e-4)
