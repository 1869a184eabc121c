"""Which tensors of a checkpoint make which parameter of ours, as data.

A table lists every parameter once, with the tree of stored tensors that makes it (weights/expressions.py) and so the exact
shape of each of them. The same table loads a checkpoint and writes one. Helpers for the usual layers are in weights/layers.py
and weights/tower.py.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from sightline.models.weights.expressions import Stored, Weight, stored_in

HUB_PREFIXES = {"visual.": "model.visual.", "text.": "model.language_model."}  # as transformers writes them


class WeightTable(dict[str, Weight]):
    """By our parameter name. `ignored`: patterns of tensors that are known and not loaded, such as 'mtp.*', canonical names.
    `prefixes`: how canonical names begin, and those of checkpoints that `model new` writes."""

    def __init__(self, ignored: Iterable[str] = (), prefixes: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.ignored = tuple(ignored)
        self.prefixes = dict(HUB_PREFIXES if prefixes is None else prefixes)

    def hub_name(self, name: str) -> str:
        """The name that published checkpoints of the family use for a canonical one."""
        for prefix, replacement in self.prefixes.items():
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
        return name

    def __setitem__(self, name: str, weight: Weight) -> None:
        assert name not in self, f"the table has '{name}' already"
        super().__setitem__(name, weight)

    def stored(self) -> dict[str, Stored]:
        """Every stored tensor by its canonical name, in the order of first use. One tensor may feed several parameters."""
        found: dict[str, Stored] = {}
        for weight in self.values():
            for tensor in stored_in(weight):
                assert found.setdefault(tensor.name, tensor) == tensor, f"the table has two forms of '{tensor.name}'"
        return found

    def is_ignored(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)


# Hub checkpoints name the two halves differently by age and family; the table uses the right-hand side.
_CANONICAL_PREFIXES = (
    ("model.visual.", "visual."),
    ("model.vision_model.", "vision_model."),
    ("model.vit_large_projector.", "vit_large_projector."),
    ("model.language_model.", "text."),
    ("language_model.model.", "text."),
    ("language_model.lm_head.", "lm_head."),
    ("language.model.", "text."),
    ("language.lm_head.", "lm_head."),
    ("model.embed_tokens.", "text.embed_tokens."),
    ("model.layers.", "text.layers."),
    ("model.norm.", "text.norm."),
)


def canonical_name(name: str) -> str:
    for prefix, replacement in _CANONICAL_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def is_derived(name: str) -> bool:
    """Buffers that old checkpoints stored although they follow from the config."""
    return name.endswith(("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq"))
