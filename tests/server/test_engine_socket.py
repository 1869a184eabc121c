"""The socket to an engine process: nothing is lost before there is a process, nothing waits for the next message."""

import asyncio
from pathlib import Path

import zmq

from sightline.server.engine_socket import EngineSocket


async def until(heard: list[bytes], count: int) -> None:
    async with asyncio.timeout(60):
        while len(heard) < count:
            await asyncio.sleep(0.005)


# Red if a message sent before the engine has connected is dropped or refused, or if messages change places.
def test_messages_wait_for_a_process(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        address, heard = f"ipc://{tmp_path}/engine", []
        own = EngineSocket(address, heard.append)
        for number in range(3):
            own.send([b"%d" % number, bytes(100_000)])
        await asyncio.sleep(0.05)
        with zmq.Context() as context, context.socket(zmq.PAIR) as engine:
            engine.connect(address)
            await asyncio.sleep(0)

            def echo() -> None:
                for _ in range(4):
                    head, body = engine.recv_multipart()
                    engine.send(head + b" %d" % len(body))

            answered = asyncio.get_running_loop().run_in_executor(None, echo)
            await until(heard, 3)
            own.send([b"3", b""])
            await until(heard, 4)
            await answered
            own.close()
        return heard

    assert asyncio.run(run()) == [b"0 100000", b"1 100000", b"2 100000", b"3 0"]


# Red if the socket's file, which tells of a change once, is believed to tell of each message; and if sending swallows that.
def test_bursts_are_heard_to_the_end(tmp_path: Path) -> None:
    async def run() -> int:
        address, heard = f"ipc://{tmp_path}/engine", []
        own = EngineSocket(address, heard.append)
        with zmq.Context() as context, context.socket(zmq.PAIR) as engine:
            engine.setsockopt(zmq.SNDHWM, 0)
            engine.connect(address)
            for turn in range(20):
                for _ in range(100):
                    engine.send(b"news")
                own.send([b"a command in between"])
                await until(heard, 100 * (turn + 1))
            own.close()
        return len(heard)

    assert asyncio.run(run()) == 2000


# Red if one message that cannot be taken in makes the server deaf.
def test_a_bad_message_does_not_end_the_hearing(tmp_path: Path) -> None:
    async def run() -> list[bytes]:
        heard: list[bytes] = []

        def take(message: bytes) -> None:
            if message == b"bad":
                raise ValueError(message)
            heard.append(message)

        address = f"ipc://{tmp_path}/engine"
        own = EngineSocket(address, take)
        with zmq.Context() as context, context.socket(zmq.PAIR) as engine:
            engine.connect(address)
            for message in (b"good", b"bad", b"better"):
                engine.send(message)
            await until(heard, 2)
            own.close()
        return heard

    assert asyncio.run(run()) == [b"good", b"better"]
