"""Into how many parts the keys of decoding sequences are split."""

import pytest

pytest.importorskip("triton")
from sightline.ops.triton.paged_attention import parts_for


@pytest.mark.parametrize(
    ("kv_heads", "contexts", "parts"),
    [
        (8, (1024,), 8),  # parts of 128 keys at least
        (8, (100_000,), 64),
        (8, (1024,) * 32, 2),
        (8, (1024,) * 128, 1),
        (8, (100_000,) * 32, 2),  # equally long ones fill the device as they are
        (8, (100_000, *(1000,) * 31), 16),
        (8, (100_000, *(1000,) * 127), 4),
        (8, (100_000, *(1000,) * 255), 2),
        (8, (4000, *(1000,) * 31), 8),
        (2, (1,) * 5, 1),
        (8, (0, 0), 1),
    ],
)
def test_parts(kv_heads: int, contexts: tuple[int, ...], parts: int) -> None:
    """Red when a step waits for a few programs with a long context, or when short contexts are cut into crumbs."""
    assert parts_for(kv_heads * len(contexts), contexts) == parts
