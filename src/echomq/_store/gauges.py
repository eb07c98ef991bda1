"""What a queue's gauges show, read in one call; how many workers of each queue are connected."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.presence import COMMANDS

_NAME: Final = re.compile(rb" name=(\S+?)(?::w:\S*)? ")


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
    """How many workers of each of these queues are connected to this server, in whatever runtime, by one look at its clients.

    As ``presence.workers`` knows them.
    """
    reply = await line.ask("CLIENT", "LIST", "TYPE", "normal")
    assert isinstance(reply, bytes)
    named: Counter[bytes] = Counter()
    bare: Counter[bytes] = Counter()
    for client in reply.splitlines():
        found = _NAME.search(client)
        if found is not None:
            named[found[1]] += 1
            bare[found[1]] += COMMANDS not in client
    return [_count(keys, named, bare) for keys in queues]


def _count(keys: QueueKeys, named: Counter[bytes], bare: Counter[bytes]) -> int:
    name, other = keys.client_name(), keys.bare_client_name
    if name is None:
        return 0
    return named[name.encode()] + (bare[other.encode()] if other != name else 0)
