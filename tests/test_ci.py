""".ci/run installs a Chromium where it can, says so where it cannot, and runs the tests in either case. How ./run test treats
tests that fail beside others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "dirname", "id", "tail", "timeout")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of .ci/run beside a `run` that only says how it was called, and a folder of the few tools there are."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    script(
        tmp_path / "run", 'if [[ "$1" == docs ]]; then echo "page: what is wrong"; exit "${DOCS_CODE:-0}"; fi; echo "tests: $*"'
    )
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


def run(clone: Path, *arguments: str, docs: int = 0, code: int = 0) -> list[str]:
    command = [str(clone / ".ci" / "run"), *arguments]
    environment = {**os.environ, "PATH": str(clone / "bin"), "DOCS_CODE": str(docs)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_machine_with_a_chromium_installs_nothing(clone: Path) -> None:
    script(clone / "bin" / "chromium", "true")
    script(clone / "bin" / "apt-get", "echo called; exit 1")
    assert run(clone, "--all", "-x") == ["tests: test --all -x"]


@pytest.mark.parametrize(("docs", "code"), [(3, 0), (124, 0), (1, 1)], ids=["no packages", "no time", "a wrong page"])
def test_the_documentation_is_built_where_its_packages_can_be_had(clone: Path, docs: int, code: int) -> None:
    """Red when a network that is down fails the run, or a page that is wrong does not."""
    script(clone / "bin" / "chromium", "true")
    said = run(clone, docs=docs, code=code)
    assert said[0].startswith("==> The documentation") and said[1] == "page: what is wrong"
    assert said[2:] == ([] if code else ["tests: test"])


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


# ---- ./run test: a few tests that fail beside others are run again alone


def run_tests(folder: Path, first: int, failed: list[str], alone: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`./run test` where ruff and mypy are content, and pytest ends with `first`, then with `alone`."""
    shutil.copy(ROOT / "run", folder / "run")
    for name in ("pyproject.toml", "constraints.txt", "requirements/test.lock"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    cache = folder / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    (folder / ".venv" / "bin").mkdir(parents=True)
    script(
        folder / ".venv" / "bin" / "python",
        f"""case "$*" in
  "-m ruff"* | "-m mypy"*) ;;
  "-m pytest"*--last-failed*) echo "alone: $*"; exit {alone} ;;
  "-m pytest"*) exit {first} ;;
  *) exec {sys.executable} "$@" ;;
esac""",
    )
    stamp = f'echo "{folder} $(cat pyproject.toml constraints.txt requirements/*.lock | cksum)" > .venv/.ready-for-test'
    subprocess.run(["bash", "-c", stamp], cwd=folder, check=True)
    return subprocess.run([str(folder / "run"), "test", *arguments], capture_output=True, text=True, timeout=60)


def test_what_fails_beside_others_and_passes_alone_is_named_and_passes(tmp_path: Path) -> None:
    done = run_tests(tmp_path, 1, ["tests/a.py::test_b"], 0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/a.py::test_b" in done.stdout and "alone: -m pytest -n 0 --last-failed" in done.stdout


def test_what_fails_twice_is_a_failure(tmp_path: Path) -> None:
    assert run_tests(tmp_path, 1, ["tests/a.py::test_b"], 1).returncode == 1


@pytest.mark.parametrize(
    ("code", "failed", "arguments"),
    [(1, 21, ()), (2, 1, ()), (1, 1, ("-x",))],
    ids=["many at once", "a run that was cut short", "one that was asked for in part"],
)
def test_no_other_failure_is_tried_again(tmp_path: Path, code: int, failed: int, arguments: tuple[str, ...]) -> None:
    done = run_tests(tmp_path, code, [f"tests/a.py::test_{number}" for number in range(failed)], 0, *arguments)
    assert done.returncode == code and "alone:" not in done.stdout, done.stdout + done.stderr


def test_tests_that_pass_are_not_run_twice(tmp_path: Path) -> None:
    done = run_tests(tmp_path, 0, [], 0)
    assert done.returncode == 0 and "alone:" not in done.stdout, done.stdout + done.stderr
