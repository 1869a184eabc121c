"""The way from a fresh clone to a working environment: ./run, pyproject.toml and constraints.txt agree with each other."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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


def gpu_pins() -> dict[str, str]:
    lines = (ROOT / "constraints-gpu.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_versions_for_a_gpu_are_within_bounds_and_else_those_of_the_tests() -> None:
    """Red when the gpu extra's bounds leave what ran, or a pin of the tests moves and that of a GPU machine does not."""
    found, tested = gpu_pins(), pins()
    requirements = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["gpu"]]]
    for one in requirements:
        assert one.specifier.contains(found[canonicalize_name(one.name)], prereleases=True), one
    assert all("<" in str(one.specifier) for one in map(Requirement, EXTRAS["gpu"]))
    differ = {name for name in found.keys() & tested.keys() if found[name] != tested[name]}
    assert differ == {"torch"}


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


def locked(command: str) -> dict[str, tuple[str, list[str]]]:
    """Package → version and hashes, of the list that ./run installs from."""
    text = (ROOT / "requirements" / f"{command}.lock").read_text()
    found = {}
    for entry in re.split(r"\n(?=[a-z])", text.split("\n", 1)[1].strip()):
        match = re.fullmatch(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)(?: ; [^\\]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)", entry)
        assert match is not None, entry
        found[match[1]] = match[2], re.findall(r"[0-9a-f]{64}", match[3])
    return found


@pytest.mark.parametrize("command", ["demo", "test"])
def test_everything_but_torch_is_installed_by_its_hash(command: str) -> None:
    """Red when constraints.txt or a dependency changes and .ci/lock.py is not run: the next clone would not install."""
    found, pinned = locked(command), pins()
    assert {name: version for name, (version, _) in found.items()} == {name: pinned[name] for name in found}
    assert all(len(hashes) == len(set(hashes)) >= 1 for _, hashes in found.values())
    asked = [Requirement(text) for text in [*PROJECT["dependencies"], *(EXTRAS["test"] if command == "test" else ())]]
    wanted = {canonicalize_name(requirement.name) for requirement in asked} | {"setuptools"}
    for name in sorted(wanted - {"torch"}):
        needed = [Requirement(text) for text in metadata.requires(name) or []]
        wanted |= {canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert sorted(wanted - {"torch"} - found.keys()) == []
    if command == "test":
        assert sorted(pinned.keys() - found.keys() - {"torch"}) == sorted(dev_pins())
    assert "torch" not in found


def test_the_documentation_is_built_with_packages_by_their_hashes() -> None:
    """Red when the docs extra changes and .ci/lock.py --docs is not run, or one package has two versions in one clone."""
    found, pinned = locked("docs"), pins()
    for one in map(Requirement, EXTRAS["docs"]):
        assert one.specifier.contains(found[canonicalize_name(one.name)][0]), one
    assert all(len(hashes) == len(set(hashes)) >= 1 for _, hashes in found.values())
    assert {name for name in found.keys() & pinned.keys() if found[name][0] != pinned[name]} == set()


def dev_pins() -> list[str]:
    """Those of the dev extra, which ./run does not install."""
    text = (ROOT / "constraints.txt").read_text().split("# The dev extra\n")[1]
    return [line.split("==")[0] for line in text.split()]


class _Database(BaseHTTPRequestHandler):
    """Of advisories: it has one, for jinja2."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        assert self.path == "/v1/querybatch" and all(query["package"]["ecosystem"] == "PyPI" for query in asked)
        known = {"jinja2": {"vulns": [{"id": "GHSA-2"}, {"id": "GHSA-1"}]}}
        body = json.dumps({"results": [known.get(query["package"]["name"], {}) for query in asked]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def database() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Database)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def check_advisories(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "advisories.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_pinned_versions_are_looked_up_among_advisories(database: str, tmp_path: Path) -> None:
    """Red when a package is left out of the question, when an advisory is not told, or when it is not an error."""
    result = check_advisories("--database", database)
    assert result.returncode == 1, result
    lines = result.stdout.splitlines()
    assert lines[0] == f"jinja2 {pins()['jinja2']}: GHSA-1, GHSA-2"
    assert lines[1] == f"{len(pins())} pinned packages, 1 of them named by advisories."
    (tmp_path / "pins").write_text("# one\nidna==3.20\n")
    assert check_advisories("--database", database, "--constraints", str(tmp_path / "pins")).returncode == 0


def test_without_a_database_it_is_said_that_nothing_was_checked() -> None:
    """Red when no answer looks like a good one."""
    result = check_advisories("--database", "http://127.0.0.1:9")
    assert result.returncode == 0 and result.stdout.startswith("Advisories were not checked: "), result


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


def test_help_names_the_commands_from_any_folder(tmp_path: Path) -> None:
    result = run("help", cwd=tmp_path)
    assert result.returncode == 0
    commands = re.findall(r"^  (demo|serve|test|docs) ", result.stdout, re.MULTILINE)
    assert commands == ["demo", "serve", "test", "docs", "docs"]


@pytest.mark.parametrize("code", [0, 1])
def test_what_pip_says_is_folded_unless_it_fails(tmp_path: Path, code: int) -> None:
    """A copy of ./run whose .venv has a pip that talks. Red when a newcomer has to read it, or cannot see why it failed."""
    for name in ("run", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    pip = f'"-m pip install"*) echo "Collecting everything"; exit {code} ;;'
    (folder / "python").write_text(f'#!/bin/sh\ncase "$*" in\n{pip}\nesac\n')
    (folder / "sightline").write_text('#!/bin/sh\necho "started: $*"\n')
    for file in folder.iterdir():
        file.chmod(0o755)
    result = subprocess.run([str(tmp_path / "run"), "serve", "--port", "9"], capture_output=True, text=True, timeout=60)
    assert result.returncode == code
    if code:
        assert "Collecting everything" in result.stderr and result.stderr.splitlines()[-1].startswith(
            "run: A package could not be"
        )
    else:
        assert "Collecting" not in result.stdout + result.stderr
        assert result.stdout.splitlines()[-1] == "started: serve --port 9"


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
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = ["bash", str(tmp_path / "run"), "--python", str(old), "demo"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"run: None of these is a Python 3.11 or newer: {old};")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()


def test_ray_is_installed_by_its_hash_and_beside_ours() -> None:
    """Red when the extra asks for another Ray than the list has, or the list brings another version of what is ours."""
    found = locked("ray")
    (asked,) = (Requirement(text) for text in EXTRAS["ray"])
    assert asked.specifier.contains(found["ray"][0]) and asked.extras == {"serve", "data"}
    assert not found.keys() & locked("test").keys() and "torch" not in found
    assert all(len(hashes) == len(set(hashes)) >= 1 for _, hashes in found.values())
