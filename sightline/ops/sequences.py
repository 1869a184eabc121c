"""Sequences whose tokens lie in pages, with their newest tokens: what attention over pages takes, the op and its kernels alike.

Pages: a cache is [pages, page_size, kv_heads, head_dim]. Sequence s holds its tokens 0, 1, 2 … in the pages
page_table[s, 0], page_table[s, 1], … in order. A flat slot is page * page_size + offset.
"""

from dataclasses import dataclass

import torch

from sightline.ops.workspace import Workspace


@dataclass(frozen=True)
class PagedSequences:
    """New tokens ("queries") are the last ones of their sequence; those of all sequences stand one after another.

    The host's lengths spare a wait for the device. Where a graph is captured they are bounds of those on the device.
    """

    page_table: torch.Tensor  # [sequences, max_pages] int32
    query_starts: torch.Tensor  # [sequences + 1] int32: where the queries of each begin
    context_lengths: torch.Tensor  # [sequences] int32: all its tokens, the new ones included
    query_lengths_host: tuple[int, ...]
    context_lengths_host: tuple[int, ...]
    workspace: Workspace | None = None  # to gather keys in; without it they stay in their pages

    @property
    def one_query_each(self) -> bool:
        """As many tokens as sequences do not mean that: a graph has room for either."""
        return max(self.query_lengths_host, default=0) == 1


@dataclass(frozen=True)
class StateIndices:
    """Where the states of the same sequences are, for layers that keep one."""

    slots: torch.Tensor  # [sequences] int64
    fresh: torch.Tensor  # [sequences] bool: nothing of it was computed before, its state is zero whatever the slot holds
