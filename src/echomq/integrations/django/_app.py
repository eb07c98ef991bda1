"""The app of a Django project."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections

from echomq._worker.executors import is_async
from echomq.app import EchoMQ
from echomq.errors import InvalidOption
from echomq.integrations.django import _tasks
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
        if getattr(call, "process", False):
            return call  # a child has connections of its own
        around = _around_async if is_async(call.function) else _around_plain
        return msgspec.structs.replace(call, function=functools.partial(around, call.function))


def _around_plain(function: Callable[[], Any]) -> Any:
    close_old_connections()
    try:
        return function()
    finally:
        close_old_connections()


async def _around_async(function: Callable[[], Any]) -> Any:
    """A thread of its own for what a job does with the database, as a request of ASGI has; none where it does nothing."""
    context = ThreadSensitiveContext()
    async with context:
        try:
            return await function()
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
