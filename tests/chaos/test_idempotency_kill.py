"""A worker is killed or frozen around the effect of its job. The job is delivered again; the effect is there once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from echomq.connection import Connection
from echomq.idempotency import SQLOnce
from echomq.queue import Queue
from tests.support.server import Server
from tests.support.wait import wait_until

PROGRAM = Path(__file__).with_name("once_worker.py")
Start = Callable[[str, str], "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "book.db")) as db, db:
        db.execute("CREATE TABLE book (line TEXT NOT NULL)")
        db.execute("CREATE TABLE payments (idempotency_key TEXT PRIMARY KEY)")
        db.execute(SQLOnce().create_table("sqlite"))
    return tmp_path


@pytest.fixture
def start(server: Server, folder: Path) -> Iterator[Start]:
    """Starts a worker process of this kind that stays at this place; all are ended with the test."""
    with ExitStack() as stack:

        def started(kind: str, stay_at: str) -> subprocess.Popen[str]:
            command = [sys.executable, str(PROGRAM), server.url, str(folder), kind, stay_at]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            return process

        yield started


def reached(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lines(folder: Path, table: str = "book") -> int:
    with closing(sqlite3.connect(folder / "book.db", timeout=20)) as db:
        (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)


def starts(folder: Path) -> int:
    return (folder / "starts").read_text().count("\n")


@pytest.mark.parametrize(("place", "effects_then"), [("before", 0), ("inside", 0), ("committed", 1)])
async def test_sigkill_around_a_transaction(
    server: Server, folder: Path, start: Start, place: str, effects_then: int
) -> None:
    async with Connection(server.url) as connection, Queue("enrollments", connection=connection) as queue:
        job = await queue.add("enroll", {"learner": 7})
        victim = start("sql", place)
        assert reached(victim) == place
        victim.kill()
        victim.wait()
        assert lines(folder) == effects_then
        heir = start("sql", "")
        first = victim if effects_then else heir
        assert await job.result(timeout=40) == f"by {first.pid}"
        assert (lines(folder), starts(folder)) == (1, 2)


async def test_frozen_worker_comes_back_after_its_job_was_run_by_another(
    server: Server, folder: Path, start: Start
) -> None:
    async with Connection(server.url) as connection, Queue("enrollments", connection=connection) as queue:
        job = await queue.add("enroll", {"learner": 7})
        frozen = start("sql", "before")
        assert reached(frozen) == "before"
        frozen.send_signal(signal.SIGSTOP)
        heir = start("sql", "")
        assert await job.result(timeout=40) == f"by {heir.pid}"
        frozen.send_signal(signal.SIGUSR1)
        frozen.send_signal(signal.SIGCONT)
        # It runs its handler to the end, and then the next job: by then the first is behind it.
        heir.kill()
        heir.wait()
        second = await queue.add("enroll", {"learner": 8})
        assert await second.result(timeout=40) == f"by {frozen.pid}"
        assert (lines(folder), starts(folder)) == (2, 3)


@pytest.mark.parametrize(("place", "payments_then"), [("before", 0), ("claimed", 0), ("applied", 1), ("kept", 1)])
async def test_sigkill_around_an_effect_outside_of_any_transaction(
    server: Server, folder: Path, start: Start, place: str, payments_then: int
) -> None:
    """Between "applied" and "kept" only the far side, given the same key, can tell that it is the same payment."""
    async with Connection(server.url) as connection, Queue("enrollments", connection=connection) as queue:
        job = await queue.add("enroll", {"learner": 7})
        victim = start("redis", place)
        assert reached(victim) == place
        victim.kill()
        victim.wait()
        assert lines(folder, "payments") == payments_then
        heir = start("redis", "")
        first = victim if place == "kept" else heir
        assert await job.result(timeout=40) == f"by {first.pid}"
        assert lines(folder, "payments") == 1
        assert starts(folder) >= 2
        await wait_until(lambda: all(server.cli("PTTL", key) > 0 for key in server.cli("KEYS", "emqx::*")))
