"""Dependency injection: what a task's function is given besides the arguments of its job.

A provider makes what is injected, by the type that its return annotation names. All is looked up once, when workers start: a
task's ``Recipe`` says in which order its providers are called.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal, TypeVar, get_args

from echomq.errors import InvalidOption
from echomq.options import shown
from echomq.task import INJECTED, Task, annotated

Scope = Literal["process", "job"]

F = TypeVar("F", bound=Callable[..., Any])

_YIELDS: Final = (Iterator, Generator, Iterable, AsyncIterator, AsyncGenerator, AsyncIterable)
_SCOPES: Final = get_args(Scope)

Values = dict["Provider", Any]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def Inject() -> Any:
    """As the default of a parameter: its value comes from the provider of its type, not from the job.

    So it is no part of the job's data, and callers of ``enqueue`` leave it out. Such parameters stand last.

    Example:
        >>> @app.task
        ... async def enroll(learner: int, database: Database = Inject()) -> None: ...
    """
    return INJECTED


class Provider:
    """A function that makes what is injected.

    Args:
        function: plain or ``async def``; or a generator of one ``yield``, after which it takes back what it gave.
        scope: for how long one value is good.
    """

    def __init__(self, function: Callable[..., Any], scope: Scope) -> None:
        if not callable(function) or isinstance(function, type):
            raise InvalidOption(
                f"@app.provide({shown(function)}): must be a function whose return annotation is the type that it provides"
            )
        if scope not in _SCOPES:
            raise InvalidOption(
                f"@app.provide(scope={shown(scope)}): must be 'process', one value for all jobs, or 'job', one for each"
            )
        self.function = function
        self.scope = scope
        self.name = getattr(function, "__qualname__", repr(function))
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self.parameters = _injected(function, self.name)
        self._open: Callable[..., Any] = function
        if self.yields:
            self._open = asynccontextmanager(function) if self.is_async else contextmanager(function)

    def __repr__(self) -> str:
        return f"provider {self.name!r}"

    def provides(self) -> Any:
        """The type that its return annotation names."""
        hint = _hint(self.function, "return", repr(self))
        if not self.yields:
            return hint
        if typing.get_origin(hint) not in _YIELDS:
            raise InvalidOption(
                f"{self!r} is a generator, and its return annotation is {_name(hint)}: "
                f"must be {'AsyncIterator' if self.is_async else 'Iterator'}[…] of the type that it provides"
            )
        return typing.get_args(hint)[0]

    def wants(self) -> dict[str, Any]:
        """By parameter, the types that are injected into it."""
        return {parameter: _hint(self.function, parameter, repr(self)) for parameter in self.parameters}

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """What comes of a call: the value, something to be awaited for it, or a context manager of it."""
        return self._open(**arguments)


class Opened:
    """Values that providers have made, and what has to be left when they are not needed any more."""

    __slots__ = ("_entered", "values")

    def __init__(self, values: Values) -> None:
        self.values = values
        self._entered: list[tuple[bool, Any]] = []

    def make(self, step: Step) -> None:
        """Calls a plain provider."""
        made = step.provider.call({name: self.values[needed] for name, needed in step.arguments.items()})
        if step.provider.yields:
            manager, made = made, made.__enter__()
            self._entered.append((False, manager))
        self.values[step.provider] = made

    async def make_any(self, step: Step) -> None:
        """Calls any provider."""
        if not step.provider.is_async:
            return self.make(step)
        made = step.provider.call({name: self.values[needed] for name, needed in step.arguments.items()})
        if step.provider.yields:
            self.values[step.provider] = await made.__aenter__()
            self._entered.append((True, made))
        else:
            self.values[step.provider] = await made
        return None

    def make_here(self, step: Step, run: Run | None) -> None:
        """Calls any provider, where no event loop runs.

        Args:
            step: which.
            run: has an event loop run a coroutine; None where no provider is async.
        """
        if not step.provider.is_async:
            self.make(step)
        else:
            assert run is not None
            run(self.make_any(step))

    def leave_here(self, error: BaseException | None, run: Run | None) -> BaseException | None:
        """As ``leave``, where no event loop runs."""
        while self._entered:
            is_async, manager = self._entered.pop()
            try:
                if is_async:
                    assert run is not None
                    run(manager.__aexit__(*_of(error)))
                else:
                    manager.__exit__(*_of(error))
            except BaseException as raised:
                error = raised
        return error

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Leaves generators, the last first; each sees the error. Returns it, or that of one which could not be left.

        A provider cannot make a success of a job that has failed: what it swallows is raised all the same.
        """
        while self._entered:
            is_async, manager = self._entered.pop()
            try:
                if is_async:
                    await manager.__aexit__(*_of(error))
                else:
                    manager.__exit__(*_of(error))
            except BaseException as raised:
                error = raised
        return error


class Step:
    """A provider, and whose values it is called with."""

    __slots__ = ("arguments", "provider")

    def __init__(self, provider: Provider, arguments: dict[str, Provider]) -> None:
        self.provider = provider
        self.arguments = arguments


class Recipe:
    """How a task gets what is injected into it.

    Attributes:
        arguments: by parameter, whose value it gets.
        process: the providers of process scope that it needs, in the order in which they are called.
        job: those of job scope.
    """

    def __init__(self, arguments: dict[str, Provider], steps: list[Step]) -> None:
        self.arguments = arguments
        self.process = [step for step in steps if step.provider.scope == "process"]
        self.job = [step for step in steps if step.provider.scope == "job"]

    @property
    def before_thread(self) -> list[Step]:
        """The steps of a job in a thread that the event loop takes: async ones, and those that they need."""
        taken: set[Provider] = set()
        for step in reversed(self.job):
            if step.provider.is_async or step.provider in taken:
                taken |= {step.provider, *step.arguments.values()}
        return [step for step in self.job if step.provider in taken]

    def given(self, values: Values) -> dict[str, Any]:
        """What is injected into the function."""
        return {parameter: values[provider] for parameter, provider in self.arguments.items()}

    async def call(self, function: Callable[..., Any], values: Values) -> Any:
        """Calls an ``async def`` function, with a value of its own from each provider of job scope."""
        opened = Opened(dict(values))
        return await self.call_around(opened, self.job, lambda: function(**self.given(opened.values)))

    async def call_around(self, opened: Opened, steps: list[Step], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Calls a function that runs in a thread after these steps, which the event loop takes."""
        try:
            for step in steps:
                await opened.make_any(step)
            value = await call_next()
        except BaseException as error:
            await _left(opened, error)
            raise
        await _left(opened, None)
        return value

    def call_plain(
        self, function: Callable[..., Any], values: Values, steps: list[Step], run: Run | None = None
    ) -> Any:
        """Calls a plain function, where it runs, after these steps; the others have been taken. ``run`` as of ``make_here``."""
        opened = Opened(dict(values))
        try:
            for step in steps:
                opened.make_here(step, run)
            value = function(**self.given(opened.values))
        except BaseException as error:
            other = opened.leave_here(error, run)
            if other is not None and other is not error:
                raise other  # noqa: B904 (it happened while the first was handled, and says so)
            raise
        other = opened.leave_here(None, run)
        if other is not None:
            raise other
        return value


async def _left(opened: Opened, error: BaseException | None) -> None:
    other = await opened.leave(error)
    if other is not None and other is not error:
        raise other


@asynccontextmanager
async def made_for_all(step: Step, values: Values) -> AsyncIterator[None]:
    """Makes a value of process scope, and puts it where the others are."""
    opened = Opened(values)
    await opened.make_any(step)
    try:
        yield
    finally:
        await _left(opened, None)


class Providers:
    """The providers of an app."""

    def __init__(self) -> None:
        self._all: list[Provider] = []
        self._overridden: dict[Any, Provider] = {}

    def add(self, provider: Provider) -> None:
        """One more."""
        self._all.append(provider)

    def override(self, provided: Any, value: Any, tasks: Mapping[str, Task[Any, Any]]) -> None:
        """Gives a value of this type from now on, in place of its provider. For the testing kit.

        Raises:
            InvalidOption: nothing provides this type, and none of these tasks wants it.
        """

        def override() -> Any:
            return value

        by_type = self._by_type()
        wants = [
            _hint(task.function, parameter, f"task {name!r}")
            for name, task in tasks.items()
            for parameter in task.injected
        ]
        if _found(by_type, provided) is None and provided not in wants:
            known = ", ".join(sorted({_name(one) for one in (*by_type, *wants)})) or "none"
            raise InvalidOption(
                f"override({_name(provided)}, …): nothing provides it, and no task wants it; give the type as its provider or a "
                f"task has it. There are: {known}"
            )
        self._overridden[provided] = Provider(override, "process")

    def override_nothing(self) -> None:
        """Lets all providers make their values again."""
        self._overridden.clear()

    def recipes(self, tasks: Mapping[str, Task[Any, Any]]) -> dict[str, Recipe]:
        """How each of these tasks gets what is injected into it; those into which nothing is are not there.

        Raises:
            InvalidOption: a type has no provider, or two; one needs itself; one of process scope needs one of job scope.
        """
        if not any(task.injected for task in tasks.values()):
            return {}
        by_type = self._by_type()
        made: dict[str, Recipe] = {}
        for name, task in tasks.items():
            if task.injected:
                steps: list[Step] = []
                who = f"task {name!r}"
                wants = {parameter: _hint(task.function, parameter, who) for parameter in task.injected}
                arguments = self._steps(wants, who, by_type, steps, [])
                made[name] = Recipe(arguments, steps)
        return made

    def _by_type(self) -> dict[Any, Provider]:
        found: dict[Any, Provider] = {}
        for provider in self._all:
            provides = provider.provides()
            try:
                other = found.setdefault(provides, provider)
            except TypeError:
                raise InvalidOption(
                    f"{provider!r} provides {_name(provides)}, which cannot be looked up: it is not hashable"
                ) from None
            if other is not provider:
                raise InvalidOption(
                    f"{_name(provides)} has two providers, {other.name!r} and {provider.name!r}: keep one, or tell them apart "
                    "by Annotated[…, 'a name'] in both annotations"
                )
        return {**found, **self._overridden}

    def _steps(
        self, wants: dict[str, Any], who: str, by_type: dict[Any, Provider], steps: list[Step], above: list[Provider]
    ) -> dict[str, Provider]:
        """Adds the steps before these parameters have values; says which provider each has."""
        arguments: dict[str, Provider] = {}
        for parameter, wanted in wants.items():
            provider = _found(by_type, wanted)
            if provider is None:
                known = ", ".join(sorted(map(_name, by_type))) or "none"
                raise InvalidOption(
                    f"{who}: {parameter} is injected, and nothing provides {_name(wanted)}; write @app.provide for a function "
                    f"that returns it. There are providers of: {known}"
                )
            if provider in above:
                circle = [one.name for one in [*above[above.index(provider) :], provider]]
                raise InvalidOption(f"providers need each other in a circle: {' -> '.join(circle)}")
            if above and above[-1].scope == "process" and provider.scope == "job":
                raise InvalidOption(
                    f"{above[-1]!r} has scope 'process' and needs {provider!r} of scope 'job', whose value is gone after one "
                    "job; give both the same scope"
                )
            arguments[parameter] = provider
            if all(step.provider is not provider for step in steps):
                needed = self._steps(provider.wants(), repr(provider), by_type, steps, [*above, provider])
                steps.append(Step(provider, needed))
        return arguments


def _found(by_type: dict[Any, Provider], wanted: Any) -> Provider | None:
    try:
        return by_type.get(wanted)
    except TypeError:  # an annotation that is not hashable
        return None


def _injected(function: Callable[..., Any], name: str) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise InvalidOption(
                f"provider {name!r}: nobody gives it {parameter}; write {parameter} = Inject(), or another default"
            )
        if parameter.default is INJECTED and parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidOption(f"provider {name!r}: {parameter.name} must not be positional-only")
    return [parameter.name for parameter in parameters if parameter.default is INJECTED]


def _hint(function: Callable[..., Any], what: str, who: str) -> Any:
    inner = annotated(function)
    try:
        hints = typing.get_type_hints(inner, include_extras=True)
    except Exception as error:
        raise InvalidOption(
            f"{who}: its annotations cannot be resolved ({error}), so nobody can tell what is injected; import or define what "
            "they name at the top of its module, outside of `if TYPE_CHECKING:` and of functions"
        ) from None
    if what not in hints:
        remedy = "its return annotation must name the type that it provides" if what == "return" else f"annotate {what}"
        raise InvalidOption(f"{who}: {remedy}")
    return hints[what]


def _name(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else repr(hint)


def _of(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)
