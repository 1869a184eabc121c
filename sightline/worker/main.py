"""The first lines of a worker process: `python -m sightline.worker.main ADDRESS PARENT [ENGINE]`.

engine/process_executor.py starts it, or engine/launched.py for an engine that is not its parent. It is connected, and
tied to its parent, before torch is imported, which takes seconds.
"""

import signal
import sys
import time
from collections.abc import Callable

import zmq

from sightline.child_process import connection_to_parent, end_as_orphan, folder_of, imports_advance, watch_parent
from sightline.host_memory import keep_freed_memory
from sightline.wire import to_frames
from sightline.worker.messages import Advanced

_TELL_S = 0.25


def main() -> int:
    address, parent = sys.argv[1], int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # for the process that started the engine
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()
    watch_parent(parent, lambda: end_as_orphan(folder_of(address)))
    with connection_to_parent(address, parent) as socket:
        with imports_advance(_teller(socket)):
            from sightline.worker.process import serve

        return serve(socket, int(sys.argv[3]) if len(sys.argv) > 3 else parent)


def _teller(socket: "zmq.SyncSocket") -> Callable[[], None]:
    """Says that something advances, now and then."""
    told, frames = 0.0, to_frames(Advanced(0, 0))

    def tell() -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            socket.send_multipart(frames)

    return tell


if __name__ == "__main__":
    sys.exit(main())
