"""Where compiled kernels are kept: by default in the user's own cache folder, and never against what the user has set."""

import os
from pathlib import Path

import pytest

from sightline.ops.external.compile_cache import FOLDER, SWITCH, keep_compiled


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder. The variables are put back after the test."""
    for name in (SWITCH, FOLDER):
        monkeypatch.setenv(name, "put back")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_cache_is_on_in_a_private_folder(caches: Path) -> None:
    keep_compiled()
    folder = caches / "sightline" / "flash-attn-4"
    assert os.environ[SWITCH] == "1" and os.environ[FOLDER] == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_a_switch_that_was_set_stays(caches: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(SWITCH, value)
    keep_compiled()
    assert os.environ[SWITCH] == value and FOLDER not in os.environ


def test_a_folder_that_was_set_stays(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "/somewhere")
    keep_compiled()
    assert os.environ[SWITCH] == "1" and os.environ[FOLDER] == "/somewhere"


def test_without_a_folder_there_is_no_cache(caches: Path) -> None:
    (caches / "sightline").write_text("in the way")
    keep_compiled()
    assert SWITCH not in os.environ


def test_a_folder_that_others_can_write_to_is_not_used(caches: Path) -> None:
    """Red when a stranger could put code there for us to run."""
    folder = caches / "sightline" / "flash-attn-4"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    keep_compiled()
    assert SWITCH not in os.environ
