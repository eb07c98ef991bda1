"""What a queue's event log tells, one class a kind (protocol 9). ``QueueEvents`` hands them out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

import msgspec

from echomq.models import JobState


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a queue.

    Attributes:
        id: where it stands in the queue's log. ``QueueEvents(…, since=id)`` goes on behind it.
        queue: the queue's name.
        at: when it was written, by the server's clock.
        kind: what it is called in the log, such as ``completed``; of the class.
    """

    kind: ClassVar[str] = ""

    id: str
    queue: str
    at: datetime


class JobEvent(Event, frozen=True, kw_only=True):
    """Something that happened to a job.

    Attributes:
        job_id: which.
    """

    job_id: str


class Added(JobEvent, frozen=True, kw_only=True):
    """A job was added. Another event says at once where it went.

    Attributes:
        name: the job's name.
    """

    kind: ClassVar[str] = "added"

    name: str


class Waiting(JobEvent, frozen=True, kw_only=True):
    """A job waits to be run.

    Attributes:
        previous: the state that it comes from; None for a new job.
    """

    kind: ClassVar[str] = "waiting"

    previous: JobState | None = None


class WaitingChildren(JobEvent, frozen=True, kw_only=True):
    """A job waits for its children.

    Attributes:
        previous: the state that it comes from; None for a new job.
    """

    kind: ClassVar[str] = "waiting-children"

    previous: JobState | None = None


class Delayed(JobEvent, frozen=True, kw_only=True):
    """A job waits for its time: a new one, one whose delay was changed, or one that is to run again.

    Attributes:
        until: when it is due.
    """

    kind: ClassVar[str] = "delayed"

    until: datetime


class Active(JobEvent, frozen=True, kw_only=True):
    """A worker has fetched a job.

    Attributes:
        previous: the state that it comes from, as the log has it.
    """

    kind: ClassVar[str] = "active"

    previous: JobState | None = None


class Progress(JobEvent, frozen=True, kw_only=True):
    """A handler said how far it has come.

    Attributes:
        progress: what it said. None too where ``left_out`` says why.
        left_out: how many bytes that has, if it is too large to stand in the log; the job has it.
    """

    kind: ClassVar[str] = "progress"

    progress: Any
    left_out: int | None = None


class Completed(JobEvent, frozen=True, kw_only=True):
    """A job has ended with a result.

    Attributes:
        return_value: its result. None too where ``left_out`` or ``error`` says why.
        left_out: how many bytes the result has, if it is too large to stand in the log: ``job.result()`` gives it, or
            ``(await queue.get_job(event.job_id)).return_value``.
        error: why its result could not be stored, if it could not.
        previous: the state that it comes from.
    """

    kind: ClassVar[str] = "completed"

    return_value: Any
    left_out: int | None = None
    error: str | None = None
    previous: JobState | None = None


class Failed(JobEvent, frozen=True, kw_only=True):
    """A job has failed for good.

    Attributes:
        reason: why.
        previous: the state that it comes from.
    """

    kind: ClassVar[str] = "failed"

    reason: str
    previous: JobState | None = None


class RetriesExhausted(JobEvent, frozen=True, kw_only=True):
    """A job that has just failed had no attempt left.

    Attributes:
        attempts_made: how many runs had ended.
    """

    kind: ClassVar[str] = "retries-exhausted"

    attempts_made: int


class Stalled(JobEvent, frozen=True, kw_only=True):
    """A job's worker was lost, and the job taken back."""

    kind: ClassVar[str] = "stalled"


class Removed(JobEvent, frozen=True, kw_only=True):
    """A job was removed.

    Attributes:
        previous: the state that it was in, if that is known.
    """

    kind: ClassVar[str] = "removed"

    previous: JobState | None = None


class Duplicated(JobEvent, frozen=True, kw_only=True):
    """An add named the id of a job that is there, and added nothing."""

    kind: ClassVar[str] = "duplicated"


class Deduplicated(JobEvent, frozen=True, kw_only=True):
    """An add had a deduplication id that was held.

    Attributes:
        job_id: the job that holds the deduplication id from now on.
        deduplication_id: that id.
        deduplicated_job_id: the job that was not added, or that gave way.
    """

    kind: ClassVar[str] = "deduplicated"

    deduplication_id: str
    deduplicated_job_id: str


class Debounced(JobEvent, frozen=True, kw_only=True):
    """The same as ``Deduplicated``, as BullMQ 5 writes it besides.

    Attributes:
        debounce_id: the deduplication id.
    """

    kind: ClassVar[str] = "debounced"

    debounce_id: str


class Cleaned(Event, frozen=True, kw_only=True):
    """Old jobs were removed.

    Attributes:
        count: how many, in one step of what may be several.
    """

    kind: ClassVar[str] = "cleaned"

    count: int


class Paused(Event, frozen=True, kw_only=True):
    """The queue was paused."""

    kind: ClassVar[str] = "paused"


class Resumed(Event, frozen=True, kw_only=True):
    """The queue was resumed."""

    kind: ClassVar[str] = "resumed"


class Drained(Event, frozen=True, kw_only=True):
    """A job has ended, and none waits or runs."""

    kind: ClassVar[str] = "drained"


class Skipped(JobEvent, frozen=True, kw_only=True):
    """A run of a schedule came too late, and was not run (``missed="skip"``). ``Completed`` follows.

    Attributes:
        late: by how many seconds.
    """

    kind: ClassVar[str] = "skipped"

    late: float


class Expired(JobEvent, frozen=True, kw_only=True):
    """A job was not started in time (``expire_in``). ``Failed`` follows."""

    kind: ClassVar[str] = "expired"


class Cancelled(JobEvent, frozen=True, kw_only=True):
    """A job has ended because somebody cancelled it. ``Failed`` follows.

    Attributes:
        reason: what ``cancel`` was given.
    """

    kind: ClassVar[str] = "cancelled"

    reason: str


class Custom(Event, frozen=True, kw_only=True):
    """An event of a user's own (``queue.publish``), or one of a kind that this version does not know.

    Attributes:
        name: its name.
        fields: what it says.
    """

    kind: ClassVar[str] = "custom"

    name: str
    fields: dict[str, str]


class Unreadable(Event, frozen=True, kw_only=True):
    """An entry that is no event, or one of the queue's own kinds that lacks what it must have. Somebody wrote it by hand.

    Attributes:
        reason: what is wrong with it.
        fields: what it holds, flat; bytes that are no UTF-8 as surrogate escapes.
    """

    kind: ClassVar[str] = "unreadable"

    reason: str
    fields: tuple[str, ...]


class Gap(Event, frozen=True, kw_only=True):
    """Events may be missing here: the log was cut off, or deleted, before they were read.

    ``id`` is the last event before the gap, so that who goes on ``since`` it is told of the gap again; ``at`` is its time.
    What jobs have come to must be asked: ``queue.get_job(id)``, ``queue.jobs(state)``.

    Attributes:
        until: the id of the first event after the gap; None if the log holds none yet.
    """

    kind: ClassVar[str] = "gap"

    until: str | None = None


KINDS: Final[dict[str, type[Event]]] = {
    found.kind: found
    for found in (
        Added, Waiting, WaitingChildren, Delayed, Active, Progress, Completed, Failed, RetriesExhausted, Stalled, Removed,
        Duplicated, Deduplicated, Debounced, Cleaned, Paused, Resumed, Drained, Skipped, Expired, Cancelled,
    )
}  # fmt: skip
"""The kinds that a queue itself writes, by their names in the log."""

RESERVED: Final = frozenset((*KINDS, "error"))
"""Events that mean something to whoever listens, so that nobody may write them by hand: a ``completed`` whose result is no
JSON stops a Node listener (protocol 9), and an ``error`` that nobody handles ends a Node process."""
