"""Jobs that belong to a transaction."""

from __future__ import annotations

from functools import partial
from typing import Any, ParamSpec

from django.db import connections, transaction

from echomq.errors import InvalidOption
from echomq.integrations.django._outbox import get_outbox
from echomq.integrations.django._settings import Settings
from echomq.options import JobSpec
from echomq.queue import Queue
from echomq.task import Task

P = ParamSpec("P")


def enqueue_on_commit(task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
    """Enqueues a task when the transaction that is open now has been committed; without one, at once.

    The arguments are checked and encoded now. If the process dies right after the commit, or the queue's server is away at that
    moment, the job is lost: in the second case the error is raised to whoever ends the transaction. Where that must not be,
    use ``enqueue_in_transaction``.

    Raises:
        TypeError: the arguments do not fit the task.

    Example:
        >>> with transaction.atomic():
        ...     user = User.objects.create(name="Ada")
        ...     enqueue_on_commit(welcome, user.pk)
    """
    transaction.on_commit(partial(_enqueue, task, task.spec(*args, **kwargs)))


def _enqueue(task: Task[Any, Any], spec: JobSpec) -> None:
    app = task.app
    app.connection.portal.call(app.queue(task.queue).add, spec)


def enqueue_in_transaction(task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
    """Writes the job into the outbox table, in the transaction that is open now: both are committed, or neither.

    ``manage.py echomq_outbox relay`` sends it when it has been committed, whatever happens meanwhile (docs/outbox.md).

    Returns:
        The id that the job will have.

    Raises:
        TypeError: the arguments do not fit the task. EncodingError: one has no JSON form.
        InvalidOption: no transaction is open.

    Example:
        >>> with transaction.atomic():
        ...     order = Order.objects.create(number=17)
        ...     enqueue_in_transaction(mail_receipt, order.pk)
    """
    return add_in_transaction(task.spec(*args, **kwargs), task.app.queue(task.queue))


def add_in_transaction(spec: JobSpec, queue: Queue) -> str:
    """Not for users of EchoMQ. The same for a job of any kind."""
    alias = Settings.read().outbox_database
    connection = connections[alias]
    if not connection.in_atomic_block:
        raise InvalidOption(
            f"no transaction of the database {alias!r} is open, so the job would be committed without what it belongs to: write "
            f"`with transaction.atomic({'' if alias == 'default' else repr(alias)}):` around both"
        )
    return get_outbox().add(connection, spec, queue=queue)[0]
