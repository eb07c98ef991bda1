"""What a queue's gauges show, read in one call; how many workers of each queue are connected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from echomq._store.keys import QueueKeys
from echomq._store.line import Line

_NAME: Final = re.compile(rb"(?:^| )name=(\S+)", re.MULTILINE)


class Gauges(msgspec.Struct, frozen=True):
    """A queue at one moment.

    Attributes:
        counts: how many jobs are in each state, by the protocol's names and in the order of its text (protocol 10).
        paused: whether it is paused.
        limited_for: seconds for which a rate limit holds its workers.
        oldest: seconds for which the job waits that runs next; 0 if none waits.
        completed, failed: how many jobs have ended so since workers count it; None if none does.
    """

    counts: dict[str, int]
    paused: bool
    limited_for: float
    oldest: float
    completed: int | None
    failed: int | None


async def gauges(line: Line) -> Gauges:
    """Reads them."""
    reply = await line.read("getGauges-10", ())
    assert isinstance(reply, list)
    waiting, old_paused, active, delayed, prioritized, children, completed, failed, *others = map(int, reply)  # type: ignore[arg-type]
    paused, limited, oldest, total_completed, total_failed = others
    counts = {
        "active": active,
        "completed": completed,
        "delayed": delayed,
        "failed": failed,
        "prioritized": prioritized,
        "waiting": waiting + old_paused,
        "waiting-children": children,
    }
    return Gauges(
        counts=counts,
        paused=paused == 1,
        limited_for=limited / 1000,
        oldest=max(oldest, 0) / 1000,
        completed=None if total_completed < 0 else total_completed,
        failed=None if total_failed < 0 else total_failed,
    )


async def workers_of(line: Line, queues: Sequence[QueueKeys]) -> list[int]:
    """How many workers of each of these queues are connected to this server, whatever their language (protocol 11.2)."""
    reply = await line.ask("CLIENT", "LIST", "TYPE", "normal")
    assert isinstance(reply, bytes)
    found: dict[bytes, int] = {}
    for name in _NAME.findall(reply):
        plain = name.partition(b":w:")[0]
        found[plain] = found.get(plain, 0) + 1
    names = (keys.client_name() for keys in queues)
    return [0 if name is None else found.get(name.encode(), 0) for name in names]
