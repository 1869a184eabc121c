"""Workspaces: what they hand out lies apart, in their memory, and never beyond it."""

import pytest
import torch

from sightline.ops.workspace import Part, Workspace, bytes_for

PARTS: tuple[Part, ...] = ((torch.int32, (3,)), (torch.bfloat16, (5, 7)), (torch.float32, (2, 2)))


def test_parts_lie_apart_and_are_zero_at_first() -> None:
    """Red when two parts share memory, one is not aligned, or counters do not begin at zero."""
    workspace = Workspace("probe", bytes_for(*PARTS), torch.device("cpu"))
    views = workspace.take(*PARTS)
    assert [(view.dtype, tuple(view.shape)) for view in views] == list(PARTS)
    assert not any(view.any() for view in views)
    for number, view in enumerate(views):
        view.fill_(number + 1)
    assert all((view == number + 1).all() for number, view in enumerate(views))
    assert all((view.data_ptr() - views[0].data_ptr()) % 256 == 0 for view in views)


def test_the_same_parts_are_the_same_memory() -> None:
    """Red when a call gets other addresses than a graph of it was captured with, or a fresh view for what it had before."""
    workspace = Workspace("probe", 4096, torch.device("cpu"))
    first = workspace.take(*PARTS)
    other = workspace.take((torch.float32, (8,)))
    again = workspace.take(*PARTS)
    assert [view.data_ptr() for view in again] == [view.data_ptr() for view in first]
    assert other[0].data_ptr() == first[0].data_ptr()
    assert workspace.take(*PARTS)[0] is again[0]


def test_more_than_there_is_is_refused_by_name() -> None:
    """Red when a kernel could be handed memory that is not the workspace's."""
    workspace = Workspace("probe", bytes_for(*PARTS) - 1, torch.device("cpu"))
    with pytest.raises(AssertionError, match=r"768 bytes are asked of the workspace probe, which has 767"):
        workspace.take(*PARTS)
    assert workspace.nbytes == 767
