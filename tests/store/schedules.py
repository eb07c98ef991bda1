"""Our schedules with a clock that stands still: what ``JobScheduler`` and a worker do, on the store tests' small client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from echomq import Cron, Every, JobSpec, ScheduleInfo
from echomq._store import schedule
from echomq._store.call import Patience
from echomq._store.codec import StoredJob, encode_spec, to_moment
from tests.store.scripts import Queue, Taken


class Clocked:
    """In place of a line and of a lane: calls go to the scripts at once, at the time of the queue's clock."""

    def __init__(self, queue: Queue) -> None:
        self.keys = queue.keys
        self._queue = queue

    async def call(self, name: str, args: Sequence[Any], patience: Patience | None = None) -> Any:
        return self._queue.run(name, *args)

    async def read(self, name: str, args: Sequence[Any]) -> Any:
        return self._queue.run(name, *args)

    async def ask(self, *command: Any) -> Any:
        if command == ("TIME",):
            assert self._queue.clock is not None
            return [b"%d" % (self._queue.clock // 1000), b"%d" % (self._queue.clock % 1000 * 1000)]
        return self._queue.client.execute_command(*command)


DEFAULTS: dict[str, Any] = {
    "start": None, "end": None, "limit": None, "immediately": False, "missed": "once", "grace": None, "spread": None,
}  # fmt: skip


class Schedules:
    """The schedules of a queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._line: Any = Clocked(queue)

    def upsert(self, id: str, rhythm: Every | Cron, job: JobSpec | None = None, **options: Any) -> ScheduleInfo:
        given = {**DEFAULTS, **options}
        return asyncio.run(schedule.upsert(self._line, id, rhythm, encode_spec(job or JobSpec("tick")), **given))

    def get(self, id: str) -> ScheduleInfo | None:
        return asyncio.run(schedule.get(self._line, id))

    def all(self) -> list[ScheduleInfo]:
        return asyncio.run(schedule.every_one(self._line))

    def remove(self, id: str) -> bool:
        return asyncio.run(schedule.remove(self._line, id))

    def pause(self, id: str) -> bool:
        return asyncio.run(schedule.pause(self._line, id))

    def resume(self, id: str) -> ScheduleInfo | None:
        return asyncio.run(schedule.resume(self._line, id))

    def fetch(self, **call: Any) -> Taken:
        """Takes a job, and advances its schedule as a worker does."""
        taken = self.queue.fetch(**call)
        for job_id in taken.ids:
            self.advance(job_id)
        return taken

    def advance(self, job_id: str, *, started: int | None = None) -> float | None:
        """What a worker does before the handler; gives how late the job is, if it is to be skipped.

        ``started`` is for a job that has not been fetched.
        """
        flat = self.queue.client.execute_command("HGETALL", self.queue.base + job_id)
        job = StoredJob.from_reply(job_id.encode(), flat)
        if started is not None:
            job.fields[b"processedOn"] = b"%d" % started
        return asyncio.run(schedule.Schedules(self._line).advance(job, Patience(1)))


def at(ms: int) -> datetime:
    """A moment of the tests' clock."""
    return to_moment(ms)


def ms(moment: datetime | None) -> int:
    assert moment is not None
    return round(moment.astimezone(UTC).timestamp() * 1000)
