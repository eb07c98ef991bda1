"""What became of a run: user code's many ends, turned into one value that says what the server shall do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from echomq import errors
from echomq._from_process import FromProcess, attribute, comes_from, from_process
from echomq._log import said_by
from echomq._store.codec import (
    RunOptions,
    StoredJob,
    dead_letter_opts,
    encode_json,
    is_outcome_job,
    keep_rule,
    outcome_head,
)
from echomq._store.finish import (
    Completed,
    Delayed,
    Failed,
    GivenBack,
    Letter,
    Outcome,
    RateLimited,
    Retry,
    Skipped,
    skipped_for,
)
from echomq._store.forward import Destination, Forward
from echomq._worker.held import Held
from echomq.models import FailureKind
from echomq.options import KEEP_COMPLETED, KEEP_FAILED, MAX_BYTES, Keep, to_seconds
from echomq.retry_policy import ErrorKind, RetryPolicy

MAX_TEXT = 64 * 1024
DEFAULT_TRACES = 10
_OURS = str(Path(__file__).parents[1])

STALLED_TOO_OFTEN = "job stalled more than allowable limit"
"""What the sweep, ours or another runtime's, has noted on a job whose workers died too often (protocol 3.22)."""

UNREADABLE = "the error that it raised cannot be read"

Delays = Callable[[StoredJob, RunOptions, int, BaseException], float | None]
Kinds = Callable[[StoredJob, BaseException, RetryPolicy | None], ErrorKind]


class Encoded(NamedTuple):
    """A result as it is stored.

    Attributes:
        text: its JSON.
        error: why it has none; then the text is ``null``.
    """

    text: bytes
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Telling:
    """Who is told how jobs end.

    Attributes:
        queue: the name of the jobs' queue.
        worker: the name of the worker.
        destination: to which queue the outcome of a job of this name is forwarded, if to any.
    """

    queue: str
    worker: str
    destination: Callable[[str], Destination | None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Turns ends of runs into outcomes.

    Args:
        rule_completed, rule_failed: retention where a job says nothing of its own, as the finish script takes it.
        delays: when a failed job runs again.
        kinds: what its error says about that.
        dead_letters: what the keys of the queue of dead letters begin with.
        letters_of: which failures for good leave a dead letter.
        telling: who is told; None if nobody ever is.
        max_bytes: how many bytes a result may take as it is stored; None for any number.
    """

    rule_completed: str
    rule_failed: str
    delays: Delays
    kinds: Kinds
    dead_letters: str
    letters_of: frozenset[FailureKind]
    telling: Telling | None = None
    max_bytes: int | None = MAX_BYTES

    @classmethod
    def of(
        cls,
        keep_completed: Keep,
        keep_failed: Keep,
        delays: Delays,
        kinds: Kinds,
        dead_letters: str,
        letters_of: Iterable[FailureKind] = (),
        telling: Telling | None = None,
        max_bytes: int | None = MAX_BYTES,
    ) -> Ends:
        """From the worker's options."""
        rules = keep_rule(keep_completed, KEEP_COMPLETED), keep_rule(keep_failed, KEEP_FAILED)
        return cls(*rules, delays, kinds, dead_letters, frozenset(letters_of), telling, max_bytes)

    def returned(self, held: Held, options: RunOptions, value: object) -> Completed:
        """The handler returned. A result that has no JSON form never causes a second run: the work was done."""
        done = value if type(value) is Encoded else encoded(value)
        most = held.max_bytes or self.max_bytes
        if most is not None and len(done.text) > most:
            done = Encoded(b"null", str(errors.PayloadTooLarge("the result", len(done.text), most)))
        return self._completed(held, done.text, options.keep_completed or self.rule_completed, done.error)

    def raised(self, held: Held, options: RunOptions, error: BaseException) -> Outcome:
        """The handler raised."""
        try:
            if isinstance(error, errors.RetryLater):
                return Delayed(held.job.id, held.token, to_seconds(attribute(error, "after"), "RetryLater(after)"))
            if isinstance(error, errors.RateLimited):
                return RateLimited(held.job.id, held.token, to_seconds(attribute(error, "after"), "RateLimited(after)"))
        except (errors.InvalidOption, AttributeError) as wrong:  # a subclass that forgot to call ours
            error = wrong
        kind: FailureKind = "unrecoverable"
        delay = None
        if not isinstance(error, errors.Unrecoverable):
            kind = self.kinds(held.job, error, held.retry_policy)
            if kind != "permanent":
                delay = self.delays(held.job, options, held.job.attempts_made + 1, error)
                kind = "timeout" if held.timed_out and isinstance(error, TimeoutError) else kind
        traces = self._traces(held, options, error)
        if delay is None:
            return self.failed(held, options, reason_of(error), kind, traces)
        return Retry(held.job.id, held.token, reason_of(error), traces, delay, options.lifo, kind)

    def failed(
        self, held: Held, options: RunOptions, reason: str, kind: FailureKind, traces: bytes | None = None
    ) -> Outcome:
        """No further attempt."""
        stacktrace = traces if traces is not None else encode_json(held.job.stacktrace(), "stacktrace")
        keep = options.keep_failed or self.rule_failed
        letter = Letter(self.dead_letters, dead_letter_opts(held.job, reason)) if kind in self.letters_of else None
        forward = self._forward(held, "cancelled" if kind == "cancelled" else "failed", reason)
        return Failed(held.job.id, held.token, reason, stacktrace, keep, options.attempts, kind, letter, forward)

    def deferred(self, held: Held, options: RunOptions, reason: str) -> Outcome:
        """It was decided elsewhere that it must not run: its workers died too often, or a child of it failed."""
        return self.failed(held, options, reason, "crashed" if reason == STALLED_TOO_OFTEN else "unrecoverable")

    def cancelled(self, held: Held, options: RunOptions, reason: str) -> Outcome:
        """Somebody has cancelled it."""
        return self.failed(held, options, reason, "cancelled")

    def skipped(self, held: Held, options: RunOptions, late: float) -> Outcome:
        """It is not run: its schedule skips what comes so many seconds late."""
        forward = self._forward(held, "skipped", skipped_for(late))
        return Skipped(held.job.id, held.token, late, options.keep_completed or self.rule_completed, forward)

    def without_result(self, held: Held, outcome: Outcome, reason: str) -> Outcome | None:
        """In place of an outcome whose result is more than a server takes. None: it is not the result."""
        if not isinstance(outcome, Completed) or outcome.value == b"null":
            return None
        return self._completed(held, b"null", outcome.keep, printable(f"result: {reason}"))

    def stopped(self, held: Held) -> Outcome:
        """The run was told to stop, by us: its job goes back."""
        return GivenBack(held.job.id, held.token, held.called)

    def _completed(self, held: Held, value: bytes, keep: str, error: str | None = None) -> Completed:
        forward = None if self.telling is None else self._forward(held, "completed", error=error)
        return Completed(held.job.id, held.token, value, keep, error, forward)

    def _forward(self, held: Held, status: str, reason: str | None = None, error: str | None = None) -> Forward | None:
        telling, job = self.telling, held.job
        destination = None if telling is None else telling.destination(job.name)
        if telling is None or destination is None or is_outcome_job(job):
            return None
        return destination.forward(outcome_head(job, telling.queue, telling.worker, status, reason, error))

    def _traces(self, held: Held, options: RunOptions, error: BaseException) -> bytes:
        limit = DEFAULT_TRACES if options.stack_trace_limit is None else options.stack_trace_limit
        if limit <= 0:
            return b"[]"
        traces = [*held.job.stacktrace(), trace_of(error)][-limit:]
        return encode_json(traces, "stacktrace")


_NO_RESULT = Encoded(b"null")


def encoded(value: object) -> Encoded:
    """A result as it is stored. Whatever its own methods do, this does not raise."""
    if value is None:
        return _NO_RESULT
    try:
        return Encoded(encode_json(value, "result"))
    except errors.EncodingError as error:
        reason = str(error)
    except BaseException as error:  # an object whose own methods raise, SystemExit too, while it is being written
        reason = f"result cannot be encoded: {message_of(error)}"
    return Encoded(b"null", printable(reason))


def printable(text: str) -> str:
    """Text that has a UTF-8 form and a bounded length."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"


def message_of(error: BaseException) -> str:
    """What an error says, as it may be stored."""
    return printable(said_by(error))


def reason_of(error: BaseException) -> str:
    """Why a job failed, as it is stored: the message alone for errors that were raised to say so, else with the type."""
    if (elsewhere := from_process(error)) is not None:
        return elsewhere.reason
    message = message_of(error)
    if isinstance(error, errors.Outcome):
        return message or type(error).__name__
    name = type(error).__name__
    return printable(f"{name}: {message}") if message else name


def unreadable() -> BaseException:
    """In place of an error that does harm when it is looked at: one of which nothing is known, as it comes from a process."""
    error = Exception()
    comes_from(error, FromProcess(UNREADABLE, UNREADABLE), {})
    return error


def trace_of(error: BaseException) -> str:
    """The traceback as text, bounded, from the user's first line on: how we called it says nothing."""
    if (elsewhere := from_process(error)) is not None:
        return elsewhere.trace
    try:
        return printable("".join(traceback.format_exception(type(error), error, users_part(error), limit=-50)))
    except BaseException:  # as above: hostile exceptions
        return reason_of(error)


def users_part(error: BaseException) -> TracebackType | None:
    """The error's traceback from the user's first line on."""
    start = error.__traceback__
    while start is not None and start.tb_next is not None and start.tb_frame.f_code.co_filename.startswith(_OURS):
        start = start.tb_next
    return start


def says_very_much(error: BaseException) -> bool:
    """Whether it, or one that is printed with it, says more than is kept of it."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if len(said_by(one)) > MAX_TEXT:
            return True
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
    return False


def goes_without_trace(error: BaseException) -> bool:
    """Whether its message says all: EchoMQ itself has raised it, knowing why, and no line of the user's is in its traceback."""
    where = users_part(error)
    return isinstance(error, (errors.EchoMQError, errors.Outcome, TimeoutError)) and (
        where is None or where.tb_frame.f_code.co_filename.startswith(_OURS)
    )
