"""What was enqueued, in words that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from echomq._store.codec import decode_json, encode_json
from echomq.errors import BrokenKey, InvalidOption
from echomq.job import Job
from echomq.models import JobOptions
from echomq.options import shown
from echomq.task import Task

_MOST_SHOWN: Final = 20
_WIDTH: Final = 100
_OF_JOB: Final = frozenset({"delay", "priority", "state"})


class Wanted:
    """What a job is to be like.

    Args:
        task: a task, or its name; None for any.
        data: some of its arguments, or all.
        queue: the name of its queue; None for any.
        options: of ``JobOptions``, by their names.
    """

    def __init__(
        self,
        task: Task[..., Any] | str | None,
        data: Mapping[str, Any] | None,
        queue: str | None,
        options: Mapping[str, Any],
    ) -> None:
        given: object = task
        if given is not None and not isinstance(given, (Task, str)):
            instead = f"; write {getattr(given, '__name__', 'task')!r}, the name of its task" if callable(given) else ""
            raise InvalidOption(f"task={shown(given)}: must be a task, or the name of one{instead}")
        if data is not None and not isinstance(data, Mapping):
            raise InvalidOption(f"data={shown(data)}: must be a mapping of arguments, such as {{'learner': 7}}")
        if isinstance(task, Task):
            _check_arguments(task, data or {})
        self.name = task.name if isinstance(task, Task) else task
        self.data: dict[str, Any] = {} if data is None else decode_json(encode_json(dict(data), "data"))
        self.queue = queue
        for name in options:
            if name not in _OF_JOB and name not in JobOptions.__struct_fields__:
                known = ", ".join(sorted({*_OF_JOB, *JobOptions.__struct_fields__}))
                raise InvalidOption(f"{name}={shown(options[name])}: is no option of a job; there are {known}")
        self.options = dict(options)

    def __str__(self) -> str:
        what = "a job" if self.name is None else f"a job of task {self.name!r}"
        if self.data:
            what += " with " + _arguments(self.data)
        if self.queue is not None:
            what += f" in queue {self.queue!r}"
        if self.options:
            what += " and the options " + ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return what

    def differences(self, job: Job[Any]) -> list[str]:
        """In what a job is otherwise; empty if it is what was wanted."""
        found = []
        if self.name is not None and job.name != self.name:
            found.append(f"its task is {job.name!r}")
        if self.queue is not None and job.queue_name != self.queue:
            found.append(f"its queue is {job.queue_name!r}")
        data = _data(job)
        for name, value in self.data.items():
            if not isinstance(data, dict) or name not in data:
                found.append(f"it has no {name}")
            elif data[name] != value:
                found.append(f"{name} is {_short(data[name])}, not {_short(value)}")
        for name, value in self.options.items():
            has = getattr(job, name) if name in _OF_JOB else getattr(job.opts, name)
            if has != value:
                found.append(f"{name} is {_short(has)}, not {_short(value)}")
        return found


def complaint(wanted: Wanted, count: int | None, found: Sequence[Job[Any]], every: Sequence[Job[Any]]) -> str:
    """What to say when something else was enqueued."""
    if count is None:
        head = f"{wanted} was not enqueued."
    else:
        head = f"{wanted} was enqueued {_times(len(found))}, and should have been {_times(count)}."
    if not every:
        return f"{head} Nothing was enqueued at all."
    lines = [head, "Enqueued was:" if len(found) == len(every) else "Enqueued was, the likeliest first:"]
    ranked = sorted(every, key=lambda job: (job.name != wanted.name, len(wanted.differences(job))))
    for job in ranked[:_MOST_SHOWN]:
        lines.append(f"  {describe(job)}")
        differences = wanted.differences(job)
        if differences and job.name == wanted.name:
            lines.append(f"      {'; '.join(differences)}")
    if len(every) > _MOST_SHOWN:
        lines.append(f"  … and {len(every) - _MOST_SHOWN:,} more")
    return "\n".join(lines)


def describe(job: Job[Any]) -> str:
    """A job in a line."""
    data = _data(job)
    arguments = _arguments(data) if isinstance(data, dict) else _short(data)
    more = [f"queue {job.queue_name!r}", str(job.state).replace("_", "-")]
    if job.delay and job.state == "delayed":
        more.append(f"delay {job.delay:g} s")
    if job.priority:
        more.append(f"priority {job.priority}")
    if job.state == "failed":
        more.append(_short(job.failed_reason))
    return f"{job.name}({arguments}) [{', '.join(more)}]"


def _check_arguments(task: Task[..., Any], data: Mapping[str, Any]) -> None:
    """Refuses a name that no job of the task has, which would be a test that can only fail, or, with count=0, cannot."""
    for name in data:
        if not task.takes(name):
            known = ", ".join(task.argument_names) or "none"
            raise InvalidOption(
                f"data={shown(data)}: task {task.name!r} has no argument {name!r}; its arguments are: {known}. "
                f"For a job that somebody adds with other data write the task's name, {task.name!r}"
            )


def _data(job: Job[Any]) -> Any:
    try:
        return job.data
    except BrokenKey:
        return {}


def _arguments(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in data.items())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _times(count: int) -> str:
    return {0: "0 times", 1: "once", 2: "twice"}.get(count, f"{count} times")
