"""Definitions against slow, obvious code. Each op is compared with a direct reading of what it says."""

import math

import pytest
import torch
import torch.nn.functional as F

from sightline.errors import ConfigError
from sightline.ops.activations import quick_gelu
from sightline.ops.attention import paged_attention, segment_attention
from sightline.ops.dispatch import OPS, ExampleMaker, op
from sightline.ops.experts import route_tokens
from sightline.ops.merge_embeddings import merge_embeddings
from sightline.ops.norms import add_rms_norm, add_rms_norm_rows, layer_norm, rms_norm
from sightline.ops.paged_cache import PagedCache
from sightline.ops.position_grid import interpolate_position_grid
from sightline.ops.rotary import (
    Pairing,
    RotaryAngles,
    TextRotation,
    make_patch_rotary,
    make_rotary_table,
    mrope_axes,
    rotary,
    text_rotary,
    vision_rotary,
)
from sightline.ops.sequences import PagedSequences
from sightline.ops.token_mask import forbid_tokens


def rotate_pair(x: float, y: float, angle: float) -> tuple[float, float]:
    return x * math.cos(angle) - y * math.sin(angle), y * math.cos(angle) + x * math.sin(angle)


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize("head_dim", [4, 8, 12, 64, 72, 80, 128])
def test_vision_rotary_is_a_rotation_by_row_and_column(head_dim: int, pairing: Pairing) -> None:
    """Red when frequencies, the row/column halves or the pairing of dims change."""
    torch.manual_seed(0)
    qkv = torch.randn(5, 3, 2, head_dim)
    before = qkv.clone()
    row_col = torch.tensor([[0, 0], [0, 7], [9, 0], [3, 4], [30, 49]])
    by = make_patch_rotary(50, head_dim, 1e4, torch.device("cpu"), pairing, heads=2)
    vision_rotary(qkv, row_col, by)
    assert torch.equal(qkv[:, 2], before[:, 2])
    quarter, half = head_dim // 4, head_dim // 2
    turns = None if by.turns is None else by.turns.view(3, 2, half, 2)
    for patch in range(5):
        for part in (0, 1):
            for i in range(half):
                first, second = (i, i + half) if pairing == "halves" else (2 * i, 2 * i + 1)
                place = row_col[patch, 0] if i < quarter else row_col[patch, 1]
                angle = float(place) * 1e4 ** (-2 * (i % quarter) / half)
                x, y = before[patch, part, 1, first], before[patch, part, 1, second]
                expected = rotate_pair(float(x), float(y), angle)
                assert qkv[patch, part, 1, first] == pytest.approx(expected[0], abs=2e-5)
                assert qkv[patch, part, 1, second] == pytest.approx(expected[1], abs=2e-5)
                if turns is not None:  # what products that rotate go by
                    by_row, by_column = turns[part, 1, i].tolist()
                    turned = float(row_col[patch, 0]) * by_row + float(row_col[patch, 1]) * by_column
                    assert 2 * math.pi * turned == pytest.approx(angle, abs=2e-5)
    assert turns is None or not turns[2].any()


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize("size", [6, 10, 66, 72, 80, 90, 96, 112])
@pytest.mark.parametrize("kind", ["text", "vision"])
def test_rotary_of_any_even_head_size(kind: str, size: int, pairing: Pairing) -> None:
    """q and k, strided and wider than what turns, by indices into the table and by ready cos and sin. Red when a pair takes
    another frequency, axis or partner, when k is left out, or when the two ways differ by a bit."""
    if kind == "vision" and size % 4:
        return  # half of the pairs is no whole number: test_a_tower_without_2d_angles_is_refused
    cpu, tokens, pairs = torch.device("cpu"), 3, size // 2
    if kind == "text":
        table, axes = make_rotary_table(60, size, 1e4, cpu), mrope_axes((pairs - 2, 1, 1), "blocked", cpu)
    else:
        table, axes = make_rotary_table(60, size // 2, 1e4, cpu), torch.tensor([0, 1]).repeat_interleave(pairs // 2)
    index = torch.randint(0, 60, (int(axes.max()) + 1, tokens), generator=torch.Generator().manual_seed(0))
    packed = torch.randn(tokens, 5, size + 2, generator=torch.Generator().manual_seed(1))
    before, ready = packed.clone(), packed.clone()
    angles = RotaryAngles(table.cos, table.sin, index, axes)
    rotary(packed[:, :2], packed[:, 2:4], angles, pairing)
    rotary(ready[:, :2], ready[:, 2:4], angles.ready(), pairing)
    assert torch.equal(packed, ready)
    assert torch.equal(packed[:, 4], before[:, 4]) and torch.equal(packed[..., size:], before[..., size:])
    frequencies = table.cos.shape[1]
    for token in range(tokens):
        for head in (1, 3):
            for i in range(pairs):
                first, second = (i, i + pairs) if pairing == "halves" else (2 * i, 2 * i + 1)
                angle = float(index[axes[i], token]) * 1e4 ** (-(i % frequencies) / frequencies)
                x, y = before[token, head, first], before[token, head, second]
                expected = rotate_pair(float(x), float(y), angle)
                assert packed[token, head, first] == pytest.approx(expected[0], abs=2e-5)
                assert packed[token, head, second] == pytest.approx(expected[1], abs=2e-5)


def test_rotary_computes_in_float32() -> None:
    """Red if products are rounded to bfloat16 before they are added."""
    angles = RotaryAngles(torch.full((1, 33), 0.6), torch.full((1, 33), 0.8))
    x = torch.randn(2, 1, 4, 66, generator=torch.Generator().manual_seed(2)).bfloat16()
    q, k = x[0].clone(), x[1].clone()
    rotary(q, k, angles, "halves")
    low, high = x[0].float().chunk(2, -1)
    cos, sin = angles.cos, angles.sin
    assert torch.equal(q, torch.cat((low * cos - high * sin, high * cos + low * sin), -1).bfloat16())


@pytest.mark.parametrize("size", [6, 10, 66, 90])
def test_a_tower_without_2d_angles_is_refused(size: int) -> None:
    """Red if it fails later, by a shape."""
    with pytest.raises(ConfigError, match=f"heads of {size} numbers, but must have a multiple of 4"):
        make_patch_rotary(50, size, 1e4, torch.device("cpu"))


def test_mrope_axes_by_hand() -> None:
    """The layouts of the published families, counted out. Red when a section moves by one frequency."""
    cpu = torch.device("cpu")
    blocked = mrope_axes((16, 24, 24), "blocked", cpu).tolist()
    assert blocked == [0] * 16 + [1] * 24 + [2] * 24
    interleaved = mrope_axes((24, 20, 20), "interleaved", cpu).tolist()
    assert [i for i, axis in enumerate(interleaved) if axis == 1] == list(range(1, 59, 3))
    assert [i for i, axis in enumerate(interleaved) if axis == 2] == list(range(2, 60, 3))
    assert interleaved[60:] == [0, 0, 0, 0]


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (16, 12), (32, 6)])
def test_text_rotary(pairing: str, head_dim: int, rotary_dim: int) -> None:
    torch.manual_seed(1)
    count = rotary_dim // 2
    sections = (count - 2 * (count // 3), count // 3, count // 3)
    axes = mrope_axes(sections, "blocked", torch.device("cpu"))
    positions = torch.randint(0, 90, (3, 4))
    q, k = torch.randn(4, 3, head_dim), torch.randn(4, 1, head_dim)
    table = make_rotary_table(90, rotary_dim, 1e3, torch.device("cpu"))
    for before, after in zip((q, k), text_rotary(q, k, TextRotation(positions, table, axes, pairing)), strict=True):
        assert torch.equal(after[..., rotary_dim:], before[..., rotary_dim:])
        for token in range(4):
            for i in range(count):
                first, second = (i, i + count) if pairing == "halves" else (2 * i, 2 * i + 1)
                angle = float(positions[axes[i], token]) * 1e3 ** (-2 * i / rotary_dim)
                expected = rotate_pair(float(before[token, 0, first]), float(before[token, 0, second]), angle)
                assert after[token, 0, first] == pytest.approx(expected[0], abs=2e-5)
                assert after[token, 0, second] == pytest.approx(expected[1], abs=2e-5)


def test_quick_gelu_by_hand() -> None:
    x = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0])
    expected = [value / (1 + math.exp(-1.702 * value)) for value in x.tolist()]
    torch.testing.assert_close(quick_gelu(x), torch.tensor(expected))
    half = quick_gelu(x.bfloat16())
    assert torch.equal(half, x.bfloat16() * torch.sigmoid(1.702 * x.bfloat16()))  # rounded in between, as transformers does


def test_segments_do_not_see_each_other() -> None:
    torch.manual_seed(2)
    lengths = (3, 0, 1, 5, 5)
    q, k, v = torch.randn(3, sum(lengths), 2, 8)
    starts = torch.tensor([0, 3, 3, 4, 9, 14])
    out = segment_attention(q, k, v, starts, lengths, q.shape[-1] ** -0.5)
    for start, length in zip(starts.tolist(), lengths, strict=False):
        part = slice(start, start + length)
        weights = (torch.einsum("qhd,khd->hqk", q[part], k[part]) / 8**0.5).softmax(-1)
        torch.testing.assert_close(out[part], torch.einsum("hqk,khd->qhd", weights, v[part]), atol=1e-6, rtol=1e-5)


def test_paged_attention_is_causal_attention_over_the_sequence() -> None:
    """Sequences are stored in scattered pages, then compared with attention over the plain sequence."""
    torch.manual_seed(3)
    page_size, heads, kv_heads, head_dim = 4, 4, 2, 8
    contexts, queries = (9, 1, 6), (4, 1, 6)
    cache = PagedCache(*torch.randn(2, 8, page_size, kv_heads, head_dim))
    order = torch.randperm(8)
    table = torch.zeros(3, 3, dtype=torch.int32)
    used, sequences = 0, []
    for row, context in enumerate(contexts):
        pages = -(-context // page_size)
        table[row, :pages] = order[used : used + pages]
        used += pages
        k, v = torch.randn(2, context, kv_heads, head_dim)
        place = torch.arange(context)
        slots = table[row].long()[place // page_size] * page_size + place % page_size
        cache.store(k, v, slots)
        sequences.append((torch.randn(context, heads, head_dim), k, v))
    q = torch.cat([full[len(full) - new :] for (full, _, _), new in zip(sequences, queries, strict=True)])
    starts = torch.tensor([0, 4, 5, 11])
    out = paged_attention(q, cache, PagedSequences(table, starts, torch.tensor(contexts), queries, contexts))
    for row, (full, k, v) in enumerate(sequences):
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = torch.einsum("qhd,khd->hqk", full, k) / head_dim**0.5
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)[-queries[row] :]
        torch.testing.assert_close(out[starts[row] : starts[row + 1]], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("mode", "align_corners"), [("bilinear", True), ("bicubic", False)])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (2, 14), (22, 6), (1, 1)])
def test_position_grid_equals_torch_interpolation(mode: str, align_corners: bool, height: int, width: int) -> None:
    """Red when taps, weights, border or the half-pixel convention change."""
    torch.manual_seed(4)
    table = torch.randn(64, 5)
    row, col = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    row_col = torch.stack((row, col), -1).reshape(-1, 2)
    size = torch.tensor([[height, width]]).expand(len(row_col), 2)
    found = interpolate_position_grid(table, row_col, size, mode, align_corners)
    grid = table.view(8, 8, 5).permute(2, 0, 1)[None]
    expected = F.interpolate(grid, size=(height, width), mode=mode, align_corners=align_corners)
    torch.testing.assert_close(found, expected[0].permute(1, 2, 0).reshape(-1, 5), atol=1e-5, rtol=1e-5)


def test_rows_go_to_their_tokens_only() -> None:
    """Red when a token takes another row, or the id that stands in an image's place is looked up."""
    table, rows = torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([[1.0, 2.0, 9.0, 9.0], [3.0, 4.0, 9.0, 9.0]])
    index = torch.tensor([-1, 1, -1, 0])
    ids = torch.tensor([1, 10**12, 0, -1])
    assert merge_embeddings(ids, table, rows, index).tolist() == [[7, 8], [3, 4], [5, 6], [1, 2]]
    assert merge_embeddings(ids[::2], table, None, None).tolist() == [[7, 8], [5, 6]]


def test_deepstack_features_are_added_after_the_residual_and_rounded_in_between() -> None:
    """Red when a row goes to another token, or the three numbers are added in another order: in bfloat16 another sum."""
    x, residual = torch.tensor([[1.0], [1.0], [1.0]]).bfloat16(), torch.tensor([[256.0], [256.0], [256.0]]).bfloat16()
    rows, index = torch.tensor([[1.0], [300.0]]).bfloat16(), torch.tensor([0, -1, 1])
    normed, total = add_rms_norm_rows(x, residual, torch.tensor([2.0]).bfloat16(), 0.0, rows, index)
    assert total.tolist() == [[256], [256], [556]]  # 256 + 1 is 256, and again; 256 + (1 + 1) would be 258
    assert normed.tolist() == [[2], [2], [2]]


def test_a_shift_is_added_before_the_norm() -> None:
    """Red when the shift is rounded, or is left out."""
    torch.manual_seed(6)
    x, weight, bias = torch.randn(3, 9, 16).unbind()
    weight, bias, shift = weight[0], bias[0], torch.randn(16) * 3
    expected = F.layer_norm(x + shift, (16,), weight, bias, eps=1e-6)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-6, shift), expected)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6, shift), F.rms_norm(x + shift, (16,), weight, eps=1e-6))


def test_the_norm_of_a_sum_comes_with_the_sum() -> None:
    """Red when the two results change places, or an addend is left out."""
    torch.manual_seed(6)
    x, residual, weight = torch.randn(3, 9, 16).unbind()
    normed, total = add_rms_norm(x, residual, weight[0], 1e-6)
    torch.testing.assert_close(normed, F.rms_norm(x + residual, (16,), weight[0], eps=1e-6))
    assert torch.equal(total, residual + x)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100])
def test_forbidden_tokens_are_those_whose_bit_is_clear(vocab: int) -> None:
    make = ExampleMaker(torch.device("cpu"), torch.float32)
    scores, words = make.normal(4, vocab), make.integers(-(2**31), 2**31, 2, -(-vocab // 32))
    expected = scores.clone()
    for row, bits in zip((3, 1), words.tolist(), strict=True):
        for token in range(vocab):
            if not bits[token // 32] >> (token % 32) & 1:
                expected[row, token] = -math.inf
    forbid_tokens(scores, words, torch.tensor([3, 1]))
    assert torch.equal(scores, expected)


def test_a_kernel_runs_when_its_predicate_holds_and_not_otherwise() -> None:
    """Red when dispatch ignores predicates, their order, or `definitions_only`, or when `choose` names what is not called."""
    from sightline.ops.dispatch import Tolerance, definitions_only

    @op(examples=lambda make: iter([{"x": make.normal(2)}]), tolerances={torch.float32: Tolerance(0, 0)})
    def probe(x: torch.Tensor) -> str:
        return "definition"

    try:

        @probe.kernel("long", when=lambda x: x.shape[0] > 2)
        def long(x: torch.Tensor) -> str:
            return "long"

        @probe.kernel("longer", when=lambda x: x.shape[0] > 1, graph_safe=True)
        def longer(x: torch.Tensor) -> str:
            return "longer"

        assert [probe(torch.zeros(n)) for n in (1, 2, 3)] == ["definition", "longer", "long"]
        assert [probe(x=torch.zeros(n)) for n in (1, 2, 3)] == ["definition", "longer", "long"]
        assert [probe.choose(torch.zeros(n)).name for n in (1, 2, 3)] == ["definition", "longer", "long"]
        assert [probe.choose(x=torch.zeros(n)).graph_safe for n in (1, 2, 3)] == [False, True, False]
        with definitions_only():
            assert probe(torch.zeros(3)) == "definition" == probe.choose(torch.zeros(3)).name
        with pytest.raises(ValueError, match="twice"):
            op(examples=probe.examples, tolerances={})(probe.definition)
    finally:
        del OPS["probe"]


def test_examples_are_reproducible() -> None:
    first, second = (ExampleMaker(torch.device("cpu"), torch.float32, seed=5).normal(3) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_experts_of_the_best_groups(scores: str) -> None:
    """One token at a time. Red when a group is as good as something else, experts of another are chosen, weights are divided
    by their sum, or a shared expert is missing."""
    make = ExampleMaker(torch.device("cpu"), torch.float32)
    logits, bias = make.normal(40, 12), make.normal(12) if scores == "sigmoid" else None
    experts, weights = route_tokens(logits, bias, 3, scores, 2.0, "plain", None, 2, False, (4, 2))
    assert (experts[:, 3:] == torch.tensor([12, 13])).all() and (weights[:, 3:] == 1).all()
    for token, row in enumerate(logits):
        found = row.softmax(0) if scores == "softmax" else row.sigmoid()
        key = (found if bias is None else found + bias).tolist()
        groups = [sorted(key[first : first + 3], reverse=True) for first in range(0, 12, 3)]
        value = [group[0] if bias is None else group[0] + group[1] for group in groups]
        allowed = sorted(range(4), key=lambda group: -value[group])[:2]
        chosen = sorted((expert for expert in range(12) if expert // 3 in allowed), key=lambda expert: -key[expert])[:3]
        assert experts[token, :3].tolist() == chosen
        torch.testing.assert_close(weights[token, :3], 2 * found[chosen])
