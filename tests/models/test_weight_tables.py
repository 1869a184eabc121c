"""Tables as a whole: every stored number is used, ranks' shares join to the whole model, what is ignored is said."""

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import FAMILIES, IN_VIEWS
from models.fp8_checkpoints import Form, write_fp8
from models.weight_trees import count_bytes, share_of, uses
from parallel.checkpoints import many_heads
from sightline.errors import CheckpointError
from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.fp8 import Fp8Weight
from sightline.models.linear import WeightMatrix
from sightline.models.load import dummy_model, load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import Quantiser
from sightline.models.registry import family_named, read_model_spec, registry
from sightline.models.sharding import BUILT_IN, ModelShard, PartShard, shard_model
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Cast, Share, Stored, part_of_groups
from sightline.models.weights.layers import attention, experts, gated_mlp
from sightline.spec import AttentionSpec, ExpertLayout, ExpertsSpec, GatedMLPSpec, ModelSpec, TextRopeSpec

CPU = torch.device("cpu")
NAMES = (*FAMILIES, *IN_VIEWS)


@pytest.mark.parametrize("family", NAMES)
def test_every_stored_number_is_used_once(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red when a table leaves out a part of a tensor, or takes a part of one twice."""
    table = family_named(family).weight_table(read_model_spec(tiny_checkpoints[family]))
    for name, count in uses(table).items():
        assert (count == 1).all(), name


@pytest.mark.parametrize("layout", ["fused", "fused_transposed", "per_expert"])
def test_helpers_use_every_number_once(layout: ExpertLayout) -> None:
    table = WeightTable()
    experts(table, "layer.mlp", "layer.mlp", ExpertsSpec(3, 2, 6, shared_expert="gated"), 8, layout, shared="shared_expert")
    experts(table, "layer.moe", "layer.moe", ExpertsSpec(3, 2, 6, "sigmoid", 1.0, "plain"), 8, layout, shared="shared_experts")
    gated_mlp(table, "layer.shared", "layer.mlp.shared", hidden=8, intermediate=6, fused=True)
    rope = TextRopeSpec(1e4, 6, (1, 1, 1), "blocked", "halves")
    attention(
        table, "layer.attention", "layer.self_attn", AttentionSpec(4, 2, 6, qkv_bias=True, qk_norm=True, rope=rope), hidden=8
    )
    assert all((count == 1).all() for count in uses(table).values())


def test_a_part_that_nothing_uses_is_found() -> None:
    """q without the gate beside it: half of the numbers. Red when `uses` counts what is read and not what is used."""
    table = WeightTable()
    table["q"] = part_of_groups(Stored("q_proj", (64, 3)), 0, 4, 0, 8)
    assert int((uses(table)["q_proj"] == 0).sum()) == 32 * 3


def test_a_table_with_two_of_one_name_cannot_be_built() -> None:
    """Red when one parameter is described twice, or one stored tensor in two shapes."""
    table = WeightTable()
    table["a"] = Stored("x", (2, 3))
    with pytest.raises(AssertionError, match="has 'a' already"):
        table["a"] = Stored("y", (2, 3))
    table["b"] = Stored("x", (3, 2))
    with pytest.raises(AssertionError, match="two forms of 'x'"):
        table.stored()


@pytest.mark.parametrize("family", NAMES)
def test_ranks_have_the_halves(tiny_checkpoints: dict[str, Path], tmp_path: Path, family: str) -> None:
    """What `half_of` says by hand is what the package gives the first and the second of two ranks, 8-bit floats or not."""
    spec = read_model_spec(with_two_keys(tiny_checkpoints[family], family, tmp_path))
    for rank in (0, 1):
        found, right = shard_model(spec, rank, 2), half_of(rank, spec)
        assert found.spec == right.spec
        assert found.shares == right.shares


def _half_net(spec: DeltaNetSpec, rank: int, ranks: int, unit: int) -> PartShard:
    return PartShard(dataclasses.replace(spec, key_heads=spec.key_heads // 2, value_heads=spec.value_heads // 2), {})


def _half_mlp(spec: GatedMLPSpec, rank: int, ranks: int, unit: int) -> PartShard:
    return PartShard(dataclasses.replace(spec, intermediate_size=spec.intermediate_size // 2), {})


def _half_experts(spec: ExpertsSpec, rank: int, ranks: int, unit: int) -> PartShard:
    return PartShard(dataclasses.replace(spec, intermediate_size=spec.intermediate_size // 2), {})


def half_of(rank: int, spec: ModelSpec) -> ModelShard:
    """What the first or second of two ranks has: heads and MLP columns of the decoder, half of the vocabulary. Written
    out here, apart from the way that the package finds it."""
    text, attention = spec.text, spec.text.attention
    q, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    nets = [layer.mixer for layer in text.layers if isinstance(layer.mixer, DeltaNetSpec)]
    keys, values, heads = (nets[0].keys, nets[0].values, nets[0].value_heads) if nets else (0, 0, 0)

    def spans(*parts: int) -> tuple[tuple[int, int], ...]:
        starts = [sum(parts[:index]) for index in range(len(parts))]
        return tuple((start + rank * (size // 2), size // 2) for start, size in zip(starts, parts, strict=True))

    def axes(owner: str, shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        rows, columns = len(shape) - 2, len(shape) - 1  # those of experts are behind their count
        return {
            "qkv": (0, (q, kv, kv)),
            "gate": (0, (q,)),
            "qkv_gate": (0, (keys, keys, values, values)),
            "conv": (0, (keys, keys, values)),
            "rates": (0, (heads, heads)),
            "a_log": (0, (heads,)),
            "dt_bias": (0, (heads,)),
            "out": (1, shape[1:]),
            "gate_up": (rows, (shape[rows] // 2,) * 2),
            "down": (columns, (shape[columns],)),
            "embed_tokens": (0, (text.vocab_size,)),
            "lm_head": (0, (text.vocab_size,)),
        }[owner]

    shares = {}
    for name, weight in family_named(spec.family).weight_table(spec).items():
        owner = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        if name.startswith("text.") and "norm" not in owner and owner != "router":
            axis, parts = axes(owner, weight.shape)
            shares[name] = Share(axis, spans(*parts))
    own_parts = {**BUILT_IN, GatedMLPSpec: _half_mlp, DeltaNetSpec: _half_net, ExpertsSpec: _half_experts}
    return dataclasses.replace(shard_model(spec, rank, 2, parts=own_parts), shares=shares)


def joined(halves: list[torch.Tensor], share: Share) -> torch.Tensor:
    lengths = [length for _, length in share.spans]
    pieces = [half.split(lengths, share.axis) for half in halves]
    return torch.cat([piece for pair in zip(*pieces, strict=True) for piece in pair], share.axis)


def plain_weights(model: VisionLanguageModel) -> dict[str, torch.Tensor]:
    """Parameters as they are called in a model without 8-bit floats."""
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, WeightMatrix) and module.is_fp8:
            found[f"{name}.weight"] = Fp8Weight(module.weight, module.weight_scale).dequantise()
            del found[f"{name}.weight_scale"]
    return {name: value.detach() for name, value in found.items()}


def check_halves(folder: Path) -> list[VisionLanguageModel]:
    """Loads the whole and both halves, and compares every parameter."""
    spec = read_model_spec(folder)
    whole = plain_weights(load_model(spec, folder, CPU, torch.float32, 64))
    models = [load_model(spec, folder, CPU, torch.float32, 64, shard=half_of(rank, spec)) for rank in (0, 1)]
    halves = [plain_weights(model) for model in models]
    cut = 0
    for name, value in whole.items():
        share = half_of(0, spec).shares.get(name)
        both = [half[name] for half in halves]
        if share is None:
            assert torch.equal(both[0], value) and torch.equal(both[1], value), name
        else:
            assert torch.equal(joined(both, share), value) and 2 * both[0].numel() == value.numel(), name
            cut += 1
    assert cut >= 4 * spec.text.num_layers + 1
    return models


def with_two_keys(folder: Path, family: str, new: Path) -> Path:
    """A key head is not cut: of a tiny model that has one alone, both ranks would have it. And experts of a width whose halves
    are whole units."""
    fields = {}
    if read_model_spec(folder).text.attention.num_kv_heads == 1:
        fields["num_key_value_heads"] = 2
    if family == "qwen3.5-moe":
        fields |= {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 96}
    return many_heads(new / "two keys", family, {"text_config": fields}) if fields else folder


@pytest.mark.parametrize("family", NAMES)
def test_two_halves_join_to_the_whole(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Red when a share has other numbers, or the rest of a tensor is read with it."""
    folder = with_two_keys(tiny_checkpoints[family], family, tmp_path)
    models = check_halves(folder)
    spec = read_model_spec(folder)
    counted = count_bytes(monkeypatch)
    load_model(spec, folder, CPU, torch.float32, 64, shard=half_of(0, spec))
    parameters = dict(models[0].named_parameters())
    # Rows of a head's query and gate are neighbours: to have the one the other is read with it.
    twice = sum(2 * value.numel() for name, value in parameters.items() if name.endswith("mixer.gate.weight"))
    table = family_named(family).weight_table(spec)  # what was folded into other parameters is none any more
    folded = sum(math.prod(weight.shape) for name, weight in table.items() if name not in parameters)
    assert sum(count for _, count in counted) == 4 * (sum(value.numel() for value in parameters.values()) + twice + folded)


@pytest.mark.parametrize("form", ["block", "channel", "tensor"])
@pytest.mark.parametrize("family", NAMES)
def test_two_halves_of_an_fp8_checkpoint(tiny_checkpoints: dict[str, Path], tmp_path: Path, family: str, form: Form) -> None:
    """Red when a half of a matrix gets scales of the other half, or of a block that it has only a part of."""
    folder = with_two_keys(tiny_checkpoints[family], family, tmp_path)
    write_fp8(folder, tmp_path / "stored", tmp_path / "meant", form)
    for model in check_halves(tmp_path / "stored"):
        kept = [name for name, module in model.named_modules() if isinstance(module, WeightMatrix) and module.is_fp8]
        matrices = [module for module in model.text.layers.modules() if isinstance(module, WeightMatrix) and module.fits_fp8]
        assert len(matrices) > 3 * model.spec.text.num_layers
        attending = sum(isinstance(layer.mixer, AttentionSpec) for layer in model.spec.text.layers)
        # Of tiny models only attention's out has halves that are whole blocks, in Qwen2.5-VL not even that.
        assert len(kept) == (attending * (family != "qwen2.5-vl") if form == "block" else len(matrices))


def with_table(
    monkeypatch: pytest.MonkeyPatch, family: str, change: Callable[[WeightTable], None], ignored: tuple[str, ...] = ()
) -> None:
    """The family with a table that was changed."""
    original = family_named(family)

    def changed(spec: ModelSpec) -> WeightTable:
        table = WeightTable(ignored)
        for name, weight in original.weight_table(spec).items():
            table[name] = weight
        change(table)
        return table

    monkeypatch.setitem(registry().families, family, dataclasses.replace(original, weight_table=changed))


def test_ignored_tensors_are_counted_in_a_line(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a family knows and does not load is said once. Red when it is refused, or when anything else passes with it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_checkpoints["qwen3-vl"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors |= {"mtp.fc.weight": torch.ones(2, 4), "mtp.layers.0.mlp.down_proj.weight": torch.ones(2, 2)}
    save_file(tensors, folder / "model.safetensors")
    spec = read_model_spec(folder)
    with pytest.raises(CheckpointError, match=r"2 tensors: 'mtp\.fc\.weight'"):
        load_model(spec, folder, CPU, torch.float32, 64)
    with_table(monkeypatch, "qwen3-vl", lambda table: None, ignored=("mtp.*",))
    with caplog.at_level(logging.INFO, "sightline.engine"):
        load_model(spec, folder, CPU, torch.float32, 64)
    assert [record.getMessage() for record in caplog.records] == [
        "2 tensors of the checkpoint are known and not loaded (mtp.*)."
    ]
    save_file(tensors | {"mtq": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="tensor 'mtq', which nothing uses"):
        load_model(spec, folder, CPU, torch.float32, 64)


def test_a_fixed_dtype_is_kept(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a parameter that the table casts to float32 takes the dtype that the model is loaded in."""

    def keep(table: WeightTable) -> None:
        table["text.norm.weight"] = Cast("float32", table.pop("text.norm.weight"))

    folder = tiny_checkpoints["qwen3-vl"]
    spec = read_model_spec(folder)
    with_table(monkeypatch, "qwen3-vl", keep)
    stored = load_file(folder / "model.safetensors")["model.language_model.norm.weight"]
    loaded = load_model(spec, folder, CPU, torch.bfloat16, 64)
    for model in (loaded, dummy_model(spec, CPU, torch.bfloat16, 64)):
        assert model.text.norm.weight.dtype == torch.float32
        assert model.text.layers[0].input_norm.weight.dtype == torch.bfloat16
    assert torch.equal(loaded.text.norm.weight, stored)


def test_a_share_is_quantised_as_the_whole_is(tiny_checkpoints: dict[str, Path]) -> None:
    """--quantization fp8 on a rank's rows: each keeps the scale that it has in the whole. Red when it is cut from others."""
    folder = tiny_checkpoints["qwen3-vl"]
    spec = read_model_spec(folder)
    shard = half_of(1, spec)
    whole, half = (
        load_model(spec, folder, CPU, torch.float32, 64, quantiser=Quantiser("fp8"), shard=part).get_submodule(
            "text.layers.0.mixer.qkv"
        )
        for part in (None, shard)
    )
    cut = shard.shares["text.layers.0.mixer.qkv.weight"]
    assert len(cut.spans) == 3
    assert torch.equal(half.weight_scale, share_of(whole.weight_scale, cut))
    assert torch.equal(half.weight.float(), share_of(whole.weight.float(), cut))
