"""The vision tower: patches in, embedding rows out. One class for every family; VisionSpec says what differs."""

import torch
import torch.nn.functional as F
from torch import nn

from sightline.models.inputs import TowerBatch
from sightline.models.layers import GatedMLP, GeluMLP, LayerNorm, RMSNorm, add_product, make_norm
from sightline.ops.activations import gelu, silu_mul
from sightline.ops.attention import segment_attention
from sightline.ops.position_grid import add_position_grid
from sightline.ops.rotary import PatchRotary, make_patch_rotary, rotated_projection, vision_rotary
from sightline.spec import VisionSpec

# Patches along a side of an image. smart_resize keeps areas below some 17 M pixels and aspects below 200, which is at most
# 4,160 patches of 14 pixels.
MAX_GRID_SIDE = 8192
HEAD_PLACES = 16  # on a GPU heads are laid out in multiples of this many numbers


class PatchEmbedding(nn.Module):
    """One linear map per patch: the checkpoint's Conv3d never slides, for its stride equals its kernel.

    A still image is the same frame `temporal` times, so its patches come with one copy (compact) and meet the sum of the
    kernel's temporal slices: half the bytes and half the work.
    """

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.temporal = spec.temporal_patch_size
        self.channels = spec.in_channels
        width = spec.in_channels * spec.temporal_patch_size * spec.patch_size**2
        self.weight = nn.Parameter(torch.empty(spec.hidden_size, width))  # columns ordered (channel, time, row, column)
        self.bias = nn.Parameter(torch.empty(spec.hidden_size)) if spec.patch_bias else None
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
    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.heads, self.head_dim = spec.num_heads, spec.head_dim
        self.norm1 = make_norm(spec.norm, spec.hidden_size, spec.norm_eps)
        self.qkv: nn.Module = nn.Linear(spec.hidden_size, 3 * spec.hidden_size, bias=spec.qkv_bias)
        self.proj = nn.Linear(spec.hidden_size, spec.hidden_size, bias=spec.proj_bias)
        self.norm2 = make_norm(spec.norm, spec.hidden_size, spec.norm_eps)
        mlp = GeluMLP if spec.mlp == "gelu_tanh" else GatedMLP
        self.mlp = mlp(spec.hidden_size, spec.intermediate_size, spec.mlp_bias)

    def lay_out_heads(self, places: int) -> None:
        """Puts the numbers that are rotated against each other side by side, where the end of a product has both in one thread,
        and heads in so many places, the rest of which stays zero: attention kernels work in multiples of 16, so 80 takes no
        longer than 72."""
        assert isinstance(self.qkv, nn.Linear)
        self.qkv.weight = nn.Parameter(self._laid_out(self.qkv.weight.detach(), places))
        if self.qkv.bias is not None:
            self.qkv.bias = nn.Parameter(self._laid_out(self.qkv.bias.detach()[:, None], places)[:, 0])
        more = places - self.head_dim
        weight = self.proj.weight.detach().unflatten(1, (self.heads, -1))
        self.proj.weight = nn.Parameter(F.pad(weight, (0, more)).flatten(1))

    def _laid_out(self, rows: torch.Tensor, places: int) -> torch.Tensor:
        q, k, v = rows.unflatten(0, (3, self.heads, 2, -1))  # halves of heads
        q, k = (x.transpose(1, 2) for x in (q, k))
        heads = torch.stack([x.flatten(1, 2) for x in (q, k, v)])
        return F.pad(heads, (0, 0, 0, places - self.head_dim)).flatten(0, 2)

    def forward(
        self,
        hidden: torch.Tensor,  # [patches, hidden_size]
        row_col: torch.Tensor,
        rotary: PatchRotary,
        starts: torch.Tensor,
        lengths: tuple[int, ...],
    ) -> torch.Tensor:
        """The stream after this block, in the memory of the one before it."""
        normed = self.norm1(hidden)
        if isinstance(self.qkv, nn.Linear):
            qkv = rotated_projection(normed, self.qkv.weight, self.qkv.bias, row_col, rotary, self.heads)
        else:  # in 8-bit floats
            qkv = self.qkv(normed).unflatten(1, (3, self.heads, -1))
            vision_rotary(qkv, row_col, rotary)
        q, k, v = qkv.unbind(1)
        attended = segment_attention(q, k, v, starts, lengths, self.head_dim**-0.5).flatten(1)
        hidden = add_product(hidden, attended, self.proj)
        return add_product(hidden, self.mlp.inner(self.norm2(hidden)), self.mlp.last)

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


class MlpMerger(nn.Module):
    """merge² patches to one row: norm, two linear maps with exact GELU between.

    The main merger normalises each patch and then joins them; deepstack mergers join first and normalise the joined vector.
    """

    def __init__(self, spec: VisionSpec, norm_after_join: bool) -> None:
        super().__init__()
        self.joined = spec.hidden_size * spec.merge_size**2
        self.norm_after_join = norm_after_join
        self.join = spec.merge_size**2
        self.norm = make_norm(spec.merger_norm, self.joined if norm_after_join else spec.hidden_size, spec.norm_eps)
        self.fc1 = nn.Linear(self.joined, self.joined)
        self.fc2 = nn.Linear(self.joined, spec.out_hidden_size)

    def shift_by(self, biases: torch.Tensor) -> None:
        """`biases` [hidden_size] float32 are missing in what comes."""
        self.norm.shift = biases.repeat(self.join) if self.norm_after_join else biases

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.norm_after_join:
            joined = self.norm(hidden.view(-1, self.joined))
        else:
            joined = self.norm(hidden).view(-1, self.joined)
        out: torch.Tensor = self.fc2(gelu(self.fc1(joined)))
        return out


class ConvGatedMerger(nn.Module):
    """GLM: norm, a 2x2 convolution on each merge block (a linear map here), projection, LayerNorm, GELU, gated MLP."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        size = spec.out_hidden_size
        self.joined = spec.hidden_size * spec.merge_size**2
        self.input_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.downsample = nn.Linear(self.joined, size)  # columns ordered (row, column, channel), as patches join
        self.proj = nn.Linear(size, size, bias=False)
        self.norm = LayerNorm(size, 1e-5)  # torch's default; the checkpoint's config has no field for it
        self.gate_up = nn.Linear(size, 2 * spec.merger_intermediate_size, bias=False)
        self.down = nn.Linear(spec.merger_intermediate_size, size, bias=False)

    def shift_by(self, biases: torch.Tensor) -> None:
        """`biases` [hidden_size] float32 are missing in what comes."""
        self.input_norm.shift = biases

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = self.downsample(self.input_norm(hidden).view(-1, self.joined))
        rows = gelu(self.norm(self.proj(rows)))
        out: torch.Tensor = self.down(silu_mul(self.gate_up(rows)))
        return out


class VisionTower(nn.Module):
    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embed = PatchEmbedding(spec)
        self.patch_norm = RMSNorm(spec.hidden_size, spec.norm_eps) if spec.patch_norm else None
        grid = spec.position_grid
        self.position_table = nn.Parameter(torch.empty(grid.side**2, spec.hidden_size)) if grid else None
        self.blocks = nn.ModuleList(TowerBlock(spec) for _ in range(spec.depth))
        self.merger = ConvGatedMerger(spec) if spec.merger == "conv_gated" else MlpMerger(spec, norm_after_join=False)
        self.deepstack_mergers = nn.ModuleList(MlpMerger(spec, norm_after_join=True) for _ in spec.deepstack_layers)
        self.rotary: PatchRotary

    def prepare(self) -> None:
        """Makes what follows from the weights; called once after they are loaded."""
        self.patch_embed.prepare()
        device = self.patch_embed.weight.device
        self.rotary = make_patch_rotary(MAX_GRID_SIDE, self.spec.head_dim, self.spec.rope_theta, device)
        if device.type == "cuda":
            self.lay_out_for_gpu()

    def lay_out_for_gpu(self) -> None:
        """The same tower in a form that suits a GPU's kernels; its parameters are no longer those of a checkpoint."""
        spec, device = self.spec, self.patch_embed.weight.device
        places = -(-spec.head_dim // HEAD_PLACES) * HEAD_PLACES
        self.rotary = make_patch_rotary(
            MAX_GRID_SIDE, spec.head_dim, spec.rope_theta, device, "adjacent", spec.num_heads, places
        )
        biases = torch.zeros(spec.hidden_size, device=device)
        mergers = iter(self.deepstack_mergers)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, TowerBlock)
            block.lay_out_heads(places)
            biases = block.leave_biases_out(biases)
            if index in self.spec.deepstack_layers:
                merger = next(mergers)
                assert isinstance(merger, MlpMerger)
                merger.shift_by(biases)
        self.merger.shift_by(biases)

    def forward(self, batch: TowerBatch) -> torch.Tensor:
        """Embedding rows of all items, [rows, row_width]: the merged row, then one per deepstack tap."""
        hidden = self._embed(batch)
        row_col = batch.row_col.T.contiguous().T  # all rows, then all columns: as products want them
        windows, window_spec = batch.windows, self.spec.window
        if windows is not None:
            unit = self.spec.merge_size**2
            hidden = hidden.unflatten(0, (-1, unit))[windows.order].flatten(0, 1)
        taps: list[torch.Tensor] = []
        for index, block in enumerate(self.blocks):
            starts, lengths = batch.segment_starts, batch.segment_lengths
            if windows is not None and window_spec is not None and index not in window_spec.full_attention_layers:
                starts, lengths = windows.starts, windows.lengths
            hidden = block(hidden, row_col, self.rotary, starts, lengths)
            if index in self.spec.deepstack_layers:
                taps.append(self.deepstack_mergers[len(taps)](hidden))
        rows = torch.cat((self.merger(hidden), *taps), dim=1) if taps else self.merger(hidden)
        return rows if windows is None else rows[windows.inverse]

    def _embed(self, batch: TowerBatch) -> torch.Tensor:
        hidden: torch.Tensor = self.patch_embed(batch.patches)
        if self.patch_norm is not None:
            hidden = self.patch_norm(hidden)
        grid = self.spec.position_grid
        if grid is not None and self.position_table is not None:
            hidden = add_position_grid(
                hidden, self.position_table, batch.row_col, batch.grid_size, grid.mode, grid.align_corners
            )
        return hidden
