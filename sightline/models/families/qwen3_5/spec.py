"""What a layer of gated delta rule is, in numbers."""

from dataclasses import dataclass
from typing import Literal

from sightline.spec import StateCacheSpec, StateTensor


@dataclass(frozen=True)
class DeltaNetSpec:
    key_heads: int
    value_heads: int  # a multiple: a key head serves neighbours
    key_dim: int
    value_dim: int
    conv_width: int  # tokens
    norm_eps: float
    output_gate: Literal["silu", "sigmoid"]

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def cache(self) -> StateCacheSpec:
        """The state in float32, whatever the model computes in, and the last inputs of the convolution."""
        state = StateTensor((self.value_heads, self.key_dim, self.value_dim), "float32")
        return StateCacheSpec((state, StateTensor((self.conv_width - 1, self.channels), "model")))

    # For floors of benchmarks

    def weights(self, hidden_size: int) -> int:
        return hidden_size * (self.channels + 2 * self.values + 2 * self.value_heads)

    def operations(self, tokens: int) -> float:
        """A chunk of 64 tokens reads and writes the state in three products; what its tokens do to each other are six more."""
        each = 3 * self.key_dim * self.value_dim + 64 * (2 * self.key_dim + 2 * self.value_dim)
        return 2.0 * tokens * self.value_heads * each
