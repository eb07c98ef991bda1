"""``Middleware``: what stands around the jobs of an app's tasks, when they are added and when they run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from echomq._log import about, logger
from echomq._worker.beside import error_of
from echomq.errors import InvalidOption
from echomq.job import Job
from echomq.options import JobSpec, shown

CallNext = Callable[[], Awaitable[Any]]
"""Runs what is further inside: the next middleware, and at last the task's function."""


class RunOutcome(msgspec.Struct, frozen=True):
    """How a task's function has ended, as ``Middleware.after`` is told.

    Attributes:
        result: what it returned; None if it raised.
        error: what it raised; None if it returned. ``RetryLater`` and the like are among that, and
            ``asyncio.CancelledError`` where its job was cancelled or the worker stops.
    """

    result: Any = None
    error: BaseException | None = None


class Middleware:
    """What stands around the jobs of an app's tasks. Make a subclass with some of these methods, and give it to the app.

    The first of several is the outermost: its ``before`` comes first, its ``after`` last. What they raise, except ``after``,
    is as if the function had raised it. They run in the event loop, whatever the task runs in, so they must not block. The
    time that they take counts towards the task's ``timeout``; but that of a task with ``process=True`` bounds its function
    alone, since it counts from when a process has it.

    Example:
        >>> class Timing(Middleware):
        ...     async def around(self, job, call_next):
        ...         began = time.monotonic()
        ...         try:
        ...             return await call_next()
        ...         finally:
        ...             histogram.observe(time.monotonic() - began)
        >>> app = EchoMQ("redis://localhost:6379/0", middleware=[Timing()])
    """

    def on_enqueue(self, spec: JobSpec) -> JobSpec:
        """Called for each job that a task makes, by ``enqueue``, ``map`` or ``spec``. Gives the job that is to be added.

        The last of several middlewares comes first. What it raises is raised to the caller, and nothing is added.

        Example:
            >>> def on_enqueue(self, spec):
            ...     return msgspec.structs.replace(spec, priority=1) if is_urgent.get() else spec
        """
        return spec

    async def around(self, job: Job[Any], call_next: CallNext) -> Any:
        """Called in place of the function, which ``await call_next()`` calls. What this returns is the job's result."""
        return await call_next()

    async def before(self, job: Job[Any]) -> None:
        """Called before the function. If it raises, the function is not called, and the run has failed with that error."""

    async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
        """Called after the function, however it ended. An error here is logged, and changes nothing."""


Around = Callable[[Job[Any], CallNext], Awaitable[Any]]


def checked_middleware(given: Iterable[Middleware]) -> list[Middleware]:
    """Middlewares, as an app takes them."""
    many: object = given
    if not isinstance(many, Iterable):
        raise InvalidOption(f"middleware={shown(given)}: must be a list of Middleware objects")
    found: list[object] = list(many)
    for one in found:
        if not isinstance(one, Middleware):
            remedy = f"write {one.__name__}()" if isinstance(one, type) else "make it a subclass of Middleware"
            raise InvalidOption(f"middleware {shown(one)}: must be an object of a Middleware; {remedy}")
        _check_methods(one)
    return [one for one in found if isinstance(one, Middleware)]


def _check_methods(one: Middleware) -> None:
    """Refuses at once what would fail every job: a method that is awaited and not ``async``, or the other way round."""
    for name in sorted(_METHODS):
        method = inspect.unwrap(getattr(one, name))
        function = getattr(method, "__func__", method)
        if not inspect.isfunction(function):
            continue  # some object that can be called: nobody can tell
        wanted = name != "on_enqueue"
        if inspect.iscoroutinefunction(function) != wanted:
            form = f"must be async: write `async def {name}`" if wanted else f"must not be async: write `def {name}`"
            raise InvalidOption(f"middleware {shown(one)}: {type(one).__name__}.{name} {form}")


def enqueue_chain(given: Sequence[Middleware]) -> list[Callable[[JobSpec], JobSpec]]:
    """What is called for each job that is made, in this order."""
    return [one.on_enqueue for one in reversed(given) if _has(one, "on_enqueue")]


def around_all(given: Sequence[Middleware]) -> Around | None:
    """All of them as one; None if none of them has anything to do with a run."""
    chain: Around | None = None
    for one in reversed(given):
        for mine in _arounds(one):
            chain = mine if chain is None else _nested(mine, chain)
    return chain


def _arounds(one: Middleware) -> list[Around]:
    """Of one middleware, the innermost first."""
    found: list[Around] = []
    if _has(one, "around"):
        found.append(one.around)
    if _has(one, "before") or _has(one, "after"):
        found.append(_Between(one).around)
    return found


def _nested(outer: Around, inner: Around) -> Around:
    def around(job: Job[Any], call_next: CallNext) -> Awaitable[Any]:
        return outer(job, lambda: inner(job, call_next))

    return around


class _Between:
    """``before`` and ``after`` of a middleware."""

    def __init__(self, middleware: Middleware) -> None:
        self._middleware = middleware

    async def around(self, job: Job[Any], call_next: CallNext) -> Any:
        await self._middleware.before(job)
        try:
            result = await call_next()
        except BaseException as error:
            await self._after(job, RunOutcome(error=error))
            raise
        await self._after(job, RunOutcome(result))
        return result

    async def _after(self, job: Job[Any], outcome: RunOutcome) -> None:
        error = await error_of(self._middleware.after, job, outcome)
        if error is not None:
            logger.error(
                "job %s (%s) of queue %s: the middleware %r has raised after its run",
                job.id,
                job.name,
                job.queue_name,
                self._middleware,
                exc_info=error,
                extra=about(job.queue_name, job.id, job.name),
            )


_METHODS: Final = frozenset({"on_enqueue", "around", "before", "after"})


def _has(middleware: Middleware, method: str) -> bool:
    """Whether its class has a method of its own."""
    assert method in _METHODS
    return getattr(type(middleware), method) is not getattr(Middleware, method)
