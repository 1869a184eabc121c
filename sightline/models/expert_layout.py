"""How a checkpoint stores its experts: told by the names of its tensors and by who saved it, never by shapes.

Stacked matrices have the same names whether they are [experts, out, in] or transposed. transformers saves the former from
version 5 on, whatever it has loaded, and writes its version into config.json; what was saved before is as its family says.
"""

import json
import re
from pathlib import Path

from sightline.json_files import read_json
from sightline.models.fields import Fields
from sightline.models.weight_table import canonical_name
from sightline.spec import ExpertLayout

INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
VERSIONS: dict[ExpertLayout, str] = {"fused": "5.0.0", "fused_transposed": "4.57.0", "per_expert": "4.57.0"}  # that say so
_EXPERTS = re.compile(r"text\.layers\.\d+\..*experts\.(\d+\.)?(gate_up|gate|down)_proj")
_MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit


def read_expert_layout(folder: Path, config: Fields) -> ExpertLayout | None:
    """None: there are no tensors to look at, or their layout is what the family publishes."""
    found = next(filter(None, (_EXPERTS.match(canonical_name(name)) for name in _stored_names(folder))), None)
    if found is None:
        return None
    if found.group(1):
        return "per_expert"
    major = str(config.take("transformers_version", "0")).split(".")[0]
    return "fused" if major.isdigit() and int(major) >= 5 else None


def _stored_names(folder: Path) -> list[str]:
    """Of the checkpoint's tensors; none where a file is damaged, which is for those to say who read it."""
    if (folder / INDEX_FILE).exists():
        names = read_json(folder / INDEX_FILE).get("weight_map", {})
        return list(names) if isinstance(names, dict) else []
    try:
        with (folder / SINGLE_FILE).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return list(json.loads(file.read(size))) if size <= _MOST_HEADER_BYTES else []
    except (OSError, ValueError):
        return []
