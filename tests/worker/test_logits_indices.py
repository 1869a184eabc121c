"""In the last layer only tokens whose logits are wanted attend: they must find their own sequence, whoever stands before it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import PAGED_FAMILIES
from ops.run_again import run_again
from sightline.models.load import load_model
from sightline.models.registry import read_model_spec
from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import Implementation
from sightline.worker.batch import to_device
from sightline.worker.caches import allocate_caches
from sightline.worker.step_graphs import StepGraphs
from sightline.worker.step_input import PackedBatch
from worker.test_step_graphs import attention_by_device

PAGE, CPU = 4, torch.device("cpu")

LENGTHS = (5, 9, 2)  # prompts, all of it new


def prompts(numbers: list[int], sampling: list[int]) -> PackedBatch:
    """Some of the prompts together; `sampling` are places among them."""
    lengths = [LENGTHS[number] for number in numbers]
    places = [np.arange(length) for length in lengths]
    first_page = np.cumsum([0, *(-(-length // PAGE) for length in LENGTHS)])
    table = np.zeros((len(numbers), max(-(-length // PAGE) for length in lengths)), np.int32)
    for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
        pages = -(-length // PAGE)
        table[row, :pages] = first_page[number] + np.arange(pages)
    position = np.concatenate(places).astype(np.int32)
    slots = [pages[place // PAGE].astype(np.int64) * PAGE + place % PAGE for pages, place in zip(table, places, strict=True)]
    return PackedBatch(
        token_ids=np.concatenate([20 + 10 * number + np.arange(LENGTHS[number]) for number in numbers]),
        positions=np.stack([position] * 3),
        slots=np.concatenate(slots),
        page_table=table,
        query_starts=np.cumsum([0, *lengths]).astype(np.int32),
        context_lengths=np.array(lengths, np.int32),
        query_lengths_host=tuple(lengths),
        context_lengths_host=tuple(lengths),
        embedding_index=np.full(len(position), -1, np.int64),
        has_rows=False,
        logits_index=np.cumsum(lengths)[np.array(sampling, np.int64)].astype(np.int64) - 1,
        logits_sequence=np.array(sampling, np.int64),
        state_slots=np.arange(len(lengths)),
    )


@pytest.mark.parametrize("family", PAGED_FAMILIES)
@pytest.mark.parametrize("sampling", [[0, 1, 2], [1], [2], [0, 2], []])
@torch.inference_mode()
def test_whoever_wants_logits_gets_its_own(
    tiny_checkpoints: dict[str, Path], family: str, sampling: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    model = load_model(spec, folder, CPU, torch.float32, 64)

    def logits(batch: PackedBatch) -> torch.Tensor:
        caches = allocate_caches(spec.text.layers, 8, PAGE, 0, CPU, torch.float32)
        found: torch.Tensor = model(to_device(batch, CPU, torch.empty(0)), caches)
        return found

    together = prompts([0, 1, 2], sampling)
    logits_indices = to_device(together, CPU, torch.empty(0)).logits_indices
    assert logits_indices.context_lengths.tolist() == list(logits_indices.context_lengths_host), (
        "a kernel would read other keys"
    )
    found = logits(together)
    assert len(found) == len(sampling)
    expected = [logits(prompts([number], [0]))[0] for number in sampling]
    for row, right in zip(found, expected, strict=True):
        torch.testing.assert_close(row, right, atol=1e-5, rtol=1e-5)

    monkeypatch.setattr(
        paged_attention, "kernels", [Implementation("by device", attention_by_device, lambda *_, **__: True, True)]
    )
    caches = allocate_caches(spec.text.layers, 8, PAGE, 0, CPU, torch.float32)
    graphs = StepGraphs(
        model, caches, torch.zeros(1, spec.vision.embedding_width), torch.zeros(8, dtype=torch.int64), run_again, 8, 64, 64
    )
    for numbers in ([2, 1, 0], [0, 1, 2]):  # what the first leaves in the buffers must not matter to the second
        replayed = graphs.run(prompts(numbers, sampling))
    assert replayed is not None and len(replayed) == len(sampling) and len(graphs) == 1
    for row, right in zip(replayed, expected, strict=True):
        torch.testing.assert_close(row, right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", PAGED_FAMILIES)
@torch.inference_mode()
def test_logits_of_several_tokens_of_a_sequence(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red if a token in the midst of a chunk sees those after it, or takes another's context: drafts could not be checked."""
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    model = load_model(spec, folder, CPU, torch.float32, 64)
    whole = prompts([0, 1, 2], [0, 1, 2])
    every = replace(
        whole, logits_index=np.array([4, 7, 9, 12, 13, 14, 15]), logits_sequence=np.array([0, 1, 1, 1, 1, 2, 2], np.int64)
    )
    assert every.logits_context.tolist() == [5, 3, 5, 8, 9, 1, 2]
    found = model(to_device(every, CPU, torch.empty(0)), allocate_caches(spec.text.layers, 8, PAGE, 0, CPU, torch.float32))
    for row, (sequence, context) in enumerate(zip(every.logits_sequence, every.logits_context.tolist(), strict=True)):
        alone = prompts([int(sequence)], [0])
        cut = replace(
            alone,
            token_ids=alone.token_ids[:context],
            positions=alone.positions[:, :context],
            slots=alone.slots[:context],
            query_starts=np.array([0, context], np.int32),
            context_lengths=np.array([context], np.int32),
            query_lengths_host=(context,),
            context_lengths_host=(context,),
            embedding_index=alone.embedding_index[:context],
            logits_index=np.array([context - 1]),
        )
        right = model(to_device(cut, CPU, torch.empty(0)), allocate_caches(spec.text.layers, 8, PAGE, 0, CPU, torch.float32))
        torch.testing.assert_close(found[row], right[0], atol=1e-5, rtol=1e-5)
