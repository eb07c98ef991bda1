"""Healing: jobs that are there and stand in no state are found, and put back to where they belong.

No transition leaves such a job. Those of BullMQ 5 that pause and resume can: they rename one list over another, and what stood
there is left with a hash alone (protocol 3.16; docs/mixed-fleets.md).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Lane, Patience, read_command, read_script
from echomq._store.codec import decode_id, state_in, to_ms
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.names import PAGE, foreign, may_be_a_job, pages
from echomq.errors import ServerError
from echomq.models import Healed, JobState
from echomq.options import OnProgress, untold

_LOOKED_FOR: Final = 500
_PUT_BACK: Final = 100
_LOOK: Final = "lookForLost-9"
_HEAL: Final = "healJobs-12"

_SETS: Final = ("completed", "failed", "delayed", "prioritized", "waiting-children")
_LISTS: Final = ("active", "wait", "paused")


@dataclass(frozen=True, slots=True)
class Way:
    """How a heal reads, looks and changes."""

    keys: QueueKeys
    read: Callable[..., Awaitable[Reply]]
    look: Callable[[str, Sequence[Argument]], Awaitable[Reply]]
    change: Callable[[str, Sequence[Argument]], Awaitable[Reply]]

    @classmethod
    def of_line(cls, line: Line) -> Way:
        """By a queue's line of calls."""
        return cls(line.keys, line.ask, line.read, line.call)

    @classmethod
    def of_lane(cls, keys: QueueKeys, link: Link, lane: Lane) -> Way:
        """By a worker's lane, without waiting for a server that is away."""

        async def read(*command: Argument) -> Reply:
            return await read_command(link, command, Patience(0))

        async def look(name: str, args: Sequence[Argument]) -> Reply:
            return await read_script(link, name, keys, args, Patience(0))

        async def change(name: str, args: Sequence[Argument]) -> Reply:
            return await lane.call(name, args, Patience(0))

        return cls(keys, read, look, change)


async def wanted(way: Way, interval: float) -> bool:
    """Whether it is this caller's turn to look for lost jobs: version 5 is about, and nobody has looked for so long."""
    keys = way.keys
    seen, version = await asyncio.gather(
        way.read("EXISTS", keys.resolve("version_5")), way.read("HGET", keys.key("meta"), "version")
    )
    if not seen and not (isinstance(version, bytes) and version.startswith(b"bullmq:5.")):
        return False
    # A reply that is lost costs this turn; the next one comes when the guard has expired.
    return await way.read("SET", keys.resolve("healing"), "1", "NX", "PX", str(to_ms(interval))) is not None


async def put_off(way: Way, seconds: float) -> None:
    """Lets nobody look again for so long."""
    await way.read("SET", way.keys.resolve("healing"), "1", "PX", str(to_ms(seconds)))


async def heal(way: Way, on_progress: OnProgress = untold) -> Healed:
    """Looks at every job of the queue, in steps of at most 1,000 names, and puts back those that stand in no state.

    ``on_progress`` is told how many names have been looked at, and again after each step that puts jobs back.
    """
    count, names = await nowhere(way, on_progress)
    put_back: dict[JobState, list[str]] = {}
    broken: list[str] = []
    async for some in lost(way, names):
        broken += [decode_id(job_id) for job_id, mark in some if not mark and not job_id.startswith(b"repeat:")]
        whole = [(job_id, mark) for job_id, mark in some if mark]
        for first in range(0, len(whole), _PUT_BACK):
            reply = await way.change(_HEAL, [part for pair in whole[first : first + _PUT_BACK] for part in pair])
            assert isinstance(reply, list)
            for job_id, state in zip(reply[1::2], reply[2::2], strict=True):
                assert isinstance(job_id, bytes)
                assert isinstance(state, bytes)
                found = state_in(state)
                assert found is not None
                put_back.setdefault(found, []).append(decode_id(job_id))
            on_progress(count)
    return Healed(count, put_back, broken)


async def lost(way: Way, names: Iterable[bytes]) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """Those of these names that are of jobs and stood in no state at one moment, in parts, each with its mark.

    What was only moving while it was looked for is told from what is lost by that look at one moment. The latest come first:
    whoever puts each to the front of the line has the oldest there at last.
    """
    ages = [(age, job_id) async for age, job_id in _ages(way, names)]
    ages.sort(reverse=True)
    for start in range(0, len(ages), _LOOKED_FOR):
        yield await lost_at_once(way, [job_id for _, job_id in ages[start : start + _LOOKED_FOR]])


async def put_back(way: Way, job_id: bytes) -> bool:
    """Puts one job back, if it stands in no state; whether it did."""
    found = [pair for pair in await lost_at_once(way, [job_id]) if pair[1]]
    reply = await way.change(_HEAL, [part for pair in found for part in pair]) if found else []
    assert isinstance(reply, list)
    return len(reply) > 1


async def lost_at_once(way: Way, names: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Those of at most 500 that stood nowhere at one moment, in the same order, each with its mark."""
    look = secrets.token_urlsafe(9)
    reply = await way.look(_LOOK, [look, *names])
    assert isinstance(reply, list)
    marks = dict(zip(reply[::2], reply[1::2], strict=True))
    copies = [f"{way.keys.resolve('standing')}:{look}:{kind}" for kind in _LISTS]
    if marks:
        for copy in copies:
            async for ids in _list(way, copy):
                for job_id in ids:
                    marks.pop(job_id, None)
    await way.read("UNLINK", *copies)  # else they expire
    return [(job_id, mark) for job_id, mark in marks.items() if isinstance(job_id, bytes) and isinstance(mark, bytes)]


async def nowhere(way: Way, on_progress: OnProgress) -> tuple[int, set[bytes]]:
    """How many names were looked at, and those that stood in no state when they were."""
    count = 0
    names: set[bytes] = set()
    async for page in pages(way.read, way.keys.base):
        jobs = [name for name in page if may_be_a_job(name)]
        count += len(jobs)
        names |= await _in_no_set(way, jobs)
        on_progress(count)
    for kind in _LISTS if names else ():
        async for ids in _list(way, way.keys.key(kind)):
            names.difference_update(ids)
    return count, names - await foreign(way.read, way.keys, names)


async def _in_no_set(way: Way, names: Iterable[bytes]) -> set[bytes]:
    """Those of at most 1,000 names that stand in none of the sets."""
    rest = list(names)
    for kind in _SETS:
        if not rest:
            break
        scores = await way.read("ZMSCORE", way.keys.key(kind), *rest)
        assert isinstance(scores, list)
        rest = [name for name, score in zip(rest, scores, strict=True) if score is None]
    return set(rest)


async def _list(way: Way, key: str) -> AsyncIterator[list[bytes]]:
    """The ids of a list, a chunk at a time."""
    start = 0
    while True:
        ids = await way.read("LRANGE", key, str(start), str(start + PAGE - 1))
        assert isinstance(ids, list)
        yield ids  # type: ignore[misc]
        if len(ids) < PAGE:
            return
        start += PAGE


async def _ages(way: Way, names: Iterable[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """The names of hashes, each with its timestamp."""
    ordered = list(names)
    base = way.keys.base.encode("utf-8", "surrogateescape")

    async def age(name: bytes) -> int | None:
        try:
            found = await way.read("HGET", base + name, "timestamp")
        except ServerError:  # no hash
            return None
        return int(found) if isinstance(found, bytes) and found.isdigit() else 0

    for start in range(0, len(ordered), _PUT_BACK):
        page = ordered[start : start + _PUT_BACK]
        for name, found in zip(page, await asyncio.gather(*map(age, page)), strict=True):
            if found is not None:
                yield found, name
