"""The workspaces of a worker (ops/workspace.py), as large as its limits need. They are taken before the memory plan is made."""

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from sightline.config import EngineConfig
from sightline.models.model import VisionLanguageModel
from sightline.ops.attention import paged_attention
from sightline.ops.dispatch import Implementation, using_backend
from sightline.ops.linear import SPLIT_SUMS_BYTES, linear
from sightline.ops.paged_cache import empty_cache
from sightline.ops.pages import GATHER_FROM, gathered_bytes, most_gathered
from sightline.ops.sequences import PagedSequences
from sightline.ops.workspace import Workspace


@dataclass(frozen=True)
class Workspaces:
    """None where no kernel of this machine would use it. The tower has none of these: it runs beside the decoder."""

    gathered: Workspace | None = None  # keys and values that a step gathers out of their pages
    split_sums: Workspace | None = None  # of the decoder's small-M GEMMs

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.gathered, self.split_sums) if one is not None)


def make_workspaces(model: VisionLanguageModel, config: EngineConfig, longest: int) -> Workspaces:
    """`longest` is the most tokens of a sequence."""
    weight, text = model.text.embed_tokens.weight, model.spec.text
    device = weight.device
    gathered = split_sums = None
    rows = most_gathered(config.max_num_batched_tokens, longest, config.max_num_seqs) if text.has_attention else 0
    # A prompt so long that its keys are worth gathering; what shapes are chosen for holds for all of them.
    prompt, none = (4 * GATHER_FROM,), Workspace("none", 0, device)
    if rows and chosen_attention(model, config, prompt, none).uses_workspace:
        size = gathered_bytes(rows, text.attention.num_kv_heads, text.attention.head_dim, weight.dtype)
        gathered = Workspace("gathered keys and values", size, device)
    if device.type == "cuda" and any(kernel.uses_workspace for kernel in linear.kernels):
        split_sums = Workspace("split sums", SPLIT_SUMS_BYTES, device)
    return Workspaces(gathered, split_sums)


def chosen_attention(
    model: VisionLanguageModel, config: EngineConfig, queries: tuple[int, ...], workspace: Workspace | None = None
) -> Implementation[..., Any]:
    """What attention over pages runs for sequences with so many new tokens."""
    weight, spec = model.text.embed_tokens.weight, model.spec.text.attention
    sizes = (config.page_size, spec.num_kv_heads, spec.head_dim)
    cache = empty_cache(1, *sizes, weight.device, weight.dtype, config.quantised_cache)
    starts = torch.tensor([0, *itertools.accumulate(queries)], dtype=torch.int32, device=weight.device)
    q = weight.new_empty(sum(queries), spec.num_heads, spec.head_dim)
    table, lengths = starts.new_zeros(len(queries), 1), starts.new_ones(len(queries))
    contexts = (max(queries),) * len(queries)
    with using_backend(model.language_backend):
        return paged_attention.choose(q, cache, PagedSequences(table, starts, lengths, queries, contexts, workspace))
