"""Environments for tests of what must not decide what we install, made once and kept in a cache folder."""

import hashlib
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

INSTALL_S = 1500.0


def environment_python(name: str, requirements: Path, *options: str) -> Path:
    """Python of the environment of that name. Skips the test where no package index is reachable. `options` are pip's."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"
    folder = cache / f"test-{name}-{digest}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, clear=True, with_pip=True)
        _install(python, name, "--requirement", str(requirements), *options)
        _lend_ours(folder)
        ready.touch()
    return python


def _install(python: Path, name: str, *options: str) -> None:
    done = _pip(python, "install", *options)
    if done.returncode == 0:
        return
    probe = _pip(python, "download", "--dest", str(python.parent.parent / "probe"), "packaging")
    if probe.returncode != 0:
        pytest.skip(f"{name} cannot be installed, no package index is reachable: {probe.stderr.strip()[-300:]}")
    raise AssertionError(f"{name} cannot be installed: {done.stderr[-3000:]}")


def _pip(python: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [str(python), "-m", "pip", command, "--quiet", "--no-deps", "--disable-pip-version-check", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=INSTALL_S)


def _lend_ours(folder: Path) -> None:
    """Our own packages come behind the environment's, so that only what it lacks is ours."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "ours.pth").write_text(f"{Path(spec.origin).parent.parent}\n")
