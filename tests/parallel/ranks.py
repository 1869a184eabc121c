"""Runs a function on several ranks: processes that talk over gloo.

They are forked from a small process with the modules loaded, not from this one: a process of tests has had many threads, whose
locks a fork would copy, and gigabytes that the machine may not promise twice.
"""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from sightline.parallel.group import Group
from sightline.parallel.rank_info import RankInfo

LOADED = ["pytest", "torch.distributed", "sightline.encoder.vision_parallel", "sightline.models.load", "sightline.models.files"]


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(group, *arguments) on each of `size` ranks; what they return, in order. An error of one of them is raised."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            info = RankInfo(rank, size, f"{folder}/meeting")
            process = context.Process(target=_run, args=(info, theirs, function, arguments), daemon=True)
            process.start()
            theirs.close()
            ends.append(mine)
            processes.append(process)
        found = [_received(end) for end in ends]
        for process in processes:
            process.join(30)
    for kind, value in found:
        assert kind == "done", value
    return [value for _, value in found]


def _received(end: Connection) -> tuple[str, Any]:
    try:
        kind, value = end.recv()
        return kind, value
    except EOFError:
        return "died", "a rank died without a word"


def _run(info: RankInfo, end: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        group = Group.join(info, torch.device("cpu"))
        end.send(("done", function(group, *arguments)))
        group.leave()
    except BaseException:
        end.send(("failed", traceback.format_exc()))
