"""A slow way to the server: what still moves is not given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from echomq import ConnectionLost
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from tests.support.server import Server

PART, PAUSE = 64 * 1024, 0.02
SIZE = 4 * 1024 * 1024  # more than a second, at that pace


@pytest.fixture
async def slow(server: Server) -> AsyncIterator[tuple[Settings, asyncio.Event]]:
    """The server behind a way of some MB a second; with the event set nothing moves any more."""
    stuck = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PART):
            await asyncio.sleep(PAUSE)
            if stuck.is_set():
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(server.socket_path))
        try:
            both = [asyncio.create_task(carry(reader, far_writer)), asyncio.create_task(carry(far_reader, writer))]
            tasks.update(both)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            for end in (far_writer, writer):
                end.close()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    yield Settings.from_url(f"redis://127.0.0.1:{port}"), stuck
    proxy.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_large_reply_and_a_large_command_take_their_time(slow: tuple[Settings, asyncio.Event]) -> None:
    link = Link(slow[0], reply_timeout=0.3)
    try:
        value = b"x" * SIZE
        # What the kernel has taken from us moves unseen: that way has to be done within the time.
        assert await link.call("SET", "large", value, reply_timeout=10) == b"OK"
        assert await link.call("GET", "large") == value
    finally:
        await link.close()


async def test_what_stands_still_is_given_up(slow: tuple[Settings, asyncio.Event]) -> None:
    settings, stuck = slow
    link = Link(settings, reply_timeout=0.3)
    try:
        await link.call("SET", "large", b"x" * SIZE, reply_timeout=10)
        reading = asyncio.create_task(link.call("GET", "large"))
        await asyncio.sleep(0.5)
        stuck.set()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(reading, 10)
    finally:
        await link.close()
