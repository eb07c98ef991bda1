"""The workers: they are started, killed while they hold jobs, frozen and thawed, and replaced."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from echomq.cli._demo.children import end, has_ended, last_words, send, spawn
from echomq.cli._demo.story import Story
from echomq.errors import EchoMQError
from portal.journal import Reader
from portal.worker import LOCK_DURATION

if TYPE_CHECKING:
    from portal.seats import Seats

TICK = 0.02
"""Seconds between two looks at what the workers do."""

_STOPPING = 10.0
"""Seconds that the workers have for stopping in order."""

_CRASHES = 3
"""How many workers may end that nobody killed, before the demo gives up."""

_LONGEST_FREEZE = 20.0


class WorkersCrash(EchoMQError):
    """The workers end by themselves. The message has their last words."""


@dataclass
class Worker:
    """One worker process."""

    number: int
    process: Process
    journal: Reader
    frozen: bool = False

    @property
    def label(self) -> str:
        """What it is called on the screen."""
        return f"worker {self.number} (pid {self.process.pid})"


@dataclass
class Loss:
    """The jobs that a worker held when it was killed or frozen, until each of them was started by another."""

    worker: Worker
    missing: set[str]
    count: int
    since: float


class Crew:
    """The workers of one demo.

    Args:
        size: how many work at a time.
        url, queue, database: what they work on.
        pace: seconds that an enrolment takes, on average.
        folder: for their journals, and the log of their standard errors.
        seats: the database, to see that nobody is frozen inside of a transaction.
        chance: chooses who is killed.

    Attributes:
        kills: how many were killed while they held jobs.
        freezes: how many were frozen while they held jobs.
        seen: the jobs that were started at least once.
        redelivered: how often a job was started that had been started before.
    """

    def __init__(
        self,
        size: int,
        *,
        url: str,
        queue: str,
        database: Path,
        pace: float,
        folder: Path,
        seats: Seats,
        chance: random.Random,
        story: Story,
    ) -> None:
        self._size = size
        self._url = url
        self._arguments = ("--queue", queue, "--database", str(database), "--pace", str(pace))
        self._folder = folder
        self._errors = folder / "workers.log"
        self._seats = seats
        self._chance = chance
        self._story = story
        self._working: list[Worker] = []
        self._journals: list[Reader] = []
        self._losses: list[Loss] = []
        self._crashes = 0
        self.kills = 0
        self.freezes = 0
        self.seen: set[str] = set()
        self.redelivered = 0

    @property
    def guarded(self) -> int:
        """Jobs whose seat was taken by one delivery, and which met the guard in another."""
        first = {job for journal in self._journals for job, answer in journal.answers.items() if answer == "enrolled"}
        again = {
            job for journal in self._journals for job, answer in journal.answers.items() if answer == "already_enrolled"
        }
        return len(first & again)

    async def start(self) -> None:
        """Starts the workers."""
        for _ in range(self._size):
            await self._add()

    async def _add(self) -> Worker:
        number = len(self._journals) + 1
        journal = Reader(self._folder / f"worker-{number}.journal")
        self._journals.append(journal)
        process = await spawn(
            "portal.worker",
            *(*self._arguments, "--journal", str(journal.path)),
            url=self._url,
            folder=self._folder,
            errors=self._errors,
        )
        worker = Worker(number, process, journal)
        self._working.append(worker)
        return worker

    async def look(self) -> None:
        """Reads what the workers noted, tells which jobs came back, and replaces workers that ended by themselves.

        Raises:
            WorkersCrash: that happens too often.
        """
        for journal in self._journals:
            self._read(journal)
        for loss in [loss for loss in self._losses if not loss.missing]:
            self._losses.remove(loss)
            self._story.came_back(loss.worker.label, loss.count, time.monotonic() - loss.since)
        for worker in [worker for worker in self._working if has_ended(worker.process)]:
            self._crashes += 1
            if self._crashes > _CRASHES:
                raise WorkersCrash(
                    f"{self._crashes} workers ended that nobody killed, the last with code {worker.process.returncode}:\n"
                    f"{last_words(self._errors)}"
                )
            self._working.remove(worker)
            await self._add()

    def _read(self, journal: Reader) -> None:
        for job in journal.refresh():
            self.redelivered += job in self.seen
            self.seen.add(job)
            for loss in self._losses:
                if journal is not loss.worker.journal:
                    loss.missing.discard(job)

    async def kill(self, until: Callable[[], bool]) -> None:
        """Kills a worker that holds jobs, and puts another in its place. Gives up when ``until`` says that it is too late."""
        while not until():
            if worker := self._choose():
                self._working.remove(worker)
                await end(worker.process)
                await self._add()
                if held := self._lose(worker):
                    self.kills += 1
                    self._story.killed(worker.label, held, self._working[-1].number)
                    return
            await asyncio.sleep(TICK)

    async def freeze(self, until: Callable[[], bool]) -> None:
        """Freezes a worker that holds jobs until its locks have run out, then lets it go on."""
        while not until():
            worker = self._choose()
            if worker and await self._stop(worker):
                if held := self._lose(worker):
                    break
                self._resume(worker)
            await asyncio.sleep(TICK)
        else:
            return
        self.freezes += 1
        self._story.frozen(worker.label, held)
        since = time.monotonic()
        # Another worker has a job of this one: then its lock had gone. A lone worker has nobody to take its jobs.
        while (gone := time.monotonic() - since) < _LONGEST_FREEZE:
            others_have_them = self._size == 1 or not any(loss.worker is worker for loss in self._losses)
            if gone > LOCK_DURATION and others_have_them:
                break
            await asyncio.sleep(TICK)
        self._resume(worker)
        self._story.thawed(worker.label, gone)

    def _choose(self) -> Worker | None:
        holding = [worker for worker in self._working if worker.journal.held and not worker.frozen]
        return self._chance.choice(holding) if holding else None

    def _lose(self, worker: Worker) -> int:
        """Takes down what the worker held when it stopped."""
        self._read(worker.journal)
        held = worker.journal.held
        if held:
            self._losses.append(Loss(worker, held, len(held), time.monotonic()))
        return len(held)

    async def _stop(self, worker: Worker) -> bool:
        """Stops it outside of a transaction: inside of one it would hold the database, and everybody would wait for it."""
        worker.frozen = True
        send(worker.process, signal.SIGSTOP)
        for _ in range(20):
            await asyncio.sleep(0.005)  # the signal takes a moment, and others write as well
            if not self._seats.is_being_written():
                return True
        self._resume(worker)
        return False

    def _resume(self, worker: Worker) -> None:
        worker.frozen = False
        send(worker.process, signal.SIGCONT)

    async def stop(self) -> None:
        """Lets the workers stop in order."""
        for worker in self._working:
            send(worker.process, signal.SIGTERM)
        waiting = [asyncio.create_task(worker.process.wait()) for worker in self._working]
        if waiting:
            await asyncio.wait(waiting, timeout=_STOPPING)
        await self.end()

    async def end(self) -> None:
        """Kills what is still there."""
        for worker in self._working:
            await end(worker.process)
        self._working.clear()
