"""Which payloads of a store the jobs of a server still mean."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, TypeAlias

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Patience, answered, opened, read_command
from echomq._store.names import Read, scan
from echomq.connection import Hub
from echomq.errors import EchoMQError, UnsupportedServer

_PLACE: Final = re.compile(rb"([0-9]{4}-[0-9]{2}-[0-9]{2})\\*/([0-9a-f]{32})")
"""A key of a store, as ``Offloaded`` makes it; JSON that a script has written has a backslash before the slash."""

_LEAST_BYTES: Final = len("2026-01-01/") + 32
_MOST_BYTES: Final = 1024 * 1024
"""That are read at once, where no single field has more."""

_AT_ONCE: Final = 100
_PAUSED: Final = b":paused-schedulers"
_OUTBOX: Final = "*:outbox"

_Field: TypeAlias = tuple[bytes, str]
"""A hash, and what is read of it."""


async def places_in_use(hub: Hub) -> set[str]:
    """The keys of a store that stand anywhere in jobs, schedules and outboxes, whatever their queues and prefixes.

    Raises:
        UnsupportedServer: it is a node of a cluster, of which the others are not seen.
        ServerUnavailable: it could not be asked.
    """
    patience = Patience(hub.wait, hub.look_after)
    link = await opened(lambda: hub.link(hash_tag=True), patience)
    if hub.is_cluster:
        raise UnsupportedServer(
            "payloads cannot be collected by way of a cluster: one node does not know the jobs of the others; let the store "
            "itself remove what is old"
        )

    async def read(*command: Argument) -> Reply:
        return await read_command(link, command, patience)

    async def read_many(commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        return await answered(link, lambda: _all(link, commands), patience)

    found: set[str] = set()
    async for keys in scan(read, "*", "TYPE", "hash"):
        for key in keys:
            if key.endswith(_PAUSED):
                found.update(_places(await read("HVALS", key)))
        fields = [(key, field) for key in keys for field in ("data", "returnvalue")]
        sizes = await read_many([("HSTRLEN", *field) for field in fields])
        for some in _portions(fields, sizes):
            found.update(_places(await read_many([("HGET", *field) for field in some])))
    async for keys in scan(read, _OUTBOX, "TYPE", "stream"):
        for key in keys:
            async for entries in _entries(read, key):
                found.update(_places(entries))
    return found


async def _all(link: Link, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
    """What is answered to each; the first error is raised."""
    replies: list[Reply] = []
    for reply in await link.call_many(commands):
        if isinstance(reply, EchoMQError):
            raise reply
        replies.append(reply)
    return replies


def _portions(fields: Sequence[_Field], sizes: Sequence[Reply]) -> Iterator[list[_Field]]:
    """As many fields as are read at once, and again, without those that are too small to have a place in them."""
    some: list[_Field] = []
    left = _MOST_BYTES
    for field, size in zip(fields, sizes, strict=True):
        assert isinstance(size, int)
        if size < _LEAST_BYTES:
            continue
        if some and size > left:
            yield some
            some, left = [], _MOST_BYTES
        some.append(field)
        left -= size
    if some:
        yield some


async def _entries(read: Read, stream: bytes) -> AsyncIterator[Reply]:
    """Some entries of a stream after the other."""
    start = b"-"
    while isinstance(entries := await read("XRANGE", stream, start, "+", "COUNT", str(_AT_ONCE)), list) and entries:
        yield entries
        last = entries[-1]
        assert isinstance(last, list)
        assert isinstance(last[0], bytes)
        start = b"(" + last[0]


def _places(reply: Reply) -> Iterator[str]:
    if isinstance(reply, bytes):
        for day, name in _PLACE.findall(reply):
            yield f"{day.decode()}/{name.decode()}"
    elif isinstance(reply, list):
        for part in reply:
            yield from _places(part)
