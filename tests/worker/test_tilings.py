"""Which tilings count is fixed at the start: from the package, from the disk, and of several ranks from the first one's."""

import logging
import os
from pathlib import Path

import pytest
import torch

from ops.tilings import SHAPE, UNUSUAL, cache
from parallel.ranks import on_ranks
from sightline.config import Config, ModelConfig
from sightline.engine.load import load_engine
from sightline.engine.process import ready_report
from sightline.models.files import read_model_files
from sightline.ops.triton.small_m_tilings import H200, Choices, digest_of, linear_tiling, rule_tiling, shipped_choices
from sightline.ops.tuning.kept_tilings import Machine, file_of, keep
from sightline.parallel.group import Group
from sightline.wire import to_frames
from sightline.worker import tilings
from sightline.worker.facts import WorkerFacts
from sightline.worker.memory import MemoryPlan
from sightline.worker.messages import Loaded, from_worker
from sightline.worker.tilings import TilingFacts, fix_tilings

__all__ = ["cache"]
CPU = torch.device("cpu")
SHIPPED = shipped_choices("NVIDIA H200")
RULE = rule_tiling(SHAPE, H200)


def chosen() -> object:
    return linear_tiling(SHAPE.rows, SHAPE.width, SHAPE.size)


@pytest.fixture
def hopper(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As on a machine that has the GPU."""
    monkeypatch.setattr(tilings, "hopper_chip", lambda device: H200)
    return cache


# Red if what was kept does not count, the package's are lost beside it, or what is said of them is not so.
def test_what_was_kept_counts(hopper: Path) -> None:
    assert chosen() == RULE != UNUSUAL
    keep(Machine.of(H200), H200, {SHAPE: UNUSUAL})
    facts = fix_tilings(CPU)
    assert chosen() == UNUSUAL
    assert facts == TilingFacts("NVIDIA H200", len(SHIPPED), 1, digest_of({**SHIPPED, SHAPE: UNUSUAL}))
    other = next(shape for shape, tiling in SHIPPED.items() if tiling is not None and not shape.gated)
    assert linear_tiling(other.rows, other.width, other.size) == SHIPPED[other]


# Red if a shape of the package cannot be overruled, or is then counted twice.
def test_what_was_measured_here_wins(hopper: Path) -> None:
    shape = next(iter(SHIPPED))
    keep(Machine.of(H200), H200, {shape: UNUSUAL})
    facts = fix_tilings(CPU)
    assert facts is not None and (facts.shipped, facts.kept) == (len(SHIPPED) - 1, 1)
    assert linear_tiling(shape.rows, shape.width, shape.size) == UNUSUAL


# Red if choices change under a model that runs, because another one is loaded after a measurement.
def test_choices_are_fixed_once(hopper: Path) -> None:
    first = fix_tilings(CPU)
    keep(Machine.of(H200), H200, {SHAPE: UNUSUAL})
    assert fix_tilings(CPU) == first and chosen() == RULE


# Red if a damaged file stops the start, or is passed over in silence.
def test_a_damaged_file_is_told(hopper: Path) -> None:
    keep(Machine.of(H200), H200, {SHAPE: UNUSUAL})
    file_of(Machine.of(H200)).write_text("{")
    facts = fix_tilings(CPU)
    assert facts is not None and facts.kept == 0 and "is not used" in facts.problem and chosen() == RULE


# Red if a device that the kernels are not for reads or says anything.
def test_a_cpu_has_no_choices(cache: Path) -> None:
    assert fix_tilings(CPU) is None and not cache.exists()


# Red if an engine starts without the choices, or it is not said which, once, with their hash: in its log and to the server.
def test_the_start_fixes_and_tells(hopper: Path, tiny_checkpoints: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    keep(Machine.of(H200), H200, {SHAPE: UNUSUAL})
    config = Config(model=ModelConfig(model=str(tiny_checkpoints["qwen3-vl"]), device="cpu"))
    with caplog.at_level(logging.INFO, "sightline.engine"):
        engine = load_engine(config, read_model_files(config.model, config.media))
    engine.close()
    assert chosen() == UNUSUAL
    digest = digest_of({**SHIPPED, SHAPE: UNUSUAL})
    (line,) = [record.getMessage() for record in caplog.records if "Tilings" in record.getMessage()]
    assert f"{len(SHIPPED)} choices from the package, 1 that were measured here" in line and line.endswith(f"hash is {digest}.")
    assert ready_report(engine, {}).tilings == digest


# Red if facts of a worker in another process come without them.
def test_they_travel_with_the_facts() -> None:
    told = TilingFacts("NVIDIA H200", 3, 1, "abc", "A file is not used.")
    facts = WorkerFacts(MemoryPlan(1, 1, 1, 1, 0), "cuda", "bfloat16", 8, 8, "", "", (), told)
    received = from_worker.decode(to_frames(Loaded(facts, {})))
    assert isinstance(received, Loaded) and received.facts.tilings == told


def _fixed_on_a_rank(group: Group, folder: str, gpus: bool) -> tuple[object, str | None]:
    """Each rank finds another file, the second one a damaged one."""
    os.environ["XDG_CACHE_HOME"] = f"{folder}/{group.rank}"
    if gpus:
        tilings.hopper_chip = lambda device: H200
        own: Choices = {SHAPE: UNUSUAL} if group.rank == 0 else {SHAPE: None}
        keep(Machine.of(H200), H200, own)
        if group.rank == 1:
            file_of(Machine.of(H200)).write_text("")
    facts = fix_tilings(CPU, group)
    return chosen(), None if facts is None else facts.digest


# Red if a rank uses what lies on its own disk, or waits for what is never said.
def test_all_ranks_have_those_of_the_first(tmp_path: Path) -> None:
    digest = digest_of({**SHIPPED, SHAPE: UNUSUAL})
    assert on_ranks(2, _fixed_on_a_rank, str(tmp_path), True) == [(UNUSUAL, digest)] * 2
    assert on_ranks(2, _fixed_on_a_rank, str(tmp_path), False) == [(RULE, None)] * 2
