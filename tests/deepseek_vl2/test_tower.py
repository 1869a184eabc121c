"""The tower beside its rows: laid out for a GPU, in 8-bit floats, in the memory profile; and where weights come from."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from deepseek_vl2.conftest import SIZES
from engine.harness import driver, loaded
from models.weight_trees import uses
from parity.subject import TOLERANCE
from sightline.cli.main import main
from sightline.errors import CheckpointError, ConfigError
from sightline.models.load import load_model
from sightline.models.quantise import quantise_tower
from sightline.models.registry import family_named, read_model_spec
from sightline.worker.profile_run import profile_tower

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(checkpoints: dict[str, Path]) -> Path:
    return checkpoints["tiny"]


def test_heads_laid_out_for_a_gpu_give_the_same_rows(tiny: Path) -> None:
    """Red if what pads a head is not zero, or the scale is that of the padded head."""
    tower = loaded(tiny).model.vision
    wider = copy.deepcopy(tower)
    for block in wider.blocks:
        block.lay_out_heads(80)
    assert tower.spec.head_dim == 72 and wider.blocks[0].qkv.weight.shape == (3 * 2 * 80, 144)
    patches = torch.randn(3 * 25, tower.patch_width, generator=torch.Generator().manual_seed(0))
    rows = [one(one.make_batch([patches[:25], patches[25:]], [(1, 5, 5), (2, 5, 5)])) for one in (tower, wider)]
    assert rows[0].shape == (3 * 9, 128)
    torch.testing.assert_close(rows[0], rows[1], atol=TOLERANCE, rtol=0)


def test_a_tile_does_not_see_another(tiny: Path) -> None:
    """Red if patches attend across tiles: an item is cut between them."""
    tower = loaded(tiny).model.vision
    patches = torch.randn(4 * 25, tower.patch_width, generator=torch.Generator().manual_seed(1))
    whole = tower(tower.make_batch([patches], [(4, 5, 5)]))
    alone = [tower(tower.make_batch([part], [(1, 5, 5)])) for part in patches.split(25)]
    torch.testing.assert_close(torch.cat(alone), whole, atol=1e-5, rtol=0)


def test_the_memory_profile_runs_it(tiny: Path) -> None:
    """Red if the profile makes up grids that this tower does not take, or fewer patches than there may be."""
    assert profile_tower(loaded(tiny).model, 60).shape == (3 * 9, 128)  # of whole tiles


def test_its_blocks_can_be_quantised(tiny: Path) -> None:
    tower = copy.deepcopy(loaded(tiny).model.vision)
    quantise_tower(tower)
    assert tower.blocks[0].qkv.is_fp8 and tower.blocks[1].proj.is_fp8 and not tower.fc1.is_fp8


def test_graphs_of_it_are_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="tower_graphs is on, but graphs need"):
        driver(tiny, tower_graphs=True)


# ---- Weights


@pytest.mark.parametrize("kind", SIZES)
def test_every_stored_number_is_used_once(checkpoints: dict[str, Path], kind: str) -> None:
    """Red when shared experts leave out a part of the wide MLP, or keys and values one of what expands a latent."""
    for name, count in uses(family_named("deepseek-vl2").weight_table(read_model_spec(checkpoints[kind]))).items():
        assert (count == 1).all(), name


def test_names_are_the_published_ones(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """As tensors of published checkpoints are called; the tower's head, which is not used, may be there and nothing else."""
    folder = checkpoints["tiny-mla-sigmoid"]
    tensors = load_file(folder / "model.safetensors")
    assert {
        "vision.pos_embed", "vision.patch_embed.proj.bias", "vision.blocks.1.attn.qkv.weight", "vision.norm.bias",
        "projector.layers.0.weight", "projector.layers.2.bias", "image_newline", "view_seperator",
        "language.model.embed_tokens.weight", "language.model.layers.0.mlp.gate_proj.weight", "language.model.norm.weight",
        "language.model.layers.1.mlp.experts.11.down_proj.weight", "language.model.layers.2.mlp.shared_experts.up_proj.weight",
        "language.model.layers.1.mlp.gate.weight", "language.model.layers.1.mlp.gate.e_score_correction_bias",
        "language.model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "language.model.layers.0.self_attn.kv_b_proj.weight",
        "language.model.layers.0.self_attn.kv_a_layernorm.weight", "language.lm_head.weight",
    } <= set(tensors)  # fmt: skip
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    spec = read_model_spec(folder)
    save_file(tensors | {"vision.attn_pool.latent": torch.ones(1, 1, 144)}, tmp_path / "model.safetensors")
    load_model(spec, tmp_path, CPU, torch.float32, 64)
    save_file(tensors | {"vision.head.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'vision\.head\.weight', which nothing uses"):
        load_model(spec, tmp_path, CPU, torch.float32, 64)


def test_what_model_info_says(checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Red if it knows only attention with keys and values of each head, or one shared expert."""
    main(["model", "info", str(checkpoints["tiny-mla"])])
    said = capsys.readouterr().out
    assert "text        3 layers of 128, 80 numbers kept of a token in each" in said
    assert "2 blocks of 144, 2 heads of 72, tiles of 384 pixels" in said and "4 of 12 and 2 shared ones, 48 wide" in said
