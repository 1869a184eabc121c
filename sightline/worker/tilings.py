"""Which tilings of small-M GEMMs count, fixed before anything runs: those of the package, then what `sightline tune` kept.

Of several ranks the first one reads, and all of them take its choices: what is measured while they start, or lies on one
machine only, must not make them compute differently.
"""

import importlib.util
import json
import logging
from dataclasses import dataclass

import torch

from sightline.ops.triton.small_m_tilings import (
    Chip,
    Choices,
    digest_of,
    fix_choices,
    fixed_choices,
    from_entry,
    hopper_chip,
    shipped_choices,
    to_entry,
)
from sightline.ops.tuning.kept_tilings import Machine, read_kept
from sightline.parallel.group import Group

log = logging.getLogger("sightline.engine")


@dataclass(frozen=True)
class TilingFacts:
    gpu: str
    shipped: int  # choices that came with the package and count
    kept: int  # that were measured here
    digest: str
    problem: str = ""  # why a file is not used, as a sentence

    def __str__(self) -> str:
        return (
            f"Tilings of small-M GEMMs on {self.gpu}: {self.shipped} choices from the package, {self.kept} that were measured "
            f"here, the others by rule; their hash is {self.digest}."
        )

    def log(self) -> None:
        log.info("%s", self)
        if self.problem:
            log.warning("%s", self.problem)


def fix_tilings(device: torch.device, group: Group | None = None) -> TilingFacts | None:
    """None where nothing is chosen, for the kernels are not for this device. A second model of a process has the choices of the
    first, which may be running."""
    chip = hopper_chip(device) if importlib.util.find_spec("triton") is not None else None
    choices: Choices = {}
    facts = None
    if chip is not None and (group is None or group.rank == 0):
        choices, facts = _read(chip)
    if group is not None:
        said = [to_entry(*pair) for pair in choices.items()]
        choices = dict(from_entry(entry) for entry in json.loads(group.from_first(json.dumps(said).encode(), device)))
    if chip is not None:
        fix_choices(chip.name, choices)
        facts = facts or TilingFacts(chip.name, 0, 0, digest_of(choices))
    return facts


def _read(chip: Chip) -> tuple[Choices, TilingFacts]:
    shipped, before = shipped_choices(chip.name), fixed_choices(chip.name)
    problem = ""
    if before is None:
        kept = read_kept(Machine.of(chip), chip)
        before, problem = {**shipped, **kept.choices}, kept.problem
    own = sum(shape not in shipped or shipped[shape] != tiling for shape, tiling in before.items())
    return before, TilingFacts(chip.name, len(before) - own, own, digest_of(before), problem)
