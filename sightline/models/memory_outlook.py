"""What would fit on GPUs of a size, on paper: none is needed or asked. The real plan measures (worker/memory.py)."""

from dataclasses import dataclass

import torch

from sightline.models.load import empty_model
from sightline.models.registry import family_named
from sightline.models.sharding import shard_model
from sightline.spec import ModelSpec

_GB = 10**9
CARDS = {"80 GB": 80 * _GB, "96 GB": 96 * _GB, "141 GB": 141 * _GB}
# What a step, its graphs, libraries and the embedding cache take where it was measured (docs/memory.md), and the share of a
# GPU's memory that is used by default.
_BESIDE = 12 * _GB
_UTILIZATION = 0.9
_STATES, _SNAPSHOTS = 257, 8 * 1024**3  # by default: states of running sequences and one for scratch; bytes of snapshots


@dataclass(frozen=True)
class Outlook:
    """Of the rank that has most."""

    ranks: int
    weights: int  # bytes
    token_bytes: int  # of keys and values
    state_bytes: int  # of a sequence, in layers that keep a state

    def tokens(self, card: int) -> int:
        """Of cache that fit on a GPU of so many bytes; 0 if the weights alone do not."""
        states = _STATES * self.state_bytes + _SNAPSHOTS if self.state_bytes else 0
        left = int(card * _UTILIZATION) - _BESIDE - self.weights - states
        return max(0, left) // self.token_bytes if self.token_bytes else 0


def outlook(spec: ModelSpec, ranks: int, whole_experts: bool = False) -> Outlook:
    """Matrices that the checkpoint stores in 8-bit floats stay in them."""
    table = family_named(spec.family).weight_table(spec)
    itemsize = getattr(torch, spec.dtype).itemsize
    most = token_bytes = state_bytes = 0
    for rank in range(ranks):
        shard = shard_model(spec, rank, ranks, whole_experts=whole_experts) if ranks > 1 else None
        model = empty_model(spec, shard)
        assert dict(model.named_parameters()).keys() == table.keys()
        most = max(most, sum(value.numel() * _bytes(spec, name, value, itemsize) for name, value in model.named_parameters()))
        text = model.spec.text
        token_bytes, state_bytes = max(token_bytes, text.token_bytes(itemsize)), max(state_bytes, text.state_bytes(itemsize))
    return Outlook(ranks, most, token_bytes, state_bytes)


def _bytes(spec: ModelSpec, name: str, value: torch.Tensor, itemsize: int) -> int:
    stored = spec.fp8 is not None and name.startswith("text.layers.") and name.endswith("weight") and value.ndim >= 2
    return 1 if stored else itemsize


def describe(found: Outlook) -> list[str]:
    each = f"{found.weights / _GB:.1f} GB of weights" + (" each" if found.ranks > 1 else "")
    state = f", {found.state_bytes / 10**6:.1f} MB a sequence" if found.state_bytes else ""
    fits = [f"{name}: {tokens:,}" if (tokens := found.tokens(card)) else f"{name}: no" for name, card in CARDS.items()]
    gpus = f"{found.ranks} GPUs" if found.ranks > 1 else "one GPU"
    return [f"{gpus}, {each}, {found.token_bytes / 1024:.1f} KiB a token{state}", "tokens of cache on " + ", ".join(fits)]
