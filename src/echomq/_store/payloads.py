"""Which payloads of a store the jobs of a server still mean."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Final

from echomq._redis.wire import Argument, Reply
from echomq._store.call import Patience, opened, read_command
from echomq._store.names import Read, scan
from echomq.connection import Hub
from echomq.errors import UnsupportedServer

_PLACE: Final = re.compile(rb"([0-9]{4}-[0-9]{2}-[0-9]{2})\\*/([0-9a-f]{32})")
"""A key of a store, as ``Offloaded`` makes it; JSON that a script has written has a backslash before the slash."""

_AT_ONCE: Final = 100
_PAUSED: Final = b":paused-schedulers"
_OUTBOX: Final = "*:outbox"


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

    found: set[str] = set()
    async for keys in scan(read, "*", "TYPE", "hash"):
        for key in keys:
            asked = ("HVALS", key) if key.endswith(_PAUSED) else ("HMGET", key, "data", "returnvalue")
            found.update(_places(await read(*asked)))
    async for keys in scan(read, _OUTBOX, "TYPE", "stream"):
        for key in keys:
            async for entries in _entries(read, key):
                found.update(_places(entries))
    return found


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
