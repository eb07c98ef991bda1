"""Effects happen once: in the database transaction that makes them, or under a lease in Redis."""

# ruff: noqa: PT012 -- what a block does before it fails is the point

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import psycopg.rows
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from echomq.connection import Connection
from echomq.errors import ConnectionLost, EncodingError, InvalidOption, RetryLater, ServerUnavailable
from echomq.idempotency import RedisOnce, SQLOnce, job_key
from tests.support import deliveries
from tests.support.databases import when_asked_for
from tests.support.deliveries import LIBRARIES, Book, deliver, opened, write
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

once = SQLOnce()


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, Callable[[], str]]]:
    with when_asked_for() as databases:
        yield databases


@pytest.fixture(params=LIBRARIES)
def book(request: pytest.FixtureRequest, tmp_path: Path, databases: dict[str, Callable[[], str]]) -> Iterator[Book]:
    """The account book, through each library in turn."""
    with opened(request.param, tmp_path / "book.db", databases["postgresql"], databases["mariadb"]) as made:
        yield made


@pytest.fixture
def sqlite_book(tmp_path: Path) -> Iterator[Book]:
    with opened("sqlite3", tmp_path / "book.db", str, str) as made:
        yield made


# -- in the user's transaction -----------------------------------------------------------------------------------------


def test_first_delivery_applies_and_later_ones_get_its_result(book: Book) -> None:
    assert deliver(book, "order-17", {"seat": 3, "name": "Zoë 🎟"}) == (False, {"seat": 3, "name": "Zoë 🎟"})
    assert deliver(book, "order-17", {"seat": 4}) == (True, {"seat": 3, "name": "Zoë 🎟"})
    assert book.lines() == ["order-17"]


def test_result_may_be_left_out(book: Book) -> None:
    assert deliver(book, "k") == (False, None)
    assert deliver(book, "k") == (True, None)


def test_nothing_is_committed_by_the_block(book: Book) -> None:
    with closing(book.connect()) as connection:
        with once(connection, "k") as effect:
            assert not effect.done
            write(connection, "k")
            effect.result = 1
        assert (book.lines(), book.keys()) == ([], [])
        connection.rollback()
    assert (book.lines(), book.keys()) == ([], [])
    assert deliver(book, "k", 2) == (False, 2)


def test_block_that_raises_is_undone_even_if_the_caller_commits(book: Book) -> None:
    with closing(book.connect()) as connection:
        write(connection, "before")
        with pytest.raises(ZeroDivisionError), once(connection, "k") as effect:
            assert not effect.done
            write(connection, "k")
            raise ZeroDivisionError
        write(connection, "after")
        connection.commit()
    assert (book.lines(), book.keys()) == (["after", "before"], [])
    assert deliver(book, "k", "at last") == (False, "at last")


def test_statement_that_fails_in_the_block_leaves_the_transaction_usable(book: Book) -> None:
    with closing(book.connect()) as connection:
        with pytest.raises(Exception, match="line"), once(connection, "k") as effect:
            assert not effect.done
            write(connection, "first")
            write(connection, None)
        write(connection, "after")
        connection.commit()
    assert (book.lines(), book.keys()) == (["after"], [])


def test_concurrent_deliveries_have_one_effect_and_one_result(book: Book) -> None:
    start = threading.Barrier(6)

    def deliver_together(number: int) -> tuple[bool, Any]:
        start.wait()
        return deliver(book, "k", number)

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(deliver_together, range(6)))
    assert [replayed for replayed, _ in outcomes].count(False) == 1
    assert len({result for _, result in outcomes}) == 1
    assert book.lines() == ["k"]


def test_second_delivery_waits_for_the_first_and_takes_over_when_that_is_rolled_back(book: Book) -> None:
    with closing(book.connect()) as first, ThreadPoolExecutor(1) as pool:
        with once(first, "k") as effect:
            assert not effect.done
            write(first, "k")
            second = pool.submit(deliver, book, "k", "second")
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        first.rollback()
        assert second.result(timeout=20) == (False, "second")
    assert book.lines() == ["k"]


def test_keys_are_exact(book: Book) -> None:
    keys = ["a", "A", "a ", "ä", "🎟", "%s", "?", "'", "x" * 255]
    with closing(book.connect()) as connection:
        for key in keys:
            with once(connection, key) as effect:
                assert not effect.done
        connection.commit()
    assert book.keys() == sorted(keys)
    assert all(deliver(book, key)[0] for key in keys)


def test_several_effects_share_a_transaction_one_inside_the_other(book: Book) -> None:
    with closing(book.connect()) as connection:
        with once(connection, "outer") as outer:
            assert not outer.done
            write(connection, "outer")
            with pytest.raises(ZeroDivisionError), once(connection, "inner") as inner:
                assert not inner.done
                write(connection, "inner")
                raise ZeroDivisionError
            with once(connection, "beside") as beside:
                assert not beside.done
            outer.result = 1
        connection.commit()
    assert (book.lines(), book.keys()) == (["outer"], ["beside", "outer"])


def test_block_that_does_not_ask_is_refused_the_first_time(book: Book) -> None:
    with closing(book.connect()) as connection:
        with pytest.raises(RuntimeError, match=r"never asked effect\.done.*begin it with"), once(connection, "k"):
            write(connection, "k")
        connection.commit()
    assert (book.lines(), book.keys()) == ([], [])


@pytest.mark.parametrize("result", [None, 1])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_transaction_must_not_end_inside_the_block(book: Book, end: str, result: int | None) -> None:
    with closing(book.connect()) as connection:
        with pytest.raises(RuntimeError, match="ended inside its block: commit or roll back after"):
            with once(connection, "k") as effect:
                assert not effect.done
                write(connection, "k")
                effect.result = result
                getattr(connection, end)()
        connection.rollback()
    # Even so, the effect and its key share their fate.
    assert book.lines() == book.keys() == (["k"] if end == "commit" else [])


def test_autocommit_is_refused(book: Book) -> None:
    with closing(book.autocommitting()) as connection:
        with pytest.raises(InvalidOption, match=r"autocommit mode and no transaction is open.*Begin a transaction"):
            with once(connection, "k"):
                pytest.fail("the block must not run")
    assert book.keys() == []


def test_missing_table_names_its_remedy(book: Book) -> None:
    with closing(book.connect()) as connection:
        with pytest.raises(Exception, match="missing_table") as caught:
            with SQLOnce("missing_table")(connection, "k"):
                pass
        connection.rollback()
    assert "create_table(" in caught.value.__notes__[0]


def test_table_may_have_another_name(book: Book) -> None:
    other = SQLOnce("my_effects_2")
    book.change(other.create_table(book.dialect))
    book.change(other.create_table(book.dialect))  # again: it is there
    book.change("DELETE FROM my_effects_2")
    assert deliver(book, "k", 1, once=other) == (False, 1)
    assert deliver(book, "k", 2, once=other) == (True, 1)
    assert book.keys() == []


def test_processes_deliver_once_between_them(sqlite_book: Book, tmp_path: Path) -> None:
    command = [sys.executable, "-m", deliveries.__name__, str(tmp_path / "book.db"), "k"]
    running = [subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True) for number in range(4)]
    outputs = [process.communicate(timeout=50)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert len(set(outputs)) == 1
    assert sqlite_book.lines() == ["k"]


def test_own_transactions_are_joined_in_autocommit_mode(
    databases: dict[str, Callable[[], str]], tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "book.db", isolation_level=None)) as connection:
        connection.execute(once.create_table("sqlite"))
        connection.execute("BEGIN")
        with once(connection, "k") as effect:
            assert not effect.done
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT count(*) FROM echomq_effects").fetchone() == (0,)
    host = databases["postgresql"]()
    with psycopg.connect(host=host, user="echomq", dbname="postgres", autocommit=True) as pg:
        pg.execute("DROP TABLE IF EXISTS echomq_effects")
        pg.execute(once.create_table("postgresql"))
        with pg.transaction(), once(pg, "k") as effect:
            assert not effect.done
        with pg.transaction(), once(pg, "k") as effect:
            assert effect.done


def test_rows_of_any_shape_are_understood(databases: dict[str, Callable[[], str]], tmp_path: Path) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: Any) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    def check(connection: Any, dialect: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("DROP TABLE IF EXISTS echomq_effects")
        cursor.execute(once.create_table(dialect))
        for replayed in (False, True):
            with once(connection, "k") as effect:
                assert effect.done is replayed
                if not replayed:
                    effect.result = [1]
            assert effect.result == [1]
        connection.commit()

    with closing(sqlite3.connect(tmp_path / "book.db")) as connection:
        connection.row_factory = as_dict
        connection.text_factory = bytes
        check(connection, "sqlite")
    host = databases["postgresql"]()
    factories: list[Any] = [psycopg.rows.dict_row, psycopg.rows.kwargs_row(dict)]
    for factory in factories:
        with psycopg.connect(host=host, user="echomq", dbname="postgres", row_factory=factory) as pg:
            check(pg, "postgresql")
    with psycopg.connect(host=host, user="echomq", dbname="postgres", cursor_factory=psycopg.RawCursor) as pg:
        check(pg, "postgresql")
    path = databases["mariadb"]()
    with pymysql.connect(unix_socket=path, user="root", database="test", cursorclass=pymysql.cursors.DictCursor) as my:
        check(my, "mysql")


def test_snapshot_isolation_never_repeats_an_effect(databases: dict[str, Callable[[], str]], tmp_path: Path) -> None:
    """A transaction that began to read before the other one's commit."""
    for library in ("psycopg", "pymysql"):
        with opened(library, tmp_path / "unused", databases["postgresql"], databases["mariadb"]) as book:
            with closing(book.connect()) as late:
                cursor = late.cursor()
                if library == "psycopg":
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT * FROM book")
                deliver(book, "k", "the other's")
                if library == "psycopg":  # refused whole; the job's retry begins anew
                    with pytest.raises(psycopg.errors.SerializationFailure), once(late, "k"):
                        pytest.fail("the block must not run")
                else:  # MySQL's default level
                    with once(late, "k") as effect:
                        assert effect.done
                    assert effect.result == "the other's"
            assert book.lines() == ["k"]


class Base(DeclarativeBase):
    pass


class Line(Base):
    __tablename__ = "book"
    line: Mapped[str] = mapped_column(primary_key=True)


def test_orm_objects_belong_to_the_block(sqlite_book: Book, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'book.db'}", poolclass=sqlalchemy.NullPool)
    with Session(engine) as session, session.begin():
        with once(session, "k") as effect:
            assert not effect.done
            session.add(Line(line="kept"))
        with pytest.raises(ZeroDivisionError), once(session, "other") as effect:
            assert not effect.done
            session.add(Line(line="undone"))
            raise ZeroDivisionError
    assert (sqlite_book.lines(), sqlite_book.keys()) == (["kept"], ["k"])
    registry = scoped_session(sessionmaker(engine))
    with once(registry, "k") as effect:
        assert effect.done
    registry.remove()


@pytest.fixture(params=["sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg"])
async def async_engine(
    request: pytest.FixtureRequest, tmp_path: Path, databases: dict[str, Callable[[], str]]
) -> AsyncIterator[AsyncEngine]:
    if request.param == "sqlite+aiosqlite":
        url = f"sqlite+aiosqlite:///{tmp_path / 'book.db'}?timeout=20"
    else:
        url = f"{request.param}://echomq@/postgres?host={databases['postgresql']()}"
    engine = create_async_engine(url, poolclass=sqlalchemy.NullPool)
    async with engine.begin() as connection:
        for statement in ("DROP TABLE IF EXISTS book", "DROP TABLE IF EXISTS echomq_effects", deliveries.BOOK):
            await connection.execute(sqlalchemy.text(statement))
        await connection.execute(sqlalchemy.text(once.create_table(request.param.partition("+")[0])))
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession])
async def test_async_connections_take_async_with(
    async_engine: AsyncEngine, kind: type[AsyncConnection | AsyncSession]
) -> None:
    insert = sqlalchemy.text("INSERT INTO book (line) VALUES ('k')")

    async def handle(fail: bool = False) -> Any:
        async with async_engine.connect() if kind is AsyncConnection else AsyncSession(async_engine) as connection:
            try:
                async with once(connection, "k") as effect:
                    if effect.done:
                        return effect.result
                    await connection.execute(insert)
                    if fail:
                        raise ZeroDivisionError
                    effect.result = "first"
            finally:
                await connection.commit()
            return "applied"

    with pytest.raises(ZeroDivisionError):
        await handle(fail=True)
    outcomes = await asyncio.gather(*(handle() for _ in range(4)))
    assert sorted(outcomes) == ["applied", "first", "first", "first"]
    async with async_engine.connect() as connection:
        assert (await connection.execute(sqlalchemy.text("SELECT count(*) FROM book"))).scalar() == 1


async def test_with_and_async_with_are_not_confused(async_engine: AsyncEngine) -> None:
    async with async_engine.connect() as connection:
        with pytest.raises(InvalidOption, match="is asynchronous: write `async with`"), once(connection, "k"):
            pass
    with closing(sqlite3.connect(":memory:")) as blocking:
        with pytest.raises(InvalidOption, match="a connection that blocks takes `with`"):
            async with once(blocking, "k"):
                pass


@pytest.mark.parametrize(
    "wrong",
    ["sqlite:///x", None, 7, sqlite3.connect, sqlalchemy.create_engine("sqlite://"), sqlite3.Connection],
    ids=str,
)
def test_what_is_no_connection_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="must be an open connection, not a cursor, an engine, a pool or a URL"):
        with once(wrong, "k"):
            pass


def test_unknown_driver_needs_its_dialect() -> None:
    class Strange:
        def cursor(self) -> None: ...
        def commit(self) -> None: ...
        def rollback(self) -> None: ...

    with pytest.raises(InvalidOption, match=r"is not known.*say so with dialect=…"), once(Strange(), "k"):
        pass
    with pytest.raises(InvalidOption, match="has no `paramstyle`"), SQLOnce(dialect="sqlite")(Strange(), "k"):
        pass


def test_derived_and_pooled_connections_are_known(sqlite_book: Book, tmp_path: Path) -> None:
    class Mine(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(tmp_path / "book.db", factory=Mine)) as connection, once(connection, "k") as effect:
        assert not effect.done
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'book.db'}", poolclass=sqlalchemy.NullPool)
    with closing(engine.raw_connection()) as pooled, once(pooled, "k") as effect:
        assert not effect.done


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "not empty"),
        (b"bytes", "must be a text"),
        ("a\0b", "NUL"),
        ("\ud800", "lone surrogate"),
        ("x" * 256, "256 bytes.*at most 255.*sha256"),
        ("ä" * 128, "256 bytes"),
    ],
)
def test_bad_keys_are_refused_by_both(key: Any, rule: str) -> None:
    for make in (lambda: once(sqlite3.connect(":memory:"), key), lambda: RedisOnce("redis://localhost")(key)):
        with pytest.raises(InvalidOption, match=rule):
            make()


@pytest.mark.parametrize("table", ["", "1st", "drop table x", "a;b", "a.b.c", "x" * 64, "naïve", "a\n", None])
def test_bad_table_names_are_refused(table: Any) -> None:
    with pytest.raises(InvalidOption, match="must be a name of at most 63 ASCII letters"):
        SQLOnce(table)


def test_bad_dialects_are_refused() -> None:
    with pytest.raises(InvalidOption, match="must be one of sqlite, postgresql, mysql"):
        SQLOnce(dialect="oracle")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="MariaDB is mysql"):
        once.create_table("mariadb")  # type: ignore[arg-type]


def test_result_without_json_form_undoes_the_block(sqlite_book: Book) -> None:
    with closing(sqlite_book.connect()) as connection:
        with pytest.raises(EncodingError, match=r"effect\.result\.price is nan"), once(connection, "k") as effect:
            assert not effect.done
            write(connection, "k")
            effect.result = {"price": float("nan")}
        connection.commit()
    assert (sqlite_book.lines(), sqlite_book.keys()) == ([], [])


def test_stored_result_cannot_be_replaced(sqlite_book: Book) -> None:
    deliver(sqlite_book, "k", 1)
    with closing(sqlite_book.connect()) as connection:
        with pytest.raises(RuntimeError, match="whose result stays"), once(connection, "k") as effect:
            assert effect.done
            effect.result = 2


# -- a job's own key ---------------------------------------------------------------------------------------------------


NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def a_job(queue: str = "orders", name: str = "pack", job_id: str = "1", at: datetime | None = NOON) -> Any:
    return SimpleNamespace(queue_name=queue, name=name, id=job_id, timestamp=at)


def test_job_key_is_stable_and_a_jobs_own() -> None:
    job = a_job()
    assert job_key(job) == job_key(a_job())
    assert job_key(job).startswith("orders/pack/1@1795953600000#")
    others = [
        a_job(queue="letters"),
        a_job(name="send"),
        a_job(job_id="2"),
        a_job(at=NOON + timedelta(milliseconds=1)),
        a_job(at=None),
        a_job(name="pack/1", job_id=""),
        a_job(job_id="🎟" * 300),
        a_job(job_id="🎟" * 301),
        a_job(job_id="a\0b"),
        a_job(job_id="\ud800"),
    ]
    keys = {job_key(job), job_key(job, "receipt"), *map(job_key, others)}
    assert len(keys) == len(others) + 2
    for key in keys:
        once(sqlite3.connect(":memory:"), key)  # each is a valid key


# -- in Redis ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def redis_once(url: str) -> AsyncIterator[RedisOnce]:
    async with RedisOnce(url, lease=20) as made:
        yield made


async def charge(redis_once: RedisOnce, key: str, payments: list[str], result: Any) -> Any:
    async with redis_once(key) as effect:
        if effect.done:
            return effect.result
        payments.append(effect.key)
        effect.result = result
    return effect.result


async def test_redis_replays_the_first_result(redis_once: RedisOnce) -> None:
    payments: list[str] = []
    assert await charge(redis_once, "order-17", payments, {"receipt": ("é", 1)}) == {"receipt": ["é", 1]}
    assert await charge(redis_once, "order-17", payments, "another") == {"receipt": ["é", 1]}
    assert payments == ["order-17"]


async def test_redis_puts_off_a_delivery_that_comes_meanwhile(redis_once: RedisOnce) -> None:
    payments: list[str] = []
    async with redis_once("k") as effect:
        assert not effect.done
        with pytest.raises(RetryLater, match="'k' is being applied by another delivery") as caught:
            await charge(redis_once, "k", payments, 1)
        assert isinstance(caught.value.after, float)
        assert 0 < caught.value.after <= 20
        assert await charge(redis_once, "other", payments, 1) == 1
    assert await charge(redis_once, "k", payments, 1) is None
    assert payments == ["other"]


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_redis_gives_the_claim_up_when_the_block_raises(
    redis_once: RedisOnce, error: type[BaseException], server: Server
) -> None:
    with pytest.raises(error):
        async with redis_once("k") as effect:
            assert not effect.done
            raise error
    assert server.cli("DBSIZE") == 0
    assert await charge(redis_once, "k", [], "again") == "again"


async def test_redis_lets_go_of_a_dead_process_when_its_lease_ends(url: str, server: Server) -> None:
    async with RedisOnce(url, lease=0.3) as mine, RedisOnce(url, lease=0.3) as theirs:
        dead = theirs("k")
        assert not (await dead.__aenter__()).done
        assert dead._renewing is not None
        dead._renewing.cancel()  # as SIGKILL does
        payments: list[str] = []

        async def tried() -> bool:
            try:
                return bool(await charge(mine, "k", payments, "again") == "again")
            except RetryLater:
                return False

        await wait_until(tried)
        assert payments == ["k"]
        # The dead one was only frozen, and comes back: the first result stays, and both know it.
        effect = dead._effect
        assert effect is not None
        effect.result = "late"
        await dead.__aexit__(None, None, None)
        assert effect.result == "again"
        assert await charge(mine, "k", payments, 1) == "again"


async def test_redis_renews_the_lease_of_a_long_effect(url: str, server: Server) -> None:
    async with RedisOnce(url, lease=0.4) as redis_once:
        async with redis_once("k") as effect:
            assert not effect.done
            ended = asyncio.get_running_loop().time() + 1.0
            while asyncio.get_running_loop().time() < ended:
                with pytest.raises(RetryLater):
                    await charge(redis_once, "k", [], 1)
                await asyncio.sleep(0.02)
            effect.result = "long"
        assert await charge(redis_once, "k", [], 1) == "long"


async def test_redis_block_that_does_not_ask_is_refused_and_gives_up(redis_once: RedisOnce, server: Server) -> None:
    with pytest.raises(RuntimeError, match=r"never asked effect\.done"):
        async with redis_once("k"):
            pass
    assert server.cli("DBSIZE") == 0
    with pytest.raises(ZeroDivisionError):  # which is not hidden
        async with redis_once("k"):
            raise ZeroDivisionError


async def test_cancelling_while_the_result_is_stored_stores_it(redis_once: RedisOnce, server: Server) -> None:
    block = redis_once("k")
    effect = await block.__aenter__()
    assert not effect.done
    effect.result = "stored"
    leaving = asyncio.create_task(block.__aexit__(None, None, None))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await charge(redis_once, "k", [], 1) == "stored"


async def test_cancelling_while_the_key_is_claimed_leaves_no_claim(redis_once: RedisOnce, server: Server) -> None:
    await charge(redis_once, "connected", [], 1)
    entering = asyncio.create_task(redis_once("k").__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert await charge(redis_once, "k", [], "free") == "free"


async def test_result_is_stored_after_the_connection_was_lost(redis_once: RedisOnce, server: Server) -> None:
    async with redis_once("k") as effect:
        assert not effect.done
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        effect.result = "kept"
    assert await charge(redis_once, "k", [], 1) == "kept"


async def test_result_that_cannot_be_kept_is_no_success(make_server: Callable[..., Server]) -> None:
    server = make_server()
    connection = Connection(server.tcp_url, wait=0.2, connect_timeout=1)
    async with RedisOnce(connection) as redis_once:
        with pytest.raises(ConnectionError):
            async with redis_once("k") as effect:
                assert not effect.done
                server.kill()
        with pytest.raises(ServerUnavailable):
            await charge(redis_once, "k", [], 1)


@pytest.mark.parametrize("why", ["password", "closed"])
async def test_a_result_that_may_be_kept_is_no_server_error(make_server: Callable[..., Server], why: str) -> None:
    server = make_server(acl=["user ada on >secret ~* &* +@all"])
    async with Proxy(server) as proxy:
        url = proxy.url.replace("//", "//ada:secret@")
        connection = Connection(url, wait=0.2)
        async with connection, RedisOnce(connection) as redis_once:
            await charge(redis_once, "warm", [], 1)
            block = redis_once("k")
            effect = await block.__aenter__()
            assert not effect.done
            effect.result = "kept"
            server.cli("ACL", "SETUSER", "ada", "resetpass", ">another")  # new connections are refused
            proxy.lose("reply" if why == "password" else "silence", needle("finishEffect-1"))
            leaving = asyncio.create_task(block.__aexit__(None, None, None))
            if why == "closed":
                await wait_until(lambda: proxy.lost)
                await connection.close()
            with pytest.raises(ConnectionLost):
                await leaving
    async with RedisOnce(server.url) as other:
        assert await charge(other, "k", [], "again") == "kept"


async def test_error_of_the_block_is_not_hidden_by_a_closed_connection(url: str, server: Server) -> None:
    connection = Connection(url)
    redis_once = RedisOnce(connection)
    with pytest.raises(ZeroDivisionError):
        async with redis_once("k") as effect:
            assert not effect.done
            await connection.close()
            raise ZeroDivisionError


async def test_redis_is_shared_with_the_workers_connection(url: str, server: Server) -> None:
    async with Connection(url) as connection, RedisOnce(connection) as one, RedisOnce(connection) as other:
        await charge(one, "a", [], 1)
        await charge(other, "b", [], 1)
        assert len(server.clients()) == 1


def test_redis_once_may_outlive_an_event_loop(url: str, server: Server) -> None:
    redis_once = RedisOnce(url)

    async def main(result: int) -> Any:
        try:
            return await charge(redis_once, "k", [], result)
        finally:
            await redis_once.close()

    assert asyncio.run(main(1)) == 1
    assert asyncio.run(main(2)) == 1


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"prefix": ""}, "prefix=''"),
        ({"prefix": "{x}"}, "no braces"),
        ({"lease": 0}, "lease=0"),
        ({"expire": "day"}, "expire='day'"),
        ({"expire": 30, "lease": 60}, "must not be shorter than lease"),
        ({"connection": object()}, "must be a Connection or a URL"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule):
        RedisOnce(**{"connection": "redis://localhost", **options})
