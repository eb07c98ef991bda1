"""The calls without ``await``, for programs that have no event loop: scripts, Flask, Django, notebooks.

Each is the async call of the same name, carried out by the event loop of its ``Connection``'s portal: it takes the same
arguments, returns the same and raises the same. Any number of threads may call at the same time.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, Self, TypeVar, Unpack

import msgspec

from echomq._elsewhere import ATTRIBUTES_OF_TASKS, answers
from echomq._payloads import CodecOption
from echomq._portal import Portal
from echomq._telemetry import TelemetryOption
from echomq.connection import Connection
from echomq.errors import InvalidOption
from echomq.job import Job, JobRecord, StopFlag
from echomq.models import JOB_STATES, Explanation, Healed, JobState, Logs, MetricsSeries, ScheduleInfo, WorkerInfo
from echomq.options import (
    JSON,
    MAX_BYTES,
    UNSET,
    Backoff,
    Cron,
    Deduplication,
    Duration,
    Every,
    JobSpec,
    Keep,
    Limiter,
    MissedRuns,
    OnProgress,
)
from echomq.queue import DeadLetterQueue, Page, Queue, check_states
from echomq.queue_admin import Cleanable, Ended, QueueAdmin
from echomq.scheduler import JobScheduler

if TYPE_CHECKING:
    from echomq.app import EchoMQ
    from echomq.task import NextJobs, Task

__all__ = [
    "SyncDeadLetterQueue",
    "SyncEchoMQ",
    "SyncJob",
    "SyncJobScheduler",
    "SyncPage",
    "SyncQueue",
    "SyncQueueAdmin",
    "SyncTask",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PAGE: Final = 100


class SyncEchoMQ:
    """``app.sync``: what an app can do, without ``await``.

    Example:
        >>> app.sync.queue("enrollments").counts()["waiting"]
        12
    """

    def __init__(self, app: EchoMQ) -> None:
        self._app = app

    def __repr__(self) -> str:
        return f"<SyncEchoMQ of {self._app!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def queue(self, name: str, *, max_size: int | None = None) -> SyncQueue:
        """The queue of this name. As ``EchoMQ.queue``."""
        return SyncQueue(self._app.queue(name, max_size=max_size))

    def enqueue_all(self, specs: Iterable[JobSpec]) -> list[SyncJob[Any]]:
        """Adds many jobs, each to the queue of its task, by the name of the job. As ``EchoMQ.enqueue_all``."""
        return [SyncJob(job) for job in self._app.connection.portal.call(self._app.enqueue_all, specs)]

    def scheduler(self, queue: str) -> SyncJobScheduler:
        """The schedules of the queue of this name."""
        return SyncJobScheduler(self._app.queue(queue))

    def close(self) -> None:
        """Closes the app's queues, and with the last of them the sockets. As ``EchoMQ.close``.

        A program that ends need not call it. The app may be used again.
        """
        portal = self._app.connection.portal
        portal.call(self._app.close)
        portal.rest()


@answers("a task", ATTRIBUTES_OF_TASKS)
class SyncTask(Generic[P, R]):
    """``task.sync``: enqueues a task without ``await``.

    Example:
        >>> job = enroll.sync.enqueue(7, course="redis")
        >>> seat = job.result(timeout=10)
    """

    def __init__(self, task: Task[P, R]) -> None:
        self._task = task

    def __repr__(self) -> str:
        return f"<SyncTask of {self._task!r}>"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """Adds a job that will call the function with these arguments. As ``Task.enqueue``.

        Options of the job are given before: ``enroll.sync.options(delay=60).enqueue(7, course="redis")``.
        """
        return SyncJob(self._task.app.connection.portal.call(self._task.enqueue, *args, **kwargs))

    def options(self, **options: Unpack[NextJobs]) -> SyncTask[P, R]:
        """The same task with other options for its next jobs. As ``Task.options``.

        Example:
            >>> enroll.sync.options(delay=60).enqueue(7, course="redis")
        """
        return SyncTask(self._task.options(**options))

    def map(self, *iterables: Iterable[Any], **constants: Any) -> list[SyncJob[R]]:
        """Adds a job for each row of arguments, as the built-in ``map`` takes them. As ``Task.map``."""
        return [SyncJob(job) for job in self._task.app.connection.portal.call(self._task.map, *iterables, **constants)]


class SyncJob(JobRecord[R]):
    """A job as it was when it was read, and the verbs it can do, without ``await``.

    Such jobs come from ``task.sync`` and ``SyncQueue``; ``SyncJob(job)`` makes one of any ``Job``, as a handler has that runs in
    a thread.

    Args:
        job: the same job of the async calls.

    Example:
        >>> job = queue.add("enroll", {"learner": 7})
        >>> job.id, job.data
        ('1', {'learner': 7})
        >>> job.result(timeout=10)
    """

    __slots__ = ("_job",)

    def __init__(self, job: Job[R]) -> None:
        for slot in JobRecord.__slots__:
            setattr(self, slot, getattr(job, slot))
        self._job = job

    def refresh(self) -> SyncJob[R] | None:
        """The job as it is now, or None if it is gone. As ``Job.refresh``."""
        found = self._portal.call(self._job.refresh)
        return None if found is None else SyncJob(found)

    def load(self) -> SyncJob[R]:
        """The same record with its data and its result at hand, also from a codec's store. As ``Job.load``."""
        return SyncJob(self._portal.call(self._job.load))

    @property
    def cancelled(self) -> StopFlag:
        """True when it should stop, in a handler that runs in a thread. As ``Job.cancelled``."""
        return self._job.cancelled

    def update_progress(self, value: JSON) -> None:
        """Tells how far the job is. As ``Job.update_progress``."""
        self._portal.call(self._job.update_progress, value)

    def update_data(self, data: JSON) -> None:
        """Gives the job other data, for its next run and for whoever reads it. As ``Job.update_data``."""
        self._portal.call(self._job.update_data, data)

    def log(self, line: str, *, keep: int | None = None) -> int:
        """Adds a line to the log of the job, which goes with it when it is removed. As ``Job.log``."""
        return self._portal.call(self._job.log, line, keep=keep)

    def logs(self, start: int = 0, end: int = -1, *, newest_first: bool = False) -> Logs:
        """Lines of the job's log, the oldest first. As ``Job.logs``."""
        return self._portal.call(self._job.logs, start, end, newest_first=newest_first)

    def explain(self) -> Explanation:
        """Why the job is where it is, and what comes next for it. As ``Job.explain``."""
        return self._portal.call(self._job.explain)

    def clear_logs(self, *, keep: int = 0) -> None:
        """Drops the lines of the job's log. As ``Job.clear_logs``."""
        self._portal.call(self._job.clear_logs, keep=keep)

    def remove(self, *, children: bool = True) -> None:
        """Removes the job. As ``Job.remove``."""
        self._portal.call(self._job.remove, children=children)

    def cancel(self, reason: str = "") -> bool:
        """Cancels the job, wherever it is. As ``Job.cancel``."""
        return self._portal.call(self._job.cancel, reason)

    def promote(self) -> None:
        """Lets the job run now that waits for its time. As ``Job.promote``."""
        self._portal.call(self._job.promote)

    def change_delay(self, delay: Duration | None = None, *, at: datetime | None = None) -> None:
        """Gives the job another time to wait for, while it is delayed. As ``Job.change_delay``."""
        self._portal.call(self._job.change_delay, delay, at=at)

    def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Gives the job another priority. As ``Job.change_priority``."""
        self._portal.call(self._job.change_priority, priority, lifo=lifo)

    def retry(self, *, reset_attempts: bool = False) -> None:
        """Lets the job run again that has failed or completed. As ``Job.retry``."""
        self._portal.call(self._job.retry, reset_attempts=reset_attempts)

    def remove_deduplication(self) -> bool:
        """Frees the deduplication id that this job holds. As ``Job.remove_deduplication``."""
        return self._portal.call(self._job.remove_deduplication)

    def result(self, *, timeout: Duration | None = None) -> R:
        """Waits until the job has ended, and gives what its handler returned. As ``Job.result``."""
        return self._portal.call(self._job.result, timeout=timeout)

    def returning(self, kind: type[T]) -> SyncJob[T]:
        """The same job, whose ``result()`` is turned into this type. As ``Job.returning``."""
        return SyncJob(self._job.returning(kind))

    @property
    def _portal(self) -> Portal:
        return self._home.connection.portal


class SyncPage(msgspec.Struct, frozen=True):
    """Some of the jobs in a state: ``SyncQueue.page``.

    Attributes:
        jobs: as they were when they were read. There may be fewer than were asked for, also none, although more follow.
        cursor: for the next page; None after the last.
    """

    jobs: list[SyncJob[Any]]
    cursor: str | None


class SyncQueue:
    """A queue by its name, without ``await``. Making one connects to nothing; the first call does.

    Leave it with ``with``, or call ``close()``; a program that ends need not. One that is used all the time, as in a web server,
    is made once and kept. Made from a ``Queue`` it uses that one's connection, and need not be closed.

    Args:
        name: its name, or a ``Queue``, and then nothing else.
        connection: a ``Connection`` to share, or the URL of the server; left out, ``ECHOMQ_URL`` says it.
        prefix, hash_tag, max_size, telemetry, max_bytes, codec: as for ``Queue``.

    Raises:
        InvalidOption: a name breaks a rule.

    Example:
        >>> with SyncQueue("enrollments", connection="redis://localhost:6379/0") as queue:
        ...     job = queue.add("enroll", {"learner": 7, "course": "redis"}, attempts=5)
    """

    def __init__(
        self,
        name: str | Queue,
        *,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        max_size: int | None = None,
        telemetry: TelemetryOption = None,
        max_bytes: int | None = MAX_BYTES,
        codec: CodecOption = None,
    ) -> None:
        self._borrowed = isinstance(name, Queue)
        if isinstance(name, Queue):
            beside = (connection, prefix, hash_tag, max_size, telemetry, max_bytes, codec)
            if beside != (None, "emq", None, None, None, MAX_BYTES, None):
                raise InvalidOption(
                    f"SyncQueue({name!r}, …): a Queue has its options already: give nothing else beside it"
                )
            self._queue = name
        else:
            self._queue = Queue(
                name,
                connection=connection,
                prefix=prefix,
                hash_tag=hash_tag,
                max_size=max_size,
                telemetry=telemetry,
                max_bytes=max_bytes,
                codec=codec,
            )
        self._portal = self._queue._home.connection.portal

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self._queue._home.connection.where}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the calls under way, then lets the connection go; a ``Queue``'s it leaves to that."""
        if not self._borrowed:
            self._portal.call(self._queue.close)
            self._portal.rest()

    def add_bulk(self, jobs: Iterable[JobSpec]) -> list[SyncJob[Any]]:
        """Adds many jobs to this queue, in order. As ``Queue.add_bulk``."""
        return [SyncJob(job) for job in self._portal.call(self._queue.add_bulk, jobs)]

    def get_job(self, job_id: str) -> SyncJob[Any] | None:
        """A job and its state as they are at this moment, or None if there is none of this id. As ``Queue.get_job``."""
        found = self._portal.call(self._queue.get_job, job_id)
        return None if found is None else SyncJob(found)

    def cancel(self, job_id: str, reason: str = "") -> bool:
        """Cancels the job with this id, without reading it. As ``Queue.cancel``."""
        return self._portal.call(self._queue.cancel, job_id, reason)

    def jobs(self, *states: JobState, newest_first: bool = False) -> Iterator[SyncJob[Any]]:
        """The jobs in these states, or, without an argument, in each state. As ``Queue.jobs``."""
        check_states(states)
        seen: set[str] = set()
        for state in dict.fromkeys(states or JOB_STATES):
            cursor, more = None, True
            while more:
                page = self.page(state, cursor=cursor, newest_first=newest_first)
                for job in page.jobs:
                    if job.id not in seen:
                        seen.add(job.id)
                        yield job
                cursor, more = page.cursor, page.cursor is not None

    def page(
        self, state: JobState, *, cursor: str | None = None, limit: int = _PAGE, newest_first: bool = False
    ) -> SyncPage:
        """A page of the jobs in a state, read in one call that is bounded however many there are. As ``Queue.page``."""
        page: Page = self._portal.call(self._queue.page, state, cursor=cursor, limit=limit, newest_first=newest_first)
        return SyncPage([SyncJob(job) for job in page.jobs], page.cursor)

    @staticmethod
    def names(
        connection: Connection | str | None = None, *, prefix: str = "emq", hash_tag: bool | None = None
    ) -> list[str]:
        """The names of the queues with this prefix, sorted. As ``Queue.names``."""
        there = Connection.of(connection)
        try:
            return there.portal.call(Queue.names, there, prefix=prefix, hash_tag=hash_tag)
        finally:
            there.portal.rest()

    @property
    def admin(self) -> SyncQueueAdmin:
        """What is done to many jobs at once, or to the whole queue. As ``Queue.admin``."""
        return SyncQueueAdmin(self._queue)

    @property
    def dead_letter(self) -> SyncDeadLetterQueue:
        """The queue of its dead letters. As ``Queue.dead_letter``."""
        return SyncDeadLetterQueue(self._queue)

    @property
    def name(self) -> str:
        """Its name. As ``Queue.name``."""
        return self._queue.name

    def add(
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
    ) -> SyncJob[Any]:
        """Adds a job. As ``Queue.add``."""
        return SyncJob(
            self._portal.call(
                self._queue.add,
                name,
                data,
                job_id=job_id,
                delay=delay,
                at=at,
                priority=priority,
                lifo=lifo,
                attempts=attempts,
                backoff=backoff,
                remove_on_complete=remove_on_complete,
                remove_on_fail=remove_on_fail,
                stack_trace_limit=stack_trace_limit,
                timestamp=timestamp,
                deduplication=deduplication,
                unique_by=unique_by,
                expire_in=expire_in,
                keep_logs=keep_logs,
                omit_context=omit_context,
            )
        )

    def explain(self, job_id: str) -> Explanation:
        """Why a job is where it is, and what comes next for it. As ``Queue.explain``."""
        return self._portal.call(self._queue.explain, job_id)

    def counts(self, *states: JobState) -> dict[JobState, int]:
        """How many jobs are in each of these states, or, without an argument, in each state. As ``Queue.counts``."""
        return self._portal.call(self._queue.counts, *states)

    def outbox_size(self) -> int:
        """How many outcomes of its jobs wait to be forwarded to a results queue. As ``Queue.outbox_size``."""
        return self._portal.call(self._queue.outbox_size)

    def count(self) -> int:
        """How many jobs have not been run yet. As ``Queue.count``."""
        return self._portal.call(self._queue.count)

    def counts_per_priority(self, *priorities: int) -> dict[int, int]:
        """How many jobs wait with each of these priorities. As ``Queue.counts_per_priority``."""
        return self._portal.call(self._queue.counts_per_priority, *priorities)

    def metrics(self, state: Literal["completed", "failed"], minutes: int | None = None) -> MetricsSeries:
        """How many jobs completed, or failed, in all and by the minute. As ``Queue.metrics``."""
        return self._portal.call(self._queue.metrics, state, minutes)

    def workers(self) -> list[WorkerInfo]:
        """Every worker of this queue, in any runtime, by name. As ``Queue.workers``."""
        return self._portal.call(self._queue.workers)

    def set_concurrency(self, most: int | None) -> None:
        """Lets at most so many jobs of this queue run at once, over all workers. As ``Queue.set_concurrency``."""
        self._portal.call(self._queue.set_concurrency, most)

    def concurrency(self) -> int | None:
        """How many jobs of this queue may run at once, over all workers; None for any number. As ``Queue.concurrency``."""
        return self._portal.call(self._queue.concurrency)

    def set_rate_limit(self, max: int, duration: Duration) -> None:
        """Lets at most ``max`` jobs of this queue start in ``duration``, over all workers. As ``Queue.set_rate_limit``."""
        self._portal.call(self._queue.set_rate_limit, max, duration)

    def remove_rate_limit(self) -> None:
        """Lifts what ``set_rate_limit`` set. As ``Queue.remove_rate_limit``."""
        self._portal.call(self._queue.remove_rate_limit)

    def limiter(self) -> Limiter | None:
        """What ``set_rate_limit`` set, or None. As ``Queue.limiter``."""
        return self._portal.call(self._queue.limiter)

    def rate_limit(self, after: Duration) -> None:
        """Lets no worker of this queue fetch for a time, as a far side asks that has had enough. As ``Queue.rate_limit``."""
        self._portal.call(self._queue.rate_limit, after)

    def rate_limit_ttl(self, max: int | None = None) -> float:
        """Seconds until workers may fetch again that a rate limit holds back. As ``Queue.rate_limit_ttl``."""
        return self._portal.call(self._queue.rate_limit_ttl, max)

    def publish(self, name: str, /, **fields: str | int | float | bool) -> None:
        """Writes an event of your own into the queue's event log. As ``Queue.publish``."""
        self._portal.call(self._queue.publish, name, **fields)

    def pause(self) -> None:
        """Lets workers fetch nothing more from this queue, wherever they run; jobs that run go on. As ``Queue.pause``."""
        self._portal.call(self._queue.pause)

    def resume(self) -> None:
        """Lets workers fetch again. As ``Queue.resume``."""
        self._portal.call(self._queue.resume)

    def is_paused(self) -> bool:
        """Whether the queue is paused. As ``Queue.is_paused``."""
        return self._portal.call(self._queue.is_paused)

    def remove_deduplication(self, deduplication_id: str) -> bool:
        """Frees a deduplication id, so that the next add of it adds a job. As ``Queue.remove_deduplication``."""
        return self._portal.call(self._queue.remove_deduplication, deduplication_id)


class SyncDeadLetterQueue(SyncQueue):
    """The dead letters of a queue: ``SyncQueue.dead_letter``. As ``Queue.dead_letter``.

    Args:
        origin: the queue in which they failed.
    """

    def __init__(self, origin: Queue) -> None:
        super().__init__(origin.dead_letter)
        self._dead_letters: DeadLetterQueue = origin.dead_letter

    def requeue(self, job_id: str | None = None, *, on_progress: OnProgress | None = None) -> list[str]:
        """Moves dead letters back to the queue in which they failed. As ``queue.dead_letter.requeue``."""
        return self._portal.call(self._dead_letters.requeue, job_id, on_progress=on_progress)


class SyncQueueAdmin:
    """The verbs of ``SyncQueue.admin``: those of ``Queue.admin``, without ``await``.

    ``on_progress`` is called in the thread that carries out the calls: it must be quick, and make no sync call itself.

    Args:
        queue: the queue that they are done to.
    """

    def __init__(self, queue: Queue) -> None:
        self._admin: QueueAdmin = queue.admin
        self._portal = queue._home.connection.portal

    def retry_all(self, state: Ended = "failed", *, on_progress: OnProgress | None = None) -> int:
        """Lets all jobs run again that have failed (or completed) until now, the oldest first. As ``QueueAdmin.retry_all``."""
        return self._portal.call(self._admin.retry_all, state, on_progress=on_progress)

    def promote_all(self, *, on_progress: OnProgress | None = None) -> int:
        """Lets all delayed jobs run now, in the order of their times, but not the next runs of schedules.

        As ``QueueAdmin.promote_all``.
        """
        return self._portal.call(self._admin.promote_all, on_progress=on_progress)

    def drain(self, *, delayed: bool = False, on_progress: OnProgress | None = None) -> int:
        """Removes the jobs that wait to be run, those with a priority too. As ``QueueAdmin.drain``."""
        return self._portal.call(self._admin.drain, delayed=delayed, on_progress=on_progress)

    def clean(
        self, state: Cleanable, older_than: Duration, limit: int | None = None, *, on_progress: OnProgress | None = None
    ) -> list[str]:
        """Removes jobs of a state that are older than this. As ``QueueAdmin.clean``."""
        return self._portal.call(self._admin.clean, state, older_than, limit, on_progress=on_progress)

    def heal(self, *, on_progress: OnProgress | None = None) -> Healed:
        """Puts back jobs that stand in no state although they are there. As ``QueueAdmin.heal``."""
        return self._portal.call(self._admin.heal, on_progress=on_progress)

    def obliterate(self, *, force: bool = False, on_progress: OnProgress | None = None) -> int:
        """Removes the queue with all that belongs to it, so that no key of it is left. As ``QueueAdmin.obliterate``."""
        return self._portal.call(self._admin.obliterate, force=force, on_progress=on_progress)

    def remove_orphans(self, *, jobs: bool = False, on_progress: OnProgress | None = None) -> int:
        """Removes what was left behind by jobs that are gone. As ``QueueAdmin.remove_orphans``."""
        return self._portal.call(self._admin.remove_orphans, jobs=jobs, on_progress=on_progress)

    def trim_events(self, max_len: int, *, on_progress: OnProgress | None = None) -> int:
        """Cuts the event log to about its latest ``max_len`` entries, now and once. As ``QueueAdmin.trim_events``."""
        return self._portal.call(self._admin.trim_events, max_len, on_progress=on_progress)

    def limit_events(self, *, count: int | None = None, bytes: int | None = None) -> None:
        """Sets how long the event log of this queue may grow. As ``QueueAdmin.limit_events``."""
        self._portal.call(self._admin.limit_events, count=count, bytes=bytes)


class SyncJobScheduler:
    """The schedules of a queue, without ``await``. As ``JobScheduler``.

    Args:
        queue: its name, or a ``SyncQueue`` or ``Queue``, whose connection is used.
        connection: a ``Connection`` to share, or a URL; left out, ``ECHOMQ_URL``.
        prefix, hash_tag, max_bytes, codec: as for ``Queue``.

    Example:
        >>> with SyncJobScheduler("reports", connection="redis://localhost:6379/0") as scheduler:
        ...     scheduler.upsert("daily", Cron("30 9 * * *", tz="Europe/Vienna"), JobSpec("report", {"of": "yesterday"}))
    """

    def __init__(
        self,
        queue: str | Queue | SyncQueue,
        *,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        max_bytes: int | None = MAX_BYTES,
        codec: CodecOption = None,
    ) -> None:
        of = queue._queue if isinstance(queue, SyncQueue) else queue
        self._scheduler = JobScheduler(
            of, connection=connection, prefix=prefix, hash_tag=hash_tag, max_bytes=max_bytes, codec=codec
        )
        self._portal = self._scheduler._home.connection.portal

    def __repr__(self) -> str:
        return f"<SyncJobScheduler of {self.queue} at {self._scheduler._home.connection.where}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the calls under way, then lets the connection go; a queue's it leaves to that."""
        self._portal.call(self._scheduler.close)
        self._portal.rest()

    @property
    def queue(self) -> str:
        """The name of its queue. As ``JobScheduler.queue``."""
        return self._scheduler.queue

    def upsert(
        self,
        schedule_id: str,
        rhythm: Every | Cron,
        job: JobSpec,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        immediately: bool = False,
        missed: MissedRuns = "once",
        grace: Duration | None = None,
        spread: Duration | None = None,
    ) -> ScheduleInfo:
        """Makes a schedule, or changes the one of this id. As ``JobScheduler.upsert``."""
        return self._portal.call(
            self._scheduler.upsert,
            schedule_id,
            rhythm,
            job,
            start=start,
            end=end,
            limit=limit,
            immediately=immediately,
            missed=missed,
            grace=grace,
            spread=spread,
        )

    def get(self, schedule_id: str) -> ScheduleInfo | None:
        """A schedule as it is now, paused or not; None if there is none of this id. As ``JobScheduler.get``."""
        return self._portal.call(self._scheduler.get, schedule_id)

    def list(self) -> builtins.list[ScheduleInfo]:
        """All schedules of the queue, those that run next first; paused and ended ones last. As ``JobScheduler.list``."""
        return self._portal.call(self._scheduler.list)

    def remove(self, schedule_id: str) -> bool:
        """Removes a schedule, and its next run. As ``JobScheduler.remove``."""
        return self._portal.call(self._scheduler.remove, schedule_id)

    def pause(self, schedule_id: str) -> None:
        """No further run of it starts until ``resume``; one that runs goes on. As ``JobScheduler.pause``."""
        self._portal.call(self._scheduler.pause, schedule_id)

    def resume(self, schedule_id: str) -> ScheduleInfo:
        """Lets a paused schedule go on with its next time from now on, in step with before. As ``JobScheduler.resume``."""
        return self._portal.call(self._scheduler.resume, schedule_id)

    def run_now(self, schedule_id: str) -> SyncJob[Any]:
        """Adds a job of the schedule's template, to run at once. As ``JobScheduler.run_now``."""
        return SyncJob(self._portal.call(self._scheduler.run_now, schedule_id))
