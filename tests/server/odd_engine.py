"""An engine process that behaves as told, and answers at once but for that: `python odd_engine.py BEHAVIOUR FILE …`.

What FILE is for, each behaviour says. The other arguments are those of every engine process.
"""

import ctypes
import sys
import threading
from pathlib import Path

from sightline.bench.instant_engine import InstantEngine, serve
from sightline.engine.file_cache import FileCache
from sightline.engine.link import Link, connected
from sightline.engine.messages import MemoryReport, Ready, encode

READY = Ready("none", "none", 1 << 20, MemoryReport(0, 0, 0, 0, 0, 0), {})


def well(link: Link, file: Path) -> int:
    return serve(link, 0.02)


def load_stalls(link: Link, file: Path) -> int:
    """For ever."""
    link.liveness.begin("load: weights")
    threading.Event().wait()
    return 1


def load_advances(link: Link, file: Path) -> int:
    """A little at a time, until FILE is there."""
    link.liveness.begin("load: weights")
    while not file.exists():
        link.liveness.touch()
        threading.Event().wait(0.05)
    return serve(link, 0.0)


def load_keeps_the_lock(link: Link, file: Path) -> int:
    """No other thread of this process runs any more, that of the heartbeat included. FILE says that it is so."""
    link.liveness.begin("load: weights")
    file.touch()
    ctypes.PyDLL(None).sleep(600)
    return 1


def step_never_returns(link: Link, file: Path) -> int:
    """The first step of the first process; FILE says that there has been one."""
    if file.exists():
        return serve(link, 0.0)
    link.receive_start()
    link.commands.send(encode(READY))
    engine = InstantEngine(link.commands, FileCache(0))
    while not engine.has_work:
        link.liveness.idle()
        link.commands.poll()
        engine.take_commands()
    file.touch()
    link.liveness.begin("step")
    threading.Event().wait()
    return 1


def decodes_for_long(link: Link, file: Path) -> int:
    """The loop goes round, but no request can be in a step before FILE is there."""
    link.receive_start()
    link.commands.send(encode(READY))
    engine = InstantEngine(link.commands, FileCache(0))
    while True:
        link.liveness.idle()
        link.commands.poll(20)
        link.liveness.begin("step")
        if not engine.take_commands():
            return 0
        if engine.has_work and file.exists():
            engine.step()


BEHAVIOURS = (well, load_stalls, load_advances, load_keeps_the_lock, step_never_returns, decodes_for_long)

if __name__ == "__main__":
    chosen, marker, *link_arguments = sys.argv[1:]
    with connected(link_arguments) as own_link:
        sys.exit({behaviour.__name__: behaviour for behaviour in BEHAVIOURS}[chosen](own_link, Path(marker)))
