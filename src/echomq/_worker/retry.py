"""When a job that failed runs again (protocol 3.6)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from echomq._log import logger
from echomq._store.codec import RunOptions
from echomq.options import MAX_DELAY, BackoffStrategy, to_seconds


class Retries:
    """Decides the wait before the next attempt.

    Args:
        strategies: the worker's own, by the name that jobs ask for.
    """

    def __init__(self, strategies: Mapping[str, BackoffStrategy]) -> None:
        self._strategies = dict(strategies)

    def delay(self, options: RunOptions, attempts_made: int, error: BaseException) -> float | None:
        """Seconds until the next attempt, 0 for at once, None for no further one.

        Args:
            options: the job's.
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
        return self._by_strategy(options, attempts_made, error)

    def _by_strategy(self, options: RunOptions, attempts_made: int, error: BaseException) -> float | None:
        strategy = self._strategies.get(options.backoff_type or "")
        if strategy is None:
            logger.error(
                "a job asks for back-off %r, which this worker does not know; it waits %g s (its fixed delay)",
                options.backoff_type,
                options.backoff_delay,
            )
            return options.backoff_delay
        try:
            chosen = strategy(attempts_made, error)
            return None if chosen is None else to_seconds(chosen, f"what back-off {options.backoff_type!r} returned")
        except Exception:
            # A mistake in the strategy must not cost the job its attempt, nor end in a loop without a pause.
            logger.exception("back-off %r failed; the job waits %g s", options.backoff_type, options.backoff_delay)
            return max(options.backoff_delay, 1.0)


def _doubled(delay: float, attempts_made: int) -> float:
    return min(delay * math.ldexp(1.0, min(attempts_made - 1, 64)), MAX_DELAY)


def _spread(delay: float, jitter: float) -> float:
    return delay if not jitter else delay * (1 - jitter) + random.random() * delay * jitter
