"""An open database transaction, whatever library it belongs to, and one savepoint in it. For ``SQLOnce`` and ``Outbox``."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from echomq.errors import InvalidOption

Dialect: TypeAlias = Literal["sqlite", "postgresql", "mysql"]
"""The databases whose behaviour is known here; MariaDB is ``mysql``."""

_DRIVERS: Final[Mapping[str, Dialect]] = {
    "sqlite3": "sqlite",
    "pysqlite3": "sqlite",
    "sqlcipher3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
_SQLALCHEMY: Final[Mapping[str, Dialect]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}

NO_TRANSACTION = (
    "the connection is in autocommit mode and no transaction is open: what is written would be committed by itself. "
    "Begin a transaction first, or turn autocommit off"
)


class Transaction(Protocol):
    """A transaction that the user began and will commit, and one savepoint in it."""

    @property
    def dialect(self) -> Dialect:
        """Whose SQL it speaks."""

    def savepoint(self) -> None:
        """Mark the place to which ``undo`` goes back, in an open transaction.

        Raises:
            InvalidOption: the connection is in autocommit mode.
        """

    def keep(self) -> None:
        """Forget the savepoint; what came after it belongs to the transaction."""

    def undo(self) -> None:
        """Undo all that came after the savepoint."""

    def flush(self) -> bool:
        """Send what an ORM holds back. False if the savepoint has gone, as far as this side knows."""

    def change(self, statement: str, *values: str) -> int:
        """Carry out a statement whose values are written ``{}``, and give the number of rows that it touched."""

    def look_up(self, statement: str, *values: str) -> tuple[Any] | None:
        """The only column of the first row, or None if there is no row."""

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        """All rows."""


def open_transaction(connection: object, dialect: Dialect | None) -> Transaction:
    """Finds out what the user handed over.

    Raises:
        InvalidOption: it is no connection or session, or one of a database that is not known here.
    """
    given = f"connection={connection!r:.200}"
    if is_sqlalchemy(connection):
        return _SQLAlchemyTransaction(connection, given, dialect)
    connection = getattr(connection, "driver_connection", connection)  # what engine.raw_connection() gives
    if isinstance(connection, type) or not all(
        callable(getattr(connection, name, None)) for name in ("cursor", "commit", "rollback")
    ):
        raise InvalidOption(
            f"{given}: must be an open connection, not a cursor, an engine, a pool or a URL: one of a DB-API driver "
            "(sqlite3, psycopg, PyMySQL …), or a Connection, Session, AsyncConnection or AsyncSession of SQLAlchemy"
        )
    module, known = _driver_of(connection)
    chosen = dialect or known
    if chosen is None:
        raise InvalidOption(
            f"{given}: the driver {type(connection).__module__!r} is not known; if its database is one of "
            f"{', '.join(get_args(Dialect))}, say so with dialect=…"
        )
    style = _paramstyle(module)
    if style is None:
        raise InvalidOption(
            f"{given}: its module {type(connection).__module__!r} has no `paramstyle`, as PEP 249 asks; "
            "pass the connection of the driver itself"
        )
    return _DriverTransaction(connection, chosen, style)


def set_read_committed(connection: Any, dialect: Dialect | None) -> None:
    """On a new connection of a driver for MySQL, lets its transactions lock the rows that they read and nothing between them."""
    if (dialect or _driver_of(connection)[1]) == "mysql":
        cursor = connection.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.close()


def is_passing(error: BaseException) -> bool:
    """Whether the database has undone a transaction because of another one: the same may be tried again at once."""
    for seen in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
        number = getattr(seen, "errno", None) or next(iter(getattr(seen, "args", ())), None)
        if state in ("40001", "40P01") or number in (1213, 1020):  # a deadlock, or a row that another one has changed
            return True
    return False


def is_sqlalchemy(connection: object) -> bool:
    """Whether it is a synchronous Connection or Session of SQLAlchemy."""
    return _is_one_of(connection, ("sqlalchemy", "Connection"), ("sqlalchemy.orm", "Session", "scoped_session"))


def is_async_sqlalchemy(connection: object) -> bool:
    """Whether it is an asynchronous Connection or Session of SQLAlchemy."""
    return _is_one_of(connection, ("sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session"))


def is_engine(value: object) -> bool:
    """Whether it is a synchronous Engine of SQLAlchemy."""
    return _is_one_of(value, ("sqlalchemy", "Engine"))


def is_async_engine(value: object) -> bool:
    """Whether it is an AsyncEngine of SQLAlchemy."""
    return _is_one_of(value, ("sqlalchemy.ext.asyncio", "AsyncEngine"))


def _is_one_of(value: object, *places: tuple[str, ...]) -> bool:
    # Who holds such an object has imported its module; nobody else needs it.
    for module, *names in places:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names)):
            return True
    return False


def _driver_of(connection: object) -> tuple[str, Dialect | None]:
    """The module and dialect of a driver; the connection's class may be derived from the driver's own."""
    for base in type(connection).__mro__:
        known = _DRIVERS.get(base.__module__.partition(".")[0])
        if known is not None:
            return base.__module__, known
    return type(connection).__module__, None


def _paramstyle(module: str) -> str | None:
    while module:
        style = getattr(sys.modules.get(module), "paramstyle", None)
        if isinstance(style, str):
            return style
        module = module.rpartition(".")[0]
    return None


def bind(statement: str, values: tuple[str, ...], style: str) -> tuple[str, Any]:
    """Writes the placeholders as the driver wants them.

    >>> bind("SELECT result FROM t WHERE effect_key = {}", ("k",), "named")
    ('SELECT result FROM t WHERE effect_key = :p1', {'p1': 'k'})
    """
    names = [f"p{number}" for number in range(1, len(values) + 1)]
    match style:
        case "qmark":
            return statement.format(*("?" for _ in names)), values
        case "format" | "pyformat":
            return statement.format(*("%s" for _ in names)), values
        case "numeric":
            return statement.format(*(f":{name[1:]}" for name in names)), values
        case "numeric_dollar":
            return statement.format(*(f"${name[1:]}" for name in names)), values
        case "named":
            return statement.format(*(f":{name}" for name in names)), dict(zip(names, values, strict=True))
        case _:
            raise InvalidOption(f"the driver's paramstyle {style!r} is none of those of PEP 249")


class _DriverTransaction:
    """The transaction of a DB-API connection."""

    def __init__(self, connection: Any, dialect: Dialect, style: str) -> None:
        self.dialect: Dialect = dialect
        self._connection = connection
        self._style = style
        # Of its own, for MySQL forgets the outer one of two savepoints of the same name.
        self._name = f"echomq_{secrets.token_hex(6)}"

    def savepoint(self) -> None:
        if self.dialect == "sqlite":
            _begin_sqlite(self._connection, self.change)
        try:
            self.change(f"SAVEPOINT {self._name}")
            if self.dialect == "mysql":
                self.undo()  # without a transaction MySQL takes any SAVEPOINT, and has forgotten it at once
        except Exception as error:
            if _says_no_transaction(error):
                raise InvalidOption(NO_TRANSACTION) from error
            raise

    def keep(self) -> None:
        self.change(f"RELEASE SAVEPOINT {self._name}")

    def undo(self) -> None:
        self.change(f"ROLLBACK TO SAVEPOINT {self._name}")

    def flush(self) -> bool:
        return True

    def change(self, statement: str, *values: str) -> int:
        cursor = self._cursor()
        try:
            cursor.execute(*self._bound(statement, values))
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def look_up(self, statement: str, *values: str) -> tuple[Any] | None:
        cursor = self._cursor()
        try:
            cursor.execute(*self._bound(statement, values))
            row = cursor.fetchone()
        finally:
            cursor.close()
        if row is None:
            return None
        return (next(iter(row.values())) if isinstance(row, Mapping) else row[0],)

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        cursor = self._cursor()
        try:
            cursor.execute(*self._bound(statement, values))
            return [tuple(row.values() if isinstance(row, Mapping) else row) for row in cursor.fetchall()]
        finally:
            cursor.close()

    def _bound(self, statement: str, values: tuple[str, ...]) -> tuple[Any, ...]:
        # Without values none are passed: a driver then leaves the text alone.
        return bind(statement, values, self._style) if values else (statement,)

    def _cursor(self) -> Any:
        # The user's row and cursor factories are for the user's statements.
        if isinstance(self._connection, getattr(sys.modules.get("psycopg"), "Connection", ())):
            psycopg = sys.modules["psycopg"]
            return psycopg.Cursor(self._connection, row_factory=sys.modules["psycopg.rows"].tuple_row)
        cursor = self._connection.cursor()
        if self.dialect == "sqlite":
            cursor.row_factory = None
        return cursor


class _SQLAlchemyTransaction:
    """The transaction of a Connection or Session of SQLAlchemy; the savepoint is SQLAlchemy's own."""

    def __init__(self, owner: Any, given: str, dialect: Dialect | None) -> None:
        if _is_one_of(owner, ("sqlalchemy.orm", "scoped_session")):
            owner = owner()
        self._owner = owner
        self._session = _is_one_of(owner, ("sqlalchemy.orm", "Session"))
        self._connection = owner.connection() if self._session else owner
        name = self._connection.dialect.name
        chosen = dialect or _SQLALCHEMY.get(name)
        if chosen is None:
            raise InvalidOption(f"{given}: the database {name!r} is none of {', '.join(get_args(Dialect))}")
        self.dialect: Dialect = chosen
        self._nested: Any = None

    def savepoint(self) -> None:
        if not self._owner.in_transaction():
            self._owner.begin()
        if self.dialect == "sqlite":
            # SQLAlchemy leaves BEGIN to the driver, which sends none before a SAVEPOINT.
            _begin_sqlite(self._connection.connection.driver_connection, self.change)
        try:
            if self.dialect == "mysql":
                self._refuse_autocommit()
            self._nested = self._owner.begin_nested()
            if self._session:
                self._connection = self._owner.connection()  # only now the session sets its savepoint
        except Exception as error:
            if _says_no_transaction(error):
                raise InvalidOption(NO_TRANSACTION) from error
            raise

    def keep(self) -> None:
        self._nested.commit()

    def undo(self) -> None:
        if self._nested is not None:
            self._nested.rollback()

    def flush(self) -> bool:
        if not self._nested.is_active:
            return False
        if self._session:
            self._owner.flush()
        return True

    def change(self, statement: str, *values: str) -> int:
        result = self._connection.exec_driver_sql(*self._bound(statement, values))
        try:
            return int(result.rowcount)
        finally:
            result.close()

    def look_up(self, statement: str, *values: str) -> tuple[Any] | None:
        row = self._connection.exec_driver_sql(*self._bound(statement, values)).fetchone()
        return None if row is None else (row[0],)

    def rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.exec_driver_sql(*self._bound(statement, values)).fetchall()]

    def _bound(self, statement: str, values: tuple[str, ...]) -> tuple[Any, ...]:
        return bind(statement, values, self._connection.dialect.paramstyle) if values else (statement,)

    def _refuse_autocommit(self) -> None:
        probe = f"echomq_{secrets.token_hex(6)}"
        for statement in ("SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT"):
            self.change(f"{statement} {probe}")


def _begin_sqlite(driver: Any, change: Any) -> None:
    """Sees that a transaction is open, for SQLite takes the outermost RELEASE of a savepoint as COMMIT.

    IMMEDIATE: it waits for other writers here, where nothing has been read yet, and not in the middle, where SQLite
    would refuse at once.
    """
    if driver.in_transaction:
        return
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        raise InvalidOption(NO_TRANSACTION)
    change("BEGIN IMMEDIATE")


def _says_no_transaction(error: BaseException) -> bool:
    """Whether the database says that a savepoint needs an open transaction."""
    seen = getattr(error, "orig", None) or error
    state = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
    # PostgreSQL: no_active_sql_transaction; MySQL: ER_SP_DOES_NOT_EXIST, of a savepoint that was set the moment before.
    return state == "25P01" or "25P01" in str(seen.args) or 1305 in seen.args or getattr(seen, "errno", None) == 1305
