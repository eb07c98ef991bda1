"""The line of a queue, and the schedules that fill it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from echomq._redis.wire import Reply
from echomq._store import schedule
from echomq._store.codec import decode_id
from echomq._store.examining.ward import Ward, seconds
from echomq.errors import InvalidOption

ABANDONED_MS: Final = 120_000
"""How long a job must have run without a lock, while nobody sweeps: more than two sweeps of any sensible interval."""
OVERDUE_MS: Final = 60_000
"""How late a delayed job must be: a worker looks every ten seconds, every thirty under a rate limit."""
_LOOKS_FOR_MARKER: Final = 3
_BETWEEN_LOOKS: Final = 0.7
_LEGACY_SCHEDULE: Final = re.compile(rb"[^:]*:[^:]*:\d*:[^:]*:.*")


@dataclass(frozen=True, slots=True)
class _LineState:
    now: int
    paused: bool
    waiting: int
    set_aside: int
    prioritized: int
    running: int
    closed: bool
    limited: bool
    marked: bool
    next_id: bytes
    due: int | None

    @property
    def lacks_marker(self) -> bool:
        return bool(self.waiting + self.prioritized) and not (self.closed or self.limited or self.marked)


def _is_over(slot: float, flat: Sequence[Reply]) -> bool:
    try:
        return schedule.has_come_to_its_end(slot, flat)
    except InvalidOption:  # its pattern cannot be read
        return False


async def line(ward: Ward) -> None:
    """Who runs, who waits, and whether somebody is woken."""
    async for _, _, ids in ward.list_pages("active"):
        locks = await ward.line.ask("MGET", *(ward.base + one + b":lock" for one in ids)) if ids else []
        assert isinstance(locks, list)
        await ward.each(
            [one for one, lock in zip(ids, locks, strict=True) if lock is None], partial(_run_without_lock, ward)
        )
    state = await _state_of_line(ward)
    if state.set_aside and not state.paused:
        text = f"{state.set_aside} jobs stand in the list of a paused queue (BullMQ 5), and the queue is not paused"
        ward.tell("jobs-in-paused-list", "paused", text)
    elif state.set_aside and state.waiting:
        text = f"{state.waiting} jobs stand in wait and {state.set_aside} in the list with which BullMQ 5 pauses"
        ward.tell("two-waiting-lists", "paused", text)
    if state.due is not None and state.now - state.due > OVERDUE_MS:
        text = f"delayed jobs are due for {(state.now - state.due) / 1000:.0f} s, and no worker has looked"
        ward.tell("overdue-jobs", "delayed", text)
    for _ in range(_LOOKS_FOR_MARKER):  # a worker that has just taken the marker fetches within moments
        if not state.lacks_marker:
            return
        await asyncio.sleep(_BETWEEN_LOOKS)
        before, state = state, await _state_of_line(ward)
        if (before.next_id, before.running) != (state.next_id, state.running):
            return  # somebody fetches
    if state.lacks_marker:
        text = f"{state.waiting + state.prioritized} jobs wait, and there is no marker that would wake a worker"
        ward.tell("missing-marker", "marker", text)


async def _run_without_lock(ward: Ward, job_id: bytes) -> None:
    reply = await ward.line.read("putBackAbandoned-9", (job_id, str(ABANDONED_MS), ""))
    assert isinstance(reply, list)
    if reply[0]:
        since = f"nobody has held its lock for {seconds(reply[1])} s, and no worker sweeps"
        text = f"job {decode_id(job_id)!r} is active: {since}"
        ward.tell("run-without-lock", job_id, text)


async def _state_of_line(ward: Ward) -> _LineState:
    reply = await ward.line.read("lookAtLine-9", ())
    assert isinstance(reply, list)
    now, paused, waiting, set_aside, prior, running, closed, limited, marked, next_id, due = reply
    return _LineState(
        int(now), bool(paused), waiting, set_aside, prior, running, bool(closed), bool(limited), bool(marked), next_id,  # type: ignore[arg-type]
        int(due) if due else None,  # type: ignore[arg-type]
    )  # fmt: skip


async def schedules(ward: Ward) -> None:
    """Definitions without a next run, and the other way round."""
    put_away = await ward.line.ask("HKEYS", ward.keys.resolve("paused_schedulers"))
    assert isinstance(put_away, list)
    ids = ward.met.definitions | {one for one in put_away if isinstance(one, bytes)}
    async for page in ward.set_pages("repeat"):
        ids |= set(page)
    await ward.each(ids, partial(_schedule, ward))


async def _schedule(ward: Ward, scheduler_id: bytes) -> None:
    code, slot, flat = await _look_at_schedule(ward, scheduler_id)
    name = decode_id(scheduler_id)
    if code == 1 and not _LEGACY_SCHEDULE.fullmatch(scheduler_id):
        ward.tell("slot-without-schedule", scheduler_id, f"{name!r} has a next run, and is no schedule")
    elif code == 2:
        ward.tell("schedule-without-slot", scheduler_id, f"schedule {name!r} has no next run, and is not paused")
    elif code == 3 and not _is_over(slot, flat):
        text = f"the next run of schedule {name!r} is gone or has ended, and nothing makes another"
        ward.tell("schedule-without-next-run", scheduler_id, text)


async def _look_at_schedule(ward: Ward, scheduler_id: bytes, act: str = "") -> tuple[int, float, list[Reply]]:
    reply = await ward.line.read("shelveSchedule-15", (scheduler_id, act))
    assert isinstance(reply, list)
    code, slot, flat = reply
    return code, float(slot or 0), flat  # type: ignore[arg-type, return-value]
