"""Plans on paper for models that fit no single GPU: the table of docs/several-gpus.md, and weights of a rank counted again."""

import dataclasses
import re
from pathlib import Path

import pytest

from sightline.models.create import create_checkpoint
from sightline.models.load import empty_model
from sightline.models.memory_outlook import CARDS, outlook
from sightline.models.registry import read_model_spec
from sightline.spec import Fp8Spec, ModelSpec

DOCS = Path(__file__).parents[2] / "docs" / "several-gpus.md"
MODELS = {
    "Qwen3-VL-235B-A22B": ("qwen3-vl-moe", "235b-a22b"),
    "Qwen2.5-VL-72B": ("qwen2.5-vl", "72b"),
    "Qwen3.5-397B-A17B": ("qwen3.5-moe", "397b-a17b"),
}
ROW = re.compile(
    r"\| (\S+?)(, fp8)?(, `--expert-parallel`)? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+|–) \| (\S+) \| (\S+) \| (\S+) \|\n"
)


def spec_of(folder: Path, name: str, fp8: bool) -> ModelSpec:
    create_checkpoint(folder / name, *MODELS[name], weights=False)
    spec = read_model_spec(folder / name)
    return dataclasses.replace(spec, fp8=Fp8Spec("block", "_scale_inv", True)) if fp8 else spec


def test_the_table_is_what_info_says(tmp_path: Path) -> None:
    """Red when a share, a cache or what is beside them changes and the table does not."""
    rows = ROW.findall(DOCS.read_text(encoding="utf-8"))
    assert {name for name, *_ in rows} == set(MODELS) and len(rows) == 7
    for name, fp8, whole, weights, token, state, *tokens in rows:
        found = outlook(spec_of(tmp_path / (fp8 + whole), name, bool(fp8)), 8, bool(whole))
        assert f"{found.weights / 1e9:.1f}" == weights, (name, fp8, whole)
        assert f"{found.token_bytes / 1024:.1f}" == token, name
        assert (f"{found.state_bytes / 1e6:.1f}" if found.state_bytes else "–") == state, name
        fits = [f"{found.tokens(card):,}" if found.tokens(card) else "no" for card in CARDS.values()]
        assert fits == tokens, (name, fp8, whole, fits)


@pytest.mark.parametrize("name", MODELS)
def test_a_rank_has_an_eighth_and_what_all_have(tmp_path: Path, name: str) -> None:
    """Weights of a rank: the whole tower, norms and routers, more than an eighth of keys and values where there are fewer than
    ranks, and of all else an eighth. Red when a matrix is on all ranks, or on none."""
    spec = spec_of(tmp_path, name, False)
    parameters = {key: 2 * value.numel() for key, value in empty_model(spec).named_parameters()}
    whole = sum(size for key, size in parameters.items() if key.startswith("vision."))
    split = sum(size for key, size in parameters.items() if key.startswith("text."))
    found = outlook(spec, 8).weights
    assert whole + split / 8 <= found <= 1.05 * (whole + split / 8)
