"""`benchmarks/accuracy.sh` as a user runs it, on a few questions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evals.published_data import write_mmmu, write_ocrbench

ROOT = Path(__file__).parents[2]


def run(out: Path, *variants: str, data: Path) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "SIGHTLINE": f"{sys.executable} -m sightline.cli.main",
        "MMMU": str(write_mmmu(data / "mmmu")),
        "OCRBENCH": str(write_ocrbench(data / "ocrbench", [["one"], ["two"]])),
        "FLAGS": "--device cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [ROOT / "benchmarks" / "accuracy.sh", "embedded", out, *variants]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


# Red if a variant is not asked with its setting, if the runs are not compared, or if a figure of the table is another's.
@pytest.mark.slow
def test_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(out, "no_caches", data=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    settings = json.loads((out / "mmmu.no_caches.json").read_text())["answerer"]["settings"]
    assert (settings["enable_prefix_caching"], settings["embedding_cache_gb"]) == (False, 0.0)
    asked = json.loads((out / "ocrbench.no_caches.json").read_text())["sampling"]
    assert asked["max_tokens"] == 8192 and asked["chat_template_kwargs"] == {"enable_thinking": False}
    *_, plain, changed = [line.split() for line in done.stdout.splitlines()]
    scores = [json.loads((out / f"{task}.as_it_comes.json").read_text())["overall"]["score"] for task in ("mmmu", "ocrbench")]
    assert plain[:4] == ["as", "it", "comes", f"{scores[0]:.1%}"] and plain[6] == f"{scores[1]:.1%}"
    assert changed[:3] == ["no", "caches", plain[3]] and changed[3:5] == ["100.0%", "1"]


def test_a_variant_that_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path / "out", "no_gpu", data=tmp_path)
    assert done.returncode == 2 and "there is no variant no_gpu" in done.stderr and not done.stdout
