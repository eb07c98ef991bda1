"""What a worker tells the hooks of an app. A worker without hooks has none of this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from echomq._log import about, logger
from echomq._store.codec import decode_json
from echomq._store.finish import Completed, Delayed, Failed, GivenBack, Outcome, RateLimited, Retry, Skipped
from echomq._worker.held import Held
from echomq._worker.outcome import Encoded

_KINDS: Final[dict[type[Outcome], str]] = {
    Completed: "completed",
    Skipped: "skipped",
    Failed: "failed",
    Retry: "retried",
    Delayed: "delayed",
    RateLimited: "delayed",
    GivenBack: "given_back",
}


class Told(NamedTuple):
    """What is told of a run.

    Attributes:
        kind: what has happened.
        result: what the handler returned.
        error: what it raised.
        reason: why it failed, as it is stored.
        delay: seconds until the job may run again.
    """

    kind: str
    result: Any = None
    error: BaseException | None = None
    reason: str | None = None
    delay: float | None = None


_STARTED: Final = Told("started")


def read_back(queue: str, held: Held, result: Encoded) -> Any:
    """A result of another process, for who stands beside the job; None if it cannot be read, which is logged."""
    try:
        return decode_json(result.text)
    except Exception as error:
        job = held.job
        logger.warning(
            "job %s (%s) of queue %s: hooks and middleware are told nothing of its result, which cannot be read back: %s",
            job.id,
            job.name,
            queue,
            error,
            extra=about(queue, job.id, job.name),
        )
        return None


class Listener:
    """Follows runs, and tells of each that begins and of each outcome that is stored.

    Args:
        queue: its name.
        tell: told of a job in our hands; must not raise, nor take long.
    """

    def __init__(self, queue: str, tell: Callable[[Held, Told], None]) -> None:
        self._queue = queue
        self._tell = tell

    def calls(self, call: Callable[[Held], Awaitable[Any]]) -> Callable[[Held], Awaitable[Any]]:
        """The same, and what a handler returns or raises is kept until its outcome is stored."""

        async def kept(held: Held) -> Any:
            self._tell(held, _STARTED)
            held.end = None
            try:
                value = await call(held)
            except BaseException as error:
                held.end = (None, error)
                raise
            held.end = (value, None)
            return value

        return kept

    def stored(self, held: Held, outcome: Outcome) -> None:
        """The server has the outcome."""
        result, error = (None, None) if held.end is None else held.end
        held.end = None
        kind = _KINDS[type(outcome)]
        if isinstance(outcome, Completed):
            value = read_back(self._queue, held, result) if type(result) is Encoded else result
            self._tell(held, Told(kind, value))
        elif isinstance(outcome, Failed):
            kind = "cancelled" if outcome.failure_kind == "cancelled" else kind
            self._tell(held, Told(kind, error=error, reason=outcome.reason))
        elif isinstance(outcome, Retry):
            self._tell(held, Told(kind, error=error, reason=outcome.reason, delay=outcome.delay))
        else:
            delay = outcome.delay if isinstance(outcome, Delayed) else None
            self._tell(held, Told(kind, error=error, delay=delay))
