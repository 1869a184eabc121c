"""In the last layer only tokens whose logits are wanted attend: they must find their own sequence, whoever stands before it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ops.run_again import run_again
from parity.subject import FAMILIES
from run.test_step_graphs import attention_by_device
from sightline.models.families import read_model_spec
from sightline.models.load import load_model
from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import Twin
from sightline.run.batch import PackedBatch
from sightline.run.kv_cache import allocate_pages
from sightline.run.step_graphs import StepGraphs

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
        row_index=np.full(len(position), -1, np.int64),
        has_rows=False,
        sampling=np.array(sampling, np.int64),
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [[0, 1, 2], [1], [2], [0, 2], []])
@torch.inference_mode()
def test_whoever_wants_logits_gets_its_own(
    tiny_checkpoints: dict[str, Path], family: str, sampling: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoints[family]
    spec = read_model_spec(folder)
    model = load_model(spec, folder, CPU, torch.float32, 64)

    def logits(batch: PackedBatch) -> torch.Tensor:
        caches = allocate_pages(spec.text, 8, PAGE, CPU, torch.float32)
        found: torch.Tensor = model(batch.on(CPU, torch.empty(0)), caches)
        return found

    together = prompts([0, 1, 2], sampling)
    wanted = together.on(CPU, torch.empty(0)).wanted
    assert wanted.context_lengths.tolist() == list(wanted.context_lengths_host), "a kernel would read other keys"
    found = logits(together)
    assert len(found) == len(sampling)
    expected = [logits(prompts([number], [0]))[0] for number in sampling]
    for row, right in zip(found, expected, strict=True):
        torch.testing.assert_close(row, right, atol=1e-5, rtol=1e-5)

    monkeypatch.setattr(paged_attention, "twins", [Twin("by device", attention_by_device, lambda *_, **__: True, True)])
    caches = allocate_pages(spec.text, 8, PAGE, CPU, torch.float32)
    graphs = StepGraphs(model, caches, torch.zeros(1, spec.vision.row_width), run_again, 8, 64, 64)
    for numbers in ([2, 1, 0], [0, 1, 2]):  # what the first leaves in the buffers must not matter to the second
        replayed = graphs.run(prompts(numbers, sampling))
    assert replayed is not None and len(replayed) == len(sampling) and len(graphs) == 1
    for row, right in zip(replayed, expected, strict=True):
        torch.testing.assert_close(row, right, atol=1e-5, rtol=1e-5)
