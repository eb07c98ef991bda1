"""What EchoMQ tells telemetry of its work, and the guard that keeps a broken telemetry from doing harm.

Names of operations and attributes are those of protocol 11.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from operator import methodcaller
from types import TracebackType
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from echomq._log import logger
from echomq.errors import InvalidOption
from echomq.options import shown

SpanKind: TypeAlias = Literal["producer", "consumer", "internal"]
"""Who does it: one that adds jobs, one that runs them, or one that looks after a queue."""

RunEnd: TypeAlias = Literal["completed", "failed", "retried", "delayed", "waiting", "waiting_children", "cancelled"]
"""What becomes of a job after a run: it has completed or failed for good; it runs again after an error; a handler put it off; it
went back to the line; it waits for its children; somebody has
cancelled it."""

Value: TypeAlias = str | int | float | bool | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value]

QUEUE: Final = "bullmq.queue.name"
OPERATION: Final = "bullmq.queue.operation"
JOB_ID: Final = "bullmq.job.id"
JOB_NAME: Final = "bullmq.job.name"
STATE: Final = "bullmq.job.state"


class Span(Protocol):
    """One operation under way."""

    def carried(self) -> str | None:
        """Its context as a text that a job can carry, for who runs the job to go on from; None if there is nothing to carry."""

    def set(self, attributes: Attributes) -> None:
        """More that is known of it by now."""

    def error(self, reason: str, error: BaseException | None) -> None:
        """It has failed, for this reason and, if something was raised, with this error."""

    def end(self) -> None:
        """It is over. Called once, last, in the context in which it was started."""


class Telemetry(Protocol):
    """Hears what queues and workers do. ``echomq.telemetry.OpenTelemetry`` is one; write another for another backend.

    Its methods are called in the event loop's thread and must return at once. What they raise is logged, the first time, and
    does no harm to a job.
    """

    def start(self, operation: str, queue: str, kind: SpanKind, attributes: Attributes, carried: str | None) -> Span:
        """An operation begins: from now on, until its end, it is the current one of this context (``contextvars``).

        Args:
            operation: ``add``, ``process`` and so on.
            queue: its name, as other programs know it: with braces where it has a hash tag.
            kind: who does it.
            attributes: what is known of it.
            carried: what the producer's span gave the job to carry, if this is the run of such a job.
        """

    def run_ended(self, queue: str, job_name: str, end: RunEnd, seconds: float) -> None:
        """A run is over, and took so long."""

    def counted(self, queue: str, counts: Mapping[str, int]) -> None:
        """Somebody has asked how many jobs are in each of these states."""


TelemetryOption: TypeAlias = Telemetry | Sequence[Telemetry] | None
"""What an argument ``telemetry=`` takes."""


class Guard:
    """All that a queue or worker tells goes through one of these. What a telemetry raises ends here."""

    def __init__(self, telemetries: Sequence[Telemetry]) -> None:
        self._telemetries = telemetries
        self._broken = False

    @classmethod
    def of(cls, telemetry: TelemetryOption) -> Guard | None:
        """What an argument ``telemetry=`` means.

        Raises:
            InvalidOption: it is none.
        """
        if telemetry is None:
            return None
        given: list[Any] = list(telemetry) if isinstance(telemetry, (list, tuple)) else [telemetry]
        for one in given:
            methods = (getattr(one, name, None) for name in ("start", "run_ended", "counted"))
            if isinstance(one, type) or not all(map(callable, methods)):
                raise InvalidOption(
                    f"telemetry={shown(one)}: must be an echomq.telemetry.OpenTelemetry, an object with the methods of "
                    "echomq.telemetry.Telemetry, or a list of such"
                )
        return cls(given) if given else None

    def span(
        self, operation: str, queue: str, kind: SpanKind, attributes: Attributes, carried: str | None = None
    ) -> Spans:
        """The operation of a ``with`` block. An error that leaves the block is the operation's."""
        return Spans(self, operation, queue, kind, {QUEUE: queue, OPERATION: operation, **attributes}, carried)

    def started(self, *args: Any) -> list[Span]:
        """A span of each telemetry that does not fail."""
        found = (self.call(telemetry.start, *args) for telemetry in self._telemetries)
        return [span for span in found if span is not None]

    def run_ended(self, queue: str, job_name: str, end: RunEnd, seconds: float) -> None:
        """Tells all."""
        for telemetry in self._telemetries:
            self.call(telemetry.run_ended, queue, job_name, end, seconds)

    def counted(self, queue: str, counts: Mapping[str, int]) -> None:
        """Tells all."""
        for telemetry in self._telemetries:
            self.call(telemetry.counted, queue, counts)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """What it returns; None if it raises, which is said once."""
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException:  # a job's outcome must not depend on it
            if not self._broken:
                self._broken = True
                logger.exception("the telemetry failed; work goes on, and no further failure of it is logged")
            return None


# By name, so that what is no span at all fails within the guard, too.
_END: Final[Callable[[Span], None]] = methodcaller("end")
_CARRIED: Final[Callable[[Span], str | None]] = methodcaller("carried")


class Spans:
    """The spans that a guard's telemetries have of one operation, as a ``with`` block."""

    __slots__ = ("_args", "_guard", "_spans")

    def __init__(self, guard: Guard, *args: Any) -> None:
        self._guard = guard
        self._args = args
        self._spans: list[Span] = []

    def __enter__(self) -> Self:
        self._spans = self._guard.started(*self._args)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):  # to be cancelled is no failure
            self.error("", error)
        for span in reversed(self._spans):
            self._guard.call(_END, span)

    def carried(self) -> str | None:
        """The first that has something to carry."""
        for span in self._spans:
            found = self._guard.call(_CARRIED, span)
            if isinstance(found, str) and found:
                return found
        return None

    def set(self, attributes: Attributes) -> None:
        """Tells all."""
        for span in self._spans:
            self._guard.call(self._say, span, attributes)

    def error(self, reason: str, error: BaseException | None) -> None:
        """Tells all; without a reason, the error says it."""
        for span in self._spans:
            self._guard.call(self._tell, span, reason, error)

    @staticmethod
    def _say(span: Span, attributes: Attributes) -> None:
        span.set(attributes)

    @staticmethod
    def _tell(span: Span, reason: str, error: BaseException | None) -> None:
        span.error(reason or str(error), error)


class _Keys(Protocol):
    @property
    def protocol_name(self) -> str: ...


class _Watched(Protocol):
    @property
    def keys(self) -> _Keys: ...
    @property
    def telemetry(self) -> Guard | None: ...


class _AtHome(Protocol):
    @property
    def _home(self) -> Any: ...


T = TypeVar("T")
S = TypeVar("S", bound=_AtHome)
P = ParamSpec("P")
R = TypeVar("R")


def traced(
    operation: str, kind: SpanKind = "internal", about: Callable[..., Attributes] | None = None
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, R]]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]
]:
    """Decorates a verb of a public object: where the object has a telemetry, its calls are operations.

    Args:
        operation: what it is called.
        kind: who does it.
        about: the call's attributes; gets what the verb gets.
    """

    def decorate(
        verb: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @functools.wraps(verb)
        async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            home: _Watched = self._home
            guard = home.telemetry
            if guard is None:
                return await verb(self, *args, **kwargs)
            attributes = None if about is None else guard.call(about, self, *args, **kwargs)
            with guard.span(operation, home.keys.protocol_name, kind, attributes or {}):
                return await verb(self, *args, **kwargs)

        return call

    return decorate
