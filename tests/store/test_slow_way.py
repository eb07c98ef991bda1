"""A slow way to the server: what still moves is not given up, what stands still is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from echomq import Connection, ConnectionLost, Job, Queue, Worker
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from tests.support.server import Server
from tests.support.wait import wait_until

PART, PAUSE = 64 * 1024, 0.02
SIZE = 4 * 1024 * 1024  # more than a second, at that pace
TIMEOUT = 0.4


class Way:
    """A way of some MB a second.

    Attributes:
        url: where clients find it.
        stuck: once it is set nothing moves any more.
        pause: seconds after each part of 64 KiB.
        mute: what is sent on a connection from these bytes on is kept from the server.
        carried: bytes in both directions so far.
    """

    def __init__(self) -> None:
        self.url = ""
        self.stuck = asyncio.Event()
        self.pause = PAUSE
        self.mute: bytes | None = None
        self.carried = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(PART):
                await asyncio.sleep(self.pause)
                if self.stuck.is_set() or (self.mute is not None and self.mute in data):
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()
                self.carried += len(data)


@asynccontextmanager
async def a_slow_way(open_far_side: Callable[[], Any], path: Path | None = None) -> AsyncIterator[Way]:
    """To what ``open_far_side`` opens; from a port, or from a unix socket at ``path``."""
    way = Way()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await open_far_side()
        both = [asyncio.create_task(way.carry(reader, far_writer)), asyncio.create_task(way.carry(far_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            for end in (far_writer, writer):
                end.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.get_running_loop().create_task(serve(reader, writer)))

    if path is not None:
        proxy = await asyncio.start_unix_server(accept, path)
        way.url = f"unix://{path}"
    else:
        listening = socket.socket()
        # So that little lies unseen on this side, which stands for a server at the end of a long way.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PART)
        listening.bind(("127.0.0.1", 0))
        proxy = await asyncio.start_server(accept, sock=listening)
        way.url = f"redis://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield way
    finally:
        proxy.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


@pytest.fixture
async def way(server: Server) -> AsyncIterator[Way]:
    async with a_slow_way(lambda: asyncio.open_unix_connection(str(server.socket_path))) as way:
        yield way


async def there_and_back(url: str) -> None:
    link = Link(Settings.from_url(url), reply_timeout=TIMEOUT)
    try:
        value = b"x" * SIZE
        assert await link.call("SET", "large", value) == b"OK"
        assert await link.call("GET", "large") == value
    finally:
        await link.close()


async def test_a_large_command_and_a_large_reply_take_their_time(way: Way) -> None:
    await there_and_back(way.url)


async def test_they_do_on_a_unix_socket(server: Server, tmp_path: Path) -> None:
    open_far_side = lambda: asyncio.open_unix_connection(str(server.socket_path))  # noqa: E731
    async with a_slow_way(open_far_side, tmp_path / "slow") as way:
        await there_and_back(way.url)


async def test_they_do_behind_tls(tls_url: str) -> None:
    port = Settings.from_url(tls_url).port
    async with a_slow_way(lambda: asyncio.open_connection("127.0.0.1", port)) as way:
        await there_and_back(way.url.replace("redis://", "rediss://") + "?ssl_cert_reqs=none")


def test_they_do_on_uvloop(server: Server) -> None:
    async def main() -> None:
        async with a_slow_way(lambda: asyncio.open_unix_connection(str(server.socket_path))) as way:
            await there_and_back(way.url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_large_result_arrives(server: Server, way: Way) -> None:
    size = 40_000_000
    way.pause = 0.005  # some 10 MB a second

    async def process(job: Job[Any]) -> Any:
        return "r" * size if job.name == "large" else None

    async with Queue("slow", connection=server.url) as queue:
        connection = Connection(way.url, call_timeout=1.5)
        async with Worker(queue.name, process, connection=connection, max_bytes=None):
            await (await queue.add("small")).result(timeout=10)  # from now on the server knows the script
            job = await queue.add("large")
            assert len(str(await job.result(timeout=60))) == size
        assert way.carried < 1.5 * size  # it was sent once
        await connection.close()


async def test_a_large_result_outlives_a_silent_blocking_connection(
    server: Server, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full way it may be silent for want of room: what moves is not dropped with it."""
    monkeypatch.setattr("echomq._worker.pump.LONGEST_BLOCK", 0.2)
    size = 3 * SIZE  # four seconds: the other falls silent twice in that time

    async def process(job: Job[Any]) -> Any:
        return "r" * size if job.name == "large" else None

    async with Queue("slow", connection=server.url) as queue:
        connection = Connection(way.url, call_timeout=1.5)
        async with Worker(queue.name, process, connection=connection, concurrency=4):
            await (await queue.add("small")).result(timeout=10)
            job = await queue.add("large")
            await wait_until(lambda: server.cli("LLEN", "emq:{slow}:active") == 1)
            way.mute = b"BZPOPMIN"
            assert len(str(await job.result(timeout=60))) == size
            assert way.carried < 1.5 * size
            way.mute = None
        await connection.close()


async def test_a_large_reply_that_stands_still_is_given_up(way: Way) -> None:
    link = Link(Settings.from_url(way.url), reply_timeout=TIMEOUT)
    try:
        await link.call("SET", "large", b"x" * SIZE)
        reading = asyncio.create_task(link.call("GET", "large"))
        await asyncio.sleep(0.5)
        way.stuck.set()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(reading, 10)
    finally:
        await link.close()


async def test_a_large_command_that_stands_still_is_given_up(way: Way) -> None:
    link = Link(Settings.from_url(way.url), reply_timeout=TIMEOUT)
    try:
        writing = asyncio.create_task(link.call("SET", "large", b"x" * SIZE))
        await asyncio.sleep(0.5)
        way.stuck.set()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(writing, 10)
    finally:
        await link.close()


async def test_small_commands_do_not_keep_what_has_fallen_silent(server: Server) -> None:
    """The kernel of a server that stands still goes on taking them, after a large command as after none."""
    link = Link(Settings.from_url(server.tcp_url), reply_timeout=TIMEOUT)
    try:
        await link.connect()
        server.pause()
        large = asyncio.create_task(link.call("SET", "large", b"x" * SIZE))
        began = asyncio.get_running_loop().time()
        small = []
        while not large.done():
            small.append(asyncio.create_task(link.call("PING")))
            await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() - began < 10
        assert isinstance(large.exception(), ConnectionLost)
        for one in small:
            one.cancel()
        await asyncio.gather(*small, return_exceptions=True)
    finally:
        server.resume()
        await link.close()
