"""Controlling: pause and resume a queue, remove a job."""

from __future__ import annotations

from echomq._store.codec import id_out
from echomq._store.codes import SCHEDULED, meaning
from echomq._store.line import Line
from echomq.errors import JobLocked, StateError

_GONE, _SOME_CHILDREN_GONE, _RUNNING = 1, 2, 0


async def pause(line: Line) -> None:
    """Lets no worker fetch from the queue."""
    await line.call("pause-6", ())


async def resume(line: Line) -> None:
    """Lets workers fetch again. A list that BullMQ 5 paused with is taken over first, in steps."""
    left = 1
    while left > 0:
        _, left = await line.call("resume-8", ())


async def remove(line: Line, job_id: str, *, children: bool) -> None:
    """Removes a job, and with it its children, at most 150 a call.

    Raises:
        JobLocked: it or one of its children is being run.
        StateError: it is the next run of a schedule.
    """
    code = _SOME_CHILDREN_GONE
    while code == _SOME_CHILDREN_GONE:
        _, code = await line.call("remove-5", (id_out(job_id), "1" if children else ""))
    if code == _RUNNING:
        raise JobLocked(
            f"job {job_id!r} of queue {line.keys.queue!r} is not removed: a worker is running it, "
            "or one of its children; wait for its end"
        )
    if code != _GONE:
        why = meaning(code) if code == SCHEDULED else f"code {code}"
        raise StateError(f"job {job_id!r} of queue {line.keys.queue!r} is not removed: {why}")
