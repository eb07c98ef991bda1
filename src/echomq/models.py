"""What EchoMQ hands out: plain records, frozen."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from echomq.options import JSON, Backoff, Deduplication, Keep, MissedRuns

JobState: TypeAlias = Literal["waiting", "active", "delayed", "prioritized", "waiting_children", "completed", "failed"]
"""Where a job is in its life."""

JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)


FailureKind: TypeAlias = Literal[
    "transient", "permanent", "unknown", "unrecoverable", "crashed", "expired", "timeout", "cancelled"
]
"""Why a run failed, as far as that decides what comes next: the first three say what the ``RetryPolicy`` thought of its error;
``unrecoverable``, that its handler raised that, or that it could not be run; ``crashed``, that its workers died too often;
``expired``, that it was not started in time; ``timeout``, that it took longer than its task's ``timeout``; ``cancelled``, that
somebody called ``Job.cancel``."""

FAILURE_KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)


class Parent(msgspec.Struct, frozen=True):
    """The job that waits for a child.

    Attributes:
        id: the parent's id.
        queue_key: what the keys of its queue begin with, without the last colon: ``emq:{orders}``.
    """

    id: str
    queue_key: str


class DeadLetter(msgspec.Struct, frozen=True):
    """What a dead letter was before: a job of another queue that failed for good.

    Attributes:
        job_id: the id that it had there.
        reason: why it failed.
        attempts_made: how many runs had ended, the last one included.
        failed_on: when that was.
    """

    job_id: str
    reason: str
    attempts_made: int
    failed_on: datetime | None


class Logs(msgspec.Struct, frozen=True):
    """Lines of a job's log.

    Attributes:
        lines: those that were asked for.
        count: how many there are in all.
    """

    lines: list[str]
    count: int


class MetricsPoint(msgspec.Struct, frozen=True):
    """How many jobs ended in a minute.

    Attributes:
        at: when it began.
        count: how many.
    """

    at: datetime
    count: int


class MetricsSeries(msgspec.Struct, frozen=True):
    """How many jobs of a queue completed, or failed, as its workers counted them.

    Attributes:
        count: in all, since they began to count.
        latest: the minute in which the last one ended; it is counted on while it lasts. None if none was counted.
        points: the minutes before that one, the newest first, as many as the workers keep.
    """

    count: int
    latest: MetricsPoint | None
    points: list[MetricsPoint]


ReasonKind: TypeAlias = Literal[
    "deferred_failure", "paused", "rate_limited", "concurrency", "no_worker", "behind", "next", "delayed", "due", "retry",
    "expires", "children", "children_failed", "no_children_left", "running", "lock_lost", "completed", "failed", "retained",
    "deduplication", "schedule", "schedule_paused", "in_no_state", "broken", "gone", "cancelled",
]  # fmt: skip
"""What a ``Reason`` is about."""


class Reason(msgspec.Struct, frozen=True):
    """One of the reasons why a job is where it is.

    Attributes:
        kind: what it is about.
        text: for people.
        at: the moment that it names: when the job is due, began, ended, or goes.
        count: the number that it names: of jobs before it, of children, of slots.
        jobs: keys of some of the jobs that it names: ``emq:{prints}:7``.
    """

    kind: ReasonKind
    text: str
    at: datetime | None = None
    count: int | None = None
    jobs: list[str] = []


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is where it is, and what comes next for it: ``Job.explain``, ``Queue.explain``. As text: all of it.

    Attributes:
        job_id: whose.
        queue: the name of its queue.
        state: where it is; None if it is in no state, or gone.
        reasons: what counts most comes first.
        at: the server's time at which that was so.
    """

    job_id: str
    queue: str
    state: JobState | None
    reasons: list[Reason]
    at: datetime

    def __str__(self) -> str:
        where = {None: "in no state", "waiting_children": "waiting for children"}.get(self.state, self.state)
        about = f"job {self.job_id!r} of queue {self.queue!r} is {where}"
        if self.state is None and any(reason.kind == "gone" for reason in self.reasons):
            about = f"job {self.job_id!r} of queue {self.queue!r} is not there"
        return "\n".join([about, *(f"  - {reason.text}" for reason in self.reasons)])


class Healed(msgspec.Struct, frozen=True):
    """What ``queue.admin.heal`` found.

    Attributes:
        looked_at: at how many jobs it looked.
        put_back: the ids of those that stood in no state, by the state that each is in since.
        broken: the ids of hashes that stand in no state and are no whole jobs: they lack a name, data, options or the time at
            which they were made. They cannot be run, and are left as they are.
    """

    looked_at: int
    put_back: dict[JobState, list[str]]
    broken: list[str]


class JobOptions(msgspec.Struct, frozen=True):
    """The options that a job was added with, as far as they were given.

    Attributes:
        attempts: how often it may run in all; 0 and 1 both mean once.
        backoff: what to wait between attempts.
        delay: seconds.
        priority: 0 for none.
        lifo: whether it went to the front of the line.
        remove_on_complete, remove_on_fail: which finished jobs to keep; None: the worker decides.
        stack_trace_limit: how many tracebacks to keep.
        keep_logs: how many lines of its log to keep.
        deduplication: which adds count as this same job, and what becomes of them.
        expire_in: seconds within which it had to be started.
        omit_context: whether it was not to carry the context of its trace.
        others: options of other programs, under the names that they gave them.
    """

    attempts: int = 0
    backoff: Backoff | None = None
    delay: float = 0.0
    priority: int = 0
    lifo: bool = False
    remove_on_complete: Keep | None = None
    remove_on_fail: Keep | None = None
    stack_trace_limit: int | None = None
    keep_logs: int | None = None
    deduplication: Deduplication | None = None
    expire_in: float | None = None
    omit_context: bool = False
    others: dict[str, JSON] = {}


class CurrentJob(msgspec.Struct, frozen=True):
    """A job that a worker has in hand.

    Attributes:
        id, name: the job's.
        since: when this run of it began.
    """

    id: str
    name: str
    since: datetime | None


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker as ``Queue.workers`` found it.

    What is None, a worker of another runtime does not say: of such a one its connection is all that is known.

    Attributes:
        queue: what it works on.
        name: its name, by which jobs say whose they are; empty for one of another runtime that has none.
        is_connected: whether the server has a connection of this worker; False: it has just lost it, or its life. None: the
            server does not say.
        last_seen: when the server last heard of it. An idle worker is heard of every few seconds, a busy one at its sweeps.
        started_at: when it began to work.
        address: from where it is connected.
        library: the client library that its connection names, on servers that know.
        host, pid: where it runs.
        version, python: of EchoMQ and of Python there.
        slots: how many jobs it runs at once.
        paused: whether ``Worker.pause`` was called.
        loop_lag: seconds; the longest time in about the last minute that its event loop took to answer.
        going_on: how many of its slots are held by handlers whose jobs were cancelled or have timed out, and that go on.
        jobs: those in its hands, the longest-running first. Workers that share a name share this list. Those of an unnamed
            worker are not known.
    """

    queue: str
    name: str
    is_connected: bool | None
    last_seen: datetime
    started_at: datetime | None = None
    address: str | None = None
    library: str | None = None
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    python: str | None = None
    slots: int | None = None
    paused: bool | None = None
    loop_lag: float | None = None
    going_on: int | None = None
    jobs: tuple[CurrentJob, ...] = ()


class WorkerStats(msgspec.Struct, frozen=True):
    """A worker's own figures, as ``Worker.stats`` gives them; no server is asked.

    Attributes:
        slots: how many jobs it can run at once.
        running: how many handlers run.
        loop_lag: seconds; the longest time in about the last minute that its event loop took to answer.
        since_fetch: seconds since the server last answered when it was asked for jobs; None before the first time. A worker whose
            slots are all taken does not ask.
        away_for: seconds for which the server has not answered, or has refused all work for now; 0 while it works.
    """

    slots: int
    running: int
    loop_lag: float
    since_fetch: float | None = None
    away_for: float = 0.0


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule as it was when it was read.

    Attributes:
        id: its id.
        name, data, options: of the jobs that it makes.
        next_run: the time of its next run, without its share of a ``spread``; None while it is paused, and when it has no
            further one. (For a moment also while its current run starts.)
        iteration_count: how many runs it has made, the next one included.
        paused: whether ``pause`` was called.
        every: seconds between two runs, or None for a pattern.
        offset: seconds by which its runs come after the whole multiples of ``every``.
        pattern, tz: its cron pattern and the time zone that the pattern means; None for an interval. A pattern that another
            program made may have no ``tz``: then it means the zone of the machine whose worker starts a run.
        start, end: when it begins and ends, if that was said.
        limit: how many runs it makes, if that was said.
        missed: what becomes of runs that could not start in time: ``once``, ``skip`` or ``catch_up``.
        grace: seconds that ``skip`` and ``catch_up`` go by.
        spread: seconds over which its runs are spread.
    """

    id: str
    name: str
    data: JSON
    options: JobOptions
    next_run: datetime | None
    iteration_count: int
    paused: bool
    every: float | None = None
    offset: float | None = None
    pattern: str | None = None
    tz: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit: int | None = None
    missed: MissedRuns = "once"
    grace: float | None = None
    spread: float = 0.0
