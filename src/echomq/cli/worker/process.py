"""One process and its workers, from their start to their end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from echomq import EchoMQError, LifespanFailed, OutcomesNotStored, Worker
from echomq.cli.worker.announce import Announcer
from echomq.cli.worker.parent import HURRY, Parent
from echomq.cli.worker.state import ProcessState, look_at

EXIT_NOT_STORED: Final = 75
"""EX_TEMPFAIL: the server was away while the worker stopped; the jobs that it names will run again."""

_TELL_EVERY: Final = 1.0

_FOR_ENDING: Final = 2.0
"""Seconds that the event loop and threads may take to end when all else has."""

_FOR_EXITING: Final = 5.0
"""Seconds that the functions of ``atexit`` may take after that."""

_ORPHANS_CLEANING: Final = 0.3
_ORPHANS_ENDING: Final = 0.2
_ORPHANS_EXITING: Final = 0.1
"""These where the parent is gone: within a second of it so is this process."""


class Process:
    """The workers of this process.

    Args:
        announce: told when all are ready, and when they stop; in a child that is the parent's affair.
        parent: the supervisor, if there is one.
    """

    def __init__(self, workers: Sequence[Worker], announce: Announcer, parent: Parent | None) -> None:
        self._workers = workers
        self._announce = announce
        self._parent = parent
        self._closing: list[asyncio.Task[None]] = []
        self._asked = 0
        self._for_ending, self._for_exiting = _FOR_ENDING, _FOR_EXITING
        self._exits = threading.Event()
        self._reporter = _Reporter(self.state, self._told)
        self._was_ready = self._was_held_up = False

    def state(self) -> ProcessState:
        """How it does. For any thread."""
        return look_at(self._workers, stopping=self._asked > 0)

    async def run(self) -> int:
        """Works until it is told to stop; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._parent is not None:
            self._parent_heard = self._parent.watch(lambda: loop.call_soon_threadsafe(self._parent_gone))
        running = [loop.create_task(one.run()) for one in self._workers]
        self._reporter.start()
        giving_back = [
            loop.create_task(one._take_from_dead(name, one._plan.lock_duration))
            for one in self._workers
            for name in (() if self._parent is None else self._parent.dead)
        ]
        ready = loop.create_task(self._until_ready())
        stopping = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
            self._reporter.look()
            ends = await asyncio.gather(*(one.close() for one in self._workers), *running, return_exceptions=True)
        finally:
            for task in (ready, stopping, *giving_back):
                task.cancel()
            await asyncio.gather(ready, stopping, *giving_back, *self._closing, return_exceptions=True)
            self._reporter.stop()
        code = _code(ends)
        atexit.register(self._exits.set)  # the last one registered is the first one called, when threads have ended
        threading.Thread(target=self._end, args=(code,), name="echomq end", daemon=True).start()
        return code

    def _end(self, code: int) -> None:
        """All jobs have ended or are given back; what a handler leaves running must not keep the process.

        The event loop waits for tasks that do not heed that they are cancelled, and for threads of ``asyncio.to_thread``; the
        interpreter then for other threads, and at last for the functions of ``atexit``.
        """
        what = "what a handler has left running"
        if self._exits.wait(self._for_ending):
            time.sleep(self._for_exiting)
            what = "a function that was registered with atexit"
        logging.getLogger("echomq").warning("%s does not end: the process ends without it", what)
        if self._parent is None:
            self._announce.stopped(code)
        logging.shutdown()
        os._exit(code)

    async def _until_ready(self) -> None:
        with contextlib.suppress(EchoMQError):  # why a worker cannot start is said once, when it has ended
            await asyncio.gather(*(one.ready() for one in self._workers))
            self._reporter.look()

    def _on_signal(self, number: signal.Signals) -> None:
        self._asked += 1
        self._stop.set()
        if self._asked > 1 if self._parent is None else number == HURRY:
            self._hurry()
        elif self._parent is None:
            self._announce.stopping()

    def _parent_gone(self) -> None:
        """Nobody will start this process anew, nor end it: what runs goes back at once, for others to run."""
        self._parent_heard.set()
        logging.getLogger("echomq").error("the parent of this worker process is gone: it gives its jobs back and ends")
        self._asked += 1
        self._for_ending, self._for_exiting = _ORPHANS_ENDING, _ORPHANS_EXITING
        for one in self._workers:
            one._leave(_ORPHANS_CLEANING)
        self._stop.set()

    def _hurry(self) -> None:
        loop = asyncio.get_running_loop()
        self._closing.extend(loop.create_task(_quietly(one.close(force=True))) for one in self._workers)

    def _told(self, state: ProcessState) -> None:
        """Called in the reporter's thread, again and again."""
        if self._parent is not None:
            self._parent.tell(state)
        elif not self._was_ready:
            if state.ready:
                self._was_ready = True
                self._announce.ready(state.workers)
        elif state.held_up != self._was_held_up:
            self._was_held_up = state.held_up
            self._announce.healthy(not state.held_up)


class _Reporter:
    """Looks at the process from a thread of its own: where the event loop is held up, nothing in it can tell.

    Args:
        look: gives the state.
        tell: called with it, once a second and when it was asked to look.
    """

    def __init__(self, look: Callable[[], ProcessState], tell: Callable[[ProcessState], None]) -> None:
        self._look = look
        self._tell = tell
        self._wake = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="echomq watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Has it look now."""
        self._wake.set()

    def stop(self) -> None:
        self._ends = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_TELL_EVERY)  # it may be waiting for a parent that does not read

    def _run(self) -> None:
        while not self._ends:
            self._tell(self._look())
            self._wake.wait(_TELL_EVERY)
            self._wake.clear()


def _code(ends: Sequence[Any]) -> int:
    code = 0
    for end in dict.fromkeys(ends):  # what keeps an app from starting is one error of all its workers
        if isinstance(end, OutcomesNotStored):
            logging.getLogger("echomq").error("%s", end)
            code = EXIT_NOT_STORED
        elif isinstance(end, LifespanFailed) and end.phase == "startup":
            logging.getLogger("echomq").error("%s", end, exc_info=end.__cause__)
            code = code or 1
        elif isinstance(end, EchoMQError):
            logging.getLogger("echomq").error("%s", end)
            code = code or 1
        elif isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end
    return code


async def _quietly(closing: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(EchoMQError):
        await closing
