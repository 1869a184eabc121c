"""Tables of the language model's rotary angles: one for all layers that turn by the same rule."""

from dataclasses import dataclass, field

import torch

from sightline.ops.rotary import RotaryTable, make_rotary_table, mrope_axes
from sightline.spec import TextRopeSpec


@dataclass(frozen=True)
class RotaryTables:
    max_position: int
    device: torch.device
    _made: dict[TextRopeSpec, tuple[RotaryTable, torch.Tensor]] = field(default_factory=dict)

    def of(self, rope: TextRopeSpec) -> tuple[RotaryTable, torch.Tensor]:
        """Angles by position, and which axis drives each frequency."""
        if rope not in self._made:
            table = _table(rope, self.max_position, self.device)
            self._made[rope] = table, mrope_axes(rope.sections, rope.layout, self.device)
        return self._made[rope]


def _table(rope: TextRopeSpec, max_position: int, device: torch.device) -> RotaryTable:
    """Of a rope with two regimes: the angles of short sequences, and behind them those of long ones.

        0                 original_length                       original_length + max_position
        |── short factors ──|──────────── long factors ────────────|
                            position 0 of a sequence that is long: the host moves its positions (schedule/long_rope.py)

    Where no sequence can be longer than original_length there is the first part alone.
    """
    if rope.long is None:
        return make_rotary_table(max_position, rope.rotary_dim, rope.theta, device)
    long, switch = rope.long, rope.long.original_length

    def part(positions: int, factors: tuple[float, ...]) -> RotaryTable:
        return make_rotary_table(positions, rope.rotary_dim, rope.theta, device, factors, long.attention_factor)

    if max_position <= switch:
        return part(max_position, long.short_factors)
    parts = part(switch, long.short_factors), part(max_position, long.long_factors)
    return RotaryTable(torch.cat([p.cos for p in parts]), torch.cat([p.sin for p in parts]))
