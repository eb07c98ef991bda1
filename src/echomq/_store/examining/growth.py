"""What grows without a bound, and keys of our own that have been left."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from echomq._redis.wire import Reply
from echomq._store.examining.ward import Ward
from echomq._store.keys import EXPIRING, LEFT_BEHIND

EVENTS_SURPLUS: Final = 5000
"""Events beyond the limit that come and go: a log is trimmed in whole blocks, and once a call."""
EVENTS_TIMES: Final = 4
"""By how many times a log must be larger than it may: its size is looked at once a sweep."""
MOST_LANES: Final = 10_000
"""Records of calls beyond which it is looked whose they are: a queue has one for each producer and five for each worker."""
_KEPT: Final = 250_000
"""Ended jobs beyond which nobody seems to bound them: ``Keep.DEFAULT`` has 100,000 of each."""
_FORWARDED_IN: Final = 600
"""Seconds within which a worker forwards what is in the outbox, unless the other server is away."""


def _is_bound(said: Reply) -> bool:
    """Whether the retention rule by which a job ended last (``lib/last_rules.lua``) says how many are kept, or how long."""
    if not isinstance(said, bytes):
        return False
    count, _, more = said.partition(b":")[2].partition(b";")
    return count not in (b"", b"-1") or more.partition(b";")[0] != b""


async def bounds(ward: Ward) -> None:
    """Logs and sets that have grown beyond their bounds."""
    await ward.careful("its event log", _events(ward))
    await ward.careful("the records of its calls", _calls(ward))
    for place in ("completed", "failed"):
        count, rule = await asyncio.gather(
            ward.line.ask("ZCARD", ward.keys.key(place)), ward.line.ask("HGET", ward.keys.resolve("rules"), place)
        )
        if isinstance(count, int) and count > _KEPT and not _is_bound(rule):
            ward.tell("no-retention", place, f"{count:,} {place} jobs are kept, and nothing seems to bound them")


async def _events(ward: Ward) -> None:
    key = ward.keys.key("events")
    length = await ward.line.ask("XLEN", key)
    most = await ward.line.ask("HGET", ward.keys.key("meta"), "opts.maxLenEvents")
    limit = int(most) if isinstance(most, bytes) and most.isdigit() and len(most) < 16 else 10_000
    assert isinstance(length, int)
    if length > limit + EVENTS_SURPLUS:
        ward.tell("events-too-long", "events", f"the event log has {length:,} entries, and is to have {limit:,}")
        return
    reply = await ward.line.read("holdEventBytes-2", (str(EVENTS_TIMES), ""))
    assert isinstance(reply, list)
    surplus, size, may = reply
    if surplus:
        ward.tell("events-too-large", "events", f"the event log takes {size!r} bytes, and is to take {may!r}")


async def _calls(ward: Ward) -> None:
    reply = await ward.line.read("holdCalls-1", (str(MOST_LANES), ""))
    assert isinstance(reply, list)
    silent, size = reply
    if silent:
        text = f"there are {size!r} records of calls, and many of lanes that have been silent for an hour"
        ward.tell("silent-lanes", "calls", text)


async def own_keys(ward: Ward) -> None:
    """Keys of our own without an expiry, or of no queue; outcomes that nobody forwards."""
    await ward.each(ward.met.own, partial(_own_key, ward))


async def _own_key(ward: Ward, suffix: str) -> None:
    if suffix == "outbox":
        await _outbox(ward)
    name = suffix.partition(":")[0]
    if name not in LEFT_BEHIND:
        return
    key = ward.keys.own_base + suffix
    code = await ward.line.read("holdOwnKey-3", (key, "" if name in EXPIRING else "1", ""))
    if code == 1:
        ward.tell("own-key-without-expiry", suffix, f"{key} has no expiry: it would stay for ever")
    elif code == 2:
        ward.tell("leftover-own-key", suffix, f"{key} has no expiry, and there is no queue of this name any more")


async def _outbox(ward: Ward) -> None:
    first, time = await asyncio.gather(
        ward.line.ask("XRANGE", ward.keys.resolve("outbox"), "-", "+", "COUNT", "1"), ward.line.ask("TIME")
    )
    assert isinstance(time, list)
    match first:
        case [[bytes() as entry, _]]:
            waits = int(time[0]) - int(entry.partition(b"-")[0]) // 1000  # type: ignore[arg-type]
            if waits > _FORWARDED_IN:
                count = await ward.line.ask("XLEN", ward.keys.resolve("outbox"))
                text = f"{count!r} outcomes wait to be forwarded to a results queue, the oldest for {waits} s"
                ward.tell("outcomes-not-forwarded", "outbox", text)
