"""The way from a fresh clone to a working environment: ./run, pyproject.toml and constraints.txt agree with each other."""

import os
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sightline

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ROOT / "run"), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


def pins() -> dict[str, str]:
    """Package → version. Anything but exact pins and comments in constraints.txt is an error here."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    matches = [(line, re.fullmatch(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)", line)) for line in lines]
    assert [line for line, match in matches if match is None] == []
    found = {match[1]: match[2] for _, match in matches if match is not None}
    assert len(found) == len(lines), "a package is pinned twice"
    return found


def test_every_dependency_of_the_project_is_pinned_within_its_bounds() -> None:
    """Red when a dependency is added to pyproject.toml alone, or a bound is raised above the pin."""
    found = pins()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    requirements = [Requirement(text) for text in [*build, *PROJECT["dependencies"], *EXTRAS["test"], *EXTRAS["dev"]]]
    assert [r.name for r in requirements if canonicalize_name(r.name) not in found] == []
    assert [str(r) for r in requirements if not r.specifier.contains(found[canonicalize_name(r.name)])] == []


def test_every_package_that_comes_along_is_pinned() -> None:
    """Red when a dependency of a dependency has no pin, so that two clones could differ. Follows the installed packages."""
    if any("nvidia" in text for text in metadata.requires("torch") or []):
        pytest.skip("the pins describe an environment with the CPU build of torch")
    seen: set[tuple[str, str]] = set()  # (package, extra); "" is the package without extras
    queue = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["test"]]]
    while queue:
        requirement = queue.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for package, extra in seen if package == name}:
            seen.add((name, extra))
            for text in metadata.requires(name) or []:
                child = Requirement(text)
                if child.marker is None or child.marker.evaluate({"extra": extra}):
                    child.marker = None
                    queue.append(child)
    assert len(seen) > len(PROJECT["dependencies"])
    assert sorted({name for name, _ in seen} - pins().keys()) == []


def test_version_of_the_package_is_the_version_of_the_project() -> None:
    assert sightline.__version__ == PROJECT["version"]


def test_every_folder_of_code_is_a_package() -> None:
    """Red when an __init__.py is missing: the folder would work from a clone and be absent from a wheel."""
    folders = {file.parent for file in (ROOT / "sightline").rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_scripts_parse_and_are_executable() -> None:
    for script in (ROOT / "run", ROOT / ".ci" / "run"):
        assert os.access(script, os.X_OK), script
        checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, ""), script


def test_help_names_both_commands_from_any_folder(tmp_path: Path) -> None:
    result = run("help", cwd=tmp_path)
    assert result.returncode == 0
    assert re.findall(r"^  (demo|test) ", result.stdout, re.MULTILINE) == ["demo", "test"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("nonsense",), "run: there is no command nonsense; ./run help lists them."),
        (("--nonsense", "demo"), "run: there is no option --nonsense; ./run help lists them."),
        (("--index-url",), "run: --index-url needs a value after it."),
    ],
)
def test_wrong_use_is_answered_with_one_sentence(arguments: tuple[str, ...], complaint: str) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", complaint + "\n")


def test_no_suitable_python_is_answered_with_one_sentence(tmp_path: Path) -> None:
    """A copy of ./run without .venv, and a Python that says it is too old. Red when the version check is lost."""
    for name in ("run", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = ["bash", str(tmp_path / "run"), "--python", str(old), "demo"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"run: None of these is a Python 3.11 or newer: {old};")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()
