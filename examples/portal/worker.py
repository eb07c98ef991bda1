"""A worker process. The demo starts some, kills them as it likes, and starts others in their place.

ECHOMQ_URL=embedded://portal python -m portal.worker --queue enrollments --database portal.db
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from echomq import Backoff, EchoMQ, Job, Keep
from portal.journal import Journal
from portal.leash import end_with_parent
from portal.seats import Answer, Seats

LOCK_DURATION = 3.0
"""Seconds after which the jobs of a silent worker may be given to another. Short, so that one need not wait for long."""

STALLED_INTERVAL = 1.0
"""Seconds between looks for such jobs."""

MAX_STALLED_COUNT = 50
"""How many workers may die over one job before the job is failed. High, because here it is never the job's fault."""

CONCURRENCY = 5

PACE = 0.014
"""Seconds that the work beside the seat takes, on average."""


async def work(queue: str, database: Path, journal: Journal, pace: float) -> None:
    """Takes enrolments from the queue until it is cancelled."""
    app = EchoMQ()  # ECHOMQ_URL says where
    seats = Seats(database)

    @app.task(queue=queue, attempts=5, backoff=Backoff.fixed(0.5), pass_job=True)
    def enroll(job: Job[Any], learner: int, course: str) -> Answer:
        journal.started(job.id)
        look_up_learner(pace)
        answer = seats.enroll(learner, course)
        journal.answered(job.id, answer)
        write_welcome_letter(
            pace
        )  # to die here is the nasty case: the seat is taken, and the queue has not heard of it
        journal.done(job.id)
        return answer

    worker = app.worker(
        queue,
        concurrency=CONCURRENCY,
        lock_duration=LOCK_DURATION,
        stalled_interval=STALLED_INTERVAL,
        max_stalled_count=MAX_STALLED_COUNT,
        remove_on_complete=Keep.ALL,  # so that all finished jobs can be counted in the end
        remove_on_fail=Keep.ALL,
    )
    async with app:
        await worker.run()


def look_up_learner(pace: float = PACE) -> None:
    """Takes half of the time; now and then, when the registry is slow, a quarter of a second more."""
    time.sleep(random.uniform(0, pace) + (0.25 if random.random() < 0.04 else 0))


def write_welcome_letter(pace: float = PACE) -> None:
    """Takes the other half."""
    time.sleep(random.uniform(0, pace))


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    working = asyncio.create_task(work)
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        pass  # told to stop, and stopped in order


def main() -> None:
    """Runs the worker."""
    parser = argparse.ArgumentParser(description="Enrols learners from a queue.")
    parser.add_argument("--queue", default="enrollments")
    parser.add_argument("--database", type=Path, required=True, help="made by Seats.create")
    parser.add_argument("--journal", type=Path, default=Path("/dev/null"), help="where to note each job")
    parser.add_argument("--pace", type=float, default=PACE, help="seconds that an enrolment takes, on average")
    parser.add_argument("--leash", action="store_true", help="end when standard input, a pipe from the parent, ends")
    arguments = parser.parse_args()
    if arguments.leash:
        end_with_parent()
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s")
    asyncio.run(_until_told(work(arguments.queue, arguments.database, Journal(arguments.journal), arguments.pace)))


if __name__ == "__main__":
    main()
