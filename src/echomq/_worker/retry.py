"""When a job that failed runs again (protocol 3.6)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from echomq._log import about, logger
from echomq._store.codec import RunOptions, StoredJob
from echomq.options import MAX_DELAY, BackoffStrategy, to_seconds


class Retries:
    """Decides the wait before the next attempt.

    Args:
        queue: its name, for the log.
        strategies: the worker's own, by the name that jobs ask for.
    """

    def __init__(self, queue: str, strategies: Mapping[str, BackoffStrategy]) -> None:
        self._queue = queue
        self._strategies = dict(strategies)

    def delay(self, job: StoredJob, options: RunOptions, attempts_made: int, error: BaseException) -> float | None:
        """Seconds until the next attempt, 0 for at once, None for no further one.

        Args:
            job: the one that failed.
            options: its options.
            attempts_made: how many runs have ended, this one included.
            error: what this one raised.
        """
        if attempts_made >= options.attempts:
            return None
        if options.backoff_type is None:
            return 0.0
        if options.backoff_type == "fixed":
            return _spread(options.backoff_delay, options.backoff_jitter)
        if options.backoff_type == "exponential":
            return _spread(_doubled(options.backoff_delay, attempts_made), options.backoff_jitter)
        return self._by_strategy(job, options, attempts_made, error)

    def _by_strategy(
        self, job: StoredJob, options: RunOptions, attempts_made: int, error: BaseException
    ) -> float | None:
        # What goes wrong here must not cost the job its attempt, nor end in a loop without a pause.
        otherwise = max(options.backoff_delay, 1.0)
        strategy = self._strategies.get(options.backoff_type or "")
        if strategy is None:
            logger.error(
                "job %s (%s) of queue %s asks for back-off %r, which this worker does not know (backoff_strategies has: %s); "
                "it waits %g s",
                job.id,
                job.name,
                self._queue,
                options.backoff_type,
                ", ".join(map(repr, sorted(self._strategies))) or "none",
                otherwise,
                extra=about(self._queue, job.id, job.name),
            )
            return otherwise
        try:
            chosen = strategy(attempts_made, error)
            return None if chosen is None else to_seconds(chosen, f"what back-off {options.backoff_type!r} returned")
        except Exception:
            logger.exception(
                "back-off %r failed; job %s (%s) of queue %s waits %g s",
                options.backoff_type,
                job.id,
                job.name,
                self._queue,
                otherwise,
                extra=about(self._queue, job.id, job.name),
            )
            return otherwise


def _doubled(delay: float, attempts_made: int) -> float:
    return min(delay * math.ldexp(1.0, min(attempts_made - 1, 64)), MAX_DELAY)


def _spread(delay: float, jitter: float) -> float:
    return delay if not jitter else delay * (1 - jitter) + random.random() * delay * jitter
