"""How a queue is, without a judgement; but for a job that has waited too long."""

from __future__ import annotations

import asyncio
import json

from echomq._redis.wire import Reply
from echomq._store import presence, read
from echomq._store.codec import decode_id
from echomq._store.examining.ward import LISTS, SETS, Ward
from echomq.errors import ServerError
from echomq.findings import QueueFacts
from echomq.models import JOB_STATES


def _waits_since(fields: Reply) -> float | None:
    """The moment, in seconds, since when a job could have been run: made, or last run, and its delay over."""
    assert isinstance(fields, list)
    made, started, opts = fields
    if not isinstance(made, bytes) or not made.isdigit():
        return None
    try:
        delay = json.loads(opts or b"{}").get("delay", 0)  # type: ignore[arg-type]
    except (ValueError, RecursionError, AttributeError):
        delay = 0
    since = int(made) + (delay if isinstance(delay, (int, float)) and delay > 0 else 0)
    if isinstance(started, bytes) and started.isdigit():
        since = max(since, int(started))
    return since / 1000


async def facts(ward: Ward, oldest_waiting: float | None) -> QueueFacts:
    """How the queue is; and a job that has waited too long, where a bound is given."""
    counts = await read.counts(ward.line, JOB_STATES)
    paused = await read.is_paused(ward.line)
    oldest, age = await _oldest(ward)
    if oldest is not None and age is not None and oldest_waiting is not None and age > oldest_waiting:
        text = f"job {oldest!r} has waited for {age:,.0f} s"
        ward.tell("old-waiting-job", oldest, text)
    memory = await ward.careful("its memory", _memory(ward, sum(counts.values())))
    seen = await ward.careful("its workers", presence.workers(ward.line))
    workers = None if seen is None else len(seen)
    return QueueFacts(ward.keys.queue, counts, paused, workers, oldest, age, memory)


async def _oldest(ward: Ward) -> tuple[str | None, float | None]:
    """Of those that would run next, the job that has waited longest, and for how many seconds."""
    wait, prioritized, time = await asyncio.gather(
        ward.line.ask("LRANGE", ward.keys.key("wait"), "-10", "-1"),
        ward.line.ask("ZRANGE", ward.keys.key("prioritized"), "0", "9"),
        ward.line.ask("TIME"),
    )
    assert isinstance(wait, list)
    assert isinstance(prioritized, list)
    assert isinstance(time, list)
    now = int(time[0])  # type: ignore[arg-type]
    oldest: tuple[float, str] | None = None
    for job_id in [*wait, *prioritized]:
        assert isinstance(job_id, bytes)
        try:
            found = await ward.line.ask("HMGET", ward.base + job_id, "timestamp", "processedOn", "opts")
        except ServerError:  # no hash: a finding of its own
            continue
        since = _waits_since(found)
        if since is not None and (oldest is None or since < oldest[0]):
            oldest = since, decode_id(job_id)
    return (None, None) if oldest is None else (oldest[1], max(0.0, now - oldest[0]))


async def _memory(ward: Ward, jobs: int) -> int | None:
    """Bytes, by samples."""
    keys = [ward.keys.key(name) for name in sorted(ward.met.known)]
    sizes = await asyncio.gather(*(ward.line.ask("MEMORY", "USAGE", key, "SAMPLES", "5") for key in keys))
    some = [*(await _some_jobs(ward))]
    of_jobs = await asyncio.gather(*(ward.line.ask("MEMORY", "USAGE", key, "SAMPLES", "5") for key in some))
    known = [size for size in of_jobs if isinstance(size, int)]
    mean = sum(known) / len(known) if known else 0
    return sum(size for size in sizes if isinstance(size, int)) + round(mean * jobs)


async def _some_jobs(ward: Ward) -> list[bytes]:
    found: list[bytes] = []
    for place in SETS:
        ids = await ward.line.ask("ZRANGE", ward.keys.key(place), "0", "9")
        assert isinstance(ids, list)
        found += [ward.base + one for one in ids if isinstance(one, bytes)]
    for place in LISTS:
        ids = await ward.line.ask("LRANGE", ward.keys.key(place), "0", "9")
        assert isinstance(ids, list)
        found += [ward.base + one for one in ids if isinstance(one, bytes)]
    return found
