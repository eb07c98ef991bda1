"""Queues whose jobs have run when their add returns: a real worker stands ready, and nothing is waited for but the job."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from echomq._store.codec import NewJob
from echomq._testing.driver import NotSettled
from echomq.app import EchoMQ
from echomq.errors import BulkAddError, JobNotFound, StateError
from echomq.job import Job
from echomq.options import JobSpec, ProcessPool
from echomq.queue import Queue
from echomq.worker import Worker

_SLOTS: Final = 1_000
"""More than there are jobs that enqueue jobs that enqueue jobs."""

_PROCESSES: Final = ProcessPool(size=2, warm=False)
_MOST_RUNS: Final = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01


class Crews:
    """The workers that stand ready: one for a queue in each event loop, from its first job on.

    Args:
        app: whose tasks they run.
        patience: seconds that a job may take.
    """

    def __init__(self, app: EchoMQ, patience: float) -> None:
        self._app = app
        self._patience = patience
        self._workers: dict[asyncio.AbstractEventLoop, dict[str, Worker]] = {}

    async def run(self, job: Job[Any]) -> Job[Any]:
        """Has it run, and run again, at once, until it has ended; gives it as it is then.

        A job whose queue is paused stays where it is; so does one that is put off again and again.
        """
        loop = asyncio.get_running_loop()
        give_up, pause, put_off = loop.time() + self._patience, _FIRST_PAUSE, 0
        await self._stand_ready(job.queue_name)
        while True:
            found = await job.refresh()
            if found is None or found.state in ("completed", "failed", "waiting_children"):
                return found or job
            if found.state in ("waiting", "prioritized") and await self._app.queue(job.queue_name).is_paused():
                return found
            if found.state == "delayed":
                put_off += 1
                if put_off > _MOST_RUNS:
                    return found
                with contextlib.suppress(StateError, JobNotFound):  # it has moved on by itself
                    await found.promote()
            if loop.time() > give_up:
                raise NotSettled(f"job {job.id!r} ({job.name}) is {found.state} after {self._patience:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def close_here(self) -> None:
        """Ends those of this event loop."""
        for worker in self._workers.pop(asyncio.get_running_loop(), {}).values():
            await worker.close()

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops in which some stand ready."""
        return list(self._workers)

    async def _stand_ready(self, name: str) -> None:
        workers = self._workers.setdefault(asyncio.get_running_loop(), {})
        worker = workers.get(name)
        if worker is None or not worker.is_running:
            worker = workers[name] = self._app.worker(name, concurrency=_SLOTS, name="inline", processes=_PROCESSES)
        await worker.ready()


class InlineQueue(Queue):
    """A queue whose jobs have run when their add returns."""

    def __init__(self, *args: Any, crews: Crews, tasks: EchoMQ, **options: Any) -> None:
        super().__init__(*args, **options)
        self._crews = crews
        self._tasks = tasks

    async def add(self, name: str | JobSpec, *args: Any, **options: Any) -> Job[Any]:
        """Adds a job and runs it."""
        return await self._has_run(await super().add(name, *args, **options))

    async def _add_all(self, new: list[NewJob], sent: list[NewJob]) -> list[Job[Any]]:
        """One after the other: each has run when the next is added."""
        made: list[Job[Any]] = []
        for position, (as_it_reads, as_stored) in enumerate(zip(new, sent, strict=True)):
            try:
                [job] = await super()._add_all([as_it_reads], [as_stored])
            except BulkAddError as error:
                raise BulkAddError(
                    f"{position} of {len(new)} jobs were added, then: {error.__cause__}",
                    added=[job.id for job in made],
                    unknown=[position] if error.unknown else (),
                    not_added=range(position + len(error.unknown), len(new)),
                ) from error.__cause__
            made.append(await self._has_run(job))
        return made

    async def _has_run(self, job: Job[Any]) -> Job[Any]:
        if self.name not in {task.queue for task in self._tasks.tasks.values()}:
            return job  # nothing here could run it
        found = await self._crews.run(job)
        return job if job.duplicate or job.deduplicated else found
