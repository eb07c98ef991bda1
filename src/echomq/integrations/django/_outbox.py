"""The outbox of a Django project: its table is a model, its database one of ``DATABASES``."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction

from echomq._transaction import NO_TRANSACTION, Dialect, Transaction
from echomq.errors import InvalidOption
from echomq.integrations.django._app import get_app
from echomq.integrations.django._settings import Settings
from echomq.outbox import OneConnection, Outbox, Relay

T = TypeVar("T")

_DIALECTS: Final[dict[str, Dialect]] = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql"}
_PLACE: Final = re.compile(r"\{\}")


class DjangoTransaction:
    """The transaction that is open in one of Django's connections."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        dialect = _DIALECTS.get(connection.vendor)
        if dialect is None:
            raise InvalidOption(
                f"database {connection.alias!r}: an outbox can be in SQLite, PostgreSQL, MySQL or MariaDB, and this is "
                f"{connection.vendor!r}; set ECHOMQ['OUTBOX_DATABASE']"
            )
        self.dialect: Dialect = dialect
        self._savepoint: Any = None

    def savepoint(self) -> None:
        self._savepoint = self._connection.savepoint()

    def keep(self) -> None:
        if self._savepoint is not None:
            self._connection.savepoint_commit(self._savepoint)

    def undo(self) -> None:
        if self._savepoint is not None:
            self._connection.savepoint_rollback(self._savepoint)

    def flush(self) -> bool:
        return True

    def change(self, statement: str, *values: str) -> int:
        with self._carried_out(statement, values) as cursor:
            return int(cursor.rowcount)

    def look_up(self, statement: str, *values: str) -> tuple[Any] | None:
        with self._carried_out(statement, values) as cursor:
            row = cursor.fetchone()
            return None if row is None else (row[0],)

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with self._carried_out(statement, values) as cursor:
            return [tuple(row) for row in cursor.fetchall()]

    @contextlib.contextmanager
    def _carried_out(self, statement: str, values: tuple[str, ...]) -> Iterator[Any]:
        with self._connection.cursor() as cursor:
            # Without values none are passed: a driver then leaves the text alone.
            cursor.execute(*((_PLACE.sub("%s", statement), values) if values else (statement,)))
            yield cursor


class DjangoDatabase(OneConnection):
    """One of ``DATABASES``. Its connection is kept as long as ``CONN_MAX_AGE`` says."""

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias = alias

    def joined(self, connection: Any) -> Transaction | None:
        """The transaction of a connection of Django's.

        Raises:
            InvalidOption: none is open.
        """
        if not (hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor")):
            return None
        if not connection.in_atomic_block and connection.get_autocommit():
            raise InvalidOption(NO_TRANSACTION)
        return DjangoTransaction(connection)

    def _committed(self, step: Callable[[Transaction], T]) -> T:
        close_old_connections()
        connection = connections[self._alias]
        made = DjangoTransaction(connection)
        with _immediate(connection) if made.dialect == "sqlite" else transaction.atomic(self._alias):
            done = step(made)
        close_old_connections()
        return done

    def _close_connection(self) -> None:
        connections[self._alias].close()


@contextlib.contextmanager
def _immediate(connection: Any) -> Iterator[None]:
    """A transaction of SQLite that waits for other writers at its begin, and not in its middle, where it would be refused."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(Exception):  # SQLite has undone it, perhaps
                cursor.execute("ROLLBACK")
            raise


@functools.cache
def get_outbox() -> Outbox:
    """The outbox of this project, in the database that ``ECHOMQ['OUTBOX_DATABASE']`` names. Nothing connects.

    Raises:
        ImproperlyConfigured: a setting breaks a rule.

    Example:
        >>> (await get_outbox().status()).waiting
        0
    """
    from echomq.integrations.django.models import OutboxJob

    return Outbox(DjangoDatabase(Settings.read().outbox_database), table=OutboxJob._meta.db_table)


def get_relay() -> Relay:
    """A relay of this project's outbox, with the options of ``ECHOMQ['RELAY']``.

    Raises:
        ImproperlyConfigured: a setting breaks a rule.

    Example:
        >>> await get_relay().run_until_empty()
    """
    options = Settings.read().relay
    try:
        return Relay(get_outbox(), get_app(), **options)
    except (InvalidOption, TypeError) as error:
        raise ImproperlyConfigured(f"ECHOMQ['RELAY']: {error}") from error
