"""A line in the log for each run whose outcome is stored; only where ``echomq.jobs`` logs at debug when a worker starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from echomq._log import about
from echomq._store.finish import Completed, Delayed, GivenBack, Outcome, RateLimited
from echomq._worker.held import Held

journal: Final = logging.getLogger("echomq.jobs")

_WORDS: Final[dict[type[Outcome], str]] = {
    Completed: "completed in",
    Delayed: "is put off, after",
    RateLimited: "is put off by a limit, after",
    GivenBack: "is given back, after",
}
"""What fails, is tried again or skipped is told elsewhere, and louder."""


class Journal:
    """Logs how long each run took, and what became of the job.

    Args:
        queue: its name.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def calls(self, call: Callable[[Held], Awaitable[Any]]) -> Callable[[Held], Awaitable[Any]]:
        """The same, timed."""

        async def timed(held: Held) -> Any:
            began = time.monotonic()
            try:
                return await call(held)
            finally:
                held.took = time.monotonic() - began

        return timed

    def stored(self, held: Held, outcome: Outcome) -> None:
        """The server has the outcome."""
        words, took = _WORDS.get(type(outcome)), getattr(held, "took", None)
        if words is not None and took is not None:
            said = f"{words} {_span(took)}"
        elif isinstance(outcome, GivenBack):
            said = f"is given back, and its handler {'goes on' if held.called else 'was not called'}"
        else:
            return
        job = held.job
        journal.debug(
            "job %s (%s) of queue %s %s",
            job.id,
            job.name,
            self._queue,
            said,
            extra=about(self._queue, job.id, job.name),
        )


def _span(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
