"""A process with one worker of ours, which tells on its standard output what its handlers do; it ends with its input.

python -m tests.interop.our_worker URL QUEUE PREFIX DATABASE '{"concurrency": 4, …}'
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import threading
import time
from contextlib import closing
from typing import Any

from echomq import Job, Worker
from echomq.idempotency import SQLOnce

_once = SQLOnce()


def tell(news: str, **fields: Any) -> None:
    """One line, written at once and whole."""
    os.write(1, (json.dumps({"news": news, **fields}) + "\n").encode())


def apply(database: str, key: str) -> None:
    """The effect: one more row, once for each key."""
    with closing(sqlite3.connect(database, timeout=30)) as db, db, _once(db, key) as effect:
        if not effect.done:
            db.execute("INSERT INTO seats (learner) VALUES (?)", (key,))


def make_tables(database: str) -> None:
    """An empty database for the effects."""
    with closing(sqlite3.connect(database)) as db, db:
        db.execute(_once.create_table("sqlite"))
        db.execute("CREATE TABLE seats (learner TEXT NOT NULL)")


async def main(url: str, queue: str, prefix: str, database: str, options: dict[str, Any]) -> None:
    """Works until its input ends."""

    def process(job: Job[Any]) -> Any:
        tell("start", id=job.id, name=job.name, started=job.attempts_started, made=job.attempts_made)
        if job.name == "hang":
            job.cancelled.wait()
            tell("lost", id=job.id, started=job.attempts_started)
            return None
        time.sleep(job.data["seconds"])
        if job.attempts_made < job.data["fails"]:
            tell("throw", id=job.id, started=job.attempts_started)
            raise RuntimeError("as planned")
        if job.cancelled.is_set():
            tell("lost", id=job.id, started=job.attempts_started)
        apply(database, job.data["key"])
        tell("return", id=job.id, started=job.attempts_started)
        return job.data["key"]

    async with Worker(queue, process, connection=url, prefix=prefix, **options) as worker:
        await worker.ready()
        tell("ready")
        await worker.run()


if __name__ == "__main__":
    # Also when the test process was killed: then nobody is there to be told.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server_url, its_queue, its_prefix, effects, worker_options = sys.argv[1:]
    asyncio.run(main(server_url, its_queue, its_prefix, effects, json.loads(worker_options)))
