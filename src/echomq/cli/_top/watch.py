"""What ``echomq top`` knows of the queues, and how it learns it: a bounded number of calls each time, whatever they hold."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from echomq import ConnectionLost, EchoMQError, Job, JobState, Queue, ServerUnavailable
from echomq.cli.queue import first_due, next_to_run, ready_since
from echomq.models import WorkerInfo

AT_ONCE: Final = 100
"""Queues that are asked at the same time; their calls travel together."""
CLOSELY: Final = 40
"""Queues of which one look reads more than the counts: those on the screen, then those that were not read for longest."""
WITH_WORKERS: Final = 5
"""Queues whose workers one look reads: for each the server goes through its list of clients."""
SAMPLE: Final = 50
"""Completed jobs that are read of a queue for its times."""
RECENT: Final = 300.0
"""Seconds for which a job counts as recently completed."""
_SPAN: Final = 10.0
"""Seconds over which rates are taken."""

T = TypeVar("T")

BACKLOG: Final[tuple[JobState, ...]] = ("waiting", "prioritized", "delayed", "active", "waiting_children")


@dataclass(frozen=True)
class Spread:
    """The middle of some times and the one that a twentieth exceeds, in seconds."""

    p50: float
    p95: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread | None:
        """Of these, if there are any."""
        found = sorted(seconds)
        return cls(found[(len(found) - 1) // 2], found[(len(found) - 1) * 95 // 100]) if found else None


@dataclass(frozen=True)
class _Tally:
    """The numbers of one moment that rates are taken from."""

    at: float
    backlog: int
    kept: int
    """Jobs in completed and failed."""


@dataclass
class Seen:
    """A queue as it was last seen. What is None is not known, or not yet.

    Attributes:
        queue: its name.
        counts, paused: read at each look.
        incoming, outgoing: jobs a second, over the last seconds: what ended, and that plus what the backlog grew by.
        oldest: since when the job could run that is next.
        wait, run: times of jobs that completed in the last minutes, out of a sample.
        sampled: how many jobs that were.
        concurrency: how many jobs may run at once.
        limited_for: seconds until a rate limit lets a job start.
        workers: who works it.
        trouble: why it cannot be read.
    """

    queue: str
    counts: dict[JobState, int] = field(default_factory=dict)
    paused: bool = False
    incoming: float | None = None
    outgoing: float | None = None
    oldest: datetime | None = None
    wait: Spread | None = None
    run: Spread | None = None
    sampled: int = 0
    concurrency: int | None = None
    limited_for: float = 0.0
    workers: list[WorkerInfo] | None = None
    trouble: str | None = None
    read_closely: float = 0.0
    read_workers: float = 0.0
    tallies: deque[_Tally] = field(default_factory=deque)
    counted: deque[tuple[float, int]] = field(default_factory=deque)
    ends_per_second: float = 0.0

    def waiting(self) -> int:
        """How many jobs could run now."""
        return self.counts.get("waiting", 0) + self.counts.get("prioritized", 0)


class Watch:
    """Looks at queues, again and again.

    Args:
        make: opens a queue by its name.
        find: finds the names of all queues; None: the names are given and stay.
        names: those to begin with.

    Attributes:
        seen: the queues by name.
        at: when they were last looked at.
        away: why the server cannot be asked, and since when; None if it can.
    """

    def __init__(
        self,
        make: Callable[[str], Queue],
        find: Callable[[], Awaitable[Iterable[str]]] | None,
        names: Sequence[str] = (),
    ) -> None:
        self.seen: dict[str, Seen] = {name: Seen(name) for name in names}
        self.at: datetime | None = None
        self.away: tuple[datetime, str] | None = None
        self._make = make
        self._find = find
        self._queues: dict[str, Queue] = {}

    async def find(self) -> None:
        """Finds the queues that have come, and forgets those that have gone.

        Raises:
            EchoMQError: the server cannot be asked.
        """
        if self._find is None:
            return
        names = set(await self._find())
        for gone in self.seen.keys() - names:
            del self.seen[gone]
            if (queue := self._queues.pop(gone, None)) is not None:
                await queue.close()
        for name in names - self.seen.keys():
            self.seen[name] = Seen(name)
        if not names:
            self.at = datetime.now(UTC)

    async def look(self, first: Sequence[str] = (), *, everything: bool = False) -> None:
        """Looks at all queues once, and closely at some.

        Args:
            first: the queues that are on the screen, the most wanted first.
            everything: look closely at all.

        Raises:
            ServerUnavailable, ConnectionLost: the server cannot be asked; what was seen stays.
        """
        order = [self.seen[name] for name in dict.fromkeys(first) if name in self.seen]
        on_screen = {one.queue for one in order}
        others = [one for one in self.seen.values() if one.queue not in on_screen]
        closely = (order + sorted(others, key=lambda one: one.read_closely))[: None if everything else CLOSELY]
        workers = (order[:1] + sorted(order[1:] + others, key=lambda one: one.read_workers))[
            : None if everything else WITH_WORKERS
        ]
        await _all(
            [functools.partial(self._read_counts, one) for one in self.seen.values()]
            + [functools.partial(self._read_closely, one) for one in closely]
            + [functools.partial(self._read_workers, one) for one in workers]
        )
        self.at = datetime.now(UTC)

    def queue(self, name: str) -> Queue:
        """The queue of this name."""
        if name not in self._queues:
            self._queues[name] = self._make(name)
        return self._queues[name]

    async def close(self) -> None:
        """Lets the queues go."""
        for queue in self._queues.values():
            await queue.close()

    async def _read_counts(self, seen: Seen) -> None:
        queue = self.queue(seen.queue)
        async with self._told(seen):
            seen.counts, seen.paused = await asyncio.gather(queue.counts(), queue.is_paused())
            now = time.monotonic()
            backlog = sum(seen.counts[state] for state in BACKLOG)
            seen.tallies.append(_Tally(now, backlog, seen.counts["completed"] + seen.counts["failed"]))
            _keep_span(seen.tallies, lambda one: now - one.at)
            seen.trouble = None
        _rates(seen)

    async def _read_closely(self, seen: Seen) -> None:
        queue = self.queue(seen.queue)
        async with self._told(seen):
            first, sample, completed, failed, seen.concurrency, seen.limited_for = await asyncio.gather(
                next_to_run(queue),
                queue.page("completed", limit=SAMPLE, newest_first=True),
                queue.metrics("completed", minutes=1),
                queue.metrics("failed", minutes=1),
                queue.concurrency(),
                queue.rate_limit_ttl(),
            )
            seen.oldest = None if first is None else ready_since(first)
            _times(seen, sample.jobs)
            seen.read_closely = time.monotonic()
            seen.counted.append((seen.read_closely, completed.count + failed.count))
            _keep_span(seen.counted, lambda one: seen.read_closely - one[0])

    async def _read_workers(self, seen: Seen) -> None:
        async with self._told(seen):
            seen.workers = await self.queue(seen.queue).workers()
            seen.read_workers = time.monotonic()

    @contextlib.asynccontextmanager
    async def _told(self, seen: Seen) -> AsyncIterator[None]:
        """A queue that cannot be read says so in its own line; a server that cannot be asked concerns all."""
        try:
            yield
        except (ServerUnavailable, ConnectionLost):
            raise
        except EchoMQError as error:
            seen.trouble = str(error)


async def _all(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Some at a time; the first that finds no server ends it, and none goes on behind its back."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(part: Callable[[], Awaitable[None]]) -> None:
        async with limit:
            await part()

    tasks = [asyncio.create_task(one(part)) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _rates(seen: Seen) -> None:
    if len(seen.tallies) < 2:
        return
    first, last = seen.tallies[0], seen.tallies[-1]
    span = last.at - first.at
    if span <= 0:
        return
    # Retention makes the growth of completed too small. Then the sample, or what the workers count, knows better.
    seen.outgoing = max((last.kept - first.kept) / span, _counted(seen), seen.ends_per_second, 0.0)
    seen.incoming = max(seen.outgoing + (last.backlog - first.backlog) / span, 0.0)


def _counted(seen: Seen) -> float:
    """Ends a second by the count of the workers, if they keep one (``metrics_points``)."""
    if len(seen.counted) < 2:
        return 0.0
    (start, before), (end, after) = seen.counted[0], seen.counted[-1]
    return (after - before) / max(end - start, 0.001)


def _keep_span(kept: deque[T], age: Callable[[T], float]) -> None:
    """Lets go what lies outside of the span that rates are taken over."""
    while len(kept) > 2 and age(kept[0]) > _SPAN:
        kept.popleft()


def _times(seen: Seen, jobs: Sequence[Job[Any]]) -> None:
    now = datetime.now(UTC)
    recent = [job for job in jobs if job.finished_on is not None and (now - job.finished_on).total_seconds() < RECENT]
    seen.sampled = len(recent)
    seen.run = Spread.of(_between(job.processed_on, job.finished_on) for job in recent if job.processed_on)
    # A job that ran more than once waited more than once, and its record knows only the last start.
    seen.wait = Spread.of(
        _between(since, job.processed_on)
        for job in recent
        if job.attempts_started == 1 and job.processed_on and (since := first_due(job)) is not None
    )
    ends = [job.finished_on.timestamp() for job in recent if job.finished_on is not None]
    fresh = [end for end in ends if now.timestamp() - end < _SPAN]
    # If all of the sample ended within the span, there were more.
    span = max(now.timestamp() - min(fresh), 0.001) if len(fresh) == SAMPLE else _SPAN
    seen.ends_per_second = len(fresh) / span


def _between(start: datetime | None, end: datetime | None) -> float:
    return 0.0 if start is None or end is None else max((end - start).total_seconds(), 0.0)
