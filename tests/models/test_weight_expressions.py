"""Trees of stored tensors, evaluated with their slices pushed down, against plain torch on whole tensors."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.weight_trees import meaning, random_tensors, share_of, shares, trees
from sightline.models.weights.boxes import Box, sizes, whole
from sightline.models.weights.evaluate import Read, evaluate
from sightline.models.weights.expressions import (
    Cast,
    Concat,
    Part,
    Share,
    Stack,
    Stored,
    Weight,
    flatten,
    part_of_groups,
    stored_in,
    transpose,
)
from sightline.models.weights.scaled import ALL, Scaled, Value, dequantise_box, is_whole_blocks, plain, scale_box

BLOCK = 4


def reading(tensors: dict[str, torch.Tensor], counted: list[int] | None = None) -> Read:
    def read(stored: Stored, box: Box) -> Value:
        assert all(0 <= start < stop <= size for size, (start, stop) in zip(stored.shape, box, strict=True)), (stored, box)
        part = tensors[stored.name][tuple(slice(start, stop) for start, stop in box)]
        if counted is not None:
            counted.append(part.numel())
        return part

    return read


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_tree_and_its_shares_mean_what_torch_says(data: st.DataObject) -> None:
    """Red when a node is evaluated wrongly, or a slice is pushed through one to other numbers."""
    tree = data.draw(trees())
    tensors = random_tensors(tree)
    expected = meaning(tree, tensors)
    assert tree.shape == expected.shape
    assert torch.equal(plain(evaluate(tree, reading(tensors))), expected)
    share = data.draw(shares(tree.shape))
    cut = share.of(tree)
    assert cut.shape == share_of(expected, share).shape
    assert torch.equal(plain(evaluate(cut, reading(tensors))), share_of(expected, share))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_but_the_share_is_read(data: st.DataObject) -> None:
    """Through every node but a reshape a slice goes as it is. Red when a node reads its parts whole and cuts them."""
    tree = data.draw(trees(reshapes=False))
    cut = data.draw(shares(tree.shape)).of(tree)
    counted: list[int] = []
    value = plain(evaluate(cut, reading(random_tensors(tree), counted)))
    assert sum(counted) == value.numel()


def spread(scale: torch.Tensor, blocks: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    for axis, (block, size) in enumerate(zip(blocks, shape, strict=True)):
        scale = scale.repeat_interleave(size if block == ALL else block, axis).narrow(axis, 0, size)
    return scale


def scaled_leaves(tree: Weight, blocks_of: dict[str, tuple[int, ...]]) -> tuple[Read, dict[str, torch.Tensor]]:
    """A reader of 8-bit leaves that goes about cuts as that of checkpoints does, and what the leaves mean in float32."""
    leaves: dict[str, Scaled] = {}
    for name, tensor in random_tensors(tree).items():
        blocks, shape = blocks_of[name], tuple(tensor.shape)
        grid = sizes(scale_box(blocks, whole(shape)))
        scale = 0.5 + torch.rand(grid, generator=torch.Generator().manual_seed(len(leaves)))
        leaves[name] = Scaled((100 * tensor).clamp(-448, 448).to(torch.float8_e4m3fn), scale, blocks)

    def read(stored: Stored, box: Box) -> Value:
        leaf = leaves[stored.name]
        values = leaf.values[tuple(slice(start, stop) for start, stop in box)]
        scale = leaf.scale[tuple(slice(start, stop) for start, stop in scale_box(leaf.blocks, box))]
        if is_whole_blocks(leaf.blocks, stored.shape, box):
            return Scaled(values, scale, leaf.blocks)
        return dequantise_box(values, scale, leaf.blocks, box)

    meanings = {name: leaf.values.float() * spread(leaf.scale, leaf.blocks, leaf.shape) for name, leaf in leaves.items()}
    return read, meanings


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_scales_go_the_way_of_their_numbers(data: st.DataObject) -> None:
    """Any tree of 8-bit tensors, with scales per block, per channel, or mixed, means bit for bit what it does in float32.

    Red when a grid of scales is joined over a block, cut within one, or permuted or reshaped otherwise than its numbers.
    """
    tree = data.draw(trees())
    alike = data.draw(st.booleans())
    common = data.draw(st.lists(st.sampled_from([1, BLOCK, ALL]), min_size=4, max_size=4))
    blocks_of = {}
    for stored in stored_in(tree):
        kinds = common if alike else data.draw(st.lists(st.sampled_from([1, BLOCK, ALL]), min_size=4, max_size=4))
        blocks_of[stored.name] = tuple(kinds[: len(stored.shape)])
    read, meanings = scaled_leaves(tree, blocks_of)
    expected = meaning(tree, meanings)
    assert torch.equal(plain(evaluate(tree, read)), expected)
    share = data.draw(shares(tree.shape))
    value = evaluate(share.of(tree), read)
    assert torch.equal(plain(value), share_of(expected, share))
    if isinstance(value, Scaled):
        assert value.scale.shape == sizes(scale_box(value.blocks, whole(value.shape)))


QKV = Stored("q", (4 * 16, 12))  # 4 heads, each 8 rows of q and 8 of a gate
MATRIX = Stored("m", (8, 12))


@pytest.mark.parametrize(
    ("tree", "kept"),
    [
        (Concat(0, (MATRIX, Stored("n", (6, 12)))), True),
        (Concat(0, (Stored("n", (6, 12)), MATRIX)), False),  # a block would reach over the seam
        (Concat(1, (MATRIX, Stored("n", (8, 3)))), True),
        (Stack((MATRIX, Stored("n", (8, 12)))), True),
        (transpose(MATRIX), True),
        (Part(0, 4, 4, MATRIX), True),
        (Part(0, 2, 4, MATRIX), False),  # within a block
        (Part(0, 0, 6, MATRIX), False),  # ends within a block, as the share of another rank would begin
        (part_of_groups(QKV, 0, 4, 8, 8), True),
        (part_of_groups(QKV, 0, 4, 8, 6), False),
        (Share(0, ((0, 8), (16, 8))).of(part_of_groups(QKV, 0, 4, 0, 8)), True),
        (Concat(0, (part_of_groups(QKV, 0, 4, 0, 8), part_of_groups(QKV, 0, 4, 8, 8))), True),
        (flatten(MATRIX, 0), False),  # rows of blocks are not neighbours
        (Cast("float32", MATRIX), False),
    ],
)
def test_where_8_bits_stay(tree: Weight, kept: bool) -> None:
    """Blocks stay where they can. Red when a node gives up its scales, which the meanings alone would not show."""
    read, meanings = scaled_leaves(tree, {stored.name: (BLOCK, BLOCK) for stored in stored_in(tree)})
    value = evaluate(tree, read)
    assert isinstance(value, Scaled) == kept
    assert torch.equal(plain(value), meaning(tree, meanings))


def test_rows_of_q_and_gate_per_head() -> None:
    """Red when q takes rows of the gate: rows are, head by head, 8 of q and then 8 of the gate."""
    rows = torch.arange(64)
    read = reading({"q": rows[:, None].expand(64, 12).contiguous()})
    query, gate = (plain(evaluate(part_of_groups(QKV, 0, 4, start, 8), read))[:, 0] for start in (0, 8))
    assert query.tolist() == [row for row in range(64) if row % 16 < 8]
    assert gate.tolist() == [row for row in range(64) if row % 16 >= 8]


def test_a_rank_reads_its_heads_of_a_reshape() -> None:
    """Of 4 heads' q and gate rows, the share of two heads of q touches those two alone. Red when all rows are read."""
    counted: list[int] = []
    share = Share(0, ((16, 16),)).of(part_of_groups(QKV, 0, 4, 0, 8))
    evaluate(share, reading(random_tensors(QKV), counted))
    assert counted == [2 * 16 * 12]


def test_a_cast_stays_at_the_top_of_a_share() -> None:
    """Red when a share hides the dtype that a parameter keeps whatever the model is loaded in."""
    tree = Share(0, ((0, 2), (4, 2))).of(Cast("float32", Stored("A_log", (8,))))
    assert isinstance(tree, Cast) and tree.shape == (4,)
    value = evaluate(tree, reading({"A_log": torch.arange(8.0).bfloat16()}))
    assert isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Concat(0, (MATRIX, Stored("n", (8, 11)))),
        lambda: Stack((MATRIX, Stored("n", (9, 12)))),
        lambda: Part(0, 4, 5, MATRIX),
        lambda: part_of_groups(QKV, 0, 5, 0, 8),
    ],
)
def test_a_tree_that_does_not_fit_cannot_be_built(wrong: Callable[[], Weight]) -> None:
    """Red when a node takes parts of other shapes: the mistake would show only once a checkpoint is there."""
    with pytest.raises(AssertionError):
        wrong()
