"""The decoder in 8-bit floats, and over several ranks."""

from pathlib import Path

import pytest
import torch

from deepseek_vl2.conftest import SIZES
from deepseek_vl2.oracle import joined_oracle
from engine.harness import plain_answer, request_of
from models import test_fp8 as fp8
from parallel.test_tensor_parallel import started
from parity.conversations import picture
from sightline.llm import LLM
from sightline.models.fp8_summary import summarise
from sightline.models.load import load_model
from sightline.models.registry import read_model_spec
from sightline.models.sharding import shard_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", SIZES)
def test_8_bit_weights(checkpoints: dict[str, Path], kind: str) -> None:
    """Against float32, ours (bfloat16 otherwise) err at most 1.5 times as much as transformers with perfectly rounded layers.
    Red when one of the layers is left as it is, or is quantised twice."""
    folder = checkpoints[kind]
    with LLM(folder, device="cpu", dtype="float32", **fp8.SMALL) as exact:
        requests = [fp8.request_of(exact, seed) for seed in (5, 6, 7)]
        rows = [fp8.rows_of(exact, request) for request in requests]
        truth = torch.cat([fp8.logits(exact, *pair) for pair in zip(requests, rows, strict=True)])
    with LLM(folder, device="cpu", dtype="bfloat16", quantization="fp8", **fp8.SMALL) as llm:
        found = fp8.error(torch.cat([fp8.logits(llm, *pair) for pair in zip(requests, rows, strict=True)]), truth)
        assert summarise(llm.model).language > 0
    reference = joined_oracle(folder)
    parts = [fp8.rounded_logits(reference, *pair, 0) for pair in zip(requests, rows, strict=True)]  # type: ignore[arg-type]
    rounded = fp8.error(torch.cat(parts), truth)
    assert 0.5 * rounded <= found <= 1.5 * rounded, (found, rounded)


@pytest.mark.parametrize("kind", SIZES)
def test_two_ranks_have_all_heads_and_experts(checkpoints: dict[str, Path], kind: str) -> None:
    """Red if a head's query, key, value or output goes to the wrong rank, or latents are cut."""
    spec = read_model_spec(checkpoints[kind])
    whole = load_model(spec, checkpoints[kind], CPU, torch.float32, 64)
    halves = [load_model(spec, checkpoints[kind], CPU, torch.float32, 64, shard=shard_model(spec, rank, 2)) for rank in (0, 1)]
    mixer, (first, second) = whole.text.layers[1].mixer, [model.text.layers[1].mixer for model in halves]
    for name, value in mixer.named_parameters():
        parts = [one.get_parameter(name) for one in (first, second)]
        axis = {"out.weight": 1, "latent.weight": None, "latent_norm.weight": None}.get(name, 0)
        if name == "qkv.weight":  # heads of queries, of keys, of values
            parts = [torch.cat(pair) for pair in zip(*(part.chunk(3) for part in parts), strict=True)]
            assert torch.equal(torch.cat(parts), value)
        elif axis is None:
            assert all(torch.equal(part, value) for part in parts), name
        else:
            assert torch.equal(torch.cat(parts, axis), value), name


@pytest.mark.slow
@pytest.mark.parametrize("experts", ["cut", "whole"])
@pytest.mark.parametrize("kind", SIZES)
def test_ranks_answer_as_one(checkpoints: dict[str, Path], kind: str, experts: str) -> None:
    """With prefix hits and small chunks. Red when an expert is with two ranks or none, or sums are not made."""
    folder = checkpoints[kind]
    requests = [
        request_of(folder, "One ", picture(700, 300, 1), " two ", picture(60, 130, 2), " three"),
        request_of(folder, "Plain text, no picture at all."),
    ] * 2
    settings = {"expert_parallel": experts == "whole", "max_num_batched_tokens": 48, "kv_cache_gb": 0.008}
    run = started(folder, 2, **settings)
    try:
        numbers = [run.add(request, tokens=9) for request in requests]
        run.run()
        assert not run.errors
        assert [run.tokens(number) for number in numbers] == [plain_answer(folder, request, 9) for request in requests]
    finally:
        run.engine.close()
