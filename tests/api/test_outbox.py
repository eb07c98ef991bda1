"""Jobs that are written in a database transaction are sent when it was committed, once each, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from echomq import (
    Connection,
    Deduplication,
    EchoMQ,
    EncodingError,
    InvalidOption,
    Job,
    JobSpec,
    Keep,
    PayloadTooLarge,
    ServerError,
    Worker,
)
from echomq import outbox as outbox_module
from echomq.outbox import Outbox, OutboxStatus, Relay
from echomq.payloads import Codec, Compressed, FileStore, Offloaded
from tests.support.databases import when_asked_for
from tests.support.deliveries import LIBRARIES, Book, opened, write
from tests.support.server import Server
from tests.support.wait import wait_until

TABLES = ("echomq_outbox", "other_outbox")
SPEC = JobSpec("pack", {"order": 17})


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, Callable[[], str]]]:
    with when_asked_for() as databases:
        yield databases


def made(book: Book) -> Outbox:
    """An outbox in the database of this book."""
    outbox = Outbox(book.look)
    for table in TABLES:
        book.change(f"DROP TABLE IF EXISTS {table}")
    for statement in outbox.create_table(book.dialect):
        book.change(statement)
    return outbox


@pytest.fixture(params=LIBRARIES)
def book(request: pytest.FixtureRequest, tmp_path: Path, databases: dict[str, Callable[[], str]]) -> Iterator[Book]:
    """A database with a table of the user's own, through each library in turn."""
    with opened(request.param, tmp_path / "book.db", databases["postgresql"], databases["mariadb"]) as one:
        yield one


@pytest.fixture(params=["sqlite3", "psycopg", "pymysql"])
def each_book(
    request: pytest.FixtureRequest, tmp_path: Path, databases: dict[str, Callable[[], str]]
) -> Iterator[Book]:
    """The same, through one library for each database."""
    with opened(request.param, tmp_path / "book.db", databases["postgresql"], databases["mariadb"]) as one:
        yield one


@pytest.fixture
def sqlite_book(tmp_path: Path) -> Iterator[Book]:
    with opened("sqlite3", tmp_path / "book.db", str, str) as one:
        yield one


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as one:
        yield one


@pytest.fixture
async def outbox(sqlite_book: Book) -> AsyncIterator[Outbox]:
    one = made(sqlite_book)
    yield one
    await one.close()


def committed(book: Book, outbox: Outbox, *specs: JobSpec, queue: str = "orders") -> list[str]:
    """Writes jobs in a transaction, and commits it."""
    with closing(book.connect()) as connection:
        ids = outbox.add(connection, *(specs or (SPEC,)), queue=queue)
        connection.commit()
    return ids


async def names(app: EchoMQ, queue: str = "orders") -> list[Any]:
    """The data of the jobs that wait, in order."""
    return [job.data async for job in app.queue(queue).jobs("waiting")]


# -- in the user's transaction -----------------------------------------------------------------------------------------


async def test_job_is_sent_when_its_transaction_was_committed_and_only_then(book: Book, app: EchoMQ) -> None:
    outbox = made(book)
    relay = Relay(outbox, app)
    with closing(book.connect()) as connection:
        write(connection, "order 17")
        [job_id] = outbox.add(connection, SPEC, queue="orders")
        if book.dialect != "sqlite":  # where a relay waits for the writer
            assert await relay.run_until_empty() == 0
        connection.commit()
        write(connection, "order 18")
        outbox.add(connection, JobSpec("pack", {"order": 18}), queue="orders")
        connection.rollback()
    assert book.lines() == ["order 17"]
    assert await relay.run_until_empty() == 1
    job = await app.queue("orders").get_job(job_id)
    assert job is not None
    assert (job.data, job.state) == ({"order": 17}, "waiting")
    assert await names(app) == [{"order": 17}]
    assert (await outbox.status()).waiting == 0
    await outbox.close()


async def test_jobs_keep_their_order_and_their_options(each_book: Book, app: EchoMQ) -> None:
    outbox = made(each_book)
    specs = [JobSpec("pack", {"n": number, "name": "Zoë 🎟\0"}) for number in range(250)]
    with closing(each_book.connect()) as connection:
        outbox.add(connection, *specs[:130], queue="orders")
        outbox.add(connection, *specs[130:], queue="orders")
        mine, later, first = outbox.add(
            connection,
            JobSpec("bill", [1, 2**70], job_id="bill-17", priority=5, attempts=3, keep_logs=7),
            JobSpec("remind", delay=3600),
            JobSpec("ship", lifo=True, deduplication=Deduplication.throttle("ship-17", 60)),
            queue="überall 🎟",
        )
        connection.commit()
    assert await Relay(outbox, app, batch=70).run_until_empty() == 253
    assert await names(app) == [spec.data for spec in specs]
    other = app.queue("überall 🎟")
    bill, remind, ship = [await other.get_job(one) for one in (mine, later, first)]
    assert bill is not None
    assert remind is not None
    assert ship is not None
    assert (bill.id, bill.priority, bill.opts.attempts, bill.data) == ("bill-17", 5, 3, [1, 2**70])
    assert (remind.state, remind.delay) == ("delayed", 3600)
    assert ship.deduplication_id == "ship-17"
    await outbox.close()


async def test_delay_counts_from_the_writing(sqlite_book: Book, outbox: Outbox, app: EchoMQ) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    [job_id, at_once] = committed(
        sqlite_book, outbox, JobSpec("remind", delay=1800, timestamp=past), JobSpec("remind", at=past)
    )
    await Relay(outbox, app).run_until_empty()
    job = await app.queue("orders").get_job(job_id)
    assert job is not None
    assert job.timestamp is not None
    assert abs(job.timestamp - past) < timedelta(milliseconds=1)
    assert job.state in ("delayed", "waiting")
    due = await app.queue("orders").get_job(at_once)
    assert due is not None


async def test_task_is_enqueued_with_its_options(sqlite_book: Book, outbox: Outbox, app: EchoMQ) -> None:
    @app.task(queue="mails", attempts=4)
    async def mail(order: int, *, to: str = "you") -> None: ...

    with closing(sqlite_book.connect()) as connection:
        job_id = outbox.enqueue(connection, mail.options(priority=2), 17, to="me")
        with pytest.raises(TypeError, match="missing a required argument"):
            outbox.enqueue(connection, mail)  # type: ignore[call-arg]
        connection.commit()
    await Relay(outbox, app).run_until_empty()
    job = await app.queue("mails").get_job(job_id)
    assert job is not None
    assert (job.name, job.data, job.priority, job.opts.attempts) == ("mail", {"order": 17, "to": "me"}, 2, 4)


async def test_bad_input_writes_nothing(book: Book) -> None:
    outbox = made(book)
    with closing(book.connect()) as connection:
        write(connection, "kept")
        with pytest.raises(EncodingError, match="price"):
            outbox.add(connection, SPEC, JobSpec("pack", {"price": float("nan")}), queue="orders")
        with pytest.raises(InvalidOption, match="must be a JobSpec"):
            outbox.add(connection, "pack", queue="orders")  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="queue"):
            outbox.add(connection, SPEC, queue="a:b")
        with pytest.raises(InvalidOption, match="must be an open connection"):
            outbox.add("sqlite:///", SPEC, queue="orders")  # type: ignore[arg-type]
        connection.commit()
    assert (await outbox.status()).waiting == 0
    assert book.lines() == ["kept"]
    await outbox.close()


async def test_autocommit_is_refused(book: Book) -> None:
    outbox = made(book)
    with closing(book.autocommitting()) as connection:
        with pytest.raises(InvalidOption, match=r"autocommit mode and no transaction is open.*Begin a transaction"):
            outbox.add(connection, SPEC, queue="orders")
    assert (await outbox.status()).waiting == 0
    await outbox.close()


async def test_missing_table_names_its_remedy_and_leaves_the_transaction_usable(book: Book) -> None:
    made(book)
    with closing(book.connect()) as connection:
        with pytest.raises(Exception, match="other_outbox") as caught:
            Outbox(table="other_outbox").add(connection, SPEC, queue="orders")
        write(connection, "after")
        connection.commit()
    assert "create_table(" in caught.value.__notes__[0]
    assert book.lines() == ["after"]


async def test_sessions_of_sqlalchemy(tmp_path: Path, app: EchoMQ) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/a.db")
    outbox = Outbox(engine)
    with engine.begin() as connection:
        for statement in outbox.create_table("sqlite"):
            connection.exec_driver_sql(statement)
    with Session(engine) as session, session.begin():
        outbox.add(session, SPEC, queue="orders")
    with Session(engine) as session:
        outbox.add(session, SPEC, queue="orders")
        session.rollback()
    assert await Relay(outbox, app).run_until_empty() == 1
    engine.dispose()


@pytest.mark.parametrize("driver", ["sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg"])
async def test_async_sessions_of_sqlalchemy(
    tmp_path: Path, app: EchoMQ, databases: dict[str, Callable[[], str]], driver: str
) -> None:
    dialect: Any = driver.partition("+")[0]
    place = f"/{tmp_path}/a.db" if dialect == "sqlite" else f"echomq@/postgres?host={databases['postgresql']()}"
    engine = create_async_engine(f"{driver}://{place}")
    outbox = Outbox(engine)
    async with engine.begin() as connection:
        for statement in ("DROP TABLE IF EXISTS echomq_outbox", *outbox.create_table(dialect)):
            await connection.exec_driver_sql(statement)
    async with AsyncSession(engine) as session, session.begin():
        await outbox.add_async(session, SPEC, queue="orders")
        with pytest.raises(InvalidOption, match="add_async"):
            outbox.add(session, SPEC, queue="orders")
    async with AsyncSession(engine) as session:
        await outbox.add_async(session, SPEC, queue="orders")
        await session.rollback()
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    if dialect == "postgresql":
        async with AsyncSession(loose) as session:
            with pytest.raises(InvalidOption, match="autocommit mode and no transaction is open"):
                await outbox.add_async(session, SPEC, queue="orders")
    assert (await outbox.status()).waiting == 1
    app.queue("full", max_size=1)
    async with AsyncSession(engine) as session, session.begin():
        await outbox.add_async(session, SPEC, SPEC, SPEC, queue="full")
        await outbox.add_async(session, JobSpec("pack", "x" * 30, max_bytes=30), queue="orders")
    assert await Relay(outbox, app, batch=1).run_until_empty() == 2
    status = await outbox.status()
    assert (status.waiting, status.set_aside) == (2, 1)
    [row] = await outbox.set_aside()
    assert await outbox.discard(row.id) == 1
    await engine.dispose()


# -- who dies when -----------------------------------------------------------------------------------------------------


async def test_process_that_dies_after_the_commit_loses_nothing(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ, tmp_path: Path
) -> None:
    program = (
        "import os, sqlite3; from echomq import JobSpec; from echomq.outbox import Outbox\n"
        f"db = sqlite3.connect({str(tmp_path / 'book.db')!r})\n"
        "Outbox().add(db, JobSpec('pack', 1), queue='orders'); db.commit()\n"
        "Outbox().add(db, JobSpec('pack', 2), queue='orders'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert await Relay(outbox, app).run_until_empty() == 1
    assert await names(app) == [1]


@pytest.mark.parametrize("gone", [True, False], ids=["job has run and was removed", "job still waits"])
async def test_relay_that_dies_between_sending_and_marking_adds_each_job_once(
    each_book: Book, app: EchoMQ, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    outbox = made(each_book)
    quick = JobSpec("pack", remove_on_complete=Keep.NONE)
    mine = JobSpec("pack", job_id="mine", deduplication="mine", remove_on_complete=Keep.NONE)
    committed(each_book, outbox, quick, mine)

    async def dies(*_: Any) -> None:
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "_settle", dies)
        with pytest.raises(KeyError):
            await Relay(outbox, app).run_until_empty()
    runs: list[str] = []

    async def run(job: Job[Any]) -> None:
        runs.append(job.id)

    worker = Worker("orders", run, connection=app.connection)
    if gone:
        await worker.run_until_drained()
        assert len(runs) == 2
        assert not any((await app.queue("orders").counts()).values())
    second = Relay(outbox, app)
    assert await second.run_until_empty() == 0  # the lease of the dead one still holds
    each_book.change("UPDATE echomq_outbox SET claimed_until = claimed_until - 30000")
    assert await second.run_until_empty() == 2
    assert (await outbox.status()).waiting == 0
    await worker.run_until_drained()
    assert len(runs) == len(set(runs)) == 2
    await outbox.close()


async def test_another_row_with_the_same_job_id_is_another_job(sqlite_book: Book, outbox: Outbox, app: EchoMQ) -> None:
    for _ in range(2):
        committed(sqlite_book, outbox, JobSpec("pack", job_id="mine"))
        assert await Relay(outbox, app).run_until_empty() == 1
        job = await app.queue("orders").get_job("mine")
        assert job is not None
        await job.remove()


async def test_server_that_is_away_at_the_commit_gets_the_jobs_when_it_is_back(
    sqlite_book: Book, outbox: Outbox, make_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(appendonly=True)
    app = EchoMQ(Connection(server.url, wait=0.1))
    relay = Relay(outbox, app, interval=0.02)
    running = asyncio.create_task(relay.run())
    committed(sqlite_book, outbox, JobSpec("pack", 1))
    await wait_until(lambda: _waits(outbox, 0))
    server.kill()
    committed(sqlite_book, outbox, JobSpec("pack", 2), JobSpec("pack", 3))
    await wait_until(lambda: "it goes on when that is over" in caplog.text)
    assert (await outbox.status()).waiting == 2
    server.restart()
    await wait_until(lambda: _waits(outbox, 0), timeout=20)
    assert await names(app) == [1, 2, 3]
    assert caplog.text.count("it goes on when that is over") == 1
    await relay.close()
    await running
    await app.close()


async def _waits(outbox: Outbox, number: int) -> bool:
    return (await outbox.status()).waiting == number


async def test_relays_share_the_work_and_each_job_is_added_once(each_book: Book, url: str) -> None:
    outbox = made(each_book)
    specs = [JobSpec("pack", {"n": number}) for number in range(300)]
    committed(each_book, outbox, *specs)
    apps = [EchoMQ(url) for _ in range(3)]
    boxes = [Outbox(each_book.look) for _ in apps]
    sent = await asyncio.gather(
        *(Relay(box, app, batch=20).run_until_empty() for box, app in zip(boxes, apps, strict=True))
    )
    assert sum(sent) == 300
    assert (await outbox.status()).waiting == 0
    assert sorted(data["n"] for data in await names(apps[0])) == list(range(300))
    for one in (outbox, *boxes):
        await one.close()
    for app in apps:
        await app.close()


async def test_cancelled_relay_ends_what_is_under_way(sqlite_book: Book, outbox: Outbox, app: EchoMQ) -> None:
    relay = Relay(outbox, app, interval=0.01, batch=3)
    committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(60)])
    running = asyncio.create_task(relay.run())
    await wait_until(lambda: _fewer(outbox, 60))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = (await outbox.status()).waiting
    assert await Relay(outbox, app).run_until_empty() == left  # no row is with the one that was cancelled
    assert len(await names(app)) == 60


async def _fewer(outbox: Outbox, number: int) -> bool:
    return (await outbox.status()).waiting < number


# -- rows that cannot be sent ------------------------------------------------------------------------------------------


async def test_poison_is_set_aside_with_its_reason_and_holds_nobody_up(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ, server: Server
) -> None:
    ids = committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(5)])
    committed(sqlite_book, outbox, JobSpec("ship", deduplication="broken"), JobSpec("pack", 5))
    with server.client() as client:
        client.hset("emq:{orders}:de:broken", "not", "a text")
    sqlite_book.change(f"UPDATE echomq_outbox SET payload = 'nonsense' WHERE job_id = '{ids[1]}'")
    renamed = "replace(payload, '\"orders\"', '\"a:b\"')"
    sqlite_book.change(f"UPDATE echomq_outbox SET payload = {renamed} WHERE job_id = '{ids[3]}'")
    assert await Relay(outbox, app, attempts=1).run_until_empty() == 4
    assert await names(app) == [0, 2, 4, 5]
    first, second, third = await outbox.set_aside()
    assert (first.job_id, first.queue) == (ids[1], "orders")
    assert "cannot be read" in first.reason
    assert "a:b" in second.reason
    assert "BrokenKey" in third.reason
    assert await outbox.status() == outbox_module.OutboxStatus(0, 3, None)
    with server.client() as client:
        client.delete("emq:{orders}:de:broken")
    assert await outbox.retry(third.id) == 1
    assert await outbox.discard(first.id, second.id) == 2
    assert await Relay(outbox, app).run_until_empty() == 1
    assert await outbox.status() == outbox_module.OutboxStatus(0, 0, None)


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def rewritten(**changes: Any) -> Callable[[str], str]:
    """A row's payload with other parts; numbers are places in its job: ``_3="x"``."""

    def rewrite(payload: str) -> str:
        found = json.loads(payload)
        for name, value in changes.items():
            if name.startswith("_"):
                found["job"][int(name[1:])] = value
            else:
                found[name] = value
        return json.dumps(found)

    return rewrite


@pytest.mark.parametrize(
    "rewrite",
    [
        rewritten(_1="[" * 5_000 + "]" * 5_000),
        rewritten(_2="[" * 5_000 + "]" * 5_000),
        rewritten(_2="[]"),
        rewritten(_3="soon"),
        rewritten(_4="-1"),
        rewritten(_5="1e400"),
        rewritten(_6="first"),
        rewritten(_6="9" * 400),
        rewritten(_0="\ud800"),
        rewritten(_7=base64.b64encode(msgspec.msgpack.encode({"de": 5})).decode()),
        rewritten(_7=base64.b64encode(b"\xc1").decode()),
        rewritten(most="x"),
        rewritten(most=-1),
        rewritten(token="\ud800"),
        rewritten(queue="\ud800"),
        lambda payload: payload[:-1] + ',"more":' + "[" * 100_000 + "]" * 100_000 + "}",
        lambda payload: b"\xff\xfe",
        lambda payload: "CAST(x'ff' AS TEXT)",
    ],
)
async def test_row_of_any_content_holds_nobody_up(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ, rewrite: Callable[[str], str | bytes]
) -> None:
    committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(3)])
    with closing(sqlite_book.connect()) as connection:
        [payload] = connection.execute("SELECT payload FROM echomq_outbox WHERE id = 2").fetchone()
        given = rewrite(payload)
        if isinstance(given, str) and given.startswith("CAST"):
            connection.execute(f"UPDATE echomq_outbox SET queue = {given}, payload = {given} WHERE id = 2")
        else:
            connection.execute("UPDATE echomq_outbox SET payload = ? WHERE id = 2", (given,))
        connection.commit()
    assert await Relay(outbox, app, attempts=1).run_until_empty() == 2
    assert await names(app) == [0, 2]
    [row] = await outbox.set_aside()
    assert row.id == 2
    assert await outbox.status() == outbox_module.OutboxStatus(0, 1, None)


@pytest.mark.parametrize("levels", [300, 700, 800, 900, 980, 985, 990, 995, 5_000])
async def test_what_can_be_written_can_be_sent(sqlite_book: Book, outbox: Outbox, app: EchoMQ, levels: int) -> None:
    written = 1
    with contextlib.suppress(EncodingError) if levels > 300 else contextlib.nullcontext():
        committed(sqlite_book, outbox, JobSpec("pack", deep(levels)))
        written = 2
    committed(sqlite_book, outbox, JobSpec("pack", 1))
    assert await Relay(outbox, app).run_until_empty() == written
    assert await outbox.status() == outbox_module.OutboxStatus(0, 0, None)


class Choosy(Codec):
    """A codec with a fault of its own."""

    name = "choosy"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def encode(self, body: bytes) -> None:
        if body == b"1":
            raise self.error

    def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
        return body


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_data_that_are_nested_too_deep_are_refused(sqlite_book: Book, outbox: Outbox) -> None:
    with pytest.raises(EncodingError, match="too deep"):
        committed(sqlite_book, outbox, JobSpec("pack", deep(5_000)))


@pytest.mark.parametrize("error", [ZeroDivisionError(), FileNotFoundError("no key"), MemoryError()])
async def test_error_of_a_codec_is_of_its_row(sqlite_book: Book, outbox: Outbox, url: str, error: Exception) -> None:
    async with EchoMQ(url, codec=Choosy(error)) as app:
        committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(3)])
        committed(sqlite_book, outbox, queue="others")
        assert await Relay(outbox, app, attempts=1).run_until_empty() == 3
        [row] = await outbox.set_aside()
        assert type(error).__name__ in row.reason


async def test_error_that_cannot_say_what_it_is_stops_no_relay(
    sqlite_book: Book, outbox: Outbox, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    def look() -> Any:
        if is_away:
            raise Unspeakable
        return sqlite_book.look()

    async with EchoMQ(url, codec=Choosy(Unspeakable())) as app:
        committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(3)])
        looking = Outbox(look)
        relay = Relay(looking, app, attempts=1, interval=0.01)
        running = asyncio.create_task(relay.run())
        await wait_until(lambda: "Unspeakable: its message cannot be read; it goes on when that is over" in caplog.text)
        is_away = False
        await wait_until(lambda: _waits(outbox, 0), timeout=20)
        await relay.close()
        await running
        await looking.close()
        [row] = await outbox.set_aside()
        assert (row.id, row.reason) == (2, "Unspeakable: its message cannot be read")
        assert await names(app) == [0, 2]


class Store(FileStore):
    """A folder that takes nothing as long as there is trouble, or takes its time over that."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.well = threading.Event()
        self.hangs = False
        self.asked = 0

    def put(self, key: str, body: bytes) -> None:
        self.asked += 1
        if not self.well.wait(60 if self.hangs else 0):
            raise OSError("no space left on device")
        super().put(key, body)


LARGE, SMALL = JobSpec("pack", "x" * 100), JobSpec("pack", "y")


async def test_row_that_the_store_does_not_take_holds_nobody_up(
    sqlite_book: Book, outbox: Outbox, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "store")
    async with EchoMQ(url, codec=Offloaded(store, above=50)) as app:
        committed(sqlite_book, outbox, LARGE, SMALL)
        committed(sqlite_book, outbox, LARGE, SMALL, queue="others")
        relay = Relay(outbox, app, attempts=1, interval=0.01)
        assert await relay.run_until_empty() == 2
        assert caplog.text.count("rows are put off until the store of large payloads takes their data (2 now)") == 1
        running = asyncio.create_task(relay.run())
        await wait_until(lambda: store.asked >= 4)  # and no attempt is used
        assert await outbox.status() == OutboxStatus(2, 0, ANY)
        store.well.set()
        await wait_until(lambda: _waits(outbox, 0), timeout=20)
        await relay.close()
        await running
        assert [len(data) for data in await loaded(app)] == [1, 100]


async def loaded(app: EchoMQ, queue: str = "orders") -> list[Any]:
    return [(await job.load()).data async for job in app.queue(queue).jobs("waiting")]


@pytest.mark.parametrize("timeout", [0.3, 1.2])  # of which the lease is shorter
async def test_store_that_hangs_is_asked_for_one_row(
    sqlite_book: Book, outbox: Outbox, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    store = Store(tmp_path / "store")
    store.hangs = True
    async with EchoMQ(url, codec=Offloaded(store, above=50, timeout=timeout)) as app:
        try:
            committed(sqlite_book, outbox, LARGE, LARGE, SMALL, LARGE, SMALL)
            with monkeypatch.context() as patch:
                patch.setattr(outbox_module, "_FIRST_PUT_OFF", 60.0)
                assert await Relay(outbox, app, lease=1).run_until_empty() == 2
            assert store.asked == 1
            assert await outbox.status() == OutboxStatus(3, 0, ANY)
        finally:
            store.well.set()
        sqlite_book.change("UPDATE echomq_outbox SET claimed_until = 0")  # as if the time had passed
        assert await Relay(outbox, app).run_until_empty() == 3
        assert [len(data) for data in await loaded(app)] == [1, 1, 100, 100, 100]


async def test_slow_store_is_not_given_the_same_again(
    sqlite_book: Book, outbox: Outbox, url: str, tmp_path: Path
) -> None:
    class Slow(Store):
        def put(self, key: str, body: bytes) -> None:
            time.sleep(0.4)
            super().put(key, body)

    store = Slow(tmp_path / "store")
    store.well.set()
    async with EchoMQ(url, codec=Offloaded(store, above=50)) as app:
        committed(sqlite_book, outbox, *[LARGE] * 5)
        assert await Relay(outbox, app, lease=1).run_until_empty() == 5  # a batch takes longer than its lease
        assert store.asked == 5


def test_row_that_the_store_does_not_take_is_put_off_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    store = outbox_module._Store(Relay(Outbox(sqlite3.connect), EchoMQ("redis://127.0.0.1:1")))
    row = outbox_module._Row(1, "orders", "", 0)
    put_off = []
    for _ in range(10):
        store.begin(30)
        put_off.append(store.has_refused(row, 0.1, "no room"))
        assert not store.rest, "others may fare better"
        now += put_off[-1]
    assert put_off == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    rests = []
    for number in range(2, 6):  # now it hangs
        store.begin(30)
        assert store.has_refused(outbox_module._Row(number, "orders", "", 0), 60, "hangs") >= store.rest
        rests.append(store.rest)
        now += rests[-1]
    assert rests == [60, 120, 240, 300]
    store.begin(30)
    store.has_taken(row)
    assert store.has_refused(row, 0.1, "no room") == 1


async def test_full_memory_is_no_fault_of_a_row(sqlite_book: Book, outbox: Outbox, app: EchoMQ, server: Server) -> None:
    committed(sqlite_book, outbox, JobSpec("pack", 1), JobSpec("pack", 2))
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(ServerError, match="OOM"):
            await Relay(outbox, app, attempts=1).run_until_empty()
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")
    assert await Relay(outbox, app).run_until_empty() == 2


async def test_clock_that_was_ahead_holds_no_row(each_book: Book, app: EchoMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = made(each_book)
    committed(each_book, outbox)
    with monkeypatch.context() as patch:
        patch.setattr(outbox_module, "_now_ms", lambda: (time.time_ns() // 1_000_000) + 365 * 86_400_000)
        assert len(await outbox._claim(10, 30.0)) == 1  # and then its relay dies
    assert await Relay(outbox, app).run_until_empty() == 1
    await outbox.close()


async def test_row_that_is_refused_is_put_off_first(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ, server: Server
) -> None:
    committed(sqlite_book, outbox, JobSpec("ship", deduplication="broken"), JobSpec("pack", 5))
    with server.client() as client:
        client.hset("emq:{orders}:de:broken", "not", "a text")
    assert await Relay(outbox, app).run_until_empty() == 1
    assert (await outbox.status()).waiting == 1
    with server.client() as client:
        client.delete("emq:{orders}:de:broken")
    await wait_until(lambda: _waits_after(outbox, app, 0), timeout=20)


async def _waits_after(outbox: Outbox, app: EchoMQ, number: int) -> bool:
    await Relay(outbox, app).run_until_empty()
    return await _waits(outbox, number)


async def test_data_that_are_too_large_are_refused_or_set_aside(sqlite_book: Book, outbox: Outbox, app: EchoMQ) -> None:
    @app.task(queue="orders", max_bytes=30)
    async def pack(what: str) -> None: ...

    with closing(sqlite_book.connect()) as connection:
        outbox.enqueue(connection, pack, "spoon")
        with pytest.raises(PayloadTooLarge, match="max_bytes is 30"):
            outbox.enqueue(connection, pack, "x" * 30)
        outbox.add(connection, JobSpec("pack", "x" * 30, max_bytes=30), queue="orders")
        connection.commit()
    assert await Relay(outbox, app).run_until_empty() == 1
    [row] = await outbox.set_aside()
    assert "PayloadTooLarge" in row.reason


async def test_codecs_are_applied_when_a_row_is_sent(sqlite_book: Book, outbox: Outbox, url: str) -> None:
    async with EchoMQ(url, codec=Compressed(above=10)) as app:
        [job_id] = committed(sqlite_book, outbox, JobSpec("pack", {"what": "spoon" * 100}))
        await Relay(outbox, app).run_until_empty()
        runs: list[Any] = []

        @app.task(queue="orders")
        async def pack(what: str) -> None:
            runs.append(what)

        await app.worker("orders").run_until_drained()
        assert runs == ["spoon" * 100]
    async with EchoMQ(url) as plain:
        job = await plain.queue("orders").get_job(job_id)
        assert job is not None
        assert "$echomq" in job.data


async def test_full_queue_gets_its_jobs_when_there_is_room(sqlite_book: Book, outbox: Outbox, app: EchoMQ) -> None:
    queue = app.queue("orders", max_size=2)
    committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(3)])
    assert await Relay(outbox, app).run_until_empty() == 2
    async for job in queue.jobs("waiting"):
        await job.remove()
    await wait_until(lambda: _waits_after(outbox, app, 0), timeout=20)


async def test_full_queue_holds_no_other_queue_up_and_is_told_once(
    each_book: Book, app: EchoMQ, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = made(each_book)
    full = "überall 'voll' %s 🎟"
    app.queue(full, max_size=1)
    app.queue("orders", max_size=1)
    committed(each_book, outbox, *[JobSpec("pack", number) for number in range(40)], queue=full)
    committed(each_book, outbox, *[JobSpec("pack", number) for number in range(40)])
    committed(each_book, outbox, SPEC, queue="Orders")
    relay = Relay(outbox, app, batch=10, interval=0.01)
    running = asyncio.create_task(relay.run())
    await wait_until(lambda: _has(app, "Orders", 1))
    await wait_until(lambda: _waits(outbox, 78))
    await app.queue("orders").admin.drain()  # and now it has room for one more
    await wait_until(lambda: _waits(outbox, 77), timeout=20)
    await relay.close()
    await running
    assert [record.getMessage() for record in caplog.records] == [
        f"outbox echomq_outbox: queue {name} is full; its rows wait for room"
        for name in (r"\xfcberall 'voll' %s \U0001f39f", "orders")
    ]
    assert await names(app, "orders") == [1]
    assert await Relay(outbox, app, batch=10).run_until_empty() == 0
    assert (await outbox.status()).waiting == 77  # and nobody has them
    assert len(await outbox._claim(1_000, 30.0)) == 77
    await outbox.close()


async def test_jobs_of_a_full_queue_keep_their_order(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_FIRST_LEFT_OUT", 0.01)
    app.queue("orders", max_size=7)
    committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(300)])
    ran: list[Any] = []

    async def run(job: Job[Any]) -> None:
        ran.append(job.data)

    relay = Relay(outbox, app, batch=20, interval=0.01)
    async with Worker("orders", run, connection=app.connection, concurrency=1):
        running = asyncio.create_task(relay.run())
        await wait_until(lambda: len(ran) == 300, timeout=30)
        await relay.close()
        await running
    assert ran == list(range(300))


def test_full_queue_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    app, now = EchoMQ("redis://127.0.0.1:1"), 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    relay = Relay(Outbox(sqlite3.connect), app)
    full, pauses = outbox_module._FullQueues(relay), []
    turn = outbox_module._Turn(app, 1.0, 1, 1.0, outbox_module._Store(relay))
    turn.full.add("orders")
    for _ in range(7):
        full.learn(turn)
        began = now
        while full.left_out():
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    turn.sent.append(outbox_module._Row(1, "orders", "", 0))
    full.learn(turn)
    now += 1
    assert full.left_out() == []
    now += 60
    assert full.left_out() == []
    assert full._found == {}


async def test_row_of_a_full_queue_that_somebody_has_changed_is_put_off(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ
) -> None:
    app.queue("orders", max_size=1)
    committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(4)])
    sqlite_book.change("UPDATE echomq_outbox SET queue = CAST(x'ff' AS TEXT) WHERE id > 1")
    assert await Relay(outbox, app, batch=1).run_until_empty() == 1
    assert await _waits(outbox, 3)


async def _has(app: EchoMQ, queue: str, number: int) -> bool:
    return await app.queue(queue).count() == number


async def test_what_was_sent_is_remembered_for_a_time_and_forgotten_by_later_sendings(
    sqlite_book: Book, outbox: Outbox, app: EchoMQ, server: Server
) -> None:
    with server.client() as client:
        committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(5)])
        await Relay(outbox, app, remember=3600).run_until_empty()
        assert client.zcard("emqx:{orders}:sent") == 5
        assert 3_500 < client.ttl("emqx:{orders}:sent") <= 3600
        members: Any = client.zrange("emqx:{orders}:sent", 0, -1)
        for member in members:
            client.zincrby("emqx:{orders}:sent", -3_700_000, member)
        committed(sqlite_book, outbox, *[JobSpec("pack", number) for number in range(3)])
        await Relay(outbox, app).run_until_empty()
        assert client.zcard("emqx:{orders}:sent") == 3
        await app.queue("orders").admin.obliterate()
        assert client.keys("*") == []


# -- what it says ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda app: Outbox("sqlite://"), "must be an Engine"),
        (lambda app: Outbox(sqlite3.connect(":memory:")), "must be an Engine"),
        (lambda app: Outbox(table="a b"), "must be a name"),
        (lambda app: Outbox(dialect="oracle"), "must be one of"),  # type: ignore[arg-type]
        (lambda app: Relay(Outbox(), app), "must be an Outbox that has a database"),
        (lambda app: Relay(Outbox(lambda: sqlite3.connect("x")), "redis://"), "must be an EchoMQ"),  # type: ignore[arg-type]
        (lambda app: Relay(Outbox(lambda: sqlite3.connect("x")), app, batch=0), "batch=0"),
        (lambda app: Relay(Outbox(lambda: sqlite3.connect("x")), app, remember=2), "must not be shorter than lease"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_wrong_arguments_name_the_remedy(make: Callable[[EchoMQ], Any], says: str, app: EchoMQ) -> None:
    with pytest.raises(InvalidOption, match=says):
        make(app)


async def test_missing_table_is_waited_for(sqlite_book: Book, app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(sqlite_book.look)
    running = asyncio.create_task(Relay(outbox, app, interval=0.01).run())
    await wait_until(lambda: "no such table" in caplog.text)
    for statement in outbox.create_table("sqlite"):
        sqlite_book.change(statement)
    committed(sqlite_book, outbox)
    await wait_until(lambda: _waits(outbox, 0), timeout=20)
    running.cancel()
    await asyncio.wait({running})
    await outbox.close()
