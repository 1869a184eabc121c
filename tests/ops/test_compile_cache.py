"""Where compiled kernels are kept: by default in the user's own cache folder, and never against what the user has set."""

import os
from pathlib import Path

import pytest

from sightline.ops.external.compile_cache import FOLDER, QUACK_FOLDER, QUACK_SWITCH, SWITCH, keep_compiled

LIBRARIES = pytest.mark.parametrize(
    ("switch", "variable", "name"), [(SWITCH, FOLDER, "flash-attn-4"), (QUACK_SWITCH, QUACK_FOLDER, "quack")]
)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder. The variables are put back after the test."""
    for name in (SWITCH, FOLDER, QUACK_SWITCH, QUACK_FOLDER):
        monkeypatch.setenv(name, "put back")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@LIBRARIES
def test_the_cache_is_on_in_a_private_folder(caches: Path, switch: str, variable: str, name: str) -> None:
    keep_compiled()
    folder = caches / "sightline" / name
    assert os.environ[switch] == "1" and os.environ[variable] == str(folder)
    assert folder.stat().st_mode & 0o077 == 0


@LIBRARIES
@pytest.mark.parametrize("value", ["0", "1", ""])
def test_a_switch_that_was_set_stays(
    caches: Path, monkeypatch: pytest.MonkeyPatch, value: str, switch: str, variable: str, name: str
) -> None:
    monkeypatch.setenv(switch, value)
    keep_compiled()
    assert os.environ[switch] == value and variable not in os.environ


@LIBRARIES
def test_a_folder_that_was_set_stays(
    caches: Path, monkeypatch: pytest.MonkeyPatch, switch: str, variable: str, name: str
) -> None:
    monkeypatch.setenv(variable, "/somewhere")
    keep_compiled()
    assert os.environ[switch] == "1" and os.environ[variable] == "/somewhere"


def test_without_a_folder_there_is_no_cache(caches: Path) -> None:
    """Red when a library is left to a folder of its own choice, which others may have made."""
    (caches / "sightline").write_text("in the way")
    keep_compiled()
    assert os.environ[SWITCH] == os.environ[QUACK_SWITCH] == "0"


@LIBRARIES
def test_a_folder_that_others_can_write_to_is_not_used(caches: Path, switch: str, variable: str, name: str) -> None:
    """Red when a stranger could put code there for us to run."""
    folder = caches / "sightline" / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    keep_compiled()
    assert os.environ[switch] == "0"
