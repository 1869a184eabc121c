"""Where the real files to test with are: images, videos, configurations. They are not part of the repository.

They are looked for in assets/ in the repository's root, then in shared/assets/ beside the repository. Tests that need them skip
without them.
"""

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_PLACES = (_ROOT / "assets", _ROOT.parent / "shared" / "assets")
_MISSING = pytest.mark.skip(reason="needs the assets folder: assets/ in the repository or shared/assets/ beside it")


def folder() -> Path | None:
    """The assets folder, or None."""
    return next((place for place in _PLACES if place.is_dir()), None)


def asset_files(*patterns: str) -> list:
    """Parameters for pytest.mark.parametrize: the files that match, relative to the assets folder, or one that skips."""
    root = folder()
    if root is None:
        return [pytest.param(None, marks=_MISSING, id="assets")]
    found = sorted(path for pattern in patterns for path in root.glob(pattern) if path.is_file())
    assert found, f"no file under {root} matches {patterns}"
    return [pytest.param(path, id=str(path.relative_to(root))) for path in found]


def asset(name: str) -> Path:
    """One file or folder of the assets; skips the calling test without them."""
    root = folder()
    if root is None:
        pytest.skip(_MISSING.kwargs["reason"])
    return root / name
