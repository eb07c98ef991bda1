"""A database with one account book, reached through each library that ``SQLOnce`` knows.

The effect under test writes a line into the book. The tests count the lines.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import sqlalchemy
from sqlalchemy.orm import Session

from echomq.idempotency import SQLOnce
from echomq.options import JSON

BOOK = "CREATE TABLE book (line VARCHAR(100) NOT NULL)"
LIBRARIES = (
    "sqlite3",
    "psycopg",
    "pymysql",
    "sqlalchemy-sqlite",
    "sqlalchemy-sqlite-session",
    "sqlalchemy-postgresql",
    "sqlalchemy-postgresql-session",
    "sqlalchemy-mysql",
    "sqlalchemy-mysql-session",
)


class Book:
    """The database, and how a library connects to it.

    Attributes:
        connect: opens a connection (or session) of the library.
        autocommitting: opens one that is in autocommit mode.
        look: opens a plain connection of the driver, for the tests to look and to set up.
    """

    def __init__(
        self, dialect: Any, look: Callable[[], Any], connect: Callable[[], Any], autocommitting: Callable[[], Any]
    ) -> None:
        self.dialect = dialect
        self.look = look
        self.connect = connect
        self.autocommitting = autocommitting
        for table in ("book", "echomq_effects"):
            self.change(f"DROP TABLE IF EXISTS {table}")
        self.change(BOOK)
        self.change(SQLOnce().create_table(self.dialect))

    def change(self, statement: str) -> None:
        """Carries out a statement of the test's own, and commits."""
        connection = self.look()
        connection.cursor().execute(statement)
        connection.commit()
        connection.close()

    def lines(self) -> list[str]:
        """What is committed in the book."""
        return self._column("SELECT line FROM book ORDER BY line")

    def keys(self) -> list[str]:
        """The effects that are committed as done."""
        return sorted(
            key.decode() if isinstance(key, bytes) else key
            for key in self._column("SELECT effect_key FROM echomq_effects")
        )

    def _column(self, query: str) -> list[Any]:
        connection = self.look()
        cursor = connection.cursor()
        cursor.execute(query)
        found = [row[0] for row in cursor.fetchall()]
        connection.close()
        return found


def write(connection: Any, line: str | None) -> None:
    """The effect: one line into the book, on whatever connection this is. None breaks the book's rule."""
    statement = f"INSERT INTO book (line) VALUES ({'NULL' if line is None else repr(line)})"
    if hasattr(connection, "cursor"):
        connection.cursor().execute(statement)
    else:
        connection.execute(sqlalchemy.text(statement))


def deliver(book: Book, key: str, result: JSON = None, *, once: SQLOnce | None = None) -> tuple[bool, Any]:
    """One delivery, as a handler would do it; tells whether the effect was replayed, and its result."""
    connection = book.connect()
    try:
        with (once or SQLOnce())(connection, key) as effect:
            replayed = effect.done
            if not replayed:
                write(connection, key)
                effect.result = result
        connection.commit()
    finally:
        connection.close()
    return replayed, effect.result


@contextmanager
def opened(
    library: str, sqlite_path: Path, postgresql: Callable[[], str], mariadb: Callable[[], str]
) -> Iterator[Book]:
    """The book, through one library; the two servers are asked for only where they are needed."""
    name = library.removeprefix("sqlalchemy-").removesuffix("-session")
    dialect = {"sqlite3": "sqlite", "psycopg": "postgresql", "pymysql": "mysql"}.get(name, name)
    if dialect == "sqlite":
        look, url, autocommit = _sqlite(sqlite_path)
    elif dialect == "postgresql":
        look, url, autocommit = _postgresql(postgresql())
    else:
        look, url, autocommit = _mysql(mariadb())
    if not library.startswith("sqlalchemy"):
        yield Book(dialect, look, look, autocommit)
        return
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    if library.endswith("-session"):
        yield Book(dialect, look, lambda: Session(engine), lambda: Session(loose))
    else:
        yield Book(dialect, look, engine.connect, loose.connect)
    engine.dispose()


Ways = tuple[Callable[[], Any], str, Callable[[], Any]]


def _sqlite(path: Path) -> Ways:
    def look(**options: Any) -> Any:
        return sqlite3.connect(path, timeout=20, **options)

    return look, f"sqlite:///{path}?timeout=20", lambda: look(isolation_level=None)


def _postgresql(host: str) -> Ways:
    def look(**options: Any) -> Any:
        return psycopg.connect(host=host, user="echomq", dbname="postgres", **options)

    return look, f"postgresql+psycopg://echomq@/postgres?host={host}", lambda: look(autocommit=True)


def _mysql(path: str) -> Ways:
    def look(**options: Any) -> Any:
        # The text encoding of a connection must not matter.
        return pymysql.connect(unix_socket=path, user="root", database="test", charset="latin1", **options)

    return look, f"mysql+pymysql://root@/test?unix_socket={path}", lambda: look(autocommit=True)


if __name__ == "__main__":  # a delivery in a process of its own: PATH KEY RESULT
    path = Path(sys.argv[1])
    connection = sqlite3.connect(path, timeout=20)
    with SQLOnce()(connection, sys.argv[2]) as done:
        if not done.done:
            write(connection, sys.argv[2])
            done.result = sys.argv[3]
    connection.commit()
    sys.stdout.write(f"{done.result}\n")
