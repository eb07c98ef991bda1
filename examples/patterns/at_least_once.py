"""A job is delivered twice. A plain effect happens twice; an idempotent one happens once.

Three consumers book the same payment. Each is killed at the worst moment, and the next consumer goes on.

    python examples/patterns/at_least_once.py
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from stage import SHORT, checkpoint, claim, plain_client, run, stage, until

from echomq import Job, Queue, Worker
from echomq.idempotency import SQLOnce

once = SQLOnce()


def book(db: sqlite3.Connection, order: int) -> None:
    db.execute("INSERT INTO payments VALUES (?)", (order,))


# -- the children ----------------------------------------------------------------------------------------------------------


def acknowledges_first(url: str, file: str) -> None:
    """At most once: the item is off the list before its effect happens."""
    client = plain_client(url)
    while True:
        _, order = client.brpop(["naive:orders"])
        checkpoint("acknowledged")
        with closing(sqlite3.connect(file)) as db, db:
            book(db, int(order))
        print("booked", flush=True)


def works(queue: str, process: Callable[[Job[Any]], Any], url: str) -> None:
    async def work() -> None:
        async with Worker(queue, process, connection=url, **SHORT) as worker:
            await worker.run()

    asyncio.run(work())


def plain(job: Job[Any]) -> None:
    """At least once, and every delivery counts."""
    with closing(sqlite3.connect(job.data["file"])) as db, db:
        book(db, job.data["order"])
    checkpoint("booked")  # committed, and the queue does not know it yet


def idempotent(job: Job[Any]) -> str:
    """At least once, and only the first delivery counts: the key is written in the transaction of the effect."""
    with closing(sqlite3.connect(job.data["file"])) as db, db, once(db, f"payment:{job.data['order']}") as effect:
        if effect.done:
            print("booked before", flush=True)
            return "booked before"
        book(db, job.data["order"])
    checkpoint("booked")
    return "booked"


# -- the proof -------------------------------------------------------------------------------------------------------------


def payments(file: str) -> int:
    with closing(sqlite3.connect(file)) as db:
        return int(db.execute("SELECT count(*) FROM payments").fetchone()[0])


def new_database(folder: str, name: str) -> str:
    file = str(Path(folder) / f"{name}.db")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE payments (order_id INTEGER)")
        db.execute(once.create_table("sqlite"))
    return file


async def add(url: str, queue: str, file: str) -> None:
    async with Queue(queue, connection=url) as jobs:
        await jobs.add("pay", {"order": 17, "file": file})


def play() -> None:
    with tempfile.TemporaryDirectory() as folder, stage(__file__) as on:
        print("acknowledge, then act")
        file = new_database(folder, "first")
        on.client.lpush("naive:orders", "17")
        consumer = on.start("acknowledges-first", file)
        consumer.says("acknowledged")
        consumer.kill()
        print("  killed after the acknowledgement, before the effect")
        claim(payments(file) == 0 and on.client.llen("naive:orders") == 0, "0 payments, and no job: lost")

        print("act, then acknowledge, with a plain effect")
        file = new_database(folder, "plain")
        asyncio.run(add(on.url, "plain", file))
        consumer = on.start("plain")
        consumer.says("booked")
        consumer.kill()
        print("  killed after the effect, before the acknowledgement")
        consumer = on.start("plain")
        consumer.says("booked")
        consumer.go_on()
        until("the job is completed", lambda: on.client.zcard("emq:{plain}:completed") == 1)
        claim(payments(file) == 2, "2 payments: the job was not lost, and its effect happened twice")

        print("act, then acknowledge, with an idempotent effect")
        file = new_database(folder, "once")
        asyncio.run(add(on.url, "once", file))
        consumer = on.start("once")
        consumer.says("booked")
        consumer.kill()
        print("  killed after the effect, before the acknowledgement")
        consumer = on.start("once")
        consumer.says("booked before")
        until("the job is completed", lambda: on.client.zcard("emq:{once}:completed") == 1)
        claim(on.client.hget("emq:{once}:1", "ats") == "2", "the job was delivered twice")
        claim(payments(file) == 1, "1 payment: delivered at least once, in effect exactly once")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        run(play)
    elif sys.argv[1] == "acknowledges-first":
        acknowledges_first(sys.argv[2], sys.argv[3])
    else:
        works(sys.argv[1], {"plain": plain, "once": idempotent}[sys.argv[1]], sys.argv[2])
