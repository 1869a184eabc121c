"""`sightline serve` with a resolver of its own: `python names_server.py [flags of serve]`.

It never answers for names that begin with "never", and has all others under .example on loopback.
"""

import socket
import sys
import threading
from typing import Any

from sightline.cli.main import main

_real = socket.getaddrinfo


def getaddrinfo(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
    if isinstance(host, str) and host.startswith("never"):
        threading.Event().wait()
    if isinstance(host, str) and host.endswith(".example"):
        host = "127.0.0.1"
    return _real(host, port, *arguments, **named)


socket.getaddrinfo = getaddrinfo

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
