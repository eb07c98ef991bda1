"""How a process of its own finds the task that it is to run, and runs it."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, cast

import msgspec

from echomq._log import running_job
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
        shows: whether an error may show what does not fit.
        app: module and name of the app that has it, if that stands at the top of a module.
    """

    name: str
    module: str
    qualname: str
    pass_job: bool
    extra: Extra
    shows: bool
    app: tuple[str, str] | None

    @classmethod
    def of(cls, task: Task[Any, Any], app: EchoMQ) -> InProcess:
        """Raises InvalidOption: another process could not find it."""
        function = task.function
        extra, shows = task.extra or app.extra, app._payloads is None
        place = cls(task.name, function.__module__, function.__qualname__, task.pass_job, extra, shows, _place_of(app))
        try:
            found = _named(sys.modules[place.module], place.qualname)
        except (KeyError, AttributeError):
            found = None
        if place.app is None and found is not function and getattr(found, "function", None) is not function:
            raise InvalidOption(
                f"task {task.name!r} has process=True, and a process of its own would not find {function!r}: neither does its "
                f"app stand at the top of a module, nor the function, as {place.qualname} of {place.module}; define it there"
            )
        return place

    def load(self) -> None:
        """In the process: imports what it takes."""
        _task_at(self)

    def run(self) -> Any:
        """In the process: runs the current job."""
        job, task = cast("Job[Any]", running_job.get()), _task_at(self)
        before = (job,) if task.pass_job else ()
        return task.function(*before, **task.arguments(job.data, show=self.shows))

    def misfit(self, value: Any) -> str | None:
        """In the process: as ``Task.misfit``."""
        return _task_at(self).misfit(value)


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


def _place_of(app: EchoMQ) -> tuple[str, str] | None:
    """The module that has the app, and under which name."""
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return name, attribute
    return None
