"""Linear layers in 8-bit floats: which ones, and how far off their results are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from conftest import FAMILIES, IN_VIEWS
from models.fp8_checkpoints import (
    e4m3_values,
    fp8_layers,
    load,
    nearest_bytes,
    plain_weight,
    write_fp8,
)
from oracle import Oracle, OracleEmbeddings, oracle
from parity.conversations import picture
from plain_loop import SingleSequence, encode_items
from sightline.engine.process import ready_report
from sightline.errors import ConfigError
from sightline.llm import LLM
from sightline.models import linear, quantise
from sightline.models.fp8 import Fp8Weight
from sightline.models.fp8_summary import summarise
from sightline.models.linear import Linear, WeightMatrix
from sightline.models.load import dummy_model
from sightline.models.quantise import Quantiser
from sightline.models.registry import read_model_spec
from sightline.ops.dispatch import definitions_only
from sightline.ops.fp8 import FP8, quantise_rows
from sightline.spec import AttentionSpec, Fp8Spec, ModelSpec
from sightline.types import Request

CPU = torch.device("cpu")
EMBEDDED = Path(quantise.__file__).parents[1] / "data" / "embedded"
SMALL: dict[str, Any] = {"kv_cache_gb": 0.1, "embedding_cache_gb": 0.02}


# ---- Rounding


def test_rounding_is_to_the_nearest_of_all_values() -> None:
    """Red if rows were scaled by anything but their maximum, or rounded to another neighbour."""
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e-3], [1], [7], [40], [500], [0]])
    values, scale = quantise_rows(x, 64)
    expected_scale = np.maximum(np.abs(x.numpy()).max(1, keepdims=True), np.float32(1e-12)) * np.float32(1 / 448)
    assert np.array_equal(scale.numpy(), expected_scale)
    expected = e4m3_values()[nearest_bytes(x.numpy() / expected_scale)]
    found = values.float().numpy()
    halfway = np.abs(np.abs(found - x.numpy() / expected_scale) - np.abs(expected - x.numpy() / expected_scale)) < 1e-6
    assert np.array_equal(found, expected) or halfway[found != expected].all()
    assert (np.abs(found[:5]).max(1) == 448).all() and not found[5].any()


# ---- Which layers


def matrices(spec: ModelSpec) -> set[str]:
    """Names of all that fp8 takes."""
    found = set()
    for index, layer in enumerate(spec.text.layers):
        attends = isinstance(layer.mixer, AttentionSpec)
        names = ["mixer.qkv" if attends else "mixer.qkv_gate", "mixer.out", "mlp.gate_up", "mlp.down"]
        names += ["mixer.gate"] * (attends and layer.mixer.output_gate)
        found |= {f"text.layers.{index}.{name}" for name in names}
    return found


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_language_layers_are_quantised_and_nothing_else(tiny_checkpoints: dict[str, Path], family: str) -> None:
    folder = tiny_checkpoints[family]
    before, after = load(folder), load(folder, Quantiser("fp8"))
    count = len(matrices(before.spec))
    assert set(fp8_layers(after)) == matrices(before.spec) and count >= 4 * before.spec.text.num_layers
    saved = 0
    for name, layer in fp8_layers(after).items():
        linear = before.get_submodule(name)
        assert isinstance(linear, WeightMatrix) and not linear.is_fp8
        assert layer.weight.dtype == FP8 and layer.weight_scale.shape == linear.weight.shape[:-1]
        error = (plain_weight(layer) - linear.weight).abs()
        largest = linear.weight.abs().amax(-1, keepdim=True)
        assert (
            error <= linear.weight.abs() / 16 + largest / 448 / 512 * 1.01
        ).all()  # half a step: 3 bits, or the smallest one
        biases = [one.bias for one in (layer, linear) if isinstance(one, Linear)]  # experts have none
        assert not biases or (biases[0] is None and biases[1] is None) or torch.equal(*biases)
        saved += 3 * linear.weight.numel() - 4 * linear.weight[..., 0].numel()
    rest = {name for name in before.state_dict() if name.rsplit(".", 1)[0] not in fp8_layers(after)}
    assert all(torch.equal(before.state_dict()[name], after.state_dict()[name]) for name in rest)
    summary = summarise(after)
    assert (summary.language, summary.tower, summary.left, summary.saved_bytes) == (count, 0, 0, saved)
    assert f"{count} of the language model's linear layers" in str(summary) and str(summarise(before)) == ""


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_the_tower_on_request(tiny_checkpoints: dict[str, Path], family: str) -> None:
    model = load(tiny_checkpoints[family], Quantiser("fp8", tower=True))
    inside = [name for name in fp8_layers(model) if name.startswith("vision.")]
    assert inside and all(name.startswith("vision.blocks.") for name in inside)
    blocks = [m for n, m in model.named_modules() if n.startswith("vision.blocks.") and isinstance(m, Linear)]
    odd = [m for m in blocks if any(side % 16 for side in m.weight.shape)]
    assert len(inside) == len(blocks) - len(odd) and not any(m.is_fp8 for m in odd)
    assert summarise(model).tower == len(inside) and summarise(model).left == len(odd)


def test_a_layer_with_odd_sides_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tiny_checkpoints: dict[str, Path]) -> None:
    monkeypatch.setattr(
        linear, "SIDE_MULTIPLE", 192
    )  # of the tiny model's sides, 128 and 256 are then odd, 192 and 384 are not
    model = load(tiny_checkpoints["qwen3-vl"], Quantiser("fp8"))
    assert not fp8_layers(model) and summarise(model).language == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scales", ["channel", "block", None])
def test_dummy_weights(tiny_checkpoints: dict[str, Path], family: str, scales: Any) -> None:
    """In the form of the checkpoint whose config it is, and per channel on request."""
    spec = read_model_spec(tiny_checkpoints[family])
    stored = Fp8Spec(scales, "_scale", True) if scales else None
    wanted = None if scales else "fp8"
    model = dummy_model(spec, CPU, torch.bfloat16, 64, 1, Quantiser(wanted, stored=stored))
    plain = dummy_model(spec, CPU, torch.bfloat16, 64, 1)
    assert set(fp8_layers(model)) == matrices(spec)
    for name, layer in fp8_layers(model).items():
        assert layer.has_blocks == (scales == "block")
        weight = plain.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)
        assert (plain_weight(layer) - weight.float()).abs().max() <= weight.abs().max() / 16


def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="quantize_tower"):
        Quantiser(None, tower=True)
    monkeypatch.setattr(quantise, "has_scaled_mm", lambda device: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"cuda:0 has 8\.0"):
        Quantiser("fp8").check_device(torch.device("cuda:0"))
    with pytest.raises(ConfigError, match="quantization 'none'"):
        Quantiser(stored=Fp8Spec("block", "_scale_inv", True)).check_device(torch.device("cuda:0"))
    Quantiser("none", stored=Fp8Spec("block", "_scale_inv", True)).check_device(torch.device("cuda:0"))
    Quantiser().check_device(torch.device("cuda:0"))


# ---- How far off


def request_of(llm: LLM, seed: int = 5) -> Request:
    parts = [
        {"type": "image", "image": picture(230, 170, seed)},
        {"type": "text", "text": "What is this, and how many are there?"},
    ]
    return llm.prompts.chat([{"role": "user", "content": parts}])


def rows_of(llm: LLM, request: Request) -> torch.Tensor:
    rows = encode_items(llm.model, request, llm.processor)
    assert rows is not None
    return rows


def logits(llm: LLM, request: Request, rows: torch.Tensor) -> torch.Tensor:
    """After each token of the prompt, [tokens, vocab]."""
    return (
        SingleSequence(llm.model, request, len(request), 16)
        .prefill(rows.to(llm.device, llm.dtype), all_logits=True)
        .float()
        .cpu()
    )


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).square().mean().sqrt())


class RoundedLinear(nn.Module):
    """What an fp8 layer is at best: weights per channel and inputs per token rounded to the nearest, all else float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = self.rounded(linear.weight), linear.bias

    @staticmethod
    def rounded(x: torch.Tensor) -> torch.Tensor:
        scale = x.detach().abs().amax(-1, keepdim=True).double() / 448
        return torch.from_numpy(e4m3_values()[nearest_bytes((x.detach() / scale).numpy())]).double().mul(scale).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.rounded(x), self.weight, self.bias)


def rounded_logits(reference: Oracle, request: Request, rows: torch.Tensor, deepstack_features: int) -> torch.Tensor:
    """transformers' logits with perfectly rounded language layers, for our embedding rows."""
    layers = reference.model.model.language_model.layers
    linears = [(m, leaf, one) for m in layers.modules() for leaf, one in m.named_children() if isinstance(one, nn.Linear)]
    main, *others = rows.split(rows.shape[1] // (1 + deepstack_features), dim=1)
    try:
        for module, leaf, linear in linears:
            setattr(module, leaf, RoundedLinear(linear))
        return reference.logits_for_request(request, OracleEmbeddings(main, list(others)), [])
    finally:
        for module, leaf, linear in linears:
            setattr(module, leaf, linear)


@pytest.mark.parametrize("name", [*FAMILIES, "embedded"])
def test_logits_are_as_good_as_8_bits_allow(
    tiny_checkpoints: dict[str, Path], name: str, record_property: Callable[[str, object], None]
) -> None:
    """Against float32, ours (bfloat16 otherwise) err at most 1.5 times as much as transformers with perfectly rounded layers.

    Red when numbers are cut off rather than rounded, or quantised twice. That fp8 errs more than bfloat16 is in its nature:
    docs/quantization.md has the figures.
    """
    folder = EMBEDDED if name == "embedded" else tiny_checkpoints[name]
    with LLM(folder, device="cpu", dtype="float32", **SMALL) as exact:
        spec = exact.spec
        requests = [request_of(exact, seed) for seed in (5, 6, 7)]
        rows = [rows_of(exact, request) for request in requests]
        truth = torch.cat([logits(exact, *pair) for pair in zip(requests, rows, strict=True)])
    found = {}
    for kind, quantization in (("bfloat16", "none"), ("fp8", "fp8")):
        with LLM(folder, device="cpu", dtype="bfloat16", quantization=quantization, **SMALL) as llm:
            found[kind] = error(torch.cat([logits(llm, *pair) for pair in zip(requests, rows, strict=True)]), truth)
    reference, deepstack_features = oracle(folder, spec.family), spec.vision.num_deepstack_features
    parts = [rounded_logits(reference, *pair, deepstack_features) for pair in zip(requests, rows, strict=True)]
    found["rounded"] = error(torch.cat(parts), truth)
    for kind, value in found.items():
        record_property(kind, value)
    assert found["fp8"] <= 1.5 * found["rounded"], found
    assert found["fp8"] >= 0.5 * found["rounded"], f"better than 8 bits can be: is anything quantised? {found}"
    assert found["bfloat16"] < found["fp8"] < 15 * found["bfloat16"], found


@pytest.mark.parametrize("tower", [False, True])
def test_the_embedded_model_answers_in_fp8(tower: bool) -> None:
    """Questions it answers right in float32, asked through the engine with layers in 8-bit floats."""
    demo = EMBEDDED.with_name("demo")
    asked = [one for one in json.loads((demo / "questions.json").read_text()) if len(one["images"]) == 1 and not one["videos"]]
    messages = [
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "image": str(demo / one["images"][0])},
                    {"type": "text", "text": one["question"]},
                ],
            }
        ]
        for one in asked
    ]
    with LLM(device="cpu", quantization="fp8", quantize_tower=tower, **SMALL) as llm:
        assert "linear layers" in ready_report(llm.engine, 0.0).quantization
        assert (summarise(llm.model).tower > 0) == tower and summarise(llm.model).language > 0
        answers = [completion.text.strip() for completion in llm.chat(messages)]
    right = sum(answer == one["answer"] for answer, one in zip(answers, asked, strict=True))
    assert right >= len(asked) - 1, list(zip(answers, [one["answer"] for one in asked], strict=True))


# ---- On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["fp8", "block"])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_err_no_more_than_definitions(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, family: str, form: str
) -> None:
    """On the GPU, against float32: kernels err at most 1.5 times as much as definitions, and choose float32's token where its
    lead is larger than twice the definitions' largest error."""
    folder = exactly = tiny_checkpoints[family]
    if form == "block":
        write_fp8(folder, tmp_path / "stored", tmp_path / "meant", "block")
        folder, exactly = tmp_path / "stored", tmp_path / "meant"
    with LLM(exactly, device="cuda", dtype="float32", quantization="none", **SMALL) as exact:
        request = request_of(exact)
        with definitions_only():
            rows = rows_of(exact, request)
            truth = logits(exact, request, rows)
    with LLM(folder, device="cuda", dtype="bfloat16", quantization="fp8" if form == "fp8" else None, **SMALL) as llm:
        assert fp8_layers(llm.model)
        kernels = logits(llm, request, rows)
        with definitions_only():
            defined = logits(llm, request, rows)
    assert error(kernels, truth) <= 1.5 * error(defined, truth), (error(kernels, truth), error(defined, truth))
    best = truth.topk(2, dim=1).values
    tie = best[:, 0] - best[:, 1] < 2 * (defined - truth).abs().max()
    assert not ((kernels.argmax(1) != truth.argmax(1)) & ~tie).any()


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [False, True])
def test_a_recorded_layer_follows_its_input(blocks: bool) -> None:
    """A CUDA graph of a layer, replayed on other numbers, gives what the layer gives: nothing was read on the host."""
    weight = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16) / 16
    layer = Linear(256, 512, bias=False)
    layer.set_fp8(Fp8Weight.of(weight, blocks))
    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    for factor in (1.0, 300.0, 0.001):
        x.copy_(factor * torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, layer(x))
