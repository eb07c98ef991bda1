"""The one read of all logs takes up each log that comes, whatever the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.keys import QueueKeys
from echomq._store.streams import Entry, Streams
from echomq.connection import Connection, Hub
from echomq.errors import EchoMQError
from tests.support.server import Server


class Listener:
    """A follower that only notes that it is told from now on."""

    def __init__(self) -> None:
        self.is_told = asyncio.Event()

    def joined(self) -> None:
        self.is_told.set()

    def happened(self, entries: Sequence[Entry]) -> None: ...

    def missed(self, after: bytes, until: bytes | None) -> None: ...

    def failed(self, error: EchoMQError) -> None: ...


@pytest.fixture
async def hub(server: Server) -> AsyncIterator[Hub]:
    async with Connection(server.url) as connection:
        yield connection.acquire()


async def follow(streams: Streams, name: str) -> Listener:
    listener = Listener()
    streams.follow(QueueKeys.of(name), listener)
    return listener


async def told(listener: Listener) -> None:
    """Well within the ten seconds for which a read is blocked."""
    await asyncio.wait_for(listener.is_told.wait(), 4)


async def test_one_that_comes_while_another_wakes_the_read(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, held, asked = Streams.of(hub), asyncio.Event(), asyncio.Event()
    await told(await follow(streams, "first"))
    call = Link.call

    async def late(self: Link, *words: Argument, reply_timeout: float | None = None) -> Reply:
        reply = await call(self, *words, reply_timeout=reply_timeout)
        if words[:2] == ("CLIENT", "UNBLOCK"):  # done on the server, but its answer takes long
            asked.set()
            await held.wait()
        return reply

    monkeypatch.setattr(Link, "call", late)
    second = await follow(streams, "second")
    await told(second)  # the read has begun anew, with it
    assert asked.is_set()
    third = await follow(streams, "third")
    held.set()
    await told(third)


async def test_many_that_come_at_any_moment(hub: Hub) -> None:
    streams = Streams.of(hub)

    async def one(number: int) -> None:
        await asyncio.sleep(number * 0.0007)
        await told(await follow(streams, f"q{number}"))

    await asyncio.gather(*(one(number) for number in range(200)))
