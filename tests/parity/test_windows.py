"""Qwen2.5-VL's windows, whole and cut at the edges. Red when window order, boundaries or their inverse change."""

from pathlib import Path

import pytest

from parity.conversations import WINDOW_GRIDS, window_conversation
from parity.subject import DEVICES, both, check_ids_and_positions, check_rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "columns"), WINDOW_GRIDS)
def test_window_edges(tiny_checkpoints: dict[str, Path], device: str, rows: int, columns: int) -> None:
    reference, ours = both(tiny_checkpoints, "qwen2.5-vl", device)
    inputs, request = check_ids_and_positions(reference, ours, window_conversation(rows, columns))
    assert request.items[0].grid == (1, 2 * rows, 2 * columns)
    check_rows(reference, ours, inputs, request)
