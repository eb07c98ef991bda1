"""How a process of its own finds the task that it is to run, and runs it."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import importlib
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

import msgspec

from echomq._injection import Opened
from echomq._log import logger, running_job
from echomq.errors import InvalidOption
from echomq.job import Job
from echomq.options import Extra
from echomq.task import Place, PlainTask, Task

if TYPE_CHECKING:
    from echomq.app import EchoMQ


class InProcess(msgspec.Struct, frozen=True):
    """A task as it is sent to a process.

    Attributes:
        name: of the task.
        module, qualname: of its function.
        pass_job: whether the function takes the job.
        extra: what becomes of a job with more than the function's arguments.
        app: module and name of the app that has it, if that stands at the top of a module.
    """

    name: str
    module: str
    qualname: str
    pass_job: bool
    extra: Extra
    app: tuple[str, str] | None

    @classmethod
    def of(cls, task: Task[Any, Any], app: EchoMQ) -> InProcess:
        """Raises InvalidOption: another process could not find it."""
        function = task.function
        extra = task.extra or app.extra
        app_place = _place_of(app, function.__module__)
        place = cls(task.name, function.__module__, function.__qualname__, task.pass_job, extra, app_place)
        try:
            found = _named(sys.modules[place.module], place.qualname)
        except (KeyError, AttributeError):
            found = None
        if place.app is None and found is not function and getattr(found, "function", None) is not function:
            raise InvalidOption(
                f"task {task.name!r} has process=True, and a process of its own would not find {function!r}: neither does its "
                f"app stand at the top of a module, nor the function, as {place.qualname} of {place.module}; define it there"
            )
        if task.injected and place.app is None:
            raise InvalidOption(
                f"task {task.name!r} has process=True, and {', '.join(task.injected)} is injected: a process of its own would "
                "not find the providers, since its app does not stand at the top of a module; let it stand there"
            )
        return place

    def load(self) -> None:
        """In the process: imports what it takes, and makes what is injected and is good for all jobs."""
        task = _task_at(self)
        if task.injected:
            _injecting(task.app).prepare(task)

    def run(self) -> Any:
        """In the process: runs the current job."""
        job, task = cast("Job[Any]", running_job.get()), _task_at(self)
        before = (job,) if task.pass_job else ()
        function = functools.partial(task.function, *before, **task.arguments(job.data, decoded=job._has_codec))
        return _injecting(task.app).call(task, function) if task.injected else function()

    def misfit(self, value: Any) -> str | None:
        """In the process: as ``Task.misfit``."""
        return _task_at(self).misfit(value)


class _Injecting:
    """Providers in a process of its own: those of process scope have values here, which are taken back when it ends."""

    def __init__(self, app: EchoMQ) -> None:
        tasks = {name: task for name, task in app.tasks.items() if task.process}
        self._recipes = app._lifecycle.providers.recipes(tasks)
        self._shared = Opened({})
        self._runner = asyncio.Runner()  # makes its event loop when it is first needed
        atexit.register(self._close)

    def prepare(self, task: Task[Any, Any]) -> None:
        """Makes what is good for all jobs of a task."""
        for step in self._recipes[task.name].process:
            if step.provider not in self._shared.values:
                self._shared.make_here(step, self._run)

    def call(self, task: Task[Any, Any], function: Callable[..., Any]) -> Any:
        """Calls a function with what is injected into it."""
        self.prepare(task)
        recipe = self._recipes[task.name]
        return recipe.call_plain(function, self._shared.values, recipe.job, self._run)

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(what, context=contextvars.copy_context())  # which knows the job

    def _close(self) -> None:
        error = self._shared.leave_here(None, self._run)
        if error is not None:
            logger.error("what is injected could not be taken back in order", exc_info=error)
        self._runner.close()


@functools.cache
def _injecting(app: EchoMQ) -> _Injecting:
    return _Injecting(app)


@functools.cache
def _task_at(place: InProcess) -> Task[Any, Any]:
    module = importlib.import_module(place.module)  # first of all: it may give its tasks to the app of another
    if place.app is not None:
        app: EchoMQ = _named(importlib.import_module(place.app[0]), place.app[1])
        found = app.tasks.get(place.name)
        if found is not None:
            return found
    function = _named(module, place.qualname)
    if isinstance(function, Task):
        return function
    # The app that made a task of it is not known here; what it takes to run it is.
    return PlainTask(
        Place(),
        function,
        name=place.name,
        queue="",
        timeout=None,
        pass_job=place.pass_job,
        options={},
        extra=place.extra,
    )


def _named(module: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        module = getattr(module, part)
    return module


def _place_of(app: EchoMQ, first: str) -> tuple[str, str] | None:
    """The module that has the app, and under which name. It is looked for in the module ``first`` first of all.

    And in the main module last: a process that needs that one runs the start script again.
    """
    for name in (first, *(name for name in list(sys.modules) if name != "__main__"), "__main__"):
        for attribute, value in list(getattr(sys.modules.get(name), "__dict__", {}).items()):
            if value is app:
                return name, attribute
    return None
