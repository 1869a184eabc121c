"""The tower that most families share: pre-norm blocks with rotary positions over patches, and a merger that makes rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from sightline.models.layers import GatedMLP, GeluMLP, QuickGeluMLP, RMSNorm, make_norm
from sightline.models.linear import Linear
from sightline.models.tower import Tower
from sightline.models.tower_batch import TowerBatch, make_tower_batch, square_grid
from sightline.ops.activations import gelu
from sightline.ops.attention import segment_attention
from sightline.ops.position_grid import add_position_grid
from sightline.ops.rotary import PatchRotary, make_patch_rotary
from sightline.parallel.group import Group
from sightline.parallel.sequence import SequenceSplit
from sightline.spec import MlpMergerSpec, Norm, PatchEmbeddingSpec, PatchTowerSpec, TowerBlockSpec
from sightline.types import Grid

_MLPS: dict[str, type[GeluMLP] | type[GatedMLP]] = {"gelu_tanh": GeluMLP, "quick_gelu": QuickGeluMLP, "gated_silu": GatedMLP}
HEAD_DIM_MULTIPLE = 16  # on a GPU heads are laid out in multiples of this many numbers


class PatchEmbedding(nn.Module):
    """One linear map per patch: the checkpoint's Conv3d never slides, for its stride equals its kernel.

    A still image is the same frame `temporal` times, so its patches come with one copy (compact) and meet the sum of the
    kernel's temporal slices: half the bytes and half the work.
    """

    def __init__(self, spec: PatchEmbeddingSpec, size: int) -> None:
        super().__init__()
        self.temporal = spec.temporal_patch_size
        self.channels = spec.in_channels
        self.weight = nn.Parameter(torch.empty(size, spec.full_width))  # columns ordered (channel, time, row, column)
        self.bias = nn.Parameter(torch.empty(size)) if spec.bias else None
        self.folded: torch.Tensor

    def prepare(self) -> None:
        slices = self.weight.detach().unflatten(1, (self.channels, self.temporal, -1))
        self.folded = slices.float().sum(2).flatten(1).to(self.weight.dtype)

    def forward(self, patches: tuple[torch.Tensor, ...]) -> torch.Tensor:
        full_width = self.weight.shape[1]
        embedded = []
        for part in patches:
            weight = self.weight if part.shape[1] == full_width else self.folded
            embedded.append(F.linear(part.to(weight.dtype), weight, self.bias))
        return embedded[0] if len(embedded) == 1 else torch.cat(embedded)


class TowerBlock(nn.Module):
    def __init__(self, spec: TowerBlockSpec) -> None:
        super().__init__()
        self.heads, self.head_dim = spec.own_heads, spec.head_dim
        attended = self.heads * self.head_dim
        self.norm1 = make_norm(spec.norm, spec.hidden_size, spec.norm_eps)
        self.qkv = Linear(spec.hidden_size, 3 * attended, spec.qkv_bias, "column")
        self.proj = Linear(attended, spec.hidden_size, spec.proj_bias, "row")
        self.norm2 = make_norm(spec.norm, spec.hidden_size, spec.norm_eps)
        self.mlp = _MLPS[spec.mlp](spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
        for name in ("scale1", "scale2"):  # of what attention and the MLP add, [hidden_size]; None once they are folded
            self.register_parameter(name, nn.Parameter(torch.empty(spec.hidden_size)) if spec.layer_scale else None)

    def fold_scales(self) -> None:
        """Puts the factors of what is added to the stream into the last product of each half, and its bias."""
        for name, linear in (("scale1", self.proj), ("scale2", self.mlp.last)):
            scale: nn.Parameter | None = getattr(self, name)
            if scale is None:
                continue
            assert not linear.is_fp8, "scales are folded before weights are quantised"
            factor = scale.detach().float()
            weight = linear.weight.detach()
            linear.weight = nn.Parameter((weight.float() * factor[:, None]).to(weight.dtype), requires_grad=False)
            if linear.bias is not None:
                linear.bias = nn.Parameter((linear.bias.detach().float() * factor).to(weight.dtype), requires_grad=False)
            self.register_parameter(name, None)

    def lay_out_heads(self, padded_head_dim: int) -> None:
        """Puts the numbers that are rotated against each other side by side, where the end of a product has both in one thread,
        and heads in so many places, the rest of which stays zero: attention kernels work in multiples of 16, so 80 takes no
        longer than 72."""
        assert not self.qkv.is_fp8, "heads are laid out before weights are quantised"
        self.qkv.weight = nn.Parameter(self._laid_out(self.qkv.weight.detach(), padded_head_dim))
        if self.qkv.bias is not None:
            self.qkv.bias = nn.Parameter(self._laid_out(self.qkv.bias.detach()[:, None], padded_head_dim)[:, 0])
        more = padded_head_dim - self.head_dim
        weight = self.proj.weight.detach().unflatten(1, (self.heads, -1))
        self.proj.weight = nn.Parameter(F.pad(weight, (0, more)).flatten(1))

    def _laid_out(self, rows: torch.Tensor, padded_head_dim: int) -> torch.Tensor:
        q, k, v = rows.unflatten(0, (3, self.heads, 2, -1))  # halves of heads
        q, k = (x.transpose(1, 2) for x in (q, k))
        heads = torch.stack([x.flatten(1, 2) for x in (q, k, v)])
        return F.pad(heads, (0, 0, 0, padded_head_dim - self.head_dim)).flatten(0, 2)

    def forward(
        self,
        hidden: torch.Tensor,  # [patches, hidden_size]
        row_col: torch.Tensor,
        rotary: PatchRotary,
        starts: torch.Tensor,
        lengths: tuple[int, ...],
        split: SequenceSplit | None,
    ) -> torch.Tensor:
        """The stream after this block, in the memory of the one before it. With `split`, of this rank's patches."""
        qkv = self.qkv.rotated_heads(self.norm1(hidden), row_col, rotary, self.heads)
        q, k, v = (qkv if split is None else split.to_heads(qkv)).unbind(1)
        attended = segment_attention(q, k, v, starts, lengths, self.head_dim**-0.5) if q.shape[1] else q
        if split is not None:
            attended = split.to_patches(attended)
        hidden = self.proj.add_to(hidden, attended.flatten(1))
        return self.mlp.add_to(hidden, self.norm2(hidden))

    def leave_biases_out(self, before: torch.Tensor) -> torch.Tensor:
        """Keeps the biases of what is added to the stream out of it; norms add them, for their sum is known beforehand.

        `before` [hidden_size] float32 is the sum of those of earlier blocks; returns it with this block's. The products then
        add to the stream in place, with nothing else to add.
        """
        self.norm1.shift = before
        self.norm2.shift = between = _with_bias(before, self.proj.bias)
        after = _with_bias(between, self.mlp.last.bias)
        for linear in (self.proj, self.mlp.last):
            linear.register_parameter("bias", None)
        return after


def _with_bias(total: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return total if bias is None else total + bias.detach().float()


class Merger(nn.Module, ABC):
    """[patches, hidden_size], the patches of a row side by side, to [rows, out_hidden_size].

    PatchTower.merge calls it; a family whose rows depend on more than their own patches overrides that.
    """

    @abstractmethod
    def shift_by(self, biases: torch.Tensor) -> None:
        """`biases` [hidden_size] float32 are missing in what comes."""


class MlpMerger(Merger):
    """merge² patches to one row: norm, two linear maps with exact GELU between.

    The main merger normalises each patch and then joins them; deepstack mergers join first and normalise the joined vector.
    """

    def __init__(self, spec: PatchTowerSpec, norm: Norm, norm_after_join: bool) -> None:
        super().__init__()
        self.joined = spec.joined_size
        self.norm_after_join = norm_after_join
        self.join = spec.merge_size**2
        self.norm = make_norm(norm, self.joined if norm_after_join else spec.block.hidden_size, spec.block.norm_eps)
        self.fc1 = Linear(self.joined, self.joined, True, "column")
        self.fc2 = Linear(self.joined, spec.out_hidden_size, True, "row")

    def shift_by(self, biases: torch.Tensor) -> None:
        self.norm.shift = biases.repeat(self.join) if self.norm_after_join else biases

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.norm_after_join:
            joined = self.norm(hidden.view(-1, self.joined))
        else:
            joined = self.norm(hidden).view(-1, self.joined)
        out: torch.Tensor = self.fc2(gelu(self.fc1(joined)))
        return out


def mlp_merger(spec: PatchTowerSpec) -> Merger:
    assert isinstance(spec.merger, MlpMergerSpec), f"the tower is not given what makes a {type(spec.merger).__name__}"
    return MlpMerger(spec, spec.merger.norm, norm_after_join=False)


class PatchTower(Tower):
    def __init__(self, spec: PatchTowerSpec, make_merger: Callable[[PatchTowerSpec], Merger] = mlp_merger) -> None:
        """`make_merger`: of a family whose MergerSpec is its own."""
        super().__init__()
        self.spec = spec
        size, eps = spec.block.hidden_size, spec.block.norm_eps
        self.patch_embed = PatchEmbedding(spec.patch_embed, size)
        self.patch_norm = RMSNorm(size, eps) if spec.patch_embed.norm else None
        grid = spec.position_grid
        self.position_table = nn.Parameter(torch.empty(grid.side**2, size)) if grid else None
        self.blocks = nn.ModuleList(TowerBlock(spec.block) for _ in range(spec.depth))
        self.merger = make_merger(spec)
        norm = spec.block.norm
        self.deepstack_mergers = nn.ModuleList(MlpMerger(spec, norm, norm_after_join=True) for _ in spec.deepstack_layers)
        self.rotary: PatchRotary
        self.sequence_group: Group | None = None  # ranks that each run a part of the patches; see `together`

    @contextmanager
    def together(self, group: Group) -> Iterator[None]:
        """Inside, the tower runs over the ranks of a group, each with a part of every batch's patches."""
        self.sequence_group = group
        try:
            yield
        finally:
            self.sequence_group = None

    @property
    def embedding_width(self) -> int:
        return self.spec.embedding_width

    @property
    def patch_width(self) -> int:
        return self.spec.patch_embed.full_width

    def num_rows(self, grid: Grid) -> int:
        return math.prod(grid) // self.spec.merge_size**2

    def largest_grids(self, patches: int) -> list[Grid]:
        """Two: patches of two items are joined."""
        return [square_grid(-(-patches // 2), self.spec.merge_size)] * 2

    def make_batch(self, patches: Sequence[torch.Tensor], grids: Sequence[Grid]) -> TowerBatch:
        return make_tower_batch(patches, grids, self.spec, self.patch_embed.weight.device)

    def prepare(self) -> None:
        self.patch_embed.prepare()
        for block in self.blocks:
            assert isinstance(block, TowerBlock)
            block.fold_scales()
        device = self.patch_embed.weight.device
        self.rotary = make_patch_rotary(self.spec.max_grid_side, self.spec.block.head_dim, self.spec.rope_theta, device)
        if device.type == "cuda":
            self.lay_out_for_gpu()

    def lay_out_for_gpu(self) -> None:
        """The same tower in a form that suits a GPU's kernels; its parameters are no longer those of a checkpoint."""
        spec, device = self.spec.block, self.patch_embed.weight.device
        padded_head_dim = -(-spec.head_dim // HEAD_DIM_MULTIPLE) * HEAD_DIM_MULTIPLE
        self.rotary = make_patch_rotary(
            self.spec.max_grid_side, spec.head_dim, self.spec.rope_theta, device, "adjacent", spec.own_heads, padded_head_dim
        )
        biases = torch.zeros(spec.hidden_size, device=device)
        mergers = iter(self.deepstack_mergers)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, TowerBlock)
            block.lay_out_heads(padded_head_dim)
            biases = block.leave_biases_out(biases)
            if index in self.spec.deepstack_layers:
                merger = next(mergers)
                assert isinstance(merger, MlpMerger)
                merger.shift_by(biases)
        self.merger.shift_by(biases)

    def forward(self, batch: TowerBatch) -> torch.Tensor:
        """[rows, embedding_width]: the merged row, then one per deepstack feature."""
        hidden = self.embed(batch)
        by_axis = batch.row_col.T  # all of one axis, then all of the other: as products want them
        row_col = (by_axis.flip(0) if self.spec.columns_first else by_axis.contiguous()).T
        windows, window_spec = batch.windows, self.spec.window
        if windows is not None:
            unit = self.spec.merge_size**2
            hidden = hidden.unflatten(0, (-1, unit))[windows.order].flatten(0, 1)
        split = None
        if self.sequence_group is not None:
            unit, heads = self.spec.merge_size**2, self.spec.block.num_heads
            split = SequenceSplit(self.sequence_group, len(hidden), unit, heads)
            hidden, row_col = hidden[split.own].clone(), row_col[split.own].T.contiguous().T
        deepstack_features: list[torch.Tensor] = []
        for index, block in enumerate(self.blocks):
            starts, lengths = batch.segment_starts, batch.segment_lengths
            if windows is not None and window_spec is not None and index not in window_spec.full_attention_layers:
                starts, lengths = windows.starts, windows.lengths
            hidden = block(hidden, row_col, self.rotary, starts, lengths, split)
            if index in self.spec.deepstack_layers:
                deepstack_features.append(self.deepstack_mergers[len(deepstack_features)](hidden))
        rows = self.merge(hidden, batch, split)
        if deepstack_features:
            rows = torch.cat((rows, *deepstack_features), dim=1)
        if split is not None:
            rows = split.all_rows(rows)
        return rows if windows is None else rows[windows.inverse]

    def merge(self, hidden: torch.Tensor, batch: TowerBatch, split: SequenceSplit | None) -> torch.Tensor:
        """Rows of the patches in `hidden`: of all in the batch, or with `split` of this rank's."""
        rows: torch.Tensor = self.merger(hidden)
        return rows

    def embed(self, batch: TowerBatch) -> torch.Tensor:
        """What the first block takes, [patches, hidden_size]."""
        hidden: torch.Tensor = self.patch_embed(batch.patches)
        if self.patch_norm is not None:
            hidden = self.patch_norm(hidden)
        grid = self.spec.position_grid
        if grid is not None and self.position_table is not None:
            hidden = add_position_grid(
                hidden, self.position_table, batch.row_col, batch.grid_size, grid.mode, grid.align_corners
            )
        return hidden
