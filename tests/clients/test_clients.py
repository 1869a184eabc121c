"""What users of a server run: each client's own way to ask, stream, call tools and get objects, against the embedded model.

Red when a client cannot read what a server says, or sends what it refuses.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.environment import client_python
from server.running import RunningServer, running
from sightline.models.locate import EMBEDDED

SCRIPTS = Path(__file__).parent / "scripts"
CLIENTS = ("openai", "anthropic", "langchain", "pydantic_ai", "instructor", "litellm", "guidellm", "locust")

pytestmark = pytest.mark.slow  # installing takes minutes


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.mark.parametrize("client", CLIENTS)
def test_client(client: str, python: Path, server: RunningServer, tmp_path: Path) -> None:
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet
    line = [str(python), str(SCRIPTS / f"use_{client}.py"), server.url, str(EMBEDDED)]
    done = subprocess.run(line, env=own, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert done.stdout.rstrip().endswith("passed"), done.stdout
    server.until_idle()
    assert "Traceback" not in server.errors, server.errors[-5000:]
