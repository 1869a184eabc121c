"""The process that an engine runs in."""

import subprocess
import sys
from pathlib import Path

LOADED = """
import gc, sys
from types import SimpleNamespace
from sightline.config import Config, ModelConfig
from sightline.engine.liveness import Liveness
from sightline.engine.messages import Ready, Start, decode_report
from sightline.engine.process import load

def main():
    reports = []
    socket = SimpleNamespace(send=reports.append, send_multipart=reports.append)
    engine = load(Start(Config(model=ModelConfig(model=sys.argv[1], device="cpu"))), socket, Liveness())
    assert isinstance(decode_report(reports[-1]), Ready), reports
    print(gc.get_freeze_count(), len(gc.get_objects()))
    engine.close()

main()
"""


def test_what_is_loaded_is_kept_from_the_collector(tiny_checkpoints: dict[str, Path]) -> None:
    """Red when a collection of garbage looks through all of torch while answers wait for their next token."""
    command = [sys.executable, "-c", LOADED, str(tiny_checkpoints["qwen3-vl"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    frozen, looked_at = map(int, done.stdout.split())
    assert frozen > 100_000 and looked_at < 10_000
