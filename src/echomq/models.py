"""What EchoMQ hands out: plain records, frozen."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

import msgspec

from echomq.options import JSON, Backoff, Keep

JobState: TypeAlias = Literal["waiting", "active", "delayed", "prioritized", "waiting_children", "completed", "failed"]
"""Where a job is in its life."""

JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)


class Parent(msgspec.Struct, frozen=True):
    """The job that waits for a child.

    Attributes:
        id: the parent's id.
        queue_key: what the keys of its queue begin with, without the last colon: ``emq:{orders}``.
    """

    id: str
    queue_key: str


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
    others: dict[str, JSON] = {}
