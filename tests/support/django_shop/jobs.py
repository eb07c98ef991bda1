"""Tasks of Django's own framework. Its module must not be imported before Django is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connection

from echomq.errors import Unrecoverable
from echomq.integrations.django import _tasks

if TYPE_CHECKING:
    from django.tasks import task
else:
    task = __import__(_tasks.framework(), fromlist=["task"]).task


class Refused(Exception):
    """An error of the shop's own."""


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="mails", priority=10)
def mail(to: str) -> str:
    return f"to {to}"


@task(takes_context=True)
def attempt(context: Any, extra: str) -> list[Any]:
    result = context.task_result
    return [context.attempt, str(result.status), result.id, extra]


@task
def fail(with_what: str) -> None:
    raise Refused(f"{with_what}\nin two lines: really")


@task
def give_up() -> None:
    raise Unrecoverable("no")


@task
def strange() -> object:
    return object()


@task
async def count_orders() -> int:
    from tests.support.django_shop.models import Order

    return await Order.objects.acount()


@task
def connection_is_usable() -> bool:
    connection.ensure_connection()
    return bool(connection.is_usable())
