"""A worker whose handler has an effect, for the tests to kill: ``once_worker.py URL FOLDER sql|redis WHERE``.

When the handler comes to WHERE it says so on the output and stays there. The effects stand in ``FOLDER/book.db``; each start
of the handler is a line in ``FOLDER/starts``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from echomq.connection import Connection
from echomq.idempotency import RedisOnce, SQLOnce, job_key
from echomq.job import Job
from echomq.worker import Processor, Worker

once = SQLOnce()


class Handlers:
    def __init__(self, connection: Connection, folder: Path, stay_at: str) -> None:
        self._connection = connection
        self._folder = folder
        self._stay_at = stay_at
        self._redis_once = RedisOnce(connection, lease=1)

    def _reach(self, place: str) -> None:
        if place == self._stay_at:
            self._stay_at = ""  # once: after a SIGCONT it goes on
            os.write(1, f"{place}\n".encode())
            signal.sigwait({signal.SIGUSR1})

    def _begin(self, job: Job[Any]) -> None:
        with (self._folder / "starts").open("a") as starts:
            starts.write(f"{job.id}\n")
        self._reach("before")

    def sql(self, job: Job[Any]) -> Any:
        """The effect and its key in one transaction."""
        self._begin(job)
        with closing(sqlite3.connect(self._folder / "book.db", timeout=20)) as db:
            with db, once(db, job_key(job)) as effect:
                if not effect.done:
                    db.execute("INSERT INTO book (line) VALUES (?)", (job.id,))
                    self._reach("inside")
                    effect.result = f"by {os.getpid()}"
            self._reach("committed")
        return effect.result

    async def redis(self, job: Job[Any]) -> Any:
        """The effect at a far side that knows idempotency keys."""
        self._begin(job)
        async with self._redis_once(job_key(job)) as effect:
            if effect.done:
                return effect.result
            self._reach("claimed")
            with closing(sqlite3.connect(self._folder / "book.db", timeout=20)) as far_side, far_side:
                far_side.execute("INSERT INTO payments VALUES (?) ON CONFLICT DO NOTHING", (effect.key,))
            self._reach("applied")
            effect.result = f"by {os.getpid()}"
        self._reach("kept")
        return effect.result


async def main(url: str, folder: str, kind: str, stay_at: str) -> None:
    connection = Connection(url)
    handlers = Handlers(connection, Path(folder), stay_at)
    process: Processor = handlers.sql if kind == "sql" else handlers.redis
    worker = Worker(
        "enrollments", process, connection=connection, lock_duration=1, stalled_interval=0.5, max_stalled_count=50
    )
    await worker.run()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # for sigwait, in every thread
    asyncio.run(main(*sys.argv[1:]))
