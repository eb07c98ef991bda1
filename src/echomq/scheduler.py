"""``JobScheduler``: jobs that come again and again."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Self, get_args

import msgspec

from echomq import _cron
from echomq._payloads import CodecOption, Payloads, wrapped_steps
from echomq._store import schedule
from echomq._store.codec import StoredJob, decode_json, encode_json, encode_spec
from echomq._store.codes import FULL
from echomq._store.home import Home
from echomq._store.keys import QueueKeys
from echomq._telemetry import JOB_NAME, Attributes, traced
from echomq.connection import Connection
from echomq.errors import InvalidOption, PayloadUnreadable, StateError, StoreUnavailable
from echomq.job import Job
from echomq.models import ScheduleInfo
from echomq.options import (
    MAX_BYTES,
    Cron,
    Duration,
    Every,
    JobSpec,
    MissedRuns,
    check_max_bytes,
    check_moment,
    check_truth,
    check_whole,
    shown,
    to_seconds,
)
from echomq.queue import Queue

MAX_SCHEDULE_ID: Final = 500
DEFAULT_GRACE: Final = 60.0

_NOT_IN_A_TEMPLATE: Final = {
    "job_id": "each run has an id of its own, of the schedule and its time",
    "delay": "the schedule says when it runs",
    "at": "the schedule says when it runs",
    "timestamp": "each run is made when the one before it starts",
    "deduplication": "a schedule makes each run once, by itself",
    "unique_by": "a schedule makes each run once, by itself",
}


def _about(
    _: JobScheduler, /, schedule_id: object = "", rhythm: object = None, job: object = None, **__: object
) -> Attributes:
    name = {JOB_NAME: job.name} if isinstance(job, JobSpec) else {}
    return {"bullmq.job.scheduler.id": str(schedule_id), **name}


class JobScheduler:
    """The schedules of a queue.

    They live on the server. Whichever worker starts a run makes the next one, so no process need stay up for them, and it
    does not matter how many workers there are.

    Leave it with ``async with``, or call ``close()``; made from a ``Queue``, it uses that queue's connection and need not be
    closed.

    Args:
        queue: its name, or a ``Queue``.
        connection: a ``Connection`` to share, or a URL; left out, ``ECHOMQ_URL``.
        prefix, hash_tag: as for ``Queue``.
        max_bytes, codec: as for ``Queue``, whose own are used if it is given one.

    Example:
        >>> async with JobScheduler("reports", connection="redis://localhost:6379/0") as scheduler:
        ...     await scheduler.upsert("daily", Cron("30 9 * * *", tz="Europe/Vienna"), JobSpec("report", {"of": "yesterday"}))
    """

    def __init__(
        self,
        queue: str | Queue,
        *,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        max_bytes: int | None = MAX_BYTES,
        codec: CodecOption = None,
    ) -> None:
        self._borrowed = isinstance(queue, Queue)
        if isinstance(queue, Queue):
            if connection is not None:
                raise InvalidOption("connection: leave it out when you pass a Queue, whose connection is used")
            self._home = queue._home
        else:
            self._home = Home(
                Connection.of(connection),
                QueueKeys.of(queue, prefix=prefix, hash_tag=hash_tag),
                payloads=Payloads.of(codec),
                max_bytes=check_max_bytes(max_bytes),
            )

    def __repr__(self) -> str:
        return f"<JobScheduler of {self._home.keys.queue} at {self._home.connection.where}>"

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._home.keys.queue

    @traced("upsertJobScheduler", "producer", about=_about)
    async def upsert(
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
        """Makes a schedule, or changes the one of this id.

        Call it at each start of your program: the same call again changes nothing, from however many processes at once.

        A run that waits gets the new template; with a new rhythm it is replaced by the new rhythm's first run. A paused
        schedule is changed and stays paused.

        Args:
            schedule_id: an id of your own, without ``:``, at most 500 characters.
            rhythm: ``Every(60)``, whose first run is at once unless it has an offset; or ``Cron("30 9 * * *", tz=…)``.
            job: what to run: name, data and options, such as ``task.spec(…)`` gives.
            start: no run before this moment (an aware ``datetime``); an interval's first run is at it, so it has no offset.
            end: no run of a time after this moment, nor one that a spread puts after it. Once it has passed,
                the same call goes on changing nothing.
            limit: how many runs it makes in all, over all its changes.
            immediately: for a new pattern: one run now, then those that it names.
            missed: what becomes of runs that could not start in time, because no worker was there, the queue was paused, or
                other jobs came first. ``once``: the run that waits runs late, then the next in the future. ``skip``: a run
                that starts more than ``grace`` late is not run; it completes with None. ``catch_up``: all runs are
                made up for, oldest first.
            grace: seconds. For ``skip``: how late a run may start (60). For ``catch_up``: how far back missed runs are
                made up for; left out, without end.
            spread: seconds. Each run is due at its time plus a share of this window, so that schedules of one time do not
                start together; a first run at once is at once all the same. Must be shorter than the time between two runs.

        Raises:
            InvalidOption: an option breaks a rule, or a new schedule would have no run before its end.
            EncodingError: the data has no JSON form; says where. PayloadTooLarge: it takes more than ``max_bytes``.
            StoreUnavailable: the codec's store does not answer; nothing was changed.
            StateError: jobs that stand in its way take the ids of its runs.
            ServerUnavailable: nothing was changed. ConnectionLost: it may have been changed; call it again.

        Example:
            >>> await scheduler.upsert("sweep", Every(60), sweep.spec(), missed="skip", grace=10)
        """
        _check_id(schedule_id)
        _check_template(job)
        if not isinstance(rhythm, (Every, Cron)):
            raise InvalidOption(
                f"rhythm={shown(rhythm)}: must be an Every or a Cron, such as Every(60) or Cron('@daily')"
            )
        _check_times(rhythm, start, end, immediately)
        if limit is not None:
            check_whole(limit, "limit", least=1, most=10**12)
        if missed not in get_args(MissedRuns):
            raise InvalidOption(f"missed={shown(missed)}: must be 'once', 'skip' or 'catch_up'")
        if grace is not None:
            to_seconds(grace, "grace")
            if missed == "once":
                raise InvalidOption(
                    f"grace={shown(grace)}: means something with missed='skip' or missed='catch_up' only; leave it out, or give "
                    "one of these"
                )
        elif missed == "skip":
            grace = DEFAULT_GRACE
        if spread is not None:
            _check_spread(to_seconds(spread, "spread"), rhythm)
        template = await self._home.wrapped(encode_spec(job), job.max_bytes)
        info = await schedule.upsert(
            self._home.line, schedule_id, rhythm, template, start=start, end=end, limit=limit, immediately=immediately,
            missed=missed, grace=grace, spread=spread,
        )  # fmt: skip
        return await self._read(info)

    async def get(self, schedule_id: str) -> ScheduleInfo | None:
        """A schedule as it is now, paused or not; None if there is none of this id.

        Raises:
            BrokenKey: it cannot be read; says what is wrong.
            ServerUnavailable: the server could not be asked.
        """
        found = await schedule.get(self._home.line, _check_text(schedule_id))
        return None if found is None else await self._read(found)

    async def list(self) -> list[ScheduleInfo]:
        """All schedules of the queue, those that run next first; paused and ended ones last.

        One that cannot be read, as a hand has written into it, is left out with a logged warning; ``get`` says what is wrong
        with it, and ``remove`` removes it.

        Raises:
            ServerUnavailable: the server could not be asked.
        """
        return [await self._read(found) for found in await schedule.every_one(self._home.line)]

    @traced("removeJobScheduler", about=_about)
    async def remove(self, schedule_id: str) -> bool:
        """Removes a schedule, and its next run.

        A run that is in the line already still runs, as does one that runs now: ``pause`` first if the former must not.

        Returns:
            False if there was none of this id.

        Raises:
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        return await schedule.remove(self._home.line, _check_text(schedule_id))

    @traced("pauseJobScheduler", about=_about)
    async def pause(self, schedule_id: str) -> None:
        """No further run of it starts until ``resume``; one that runs goes on. Pausing again does nothing.

        A run that is due and that no worker has started yet is dropped.

        Raises:
            StateError: there is no schedule of this id.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        if not await schedule.pause(self._home.line, _check_text(schedule_id)):
            raise self._missing(schedule_id)

    @traced("resumeJobScheduler", about=_about)
    async def resume(self, schedule_id: str) -> ScheduleInfo:
        """Lets a paused schedule go on with its next time from now on, in step with before.

        What would have run meanwhile is not made up for. Resuming again does nothing.

        Raises:
            StateError: there is no schedule of this id.
            BrokenKey: its definition cannot be read; says what is wrong. Nothing was changed.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        found = await schedule.resume(self._home.line, _check_text(schedule_id))
        if found is None:
            raise self._missing(schedule_id)
        return await self._read(found)

    @traced("runJobScheduler", "producer", about=_about)
    async def run_now(self, schedule_id: str) -> Job[Any]:
        """Adds a job of the schedule's template, to run at once, whether the schedule is paused or not.

        The schedule itself does not move, and the job does not count among its runs.

        Raises:
            StateError: there is no schedule of this id.
            BrokenKey: its definition cannot be read; says what is wrong. Nothing was changed.
            QueueFull: as many jobs wait as the ``max_size`` of the scheduler's ``Queue`` allows; the job was not added.
            ServerUnavailable: the job was not added. ConnectionLost: it may have been added, or not.
        """
        made = await schedule.run_now(self._home.line, _check_text(schedule_id))
        if made is None:
            raise self._missing(schedule_id)
        new, added = made
        if added.code == FULL:
            raise self._home.full(added)
        state = "waiting" if new[6] == "0" else "prioritized"
        return Job(StoredJob.from_new(added.job_id, new, added.at), self._home, state)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Waits for the calls under way, then lets the connection go; a ``Queue``'s it leaves to that."""
        if not self._borrowed:
            await self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _read(self, info: ScheduleInfo) -> ScheduleInfo:
        """With the template's data decoded; as they stand there, if they cannot be: the schedule is there all the same."""
        payloads = self._home.payloads
        if payloads is None or wrapped_steps(info.data) is None:
            return info
        try:
            text = await payloads.decode(encode_json(info.data, "data"))
            return msgspec.structs.replace(info, data=decode_json(text))
        except (PayloadUnreadable, StoreUnavailable, ValueError):
            return info

    def _missing(self, schedule_id: str) -> StateError:
        return StateError(f"queue {self.queue!r} has no schedule {shown(schedule_id)}")


def _check_text(schedule_id: str) -> str:
    if not isinstance(schedule_id, str) or not schedule_id:
        raise InvalidOption(f"schedule_id={shown(schedule_id)}: must be a text that is not empty")
    return schedule_id


def _check_id(schedule_id: str) -> None:
    _check_text(schedule_id)
    if ":" in schedule_id:
        raise InvalidOption(
            f"schedule_id={shown(schedule_id)}: must not contain ':', which separates it from the time in a run's id; use '-'"
        )
    if len(schedule_id) > MAX_SCHEDULE_ID:
        raise InvalidOption(
            f"schedule_id={shown(schedule_id)}: has {len(schedule_id)} characters; at most {MAX_SCHEDULE_ID} are allowed"
        )
    try:
        schedule_id.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"schedule_id={shown(schedule_id)}: holds a lone surrogate, which has no UTF-8 form; remove it"
        ) from None


def _check_template(job: JobSpec) -> None:
    if not isinstance(job, JobSpec):
        raise InvalidOption(
            f"job={shown(job)}: must be a JobSpec, such as JobSpec('report', {{'of': 'yesterday'}}) or task.spec(…)"
        )
    for option, why in _NOT_IN_A_TEMPLATE.items():
        if getattr(job, option, None) is not None:
            raise InvalidOption(f"{option}={shown(getattr(job, option))}: not for a scheduled job: {why}; leave it out")


def _check_times(rhythm: Every | Cron, start: datetime | None, end: datetime | None, immediately: bool) -> None:
    for name, moment in (("start", start), ("end", end)):
        if moment is not None:
            check_moment(moment, name)
    if start is not None and end is not None and end <= start:
        raise InvalidOption(f"end={shown(end)}: must be after start={shown(start)}")
    offset = rhythm.offset if isinstance(rhythm, Every) else None
    if offset is not None and start is not None:
        raise InvalidOption(
            f"offset={shown(offset)} and start={shown(start)}: an interval's first run is at its start, and the others keep in "
            "step with it; leave one of them out"
        )
    if check_truth(immediately, "immediately") and (start is not None or offset is not None):
        raise InvalidOption("immediately=True: a first run now and a start or an offset exclude one another")


def _check_spread(spread: float, rhythm: Every | Cron) -> None:
    if isinstance(rhythm, Every):
        distance = to_seconds(rhythm.interval, "interval")
    else:
        times = [_FROM]
        for _ in range(50):
            times.append(_cron.successor(rhythm.pattern, times[-1], rhythm.tz))
        distance = min((later - sooner).total_seconds() for sooner, later in pairwise(times[1:]))
    if spread >= distance:
        raise InvalidOption(f"spread={spread:g}: must be shorter than the time between two runs, {distance:g} s")


_FROM: Final = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
