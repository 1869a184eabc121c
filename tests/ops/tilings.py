"""What tests of tuned tilings share: an empty cache folder, and nothing that is fixed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sightline.ops.triton import small_m_tilings
from sightline.ops.triton.small_m_tilings import H200, GemmShape, Tiling, can_run
from sightline.ops.tuning.kept_tilings import Machine, kernel_hash

SHAPE = GemmShape(16, 7680, 3328)  # of no known model
OTHER = GemmShape(32, 7680, 3328, gated=True, form="fp8")
UNUSUAL = Tiling(32, 128, 1, 4, 5)
MACHINE = Machine("NVIDIA H200", "580.1", "2.11.0", "3.6.0", kernel_hash())
assert can_run(SHAPE, UNUSUAL, H200)


def forget() -> None:
    small_m_tilings._fixed.clear()
    small_m_tilings.linear_tiling.cache_clear()
    small_m_tilings.gated_tiling.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where files of tilings lie."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache" / "sightline" / "tilings"
    forget()
