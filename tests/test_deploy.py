"""Dockerfile, compose.yaml and the systemd unit say what the command takes, and name files that are there."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sightline.cli.main import make_parser
from sightline.cli.serve import serve_config
from sightline.config import Config

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNIT = (ROOT / "deploy" / "sightline.service").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())


def served(words: list[str], tmp_path: Path) -> Config:
    """What a command line means, with a file of keys in place of the one that it names."""
    keys = tmp_path / "keys"
    keys.write_text("the-key\n")
    paths = {"/etc/sightline/serve.yaml": ROOT / "deploy" / "serve.yaml"}
    words = [str(keys) if "api-keys" in word else str(paths.get(word, word)) for word in words]
    return serve_config(make_parser().parse(words))


def last(instruction: str) -> str:
    """The arguments of the last such instruction of the Dockerfile."""
    found: list[str] = re.findall(rf"^(?:{instruction}) (.*)$", DOCKERFILE.replace("\\\n", " "), re.M)
    return found[-1]


def test_the_image_runs_the_server_as_nobody_special(tmp_path: Path) -> None:
    assert json.loads(last("ENTRYPOINT")) == ["sightline"]
    config = served(json.loads(last("CMD")), tmp_path)
    assert config.server.host == "0.0.0.0" and str(config.server.port) == last("EXPOSE")
    assert last("USER") == "10001" and "--uid 10001" in DOCKERFILE
    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert check[0] == "python" and f":{config.server.port}/health" in check[2]
    compile(check[2], "HEALTHCHECK", "exec")
    assert DOCKERFILE.count("\nFROM ") == 2 and last("COPY").startswith("--from=build /opt/sightline")


def test_the_image_is_built_from_files_that_are_there() -> None:
    """Red when a file that the wheel needs is not copied, or is left out by .dockerignore."""
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == let_in
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {project["readme"], *project["license-files"], "pyproject.toml", "sightline"}
    assert {Path(name).parts[0] for name in needed} <= set(copied)
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.M))
    assert arguments["EXTRA"].strip("[]") in project["optional-dependencies"] and arguments["CONSTRAINTS"] in copied


def test_compose_serves_with_keys(tmp_path: Path) -> None:
    server = COMPOSE["services"]["server"]
    words = [re.sub(r"\$\{MODEL:-(.*)\}", r"\1", word) for word in server["command"]]
    config = served(words, tmp_path)
    assert config.server.api_key == ("the-key",) and config.server.host == "0.0.0.0" and "/" in config.model.model
    address, published, inside = server["ports"][0].split(":")
    assert (address, published, inside) == ("127.0.0.1", "8000", str(config.server.port))
    (secret,) = server["secrets"]
    assert f"/run/secrets/{secret}" in words
    assert COMPOSE["secrets"][secret]["file"].removeprefix("./") in (ROOT / ".gitignore").read_text().split()
    assert [volume.split(":") for volume in server["volumes"]] == [[*COMPOSE["volumes"], last("VOLUME")]]
    assert float(server["stop_grace_period"].removesuffix("s")) > config.server.drain_timeout_s


def unit(name: str) -> str:
    found = re.findall(rf"^{name}=(.*)$", UNIT, re.M)
    assert len(found) == 1, name
    return str(found[0])


def test_the_unit_serves_with_keys(tmp_path: Path) -> None:
    program, *words = shlex.split(unit("ExecStart"))
    assert program == "/opt/sightline/bin/sightline" and unit("LoadCredential").startswith("api-keys:")
    config = served(words, tmp_path)
    assert config.server.api_key == ("the-key",) and config.server.host == "127.0.0.1"
    assert float(unit("TimeoutStopSec")) > config.server.drain_timeout_s
    folders = dict(word.split("=") for word in unit("Environment").split())
    assert all(path.startswith(f"/var/cache/{unit('CacheDirectory')}") for path in folders.values())
    named = set(re.findall(r"^ENV PATH.* (HF_HOME)=\S+ (TRITON_CACHE_DIR)=\S+ (XDG_CACHE_HOME)", DOCKERFILE, re.M)[0])
    assert folders.keys() == named


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """With a program that is there in place of ours."""
    copy = tmp_path / "sightline.service"
    copy.write_text(UNIT.replace("/opt/sightline/bin/sightline", shutil.which("env") or ""))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    if "Failed to" in done.stderr and "bus" in done.stderr:
        pytest.skip("systemd-analyze cannot run here")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="this machine has no hadolint")
def test_hadolint_is_content() -> None:
    done = subprocess.run(["hadolint", str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
