"""The backend of Django's tasks framework that puts tasks into queues of EchoMQ."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from echomq.errors import InvalidOption
from echomq.integrations.django import _tasks
from echomq.integrations.django._app import get_app
from echomq.integrations.django._commit import add_in_transaction
from echomq.integrations.django._settings import Settings
from echomq.job import Job
from echomq.options import JobSpec, check_queue_name, to_seconds
from echomq.queue import Queue

if TYPE_CHECKING:
    from django.tasks.backends.base import BaseTaskBackend
else:
    BaseTaskBackend = _tasks.part("backends.base").BaseTaskBackend

_OPTIONS: Final = frozenset(
    {"attempts", "backoff", "remove_on_complete", "remove_on_fail", "stack_trace_limit", "expire_in", "keep_logs"}
)
_OWN: Final = frozenset({"timeout", "outbox"})


class EchoMQBackend(BaseTaskBackend):
    """Tasks of ``django.tasks`` (Django 6) or ``django-tasks`` (5.2) as jobs: ``manage.py echomq_worker`` runs them.

    ``OPTIONS`` are those of jobs (``attempts``, ``backoff``, ``remove_on_complete``, ``remove_on_fail``, ``stack_trace_limit``,
    ``expire_in``, ``keep_logs``), and ``timeout``: seconds that a run may take; ``outbox``: whether a task that is enqueued in a
    transaction goes into the outbox of that transaction.

    Example:
        >>> TASKS = {
        ...     "default": {
        ...         "BACKEND": "echomq.integrations.django.EchoMQBackend",
        ...         "QUEUES": ["default", "mails"],
        ...         "OPTIONS": {"attempts": 3, "backoff": 10, "timeout": 60},
        ...     }
        ... }
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    is_echomq = True
    """Not for users of EchoMQ. By which workers find the queues to work."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        given: Any = self.options
        faults = list(_faults(alias, given, self.queues))
        if faults:
            raise ImproperlyConfigured("; ".join(faults))
        self.timeout: float | None = None if given.get("timeout") is None else to_seconds(given["timeout"], "timeout")
        self._outbox = bool(given.get("outbox", False))
        self._job_options = {name: value for name, value in given.items() if name in _OPTIONS}

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """For ``manage.py check``: what the settings of a backend break is said when it is made; this looks at the app's."""
        try:
            get_app()
        except ImproperlyConfigured as error:
            return [checks.Error(str(error), id="echomq.E006")]
        return []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Puts the task into its queue. It is there when this returns; with ``outbox``, in a transaction, when that is committed.

        Raises:
            InvalidTask: the task does not fit. EncodingError, TypeError: an argument has no JSON form.
            ServerUnavailable: it was not added. ConnectionLost: it may have been added.
        """
        spec = self._spec(task, args, kwargs)
        if self._outbox and connections[Settings.read().outbox_database].in_atomic_block:
            add_in_transaction(spec, self._queue(task.queue_name))
            return self._enqueued(self._written(task, spec))
        queue = self._queue(task.queue_name)
        return self._enqueued(_tasks.result_of(task, self._call(queue.add, spec), "waiting"))

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """The same in an event loop. No transaction can be open there."""
        spec = self._spec(task, args, kwargs)
        job = await self._queue(task.queue_name).add(spec)
        result = _tasks.result_of(task, job, "waiting")
        await _tasks.atell(_tasks.part("signals").task_enqueued, type(self), result)
        return result

    def get_result(self, result_id: str) -> Any:
        """What became of a task, as long as its job is kept: a day, if ``remove_on_complete`` says nothing else.

        Raises:
            TaskResultDoesNotExist: there is no such job, or no more.
        """
        queue, job_id = self._place(result_id)
        return self._result(result_id, self._call(queue.get_job, job_id))

    async def aget_result(self, result_id: str) -> Any:
        """The same in an event loop."""
        queue, job_id = self._place(result_id)
        return self._result(result_id, await queue.get_job(job_id))

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _spec(self, task: Any, args: Any, kwargs: Any) -> JobSpec:
        self.validate_task(task)
        data = _tasks.data_of(task, args, kwargs)
        normal = {name: _tasks.normalize(data[name]) for name in ("args", "kwargs")}
        after = task.run_after
        return JobSpec(
            task.module_path,
            {**data, **normal},
            job_id=uuid.uuid4().hex,  # of our own, so that no reply that is lost leaves a second job
            at=timezone.make_aware(after) if after is not None and timezone.is_naive(after) else after,
            priority=_tasks.MIDDLE_PRIORITY - int(task.priority),
            **self._job_options,
        )

    def _written(self, task: Any, spec: JobSpec) -> Any:
        base, data = _tasks.part("base"), spec.data
        assert isinstance(data, dict)
        return base.TaskResult(
            task=task, id=f"{task.queue_name}:{spec.job_id}", status=base.TaskResultStatus.READY, enqueued_at=timezone.now(),
            started_at=None, finished_at=None, last_attempted_at=None, args=data["args"], kwargs=data["kwargs"],
            backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip

    def _enqueued(self, result: Any) -> Any:
        _tasks.tell(_tasks.part("signals").task_enqueued, type(self), result)
        return result

    def _queue(self, name: str) -> Queue:
        return get_app().queue(name)

    def _call(self, verb: Any, *args: Any) -> Any:
        return get_app().connection.portal.call(verb, *args)

    def _place(self, result_id: str) -> tuple[Queue, str]:
        name, _, job_id = str(result_id).partition(":")
        if not job_id or (self.queues and name not in self.queues):
            raise _tasks.part("exceptions").TaskResultDoesNotExist(result_id)
        try:
            return self._queue(name), job_id
        except InvalidOption:
            raise _tasks.part("exceptions").TaskResultDoesNotExist(result_id) from None

    def _result(self, result_id: str, job: Job[Any] | None) -> Any:
        task = _tasks.task_of(job) if job is not None and _tasks.is_one(job.data) else None
        if job is None or task is None:
            raise _tasks.part("exceptions").TaskResultDoesNotExist(result_id)
        return _tasks.result_of(task, job, job.state)


def _faults(alias: str, options: Any, queues: Iterable[str]) -> Iterable[str]:
    place = f"TASKS[{alias!r}]['OPTIONS']"
    if not isinstance(options, Mapping):
        yield f"{place} = {options!r:.80}: must be a dict"
        return
    known = _OPTIONS | _OWN
    strange = [str(name) for name in options if name not in known]
    if strange:
        yield f"{place}[{strange[0]!r}]: is no option; there are: {', '.join(sorted(known))}"
        return
    try:
        JobSpec("check", **{name: value for name, value in options.items() if name in _OPTIONS})
        if options.get("timeout") is not None:
            to_seconds(options["timeout"], "timeout", least=0.001)
        for name in queues:
            check_queue_name(name, hash_tag=False)
    except InvalidOption as error:
        yield f"TASKS[{alias!r}]: {error}"
