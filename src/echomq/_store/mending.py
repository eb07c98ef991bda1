"""What repairs a finding: the script that confirmed it, told to act. It looks again first, so what is gone stays as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from echomq._redis.wire import Argument
from echomq._store import heal, schedule
from echomq._store.codec import id_out
from echomq._store.examining import jobs
from echomq._store.examining.growth import EVENTS_SURPLUS, EVENTS_TIMES, MOST_LANES
from echomq._store.examining.line import ABANDONED_MS, OVERDUE_MS
from echomq._store.examining.ward import Ward
from echomq._store.keys import EXPIRING, LEFT_BEHIND
from echomq._store.line import Line
from echomq.errors import InvalidOption, JobLocked
from echomq.findings import KINDS, Finding

_OF_SCHEDULES: Final = {"slot-without-schedule": 1, "schedule-without-slot": 2, "schedule-without-next-run": 3}


async def fix(line: Line, finding: Finding) -> int:
    """Repairs what was found, if it is still so. Gives how many jobs, entries or keys were put right."""
    mend = _MENDS.get(finding.kind)
    if mend is None:
        raise InvalidOption(f"finding {finding.kind}: nothing repairs that by itself: {KINDS[finding.kind].remedy}")
    return await mend(line, finding)


def _by(script: str, *args: Argument) -> Callable[[Line, Finding], Awaitable[int]]:
    """One call of the script, with what the finding is about and these arguments."""

    async def mend(line: Line, finding: Finding) -> int:
        return min(1, await _count(line, script, id_out(finding.subject), *args))

    return mend


def _in_steps(script: str, *args: Argument) -> Callable[[Line, Finding], Awaitable[int]]:
    """Calls of a script that says how many it put right, until that is none."""

    async def mend(line: Line, finding: Finding) -> int:
        done = 0
        while step := await _count(line, script, *args):
            done += step
        return done

    return mend


async def _put_back(line: Line, finding: Finding) -> int:
    return int(await heal.put_back(heal.Way.of_line(line), id_out(finding.subject)))


async def _drop_part(line: Line, finding: Finding) -> int:
    return await _count(line, "dropPart-1", id_out(finding.subject), id_out(finding.beside), "1")


async def _tell_parent(line: Line, finding: Finding) -> int:
    return min(1, await _count(line, "releaseParent-1", id_out(finding.subject), id_out(finding.beside), "1"))


async def _mark(line: Line, finding: Finding) -> int:
    return await _count(line, "markLine-5")


async def _hold_logs(line: Line, finding: Finding) -> int:
    first = surplus = await _count(line, "holdLogs-1", id_out(finding.subject), "1")
    while surplus:
        surplus = await _count(line, "holdLogs-1", id_out(finding.subject), "1")
    return first


async def _hold_own_key(line: Line, finding: Finding) -> int:
    suffix = finding.subject
    if suffix.partition(":")[0] not in LEFT_BEHIND:
        return 0
    key = line.keys.own_base + suffix
    return min(1, await _count(line, "holdOwnKey-3", key, "" if suffix.partition(":")[0] in EXPIRING else "1", "1"))


async def _count(line: Line, script: str, *args: Argument) -> int:
    reply = await line.read(script, args)
    first = reply[0] if isinstance(reply, list) else reply
    assert isinstance(first, int)
    return first


async def _keep_one_place(line: Line, finding: Finding) -> int:
    job_id = id_out(finding.subject)
    ward = Ward(line, lambda _: None, lambda _: None, lambda _: None)
    hints = (await jobs.positions(ward, {job_id})).get(job_id, [])
    wanted = "none" if finding.kind == "ghost-id" else "hash"
    reply = await line.read("keepOnePlace-11", (job_id, wanted, *hints))
    assert isinstance(reply, list)
    taken = reply[1]
    assert isinstance(taken, int)
    if taken < 0:
        raise JobLocked(
            f"job {finding.subject!r} of queue {line.keys.queue!r} is being run: wait for its end, and look again"
        )
    return taken


async def _free(line: Line, finding: Finding) -> int:
    # Who else has this id only a walk tells; the script looks at the one that holds it, and at the one it was kept for.
    reply = await line.read("freeDeduplication-11", (id_out(finding.subject), "1"))
    assert isinstance(reply, list)
    return int(bool(reply[0]) or bool(reply[1]))


async def _go_on(line: Line, finding: Finding) -> int:
    """A schedule is put away as if it were paused, and resumed: with its next run from now on."""
    scheduler_id, code = id_out(finding.subject), _OF_SCHEDULES[finding.kind]
    reply = await line.read("shelveSchedule-15", (scheduler_id, ""))
    assert isinstance(reply, list)
    found, score, flat = reply
    assert isinstance(flat, list)
    if found != code:
        return 0
    slot = float(score or await _now(line))  # type: ignore[arg-type]
    if code != 1 and schedule.has_come_to_its_end(slot, flat):
        if code == 3:
            return 0
        raise InvalidOption(f"schedule {finding.subject!r} has come to its end: remove it")
    await line.read("shelveSchedule-15", (scheduler_id, str(code)))
    if code == 1:
        return 1
    # Asked again after a lost reply, the script finds nothing more to put away: its mark in what is there says whose it is.
    record = await line.ask("HGET", line.keys.resolve("paused_schedulers"), scheduler_id)
    if not isinstance(record, bytes) or b'"mending":true' not in record:
        return 0
    await schedule.resume(line, finding.subject)
    return 1


async def _now(line: Line) -> int:
    reply = await line.ask("TIME")
    assert isinstance(reply, list)
    return int(reply[0]) * 1000  # type: ignore[arg-type]


_MENDS: Final[dict[str, Callable[[Line, Finding], Awaitable[int]]]] = {
    "job-in-no-state": _put_back,
    "job-in-two-states": _keep_one_place,
    "id-twice-in-list": _keep_one_place,
    "ghost-id": _keep_one_place,
    "unreadable-options": _by("mendOptions-1", "1"),
    "orphaned-part": _drop_part,
    "stuck-parent": _tell_parent,
    "missing-child": _tell_parent,
    "ended-child": _tell_parent,
    "dead-deduplication-id": _free,
    "orphaned-next-job": _free,
    "lock-without-run": _by("dropLock-1", "1"),
    "run-without-lock": _by("putBackAbandoned-9", str(ABANDONED_MS), "1"),
    "jobs-in-paused-list": _in_steps("takeOverPaused-5"),
    "two-waiting-lists": _in_steps("takeOverPaused-5"),
    "missing-marker": _mark,
    "overdue-jobs": _in_steps("promoteOverdue-8", str(OVERDUE_MS)),
    "slot-without-schedule": _go_on,
    "schedule-without-slot": _go_on,
    "schedule-without-next-run": _go_on,
    "events-too-long": _in_steps("holdEvents-2", str(EVENTS_SURPLUS)),
    "events-too-large": _in_steps("holdEventBytes-2", str(EVENTS_TIMES), "1"),
    "logs-too-long": _hold_logs,
    "silent-lanes": _in_steps("holdCalls-1", str(MOST_LANES), "1"),
    "own-key-without-expiry": _hold_own_key,
    "leftover-own-key": _hold_own_key,
}
