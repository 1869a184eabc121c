"""summary.json of a GPU: a flat map from a figure's key to its value and the command, commit and time it came from."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def commit() -> str:
    """The commit that SIGHTLINE_COMMIT names (a copy may have no history), else that of the working tree, else "unknown"."""
    named = os.environ.get("SIGHTLINE_COMMIT")
    if named:
        return named
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def add_to_summary(path: Path, figures: Mapping[str, float], command: str, device: str) -> None:
    """Figures that were there under the same keys are replaced, others stay."""
    known = _read(path)
    about = {
        "command": command,
        "commit": commit(),
        "device": device,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    known |= {key: {"value": round(value, 4), **about} for key, value in figures.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")


def values_of(path: Path) -> dict[str, float]:
    """What a summary has, if it is there, without where it came from."""
    return {key: figure["value"] for key, figure in _read(path).items()}


def devices_of(path: Path) -> list[str]:
    """On which devices the figures of a summary were taken."""
    return sorted({figure["device"] for figure in _read(path).values() if "device" in figure})


def _read(path: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
