"""What counts as an attempt: the table of docs/lifecycle.md, row by row."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from echomq import Job, JobState, Queue, RateLimited, RetryLater, Unrecoverable, Worker
from tests.support.wait import wait_until

DYING_WORKER = """
import asyncio, sys
from echomq import Worker

async def process(job):
    print("runs", flush=True)
    await asyncio.sleep(60)

async def main():
    await Worker("jobs", process, connection=sys.argv[1], lock_duration=0.5, stalled_interval=0.2).run()

asyncio.run(main())
"""


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("jobs", connection=url) as queue:
        yield queue


async def has_run_to(queue: Queue, state: JobState) -> bool:
    job = await queue.get_job("1")
    return job is not None and job.attempts_started > 0 and job.state == state


async def counters(queue: Queue) -> tuple[int, int, int]:
    job = await queue.get_job("1")
    assert job is not None
    return job.attempts_started, job.attempts_made, job.stalled_count


@pytest.mark.parametrize(
    ("error", "attempts", "state", "expected"),
    [
        pytest.param(None, 1, "completed", (1, 1, 0), id="returned"),
        pytest.param(ValueError("no"), 3, "delayed", (1, 1, 0), id="raised"),
        pytest.param(ValueError("no"), 1, "failed", (1, 1, 0), id="raised for the last time"),
        pytest.param(Unrecoverable("no"), 3, "failed", (1, 1, 0), id="raised Unrecoverable"),
        pytest.param(RetryLater(60), 3, "delayed", (1, 0, 0), id="raised RetryLater"),
        pytest.param(RateLimited(60), 3, "waiting", (1, 0, 0), id="raised RateLimited"),
    ],
)
async def test_one_run(
    queue: Queue, url: str, error: Exception | None, attempts: int, state: JobState, expected: tuple[int, int, int]
) -> None:
    async def process(job: Job[Any]) -> None:
        if error is not None:
            raise error

    await queue.add("job", attempts=attempts, backoff=60)
    async with Worker("jobs", process, connection=url):
        await wait_until(lambda: has_run_to(queue, state))
    assert await counters(queue) == expected


async def test_given_back_after_its_handler_had_begun(queue: Queue, url: str) -> None:
    begun = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        begun.set()
        await asyncio.sleep(60)

    await queue.add("job")
    async with Worker("jobs", process, connection=url) as worker:
        await begun.wait()
        await worker.close(force=True)
    assert (await queue.counts("waiting"))["waiting"] == 1
    assert await counters(queue) == (1, 0, 0)


async def test_its_worker_died_more_often_than_is_allowed(queue: Queue, url: str) -> None:
    await queue.add("job")
    for deaths in (1, 2):
        dying = subprocess.Popen([sys.executable, "-c", DYING_WORKER, url], stdout=subprocess.PIPE, text=True)
        assert dying.stdout is not None
        assert await asyncio.to_thread(dying.stdout.readline) == "runs\n"
        dying.kill()
        dying.communicate()
        assert await counters(queue) == (deaths, 0, deaths - 1)

    async def process(job: Job[Any]) -> None:
        raise AssertionError("a job that has stalled too often is not run")

    async with Worker("jobs", process, connection=url, lock_duration=0.5, stalled_interval=0.2):
        await wait_until(lambda: has_run_to(queue, "failed"))
    assert await counters(queue) == (3, 1, 2)
    job = await queue.get_job("1")
    assert job is not None
    assert job.failed_reason == "job stalled more than allowable limit"
