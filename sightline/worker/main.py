"""The first lines of a worker process: `python -m sightline.worker.main ADDRESS PARENT`; engine/process_executor.py starts it.

It is connected, and tied to its engine, before torch is imported, which takes seconds.
"""

import signal
import sys

from sightline.child_process import connection_to_parent, end_as_orphan, folder_of, watch_parent
from sightline.host_memory import keep_freed_memory


def main() -> int:
    address, parent = sys.argv[1], int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM):  # for the process that started the engine
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()
    watch_parent(parent, lambda: end_as_orphan(folder_of(address)))
    with connection_to_parent(address, parent) as socket:
        from sightline.worker.process import serve

        return serve(socket, parent)


if __name__ == "__main__":
    sys.exit(main())
