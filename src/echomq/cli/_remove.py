"""Removing a queue that a command made for itself."""

from __future__ import annotations

from echomq._redis.client import Link
from echomq._store.keys import QueueKeys
from echomq.errors import ServerError


async def remove_queue(link: Link, keys: QueueKeys) -> None:
    """Removes every key of the queue, some at a time."""
    for base in (keys.base, keys.own_base):
        cursor = b"0"
        while True:
            match await link.call("SCAN", cursor, "MATCH", base + "*", "COUNT", 1000):
                case [bytes() as cursor, list() as found]:
                    pass
                case reply:
                    raise ServerError(f"SCAN was answered with {reply!r}")
            if found:
                await link.call("UNLINK", *(key for key in found if isinstance(key, bytes)))
            if cursor == b"0":
                break
