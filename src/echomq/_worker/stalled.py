"""The sweep: jobs of dead workers go back to wait. Every worker takes part; the server lets one at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from echomq._log import Seldom, about, logger
from echomq._store.call import Lane, Patience
from echomq._store.finish import ENDINGS, Failed, Outcome
from echomq._store.keep import Sweep, sweep
from echomq._store.presence import LONGEST_SILENCE, Present
from echomq.errors import ConnectionLost, EchoMQError, ServerUnavailable
from echomq.options import Backoff

_AGAIN = 1.0
_CONFIRM = 1.5


class Sweeper:
    """Sweeps at start and whenever the server's guard allows the next one.

    Args:
        lane: its own.
        interval: seconds between sweeps, whoever of the fleet makes them.
        max_stalled: a job that stalls more often is failed by the next worker that fetches it.
        crash_backoff: instead of that, how long it is to wait; None: it fails.
        present: what the worker says of itself with each sweep, also when it is not its turn.
        outcomes_wait: called when some are in the outbox.
    """

    def __init__(
        self,
        queue: str,
        lane: Lane,
        interval: float,
        max_stalled: int,
        crash_backoff: Backoff | None,
        present: Callable[[], Present],
        outcomes_wait: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._lane = lane
        self._interval = interval
        self._max_stalled = max_stalled
        self._crash_backoff = crash_backoff
        self._present = present
        self._changed = asyncio.Event()
        self._outcomes_wait = outcomes_wait
        self._seldom = Seldom()
        self._last_rules: dict[str, tuple[int | None, str]] = {}  # for each set, when a job ended by which rule
        self._beyond = "fails" if crash_backoff is None else "waits for a time that grows"

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            self._changed.clear()
            try:
                swept = await self.tick()
                pause = min(swept.next_in, self._interval, LONGEST_SILENCE)
            except (ConnectionLost, ServerUnavailable):
                pause = min(_AGAIN, self._interval)
            except EchoMQError as error:
                self._seldom.error("queue %s cannot be swept for stalled jobs: %s", self._queue, error)
                pause = self._interval
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(pause, 0.01)):
                    await self._changed.wait()

    def changed(self) -> None:
        """What the worker says of itself has changed: it says it now, instead of with its next sweep."""
        self._changed.set()

    def ended(self, outcomes: Sequence[Outcome], now: int | None) -> None:
        """These outcomes have been stored, at this time of the server. By their rules finished jobs go on to be removed."""
        last: dict[str, str] = {}
        for outcome in outcomes:
            if isinstance(outcome, ENDINGS) and outcome.keep[:2] != "0;":  # else it was removed itself
                last["failed" if isinstance(outcome, Failed) else "completed"] = outcome.keep
        for target, keep in last.items():
            self._last_rules[target] = (now, keep)

    async def tick(self) -> Sweep:
        """One sweep, if it is nobody else's turn."""
        confirm = min(_CONFIRM, self._interval / 2)
        told = dict(self._last_rules)
        swept = await sweep(
            self._lane,
            self._interval,
            self._max_stalled,
            confirm,
            Patience(0),
            self._crash_backoff,
            self._present(),
            told,
        )
        for target, last in told.items():
            if self._last_rules[target] == last:
                del self._last_rules[target]
        if swept.in_outbox:
            self._outcomes_wait()
        for job_id in swept.recovered:
            logger.warning(
                "job %s of queue %s had lost its worker; it is back in the queue, and runs again (or %s, if that has "
                "happened more often than max_stalled_count=%d allows)",
                job_id,
                self._queue,
                self._beyond,
                self._max_stalled,
                extra=about(self._queue, job_id, ""),
            )
        return swept
