"""Asks /health until its standard input closes: `python health_poller.py PORT PID`. A process of its own, so that it waits for
nobody else's work in Python.

Prints, as JSON, for each question: how many seconds the answer took, and for how many of them the server's threads or this
process were ready to run but had no processor. The second number is the machine's fault, not the server's.
"""

import contextlib
import json
import select
import socket
import sys
import time
from pathlib import Path

EVERY_S = 0.02
_QUESTION = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def waited_s(pid: int) -> float:
    """How long all threads of a process, and this one, have waited for a processor so far."""
    nanoseconds = int(Path("/proc/self/schedstat").read_text().split()[1])
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            nanoseconds += int((thread / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def ask(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(_QUESTION)
        answer = b""
        while part := client.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 OK"), answer


def main() -> None:
    port, pid = int(sys.argv[1]), int(sys.argv[2])
    found: list[tuple[float, float]] = []
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        waited, begun = waited_s(pid), time.perf_counter()
        ask(port)
        seconds = time.perf_counter() - begun
        found.append((seconds, max(0.0, waited_s(pid) - waited)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
