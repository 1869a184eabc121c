"""JSON files of a checkpoint folder; every way to fail is a sentence."""

import json
from pathlib import Path
from typing import Any

from sightline.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__} where a JSON object belongs.")
    return content
