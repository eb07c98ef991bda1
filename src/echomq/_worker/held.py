"""The jobs that this worker holds: one table, written by the event loop, read by the heartbeat's thread."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from echomq._store.codec import StoredJob
from echomq._store.finish import Outcome
from echomq.retry_policy import RetryPolicy

FOR_CLEANING_UP: Final = 5.0
"""Seconds that a handler has to stop, once its job is cancelled or its time is up; then the run ends without it."""


class Hold(enum.Enum):
    """What this worker knows of its hold on a job."""

    RUNNING = "running"
    ENDED = "ended"
    """Its handler has ended; the outcome is on its way."""
    STOPPED = "stopped"
    """Its handler was told to stop, because the worker stops or the lock may have expired; the job is still ours to give back."""
    LOST = "lost"
    """Another worker has it, or it is gone: nothing more may be written for it."""


class Held:
    """One job in our hands.

    Attributes:
        job: as it was fetched.
        token: that its lock carries.
        renewed_at: when its lock was last known to be renewed, on the lasting clock: the moment before that call was sent.
        hold: what we know.
        begun: whether its task has taken its first step: before that, a cancelled task would end without a word.
        calling: whether its run has come to calling the handler: from then on it can be cut short.
        called: whether its handler was called.
        cancelled: set when the handler should stop; for handlers in threads, which cannot be interrupted.
        retry_policy: that of its task, once that is known and if it has one.
        max_bytes: how many bytes its result may take, once that is known and if its task says so.
        task: the run, while it goes on.
        thread: the handler's function where it runs in a thread; past a timeout it goes on when the run has ended.
        kill: ends the handler at once and for certain, where it runs in a process of its own; None everywhere else.
        cancel_reason: why it is to end as cancelled, if somebody has asked for that.
        told: whether its handler was told of that.
        end: what its handler returned, or raised, where hooks are told of that.
        outcome: of a run that was cut short, what it could not return itself.
        timed_out: whether its run took longer than it may.
        took: seconds that its handler took; set only where a journal is kept.
    """

    __slots__ = (
        "begun",
        "called",
        "calling",
        "cancel_reason",
        "cancelled",
        "end",
        "hold",
        "job",
        "kill",
        "max_bytes",
        "outcome",
        "renewed_at",
        "retry_policy",
        "task",
        "thread",
        "timed_out",
        "token",
        "told",
        "took",
    )

    took: float

    def __init__(self, job: StoredJob, token: str, renewed_at: float) -> None:
        self.job = job
        self.token = token
        self.renewed_at = renewed_at
        self.hold = Hold.RUNNING
        self.begun = False
        self.calling = False
        self.called = False
        self.cancelled: threading.Event | None = None
        self.retry_policy: RetryPolicy | None = None
        self.max_bytes: int | None = None
        self.task: asyncio.Task[None] | None = None
        self.thread: asyncio.Future[Any] | None = None
        self.kill: Callable[[], None] | None = None
        self.cancel_reason: str | None = None
        self.told = False
        self.end: tuple[Any, BaseException | None] | None = None
        self.outcome: Outcome | None = None
        self.timed_out = False

    @property
    def run(self) -> bytes:
        """By what the server can tell our run from every other."""
        return self.job.run

    def stop(self, reason: str, hold: Hold) -> None:
        """Tells the handler to stop; one in a process of its own is killed. For the event loop's thread."""
        if self.hold is Hold.RUNNING or hold is Hold.LOST:
            self.hold = hold
        if self.cancelled is not None:
            self.cancelled.set()
        if self.kill is not None:
            self.kill()
        if self.task is not None and self.begun and not self.told:  # once is enough: it may be cleaning up
            self.task.cancel(reason)

    def cancel(self, reason: str) -> None:
        """Somebody wants the job to end: tells the handler, if it was not told to stop before.

        For the event loop's thread. A run that has not come to calling it sees the reason before that, and is not cut short:
        it may be making the next run of a schedule.
        """
        if self.cancel_reason is not None or self.hold not in (Hold.RUNNING, Hold.STOPPED):
            return
        self.cancel_reason = reason
        if self.hold is Hold.RUNNING and self.calling:
            self.told = True
            if self.cancelled is not None:
                self.cancelled.set()
            if self.kill is not None:
                self.kill()
            if self.task is not None:
                self.task.cancel(f"cancelled: {reason}")


class HeldTable:
    """All jobs in our hands, by id. Each method is one short step under a mutex."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: dict[str, Held] = {}

    def add(self, fetched: Iterable[Held]) -> list[Held]:
        """Takes jobs in. Returns former runs of the same jobs, which are not in the table any more."""
        replaced = []
        with self._mutex:
            for held in fetched:
                former = self._held.pop(held.job.id, None)  # out first: the order is that of coming
                if former is not None:
                    replaced.append(former)
                self._held[held.job.id] = held
        return replaced

    def get(self, job_id: str) -> Held | None:
        """The latest run of a job in our hands."""
        return self._held.get(job_id)

    def drop(self, held: Held) -> None:
        """Lets a job go, unless its id stands for a later run by now."""
        with self._mutex:
            if self._held.get(held.job.id) is held:
                del self._held[held.job.id]

    def all(self) -> list[Held]:
        """Every job in our hands, in the order in which they came."""
        with self._mutex:
            return list(self._held.values())
