"""A checkpoint's weight files: one model.safetensors, or shards named by model.safetensors.index.json."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sightline.errors import CheckpointError
from sightline.json_files import read_json
from sightline.models.expert_layout import INDEX_FILE, SINGLE_FILE
from sightline.models.weight_table import canonical_name, is_derived
from sightline.models.weights.boxes import Box, whole


class Checkpoint:
    """Tensors by canonical name, read from disk only when asked for."""

    def __init__(self, handles: dict[Path, Any]) -> None:
        self._locations: dict[str, tuple[Path, str]] = {}
        self._handles = handles
        for path, handle in handles.items():
            for stored in handle.keys():  # noqa: SIM118  (not a dict: safe_open has no iterator)
                name = canonical_name(stored)
                if is_derived(name):
                    continue
                if name in self._locations:
                    other = self._locations[name][0].name
                    raise CheckpointError(f"Tensor '{stored}' stands twice in the checkpoint, in {other} and in {path.name}.")
                self._locations[name] = (path, stored)

    def names(self) -> set[str]:
        return set(self._locations)

    def stored_name(self, name: str) -> str:
        return self._locations[name][1]

    def shape(self, name: str) -> tuple[int, ...]:
        path, stored = self._locations[name]
        return tuple(self._handles[path].get_slice(stored).get_shape())

    def dtype(self, name: str) -> str:
        """As safetensors names it: BF16, F8_E4M3, …"""
        path, stored = self._locations[name]
        return str(self._handles[path].get_slice(stored).get_dtype())

    def read(self, name: str, box: Box | None = None) -> torch.Tensor:
        """The tensor, or a box of it: a view of the mapped file, so that the rest is never read from disk."""
        path, stored = self._locations[name]
        try:
            handle = self._handles[path]
            if box is None or box == whole(self.shape(name)):
                tensor: torch.Tensor = handle.get_tensor(stored)
            else:
                tensor = handle.get_slice(stored)[tuple(slice(start, stop) for start, stop in box)]
        except SafetensorError as error:
            raise CheckpointError(f"Tensor '{stored}' cannot be read from {path}: {error}.") from None
        return tensor


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX_FILE).exists():
        index = read_json(folder / INDEX_FILE)
        names = index.get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{folder / INDEX_FILE} has no 'weight_map' with tensors.")
        if any(not isinstance(name, str) or "/" in name or "\\" in name for name in names.values()):
            raise CheckpointError(f"{folder / INDEX_FILE} names a file outside the checkpoint folder.")
        return [folder / name for name in sorted(set(names.values()))]
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    other = next((p.name for p in sorted(folder.glob("*")) if p.suffix in (".bin", ".pt", ".pth")), None)
    hint = f" ('{other}' is a pickle, which is refused)" if other else ""
    raise CheckpointError(f"{folder} has no {SINGLE_FILE} and no {INDEX_FILE}{hint}.")


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[Checkpoint]:
    with ExitStack() as stack:
        handles: dict[Path, Any] = {}
        for path in _weight_files(folder):
            try:
                handles[path] = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
            except FileNotFoundError:
                raise CheckpointError(f"Weight file {path} is named in {INDEX_FILE} but does not exist.") from None
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"Weight file {path} is damaged or cut short: {error}.") from None
        yield Checkpoint(handles)
