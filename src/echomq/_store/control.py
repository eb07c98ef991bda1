"""Controlling: pause and resume a queue; promote, retry, move, remove jobs; write what is told of them, and own events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Protocol

from echomq._store.codec import decode_id, duration_ms, event_field, id_out, moment_ms, state_in
from echomq._store.codes import JOB_GONE, NOT_THERE, OTHER_OWNER, SCHEDULED, gone, meaning
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.schedule import advance as advance_schedule
from echomq.errors import BrokenKey, JobLocked, LockLost, ServerError, StateError
from echomq.models import JobState
from echomq.options import Duration, OnProgress

_GONE, _SOME_CHILDREN_GONE, _DEEPER_FIRST, _RUNNING = 1, 2, 3, 0

_MOST_REQUEUED = 100

_PLACES: dict[JobState, tuple[str, ...]] = {"waiting": ("wait", "paused")}
"""Where the jobs of a state stand, if not under its own name: a list that BullMQ 5 paused with holds the older ones."""


async def pause(line: Line) -> None:
    """Lets no worker fetch from the queue."""
    await line.call("pause-6", ())


async def resume(line: Line) -> None:
    """Lets workers fetch again. A list that BullMQ 5 paused with is taken over first, in steps."""
    left = 1
    while left > 0:
        _, left = await line.call("resume-8", ())


async def remove_deduplication(line: Line, deduplication_id: bytes, owner: bytes = b"") -> bool:
    """Frees a deduplication id; with an owner only if this job holds it. Gives whether it was held."""
    _, was_held = await line.call("removeDeduplicationKey-1", (deduplication_id, owner))
    return was_held == 1  # type: ignore[no-any-return]


async def remove(line: Line, job_id: str, *, children: bool) -> None:
    """Removes a job, and with it its children, at most 150 a call.

    Raises:
        JobLocked: it or one of its children is being run.
        StateError: it is the next run of a schedule.
        BrokenKey: below it jobs wait for each other in a long circle.
    """
    code, trail = _SOME_CHILDREN_GONE, [b""]  # where the calls begin: at the job, and ever further down in a deep tree
    while trail and code in (_GONE, _SOME_CHILDREN_GONE, _DEEPER_FIRST):
        _, code, deeper = await line.call("remove-5", (id_out(job_id), "1" if children else "", trail[-1]))
        if code == _GONE:
            trail.pop()
        elif code == _DEEPER_FIRST:
            if deeper in trail:
                raise BrokenKey(
                    f"job {job_id!r} of queue {line.keys.queue!r} is not removed: below it jobs wait for each other in a circle, "
                    f"{decode_id(deeper)} for one; remove that one without its children first",
                    code="BROKEN",
                )
            trail.append(deeper)
    if code == _RUNNING:
        raise JobLocked(
            f"job {job_id!r} of queue {line.keys.queue!r} is not removed: a worker is running it, "
            "or one of its children; wait for its end, or cancel it"
        )
    if code != _GONE:
        why = meaning(code) if code == SCHEDULED else f"code {code}"
        raise StateError(f"job {job_id!r} of queue {line.keys.queue!r} is not removed: {why}")


async def cancel(line: Line, job_id: str, reason: str) -> bool:
    """Ends a job that is not being run, and has one that is be stopped. False: it had ended already.

    Raises:
        JobNotFound: it is gone.
    """
    now, code = await line.call("cancelJob-16", (id_out(job_id), reason, ""))
    if code == SCHEDULED:  # whatever becomes of this run, its schedule goes on
        await advance_schedule(line, job_id, int(now))
        now, code = await line.call("cancelJob-16", (id_out(job_id), reason, "1"))
    if code == JOB_GONE:
        raise gone(f"job {job_id!r} of queue {line.keys.queue!r} is not cancelled")
    return bool(code)


async def promote(line: Line, job_id: str) -> None:
    """Lets a delayed job run now. Raises StateError."""
    await _change(line, "promote-9", job_id, (), "promoted", "delayed")


async def change_delay(line: Line, job_id: str, *, delay: Duration | None, at: datetime | None) -> None:
    """Gives a delayed job another due time. Raises StateError."""
    args = ("" if delay is None else str(duration_ms(delay, "delay")), "" if at is None else str(moment_ms(at)))
    await _change(line, "changeDelay-5", job_id, args, "given another delay", "delayed")


async def change_priority(line: Line, job_id: str, priority: int, *, lifo: bool) -> None:
    """Gives a job another priority, in whatever state it is. Raises JobNotFound."""
    await _change(line, "changePriority-8", job_id, (str(priority), "1" if lifo else ""), "given another priority", "")


async def retry(line: Line, job_id: str, *, reset_attempts: bool) -> None:
    """Lets a job that has ended run again. Raises StateError."""
    reset = "1" if reset_attempts else ""
    await _change(line, "reprocessJob-10", job_id, (reset,), "run again", "failed or completed")


async def _change(line: Line, script: str, job_id: str, args: tuple[str, ...], done: str, needed: str) -> None:
    _, code, found = await line.call(script, (id_out(job_id), *args))
    _check_changed(line, job_id, code, found, done, needed)


def _check_changed(line: Line, job_id: str, code: int, found: bytes, done: str, needed: str) -> None:
    name = f"job {job_id!r} of queue {line.keys.queue!r}"
    if code == JOB_GONE:
        raise gone(f"{name} is not {done}")
    if code == NOT_THERE:
        state = state_in(found)
        where = "in no state" if state is None else state
        raise StateError(f"{name} is not {done}: it is {where}, and must be {needed}", found=state)


class Run(Protocol):
    """A worker's run of a job: what tells it from every other."""

    @property
    def token(self) -> str:
        """What the job's lock carries."""

    @property
    def run(self) -> bytes:
        """By what it is known where there is no lock (extendLocks)."""


_DEFAULT_LINES: Final = 1_000
_LONGEST_LINE: Final = 16 * 1024
"""Bytes."""


async def update_progress(line: Line, job_id: str, progress: bytes, run: Run | None) -> None:
    """Writes a job's progress. Raises JobNotFound, LockLost."""
    await _tell(line, "progress", job_id, progress, "", run)


async def update_data(line: Line, job_id: str, data: bytes, run: Run | None) -> None:
    """Writes other data into a job. Raises JobNotFound, LockLost."""
    await _tell(line, "data", job_id, data, "", run)


async def log(line: Line, job_id: str, text: str, keep: int | None, run: Run | None) -> int:
    """Adds a line to a job's log. Gives how many it has then. Raises JobNotFound, LockLost."""
    most = _DEFAULT_LINES if keep is None else keep
    return await _tell(line, "log", job_id, _log_line(text), str(most), run)


def _log_line(text: str) -> bytes:
    written = text.encode("utf-8", "backslashreplace")
    if len(written) <= _LONGEST_LINE:
        return written
    note = b" ... (cut; it had %d bytes)" % len(written)
    return written[: _LONGEST_LINE - len(note)].decode("utf-8", "ignore").encode() + note


async def _tell(line: Line, what: str, job_id: str, value: bytes, keep: str, run: Run | None) -> int:
    by = ("", b"") if run is None else (run.token, run.run)
    answer = await line.tell((what, id_out(job_id), value, keep, *by))
    name = f"job {job_id!r} of queue {line.keys.queue!r}"
    if isinstance(answer, str) and answer.startswith("REFUSED "):
        raise ServerError(
            f"{name}: the server refuses {answer.removeprefix('REFUSED ')}; nothing was changed", code="NOPERM"
        )
    if isinstance(answer, str):
        raise BrokenKey(f"{name}: {answer.removeprefix('BROKEN ')}; nothing was changed", code="BROKEN")
    if answer == OTHER_OWNER:
        raise LockLost(
            f"{name}: its {what} is not written: this run of it is over, or another worker has the job by now"
        )
    if answer == JOB_GONE:
        raise gone(f"{name}: its {what} is not written")
    return answer


async def clear_logs(line: Line, job_id: str, keep: int) -> None:
    """Drops the lines of a job's log but the last ones, in steps. Raises JobNotFound."""
    left = 1
    while left > 0:
        _, left = await line.call("clearLogs-1", (id_out(job_id), str(keep)))
    if left == JOB_GONE:
        raise gone(f"job {job_id!r} of queue {line.keys.queue!r}: its log is not cleared")


async def move_all(line: Line, origin: JobState, on_progress: OnProgress) -> int:
    """Moves all jobs of a state into the line, in steps. Gives how many."""
    moved, cut, left = 0, "", 1
    while left > 0:
        _, count, left, cut = await line.call("moveJobsToWait-11", (origin, cut))
        moved += count
        on_progress(moved)
    return moved


async def drain(line: Line, *, delayed: bool, on_progress: OnProgress) -> int:
    """Removes the jobs that wait, in steps, but not those that are added meanwhile. Gives how many."""
    removed, since, counted = 0, "", ""
    for place in ("paused", "wait", "prioritized", *(("delayed",) if delayed else ())):
        again = True
        while again:
            skip, more, here = 0, 1, 0
            while more:
                args = (place, str(skip), since, counted)
                _, count, skip, more, since, counted = await line.call("drain-9", args)
                here += count
                on_progress(removed + here)
            removed += here
            again = here > 0 and skip > 0  # what was to stay may have been fetched, and others have moved up past us
    return removed


async def clean(
    line: Line, state: JobState, older_than: Duration, limit: int | None, on_progress: OnProgress
) -> list[str]:
    """Removes the jobs of a state that are old enough, in steps. Gives their ids."""
    removed: list[str] = []
    grace, cut = str(duration_ms(older_than, "older_than")), ""
    most = limit
    for place in _PLACES.get(state, (state,)):
        skip, more = 0, 1
        while more and (most is None or most > 0):
            args = (place, str(skip), cut, grace, "" if most is None else str(most))
            _, ids, skip, more, cut = await line.call("cleanJobs-12", args)
            removed += map(decode_id, ids)
            if most is not None:
                most -= len(ids)
            on_progress(len(removed))
    return removed


async def requeue(line: Line, origin: QueueKeys, job_id: str | None, on_progress: OnProgress) -> list[str]:
    """Moves the dead letters that wait now, or one, back to the queue that they failed in. Gives their ids there.

    Raises:
        StateError: the one does not wait.
    """
    if job_id is not None:
        _, code, found, _, _, *ids = await line.call("requeue-5", (origin.base, id_out(job_id), "1"))
        _check_changed(line, job_id, code, found, "requeued", "waiting")
        return [decode_id(one) for one in ids]
    moved: list[str] = []
    wanted = _MOST_REQUEUED
    first = True
    while wanted > 0:
        _, _, _, gone, left, *ids = await line.call("requeue-5", (origin.base, "", str(wanted)))
        moved += map(decode_id, ids)
        wanted = left if first else min(wanted - gone, left)
        first = False
        on_progress(len(moved))
    return moved


async def publish(line: Line, name: str, fields: Mapping[str, str | int | float | bool]) -> None:
    """Writes an event of the caller's own."""
    flat = [name]
    for field, value in fields.items():
        flat += (field, event_field(value))
    await line.call("publishEvent-3", flat)
