"""Several worker processes under one parent, which passes signals on, starts a dead one anew, and gives its jobs back at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from echomq.cli.worker.announce import Announcer
from echomq.cli.worker.parent import HURRY, Parent
from echomq.cli.worker.state import ProcessState, not_alive

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 30.0
_GROWTH: Final = 4
_LONG_LIFE: Final = 60.0
"""Seconds after which a process that dies is no sign that the next one will: the pause begins anew."""

_AFTER_GRACE: Final = 15.0
"""Seconds beyond the grace time that a process may take to stop: for cleaning up, and for storing outcomes in an outage."""

_FOR_GIVING_BACK: Final = 5.0
"""Seconds that the end of all may wait until the jobs of one that died are back."""

_LAST_WORDS: Final = 0.2
"""Seconds for reading what a process told before its end: what it has started in turn may hold the pipe open."""

_MOST_HERITAGES: Final = 20
_WATCH_EVERY: Final = 1.0
_LONGEST_LINE: Final = 4 * 1024 * 1024

_log = logging.getLogger("echomq")


class Child:
    """One process.

    Attributes:
        process: of the operating system.
        name: by which it is known what it has locked.
        state: what it last told.
        was_ready: whether it ever took jobs.
        gave_up: whether it said that a new process would fare no better.
        told_to_stop: whether it was sent a signal.
        heir_of: names of processes that had died, whose jobs it was to give back.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str, heir_of: Sequence[str]) -> None:
        self.process = process
        self.name = name
        self.heir_of = heir_of
        self.state: ProcessState | None = None
        self.was_ready: bool = False
        self.gave_up: bool = False
        self.told_to_stop: bool = False
        self._began = time.monotonic()
        self._heard_at = 0.0
        self._end: asyncio.TimerHandle | None = None
        self.listening: asyncio.Task[None] | None = None

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._began

    @property
    def silent_for(self) -> float:
        """Seconds since it told something."""
        return time.monotonic() - self._heard_at

    def hear(self, state: ProcessState) -> None:
        """It has told how it does."""
        self.state, self._heard_at = state, time.monotonic()
        self.was_ready = self.was_ready or state.ready
        self.gave_up = self.gave_up or state.gave_up

    def stop(self, grace: float) -> None:
        """Tells it to stop, for which it has so many seconds; a second time, to do so at once."""
        again, self.told_to_stop = self.told_to_stop, True
        self.send(HURRY if again else signal.SIGTERM)
        grace = 0.0 if again else grace
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(grace + _AFTER_GRACE, self._kill)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def ended(self) -> int:
        """Waits for its end; the exit code, below 0 that of a signal."""
        code = await self.process.wait()
        if self._end is not None:
            self._end.cancel()
        if self.listening is not None:
            await asyncio.wait({self.listening}, timeout=_LAST_WORDS)
            self.listening.cancel()
        return code

    def _kill(self) -> None:
        _log.error("worker process %d does not stop: it is killed", self.process.pid)
        self.send(signal.SIGKILL)


class Supervisor:
    """The parent. A child is in a session of its own, so that Ctrl-C reaches it once, through its parent.

    Args:
        size: how many processes there are to be.
        words: of the command that each of them runs.
        announce: told when all are ready, and when they stop.
        give_back: puts back what a process of this name had in hand; None: the next process that starts does so.
        grace: seconds that running jobs get to finish when it stops.
        changes: gives the files that were changed, each time that some were: then all processes are started anew. A process
            that ends by itself waits for such a change.
        command: what the user has called.
    """

    def __init__(
        self,
        size: int,
        words: Sequence[str],
        announce: Announcer,
        *,
        give_back: Callable[[str], Coroutine[Any, Any, None]] | None,
        grace: float,
        changes: AsyncIterator[str] | None = None,
        command: str = "worker",
    ) -> None:
        self._command = command
        self._size = size
        self._words = words
        self._announce = announce
        self._give_back = give_back
        self._grace = grace
        self._changes = changes
        self._children: list[Child] = []
        self._asked = 0
        self._worst = 0
        self._announced = self._is_healthy = self._took_jobs = False
        self._giving_back: set[asyncio.Task[None]] = set()
        self._without_heir: list[str] = []

    def states(self) -> list[ProcessState]:
        """What its processes last told. For any thread."""
        return [
            msgspec.structs.replace(child.state, heard=round(child.silent_for, 3))
            for child in self._children.copy()
            if child.state is not None
        ]

    async def run(self) -> int:
        """Until all have stopped; returns the worst of their exit codes."""
        loop = asyncio.get_running_loop()
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        places = [loop.create_task(self._keep(), name="echomq place") for _ in range(self._size)]
        beside = [loop.create_task(self._watch(), name="echomq watch")]
        if self._changes is not None:
            beside.append(loop.create_task(self._follow(self._changes), name="echomq reload"))
        try:
            await asyncio.gather(*places)
        finally:  # where something went wrong here, the end of our pipes ends the children
            for task in (*places, *beside):
                task.cancel()
            await asyncio.gather(*places, *beside, return_exceptions=True)
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=_FOR_GIVING_BACK)
        return self._worst

    def _on_signal(self) -> None:
        self._asked += 1
        self._stop()
        if self._asked == 1:
            self._announce.stopping()

    def _stop(self) -> None:
        self._stopping.set()
        for child in self._children:
            child.stop(self._grace)

    # -- one place -------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Has a process run at this place until all stop."""
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            changed = self._changed
            try:
                child = await self._start()
            except OSError as error:
                _log.error("a worker process could not be started: %s; again in %g s", error, pause)
                await self._pause(pause)
                pause = min(pause * _GROWTH, _LONGEST_PAUSE)
                continue
            if self._stopping.is_set() or changed.is_set():  # while it was being started
                child.stop(self._grace)
            code = await child.ended()
            self._children.remove(child)
            if code != 0 or not child.told_to_stop:
                self._take_back(child)
            if self._stopping.is_set():
                self._worst = max(self._worst, _exit_code(code))
                return
            if child.told_to_stop:  # for a change of its files
                continue
            if code >= 0 and self._changes is not None:
                await self._until_changed(child, code, changed)
                continue
            if child.gave_up and not self._took_jobs:
                self._worst = max(self._worst, code)
                self._stop()
                return
            if child.age > _LONG_LIFE:
                pause = _FIRST_PAUSE
            how = f"died of signal {-code}" if code < 0 else f"ended by itself, with exit code {code}"
            _log.error("worker process %d %s; a new one starts in %g s", child.process.pid, how, pause)
            await self._pause(pause)
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)

    async def _start(self) -> Child:
        ours, theirs = os.pipe()
        name = secrets.token_urlsafe(6) + "."
        heir_of, self._without_heir = self._without_heir[-_MOST_HERITAGES:], []
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "echomq.cli",
                *self._words,
                stdin=asyncio.subprocess.PIPE,  # never written to: its end tells the child that we are gone
                pass_fds=[theirs],
                env={**os.environ, **Parent.variable(theirs, name, self._command, heir_of)},
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            self._without_heir += heir_of
            raise
        finally:
            os.close(theirs)
        child = Child(process, name, heir_of)
        self._children.append(child)
        child.listening = asyncio.create_task(self._listen(child, ours), name="echomq listen")
        return child

    async def _listen(self, child: Child, descriptor: int) -> None:
        """Hears what it tells until it has ended."""
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
        )
        try:
            while line := await reader.readline():
                try:
                    child.hear(msgspec.json.decode(line, type=ProcessState))
                except msgspec.DecodeError:  # what a handler forks may write there too; the next line comes in a second
                    continue
                self._took_jobs = self._took_jobs or child.was_ready
                self._look()
        finally:
            pipe.close()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _take_back(self, child: Child) -> None:
        if self._give_back is None:
            self._without_heir += [child.name] if child.was_ready else [*child.heir_of, child.name]
        else:
            task = asyncio.get_running_loop().create_task(self._give_back(child.name), name="echomq give back")
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    # -- what they tell --------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:  # what a process does not tell any more is noticed too
            await asyncio.sleep(_WATCH_EVERY)
            self._look()

    def _look(self) -> None:
        states = self.states()
        if not self._announced:
            leaves = any(child.told_to_stop for child in self._children)
            if len(states) == self._size and not leaves and all(state.ready for state in states):
                self._announced = self._is_healthy = True
                self._announce.ready([one for state in states for one in state.workers])
            return
        is_healthy = not not_alive(states)
        if is_healthy != self._is_healthy and not self._stopping.is_set():
            self._is_healthy = is_healthy
            self._announce.healthy(is_healthy)

    # -- files that change -----------------------------------------------------------------------------------------------

    async def _follow(self, changes: AsyncIterator[str]) -> None:
        async for files in changes:
            _log.info("%s changed: starting anew", files)
            self._changed.set()
            self._changed = asyncio.Event()
            self._announced = self._is_healthy = False
            self._announce.healthy(False)
            for child in self._children:
                if not child.told_to_stop:
                    child.stop(self._grace)

    async def _until_changed(self, child: Child, code: int, changed: asyncio.Event) -> None:
        _log.error("worker process %d ended with exit code %d; waiting for a file to change", child.process.pid, code)
        waits = [asyncio.ensure_future(event.wait()) for event in (changed, self._stopping)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _exit_code(code: int) -> int:
    """What the end of a process adds to ours when all stop."""
    if code == -signal.SIGTERM:
        return 0  # it was still starting, and had no job
    return code if code >= 0 else 128 - code
