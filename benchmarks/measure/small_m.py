"""Which matrices of a language model `benchmarks.small_m` measures, and the lines of data that come of it."""

import json
from collections.abc import Sequence

from sightline.ops.triton.small_m_tilings import to_entry
from sightline.ops.tuning.small_m_search import Choice, Matrix
from sightline.spec import TextSpec


def matrices_of(text: TextSpec) -> list[Matrix]:
    heads = text.attention.num_heads * text.attention.head_dim
    return [
        Matrix("qkv", heads + 2 * text.attention.num_kv_heads * text.attention.head_dim, text.hidden_size),
        Matrix("out", text.hidden_size, heads),
        Matrix("down", text.hidden_size, text.gated_mlp.intermediate_size),
        Matrix("gate_up", text.gated_mlp.intermediate_size, text.hidden_size, gated=True),
        Matrix("head", text.vocab_size, text.hidden_size),
    ]


def data_lines(choices: Sequence[Choice]) -> list[str]:
    """The entries for sightline/data/tilings: rows at most, columns of the result, size of a row, gated, tiling (or null)."""
    return [json.dumps(to_entry(one.matrix.at(one.bucket), one.tiling if one.gains else None)) for one in choices]
