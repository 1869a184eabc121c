"""A published benchmark, found on this machine and turned into a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import ConfigError
from sightline.evals.benchmarks.rows import Dataset, DatasetRow
from sightline.evals.task import Sample, Task, Words


@dataclass(frozen=True)
class Benchmark:
    name: str
    title: str
    datasets: tuple[str, ...]  # Hub ids that hold it, the usual one first
    splits: Mapping[str, int]  # those whose answers are published, with the number of their samples; the first is the usual one
    layout: str  # a file as it lies in the dataset, for people
    groups_of: Callable[[DatasetRow], tuple[str, ...]]  # from a row without its images
    sample_of: Callable[[DatasetRow], Sample]
    group_order: tuple[str, ...]
    words: Words
    max_tokens: int
    other_files: Mapping[str, tuple[str, ...]]  # by split: names of files other than <split>*.parquet and <split>.json[l]
    without: tuple[str, ...] = ()  # folders of the dataset that hold something else


def load_benchmark(
    benchmark: Benchmark,
    data: Path | None = None,
    split: str | None = None,
    samples: int | None = None,
    groups: Sequence[str] = (),
) -> Task:
    """Its task, from a folder, one file or the Hub's cache: all of a split, or some groups, or `samples` evenly spread."""
    split = split or next(iter(benchmark.splits))
    if split not in benchmark.splits:
        known = ", ".join(benchmark.splits)
        raise ConfigError(f"--split is {split!r}, but {benchmark.title} can be scored on {known} only.")
    rows = Dataset(find_files(benchmark, data, split))
    light = rows.without_images()
    grouped = [(row.number, benchmark.groups_of(row)) for row in light]
    chosen = _in_groups(grouped, groups, benchmark)
    if samples is not None:
        if samples < 1:
            raise ConfigError(f"--samples is {samples}, but must be at least 1.")
        if samples < len(chosen):
            chosen = [chosen[index * len(chosen) // samples] for index in range(samples)]

    def read() -> Iterator[Sample]:
        return map(benchmark.sample_of, rows.with_images(chosen))

    notes = []
    if len(light) != benchmark.splits[split]:
        notes.append(f"{len(light)} samples are here; the published {split} split has {benchmark.splits[split]}.")
    if len(chosen) != len(light):
        notes.append(f"{len(chosen)} of {len(light)} samples are asked.")
    return Task(
        settings={"task": benchmark.name, "split": split},
        count=len(chosen),
        samples=read,
        group_order=benchmark.group_order,
        max_tokens=benchmark.max_tokens,
        words=benchmark.words,
        notes=tuple(notes),
    )


def find_files(benchmark: Benchmark, data: Path | None, split: str) -> list[Path]:
    if data is None:
        data = _cached(benchmark)
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise ConfigError(f"--data is {data}, but there is no such folder or file.")
    files = sorted(file for pattern in (f"{split}-*.parquet", f"{split}.parquet") for file in data.rglob(pattern))
    for name in (f"{split}.jsonl", f"{split}.json", *benchmark.other_files.get(split, ())):
        files = files or sorted(data.rglob(name))
    inside = [file for file in files if not _left_out(file.relative_to(data), benchmark.without)]
    if not inside:
        raise ConfigError(
            f"{data} has no file of the {split} split of {benchmark.title}; expected is the dataset {benchmark.datasets[0]}, "
            f"with files such as {benchmark.layout}."
        )
    return inside


def _left_out(file: Path, without: Sequence[str]) -> bool:
    return any(part.startswith(".") or part in without for part in file.parts)


def _cached(benchmark: Benchmark) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    for dataset in benchmark.datasets:
        try:
            return Path(snapshot_download(dataset, repo_type="dataset", local_files_only=True))
        except LocalEntryNotFoundError:
            continue
    usual = benchmark.datasets[0]
    raise ConfigError(
        f"{benchmark.title} is not in the Hugging Face cache; fetch it with 'hf download {usual} --repo-type dataset', or name "
        f"with --data a folder that has files such as {benchmark.layout}."
    )


def _in_groups(grouped: Sequence[tuple[int, tuple[str, ...]]], names: Sequence[str], benchmark: Benchmark) -> list[int]:
    """Numbers of the rows that are in one of the groups; a group can be named in full or by its last part."""
    if not names:
        return [number for number, _ in grouped]
    there = dict.fromkeys(group for _, groups in grouped for group in groups)
    wanted = set()
    for name in names:
        meant = [group for group in there if name in (group, group.split("/")[-1])]
        if not meant:
            known = ", ".join(group.split("/")[-1] for group in there)
            raise ConfigError(f"There is no {benchmark.words.group} {name!r}; there are {known}.")
        wanted |= set(meant)
    return [number for number, groups in grouped if wanted & set(groups)]
