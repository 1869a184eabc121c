"""From patches of items to those of their views, and from the tower's rows of views to the rows of items."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.models.tower import Tower
from sightline.ops.transfer import send
from sightline.spec import ProcessorSpec
from sightline.types import EmbeddingsHeader, MediaItem, MediaRef


def split_views(item: MediaItem, patches: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[patches, features] of an item to those of each of its views."""
    views: tuple[torch.Tensor, ...] = patches.split([math.prod(grid) for grid in item.grids])
    return views


def repeat_frames(
    rows: torch.Tensor, items: Sequence[MediaItem], groups: Sequence[tuple[int, ...]], tower: Tower
) -> torch.Tensor:
    """The tower's rows of all temporal patches, from those that differ, which `items` are: `groups` as in EncodeItem."""
    if not any(groups):
        return rows
    index, first = [], 0
    for item, places in zip(items, groups, strict=True):
        for frames, height, width in item.grids:
            count = tower.num_rows((1, height, width))
            own = np.arange(first, first + frames * count)
            index.append(own.reshape(frames, count)[list(places)].reshape(-1) if places else own)
            first += frames * count
    return rows.index_select(0, send(np.concatenate(index), rows.device))


def arrange_embeddings(rows: torch.Tensor, items: Sequence[MediaItem], processor: ProcessorSpec, tower: Tower) -> torch.Tensor:
    """Rows of the items' views, one item after another, in the order that the family gives them: ProcessorSpec.arrange."""
    orders = [processor.arrange(item) for item in items]
    if all(order is None for order in orders):
        return rows
    learned = tower.learned_embeddings
    index, first = [], 0
    for item, order in zip(items, orders, strict=True):
        made = sum(tower.num_rows(grid) for grid in item.grids)
        own = np.arange(made) if order is None else order
        _check(own, item, made, 0 if learned is None else len(learned))
        index.append(np.where(own >= 0, own + first, len(rows) - 1 - own))
        first += made
    assert first == len(rows), f"the tower made {len(rows)} rows where it promised {first}"
    return gather_embeddings(rows, learned, np.concatenate(index))


def given_rows(ref: MediaRef, device: torch.device) -> torch.Tensor:
    """Embeddings that came as such, [rows, embedding_width] in their own dtype."""
    header = ref.header
    assert isinstance(header, EmbeddingsHeader)
    rows = torch.empty(header.shape, dtype=getattr(torch, header.dtype), pin_memory=device.type == "cuda")
    rows.flatten().view(torch.uint8).numpy()[:] = np.frombuffer(ref.data, np.uint8)
    return rows.to(device, non_blocking=True)


def gather_embeddings(rows: torch.Tensor, learned: torch.Tensor | None, index: NDArray[np.int64]) -> torch.Tensor:
    """Rows by their numbers; learned ones are numbered after the others."""
    table = rows if learned is None else torch.cat((rows, learned.to(rows.dtype)))
    return table.index_select(0, send(index, rows.device))


def _check(order: NDArray[np.int64], item: MediaItem, made: int, learned: int) -> None:
    """On a GPU an index out of range would end the process."""
    if order.shape != (item.rows,):
        raise ValueError(f"{item.ref.source} has {item.rows} rows, but its family arranges {list(order.shape)}.")
    if len(order) and not (-learned <= order.min() and order.max() < made):
        raise ValueError(
            f"{item.ref.source} has {made} rows of its views and {learned} learned ones, but its family arranges rows "
            f"{order.min()} to {order.max()}."
        )
