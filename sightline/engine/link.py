"""What ties an engine process to the API process that started it: its commands, its heartbeat, and its end.

The arguments of an engine process are the address of the commands' socket, the API process's pid, and the number of the file
that heartbeats go to. An engine never outlives its API process, and leaves nothing behind (child_process.py); until it is
connected, the heartbeat's thread sees to that.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import zmq

from sightline.child_process import connection_to_parent, end_as_orphan, folder_of
from sightline.engine.liveness import Liveness, start_heartbeat
from sightline.engine.messages import Start, decode_command


@dataclass(frozen=True)
class Link:
    commands: "zmq.SyncSocket"
    liveness: Liveness

    def receive_start(self) -> Start:
        """The first message. It may come late: the API process is busy with its own start."""
        self.liveness.idle()
        first = decode_command(self.commands.recv())
        assert isinstance(first, Start)
        return first


@contextlib.contextmanager
def connected(arguments: Sequence[str]) -> Iterator[Link]:
    """`arguments` are the last three of the command line."""
    address, parent, file = arguments[0], int(arguments[1]), int(arguments[2])
    liveness = Liveness("connecting")
    os.set_inheritable(file, False)
    start_heartbeat(liveness, socket.socket(fileno=file), parent, lambda: end_as_orphan(folder_of(address)))
    with connection_to_parent(address, parent) as commands:
        yield Link(commands, liveness)
