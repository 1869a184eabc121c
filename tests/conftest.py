"""Fixtures shared by all tests."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

# How long an example takes says more of the machine than of the code: no deadlines. The same examples each time, so that the
# change decides, and not chance; `./run test --all` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("new", deadline=None)
settings.load_profile("same")

DENSE = ("qwen3-vl", "qwen2.5-vl", "glm-4.1v", "glm-4.6v-flash", "qwen3.5")
_WITH_EXPERTS = ("qwen3-vl-moe", "glm-4.5v", "glm-4.6v", "qwen3.5-moe")
# Those that see a picture in several views. Of the whole model transformers has no class, so tests/step3_vl joins its parts.
IN_VIEWS = ("step3-vl",)
ALL_FAMILIES = (*DENSE, *_WITH_EXPERTS, *IN_VIEWS)
# Those with experts have a dense family's tower and prompts; what is theirs alone tests/parity/test_experts.py tries each time.
FAMILIES = (*DENSE, *(pytest.param(family, marks=pytest.mark.slow) for family in _WITH_EXPERTS))
# Those whose layers all have keys and values. What others do with prefixes, drafts and captured steps is tried by
# tests/engine/test_hybrid*.py, tests/cache and tests/worker/test_every_bucket.py.
PAGED_FAMILIES = tuple(family for family in FAMILIES if "qwen3.5" not in str(family))


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One tiny checkpoint per family in float32, every parameter random, as `sightline model new` writes it."""
    from sightline.models.create import create_checkpoint

    folders = {}
    for seed, family in enumerate(ALL_FAMILIES):
        folders[family] = tmp_path_factory.mktemp("checkpoints") / family
        create_checkpoint(folders[family], family, "tiny", dtype=torch.float32, seed=seed)
    return folders
