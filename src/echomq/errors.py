"""Every error that EchoMQ raises, in one tree.

    EchoMQError
    ├── InvalidOption (also ValueError)      an argument breaks a rule; nothing was changed
    ├── EncodingError (also ValueError)      a value cannot be written as JSON; nothing was changed
    ├── PayloadTooLarge (also ValueError)    data take more than max_bytes; nothing was changed
    ├── PayloadUnreadable                    what a codec has written cannot be read again: a wrong key, a missing file
    ├── StoreUnavailable (also ConnectionError)    the store of large payloads does not answer; nothing was changed
    ├── JobFailed                            result(): the job failed; has the reason
    │   └── JobCancelled                     … because somebody has cancelled it
    ├── JobRemoved                           result(): the job was removed before it ended
    ├── ResultUnavailable                    result(): the job completed, its result could not be encoded
    ├── ResultTimeout (also TimeoutError)    result(): not ended in time; the job goes on
    ├── StateError                           the job is not where this change needs it
    │   ├── JobLocked                        a worker is running the job
    │   ├── LockLost                         a handler: its run of the job is over, or another worker has the job
    │   └── JobNotFound                      the job is gone
    ├── QueueFull                            the queue holds as many jobs as its max_size allows; not added
    ├── BulkAddError                         a bulk add stopped half-way; says what became of each job
    ├── LifespanFailed                       what surrounds the workers of an app could not be started, or stopped in order
    ├── ProcessCrashed                       the process that ran a handler died: its run has failed
    ├── OutcomesNotStored                    a worker stopped without its server; says whose outcomes were not stored
    ├── ServerError                          the server answered with an error
    │   ├── StaleCall                        a late copy of a call that was answered long ago; refused
    │   └── BrokenKey                        a key holds what the protocol does not allow there; nothing was changed
    ├── UnsupportedServer                    this server cannot be used; says why and what to do
    ├── ServerUnavailable (also ConnectionError)   no server: the call was not carried out
    └── ConnectionLost (also ConnectionError)      the call was sent, its reply never came: outcome unknown

    Outcome (a handler raises these; they are not failures of EchoMQ)
    ├── Unrecoverable                        fail now, whatever attempts are left
    ├── RetryLater                           run again after a time, without using an attempt
    └── RateLimited                          put back to the front, and pause fetching for a time

Attributes carry the facts; messages are for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

_LONGEST_WAIT: Final = 10 * 365 * 86_400
"""Seconds. As ``MAX_DELAY`` of the options, whose module needs this one."""


def _again(kind: type[Exception], args: tuple[Any, ...]) -> Exception:
    return kind.__new__(kind, *args)


def _copied(error: Exception) -> tuple[Any, ...]:
    """How a copy is made, also a pickled one: without ``__init__``, as nobody knows any more what that was given."""
    return _again, (type(error), error.args), vars(error)


class EchoMQError(Exception):
    """Base of every error that EchoMQ raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied(self)


class InvalidOption(EchoMQError, ValueError):
    """An argument breaks a rule. The message names the value, the rule and the remedy; nothing was changed."""


class EncodingError(EchoMQError, ValueError):
    """A value cannot be written as JSON.

    Attributes:
        path: where in the value it stands, such as ``data.items[3].price``.
    """

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class PayloadTooLarge(EchoMQError, ValueError):
    """Data, or a result, take more bytes than ``max_bytes`` allows. Nothing was changed.

    Attributes:
        size: how many they take, as they would stand on the server.
        max_bytes: how many they may.
    """

    def __init__(self, what: str, size: int, max_bytes: int) -> None:
        super().__init__(
            f"{what} takes {size:,} bytes, and max_bytes is {max_bytes:,}: send where it is instead, let a codec put it "
            "elsewhere (echomq.payloads.Offloaded), or allow more"
        )
        self.size = size
        self.max_bytes = max_bytes


class PayloadUnreadable(EchoMQError):
    """What a codec has written cannot be read again: its key is not known here, its file is missing, or it was changed."""


class StoreUnavailable(EchoMQError, ConnectionError):
    """The store that holds large payloads does not answer. Nothing was changed; later it may."""


class JobFailed(EchoMQError):
    """The job that ``result()`` waited for failed.

    Attributes:
        job_id: its id.
        reason: the message of the error that ended it.
    """

    _became, _goes_without_saying = "failed", ""

    def __init__(self, job_id: str, reason: str, queue: str | None = None) -> None:
        where = "" if queue is None else f" of queue {queue!r}"
        why = "" if reason == self._goes_without_saying else f": {reason}"
        super().__init__(f"job {job_id!r}{where} {self._became}{why}")
        self.job_id = job_id
        self.reason = reason


class JobCancelled(JobFailed):
    """The job that ``result()`` waited for was cancelled. Its ``reason`` is what ``cancel`` was given, or ``cancelled``."""

    _became, _goes_without_saying = "was cancelled", "cancelled"


class JobRemoved(EchoMQError):
    """The job that ``result()`` waited for was removed, so its outcome can no longer be read."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"job {job_id!r} is gone: it was removed, a later add with its deduplication id took its place, or its "
            "retention (remove_on_complete, remove_on_fail) removed it before its result was read"
        )
        self.job_id = job_id


class ResultUnavailable(EchoMQError):
    """The job completed, but what its handler returned could not be encoded, or does not fit the type that was asked for."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id!r} completed, but without a result that can be given: {reason}")
        self.job_id = job_id
        self.reason = reason


class ResultTimeout(EchoMQError, TimeoutError):
    """``result(timeout)`` gave up waiting. The job itself goes on."""


class StateError(EchoMQError):
    """The job is not in the state that this change needs. Nothing was changed.

    Attributes:
        found: the state that it was in, such as ``active``; None where that is not known, or it was in none.
    """

    def __init__(self, message: str, *, found: str | None = None) -> None:
        super().__init__(message)
        self.found = found


class JobNotFound(StateError):
    """There is no job of this id any more, so it cannot be changed."""


class JobLocked(StateError):
    """The job is being run by a worker, so it cannot be removed now."""


class LockLost(StateError):
    """What a handler tells of its job is not written: its run is over, or another worker has the job by now.

    Such a run is cancelled too; what it returns or raises is discarded.
    """


class QueueFull(EchoMQError):
    """As many jobs wait in the queue as ``Queue(max_size=…)`` allows. The job was not added.

    Attributes:
        size: how many waited, with a priority or a delay or without.
        max_size: how many may.
    """

    def __init__(self, queue: str, size: int, max_size: int) -> None:
        waiting = "1 job waits" if size == 1 else f"{size} jobs wait"
        super().__init__(
            f"queue {queue!r} is full: {waiting} in it, and max_size is {max_size}; not added. Add it again when some "
            "have been run, or allow more"
        )
        self.size = size
        self.max_size = max_size


class BulkAddError(EchoMQError):
    """A bulk add stopped half-way.

    Attributes:
        added: ids of the jobs that are in the queue, in order.
        unknown: positions (in the input) of jobs that were sent and never answered: they may be in the queue.
        not_added: positions of jobs that surely are not in the queue.
    """

    def __init__(self, message: str, *, added: Sequence[str], unknown: Sequence[int], not_added: Sequence[int]) -> None:
        super().__init__(message)
        self.added: list[str] = list(added)
        self.unknown: list[int] = list(unknown)
        self.not_added: list[int] = list(not_added)


class LifespanFailed(EchoMQError):
    """What an app starts before its workers take jobs could not be started, or could not be stopped in order after the last.

    The error of the app's own code is its ``__cause__``.

    Attributes:
        phase: ``"startup"`` or ``"shutdown"``.
    """

    def __init__(self, message: str, *, phase: str) -> None:
        super().__init__(message)
        self.phase = phase


class ServerError(EchoMQError):
    """The server answered with an error.

    Attributes:
        code: the first word of the answer, such as ``WRONGTYPE`` or ``OOM``.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code: str = code if code is not None else message.partition(" ")[0]


class StaleCall(ServerError):
    """A late copy of a call that was answered long ago. The server refused it; nothing was changed."""


class BrokenKey(ServerError):
    """A key of the queue holds something that the protocol does not allow there. Nothing was changed."""


class UnsupportedServer(EchoMQError):
    """This server cannot be used; the message says why and what to do."""


class ServerUnavailable(EchoMQError, ConnectionError):
    """The server cannot be reached, or refuses work for now. The call was surely not carried out."""


class ConnectionLost(EchoMQError, ConnectionError):
    """The call was sent and its reply never came: it may or may not have been carried out."""


class ProcessCrashed(EchoMQError):
    """The process that ran a handler of its own died: that run has failed, as if the handler had raised this.

    Attributes:
        signal: the number of the signal that it died of, or None.
        exit_code: its exit code where it ended itself, as by ``os._exit``, or None.
    """

    def __init__(self, message: str, *, signal: int | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        self.exit_code = exit_code


class OutcomesNotStored(EchoMQError):
    """A worker stopped while the server was away, and outcomes of these jobs could not be stored.

    They are not lost: their locks expire, and another worker runs them again.

    Attributes:
        job_ids: whose.
    """

    job_ids: list[str]

    def __init__(self, job_ids: Sequence[str]) -> None:
        super().__init__(
            f"the server was away while the worker stopped; jobs that will run again ({len(job_ids)}): {', '.join(job_ids)}"
        )
        self.job_ids = list(job_ids)


class Outcome(Exception):
    """Base of what a handler raises to choose how its run ends."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied(self)


class Unrecoverable(Outcome):
    """Fail the job now, whatever attempts it has left.

    Example:
        >>> raise Unrecoverable("card 4111… was reported stolen")
    """


class RetryLater(Outcome):
    """Run the job again after a time, without using one of its attempts: ``attempts_made`` stays as it is.

    The start counts all the same, so ``attempts_started`` goes up with each run (docs/retries.md has a table).

    Args:
        after: seconds, or a ``timedelta``.
        message: why, for the log.

    Example:
        >>> raise RetryLater(30, "the seat map is being rebuilt")

    Raises:
        InvalidOption: ``after`` is no such time; raised in the handler, that is a failed run.
    """

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        _check_wait(after, "RetryLater")
        super().__init__(message or f"asked to run again after {after}")
        self.after = after


class RateLimited(Outcome):
    """Put the job back to the front of the queue and pause fetching, as the far side asks.

    Args:
        after: seconds, or a ``timedelta``, for which this queue's workers fetch nothing.

    Example:
        >>> raise RateLimited(after=12.5)

    Raises:
        InvalidOption: ``after`` is no such time; raised in the handler, that is a failed run.
    """

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        _check_wait(after, "RateLimited")
        super().__init__(message or f"rate limited for {after}")
        self.after = after


def _check_wait(after: float | timedelta, name: str) -> None:
    seconds: object = after.total_seconds() if isinstance(after, timedelta) else after
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _LONGEST_WAIT:
        raise InvalidOption(
            f"{name}(after={after!r:.60}): must be from 0 to {_LONGEST_WAIT} seconds (int or float), or a timedelta"
        )
