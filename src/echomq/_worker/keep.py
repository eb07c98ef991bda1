"""The heartbeat: a thread of its own, so that a handler that blocks the event loop does not lose its job.

All locks are renewed in one call. A lock is lost when the server says so, or when it was not renewed for so long that it may
have expired; an error of the connection alone is no loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from echomq._clock import lasting
from echomq._log import Seldom, about, logger
from echomq._redis.heartbeat import HeartbeatLink
from echomq._store.keep import extend_locks
from echomq._store.keys import QueueKeys
from echomq._worker.held import Held, HeldTable, Hold
from echomq.errors import ConnectionLost, EchoMQError, ServerUnavailable

_RETRY_PAUSE = 0.25
_LOOK_EVERY = 1.0
_SLOW_LOOP = 3.0
"""Seconds of silence after which a held-up event loop is worth a line in the log."""
_LAGS = 60
"""Answers of the event loop that are remembered: with a look a second, those of about a minute."""
_FOR_ENDING = 1.0
_MARGIN = 0.1
"""The share of the lock's duration that is left unused: for the time between our clock's word and the handler's end."""


class Keeper:
    """Renews the locks of all jobs in the table until it is stopped, and tells the event loop of losses.

    Args:
        link: its own connection.
        lock_duration: seconds.
        on_lost: called in the event loop, for a job that is another's by now (True) or whose lock may have expired (False).
    """

    def __init__(
        self,
        link: HeartbeatLink,
        keys: QueueKeys,
        table: HeldTable,
        lock_duration: float,
        on_lost: Callable[[Held, bool], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._table = table
        self._lock_duration = lock_duration
        self._interval = lock_duration / 4
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._loop_asked = 0.0  # 0.0: no answer is waited for
        self._loop_lags: deque[float] = deque(maxlen=_LAGS)
        self._loop_reported = 0.0
        self._seldom = Seldom()
        self._ended = asyncio.Event()

    @property
    def loop_silent_for(self) -> float:
        """Seconds that the event loop has owed the heartbeat an answer: none while a slow server keeps that from asking."""
        asked = self._loop_asked
        return time.monotonic() - asked if asked else 0.0

    @property
    def loop_lag(self) -> float:
        """The longest time, in seconds, that the event loop took to answer lately, or takes now."""
        return max((*self._loop_lags.copy(), self.loop_silent_for))

    def start(self) -> None:
        """Starts the thread. Called in the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="echomq-heartbeat", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread. The caller holds no job any more."""
        self._stop.set()
        self._link.close()
        if self._thread is not None:
            # It is bound by its deadlines, and harmless: a name lookup that does not end is not waited for. No thread of the
            # event loop's executor does the waiting: handlers may have taken them all.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FOR_ENDING):
                    await self._ended.wait()

    def overdue(self, held: Held) -> bool:
        """Whether the lock was not renewed for so long that it may expire."""
        return held.renewed_at < lasting() - self._lock_duration * (1 - _MARGIN)

    def tick(self) -> None:
        """One beat: renews what is held, and marks what has been lost."""
        held = [one for one in self._table.all() if one.hold is not Hold.LOST]
        if held:
            self._renew(held)
        self._expire()

    def _run(self) -> None:
        try:
            self._beat()
        finally:
            self._call_in_loop(self._ended.set)

    def _beat(self) -> None:
        pause = self._interval
        while not self._wait(pause):
            try:
                self.tick()
            except EchoMQError as error:
                self._say(error)
                self._expire()
                pause = min(_RETRY_PAUSE, self._interval)
            except Exception:
                if self._stop.is_set():
                    return  # the link was closed under us
                # A fault of ours must not end the thread: every job that this worker holds depends on it.
                logger.exception("the heartbeat met an error of its own; it goes on")
                pause = self._interval
            else:
                pause = self._interval

    def _wait(self, pause: float) -> bool:
        """Waits, with an eye on the event loop. Whether it is time to stop."""
        left = pause
        while left > 0:
            part = min(left, _LOOK_EVERY)
            began = time.monotonic()
            if self._stop.wait(part):
                return True
            left -= part
            late = time.monotonic() - began - part
            if late > self._lock_duration / 2:
                # Told apart from an event loop that is held up: then this thread at least runs.
                logger.warning("this process has not run for %.1f s (frozen, or starved of processor time)", late)
                self._loop_asked = 0.0  # it cannot have answered
            self._look_at_loop()
        return False

    def _renew(self, held: Sequence[Held]) -> None:
        before = lasting()
        triples = [(one.job.id, one.token, one.run) for one in held]
        lost = set(extend_locks(self._link, self._keys, triples, self._lock_duration, max(self._interval, 0.5)))
        for one in held:
            if one.job.id not in lost:
                one.renewed_at = max(one.renewed_at, before)
            elif one.hold is not Hold.ENDED:  # an ended one may just have been stored: its own call says what it met
                self._tell(one, True)

    def _expire(self) -> None:
        for one in self._table.all():
            if one.hold is Hold.RUNNING and self.overdue(one):
                self._tell(one, False)

    def _tell(self, held: Held, certain: bool) -> None:
        if not self._stop.is_set():
            self._call_in_loop(self._on_lost, held, certain)

    def _call_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stop.set()  # the loop is closed; nothing is left to keep

    def _say(self, error: EchoMQError) -> None:
        if self._stop.is_set():
            return
        if isinstance(error, (ServerUnavailable, ConnectionLost)):
            self._seldom.warning("locks of %s cannot be renewed for now: %s", self._keys.queue, error)
        else:
            self._seldom.error("locks of %s cannot be renewed: %s", self._keys.queue, error)

    def _look_at_loop(self) -> None:
        """Asks the event loop for a sign of life, and says what holds it up: after some seconds, and after a lock's duration."""
        silent = self.loop_silent_for
        if silent > self._lock_duration and self._loop_reported < self._lock_duration:
            self._loop_reported = silent
            self._report_loop(logging.ERROR, silent)
        elif silent > _SLOW_LOOP and not self._loop_reported:
            self._loop_reported = silent
            self._report_loop(logging.WARNING, silent)
        self._loop_asked = self._loop_asked or time.monotonic()
        self._call_in_loop(self._loop_answers)

    def _report_loop(self, level: int, silent: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame, limit=6)) if frame is not None else "unknown"
        running = [one for one in self._table.all() if one.hold is Hold.RUNNING]
        first = running[0].job if running else None
        logger.log(
            level,
            "the event loop has not answered for %.1f s: a handler holds it up (what blocks belongs in a plain def, which runs "
            "in a thread). Jobs in hand: %d%s. It stands at:\n%s",
            silent,
            len(running),
            f", the first is {first.id} ({first.name})" if first else "",
            stack,
            extra=about(self._keys.queue, first.id, first.name) if first else None,
        )

    def _loop_answers(self) -> None:
        if self._loop_asked:
            self._loop_lags.append(self.loop_silent_for)
            self._loop_asked = 0.0
        self._loop_reported = 0.0
