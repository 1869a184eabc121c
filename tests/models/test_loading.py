"""Checkpoints on disk: every layout that exists loads, everything that does not fit is refused by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import FAMILIES, IN_VIEWS
from oracle import CLASSES, oracle
from sightline.errors import CheckpointError, UserError
from sightline.models.create import create_checkpoint
from sightline.models.linear import TiedHead
from sightline.models.load import dummy_model, load_model
from sightline.models.locate import locate_model
from sightline.models.model import VisionLanguageModel
from sightline.models.registry import family_named, read_model_spec
from sightline.models.weights.expressions import Cast

CPU = torch.device("cpu")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> VisionLanguageModel:
    return load_model(read_model_spec(folder), folder, CPU, dtype, max_position=64)


def assert_same_weights(first: VisionLanguageModel, second: VisionLanguageModel) -> None:
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_loaded(tiny_checkpoints: dict[str, Path], tmp_path: Path, family: str) -> None:
    """transformers reads our checkpoint and writes it in its own names; loading that gives the same weights."""
    oracle(tiny_checkpoints[family], family).model.save_pretrained(tmp_path / "saved")
    assert_same_weights(load(tmp_path / "saved"), load(tiny_checkpoints[family]))


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_shards_equal_one_file(tmp_path: Path, family: str) -> None:
    for name, shard_bytes in (("one", 1 << 40), ("many", 200_000)):
        create_checkpoint(tmp_path / name, family, "tiny", dtype=torch.float32, seed=9, shard_bytes=shard_bytes)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert_same_weights(load(tmp_path / "one"), load(tmp_path / "many"))


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", "language_model.model."])
def test_older_names(tiny_checkpoints: dict[str, Path], tmp_path: Path, prefix: str) -> None:
    folder = shutil.copytree(tiny_checkpoints["qwen2.5-vl"], tmp_path / "renamed")
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("model.language_model.", prefix).replace("model.visual.", "visual."): value
        for name, value in tensors.items()
    }
    renamed["visual.rotary_pos_emb.inv_freq"] = torch.ones(3)  # a buffer that old files carry
    save_file(renamed, folder / "model.safetensors")
    assert_same_weights(load(folder), load(tiny_checkpoints["qwen2.5-vl"]))


@pytest.mark.parametrize(("tower", "text"), [("", "model."), ("model.", "model.language_model.")])
def test_names_of_step3_vl(tiny_checkpoints: dict[str, Path], tmp_path: Path, tower: str, text: str) -> None:
    """As published, and as the model's own code calls them once they are loaded."""
    folder = shutil.copytree(tiny_checkpoints["step3-vl"], tmp_path / "renamed")
    renamed = {
        f"{tower}{name}" if name.startswith(("vision_model.", "vit_")) else name.replace("model.language_model.", text): value
        for name, value in load_file(folder / "model.safetensors").items()
    }
    save_file(renamed, folder / "model.safetensors")
    assert_same_weights(load(folder), load(tiny_checkpoints["step3-vl"]))


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    folder = tmp_path / "tied"
    create_checkpoint(folder, "qwen3-vl", "tiny", dtype=torch.float32)
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_tied_embeddings(tied: Path) -> None:
    """The head is the embedding: logits equal transformers', and a stored head must be that same matrix."""
    model = load(tied)
    assert isinstance(model.text.lm_head, TiedHead) and model.text.lm_head.table is model.text.embed_tokens
    tensors = load_file(tied / "model.safetensors")
    reference = CLASSES["qwen3-vl"].from_pretrained(tied, dtype=torch.float32)
    assert torch.equal(reference.lm_head.weight, model.text.embed_tokens.weight)
    tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone()
    save_file(tensors, tied / "model.safetensors")
    load(tied)
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, tied / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"ties 'lm_head\.weight'"):
        load(tied)


def damaged(folder: Path, tmp_path: Path, what: str) -> Path:
    copy = shutil.copytree(folder, tmp_path / "damaged")
    weights = copy / "model.safetensors"
    tensors = load_file(weights)
    if what == "missing":
        del tensors["model.visual.blocks.1.attn.qkv.bias"]
    elif what == "left over":
        tensors["model.visual.blocks.9.attn.qkv.bias"] = torch.zeros(3)
    elif what == "wrong shape":
        tensors["model.language_model.norm.weight"] = torch.zeros(3)
    save_file(tensors, weights)
    if what == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif what == "truncated header":
        weights.write_bytes(weights.read_bytes()[:100])
    elif what == "no weights":
        weights.unlink()
    elif what == "pickle":
        weights.rename(copy / "pytorch_model.bin")
    elif what == "bad index":
        weights.rename(copy / "other.safetensors")
        (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    elif what == "escaping index":
        (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    return copy


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "lacks tensor 'visual.blocks.1.attn.qkv.bias'"),
        ("left over", "model.visual.blocks.9.attn.qkv.bias"),
        ("wrong shape", "shape"),
        ("truncated", "damaged or cut short"),
        ("truncated header", "damaged or cut short"),
        ("no weights", "no model.safetensors"),
        ("pickle", "pytorch_model.bin"),
        ("bad index", "gone.safetensors"),
        ("escaping index", "outside"),
    ],
)
def test_what_does_not_fit_is_refused(tiny_checkpoints: dict[str, Path], tmp_path: Path, what: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(damaged(tiny_checkpoints["qwen3-vl"], tmp_path, what))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_dummy_weights(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Random, reproducible, finite, in the asked dtype, and no parameter forgotten on the meta device."""
    spec = read_model_spec(tiny_checkpoints[family])
    first, second, other = (dummy_model(spec, CPU, torch.bfloat16, 64, seed) for seed in (1, 1, 2))
    assert_same_weights(first, second)
    table = family_named(family).weight_table(spec)
    for (name, value), different in zip(first.named_parameters(), other.parameters(), strict=True):
        dtype = getattr(torch, table[name].dtype) if isinstance(table[name], Cast) else torch.bfloat16
        assert value.dtype == dtype and value.device == CPU, name
        assert value.float().std() > 1e-3 and not torch.equal(value, different), name


def test_a_new_checkpoint_is_random_everywhere(tiny_checkpoints: dict[str, Path]) -> None:
    """A norm left at 1 or a bias left at 0 would hide mistakes from the parity tests."""
    for folder in tiny_checkpoints.values():
        for name, value in load_file(folder / "model.safetensors").items():
            assert value.std() > 1e-3, name


def test_models_are_found_by_folder_or_hub_id(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    assert locate_model(str(folder), None) == folder
    (tmp_path / "file").touch()
    for name, revision, words in (
        (str(folder), "main", "revision 'main'"),
        (str(tmp_path / "file"), None, "is a file"),
        (str(tmp_path / "gone"), None, "no folder"),
        ("gone", None, "not a Hub id"),
        ("owner/na me", None, "valid Hub id"),
    ):
        with pytest.raises(CheckpointError, match=words):
            locate_model(name, revision)


def test_hub_ids_are_served_from_the_cache_when_offline(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """A snapshot in the Hub cache is used without a network; what is not there is refused in a sentence."""
    import os
    import subprocess
    import sys

    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "abc123"
    shutil.copytree(tiny_checkpoints["qwen3-vl"], snapshot)
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text("abc123")
    code = (
        "from sightline.models.locate import locate_model\nfrom sightline.errors import CheckpointError\n"
        "print(locate_model('owner/tiny', None))\n"
        "try: locate_model('owner/tiny', 'other')\nexcept CheckpointError as error: print(error)\n"
        "try: locate_model('owner/gone', None)\nexcept CheckpointError as error: print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    found, other, gone = done.stdout.splitlines()
    assert found == str(snapshot)
    assert "owner/tiny at revision 'other' is not in the local Hub cache" in other
    assert "owner/gone is not in the local Hub cache" in gone
