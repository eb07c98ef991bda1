"""Reading: a job with its state and its log, pages of jobs, how many there are, how many ended a minute; the queues."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from echomq._redis.wire import Argument, Reply
from echomq._store.call import Patience, opened, read_command
from echomq._store.codec import StoredJob, as_whole, id_out, state_in, state_out, to_moment
from echomq._store.codes import JOB_GONE, gone
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.names import scan
from echomq.connection import Hub
from echomq.errors import InvalidOption
from echomq.models import JobState, Logs, MetricsPoint, MetricsSeries
from echomq.options import shown


async def job(line: Line, job_id: str) -> tuple[StoredJob, JobState | None] | None:
    """A job as it is at this moment, or None."""
    reply = await line.read("getJob-8", (id_out(job_id),))
    assert isinstance(reply, list)
    state, flat = reply
    if not flat:
        return None
    return StoredJob.from_reply(id_out(job_id), flat), state_in(state)  # type: ignore[arg-type]


async def counts(line: Line, states: Sequence[JobState]) -> dict[JobState, int]:
    """How many jobs are in each of these states."""
    reply = await line.read("getCounts-8", [state_out(state) for state in states])
    assert isinstance(reply, list)
    return dict(zip(states, reply, strict=True))  # type: ignore[arg-type]


def as_stored(counts: Mapping[JobState, int]) -> dict[str, int]:
    """The same with the protocol's names of the states."""
    return {state_out(state): count for state, count in counts.items()}


@dataclass(frozen=True, slots=True)
class Paged:
    """Jobs of a state.

    Attributes:
        jobs: as they were when they were read.
        cursor: where the next page begins; None after the last.
    """

    jobs: list[StoredJob]
    cursor: str | None


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended. It says by ids where that is, so that it stays there while jobs come and go.

    Attributes:
        state, newest: of which pages.
        place: the list or set that is read next.
        passed: how many ids stood before the next one, in a list; -1 at its beginning.
        left: how many stood from there on.
        score: that of the last id, in a set.
        anchors: ids that were read, the last one first.
    """

    state: str
    newest: bool
    place: str
    passed: int = -1
    left: int = 0
    score: bytes = b""
    anchors: list[bytes] = []

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(_pack_cursor(self)).decode().rstrip("=")


_pack_cursor: Final = msgspec.msgpack.Encoder().encode
_unpack_cursor: Final = msgspec.msgpack.Decoder(_Cursor).decode
_ANCHORS = 4
_STEP = 250
"""Jobs that the server reads in one go: some 2 ms."""


def _anchors(entries: Sequence[Sequence[bytes]], before: Sequence[bytes]) -> list[bytes]:
    """The last ids; and two from further before, which are there still when a list has lost its tail up to those."""
    ids = [entry[0] for entry in entries]
    last = [*reversed(ids), *before][:_ANCHORS]
    return list(dict.fromkeys([*last, ids[len(ids) // 2], ids[0]]))


def _places(state: JobState, *, newest_first: bool) -> list[str]:
    """Where the jobs of a state stand. A list that BullMQ 5 paused with holds the older ones."""
    if state == "waiting":
        return ["wait", "paused"] if newest_first else ["paused", "wait"]
    return [state_out(state)]


def _given(cursor: str, state: JobState, places: Sequence[str], *, newest_first: bool) -> _Cursor:
    try:
        found = _unpack_cursor(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        if found.passed >= 0 and not found.anchors:
            raise ValueError
        float(found.score or b"0")
    except (ValueError, TypeError, msgspec.DecodeError):  # DecodeError is one of another kind in a ValidationError
        raise InvalidOption(
            f"cursor={shown(cursor)}: must be what the page before gave as its cursor; for the first page leave it out"
        ) from None
    if found.state != state or found.newest != newest_first or found.place not in places:
        raise InvalidOption(
            f"cursor={shown(cursor)}: is that of a page with state={found.state!r}, newest_first={found.newest}; ask for the "
            "next page as for the first"
        )
    return found


async def page(line: Line, state: JobState, cursor: str | None, limit: int, *, newest_first: bool) -> Paged:
    """At most so many jobs of a state, and at most some 1 MiB of them, from where a cursor says.

    Raises:
        InvalidOption: the cursor is none of these pages.
    """
    places = _places(state, newest_first=newest_first)
    if cursor is None:
        at = _Cursor(state, newest_first, places[0])
    else:
        at = _given(cursor, state, places, newest_first=newest_first)
    jobs: list[StoredJob] = []
    left_to_read = limit
    while True:
        wanted = min(left_to_read, _STEP)
        flag = "1" if newest_first else ""
        args: list[bytes | str] = [at.place, str(wanted), flag, str(at.passed), str(at.left), at.score, *at.anchors]
        reply: Any = await line.read("getPage-8", args)
        seen, passed, left = reply[:3]
        entries = [reply[index : index + 3] for index in range(3, 3 + 3 * seen, 3)]
        jobs += [StoredJob.from_reply(job_id, flat) for job_id, flat, _ in entries if flat]
        if left:
            at = _Cursor(state, newest_first, at.place, passed, left, entries[-1][2], _anchors(entries, at.anchors))
        elif at.place != places[-1] and await line.ask("LLEN", line.keys.key(places[-1])):
            at = _Cursor(state, newest_first, places[-1])
        else:
            return Paged(jobs, None)
        left_to_read -= seen
        if left_to_read == 0 or (left and seen < wanted):  # which is then a mebibyte
            return Paged(jobs, str(at))


async def counts_per_priority(line: Line, priorities: Sequence[int]) -> dict[int, int]:
    """How many jobs wait with each of these priorities; without any, with each that there is."""
    reply: Any = await line.read("getCountsPerPriority-3", [str(priority) for priority in priorities])
    return dict(zip(reply[::2], reply[1::2], strict=True))


_MINUTES = 1_000
_MINUTE = 60_000


async def metrics(line: Line, state: str, minutes: int | None) -> MetricsSeries:
    """How many jobs completed or failed, in all and by the minute."""
    points: dict[int, int] = {}
    start = 0
    while True:
        wanted = _MINUTES if minutes is None else min(minutes - start, _MINUTES)
        reply: Any = await line.read("getMetrics-2", (state, str(start), str(wanted)))
        count, last, before, data = reply
        counted = as_whole(last)
        if counted is None:
            return MetricsSeries(as_whole(count) or 0, None, [])
        newest = counted // _MINUTE - 1 - start
        for position, value in enumerate(data):  # a minute that has passed meanwhile moves all by one
            points.setdefault(newest - position, as_whole(value) or 0)
        start += len(data)
        if not data or start == minutes:
            break
    total = as_whole(count) or 0
    latest = MetricsPoint(to_moment(counted // _MINUTE * _MINUTE), max(total - (as_whole(before) or 0), 0))
    made = [MetricsPoint(to_moment(minute * _MINUTE), points[minute]) for minute in sorted(points, reverse=True)]
    return MetricsSeries(total, latest, made if minutes is None else made[:minutes])


async def queue_names(hub: Hub, *, prefix: str, hash_tag: bool) -> list[str]:
    """The names of all queues with this prefix."""
    patience = Patience(hub.wait, hub.look_after)
    link = await opened(lambda: hub.link(hash_tag=hash_tag), patience)
    names: set[str] = set()

    async def read(*command: Argument) -> Reply:
        return await read_command(link, command, patience)

    async for keys in scan(read, QueueKeys.pattern(prefix), "TYPE", "hash"):
        for key in keys:
            name = QueueKeys.queue_of(key.decode("utf-8", "surrogateescape"), prefix=prefix, hash_tag=hash_tag)
            if name is not None:
                names.add(name)
    return sorted(names)


_LINES = 1_000


async def logs(line: Line, job_id: str, start: int, end: int, *, newest_first: bool) -> Logs:
    """Lines of a job's log: those at these positions, the end included, -1 for the last one. Raises JobNotFound."""
    found: list[str] = []
    while True:
        wanted = _LINES if end < 0 else min(end - start + 1, _LINES)
        args = (id_out(job_id), str(start), str(max(wanted, 0)), "1" if newest_first else "")
        reply = await line.read("getLogs-1", args)
        assert isinstance(reply, list)
        count, lines = reply[0], reply[1:]
        if count == JOB_GONE:
            raise gone(f"job {job_id!r} of queue {line.keys.queue!r} has no log")
        found += [text.decode("utf-8", "replace") for text in lines]  # type: ignore[union-attr]
        start += len(lines)
        if not lines or start >= count or (0 <= end < start):  # type: ignore[operator]
            return Logs(found, count)  # type: ignore[arg-type]


async def outbox_size(line: Line) -> int:
    """How many outcomes wait to be forwarded."""
    size = await line.ask("XLEN", line.keys.resolve("outbox"))
    assert isinstance(size, int)
    return size


async def is_paused(line: Line) -> bool:
    """Whether the queue is paused."""
    return await line.ask("HEXISTS", line.keys.key("meta"), "paused") == 1
