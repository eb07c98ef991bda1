"""What callers may ask for: durations, back-off, retention, and the options of a job. Frozen, and validated once."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from echomq import _cron
from echomq.errors import InvalidOption

Duration: TypeAlias = float | timedelta
"""Seconds as a number, or a ``timedelta``."""

JSON: TypeAlias = Any
"""What can be written as JSON: None, bool, int, float, str, lists and dicts of them, and what msgspec makes such."""

OnProgress: TypeAlias = Callable[[int], None]
"""What a verb that goes in steps calls after each, with how much it has done so far."""

MAX_PRIORITY: Final = 2_097_151
MAX_DELAY: Final = 10 * 365 * 86_400.0
MAX_COUNT: Final = 1_000_000_000_000
"""A server's script keeps 14 digits of a number in a job's options."""

MAX_LINES: Final = 100_000
"""Lines that the log of a job may keep."""

MAX_JOB_ID: Final = 1_000
"""Characters of an id that a caller chose. The protocol has no bound; every move of the job carries its id."""

MAX_DEDUPLICATION_ID: Final = 1_000
"""Characters of a deduplication id: the same bound as that of an id."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the data or the result of a job, where nobody says otherwise: a server is busy with so much for some 5 ms."""

Extra: TypeAlias = Literal["ignore", "forbid"]
"""What becomes of a job whose data have more than the arguments of its task: the rest is ignored, or the job fails."""

_MOST_SHOWN: Final = 60
_FIRST_MOMENT: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MOMENT: Final = datetime(2100, 1, 1, tzinfo=UTC)

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
# A job's hash stands beside the queue's own keys, so an id must not be the name of one of them.
_QUEUE_KEYS: Final = frozenset(
    "wait paused active prioritized delayed waiting-children completed failed id pc meta events marker stalled "
    "stalled-check limiter repeat priority delay metrics de dn".split()
)


class Unset(msgspec.Struct, frozen=True):
    """The type of ``UNSET``: an argument that was not given, where ``None`` means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


def shown(value: object) -> str:
    """A value as messages show it: its ``repr``, cut where it is long."""
    try:
        text = repr(value)
    except Exception:  # the caller's own code; or a number of more digits than Python writes
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def to_seconds(value: Duration, name: str, *, least: float = 0.0, most: float = MAX_DELAY) -> float:
    """Turns a duration into seconds.

    Raises:
        InvalidOption: it is no duration, not finite, or out of range.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidOption(f"{name}={shown(value)}: must be seconds (int or float) or a timedelta")
    if not least <= seconds <= most:  # nor is NaN
        finite = "" if isinstance(seconds, int) or math.isfinite(seconds) else "is not finite; "
        raise InvalidOption(f"{name}={shown(value)}: {finite}must be from {least:.15g} to {most:.15g} seconds")
    return float(seconds)


def check_whole(value: int, name: str, *, least: int, most: int | None = None) -> int:
    """Checks a whole number.

    Raises:
        InvalidOption: it is none, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise InvalidOption(f"{name}={shown(value)}: must be a whole number {bounds}")
    return value


def check_max_bytes(value: int | None) -> int | None:
    """Checks a bound on data and results; None for any number.

    Raises:
        InvalidOption: it is none.
    """
    return value if value is None else check_whole(value, "max_bytes", least=1, most=MAX_COUNT)


def check_extra(value: Extra) -> Extra:
    """Checks what becomes of arguments that a task does not have.

    Raises:
        InvalidOption: there is no such policy.
    """
    if value not in get_args(Extra):
        raise InvalidOption(f"extra={shown(value)}: must be one of {', '.join(map(repr, get_args(Extra)))}")
    return value


def check_truth(value: bool, name: str) -> bool:
    """Checks a truth value.

    Raises:
        InvalidOption: it is none.
    """
    if not isinstance(value, bool):
        raise InvalidOption(f"{name}={shown(value)}: must be True or False")
    return value


def untold(done: int) -> None:
    """The ``OnProgress`` of whom nobody wants to hear."""


def check_on_progress(on_progress: OnProgress | None) -> OnProgress:
    """Checks what is to be called after each step; None for nothing.

    Raises:
        InvalidOption: it cannot be called, or gives something to be awaited, which nobody would.
    """
    if on_progress is None:
        return untold
    if not callable(on_progress) or inspect.iscoroutinefunction(on_progress):
        raise InvalidOption(
            f"on_progress={shown(on_progress)}: must be a plain function of one argument, how much is done; or None"
        )
    return on_progress


def check_queue_name(name: str, *, hash_tag: bool) -> str:
    """Checks a queue's name (protocol 1.2).

    Raises:
        InvalidOption: it is empty, contains ``:``, or braces where the braces are ours.
    """
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"queue name {shown(name)}: must be a text that is not empty")
    if ":" in name:
        raise InvalidOption(
            f"queue name {shown(name)}: must not contain ':', which separates the parts of a key; use '-' or '.' instead"
        )
    if hash_tag and ("{" in name or "}" in name):
        raise InvalidOption(
            f"queue name {shown(name)}: must not contain braces, because EchoMQ puts the name into braces itself so that a "
            "cluster keeps a queue's keys together; leave them out, or pass hash_tag=False"
        )
    _check_text(name, "queue name")
    return name


def check_job_id(job_id: str) -> str:
    """Checks an id that the caller chose (protocol 1.3).

    Raises:
        InvalidOption: it is too long, or could be taken for a number of the queue's own counter or for one of its keys.
    """
    given: object = job_id
    if type(given) is int or (isinstance(given, str) and _INTEGER.fullmatch(given)):
        number = shown(job_id).strip("'")
        raise InvalidOption(
            f"job_id={shown(job_id)}: must not be a whole number, not as a text either, because it could meet an id that "
            f"the queue gives out itself; put a word before it, such as 'order-{number}'"
        )
    if not isinstance(job_id, str) or not job_id:
        raise InvalidOption(f"job_id={shown(job_id)}: must be a text that is not empty")
    if len(job_id) > MAX_JOB_ID:
        raise InvalidOption(
            f"job_id={shown(job_id)}: has {len(job_id)} characters, and at most {MAX_JOB_ID} are allowed; use a shorter one, "
            "such as hashlib.sha256(job_id.encode()).hexdigest()"
        )
    if job_id.startswith("0:") or (":" in job_id and job_id.count(":") != 2):
        raise InvalidOption(f"job_id={shown(job_id)}: must not contain ':'; use '-' instead")
    if job_id.split(":")[0] in _QUEUE_KEYS:
        raise InvalidOption(f"job_id={shown(job_id)}: is the name of one of the queue's own keys; choose another")
    _check_text(job_id, "job_id")
    return job_id


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"{name} {shown(text)}: holds a lone surrogate, which has no UTF-8 form; remove it"
        ) from None


BUILT_IN_BACKOFFS: Final = ("fixed", "exponential", "linear")


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait before the next attempt.

    Attributes:
        type: ``fixed``, ``exponential``, ``linear``, or the name of a strategy that the worker knows.
        delay: seconds.
        jitter: 0 to 1: this share of the wait is drawn at random, so that jobs that failed together do not come back
            together.

    Example:
        >>> Backoff.exponential(1, jitter=0.5)      # 1 s, 2 s, 4 s …, each between half of it and all of it
        Backoff(type='exponential', delay=1.0, jitter=0.5)
    """

    type: str
    delay: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            known = ", ".join(map(repr, BUILT_IN_BACKOFFS))
            raise InvalidOption(f"backoff type {shown(self.type)}: must be {known} or a strategy's name")
        msgspec.structs.force_setattr(self, "delay", to_seconds(self.delay, "backoff delay"))
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 1:
            raise InvalidOption(f"backoff jitter {shown(self.jitter)}: must be a number from 0 to 1")

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """The same wait before every attempt."""
        return cls("fixed", to_seconds(delay, "backoff delay"), jitter)

    @classmethod
    def exponential(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """First ``delay``, then twice that, then four times that, and so on."""
        return cls("exponential", to_seconds(delay, "backoff delay"), jitter)

    @classmethod
    def linear(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """First ``delay``, then twice, then three times that, and so on. Workers of BullMQ do not know it (docs/retries.md)."""
        return cls("linear", to_seconds(delay, "backoff delay"), jitter)

    @classmethod
    def custom(cls, name: str, delay: Duration = 0.0) -> Backoff:
        """A strategy that the worker was given by this name: ``Worker(backoff_strategies={name: function})``.

        The function takes the attempts made so far (1 after the first run) and the error, and gives seconds, a ``timedelta``,
        or None to fail the job now. ``delay`` is what a worker waits that does not know it, at least a second.
        """
        if name in BUILT_IN_BACKOFFS:
            raise InvalidOption(
                f"backoff strategy {name!r}: is a name of EchoMQ's own; use Backoff.{name}(…), or another name"
            )
        return cls(name, to_seconds(delay, "backoff delay"))


BackoffStrategy: TypeAlias = Callable[[int, BaseException], Duration | None]
"""A worker's own back-off, a plain function: ``(attempts_made, error)`` → how long to wait; None: fail now. ``attempts_made``
is 1 after the first run."""


OnCrashLimit: TypeAlias = Literal["fail", "backoff", "dead_letter"]
"""What becomes of a job whose workers died more often than ``max_stalled_count``."""


class Keep(msgspec.Struct, frozen=True):
    """Which finished jobs stay readable.

    Attributes:
        count: at most so many; -1 for any number, 0 for none.
        age: seconds after which one is removed, or None for never. Removal happens when others finish,
            and with each sweep of a worker.

    Example:
        >>> Keep(count=1000, age=timedelta(days=2))
        Keep(count=1000, age=172800.0)
    """

    count: int = -1
    age: Duration | None = None

    DEFAULT: ClassVar[Keep]
    """Completed jobs for 24 hours, failed ones for 30 days, at most 100,000 of each."""
    ALL: ClassVar[Keep]
    """Every job for ever: BullMQ's default."""
    NONE: ClassVar[Keep]
    """Remove the job as soon as it has ended."""

    def __post_init__(self) -> None:
        check_whole(self.count, "Keep count", least=-1, most=MAX_COUNT)
        if self.age is not None:
            msgspec.structs.force_setattr(self, "age", to_seconds(self.age, "Keep age", most=1e10))


class _DefaultKeep(Keep, frozen=True):
    """Its own type, because it means something else for completed than for failed jobs."""

    def __repr__(self) -> str:
        return "Keep.DEFAULT"


Keep.DEFAULT = _DefaultKeep()
Keep.ALL = Keep()
Keep.NONE = Keep(count=0)

KEEP_COMPLETED: Final = Keep(count=100_000, age=86_400.0)
KEEP_FAILED: Final = Keep(count=100_000, age=30 * 86_400.0)


class Deduplication(msgspec.Struct, frozen=True):
    """Which adds are one and the same job, and what becomes of those that come while it is there (docs: unique jobs).

    The job that was added first *holds* the id: until it has completed or failed for good, or, with ``ttl``, for that
    time, whatever becomes of the job. An add that finds the id held adds nothing, unless ``replace`` says otherwise;
    it gives the job that holds it, whose ``deduplicated`` is True.

    Attributes:
        id: any text of at most 1,000 characters; None only together with ``unique_by``.
        ttl: seconds, or a ``timedelta``, for which the id is held.
        extend: each add that finds the id held begins ``ttl`` anew.
        replace: a job that is still delayed is removed, and the new one takes its place; one that waits or runs is not.
        keep_last_if_active: what is added while the job runs is kept, the last of them, and added when it has ended.
        reschedule: a job that is still delayed becomes due when the new one would be; its data stay.

    Example:
        >>> Deduplication.throttle("report-7", 60)          # at most one a minute
        Deduplication(id='report-7', ttl=60.0, extend=False, replace=False, keep_last_if_active=False, reschedule=False)
    """

    id: str | None = None
    ttl: Duration | None = None
    extend: bool = False
    replace: bool = False
    keep_last_if_active: bool = False
    reschedule: bool = False

    def __post_init__(self) -> None:
        if self.id is not None:
            check_deduplication_id(self.id)
        if self.ttl is not None:
            ttl = to_seconds(self.ttl, "deduplication ttl", least=0.001)
            msgspec.structs.force_setattr(self, "ttl", ttl)
        for name in ("extend", "replace", "keep_last_if_active", "reschedule"):
            check_truth(getattr(self, name), f"deduplication {name}")
        if self.extend and self.ttl is None and not self.keep_last_if_active:
            raise InvalidOption("deduplication extend=True: means that each add begins ttl anew; give ttl too")
        if self.keep_last_if_active and self.ttl is not None:
            raise InvalidOption(
                f"deduplication keep_last_if_active=True and ttl={shown(self.ttl)}: the id is held until the job has "
                "ended, so a ttl would mean nothing; leave one of them out"
            )
        if self.keep_last_if_active and self.extend:
            raise InvalidOption(
                "deduplication keep_last_if_active=True and extend=True: there is no ttl to extend; leave extend out"
            )
        if self.replace and self.reschedule:
            raise InvalidOption(
                "deduplication replace=True and reschedule=True: a job that is replaced cannot be moved too; give one of them"
            )

    @classmethod
    def simple(cls, id: str | None = None) -> Deduplication:  # the word of the option
        """Adds nothing while a job of this id waits or runs."""
        return cls(id)

    @classmethod
    def throttle(cls, id: str | None, ttl: Duration) -> Deduplication:
        """Adds at most one job in so many seconds, whether it has ended or not."""
        return cls(id, ttl)

    @classmethod
    def debounce(cls, id: str | None, ttl: Duration) -> Deduplication:
        """Runs the last of the jobs that come, when none has come for so many seconds: the job's ``delay`` is that long, too."""
        return cls(id, ttl, extend=True, replace=True)

    @classmethod
    def latest(cls, id: str | None = None) -> Deduplication:
        """Adds nothing while a job of this id waits; the last of those that come while it runs, runs once more after it."""
        return cls(id, keep_last_if_active=True)

    @property
    def is_debounce(self) -> bool:
        """Not for users of EchoMQ. Whether a job that names no time of its own is delayed by ``ttl``."""
        return self.extend and self.replace


class JobSpec(msgspec.Struct, frozen=True):
    """A job to be added: its name, its data, and its options.

    Attributes:
        name: the task's name.
        data: anything that can be written as JSON; left out, an empty object.
        job_id: an id of your own, at most 1,000 characters. Adding it again while a job of this id exists changes nothing.
        delay: seconds, or a ``timedelta``, before it may run.
        at: the moment (an aware ``datetime``) from which it may run; instead of ``delay``.
        priority: 0 (none: runs before all with one) or 1 … 2097151, lower first.
        lifo: put it at the front of the line; of no effect together with a priority.
        attempts: how often it may run in all; 0 and 1 both mean once.
        backoff: what to wait between attempts: a ``Backoff``, or seconds.
        remove_on_complete, remove_on_fail: which finished jobs to keep; left out, the worker decides.
        stack_trace_limit: how many tracebacks to keep.
        timestamp: when it was made; left out, the server's now.
        deduplication: a ``Deduplication``, or an id for the simple kind.
        unique_by: names of keys of ``data``, which must be an object: the job's name and the values of these keys make the
            deduplication id.
        expire_in: seconds, or a ``timedelta``, after it could first run: if no worker has started it by then, it fails
            without being run.
        keep_logs: how many lines of its log are kept, the last ones; left out, 1,000.
        omit_context: where there is telemetry: let the job not carry the context of its trace, so that its run begins a trace
            of its own.
        max_bytes: how many bytes its data may take, as they stand on the server; left out, the queue decides.

    Example:
        >>> JobSpec("enroll", {"learner": 7}, attempts=5, backoff=Backoff.exponential(1))
    """

    name: str
    data: JSON = UNSET
    job_id: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    priority: int = 0
    lifo: bool = False
    attempts: int = 0
    backoff: Backoff | Duration | None = None
    remove_on_complete: Keep | None = None
    remove_on_fail: Keep | None = None
    stack_trace_limit: int | None = None
    timestamp: datetime | None = None
    deduplication: Deduplication | str | None = None
    unique_by: Sequence[str] | None = None
    expire_in: Duration | None = None
    keep_logs: int | None = None
    omit_context: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidOption(f"job name {shown(self.name)}: must be a text that is not empty")
        if self.max_bytes is not None:
            check_max_bytes(self.max_bytes)
        if not self.is_plain:
            self._check_options()

    @property
    def is_plain(self) -> bool:
        """Not for users of EchoMQ. Whether it has a name and data only."""
        return (
            self.attempts == 0
            and self.job_id is None
            and self.delay is None
            and self.at is None
            and self.priority == 0
            and self.lifo is False
            and self.backoff is None
            and self.remove_on_complete is None
            and self.remove_on_fail is None
            and self.stack_trace_limit is None
            and self.timestamp is None
            and self.deduplication is None
            and self.unique_by is None
            and self.expire_in is None
            and self.keep_logs is None
            and self.omit_context is False
        )

    def _check_options(self) -> None:
        check_whole(self.priority, "priority", least=0, most=MAX_PRIORITY)
        check_whole(self.attempts, "attempts", least=0, most=MAX_COUNT)
        check_truth(self.lifo, "lifo")
        check_truth(self.omit_context, "omit_context")
        if self.job_id is not None:
            check_job_id(self.job_id)
        self._check_times()
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            _check_backoff(self.backoff)
        if self.remove_on_complete is not None:
            _check_keep(self.remove_on_complete, "remove_on_complete")
        if self.remove_on_fail is not None:
            _check_keep(self.remove_on_fail, "remove_on_fail")
        if self.stack_trace_limit is not None:
            check_whole(self.stack_trace_limit, "stack_trace_limit", least=0, most=MAX_COUNT)
        if self.keep_logs is not None:
            check_whole(self.keep_logs, "keep_logs", least=1, most=MAX_LINES)
        self._check_deduplication()

    def _check_times(self) -> None:
        if self.delay is not None:
            to_seconds(self.delay, "delay")
            if self.at is not None:
                raise InvalidOption(f"at={shown(self.at)} and delay={shown(self.delay)}: give one of them")
        if self.at is not None:
            check_moment(self.at, "at")
        if self.timestamp is not None:
            check_moment(self.timestamp, "timestamp")
            if self.at is not None and self.at < self.timestamp:
                raise InvalidOption(
                    f"at={shown(self.at)} is before timestamp={shown(self.timestamp)}: a job cannot be due before it was made"
                )
        if self.expire_in is not None:
            to_seconds(self.expire_in, "expire_in", least=0.001)

    def _check_deduplication(self) -> None:
        if self.unique_by is not None:
            _check_names(self.unique_by)
        policy = self.deduplication
        if policy is None:
            return
        if isinstance(policy, str):
            check_deduplication_id(policy)
        elif not isinstance(policy, Deduplication):
            raise InvalidOption(
                f"deduplication={shown(policy)}: must be an id, or a Deduplication, such as Deduplication.throttle('id', 60)"
            )
        named = policy if isinstance(policy, str) else policy.id
        if named is None and self.unique_by is None:
            raise InvalidOption(
                "deduplication has no id: give it one, or say with unique_by which keys of data make it"
            )
        if named is not None and self.unique_by is not None:
            raise InvalidOption(
                f"deduplication id {shown(named)} and unique_by={shown(self.unique_by)}: give one of them; with unique_by a "
                "Deduplication has no id"
            )
        if isinstance(policy, Deduplication) and policy.keep_last_if_active and self.at is not None:
            raise InvalidOption(
                f"at={shown(self.at)} with Deduplication.latest (keep_last_if_active): a kept job begins to wait when the one "
                "that runs has ended, so it cannot keep a moment; give delay"
            )


def check_deduplication_id(given: str) -> str:
    """Checks a deduplication id.

    Raises:
        InvalidOption: it is empty, too long, or has no UTF-8 form.
    """
    if not isinstance(given, str) or not given:
        raise InvalidOption(f"deduplication id {shown(given)}: must be a text that is not empty")
    if len(given) > MAX_DEDUPLICATION_ID:
        raise InvalidOption(
            f"deduplication id {shown(given)}: has {len(given)} characters, and at most {MAX_DEDUPLICATION_ID} are allowed; "
            "use a shorter one, such as hashlib.sha256(id.encode()).hexdigest()"
        )
    _check_text(given, "deduplication id")
    return given


def _check_names(names: Sequence[str]) -> None:
    if (
        isinstance(names, str)
        or not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) for name in names)
    ):
        raise InvalidOption(f"unique_by={shown(names)}: must be a list of names of keys of data, such as ['learner']")


def _check_backoff(value: Duration) -> None:
    if isinstance(value, (int, float, timedelta)):
        to_seconds(value, "backoff")
        return
    raise InvalidOption(
        f"backoff={shown(value)}: must be a Backoff, such as Backoff.exponential(1), or seconds (int, float or timedelta)"
    )


def check_moment(value: datetime, name: str) -> None:
    """Checks a moment that the caller gave.

    Raises:
        InvalidOption: it has no time zone, or lies out of range.
    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidOption(
            f"{name}={shown(value)}: must be a datetime with a time zone, such as datetime.now(timezone.utc)"
        )
    if not _FIRST_MOMENT <= value <= _LAST_MOMENT:
        raise InvalidOption(f"{name}={shown(value)}: must be from the year 1970 to the year 2100")


def _check_keep(value: Keep, name: str) -> None:
    if not isinstance(value, Keep):
        raise InvalidOption(f"{name}={shown(value)}: must be a Keep, such as Keep(count=1000), Keep.ALL or Keep.NONE")


class Limiter(msgspec.Struct, frozen=True):
    """A worker's rate limit, shared by all workers of the queue that have one (protocol 3.4).

    Attributes:
        max: at most so many jobs start …
        duration: … in so many seconds, counted in windows that open with the first start.

    Example:
        >>> Limiter(max=100, duration=60)
        Limiter(max=100, duration=60.0)
    """

    max: int
    duration: Duration

    def __post_init__(self) -> None:
        check_whole(self.max, "limiter max", least=1)
        msgspec.structs.force_setattr(self, "duration", to_seconds(self.duration, "limiter duration", least=0.001))


class ProcessPool(msgspec.Struct, frozen=True):
    """The processes in which a worker runs what is to run in a process (``process=True``).

    Attributes:
        size: how many there are at most; left out, as many as the worker has slots, but no more than the machine has processors.
        max_jobs: a process ends after so many jobs, and a new one takes its place.
        max_memory: one that holds more than so many bytes after a job ends, and a new one takes its place.
        warm: start them with the worker, as many as the machine has processors, if its queue has a task with ``process=True``
            or it has a ``route`` and this; else each when it is first needed.

    Example:
        >>> app.worker("images", concurrency=4, processes=ProcessPool(max_jobs=1000, max_memory=512 * 1024 * 1024))
    """

    size: int | None = None
    max_jobs: int | None = None
    max_memory: int | None = None
    warm: bool = True

    def __post_init__(self) -> None:
        if self.size is not None:
            check_whole(self.size, "size", least=1, most=10_000)
        if self.max_jobs is not None:
            check_whole(self.max_jobs, "max_jobs", least=1)
        if self.max_memory is not None:
            check_whole(self.max_memory, "max_memory", least=1024 * 1024)
        check_truth(self.warm, "warm")


class Every(msgspec.Struct, frozen=True):
    """A schedule of one run each so many seconds, counted from the first: nothing moves with how long runs take.

    Attributes:
        interval: seconds, or a ``timedelta``; whole milliseconds.
        offset: seconds after the whole multiples of the interval (since 1970, UTC). Left out, the first run is at once, and
            the others keep in step with it.

    Example:
        >>> Every(timedelta(minutes=15), offset=60)      # one minute past each quarter of an hour
        Every(interval=900.0, offset=60.0)
    """

    interval: Duration
    offset: Duration | None = None

    def __post_init__(self) -> None:
        interval = _whole_ms(self.interval, "interval", least=0.001)
        msgspec.structs.force_setattr(self, "interval", interval)
        if self.offset is not None:
            offset = _whole_ms(self.offset, "offset", least=0.0)
            if offset >= interval:
                raise InvalidOption(f"offset={shown(self.offset)}: must be less than the interval, {interval:g} s")
            msgspec.structs.force_setattr(self, "offset", offset)


def _whole_ms(value: Duration, name: str, *, least: float) -> float:
    seconds = to_seconds(value, name, least=least)
    if abs(seconds * 1000 - round(seconds * 1000)) > 1e-6:
        raise InvalidOption(f"{name}={shown(value)}: must be whole milliseconds; round it, such as {round(seconds, 3)}")
    return seconds


class Cron(msgspec.Struct, frozen=True):
    """A schedule of the times that a cron pattern names.

    Attributes:
        pattern: five fields (minute, hour, day of month, month, weekday), or six with the seconds first; or ``@daily`` and
            its like.
        tz: the time zone that the fields mean.

    Raises:
        InvalidOption: the pattern or the zone cannot be read.

    Example:
        >>> Cron("30 9 * * mon-fri", tz="Europe/Vienna")
        Cron(pattern='30 9 * * mon-fri', tz='Europe/Vienna')
    """

    pattern: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        for name, value in (("pattern", self.pattern), ("tz", self.tz)):
            if not isinstance(value, str) or not value:
                raise InvalidOption(f"{name}={shown(value)}: must be a text that is not empty")
        _cron.successor(self.pattern, _FIRST_SLOT, self.tz)


_FIRST_SLOT: Final = datetime(2026, 1, 1, tzinfo=UTC)

MissedRuns: TypeAlias = Literal["once", "skip", "catch_up"]
"""What becomes of runs of a schedule that could not start in time."""
