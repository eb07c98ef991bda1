"""``Job``: what is known of one job, and what one can do with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast

from echomq._elsewhere import ATTRIBUTES_OF_JOBS, answers
from echomq._payloads import is_wrapped
from echomq._store import control, explain, read
from echomq._store.codec import (
    CANCELLED,
    PlainJob,
    StoredJob,
    dead_letter_in,
    decode_json,
    decode_own_opts,
    encode_json,
    id_out,
    is_outcome_job,
    public_options,
    to_moment,
    with_result,
)
from echomq._store.codes import ADDED, DEDUPLICATED, DUPLICATE
from echomq._store.home import Home
from echomq._store.results import Ending, result_of
from echomq._telemetry import JOB_ID, JOB_NAME, Attributes, traced
from echomq._types import Misfit, Reader, reader
from echomq.errors import (
    BrokenKey,
    EchoMQError,
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobRemoved,
    PayloadUnreadable,
    ResultTimeout,
    ResultUnavailable,
    Unrecoverable,
)
from echomq.models import FAILURE_KINDS, DeadLetter, Explanation, FailureKind, JobOptions, JobState, Logs, Parent
from echomq.options import (
    JSON,
    MAX_LINES,
    MAX_PRIORITY,
    UNSET,
    Duration,
    check_moment,
    check_truth,
    check_whole,
    shown,
    to_seconds,
)

R = TypeVar("R")
T = TypeVar("T")

_flags: Final = threading.Lock()


_LONGEST_REASON: Final = 1_000
_LAST_LOOK: Final = 0.5
"""Seconds for a question that is asked when the caller's time is up."""


class StopFlag(threading.Event):
    """What ``Job.cancelled`` is: a ``threading.Event`` that is true when it is set."""

    def __bool__(self) -> bool:
        return self.is_set()


def checked_reason(reason: str) -> str:
    """Not for users of EchoMQ. Why a job is cancelled, as it is stored."""
    given: object = reason
    if not isinstance(given, str) or len(given) > _LONGEST_REASON:
        raise InvalidOption(
            f"reason={shown(reason)}: must be a text of at most {_LONGEST_REASON} characters; log what is longer"
        )
    try:
        given.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"reason={shown(reason)}: holds a lone surrogate, which has no UTF-8 form; remove it"
        ) from None
    return given or CANCELLED


def _about(job: Job[Any], /, *_: object, **__: object) -> Attributes:
    return {JOB_ID: job.id, JOB_NAME: job.name}


class _BrokenData(BrokenKey, Unrecoverable):
    """In a run of the job itself: no later run could read its data either."""


@answers("a job", ATTRIBUTES_OF_JOBS)
class JobRecord(Generic[R]):
    """A job as it was when it was read: what ``Job`` and ``SyncJob`` have in common."""

    __slots__ = ("_became", "_cancelled", "_data", "_home", "_returns", "_run", "_state", "_stored")

    def __init__(
        self,
        stored: StoredJob,
        home: Home,
        state: JobState | None = None,
        *,
        cancelled: StopFlag | None = None,
        returns: Callable[[bytes], R] = decode_json,
        run: control.Run | None = None,
    ) -> None:
        self._stored = stored
        self._home = home
        self._state = state
        self._cancelled = cancelled
        self._returns = returns
        self._run = run
        self._data: Any = UNSET
        self._became: int = ADDED

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.name!r} of {self.queue_name!r}>"

    @property
    def id(self) -> str:
        """Its id in its queue."""
        return self._stored.id

    @property
    def queue_name(self) -> str:
        """The name of its queue."""
        return self._home.keys.queue

    @property
    def name(self) -> str:
        """The name of its task."""
        return self._stored.name

    @property
    def data(self) -> JSON:
        """Its data, decoded when first asked for.

        Raises:
            BrokenKey: what stands on the server is no JSON.
            PayloadUnreadable: the queue's codec cannot read it; or it is in a store, and ``load`` was not called.
        """
        if self._data is UNSET:
            try:
                self._data = self._payload(b"data")
            except BrokenKey as error:
                if self._run is None:
                    raise
                raise _BrokenData(str(error), code=error.code) from None
        return self._data

    @property
    def opts(self) -> JobOptions:
        """The options that it was added with.

        Raises:
            BrokenKey: what stands on the server is no JSON object.
        """
        try:
            return public_options(decode_own_opts(self._stored.fields.get(b"opts", b"{}")))
        except ValueError as error:
            raise self._broken("opts", error) from None

    @property
    def state(self) -> JobState | None:
        """Where it was when the record was read; None where that is not known, as in a handler."""
        return self._state

    @property
    def duplicate(self) -> bool:
        """Whether the add that gave this record changed nothing, because a job of its id was there: this one."""
        return self._became == DUPLICATE

    @property
    def deduplicated(self) -> bool:
        """Whether the add that gave this record found its deduplication id taken, by this job: none was added.

        What else the add did, its ``Deduplication`` says: with ``keep_last_if_active`` its data may be kept for a later run.
        """
        return self._became == DEDUPLICATED

    @property
    def deduplication_id(self) -> str | None:
        """The deduplication id that it was added with."""
        return self._stored.text(b"deid")

    @property
    def timestamp(self) -> datetime | None:
        """When it was made."""
        return self._stored.moment(b"timestamp")

    @property
    def scheduled_for(self) -> datetime | None:
        """The time of its schedule whose run it is, however late it starts; without the share of a ``spread``.

        None for any other job, also for one of ``JobScheduler.run_now``, or brought back by ``requeue``.

        Example:
            >>> day = job.scheduled_for.astimezone(ZoneInfo("Europe/Vienna")).date()
        """
        if b"rjk" not in self._stored.fields:
            return None
        try:
            return to_moment(int(self.id.rpartition(":")[2]))
        except (ValueError, OverflowError):  # somebody's hand
            return None

    @property
    def delay(self) -> float:
        """Seconds that it waits, or waited last, before it may run."""
        return self._stored.number(b"delay") / 1000

    @property
    def priority(self) -> int:
        """0 for none (runs before all with one), else lower first."""
        return self._stored.number(b"priority")

    @property
    def progress(self) -> JSON:
        """What its handler reported last; None if nothing.

        Raises:
            BrokenKey: what stands on the server is no JSON.
        """
        return self._json(b"progress")

    @property
    def attempts_made(self) -> int:
        """How many runs have ended, each with a failure or a result."""
        return self._stored.attempts_made

    @property
    def attempts_started(self) -> int:
        """How many runs have begun, those included whose worker died."""
        return self._stored.attempts_started

    @property
    def stalled_count(self) -> int:
        """How often it was taken from a worker that seemed dead."""
        return max(self._stored.number(b"stc"), 0)

    @property
    def processed_on(self) -> datetime | None:
        """When its latest run began."""
        return self._stored.moment(b"processedOn")

    @property
    def processed_by(self) -> str | None:
        """The name of the worker that began its latest run."""
        return self._stored.text(b"pb")

    @property
    def finished_on(self) -> datetime | None:
        """When it completed or failed for good."""
        return self._stored.moment(b"finishedOn")

    @property
    def return_value(self) -> JSON:
        """What its handler returned; None also as long as it has not completed.

        Raises:
            BrokenKey: what stands on the server is no JSON.
            PayloadUnreadable: the queue's codec cannot read it; or it is in a store, and ``load`` was not called.
        """
        return self._payload(b"returnvalue")

    @property
    def failed_reason(self) -> str | None:
        """The message of the error that ended its latest failed run."""
        return self._stored.text(b"failedReason")

    @property
    def result_error(self) -> str | None:
        """Why its result could not be stored, if it has completed without: ``return_value`` is None then."""
        return self._stored.text(b"resultError")

    @property
    def skipped(self) -> str | None:
        """Why it was not run, if its schedule skips runs that are late and this was one; it has completed without a result."""
        return self._stored.text(b"skipped")

    @property
    def failure_kind(self) -> FailureKind | None:
        """Why its latest failed run failed, as far as that decides what comes next.

        None if it has not failed, or in workers of other programs only.
        """
        kind = self._stored.text(b"failureKind")
        return kind if kind in FAILURE_KINDS else None

    @property
    def dead_letter(self) -> DeadLetter | None:
        """In a queue of dead letters: what the job was before, and why it failed. None for any other job.

        Raises:
            BrokenKey: what stands on the server is no JSON object.
        """
        try:
            return dead_letter_in(self._stored.opts.raw)
        except ValueError as error:
            raise self._broken("opts", error) from None

    @property
    def stacktrace(self) -> list[str]:
        """The tracebacks of its failed runs, oldest first, as many as its options keep."""
        return self._stored.stacktrace()

    @property
    def parent(self) -> Parent | None:
        """The job that waits for it."""
        return self._stored.parent()

    @property
    def _is_wrapped(self) -> bool:
        """Whether its data are as a codec has written them."""
        return is_wrapped(self._stored.fields.get(b"data", b""))

    @property
    def _has_codec(self) -> bool:
        """Whether a codec reads its data and its result. They may be encrypted, so no message shows anything of them."""
        return self._home.payloads is not None

    def _payload(self, field: bytes) -> Any:
        payloads, stored = self._home.payloads, self._stored
        if payloads is None or isinstance(stored, PlainJob) or field not in stored.fields:
            return self._json(field)
        payload = stored.fields[field]
        if payloads.is_elsewhere(payload):
            raise PayloadUnreadable(
                f"field {field.decode()!r} of job {self.id!r} of queue {self.queue_name!r} is kept in a store: read it with "
                "`job = await job.load()`"
            )
        text = payloads.decode_now(payload)
        try:
            return decode_json(text)
        except ValueError as error:
            raise self._broken(field.decode(), error) from None

    def _json(self, field: bytes) -> Any:
        try:
            return self._stored.json(field)
        except ValueError as error:
            raise self._broken(field.decode(), error) from None

    def _broken(self, field: str, error: Exception) -> BrokenKey:
        return BrokenKey(
            f"field {field!r} of job {self.id!r} of queue {self.queue_name!r} cannot be read: {error}", code="BROKEN"
        )


class Job(JobRecord[R]):
    """A job as it was when it was read, and the verbs it can do. ``refresh()`` gives a newer record.

    Jobs come from ``Queue.add``, ``Queue.get_job`` and, in a worker, as the handler's argument.

    Example:
        >>> job = await queue.add("enroll", {"learner": 7})
        >>> job.id, job.data
        ('1', {'learner': 7})
        >>> await job.result(timeout=10)
    """

    __slots__ = ()

    @property
    def cancelled(self) -> StopFlag:
        """In a handler that runs in a thread: true when it should stop. A ``threading.Event``, to be waited for too.

        Its worker stops, or has lost the job; its time is up; or somebody has cancelled it. What it returns then is
        discarded.

        An ``async def`` handler is cancelled instead (``asyncio.CancelledError``).

        Example:
            >>> for page in pages:
            ...     if job.cancelled:
            ...         return
            ...     fetch(page)
        """
        if self._cancelled is None:
            with _flags:
                if self._cancelled is None:
                    self._cancelled = StopFlag()
        return self._cancelled

    async def refresh(self) -> Job[R] | None:
        """The job as it is now, or None if it is gone.

        Raises:
            ServerUnavailable: the server could not be asked.
        """
        found = await read.job(self._home.line, self.id)
        if found is None:
            return None
        return Job(found[0], self._home, found[1], cancelled=self._cancelled, returns=self._returns, run=self._run)

    async def load(self) -> Job[R]:
        """The same record with its data and its result at hand, also if the queue's codec keeps them in a store.

        A job in a handler has its data at hand already, as has one that was just added.

        Raises:
            PayloadUnreadable: they cannot be read: a wrong key, a missing file.
            StoreUnavailable: the store does not answer.

        Example:
            >>> job = await (await queue.get_job("7")).load()
            >>> job.data
        """
        payloads, stored = self._home.payloads, self._stored
        if payloads is not None and not isinstance(stored, PlainJob):
            fields = dict(stored.fields)
            for field in (b"data", b"returnvalue"):
                if field in fields:
                    fields[field] = await payloads.decode(fields[field])
            if is_outcome_job(stored):
                fields[b"data"] = await with_result(fields[b"data"], payloads.decode)
            stored = PlainJob(stored.id, fields)
        return self._with(stored, self._returns)

    def update_progress(self, value: JSON) -> Awaitable[None]:
        """Tells how far the job is. Whoever listens to the queue's events hears it; ``progress`` of a newer record has it.

        A plain function that runs as a handler in a thread leaves out ``await``: there the call returns when it is done.

        Args:
            value: anything that can be written as JSON: a share, a text, an object.

        Raises:
            EncodingError: it has no JSON form.
            LockLost: in a handler: its run is over, or another worker has the job. JobNotFound: the job is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await job.update_progress({"done": 3, "of": 8})
        """
        return self._told(self._update_progress(value))

    def update_data(self, data: JSON) -> Awaitable[None]:
        """Gives the job other data, for its next run and for whoever reads it. The record at hand keeps the data that it has.

        A plain function that runs as a handler in a thread leaves out ``await``: there the call returns when it is done.

        Args:
            data: anything that can be written as JSON; for a task, an object of its arguments.

        Raises:
            EncodingError: it has no JSON form. PayloadTooLarge: it takes more than ``max_bytes``.
            LockLost: in a handler: its run is over, or another worker has the job. JobNotFound: the job is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await job.update_data({**job.data, "page": 7})  # where the next attempt goes on
        """
        return self._told(self._update_data(data))

    def log(self, line: str, *, keep: int | None = None) -> Awaitable[int]:
        """Adds a line to the log of the job, which goes with it when it is removed.

        A plain function that runs as a handler in a thread leaves out ``await``: there the call returns the number itself.

        Args:
            line: a text. What is longer than 16 KiB is cut, and says so at its end.
            keep: how many lines the log keeps, the last ones; left out, as the job's option ``keep_logs`` says, or 1,000.

        Returns:
            How many lines it has now.

        Raises:
            InvalidOption: an argument breaks a rule.
            LockLost: in a handler: its run is over, or another worker has the job. JobNotFound: the job is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await job.log("page 3 of 8 is printed")
            1
        """
        return self._told(self._log(line, keep))

    async def logs(self, start: int = 0, end: int = -1, *, newest_first: bool = False) -> Logs:
        """Lines of the job's log, the oldest first.

        Args:
            start: the position of the first.
            end: that of the last, which is included; -1 for the end.
            newest_first: the last line is at position 0, and comes first.

        Raises:
            InvalidOption: an argument breaks a rule. JobNotFound: the job is gone.
            ServerUnavailable: the server could not be asked.

        Example:
            >>> found = await job.logs(0, 9, newest_first=True)
            >>> found.lines, found.count
            (['page 3 of 8 is printed'], 1)
        """
        check_whole(start, "start", least=0)
        check_whole(end, "end", least=-1)
        check_truth(newest_first, "newest_first")
        return await read.logs(self._home.line, self.id, start, end, newest_first=newest_first)

    async def explain(self) -> Explanation:
        """Why the job is where it is, and what comes next for it. Asks the server anew.

        Raises:
            ServerUnavailable: the server could not be asked.

        Example:
            >>> print(await job.explain())
            job '7' of queue 'prints' is waiting
              - the queue is paused: no worker takes a job from it before queue.resume()
              - 12 jobs are before it in the line
        """
        return await explain.explain(self._home.line, self.id)

    async def clear_logs(self, *, keep: int = 0) -> None:
        """Drops the lines of the job's log.

        Args:
            keep: how many to leave, the last ones.

        Raises:
            InvalidOption: it is no whole number from 0 on. JobNotFound: the job is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await job.clear_logs(keep=100)
        """
        check_whole(keep, "keep", least=0)
        await control.clear_logs(self._home.line, self.id, keep)

    @traced("remove", about=_about)
    async def remove(self, *, children: bool = True) -> None:
        """Removes the job. Does nothing if it is gone.

        Args:
            children: remove the jobs that it waits for, or waited for, too.

        Raises:
            JobLocked: a worker is running it, or one of its children.
            StateError: it is the next run of a schedule.
            BrokenKey: below it jobs wait for each other in a long circle.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        check_truth(children, "children")
        await control.remove(self._home.line, self.id, children=children)

    @traced("cancel", about=_about)
    async def cancel(self, reason: str = "") -> bool:
        """Cancels the job, wherever it is: it ends as failed, with the ``failure_kind`` ``cancelled``, and is not run again.

        One that is not being run has ended when this returns. One that is has been asked to: its worker hears of it at once. An
        ``async def`` handler is cancelled (``asyncio.CancelledError``), one in a thread finds ``Job.cancelled`` set, a process of
        its own is killed. It has five seconds to clean up, and what it still returns is discarded (docs/cancelling.md).

        Args:
            reason: why, for whoever waits for the job or looks at it: at most 1,000 characters.

        Returns:
            False: it had ended before, and stays as it is.

        Raises:
            InvalidOption: the reason breaks a rule. JobNotFound: it is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await job.cancel("the learner has left")
            True
        """
        return await control.cancel(self._home.line, self.id, checked_reason(reason))

    @traced("promote", about=_about)
    async def promote(self) -> None:
        """Lets the job run now that waits for its time. It goes to the end of the line, or of its priority's.

        The next run of a schedule is brought forward by that, and does not come again at its own time; for a run besides,
        there is ``JobScheduler.run_now``.

        Raises:
            StateError: it is not delayed. JobNotFound: it is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        await control.promote(self._home.line, self.id)

    @traced("changeDelay", about=_about)
    async def change_delay(self, delay: Duration | None = None, *, at: datetime | None = None) -> None:
        """Gives the job another time to wait for, while it is delayed.

        Args:
            delay: seconds from now, or a ``timedelta``.
            at: the moment (an aware ``datetime``) from which it may run; instead of ``delay``. One that has passed is now.

        Raises:
            InvalidOption: neither or both are given, or one breaks a rule.
            StateError: it is not delayed. JobNotFound: it is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.

        Example:
            >>> await job.change_delay(timedelta(hours=2))
        """
        if (delay is None) == (at is None):
            raise InvalidOption("change_delay: give delay (seconds from now) or at (a datetime), and not both")
        if delay is not None:
            to_seconds(delay, "delay")
        if at is not None:
            check_moment(at, "at")
        await control.change_delay(self._home.line, self.id, delay=delay, at=at)

    @traced("changePriority", about=_about)
    async def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Gives the job another priority.

        If it waits in the line, it gets the place that goes with it; if it runs, is delayed or has ended, the priority counts
        from the next time on that it comes into the line.

        Args:
            priority: 0 (none: runs before all with one) or 1 … 2097151, lower first.
            lifo: put it before the others of its priority instead of behind them.

        Raises:
            InvalidOption: an argument breaks a rule. JobNotFound: the job is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        check_whole(priority, "priority", least=0, most=MAX_PRIORITY)
        await control.change_priority(self._home.line, self.id, priority, lifo=check_truth(lifo, "lifo"))

    @traced("retry", about=_about)
    async def retry(self, *, reset_attempts: bool = False) -> None:
        """Lets the job run again that has failed or completed. Its result or reason goes, its tracebacks stay.

        It goes to the end of the line, or of its priority's; one with ``lifo`` to the front. If it is the child of a job that
        knows its end, that job waits for it again. Attempts are counted on: a job that had used them all fails for good with
        next failure. It does not hold its deduplication id again, and its dead letter stays (docs/retries.md).

        Args:
            reset_attempts: count its attempts from the start again.

        Raises:
            InvalidOption: the argument is neither True nor False. StateError: it has not ended. JobNotFound: it is gone.
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        check_truth(reset_attempts, "reset_attempts")
        await control.retry(self._home.line, self.id, reset_attempts=reset_attempts)

    @traced("removeDeduplicationKey", about=_about)
    async def remove_deduplication(self) -> bool:
        """Frees the deduplication id that this job holds, so that the next add of it adds a job. This one goes on as it is.

        Returns:
            Whether this job held one.

        Raises:
            ServerUnavailable: not carried out. ConnectionLost: outcome unknown.
        """
        deduplication_id = self._stored.fields.get(b"deid")
        if not deduplication_id:
            return False
        return await control.remove_deduplication(self._home.line, deduplication_id, id_out(self.id))

    async def result(self, *, timeout: Duration | None = None) -> R:
        """Waits until the job has ended, and gives what its handler returned.

        All that wait in one event loop for jobs of one ``Connection`` share one blocked read of the events; nobody
        polls. A server that goes away meanwhile is waited for, and everything is looked at again when it is back.

        Args:
            timeout: seconds, or a ``timedelta``; a job that has ended by then gives its result also with 0. Left out, it waits
                as long as the job takes; for a job that nobody runs, that is for ever.

        Raises:
            JobFailed: it failed for good; has the reason. JobCancelled, which is one: somebody has cancelled it.
            JobRemoved: it is gone, and with it its outcome.
            ResultUnavailable: it completed, but its result could not be stored, or cannot be read.
            StoreUnavailable: the codec's store, which has the result, does not answer.
            ResultTimeout: it has not ended in time, and goes on; or its result could not be read in time.
            ServerUnavailable: the server could not be reached to begin with. One that is away later is waited for.
            ServerError: it refuses us (a password, a right), and has done so for ten seconds.

        Example:
            >>> job = await queue.add("add", {"a": 2, "b": 3})
            >>> await job.result(timeout=5)
            5
        """
        seconds = None if timeout is None else to_seconds(timeout, "timeout")
        name, endings = f"job {self.id!r} of queue {self.queue_name!r}", list[Ending]()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._ended(endings)
        if not endings:  # there may have been no time to ask
            so_far = await self._so_far()
            if so_far is not None:
                raise ResultTimeout(f"{name} has not ended within {seconds:g} s; {so_far}")
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_LOOK):
                    return await self._ended(endings)
        raise ResultTimeout(f"{name} has ended, but what came of it could not be read within {seconds:g} s")

    async def _ended(self, endings: list[Ending]) -> R:
        """Its result, once it has ended; how it did so is noted before the result is decoded, which may take its time."""
        ending = await result_of(self._home.line, self.id)
        endings.append(ending)
        payloads = self._home.payloads
        if payloads is not None and ending.kind == "completed" and ending.error is None:
            try:
                ending = replace(ending, value=await payloads.decode(ending.value))
            except PayloadUnreadable as error:
                raise ResultUnavailable(self.id, str(error)) from error
        return self._outcome(ending)

    def returning(self, kind: type[T]) -> Job[T]:
        """The same job, whose ``result()`` is turned into this type.

        Args:
            kind: anything that msgspec can make from JSON: a dataclass, a Struct, a TypedDict, ``datetime`` and so on; or a model
                of pydantic.

        Raises:
            InvalidOption: it is none of these.

        Example:
            >>> job = (await queue.get_job("7")).returning(Seat)
            >>> (await job.result()).row
        """
        given: object = kind
        wanted = reader(kind)
        if wanted is None:
            if given is Any:
                return cast("Job[T]", self)
            raise InvalidOption(
                f"kind={shown(kind)}: must be a type that msgspec can make from JSON, such as a dataclass, or a model of pydantic"
            )
        return self._read_by(wanted)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _read_by(self, wanted: Reader) -> Job[Any]:
        return self._with(self._stored, lambda text: wanted.decode(text, decode_json))

    def _with(self, stored: StoredJob, returns: Callable[[bytes], T]) -> Job[T]:
        made = Job(stored, self._home, self._state, cancelled=self._cancelled, returns=returns, run=self._run)
        made._became = self._became
        return made

    def as_found(self, code: int) -> Job[R]:
        """Not for users of EchoMQ. The same record, marked as one that was there before the add."""
        self._became = code
        return self

    def _told(self, telling: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """The call itself, to be awaited. In the thread of a handler the worker's event loop carries it out here and now."""
        return telling if _in_a_loop() else cast("Awaitable[T]", self._home.carry_out(telling))

    async def _update_progress(self, value: JSON) -> None:
        await control.update_progress(self._home.line, self.id, encode_json(value, "progress"), self._run)

    async def _update_data(self, data: JSON) -> None:
        home, text = self._home, encode_json(data, "data")
        stored = text if home.payloads is None else await home.payloads.encode(text)
        home.check_size(stored)
        await control.update_data(home.line, self.id, stored, self._run)

    async def _log(self, line: str, keep: int | None) -> int:
        given: object = line
        if not isinstance(given, str):
            raise InvalidOption(f"line={shown(given)}: must be a text; write str(…) for anything else")
        if keep is None:
            try:
                keep = self._stored.opts.keep_logs
            except ValueError:  # somebody's hand
                keep = None
        else:
            check_whole(keep, "keep", least=1, most=MAX_LINES)
        return await control.log(self._home.line, self.id, line, keep, self._run)

    async def _so_far(self) -> str | None:
        """For the message of a timeout: where the job is, if the server says so at once; None if it has ended, or is gone."""
        try:
            async with asyncio.timeout(_LAST_LOOK):
                now = await self.refresh()
                paused = await read.is_paused(self._home.line)
        except (TimeoutError, EchoMQError):
            return "it was not cancelled"
        if now is None or now.state in ("completed", "failed"):
            return None
        if now.state is None:
            return "it was not cancelled"
        if now.state in ("waiting", "prioritized"):
            if paused:
                return f"it is still {now.state}: the queue is paused, and runs nothing before its resume()"
            return f"it is still {now.state}: {self._home.connection._for_waiting}"
        if now.state == "delayed":
            again = "" if not now.attempts_started else "; a worker has put it off, and its log says why"
            hint = self._home.connection._for_delayed
            return f"it is delayed, by {now.delay:g} s, and runs when that is over{again}{hint}"
        return f"it is {now.state}, and goes on"

    def _outcome(self, ending: Ending) -> R:
        if ending.kind == "failed":
            raise JobFailed(self.id, ending.text, self.queue_name)
        if ending.kind == "cancelled":
            raise JobCancelled(self.id, ending.text, self.queue_name)
        if ending.kind == "removed":
            raise JobRemoved(self.id)
        if ending.error is not None:
            raise ResultUnavailable(self.id, ending.error)
        try:
            return self._returns(ending.value)
        except Misfit as error:
            found = "" if self._has_codec else f"; it is {ending.value[:60].decode('utf-8', 'replace')}"
            raise ResultUnavailable(
                self.id, f"it does not fit the type that the task says it returns: {error}{found}"
            ) from error
        except ValueError as error:
            raise ResultUnavailable(self.id, f"what stands on the server is no JSON: {error}") from error


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
