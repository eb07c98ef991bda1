"""Blocking on a queue's marker, or on a stream, on a connection of its own."""

from __future__ import annotations

import math
from typing import Any

from echomq._redis.client import Link

_MARGIN = 1.5
_SHORTEST = 0.001


async def pop_marker(link: Link, marker: str, seconds: float) -> tuple[bytes, float] | None:
    """The lowest member of the marker and its score, or None when none came in time (protocol 4).

    The read has its own deadline, a little after the server's: a connection that is silently dead is noticed then.
    """
    seconds = max(seconds, _SHORTEST)
    reply = await link.call("BZPOPMIN", marker, f"{seconds:.3f}", reply_timeout=seconds + _MARGIN)
    if not isinstance(reply, list):
        return None
    member, score = reply[1], reply[2]
    assert isinstance(member, bytes)
    assert isinstance(score, bytes)
    return member, float(score)


async def next_entry(link: Link, stream: str, after: int, seconds: float) -> int | None:
    """The time, in milliseconds of the server, of the next entry after one; None when none came in time. It wakes all readers."""
    seconds = max(seconds, _SHORTEST)
    start = f"{after}-{2**64 - 1}"
    reply = await link.call(
        "XREAD",
        "COUNT",
        "1",
        "BLOCK",
        str(math.ceil(seconds * 1000)),
        "STREAMS",
        stream,
        start,
        reply_timeout=seconds + _MARGIN,
    )
    if not isinstance(reply, list):
        return None
    entry_id: Any = reply[0][1][0][0]  # type: ignore[index]
    return int(entry_id.partition(b"-")[0])
