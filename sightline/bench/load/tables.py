"""Tables of numbers in plain text."""

from collections.abc import Sequence

Cell = str | int | float | None


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The first column to the left, the others to the right. What is not known is a dash."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(line[index]) for line in [list(headings), *texts]) for index in range(len(headings))]
    return "\n".join(_line(line, widths) for line in [list(headings), *texts])


def ratio(value: float | None, base: float | None) -> str:
    """How many times the base."""
    return f"{value / base:.2f}x" if value is not None and base else "-"


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        digits = 0 if abs(cell) >= 10_000 else 1 if abs(cell) >= 100 else 2
        return f"{cell:,.{digits}f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    padded = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
    return "  ".join([f"{first:<{widths[0]}}", *padded]).rstrip()
