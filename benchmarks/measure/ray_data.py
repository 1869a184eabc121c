"""The same rows through Ray Data with two actors and through `sightline batch` with two engines, in one run.

Engines compute nothing: what is compared is the way to them and back. Both count from the first row that an engine could have
taken to the last answer; that of Ray Data is written into the rows by the actors.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from benchmarks.measure.batch_load import bodies, pictures, write_rows
from sightline.errors import UserError
from sightline.models.locate import EMBEDDED
from sightline.ray.rows import RowAnswers

ENGINES = 2
_ENGINE = (sys.executable, "-m", "sightline.bench.instant_engine", "0")
_FILES = 8  # of the table, which are read side by side


@dataclass(frozen=True)
class RayDataRound:
    ray_s: float
    ray_wall_s: float  # with the start and the end of the actors
    batch_s: float
    batch_wall_s: float

    @property
    def overhead(self) -> float:
        return self.ray_s / self.batch_s - 1


class TimedRowAnswers(RowAnswers):
    """Says in each row when the actor began with its batch, and when it was done."""

    async def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        began = time.time()
        table = await super().__call__(batch)
        for name, value in (("began", began), ("ended", time.time())):
            table = table.append_column(name, pyarrow.array([value] * len(table)))
        return table.drop_columns(["image"])


def compare(rows: int, image_bytes: int, rounds: int) -> Iterator[RayDataRound]:
    with tempfile.TemporaryDirectory(prefix="ray-data-") as name:
        folder = Path(name)
        _write_table(folder / "table", rows, image_bytes)
        write_rows(folder / "rows.jsonl", list(bodies(rows, image_bytes)))
        for number in range(rounds):
            yield RayDataRound(*_in_ray(folder / "table", rows), *_in_batch(folder, number, rows))


def _write_table(folder: Path, rows: int, image_bytes: int) -> None:
    folder.mkdir()
    images = list(pictures(rows, image_bytes))
    each = -(-rows // _FILES)
    for number in range(0, rows, each):
        part = images[number : number + each]
        table = pyarrow.table({"number": range(number, number + len(part)), "image": part})
        pyarrow.parquet.write_table(table, folder / f"{number:06d}.parquet", compression="none")


def _in_ray(table: Path, rows: int) -> tuple[float, float]:
    import ray.data

    import sightline.ray.data as ray_data

    ray_data.RowAnswers = TimedRowAnswers  # type: ignore[attr-defined]
    began = time.perf_counter()
    found: Any = ray_data.batch(
        ray.data.read_parquet(str(table)),
        model=str(EMBEDDED),
        load_format="dummy",
        prompt="What is this?",
        image_column="image",
        sampling={"max_tokens": 4},
        replicas=ENGINES,
        num_cpus=0.5,
        num_gpus=0,
        engine_command=_ENGINE,
    ).to_pandas()
    wall_s = time.perf_counter() - began
    if len(found) != rows or not found["error"].isna().all():
        raise UserError(f"Of {rows} rows {len(found)} came back: {found['error'].dropna().head(1).tolist()}")
    return float(found["ended"].max() - found["began"].min()), wall_s


def _in_batch(folder: Path, number: int, rows: int) -> tuple[float, float]:
    answers = folder / f"answers-{number}.jsonl"
    began = time.perf_counter()
    line: Sequence[str] = (
        sys.executable,
        "-m",
        "benchmarks.measure.two_instant_engines",
        str(folder / "rows.jsonl"),
        str(answers),
    )
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise UserError(f"The batch ended with {done.returncode}: {done.stderr[-500:]}")
    seconds, answered = done.stdout.split()[-2:]
    if int(answered) != rows:
        raise UserError(f"Of {rows} rows {answered} were answered.")
    return float(seconds), wall_s
