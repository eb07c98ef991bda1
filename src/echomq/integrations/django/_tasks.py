"""Jobs of the ``django.tasks`` framework: how they stand in a queue, and how a worker runs them.

Django 6 has the framework itself; for Django 5.2 the package ``django-tasks`` has it, with the same names.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from echomq._log import logger
from echomq.errors import RateLimited, RetryLater, Unrecoverable
from echomq.job import Job, JobRecord
from echomq.models import JobState
from echomq.retry_policy import RetryPolicy
from echomq.worker import Call

_MARK: Final = "django"
_FIELDS: Final = {"args", "kwargs", _MARK}
_STATUS: Final[Mapping[JobState, str]] = {"active": "RUNNING", "completed": "SUCCESSFUL", "failed": "FAILED"}
_ERROR_LINE: Final = re.compile(r"([A-Za-z_][\w.]*)(:|$)")

MIDDLE_PRIORITY: Final = 101
"""Django's priorities go from -100 to 100, higher first, and a task without one has 0, which runs before -1. Here lower runs
first, and what has none runs before all that have one: so each task gets one."""


@functools.cache
def framework() -> str:
    """The name of its package.

    Raises:
        ModuleNotFoundError: there is none; says what to install.
    """
    for name in ("django.tasks", "django_tasks"):
        try:
            importlib.import_module(f"{name}.base")
        except ModuleNotFoundError:
            continue
        return name
    raise ModuleNotFoundError("the tasks framework is part of Django from 6.0 on; for 5.2: pip install django-tasks")


def part(name: str) -> ModuleType:
    """A module of the framework."""
    return importlib.import_module(f"{framework()}.{name}")


def normalize(value: Any) -> Any:
    """A result as JSON has it; what has no such form raises, as the framework wants."""
    place = "django.utils.json" if framework() == "django.tasks" else "django_tasks.utils"
    return importlib.import_module(place).normalize_json(value)


def queues() -> list[str]:
    """The queues of those backends that are ours."""
    if not getattr(settings, "TASKS", None):
        return []
    try:
        backends = importlib.import_module(framework()).task_backends
    except ModuleNotFoundError:
        return []
    found = [backends[alias] for alias in settings.TASKS]
    return [name for backend in found if getattr(backend, "is_echomq", False) for name in backend.queues]


# -- in a queue ------------------------------------------------------------------------------------------------------------


def data_of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A job's data."""
    about = {"backend": task.backend, "priority": task.priority, "takes_context": task.takes_context}
    if task.run_after is not None:
        about["run_after"] = task.run_after.isoformat()
    return {"args": list(args), "kwargs": dict(kwargs), _MARK: about}


def is_one(data: Any) -> bool:
    """Whether a job with these data is a task of the framework."""
    return isinstance(data, dict) and set(data) == _FIELDS and isinstance(data[_MARK], dict)


def task_of(job: JobRecord[Any]) -> Any:
    """The task of a job, as it was enqueued; None if the name of the job leads to none."""
    try:
        found = import_string(job.name)
    except ImportError:
        return None
    if not isinstance(found, part("base").Task):
        return None
    data: Any = job.data
    about = data[_MARK]
    after = about.get("run_after")
    return found.using(
        priority=about["priority"],
        queue_name=job.queue_name,
        run_after=None if after is None else datetime.fromisoformat(after),
        backend=about["backend"],
    )


def result_of(task: Any, job: JobRecord[Any], state: JobState | None) -> Any:
    """What the framework knows of a job: a ``TaskResult``."""
    base = part("base")
    data: Any = job.data
    result = base.TaskResult(
        task=task,
        id=f"{job.queue_name}:{job.id}",
        status=base.TaskResultStatus(_STATUS.get(state or "waiting", "READY")),
        enqueued_at=_moment(job.timestamp),
        started_at=_moment(job.processed_on),
        finished_at=_moment(job.finished_on) if state in ("completed", "failed") else None,
        last_attempted_at=_moment(job.processed_on),
        args=data["args"],
        kwargs=data["kwargs"],
        backend=task.backend,
        errors=_errors(job, state),
        # Only the last of them is on record.
        worker_ids=[job.processed_by or "unknown"] * job.attempts_started,
    )
    if state == "completed":
        object.__setattr__(result, "_return_value", job.return_value)
    return result


def _errors(job: JobRecord[Any], state: JobState | None) -> list[Any]:
    task_error = part("base").TaskError
    found = [
        task_error(exception_class_path=_class_path(text), traceback=text) for text in job.stacktrace if text.strip()
    ]
    if state == "failed" and not found:  # it was never run, or its workers died
        found.append(
            task_error(exception_class_path="echomq.errors.Unrecoverable", traceback=job.failed_reason or "unknown")
        )
    return found


def _class_path(trace: str) -> str:
    """The class of the error, which stands in the first line after the last frame."""
    lines = trace.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    for line in lines[frames[-1] + 1 if frames else 0 :]:
        found = _ERROR_LINE.match(line)
        if found is not None:
            name = found[1]
            return name if "." in name else f"builtins.{name}"
    return "builtins.Exception"


def _moment(value: datetime | None) -> datetime | None:
    return value if value is None or settings.USE_TZ else timezone.make_naive(value)


# -- in a worker -----------------------------------------------------------------------------------------------------------


def call_for(job: Job[Any]) -> Call | None:
    """What is to be called for a job; None if this program does not know its task."""
    task = task_of(job)
    if task is None:
        return None
    run = _run_async if inspect.iscoroutinefunction(task.func) else _run_plain
    result = result_of(task, job, "active")
    timeout = task.get_backend().timeout
    return Call(functools.partial(run, task, result, job), timeout)


def _run_plain(task: Any, result: Any, job: Job[Any]) -> Any:
    signals, sender = part("signals"), type(task.get_backend())
    _tell_robustly(signals.task_started, sender, result)
    try:
        value = normalize(task.func(*_arguments(task, result), **result.kwargs))
    except Exception as error:
        if _has_failed(result, job, error):
            _tell_robustly(signals.task_finished, sender, result)
        raise
    _has_succeeded(result, value)
    _tell_robustly(signals.task_finished, sender, result)
    return value


async def _run_async(task: Any, result: Any, job: Job[Any]) -> Any:
    signals, sender = part("signals"), type(task.get_backend())
    await _in_thread(_tell_robustly, signals.task_started, sender, result)
    try:
        value = normalize(await task.func(*_arguments(task, result), **result.kwargs))
    except Exception as error:
        if _has_failed(result, job, error):
            await _in_thread(_tell_robustly, signals.task_finished, sender, result)
        raise
    _has_succeeded(result, value)
    await _in_thread(_tell_robustly, signals.task_finished, sender, result)
    return value


def tell(signal: Any, sender: type, result: Any) -> None:
    """Calls the receivers of a signal; an error of theirs is the caller's."""
    signal.send(sender, task_result=result)


async def atell(signal: Any, sender: type, result: Any) -> None:
    """The same in an event loop."""
    await _in_thread(tell, signal, sender, result)


def _tell_robustly(signal: Any, sender: type, result: Any) -> None:
    """The same in a run; an error of theirs is logged, by Django, and changes nothing of the run."""
    try:
        signal.send_robust(sender, task_result=result)
    except Exception:  # Django's line has the name of the receiver, and not each has one
        logger.exception("a receiver of a signal of task %s has failed", result.id)


async def _in_thread(step: Callable[[Any, type, Any], None], signal: Any, sender: type, result: Any) -> None:
    """Receivers may use the database: they get a thread, unless there are none but Django's own, which log."""
    if all(_is_djangos(receiver) for receivers in signal._live_receivers(sender) for receiver in receivers):
        step(signal, sender, result)
    else:
        await sync_to_async(step)(signal, sender, result)


def _is_djangos(receiver: Callable[..., Any]) -> bool:
    return getattr(receiver, "__module__", "").startswith(framework())


def _arguments(task: Any, result: Any) -> list[Any]:
    context = [part("base").TaskContext(task_result=result)] if task.takes_context else []
    return [*context, *result.args]


def _has_succeeded(result: Any, value: Any) -> None:
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", part("base").TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "_return_value", value)


def _has_failed(result: Any, job: Job[Any], error: Exception) -> bool:
    """Notes the failure if it is the last, so that no attempt follows."""
    if isinstance(error, (RetryLater, RateLimited)):
        return False
    is_last = job.attempts_made + 1 >= max(job.opts.attempts, 1)
    if not is_last and not isinstance(error, Unrecoverable) and RetryPolicy.DEFAULT.kind(error) != "permanent":
        return False
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", part("base").TaskResultStatus.FAILED)
    trace = "".join(traceback.format_exception(error))
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    result.errors.append(part("base").TaskError(exception_class_path=path, traceback=trace))
    return True
