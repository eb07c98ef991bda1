"""Workers are killed while jobs fail for good, and by the jobs themselves: no letter is lost, none is written twice."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from echomq import Backoff, Job, JobSpec, JobState, Queue, Worker
from tests.api.test_retries import Counted, counted, table
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until

FAST: dict[str, Any] = {"lock_duration": 0.5, "stalled_interval": 0.2}

FAILING_WORKER = """
import asyncio, json, sys
from echomq import Worker

async def process(job):
    if job.name == "deadly":
        print("runs", flush=True)
        await asyncio.sleep(60)
    raise ValueError(job.data["n"])

async def main():
    await Worker("jobs", process, connection=sys.argv[1], **json.loads(sys.argv[2])).run()

asyncio.run(main())
"""


@contextmanager
def failing_worker(url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, killed at the end of the block."""
    command = [sys.executable, "-c", FAILING_WORKER, url, json.dumps({**FAST, **options})]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("jobs", connection=url) as queue:
        yield queue


async def test_killed_while_jobs_fail_for_good(queue: Queue, server: Server) -> None:
    jobs = await queue.add_bulk([JobSpec("job", {"n": n}) for n in range(400)])
    options: dict[str, Any] = {"dead_letter": True, "max_stalled_count": 100, "concurrency": 4}
    for deaths in range(1, 4):

        async def some_have_failed(enough: int = deaths * 60) -> bool:
            return (await queue.counts("failed"))["failed"] >= enough

        with failing_worker(server.url, **options):
            await wait_until(some_have_failed)
            await asyncio.sleep(random.uniform(0, 0.02))

    async def all_have_failed() -> bool:
        return (await queue.counts("failed"))["failed"] == len(jobs)

    with failing_worker(server.url, **options):
        await wait_until(all_have_failed, 20)
    letters = [job async for job in queue.dead_letter.jobs()]
    assert Counter(job.dead_letter.job_id for job in letters if job.dead_letter) == Counter(job.id for job in jobs)
    assert [job.state for job in letters] == ["waiting"] * len(jobs)
    with server.client() as client:
        assert audit(client, "emq", "jobs") == []
    assert len(await queue.dead_letter.requeue()) == len(jobs)


async def dies(queue: Queue, url: str, state: JobState, **options: Any) -> Counted:
    """The job is run by a worker that dies; gives by how much its counters have moved once it is in this state."""
    before = await counted(queue, "1")
    with failing_worker(url, **options) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "runs\n"
    await is_in(queue, state)
    return moved(before, await counted(queue, "1"))


def moved(before: Counted, after: Counted) -> Counted:
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


async def is_in(queue: Queue, state: JobState) -> None:
    async def there() -> bool:
        job = await queue.get_job("1")
        return job is not None and job.state == state

    await wait_until(there)


async def never(job: Job[Any]) -> None:
    raise AssertionError("it is not run here")


async def test_a_job_that_kills_its_workers_waits_longer_each_time(queue: Queue, url: str) -> None:
    await queue.add("deadly")
    rows = table()
    sweeper = Worker(queue, never, on_crash_limit="backoff", crash_backoff=Backoff.linear(0.3), **FAST)
    await sweeper.pause()
    async with sweeper:
        assert await dies(queue, url, "waiting") == rows["its worker died, and it was put back"]
        for wait in (0.3, 0.6):
            found = await dies(queue, url, "delayed", stalled_interval=3600)
            assert found == rows["its worker died beyond the limit, and it waits"]
            job = await queue.get_job("1")
            assert job is not None
            assert (job.delay, job.failed_reason) == (wait, None)


async def test_a_job_that_kills_its_workers_leaves_a_dead_letter(queue: Queue, url: str) -> None:
    await queue.add("deadly", {"n": 1})
    rows = table()
    options: dict[str, Any] = {"on_crash_limit": "dead_letter", **FAST}
    sweeper = Worker(queue, never, **options)
    await sweeper.pause()
    async with sweeper:
        for _ in range(2):
            await dies(queue, url, "waiting", stalled_interval=3600)
        before = await counted(queue, "1")
        await sweeper.resume()
        await is_in(queue, "failed")
    assert (
        moved(before, await counted(queue, "1")) == rows["failed by the next worker, since its workers died too often"]
    )
    [letter] = [job async for job in queue.dead_letter.jobs("waiting")]
    assert letter.dead_letter is not None
    assert (letter.failure_kind, letter.dead_letter.reason) == ("crashed", "job stalled more than allowable limit")
    await queue.add("job", {"n": 2})
    async with Worker(queue, never, **options) as worker:
        await worker.run_until_drained()
    assert (await queue.dead_letter.counts("waiting"))["waiting"] == 1  # other failures leave none
