"""What a person sees at the start: the progress of loading, where the memory goes, where to ask."""

import logging
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sightline.engine import messages


class StartupLog:
    """Writes to standard error what is of this level or above: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, level: int = logging.INFO) -> None:
        self._level = level
        self.console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
        self._bar: Progress | None = None
        self._quarter = -1

    @property
    def is_terminal(self) -> bool:
        return self.console.is_terminal

    def say(self, text: str, level: int = logging.INFO) -> None:
        if level >= self._level:
            self.console.print(text, markup=False)

    def progress(self, report: messages.LoadProgress) -> None:
        if self._level > logging.INFO:
            return
        if self.console.is_terminal:
            if self._bar is None:
                columns = (TextColumn("weights"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
                self._bar = Progress(*columns, console=self.console, transient=True)
                self._bar.start()
                self._bar.add_task("weights", total=report.total)
            self._bar.update(self._bar.task_ids[0], completed=report.done)
        elif 4 * report.done // report.total > self._quarter:
            self._quarter = 4 * report.done // report.total
            self.say(f"Loading weights: {report.done} of {report.total} parameters.")

    def end_progress(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._quarter = None, -1

    def ready(self, report: messages.Ready) -> None:
        self.end_progress()
        if self._level > logging.INFO:
            return
        memory = report.memory
        table = Table("memory", "", "room for", box=None, pad_edge=False)
        table.add_row(
            "weights", _size(memory.weights), report.dtype + (f"; {report.quantization}" if report.quantization else "")
        )
        table.add_row("keys and values", _size(memory.kv_cache), f"{memory.kv_tokens:,} tokens")
        table.add_row("embedding rows", _size(memory.embeddings), f"{memory.embedding_rows:,} rows of images and videos")
        if memory.states:
            table.add_row("states", _size(memory.states), f"running sequences and {memory.state_snapshots:,} snapshots")
        if memory.total:
            table.add_row("steps, language", _size(memory.language), "at the configured limits, with sampling and workspaces")
            table.add_row("steps, vision", _size(memory.vision), "the tower, and pixels on their way to it")
            table.add_row("CUDA graphs", _size(memory.graphs), "")
            table.add_row("others", _size(memory.others), "CUDA itself, libraries, other processes")
            table.add_row("margin", _size(memory.margin), "")
            table.add_row("left alone", _size(memory.unplanned), f"of the GPU's {_size(memory.total)}")
        if memory.host_embeddings:
            table.add_row("rows on the host", _size(memory.host_embeddings), "rows that fell out of the above")
        self.console.print(table)
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in report.load_stages.items())
        self.say(
            f"The model is ready on {report.device} after {sum(report.load_stages.values()):.1f} s ({stages}); "
            f"prompt and answer may have {report.max_model_len:,} tokens."
        )
        if report.gpu_decoder:
            self.say(f"Files that the GPU decodes, by {report.gpu_decoder}: {'; '.join(report.gpu_kinds)}.")


def _size(count: int) -> str:
    return f"{count / 1024**3:.2f} GiB" if count >= 1024**3 else f"{count / 1024**2:.1f} MiB"
