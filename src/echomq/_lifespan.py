"""What surrounds the workers of an app: it begins with the first of them and ends with the last, in each event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from echomq._hooks import Hooks, RunEvent, RunEventKind
from echomq._injection import Providers, Recipe, Values, made_for_all
from echomq._log import logger, said_by
from echomq._store.home import Home
from echomq._worker.beside import cancellations, error_of, is_its_own
from echomq._worker.held import Held
from echomq._worker.hooks import Told
from echomq._wrapping import Wrapping
from echomq.errors import InvalidOption, LifespanFailed
from echomq.job import Job
from echomq.middleware import around_all
from echomq.options import shown
from echomq.worker import Around, Route

if TYPE_CHECKING:
    from echomq.app import EchoMQ

_Entered = Callable[["EchoMQ"], AbstractAsyncContextManager[Any]]

LifespanFunction = Callable[["EchoMQ"], AsyncIterator[Any]] | Callable[["EchoMQ"], AbstractAsyncContextManager[Any]]
"""What ``EchoMQ.lifespan`` takes: called with the app, it gives an async generator of one ``yield``, or an async context
manager."""

Lifespan = TypeVar("Lifespan", bound=LifespanFunction)

Wrap = Callable[[Route], Route]
"""Puts something around what a worker calls for its jobs."""

_STARTUP: Final = "startup"
_SHUTDOWN: Final = "shutdown"


class Lifecycle:
    """The lifespans of one app, and where they run."""

    def __init__(self, app: EchoMQ) -> None:
        self._app = app
        self.providers = Providers()
        self._entered: list[_Entered] = []
        self._stretches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Stretch] = WeakKeyDictionary()

    @property
    def is_running(self) -> bool:
        """Whether workers have been given what is injected into their tasks."""
        return any(one.users and not loop.is_closed() for loop, one in list(self._stretches.items()))

    def add(self, function: LifespanFunction) -> None:
        """One more, inside of those that there are."""
        self._entered.append(_checked(function))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Around]:
        """Begins with the first who enters, and ends with the last who leaves. Gives what stands around every run."""
        loop = asyncio.get_running_loop()
        while (stretch := self._stretches.get(loop)) is not None and stretch.is_ending:
            await stretch.ended()
            self._forget(stretch, loop)  # also one that somebody else has cancelled
        if stretch is None:
            stretch = self._stretches[loop] = _Stretch(self._app, list(self._entered), self.providers)
        stretch.users += 1
        try:
            yield await stretch.started()
        finally:
            stretch.users -= 1
            if not stretch.users:
                try:
                    await stretch.end()
                finally:
                    self._forget(stretch, loop)

    def _forget(self, stretch: _Stretch, loop: asyncio.AbstractEventLoop) -> None:
        if self._stretches.get(loop) is stretch:
            del self._stretches[loop]


class _Stretch:
    """From startup to shutdown, in a task of its own: whoever comes first and whoever leaves last may be different tasks."""

    def __init__(self, app: EchoMQ, entered: list[_Entered], providers: Providers) -> None:
        self.users = 0
        self._app = app
        self._entered = entered
        self._providers = providers
        self._around = Around(_as_it_is)
        self._hooks = Hooks(app._hooks) if app._hooks else None
        self._is_ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._told = False
        self._at = ""
        self._task = asyncio.create_task(self._run(), name="echomq lifespan")

    @property
    def is_ending(self) -> bool:
        return self._stop.is_set() or self._task.done()

    async def started(self) -> Around:
        """Waits until all is started. Gives what stands around every run.

        Raises:
            LifespanFailed: it could not be; the same to all who wait.
        """
        waiter = asyncio.create_task(self._is_ready.wait())
        try:
            await asyncio.wait({waiter, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if not self._is_ready.is_set():
            self._told = True
            self._task.result()
            raise asyncio.CancelledError  # its task was cancelled: the event loop ends
        return self._around

    async def ended(self) -> None:
        """Waits for its end, whatever that is."""
        await asyncio.wait({self._task})

    async def end(self) -> None:
        """Stops all in order; what is still being started is cancelled. To be cancelled meanwhile, twice, cancels that too.

        Raises:
            LifespanFailed: something could not be stopped.
        """
        self._stop.set()
        if not self._is_ready.is_set():
            self._task.cancel()
        cancelled = False
        while not self._task.done():
            try:
                await asyncio.wait({self._task})
            except asyncio.CancelledError:
                if cancelled:
                    self._task.cancel()
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        if not self._told and not self._task.cancelled():
            self._told = True
            self._task.result()

    async def _run(self) -> None:
        recipes = self._providers.recipes(self._app.tasks)  # what is wrong there is said before anything is started
        here = {name: recipe for name, recipe in recipes.items() if not self._app.tasks[name].process}
        inside: list[AbstractAsyncContextManager[Any]] = []
        before = cancellations()
        try:
            for entered in self._entered:
                self._at = f"lifespan {_name(entered)!r}"
                await _enter(entered(self._app), inside)
            wrap = await self._wrapped(here, inside)
            self._around = Around(wrap, None if self._hooks is None else functools.partial(_tell, self._hooks))
        except BaseException as error:
            its_own = is_its_own(error, before)
            await self._leave(inside)
            if not its_own:
                raise
            raise _failed(_STARTUP, self._at, error) from error
        self._is_ready.set()
        try:
            await self._stop.wait()
        finally:
            try:
                if self._hooks is not None:
                    await self._hooks.rest()
            finally:
                unstopped = await self._leave(inside)
            if unstopped is not None:
                raise _failed(_SHUTDOWN, "", unstopped) from unstopped

    async def _wrapped(self, recipes: Mapping[str, Recipe], inside: list[AbstractAsyncContextManager[Any]]) -> Wrap:
        """Makes what is injected and is good for all jobs. Gives what stands around every run."""
        values: Values = {}
        for recipe in recipes.values():
            for step in recipe.process:
                if step.provider not in values:
                    self._at = repr(step.provider)
                    await _enter(made_for_all(step, values), inside)
        around = around_all(self._app.middleware)
        if not recipes and around is None:
            return _as_it_is
        return functools.partial(Wrapping, recipes, values, around)

    async def _leave(self, inside: list[AbstractAsyncContextManager[Any]]) -> BaseException | None:
        """Leaves each in order, the last first, whatever became of the others. Returns the first error.

        To be cancelled meanwhile cancels the one that is being left; it is raised when all have been.
        """
        first: BaseException | None = None
        sent: BaseException | None = None
        for one in reversed(inside):
            try:
                error = await error_of(one.__aexit__, None, None, None)
            except GeneratorExit:
                raise  # the event loop is gone: nothing can be waited for
            except BaseException as meant_for_us:
                sent = sent or meant_for_us
            else:
                if error is not None:
                    logger.error("%r: its lifespan could not be stopped in order", self._app, exc_info=error)
                    first = first or error
        if sent is not None:
            raise sent
        return first


async def _enter(one: AbstractAsyncContextManager[Any], inside: list[AbstractAsyncContextManager[Any]]) -> None:
    await one.__aenter__()
    inside.append(one)


def _tell(hooks: Hooks, home: Home, held: Held, told: Told) -> None:
    if hooks.wants(told.kind):
        kind, result, error, reason, delay = told
        hooks.tell(RunEvent(cast("RunEventKind", kind), Job(held.job, home), result, error, reason, delay))


def _as_it_is(route: Route) -> Route:
    return route


def _failed(phase: str, at: str, error: BaseException) -> LifespanFailed:
    what = f"the app could not be started, at {at}" if phase == _STARTUP else "the app could not be stopped in order"
    said = said_by(error)
    return LifespanFailed(f"{what}: {type(error).__name__}{said and f': {said}'}", phase=phase)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


def _takes_the_app(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument, as far as that can be known."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C, and tells nothing
        return True
    return True


def _checked(function: Any) -> _Entered:
    if callable(function) and not _takes_the_app(function):
        raise InvalidOption(f"lifespan {shown(function)}: it is called with the app, and must take that one argument")
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidOption(
            f"lifespan {shown(function)}: must be an async generator function of the app, with one yield, as in "
            "`async def lifespan(app): … yield …`, or give an async context manager"
        )

    @functools.wraps(function)
    def entered(app: EchoMQ) -> AbstractAsyncContextManager[Any]:
        made = function(app)
        if not isinstance(made, AbstractAsyncContextManager):
            raise InvalidOption(
                f"lifespan {shown(function)} gave {shown(made)}: must be an async context manager, with one `yield` where the "
                "workers work"
            )
        return made

    return entered
