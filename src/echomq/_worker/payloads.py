"""Payloads of jobs that a worker runs: decoded before the handler is called, and its result encoded after.

Nobody else in the worker knows of codecs. What the handler has done is never done again because its result cannot be put where
it should be: then the job completes without it, and says why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from echomq._log import about, logger
from echomq._payloads import Payloads
from echomq._store.codec import PlainJob, StoredJob, is_outcome_job, with_result
from echomq._worker.held import Held, Hold
from echomq._worker.outcome import Encoded, encoded, printable, reason_of
from echomq.errors import PayloadUnreadable, RetryLater, StoreUnavailable, Unrecoverable

_PAUSES = (0.2, 1.0, 3.0)
"""Seconds between attempts to store a result."""

_LONGEST_WAIT = 60.0
_MOST_STARTS = 1_000
"""How often a job is started whose data are in a store that does not answer: over some 16 hours."""


class Decoded:
    """Calls handlers with what their jobs were given, wherever that is kept."""

    def __init__(self, queue: str, call: Callable[[Held], Awaitable[Any]], payloads: Payloads) -> None:
        self._queue = queue
        self._call = call
        self._payloads = payloads

    async def __call__(self, held: Held) -> Any:
        held.job = await self._read(held.job)
        value = await self._call(held)
        return await self._written(held, value if type(value) is Encoded else encoded(value))

    async def _read(self, job: StoredJob) -> StoredJob:
        try:
            data = await self._payloads.decode(job.fields.get(b"data", b"{}"))
            if is_outcome_job(job):  # of a job whose result was encoded as it stands there
                data = await with_result(data, self._payloads.decode)
        except PayloadUnreadable as error:
            raise Unrecoverable(f"the job's data cannot be read: {error}") from error
        except StoreUnavailable as error:
            self._wait(job, error)
            raise
        return PlainJob(job.id, {**job.fields, b"data": data})

    def _wait(self, job: StoredJob, error: StoreUnavailable) -> None:
        """A store that is away for a moment costs no attempt."""
        starts = job.starts_of_attempt
        if starts > _MOST_STARTS:
            raise Unrecoverable(f"the job's data could not be read in {starts} starts: {error}") from error
        after = min(2.0 ** min(starts - 1, 10), _LONGEST_WAIT)
        logger.warning(
            "job %s (%s) of queue %s waits %g s for its data: %s",
            job.id,
            job.name,
            self._queue,
            after,
            error,
            extra=about(self._queue, job.id, job.name),
        )
        raise RetryLater(after, str(error)) from error

    async def _written(self, held: Held, result: Encoded) -> Encoded:
        """The result as it is to be stored."""
        if result.error is not None or result.text == b"null":
            return result
        pauses = iter(_PAUSES)
        until = time.monotonic() + self._payloads.timeout  # of which a store that hangs leaves nothing
        try:
            while True:
                try:
                    return Encoded(await self._payloads.encode(result.text))
                except StoreUnavailable as error:
                    pause = next(pauses, None)
                    if pause is None or time.monotonic() >= until:
                        return Encoded(b"null", printable(f"the result could not be stored: {error}"))
                    await asyncio.sleep(pause)
        except asyncio.CancelledError:  # ours, as GeneratorExit is: Payloads lets none of a codec's own out
            if held.hold is not Hold.STOPPED or held.cancel_reason is not None:
                raise
            return Encoded(b"null", "the result could not be stored: its run was stopped first")
        except GeneratorExit:
            raise
        except BaseException as error:  # a codec of the user's own
            return Encoded(b"null", printable(f"the result could not be stored: {reason_of(error)}"))
