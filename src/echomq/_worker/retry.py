"""When a job that failed runs again (protocol 3.6)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Final, get_args

from echomq._log import about, logger
from echomq._store.codec import RunOptions, StoredJob
from echomq.options import MAX_DELAY, BackoffStrategy, shown, to_seconds
from echomq.retry_policy import ErrorKind, RetryPolicy

_KINDS: Final = get_args(ErrorKind)


class Retries:
    """Decides whether a failed job gets its next attempt, and the wait before it.

    Args:
        queue: its name, for the log.
        strategies: the worker's own, by the name that jobs ask for.
        policy: which errors are worth another attempt, where a task has no policy of its own.
    """

    def __init__(
        self, queue: str, strategies: Mapping[str, BackoffStrategy], policy: RetryPolicy = RetryPolicy.DEFAULT
    ) -> None:
        self._queue = queue
        self._strategies = dict(strategies)
        self._policy = policy

    def kind(self, job: StoredJob, error: BaseException, own: RetryPolicy | None) -> ErrorKind:
        """What an error says about the next attempt.

        Args:
            job: the one that failed.
            error: what it raised.
            own: the policy of its task, if it has one.
        """
        policy = self._policy if own is None else own
        try:
            kind = policy.kind(error)
            if isinstance(kind, str) and kind in _KINDS:
                return kind
            wrong: object = kind
        except BaseException as trouble:  # a user's own class of policies: the job must end, or run again, all the same
            wrong = trouble
        logger.error(
            "the retry policy %s of queue %s answered %s for an error of job %s (%s), which counts as unknown",
            type(policy).__name__, self._queue, shown(wrong), job.id, job.name, extra=about(self._queue, job.id, job.name),
        )  # fmt: skip
        return "unknown"

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
        grow = _BUILT_IN.get(options.backoff_type)
        if grow is not None:
            return _spread(grow(options.backoff_delay, attempts_made), options.backoff_jitter)
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
        except BaseException:  # SystemExit too
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


def _fixed(delay: float, attempts_made: int) -> float:
    return delay


def _exponential(delay: float, attempts_made: int) -> float:
    return min(delay * math.ldexp(1.0, min(attempts_made - 1, 64)), MAX_DELAY)


def _linear(delay: float, attempts_made: int) -> float:
    return min(delay * max(attempts_made, 1), MAX_DELAY)


_BUILT_IN: Final = {"fixed": _fixed, "exponential": _exponential, "linear": _linear}


def _spread(delay: float, jitter: float) -> float:
    return delay if not jitter else delay * (1 - jitter) + random.random() * delay * jitter
