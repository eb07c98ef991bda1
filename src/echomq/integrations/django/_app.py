"""The app of a Django project."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from echomq._worker.executors import is_async
from echomq.app import EchoMQ
from echomq.errors import InvalidOption
from echomq.integrations.django import _process, _tasks
from echomq.integrations.django._settings import Settings
from echomq.job import Job
from echomq.worker import Call


class DjangoEchoMQ(EchoMQ):
    """An app whose jobs find their database connections as a request does: broken and old ones are closed before and after.

    It also works the jobs of the ``django.tasks`` backend.
    """

    @property
    def queue_names(self) -> list[str]:
        """The queues that its tasks name, and those of the ``django.tasks`` backend; sorted."""
        return sorted({*super().queue_names, *_tasks.queues()})

    def _route(self, job: Job[Any]) -> Call:
        if job.name not in self._tasks and _tasks.is_one(job.data):
            call = _tasks.call_for(job) or super()._route(job)
        else:
            call = super()._route(job)
        if not call.process and is_async(call.function):
            return msgspec.structs.replace(call, function=functools.partial(_around, call.function))
        return msgspec.structs.replace(call, function=functools.partial(_process.run, call.function))

    def _loads(self, queue: str) -> list[Callable[[], object]] | None:
        loads = super()._loads(queue)
        return loads and [_process.set_up, *loads]


async def _around(function: Callable[..., Any], /, **injected: Any) -> Any:
    """A thread of its own for what a job does with the database, as a request of ASGI has; none where it does nothing."""
    context = ThreadSensitiveContext()
    async with context:
        try:
            return await function(**injected)
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(connections.close_all)()


@functools.cache
def get_app() -> EchoMQ:
    """The app of this project, as ``settings.ECHOMQ`` says; always the same. Nothing connects.

    Raises:
        ImproperlyConfigured: a setting breaks a rule.

    Example:
        >>> app = get_app()
        >>> @app.task(queue="mails", attempts=5)
        ... def welcome(user_id: int) -> None: ...
    """
    found = Settings.read()
    try:
        return DjangoEchoMQ(found.url, prefix=found.prefix, hash_tag=found.hash_tag, **found.options)
    except InvalidOption as error:
        raise ImproperlyConfigured(f"ECHOMQ: {error}") from error
    except TypeError as error:
        raise ImproperlyConfigured(f"ECHOMQ['OPTIONS']: {error}; they are arguments of EchoMQ") from error
