"""One engine process with what belongs to it: sockets for its commands and its heartbeats, and a private folder."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from sightline.child_process import name_of_socket_folder
from sightline.server.engine_socket import EngineSocket
from sightline.server.gpus import VARIABLE
from sightline.server.heartbeats import Heartbeats


@dataclass(frozen=True)
class EngineProcess:
    process: asyncio.subprocess.Process
    socket: EngineSocket
    heartbeats: Heartbeats


@contextlib.asynccontextmanager
async def engine_process(
    command: Sequence[str], timeout_s: float, on_message: Callable[..., None], gpus: str | None = None
) -> AsyncIterator[EngineProcess]:
    """Started at the beginning; at the end it is gone, by force if need be, with all that belongs to it. `gpus`: those that it
    may see; None: all that this process sees.

    The process inherits no folder but its name: if this process is killed, whatever exists by then has somebody to remove it
    (engine/link.py).
    """
    folder = name_of_socket_folder()
    address = f"ipc://{folder}/engine"
    async with contextlib.AsyncExitStack() as stack:
        heartbeats = Heartbeats(timeout_s)
        stack.callback(heartbeats.close)
        # Standard output is the request log's; whatever a library prints goes to standard error.
        process = await asyncio.create_subprocess_exec(
            *command,
            *(address, str(os.getpid()), str(heartbeats.file)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=2,
            pass_fds=(heartbeats.file,),
            env=None if gpus is None else {**os.environ, VARIABLE: gpus},
        )
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.push_async_callback(_end, process)
        heartbeats.handed_over()
        folder.mkdir(mode=0o700)
        socket = EngineSocket(address, on_message)
        stack.callback(socket.close)
        yield EngineProcess(process, socket, heartbeats)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
