"""Django in the process of the tests: set up once, with databases that are added when a test needs them."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

QUEUES = ["default", "mails"]


def set_up() -> None:
    """Sets Django up, if it is not."""
    import pymysql
    from django.apps import apps
    from django.conf import settings

    if settings.configured:
        assert apps.ready
        return
    pymysql.version_info = (2, 2, 7, "final", 0)  # of mysqlclient, for which it stands in
    pymysql.install_as_MySQLdb()
    installed = ["echomq.integrations.django", "tests.support.django_shop"]
    from echomq.integrations.django import _tasks

    if _tasks.framework() == "django_tasks":
        installed.append("django_tasks")
    settings.configure(
        SECRET_KEY="tests",
        INSTALLED_APPS=installed,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        ECHOMQ={"URL": "redis://127.0.0.1:1", "TASKS_MODULE": None},
        TASKS={"default": {"BACKEND": "echomq.integrations.django.EchoMQBackend", "QUEUES": QUEUES}},
        USE_TZ=True,
    )
    import django

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        django.setup()


def of_sqlite(path: Path) -> dict[str, Any]:
    """An entry of ``DATABASES``."""
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 20}}


def of_postgresql(host: str) -> dict[str, Any]:
    """An entry of ``DATABASES``."""
    return {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "echomq", "HOST": host}


def of_mariadb(path: str) -> dict[str, Any]:
    """An entry of ``DATABASES``."""
    return {"ENGINE": "django.db.backends.mysql", "NAME": "test", "USER": "root", "HOST": path}


@contextmanager
def site(url: str, database: dict[str, Any], **given: Any) -> Iterator[None]:
    """A project with this server and this database, whose tables are there and empty."""
    set_up()
    from django.core.management import call_command
    from django.db import connections
    from django.test.utils import override_settings

    from echomq.integrations.django import get_app, get_outbox
    from tests.support.django_shop.models import Order

    connections["default"].close()
    del connections["default"]
    connections.settings["default"] = connections.configure_settings({"default": database})["default"]
    get_app.cache_clear()
    get_outbox.cache_clear()
    with override_settings(ECHOMQ={"URL": url, "TASKS_MODULE": None, **given}):
        tables = connections["default"].introspection.table_names()
        if "echomq_outbox" not in tables:
            call_command("migrate", verbosity=0)
        with connections["default"].schema_editor() as editor:
            if Order._meta.db_table in tables:
                editor.delete_model(Order)
            editor.create_model(Order)
        with connections["default"].cursor() as cursor:
            cursor.execute("DELETE FROM echomq_outbox")
        try:
            yield
        finally:
            get_app().sync.close()
            asyncio.run(get_outbox().close())
            connections.close_all()
            get_app.cache_clear()
            get_outbox.cache_clear()


def in_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Carries it out in an event loop of its own, and closes there what it opened."""

    async def whole() -> T:
        from echomq.integrations.django import get_app, get_outbox

        try:
            return await work()
        finally:
            await get_outbox().close()
            await get_app().close()

    return asyncio.run(whole())
