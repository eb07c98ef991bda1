"""``Queue``: adds jobs and looks after them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Self

import msgspec

from echomq._payloads import CodecOption, Payloads
from echomq._store import control, explain, limits, presence, read
from echomq._store.codec import NewJob, PlainJob, StoredJob, carrying, encode_spec
from echomq._store.codes import ADDED, FULL
from echomq._store.home import Home
from echomq._store.keys import QueueKeys
from echomq._store.line import MOST_BYTES, MOST_JOBS, Added, size_of
from echomq._telemetry import JOB_ID, JOB_NAME, Attributes, Guard, Spans, TelemetryOption, traced
from echomq.connection import Connection
from echomq.errors import (
    BulkAddError,
    ConnectionLost,
    EchoMQError,
    EncodingError,
    InvalidOption,
)
from echomq.event_types import RESERVED
from echomq.job import Job, checked_reason
from echomq.models import JOB_STATES, Explanation, JobState, MetricsSeries, WorkerInfo
from echomq.options import (
    JSON,
    MAX_BYTES,
    MAX_COUNT,
    MAX_PRIORITY,
    UNSET,
    Backoff,
    Deduplication,
    Duration,
    JobSpec,
    Keep,
    Limiter,
    OnProgress,
    check_deduplication_id,
    check_max_bytes,
    check_on_progress,
    check_truth,
    check_whole,
    shown,
    to_seconds,
)
from echomq.queue_admin import QueueAdmin

_MOST_FIELDS: Final = 100
_MOST_CHARACTERS: Final = 65_536
_MOST_NAMES: Final = 100
_PAGE: Final = 100
_LARGEST_PAGE: Final = 1_000
_MOST_PRIORITIES: Final = 1_000
_NOT_RUN: Final[tuple[JobState, ...]] = ("waiting", "prioritized", "delayed", "waiting_children")
_NOTHING_BESIDE: Final = (None, None, None, 0, False, 0, None, None, None, None, None, None, None, None, None, False)
"""What ``Queue.add`` has of the options that stand in a ``JobSpec``, if none was given."""


def _about_id(queue: Queue, /, job_id: str, *_: object, **__: object) -> Attributes:
    return {JOB_ID: job_id}


class Page(msgspec.Struct, frozen=True):
    """Some of the jobs in a state: ``Queue.page``.

    Attributes:
        jobs: as they were when they were read. There may be fewer than were asked for, also none, although more follow.
        cursor: for the next page; None after the last.
    """

    jobs: list[Job[Any]]
    cursor: str | None


class Queue:
    """A queue by its name. Making one connects to nothing; the first call does.

    Leave it with ``async with``, or call ``close()``.

    Args:
        name: any text without ``:``; with ``hash_tag`` also without braces.
        connection: a ``Connection`` to share, or the URL of the server; left out, ``ECHOMQ_URL`` says it.
        prefix: what its keys begin with. ``"bull"`` is BullMQ's own.
        hash_tag: whether the name stands in braces in its keys, so that a cluster keeps them together. Left out: yes,
            except with the prefix ``"bull"``.
        max_size: how many jobs may wait in the queue (with a priority or a delay, or without); what would be one more is
            refused with ``QueueFull``. It binds the adds of this object; give it to all that add. Left out: any number.
        telemetry: hears what is done here, such as ``echomq.telemetry.OpenTelemetry()``; or a list of such (docs/telemetry.md).
        max_bytes: how many bytes the data of a job may take, as they stand on the server; more is refused with
            ``PayloadTooLarge``. Left out, 16 MiB; None for any number.
        codec: how data are stored, and results read: a ``Codec`` of ``echomq.payloads``, or several, each working on what the one
            before it has made. Left out, as plain JSON. All that add, read and work the jobs need the same (docs/payloads.md).

    Raises:
        InvalidOption: a name breaks a rule.

    Example:
        >>> async with Queue("enrollments", connection="redis://localhost:6379/0") as queue:
        ...     job = await queue.add("enroll", {"learner": 7, "course": "redis"}, attempts=5)
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        max_size: int | None = None,
        telemetry: TelemetryOption = None,
        max_bytes: int | None = MAX_BYTES,
        codec: CodecOption = None,
    ) -> None:
        keys = QueueKeys.of(name, prefix=prefix, hash_tag=hash_tag)
        if max_size is not None:
            check_whole(max_size, "max_size", least=1)
        payloads, most = Payloads.of(codec), check_max_bytes(max_bytes)
        self._home = Home(Connection.of(connection), keys, max_size, Guard.of(telemetry), payloads, most)
        self._dead_letter: DeadLetterQueue | None = None

    def __repr__(self) -> str:
        return f"<Queue {self.name} at {self._home.connection.where}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._home.keys.queue

    async def add(
        self,
        name: str | JobSpec,
        data: JSON = UNSET,
        *,
        job_id: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        lifo: bool = False,
        attempts: int = 0,
        backoff: Backoff | Duration | None = None,
        remove_on_complete: Keep | None = None,
        remove_on_fail: Keep | None = None,
        stack_trace_limit: int | None = None,
        timestamp: datetime | None = None,
        deduplication: Deduplication | str | None = None,
        unique_by: Sequence[str] | None = None,
        expire_in: Duration | None = None,
        keep_logs: int | None = None,
        omit_context: bool = False,
    ) -> Job[Any]:
        """Adds a job. When this returns, the server has it.

        Jobs added at the same moment by several tasks travel together. A call whose reply is lost is repeated, and adds
        nothing twice. One that is cancelled, as by ``asyncio.timeout``, adds nothing if it waited for its turn or for the server;
        was it sent, the job may have been added. A paused queue takes jobs too.

        Args:
            name: the task's name; or a whole ``JobSpec``, such as ``task.spec(…)`` gives, and then nothing else.
            data: anything that can be written as JSON (dataclasses, msgspec structs, dates, UUIDs, enums too); left
                out, an empty object.
            job_id: an id of your own. If a job of this id is there, nothing is changed; you get that job then, and its
                ``duplicate`` is True. Where it cannot be read, the record has what you asked for; ``refresh()`` reads it.
            delay: seconds, or a ``timedelta``, before it may run.
            at: the moment (an aware ``datetime``) from which it may run; instead of ``delay``.
            priority: 0 (none: runs before all with one) or 1 … 2097151, lower first.
            lifo: put it at the front of the line; of no effect together with a priority.
            attempts: how often it may run in all; 0 and 1 both mean once.
            backoff: what to wait between attempts: a ``Backoff``, or seconds.
            remove_on_complete: which completed jobs to keep: a ``Keep``; left out, the worker decides.
            remove_on_fail: the same for failed ones.
            stack_trace_limit: how many tracebacks to keep.
            timestamp: when it was made; left out, the server's now.
            deduplication: a ``Deduplication``, or an id for the simple kind. If a job holds this id, nothing is added (as
                far as the kind does not say otherwise); you get that job then, and its ``deduplicated`` is True.
            unique_by: names of keys of ``data``, which must be an object: the job's name and the values of these keys make
                the deduplication id.
            expire_in: seconds, or a ``timedelta``, after it could first run: if no worker has started it by then, it fails
                without being run.
            keep_logs: how many lines of its log are kept, the last ones; left out, 1,000.
            omit_context: where there is telemetry: let the job not carry the context of its trace, so that its run begins a trace
                of its own.

        Raises:
            InvalidOption: an option breaks a rule. EncodingError: the data has no JSON form; says where.
            PayloadTooLarge: the data takes more than ``max_bytes``. StoreUnavailable: the codec's store does not answer.
            QueueFull: as many jobs wait as ``max_size`` allows; the job was not added.
            ServerUnavailable: the job was not added. ConnectionLost: it may have been added, or not.

        Example:
            >>> job = await queue.add("enroll", {"learner": 7}, delay=5, attempts=3, backoff=Backoff.exponential(1))
        """
        beside = (
            job_id, delay, at, priority, lifo, attempts, backoff, remove_on_complete, remove_on_fail, stack_trace_limit,
            timestamp, deduplication, unique_by, expire_in, keep_logs, omit_context,
        )  # fmt: skip
        if isinstance(name, JobSpec) and (data is not UNSET or beside != _NOTHING_BESIDE):
            raise InvalidOption("a JobSpec has its data and its options already: give nothing else beside it")
        spec = name if isinstance(name, JobSpec) else JobSpec(name, data, *beside)
        new = encode_spec(spec)
        home = self._home
        sent = new if home.payloads is None else await home.encoded(new)
        home.check_size(sent[1], spec.max_bytes)
        if home.telemetry is not None:
            return await self._traced_add(home.telemetry, spec, new, sent)
        [added] = await home.line.add((sent,))
        return self._job(new, added) if added.code == ADDED else await self._not_new(new, added)

    async def add_bulk(self, jobs: Iterable[JobSpec]) -> list[Job[Any]]:
        """Adds many jobs to this queue, in order; also those that a task of another queue has made with ``spec``.

        All are checked and encoded before the first is sent. They travel in parts of at most 100 jobs or 1 MiB; each
        part is added as a whole or not at all.

        Raises:
            InvalidOption, EncodingError, PayloadTooLarge: names the position; nothing was added.
            StoreUnavailable: the codec's store does not answer; nothing was added.
            BulkAddError: it stopped half-way; says which jobs were added, which were not, and of which that is unknown.

        Example:
            >>> await queue.add_bulk(JobSpec("enroll", {"learner": number}) for number in range(10_000))
        """
        given: object = jobs
        if not isinstance(given, Iterable):
            raise InvalidOption(f"jobs={shown(given)}: must be a list of JobSpecs, or what else gives them one by one")
        specs = list(jobs)
        new = [encoded(position, spec) for position, spec in enumerate(specs)]
        return await self._add_encoded(specs, new, await self._home.all_wrapped(new, specs))

    async def _add_encoded(self, specs: list[JobSpec], new: list[NewJob], sent: list[NewJob]) -> list[Job[Any]]:
        """Adds jobs that were checked and encoded: as they read, and as they are to be stored."""
        telemetry = self._home.telemetry
        if telemetry is None or not new:
            return await self._add_all(new, sent)
        about: Attributes = {"bullmq.job.bulk.count": len(new), "bullmq.job.bulk.names": _names(specs)}
        with telemetry.span("addBulk", self._home.keys.protocol_name, "producer", about) as span:
            return await self._add_all(_carrying(new, specs, span), _carrying(sent, specs, span))

    async def _add_all(self, new: list[NewJob], sent: list[NewJob]) -> list[Job[Any]]:
        line = self._home.line
        made: list[Job[Any]] = []
        not_new: list[tuple[int, int]] = []  # position and code
        for start, end in _parts(sent):
            part = new[start:end]
            try:
                results = await line.add(sent[start:end])
            except EchoMQError as error:
                lost = isinstance(error, ConnectionLost)
                raise BulkAddError(
                    f"{len(made)} of {len(new)} jobs were added, then: {error}",
                    added=[job.id for job in made],
                    unknown=range(start, end) if lost else (),
                    not_added=range(end if lost else start, len(new)),
                ) from error
            others = [(position, added.code) for position, added in enumerate(results, start) if added.code != ADDED]
            refused = [position for position, code in others if code == FULL]
            if refused:
                full = self._home.full(results[refused[0] - start])
                there = [job.id for job in made] + [added.job_id for added in results if added.code != FULL]
                raise BulkAddError(
                    f"{len(there)} of {len(new)} jobs were added, then: {full}",
                    added=there,
                    unknown=(),
                    not_added=[*refused, *range(end, len(new))],
                ) from full
            made += map(self._job, part, results)
            not_new += others
        for start in range(0, len(not_new), MOST_JOBS):
            some = not_new[start : start + MOST_JOBS]
            found = await asyncio.gather(*(_as_it_is(made[position], code) for position, code in some))
            for (position, _), job in zip(some, found, strict=True):
                made[position] = job
        return made

    async def get_job(self, job_id: str) -> Job[Any] | None:
        """A job and its state as they are at this moment, or None if there is none of this id.

        Raises:
            ServerUnavailable: the server could not be asked.
        """
        _check_known_id(job_id)
        found = await read.job(self._home.line, job_id)
        return None if found is None else Job(found[0], self._home, found[1])

    async def explain(self, job_id: str) -> Explanation:
        """Why a job is where it is, and what comes next for it; also of an id of which there is no job.

        Raises:
            ServerUnavailable: the server could not be asked.

        Example:
            >>> print(await queue.explain("7"))
            job '7' of queue 'prints' is waiting
              - the queue is paused: no worker takes a job from it before queue.resume()
              - 12 jobs are before it in the line
        """
        _check_known_id(job_id)
        return await explain.explain(self._home.line, job_id)

    @traced("cancel", about=_about_id)
    async def cancel(self, job_id: str, reason: str = "") -> bool:
        """Cancels the job with this id, as ``Job.cancel`` does; without reading it.

        Args:
            job_id: which.
            reason: why, for whoever waits for the job or looks at it: at most 1,000 characters.

        Returns:
            False: it had ended before, and stays as it is.

        Raises:
            InvalidOption: an argument breaks a rule. JobNotFound: it is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await queue.cancel("7", "the learner has left")
            True
        """
        _check_known_id(job_id)
        return await control.cancel(self._home.line, job_id, checked_reason(reason))

    async def counts(self, *states: JobState) -> dict[JobState, int]:
        """How many jobs are in each of these states, or, without an argument, in each state.

        Raises:
            InvalidOption: there is no such state. ServerUnavailable: the server could not be asked.

        Example:
            >>> await queue.counts("waiting", "failed")
            {'waiting': 3, 'failed': 0}
        """
        check_states(states)
        found = await read.counts(self._home.line, states or JOB_STATES)
        if self._home.telemetry is not None:
            self._home.telemetry.counted(self._home.keys.protocol_name, read.as_stored(found))
        return found

    async def outbox_size(self) -> int:
        """How many outcomes of its jobs wait to be forwarded to a results queue (docs/results-queue.md): 0 but for a moment.

        Raises:
            ServerUnavailable: the server could not be asked.

        Example:
            >>> await queue.outbox_size()
            0
        """
        return await read.outbox_size(self._home.line)

    async def jobs(self, *states: JobState, newest_first: bool = False) -> AsyncIterator[Job[Any]]:
        """The jobs in these states, or, without an argument, in each state: one state after the other.

        They are read in pages of 100, while the queue goes on (``page``): a job that stays in its state meanwhile is not passed
        over, one that moves may be, or show where it was; none comes twice.

        Args:
            states: which.
            newest_first: within a state; left out, the one that runs next, is due next or ended first comes first.

        Raises:
            InvalidOption: there is no such state. ServerUnavailable: the server could not be asked.

        Example:
            >>> async for job in queue.jobs("failed", newest_first=True):
            ...     print(job.id, job.failed_reason)
        """
        check_states(states)
        check_truth(newest_first, "newest_first")
        seen: set[str] = set()
        for state in dict.fromkeys(states or JOB_STATES):
            cursor, more = None, True
            while more:
                page = await read.page(self._home.line, state, cursor, _PAGE, newest_first=newest_first)
                for stored in page.jobs:
                    if stored.id not in seen:
                        seen.add(stored.id)
                        yield Job(stored, self._home, state)
                cursor, more = page.cursor, page.cursor is not None

    async def page(
        self, state: JobState, *, cursor: str | None = None, limit: int = _PAGE, newest_first: bool = False
    ) -> Page:
        """A page of the jobs in a state, read in one call that is bounded however many there are.

        A cursor holds on to jobs of its page, so that it stays where it is while others come and go. A job that stays in the
        state, and keeps its priority or its time, is on exactly one page. ``waiting`` and ``active`` are lists: there none is
        passed over as long as fewer than 1,000 jobs come and go between two pages, and one may come twice if the last four jobs
        of a page have left the state before the next page is read.

        Args:
            state: which.
            cursor: that of the page before; left out, the first page.
            limit: how many jobs at most, from 1 to 1,000. A page ends also after some 1 MiB.
            newest_first: left out, the one that runs next, is due next or ended first comes first.

        Raises:
            InvalidOption: an argument breaks a rule. ServerUnavailable: the server could not be asked.

        Example:
            >>> page = await queue.page("failed", limit=20, newest_first=True)
            >>> [job.failed_reason for job in page.jobs]
            >>> if page.cursor is not None:
            ...     page = await queue.page("failed", cursor=page.cursor, limit=20, newest_first=True)
        """
        check_states((state,))
        check_whole(limit, "limit", least=1, most=_LARGEST_PAGE)
        check_truth(newest_first, "newest_first")
        found = await read.page(self._home.line, state, cursor, limit, newest_first=newest_first)
        return Page([Job(stored, self._home, state) for stored in found.jobs], found.cursor)

    async def count(self) -> int:
        """How many jobs have not been run yet: those that wait, with a priority, for their time or for their children.

        Raises:
            ServerUnavailable: the server could not be asked.

        Example:
            >>> await queue.count()
            12
        """
        return sum((await read.counts(self._home.line, _NOT_RUN)).values())

    async def counts_per_priority(self, *priorities: int) -> dict[int, int]:
        """How many jobs wait with each of these priorities; 0 stands for those without one.

        Args:
            priorities: which, 1,000 at most; left out, 0 and all that jobs wait with, the first 1,000.

        Raises:
            InvalidOption: there is no such priority. ServerUnavailable: the server could not be asked.

        Example:
            >>> await queue.counts_per_priority(0, 1, 5)
            {0: 12, 1: 3, 5: 0}
        """
        for priority in priorities:
            check_whole(priority, "priority", least=0, most=MAX_PRIORITY)
        if len(priorities) > _MOST_PRIORITIES:
            raise InvalidOption(
                f"{len(priorities)} priorities: at most {_MOST_PRIORITIES} are counted at once; ask for fewer"
            )
        return await read.counts_per_priority(self._home.line, priorities)

    async def metrics(self, state: Literal["completed", "failed"], minutes: int | None = None) -> MetricsSeries:
        """How many jobs completed, or failed, in all and by the minute, as far as workers count (``metrics_points``).

        Args:
            state: which of the two.
            minutes: how many minutes back from the latest one; left out, all that are kept.

        Raises:
            InvalidOption: an argument breaks a rule. ServerUnavailable: the server could not be asked.

        Example:
            >>> series = await queue.metrics("completed", minutes=60)
            >>> max(point.count for point in series.points)
        """
        if state not in ("completed", "failed"):
            raise InvalidOption(f"state={shown(state)}: must be completed or failed; others are not counted")
        if minutes is not None:
            check_whole(minutes, "minutes", least=1)
        return await read.metrics(self._home.line, state, minutes)

    @staticmethod
    async def names(
        connection: Connection | str | None = None, *, prefix: str = "emq", hash_tag: bool | None = None
    ) -> list[str]:
        """The names of the queues with this prefix, sorted. Queues of dead letters are not among them.

        All keys of the server are walked, in bounded steps.

        Args:
            connection: a ``Connection``, or the URL of the server; left out, ``ECHOMQ_URL`` says it.
            prefix: as for ``Queue``.
            hash_tag: as for ``Queue``: whether the names stand in braces in the keys. With False they are given as they stand
                there, in braces or not.

        Raises:
            InvalidOption: an argument breaks a rule. ServerUnavailable: the server could not be asked.

        Example:
            >>> await Queue.names("redis://localhost:6379/0")
            ['enrollments', 'reports']
        """
        braces = QueueKeys.of("any", prefix=prefix, hash_tag=hash_tag).hash_tag
        hub = Connection.of(connection).acquire()
        try:
            return await read.queue_names(hub, prefix=prefix, hash_tag=braces)
        finally:
            await hub.release()

    async def workers(self) -> list[WorkerInfo]:
        """Every worker of this queue, in any runtime, by name.

        A worker of EchoMQ says of itself where it runs and how it fares; one of BullMQ is known by its connection. One that has
        died is shown as not connected for up to three of its ``stalled_interval``, and then no more.

        Raises:
            ServerUnavailable: the server could not be asked.

        Example:
            >>> for worker in await queue.workers():
            ...     print(worker.name, worker.host, f"{len(worker.jobs)} of {worker.slots} slots")
        """
        return await presence.workers(self._home.line)

    @property
    def admin(self) -> QueueAdmin:
        """What is done to many jobs at once, or to the whole queue: retry, promote, drain, clean, obliterate."""
        return QueueAdmin(self._home)

    @traced("setGlobalConcurrency")
    async def set_concurrency(self, most: int | None) -> None:
        """Lets at most so many jobs of this queue run at once, over all workers; None for any number.

        Jobs that run go on. Workers that wait for a slot look again at once.

        Raises:
            InvalidOption: it is no whole number of at least 1.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        if most is not None:
            check_whole(most, "most", least=1, most=MAX_COUNT)
        await limits.set_concurrency(self._home.line, most)

    async def concurrency(self) -> int | None:
        """How many jobs of this queue may run at once, over all workers; None for any number.

        Raises:
            ServerUnavailable: the server could not be asked.
        """
        return await limits.concurrency(self._home.line)

    @traced("setGlobalRateLimit")
    async def set_rate_limit(self, max: int, duration: Duration) -> None:
        """Lets at most ``max`` jobs of this queue start in ``duration``, over all workers.

        Time is cut into windows: one opens with a start, lasts for ``duration``, and the next opens with the first start after
        it. So a span of that length that lies across two windows can see up to 2·max − 1 starts.

        Args:
            max: at least 1.
            duration: seconds, or a ``timedelta``.

        Raises:
            InvalidOption: an argument breaks a rule.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await queue.set_rate_limit(100, duration=60)
        """
        await limits.set_rate(self._home.line, Limiter(max, duration))

    @traced("removeGlobalRateLimit")
    async def remove_rate_limit(self) -> None:
        """Lifts what ``set_rate_limit`` set. Limits of single workers and one by hand stay.

        Raises:
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        await limits.set_rate(self._home.line, None)

    async def limiter(self) -> Limiter | None:
        """What ``set_rate_limit`` set, or None.

        Raises:
            ServerUnavailable: the server could not be asked.
        """
        return await limits.rate(self._home.line)

    @traced("rateLimit")
    async def rate_limit(self, after: Duration) -> None:
        """Lets no worker of this queue fetch for a time, as a far side asks that has had enough. Jobs that run go on.

        Workers of BullMQ heed this only where a rate limit is set, in the queue or in the worker; ours always.

        Args:
            after: seconds, or a ``timedelta``; 0 lifts what is left of an earlier call.

        Raises:
            InvalidOption: it is no such time.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        to_seconds(after, "after")
        await limits.limit_by_hand(self._home.line, after)

    async def rate_limit_ttl(self, max: int | None = None) -> float:
        """Seconds until workers may fetch again that a rate limit holds back; 0.0 if it holds back none.

        What counts is the ``max`` that the workers go by: that of the queue, if ``set_rate_limit`` set one. Where only workers
        have one, in a ``Limiter`` of their own, the server does not know it: without ``max`` the answer is 0.0 then, also while
        their window is used up.

        Args:
            max: that of the workers' own ``Limiter``; left out, the answer is for workers without one.

        Raises:
            InvalidOption: it is no whole number of at least 1. ServerUnavailable: the server could not be asked.
        """
        if max is not None:
            check_whole(max, "max", least=1)
        return await limits.ttl(self._home.line, max)

    @property
    def dead_letter(self) -> DeadLetterQueue:
        """The queue of its dead letters: what jobs left that failed for good, if their workers have ``dead_letter=True``.

        It is closed with this one.

        Example:
            >>> async for job in queue.dead_letter.jobs("waiting"):
            ...     print(job.id, job.name, job.dead_letter.reason)
            >>> await queue.dead_letter.requeue()
        """
        if self._dead_letter is None:
            self._dead_letter = DeadLetterQueue(self)
        return self._dead_letter

    @traced("publishEvent")
    async def publish(self, name: str, /, **fields: str | int | float | bool) -> None:
        """Writes an event of your own into the queue's event log, for whoever listens to it, in any language.

        Args:
            name: not that of an event of the queue's own.
            fields: texts of at most 65,536 characters, numbers and truth values; they arrive as texts.

        Raises:
            InvalidOption: a name or a field breaks a rule.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await queue.publish("course-closed", course="redis", learners=30)
        """
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"event {shown(name)}: its name must be a text that is not empty")
        _check_unicode(name, f"event {shown(name)}")
        if name in RESERVED:
            raise InvalidOption(f"event {shown(name)}: the queue itself writes events of this name; choose another")
        if "event" in fields:
            raise InvalidOption(
                f"event={shown(fields['event'])}: a field cannot be called 'event', which holds the name; choose another"
            )
        if len(fields) > _MOST_FIELDS:
            raise InvalidOption(
                f"event {shown(name)}: has {len(fields)} fields, and at most {_MOST_FIELDS} are allowed"
            )
        for field, value in fields.items():
            _check_unicode(field, f"field {shown(field)}")
            if not isinstance(value, (str, int, float)):
                raise InvalidOption(
                    f"{field}={shown(value)}: a field of an event must be a text, a number, True or False"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidOption(f"{field}={shown(value)}: must be a finite number; send it as a text")
            _check_unicode(value, f"{field}={shown(value)}")
            if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
                raise InvalidOption(
                    f"{field}={shown(value)}: has {len(value):,} characters, and an event's field at most {_MOST_CHARACTERS:,}; "
                    "store it elsewhere and send where it is"
                )
        await control.publish(self._home.line, name, fields)

    @traced("pause")
    async def pause(self) -> None:
        """Lets workers fetch nothing more from this queue, wherever they run; jobs that run go on.

        Raises:
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        await control.pause(self._home.line)

    @traced("resume")
    async def resume(self) -> None:
        """Lets workers fetch again.

        Raises:
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        await control.resume(self._home.line)

    async def is_paused(self) -> bool:
        """Whether the queue is paused.

        Raises:
            ServerUnavailable: the server could not be asked.
        """
        return await read.is_paused(self._home.line)

    @traced("removeDeduplicationKey")
    async def remove_deduplication(self, deduplication_id: str) -> bool:
        """Frees a deduplication id, so that the next add of it adds a job. The job that held it goes on as it is.

        Args:
            deduplication_id: as it was given to the add; of one made by ``unique_by``, ``job.deduplication_id`` says it.

        Returns:
            Whether a job held it.

        Raises:
            InvalidOption: this cannot be a deduplication id.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await queue.remove_deduplication("report-7")
            True
        """
        check_deduplication_id(deduplication_id)
        return await control.remove_deduplication(self._home.line, deduplication_id.encode())

    async def close(self) -> None:
        """Waits for the calls under way, then lets the connection go. Closing again does nothing."""
        try:
            if self._dead_letter is not None:
                await self._dead_letter.close()
        finally:
            await self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _traced_add(self, telemetry: Guard, spec: JobSpec, new: NewJob, sent: NewJob) -> Job[Any]:
        with telemetry.span("add", self._home.keys.protocol_name, "producer", {JOB_NAME: spec.name}) as span:
            new, sent = _carrying([new, sent], [spec, spec], span)
            [added] = await self._home.line.add((sent,))
            job = self._job(new, added) if added.code == ADDED else await self._not_new(new, added)
            span.set({JOB_ID: job.id})
            return job

    async def _not_new(self, new: NewJob, added: Added) -> Job[Any]:
        if added.code == FULL:
            raise self._home.full(added)
        return await _as_it_is(self._job(new, added), added.code)

    def _job(self, new: NewJob, added: Added) -> Job[Any]:
        kind = StoredJob if self._home.payloads is None else PlainJob
        stored = kind.from_new(added.job_id, new, added.at)
        if added.code != ADDED:
            return Job(stored, self._home).as_found(added.code)
        state: JobState = "waiting"
        if stored.fields[b"delay"] != b"0":
            state = "delayed"
        elif stored.fields[b"priority"] != b"0":
            state = "prioritized"
        return Job(stored, self._home, state)


class DeadLetterQueue(Queue):
    """The dead letters of a queue: ``queue.dead_letter``. An ordinary queue, in which they wait; a ``Worker`` may work it.

    A dead letter is a job of its own, with the name and data of the one that failed, its reason and its tracebacks;
    ``Job.dead_letter`` says more. The job that failed stays in its own queue, in ``failed``, as long as its retention says.
    """

    def __init__(self, origin: Queue) -> None:
        self._origin = origin._home.keys
        home = origin._home
        self._home = Home(
            home.connection,
            self._origin.dead_letters,
            telemetry=home.telemetry,
            payloads=home.payloads,
            max_bytes=home.max_bytes,
        )
        self._dead_letter = None

    @traced("requeue", "producer")
    async def requeue(self, job_id: str | None = None, *, on_progress: OnProgress | None = None) -> list[str]:
        """Moves dead letters back to the queue in which they failed, each as a new job whose attempts begin anew.

        Each keeps the id that it had there if no job has it now (one that stands in ``failed`` does), else it gets a new one.
        One with ``expire_in`` has that time anew, from now on.
        It goes to the end of the line, or of its priority's, at once, belongs to no parent, and holds no deduplication id.

        Args:
            job_id: the id of one, in this queue; left out, all that wait now, the oldest first.
            on_progress: is called after each step with how many have been moved so far; what it raises ends this.

        Returns:
            Their ids in the other queue. A call that is cut short has moved a part: call it again for the rest.

        Raises:
            StateError: it does not wait here, but was fetched by a worker, perhaps. JobNotFound: it is gone.
            ServerUnavailable: no further part was carried out. ConnectionLost: of one part that is not known.
        """
        if job_id is not None:
            _check_known_id(job_id)
        return await control.requeue(self._home.line, self._origin, job_id, check_on_progress(on_progress))


async def _as_it_is(asked: Job[Any], code: int) -> Job[Any]:
    """The job that had this id, or deduplication id, already, as it is; as asked for, if it has gone or cannot be read.

    By now nothing may look as if the jobs had not been added.
    """
    try:
        found = await asked.refresh()
    except EchoMQError:
        return asked
    return asked if found is None else found.as_found(code)


def _check_known_id(job_id: str) -> None:
    given: object = job_id
    if not isinstance(given, str) or not given:
        instead = f"; write '{given}'" if type(given) is int else ""
        raise InvalidOption(f"job_id={shown(given)}: must be a text that is not empty{instead}")


def _check_unicode(value: object, what: str) -> None:
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{what}: holds a lone surrogate, which has no UTF-8 form; remove it") from None


def check_states(states: Iterable[JobState]) -> None:
    """Refuses a state that there is not."""
    for state in states:
        if state not in JOB_STATES:
            raise InvalidOption(f"state {shown(state)}: must be one of {', '.join(JOB_STATES)}")


def encoded(position: int, spec: JobSpec) -> NewJob:
    """As it is sent. What is wrong with it names its position."""
    if not isinstance(spec, JobSpec):
        raise InvalidOption(f"jobs[{position}] is a {type(spec).__name__}: must be a JobSpec")
    try:
        return encode_spec(spec)
    except EncodingError as error:
        raise EncodingError(f"jobs[{position}]: {error}", path=f"jobs[{position}].{error.path}") from error


def _carrying(new: list[NewJob], specs: list[JobSpec], span: Spans) -> list[NewJob]:
    context = span.carried()
    if context is None:
        return new
    return [one if spec.omit_context else carrying(one, context) for one, spec in zip(new, specs, strict=True)]


def _names(specs: Sequence[JobSpec]) -> list[str]:
    """The different names among them, as many as a span should hold."""
    return list(dict.fromkeys(spec.name for spec in specs))[:_MOST_NAMES]


def _parts(jobs: list[NewJob]) -> Iterable[tuple[int, int]]:
    """Where to cut: parts of at most ``MOST_JOBS`` jobs and ``MOST_BYTES``; a job above that goes alone."""
    start, size = 0, 0
    for position, job in enumerate(jobs):
        more = size_of(job)
        if position > start and (position - start == MOST_JOBS or size + more > MOST_BYTES):
            yield start, position
            start, size = position, 0
        size += more
    if start < len(jobs):
        yield start, len(jobs)
