"""The tests of inside/ with real Ray, in an environment that has it.

Ray pins nothing of ours but is large, and starts a dozen processes; so each file has a Ray of its own, one after another.
"""

import os
import subprocess
from pathlib import Path

import pytest

from own_environment import environment_python

ROOT = Path(__file__).parents[2]
FILES = sorted(path.name for path in (Path(__file__).parent / "inside").glob("test_*.py"))

pytestmark = pytest.mark.slow  # installing takes minutes, Ray half a minute to start


@pytest.fixture(scope="module")
def python() -> Path:
    return environment_python("ray", ROOT / "requirements" / "ray.lock", "--require-hashes")


@pytest.mark.parametrize("file", FILES)
def test_in_ray(file: str, python: Path) -> None:
    line = [str(python), "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"tests/scale_out/inside/{file}"]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RAY_"))}
    done = subprocess.run(
        line,
        env=own | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{done.stdout[-12000:]}\n{done.stderr[-3000:]}"
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout
