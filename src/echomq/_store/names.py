"""What stands on the server below a queue's base: the names are read in bounded steps, and told apart by what they look like."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from echomq._redis.wire import Reply
from echomq._store.keys import THEIRS, QueueKeys, literal

Read: TypeAlias = Callable[..., Awaitable[Reply]]
"""Sends one command that changes nothing."""

PAGE: Final = 1000

PARTS: Final = (b"lock", b"logs", b"dependencies", b"processed", b"failed", b"unsuccessful")
"""What a job has beside its hash, each under ``<id>:<part>`` (protocol 1.1)."""

_KNOWN: Final = frozenset(name.encode() for name in THEIRS)
_BESIDE_JOBS: Final = (b"de:", b"dn:", b"metrics:")
_ITERATION: Final = re.compile(rb"repeat:.*:\d+", re.DOTALL)
_PART: Final = re.compile(rb"(.+):(?:%s)" % b"|".join(PARTS), re.DOTALL)
_AT_ONCE: Final = 100


def wire(name: str) -> bytes:
    """A name as it stands on the server."""
    return name.encode("utf-8", "surrogateescape")


def pattern(start: str) -> str:
    """What SCAN is to match for the names that begin so."""
    return literal(start) + "*"


async def scan(read: Read, matching: str, *more: str, count: int = PAGE) -> AsyncIterator[list[bytes]]:
    """The names of all keys that match. A step looks at about ``count`` keys of the server.

    What is there all the time comes at least once; what comes or goes meanwhile may come or not.
    """
    cursor = b"0"
    while True:
        reply = await read("SCAN", cursor, "MATCH", matching, "COUNT", str(count), *more)
        assert isinstance(reply, list)
        following, keys = reply
        assert isinstance(following, bytes)
        assert isinstance(keys, list)
        cursor = following
        yield [key for key in keys if isinstance(key, bytes)]
        if cursor == b"0":
            return


async def pages(read: Read, base: str) -> AsyncIterator[list[bytes]]:
    """What follows ``base`` in the names of all keys that begin with it, as ``scan`` finds them."""
    start = wire(base)
    async for keys in scan(read, pattern(base)):
        yield list({key[len(start) :]: None for key in keys})


def may_be_a_job(name: bytes) -> bool:
    """By its name alone. An id holds no colon, or two, or is that of a schedule's run (protocol 1.3, 3.28).

    So what belongs to a job is none: it has one colon, or three. Nor is what belongs to a queue whose prefix begins like ours.
    """
    if name in _KNOWN or name.startswith(_BESIDE_JOBS):
        return False
    if name.startswith(b"repeat:"):
        return _ITERATION.fullmatch(name) is not None
    return name.count(b":") in (0, 2)


def owner(name: bytes) -> bytes | None:
    """The id of the job that what has this name belongs to; None where it is no part of one."""
    found = _PART.fullmatch(name)
    return found[1] if found is not None and may_be_a_job(found[1]) else None


def is_of_a_queue(name: bytes) -> bool:
    """Whether something of this name is what programs of the protocol write below a queue's base."""
    return (
        name in _KNOWN or name.startswith((*_BESIDE_JOBS, b"repeat:")) or may_be_a_job(name) or owner(name) is not None
    )


async def foreign(read: Read, keys: QueueKeys, names: Iterable[bytes]) -> set[bytes]:
    """Those that are of a queue whose prefix begins with our queue's name: ``bull:ours:more:theirs:17``."""
    owners: dict[bytes, list[bytes]] = {}
    for name in names:
        if not name.startswith((b"repeat:", *_BESIDE_JOBS)):
            at = name.find(b":")
            while at >= 0:
                owners.setdefault(name[:at], []).append(name)
                at = name.find(b":", at + 1)
    base = wire(keys.base)
    found: set[bytes] = set()
    for some in _parts(list(owners)):
        there = await asyncio.gather(*(read("EXISTS", base + one + b":id", base + one + b":meta") for one in some))
        for one, exists in zip(some, there, strict=True):
            if exists:
                found.update(owners[one])
    return found


def _parts(names: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))
