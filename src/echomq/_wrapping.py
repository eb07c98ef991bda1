"""What stands around the call of a task's function: middleware, and what is injected. Looked up once, when workers start."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from echomq._injection import Opened, Recipe, Values
from echomq._worker.executors import is_async
from echomq.job import Job
from echomq.middleware import Around, CallNext
from echomq.worker import Call, Route

_Dress = Callable[[Job[Any], Call], Call]


class Wrapping:
    """A route to the same functions, with all that stands around them.

    Args:
        recipes: by name, the tasks into which something is injected.
        values: of process scope.
        around: the middleware.
        route: what it stands around.
    """

    def __init__(self, recipes: Mapping[str, Recipe], values: Values, around: Around | None, route: Route) -> None:
        self._route = route
        self._around = around
        self._dresses = {name: _dress(recipe, values) for name, recipe in recipes.items()}

    def __call__(self, job: Job[Any]) -> Call:
        """What to call for a job."""
        call = self._route(job)
        dress = self._dresses.get(job.name)
        if dress is not None:
            call = dress(job, call)
        if self._around is not None:
            inner = call.around
            around = functools.partial(self._around, job)
            call = msgspec.structs.replace(call, around=around if inner is None else _inside(around, inner))
        return call


def _inside(
    around: Callable[[CallNext], Awaitable[Any]], inner: Callable[[CallNext], Awaitable[Any]]
) -> Callable[[CallNext], Awaitable[Any]]:
    return lambda call_next: around(lambda: inner(call_next))


def _dress(recipe: Recipe, values: Values) -> _Dress:
    given = recipe.given(values) if not recipe.job else {}
    outside = recipe.before_thread
    inside = [step for step in recipe.job if step not in outside]

    def dress(job: Job[Any], call: Call) -> Call:
        function = call.function
        if not recipe.job:
            return msgspec.structs.replace(call, function=functools.partial(function, **given))
        if is_async(function):
            return msgspec.structs.replace(call, function=functools.partial(recipe.call, function, values))
        if not outside:
            return msgspec.structs.replace(
                call, function=functools.partial(recipe.call_plain, function, values, inside)
            )
        opened = Opened(dict(values))
        return msgspec.structs.replace(
            call,
            function=functools.partial(recipe.call_plain, function, opened.values, inside),
            around=functools.partial(recipe.call_around, opened, outside),
        )

    return dress
