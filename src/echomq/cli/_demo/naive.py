"""The list queue beside the reliable one: the same work, done the way that seems good enough until a consumer dies."""

from __future__ import annotations

import asyncio
import random
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

from echomq.cli._demo.children import end, last_words, send, spawn
from echomq.cli._demo.story import Story
from echomq.errors import EchoMQError
from portal import naive
from portal.seats import Seats

SIZE = 200
"""How many enrolments go to the list, at most."""

KILLS = 3
"""How often its consumer is killed while it holds an item."""


_CRASHES = 30
"""How often the consumer may end by itself, as it does while its server is away, before the demo gives up."""

_AFTER_CRASH = 1.0


class ConsumerCrash(EchoMQError):
    """The consumer ends by itself. The message has its last words."""


class NaiveQueue:
    """A list, one consumer, and its end, again and again.

    Args:
        enrolments: what is pushed, no pair twice, so that what is lost can be told.
        courses: with their seats.
        chance: chooses when the consumer is killed.

    Attributes:
        done: how many items the consumer said that it was done with.
        kills: how often it was killed while it held one.
        lost: after ``run``: how many have neither a seat nor a full course.
    """

    def __init__(
        self,
        enrolments: Sequence[tuple[int, str]],
        courses: dict[str, int],
        *,
        url: str,
        key: str,
        folder: Path,
        chance: random.Random,
        story: Story,
    ) -> None:
        self.enrolments = list(dict.fromkeys(enrolments))[:SIZE]
        self._courses = courses
        self._url = url
        self._key = key
        self._folder = folder
        self._database = folder / "naive.db"
        self._errors = folder / "naive.log"
        self._story = story
        kills = min(KILLS, len(self.enrolments))
        # In the middle of things: not at the very start, where the reader has not yet seen it work.
        self._kill_at = sorted(chance.sample(range(len(self.enrolments) // 5, len(self.enrolments)), kills))
        self._taken = 0
        self._crashes = 0
        self.done = 0
        self.kills = 0
        self.lost = 0

    async def run(self) -> None:
        """Works until the list is empty.

        Raises:
            ConsumerCrash: the consumer ended again and again, and nobody had killed it.
        """
        seats = Seats.create(self._database, self._courses)
        try:
            try:
                await asyncio.to_thread(naive.push, self._url, self._key, self.enrolments)
            except Exception as error:  # of another library, which this one does not know
                raise ConsumerCrash(f"the list {self._key!r} cannot be filled: {error}") from error
            while not await self._one_life():
                pass
            self.lost = seats.audit(self.enrolments).lost
        finally:
            seats.close()

    async def _one_life(self) -> bool:
        """From a consumer's start to its end. Whether the list is empty by then."""
        process = await spawn(
            "portal.naive",
            *("--key", self._key, "--database", str(self._database)),
            url=self._url,
            folder=self._folder,
            errors=self._errors,
            output=True,
        )
        try:
            return await self._follow(process)
        finally:
            await end(process)

    async def _follow(self, process: Process) -> bool:
        assert process.stdout is not None
        holds = ""
        killed = False
        while line := (await process.stdout.readline()).decode():
            word, _, item = line.strip().partition(" ")
            if word == "empty":
                return True
            if word == "done":
                self.done += 1
                holds = ""
                continue
            holds = item
            self._taken += 1
            if not killed and self._kill_at and self._taken > self._kill_at[0]:
                killed = True
                send(process, signal.SIGKILL)  # what it still says, it said before it died
        if not killed:
            self._crashes += 1
            if self._crashes > _CRASHES:
                raise ConsumerCrash(f"the list's consumer ended by itself: {last_words(self._errors)}")
            await asyncio.sleep(_AFTER_CRASH)
        elif holds:
            self._kill_at.pop(0)
            self.kills += 1
            self._story.naive_killed(process.pid, holds)
        return False
