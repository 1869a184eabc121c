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
            table = make_rotary_table(self.max_position, rope.rotary_dim, rope.theta, self.device)
            self._made[rope] = table, mrope_axes(rope.sections, rope.layout, self.device)
        return self._made[rope]
