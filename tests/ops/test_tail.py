"""The last wave of tiles of attention, split along the keys."""

import pytest
import torch

from sightline.ops.attention import segment_attention
from sightline.ops.kernels import register_kernels
from sightline.ops.tail import split_tail


@pytest.mark.parametrize("tokens", [3072, 3520, 4096, 8160, 8192, 14_400, 20_000, 65_536])
@pytest.mark.parametrize("heads", [8, 12, 16])
def test_the_body_fills_the_chip_and_the_tail_fits_one_wave(tokens: int, heads: int) -> None:
    tail = split_tail(tokens, heads, 192, 132)
    tiles = -(-tokens // 192) * heads
    if tail is None:
        assert tiles < 132 or (-(-tokens // 192) - tiles // 132 * 132 // heads) * heads * 2 > 132 or tiles % 132 == 0
        return
    assert 0 < tail.body < tokens and tail.body % 192 == 0
    assert tail.body // 192 * heads <= tiles // 132 * 132, "as many waves as are full, not more"
    assert (tail.parts - 1) * tail.size < tokens <= tail.parts * tail.size, "every part has keys, and every key is in one"
    assert tail.parts > 1 and -(-(tokens - tail.body) // 192) * heads * tail.parts <= 132


def test_short_or_even_ones_are_left_whole() -> None:
    assert split_tail(1296, 16, 192, 132) is None  # one wave, not full
    assert split_tail(2000, 16, 192, 132) is None  # too short to gain
    assert split_tail(192 * 33, 16, 192, 132) is None  # four waves, all full
    assert split_tail(8160, 16, 192, 132) is not None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "real"), [(3520, 3520), (8160, 8160), (8192, 8160), (8192, 5000), (8192, 7950), (14_400, 14_400)]
)
def test_attention_with_a_tail_apart(tokens: int, real: int) -> None:
    """`tokens` is the bound that the host knows. Red when a part is lost, weighs wrong, or reads what is not real."""
    register_kernels()
    generator = torch.Generator("cuda").manual_seed(0)
    qkv = torch.randn(tokens, 3, 16, 80, device="cuda", generator=generator).bfloat16()
    qkv[real:] = 100.0  # left over from others
    q, k, v = qkv.unbind(1)
    starts = torch.tensor([0, real], dtype=torch.int32, device="cuda")
    kernel = segment_attention.choose(q, k, v, starts, (tokens,), 0.1)
    assert kernel.name == "flash-attn-4"
    found = kernel.run(q, k, v, starts, (tokens,), 0.1)[:real]
    expected = segment_attention.definition(q[:real], k[:real], v[:real], starts, (real,), 0.1)
    torch.testing.assert_close(found, expected, atol=1.6e-2, rtol=1.6e-2)
