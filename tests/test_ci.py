""".ci/run: installs a Chromium where it can, says so where it cannot, and runs the tests in either case."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "dirname", "id", "tail", "timeout")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of .ci/run beside a `run` that only says how it was called, and a folder of the few tools there are."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    script(tmp_path / "run", 'echo "tests: $*"')
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"this machine has no {tool}")
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def run(clone: Path, *arguments: str) -> list[str]:
    command = [str(clone / ".ci" / "run"), *arguments]
    environment = {**os.environ, "PATH": str(clone / "bin")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_a_machine_with_a_chromium_installs_nothing(clone: Path) -> None:
    script(clone / "bin" / "chromium", "true")
    script(clone / "bin" / "apt-get", "echo called; exit 1")
    assert run(clone, "--all", "-x") == ["tests: test --all -x"]


def test_without_a_package_manager_the_tests_run(clone: Path) -> None:
    said, tests = run(clone)
    assert "browser test will be skipped" in said and tests == "tests: test"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
@pytest.mark.parametrize("works", [True, False], ids=["works", "fails"])
def test_chromium_is_installed_by_apt(clone: Path, works: bool) -> None:
    ending = "true" if works else "echo E: no such package >&2; exit 100"
    script(clone / "bin" / "apt-get", f'echo "$*" >> {clone}/calls; {ending}')
    said = run(clone)
    assert said[0].startswith("==> Installing Chromium") and said[-1] == "tests: test"
    assert ("E: no such package" in said) is not works
    update, install = (clone / "calls").read_text().splitlines()
    assert update.endswith(" update") and install.endswith(" install --yes --no-install-recommends chromium")
