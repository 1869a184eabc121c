"""The first lines of an engine process: `python -m sightline.engine.main ADDRESS PARENT FILE` (engine/link.py).

It is connected, and its heart beats, before torch is imported, which takes seconds.
"""

import signal
import sys
import warnings

from sightline.child_process import imports_advance
from sightline.engine.link import connected
from sightline.host_memory import keep_freed_memory


def main() -> int:
    # A Ctrl-C or a SIGTERM to the whole group is for the API process, which first lets requests finish and then says Stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what Pillow says of strangers' files would fill the log
    keep_freed_memory()
    with connected(sys.argv[1:]) as link:
        link.liveness.begin("load: imports")
        with imports_advance(link.liveness.touch):
            from sightline.engine.process import serve
        return serve(link)


if __name__ == "__main__":
    sys.exit(main())
