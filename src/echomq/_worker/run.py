"""One job's run: check it, call its handler, and say how it ended. Nothing here ends the worker."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from echomq._from_process import from_process
from echomq._log import about, logger
from echomq._store.codec import RunOptions, StoredJob, cancel_reason, too_late
from echomq._store.finish import Failed, Outcome, Retry
from echomq._worker.beside import loop_runs
from echomq._worker.forked import leave_fork
from echomq._worker.held import Held, Hold
from echomq._worker.outcome import (
    Ends,
    goes_without_trace,
    reason_of,
    says_very_much,
    trace_of,
    unreadable,
    users_part,
)
from echomq.models import FailureKind

Call = Callable[[Held], Awaitable[Any]]
"""Calls the user's handler for a job; given by the worker, which knows handlers and executors."""

Advance = Callable[[StoredJob], Awaitable[float | None]]
"""Makes a schedule's next iteration; before the handler, so that it does not depend on how the handler ends (protocol 3.24).
Says how many seconds late this one is, if it is not to run for that."""

_NO_OPTIONS = RunOptions(raw={})
_NOT_OURS = (Hold.LOST, Hold.ENDED)


class Runner:
    """Runs jobs, one call of ``run`` each."""

    def __init__(self, queue: str, call: Call, ends: Ends, advance: Advance, all_cancelled: Callable[[], bool]) -> None:
        self._queue = queue
        self._call = call
        self._ends = ends
        self._advance = advance
        self._all_cancelled = all_cancelled
        self._process = os.getpid()

    async def run(self, held: Held) -> Outcome | None:
        """The outcome to store; None if nothing may be written: the job is another's by now, or was given back."""
        job = held.job
        deferred = job.fields.get(b"defa")
        try:
            options = job.opts
        except Exception as error:  # whatever was written there: the job ends, and says why
            return self._unreadable(held, deferred, error)
        try:
            # First of all: whatever becomes of this run, its schedule goes on.
            late = await self._advance(job) if b"rjk" in job.fields else None
            if held.hold in _NOT_OURS:
                return None
            prevented = self._prevented(held, options, deferred, late)
            if prevented is not None:
                return prevented
            value = await self._called(held)
        except asyncio.CancelledError as error:
            if held.cancel_reason is None and (
                held.hold is Hold.STOPPED or (held.hold is Hold.RUNNING and self._all_cancelled())
            ):
                return self._ends.stopped(held)
            return self._raised(held, options, error)
        except GeneratorExit as error:
            if not loop_runs():
                raise  # nobody raised it: the event loop is gone, and there is nobody left to tell
            # Kept: if it came from something that the handler awaits, it closes us, and nobody gets what we return.
            held.outcome = self._raised(held, options, error)
            return held.outcome
        except BaseException as error:  # SystemExit and the like are this job's outcome, never the worker's
            held.outcome = self._raised(held, options, error)  # as above: a handler's way of being closed
            return held.outcome
        return self._returned(held, options, value)

    def _prevented(self, held: Held, options: RunOptions, deferred: bytes | None, late: float | None) -> Outcome | None:
        """The outcome of a job whose handler is not to be called."""
        job = held.job
        if b"cancelRequested" in job.fields and held.cancel_reason is None:
            held.cancel_reason = cancel_reason(job.fields[b"cancelRequested"])
        if held.cancel_reason is not None:
            return self._cancelled(held, options, held.cancel_reason)
        if deferred is not None:
            return self._deferred(held, options, deferred)
        if options.expire_in is not None and (allowed := too_late(job, options)) is not None:
            return self._not_run(held, options, f"not started within {allowed:.12g} s", "expired")
        if late is not None:
            return self._skipped(held, options, late)
        return None

    def _returned(self, held: Held, options: RunOptions, value: object) -> Outcome | None:
        if held.hold in _NOT_OURS:
            return None
        if held.cancel_reason is not None:  # whatever it returned: who has cancelled it counts on that
            return self._cancelled(held, options, held.cancel_reason)
        outcome = self._ends.returned(held, options, value)
        if outcome.error is not None:
            self._log(logging.WARNING, held, None, "completes without its result: %s", outcome.error)
        return outcome

    def _skipped(self, held: Held, options: RunOptions, late: float) -> Outcome:
        self._log(logging.WARNING, held, None, "is %.3f s late and is skipped, as its schedule wants", late)
        return self._ends.skipped(held, options, late)

    def _not_run(self, held: Held, options: RunOptions, why: str, kind: FailureKind) -> Outcome:
        self._log(logging.ERROR, held, None, "failed for good: %s", why)
        return self._ends.failed(held, options, why, kind)

    def _cancelled(self, held: Held, options: RunOptions, reason: str) -> Outcome:
        self._log(logging.INFO, held, None, "ends as cancelled: %s", reason)
        return self._ends.cancelled(held, options, reason)

    def _unreadable(self, held: Held, deferred: bytes | None, error: Exception) -> Outcome:
        if deferred is not None:
            return self._deferred(held, _NO_OPTIONS, deferred)
        return self._not_run(held, _NO_OPTIONS, f"the job's opts cannot be read: {error}", "unrecoverable")

    def _deferred(self, held: Held, options: RunOptions, text: bytes) -> Outcome:
        why = text.decode("utf-8", "replace")
        self._log(logging.ERROR, held, None, "failed for good: %s", why)
        return self._ends.deferred(held, options, why)

    async def _called(self, held: Held) -> Any:
        held.calling = True
        try:
            value = await self._call(held)
        except BaseException as error:
            leave_fork(self._process, error)
            raise
        leave_fork(self._process, None)
        return value

    def overrun(self, held: Held, error: TimeoutError) -> Outcome | None:
        """The outcome of a run that has not ended although its time is up; None as for ``run``."""
        return self._raised(held, held.job.opts, error)  # which could be read when it began

    def _raised(self, held: Held, options: RunOptions, error: BaseException) -> Outcome | None:
        if held.hold in _NOT_OURS:
            return None
        if held.cancel_reason is not None:
            if not isinstance(error, asyncio.CancelledError):
                self._log(logging.WARNING, held, error, "raised while it was cancelled")
            return self._cancelled(held, options, held.cancel_reason)
        try:
            outcome = self._ends.raised(held, options, error)
        except BaseException:  # an error that does harm when it is looked at is still only this job's
            error = unreadable()
            outcome = self._ends.raised(held, options, error)
        self._report(held, error, outcome)
        return outcome

    def _report(self, held: Held, error: BaseException, outcome: Outcome) -> None:
        made = held.job.attempts_made + 1
        if isinstance(outcome, Failed):
            runs = "1 run" if made == 1 else f"{made} runs"
            self._log(logging.ERROR, held, error, "failed for good after %s", runs)
        elif isinstance(outcome, Retry):
            when = f"in {round(outcome.delay, 2):.12g} s" if outcome.delay else "at once"
            self._log(logging.WARNING, held, error, "failed in run %d; it runs again %s", made, when)

    def _log(self, level: int, held: Held, error: BaseException | None, text: str, *more: object) -> None:
        """Job and queue, then the text; and of the error's traceback what is the user's, or its message if nothing is."""
        if not logger.isEnabledFor(level):
            return
        job = held.job
        text, values = f"job %s (%s) of queue %s {text}", (job.id, job.name, self._queue, *more)
        extra = about(self._queue, job.id, job.name)
        try:
            elsewhere = None if error is None else from_process(error)
            if elsewhere is not None:  # printing that runs no code of a user's class
                text, values, error = f"{text}\n%s", (*values, elsewhere.trace.rstrip()), None
            elif error is not None and goes_without_trace(error):
                text, values, error = f"{text}: %s", (*values, reason_of(error)), None
            elif error is not None and says_very_much(error):
                text, values, error = f"{text}\n%s", (*values, trace_of(error)), None
            shown = None if error is None else (type(error), error, users_part(error))
            logger.log(level, text, *values, exc_info=shown, extra=extra)
        except BaseException:  # an exception that cannot even be printed; the job's outcome does not depend on it
            logger.log(level, text, *values, extra=extra)
