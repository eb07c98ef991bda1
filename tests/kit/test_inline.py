"""Inline: a job has run when it is enqueued, and all that happens to it is what happens to any job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from echomq import Backoff, Deduplication, EchoMQ, EncodingError, Job, JobFailed, RetryLater, current_job
from echomq.testing import Inline, Server, inline

app = EchoMQ("redis://127.0.0.1:1")
attempts: list[int] = []


@app.task(queue="sums")
async def add(a: int, b: int) -> int:
    return a + b


@app.task(queue="sums")
async def add_three(a: int, b: int, c: int) -> int:
    return await (await add.enqueue(await (await add.enqueue(a, b)).result(), c)).result()


@app.task(attempts=3, backoff=Backoff.exponential(3600), pass_job=True)
def flaky(job: Job[Any], fails: int) -> str:
    attempts.append(job.attempts_made)
    job.update_progress(len(attempts))
    if len(attempts) <= fails:
        raise ConnectionError("gone")
    return threading.current_thread().name


@app.task
async def later() -> None:
    job = current_job()
    assert job is not None
    if job.attempts_started < 3:
        raise RetryLater(60)


@pytest.fixture
async def jobs(throw_away: Server) -> AsyncIterator[Inline]:
    attempts.clear()
    async with inline(app, throw_away, patience=10) as jobs:
        yield jobs


async def test_it_has_run(jobs: Inline) -> None:
    job = await add.enqueue(2, 3)
    assert (job.state, job.return_value, job.attempts_made) == ("completed", 5, 1)
    assert await job.result() == 5
    assert await (await add_three.enqueue(1, 2, 3)).result() == 6
    jobs.assert_enqueued(add, count=3)
    assert jobs.left() == []


async def test_attempts_and_delays_are_not_waited_for(jobs: Inline) -> None:
    job = await flaky.options(delay=3600).enqueue(2)
    assert (job.state, job.attempts_made, attempts, job.progress) == ("completed", 3, [0, 1, 2], 3)
    assert "echomq-inline" in await job.result()  # a plain function runs in a thread
    assert (await later.enqueue()).state == "completed"


async def test_errors_are_the_jobs(jobs: Inline) -> None:
    job = await flaky.enqueue(5)
    assert (job.state, job.failed_reason) == ("failed", "ConnectionError: gone")
    with pytest.raises(JobFailed, match="gone"):
        await job.result()
    with pytest.raises(EncodingError, match=r"data\.a"):
        await app.queue("sums").add("add", {"a": float("nan"), "b": 1})
    with pytest.raises(TypeError, match="argument fails='x'"):
        await flaky.enqueue("x")  # type: ignore[arg-type]
    wrong = await app.queue("sums").add("add", {"a": "x", "b": 1})
    assert (wrong.state, wrong.failure_kind) == ("failed", "unrecoverable")


async def test_what_was_there_already_does_not_run_again(jobs: Inline) -> None:
    await add.options(job_id="once").enqueue(1, 1)
    assert (await add.options(job_id="once").enqueue(1, 2)).duplicate
    keyed = add.options(deduplication=Deduplication("k", ttl=60))
    await keyed.enqueue(1, 1)
    assert (await keyed.enqueue(1, 1)).deduplicated
    jobs.assert_enqueued(add, count=2)
    many = await app.queue("sums").add_bulk(add.spec(number, 0) for number in range(5))
    assert [job.return_value for job in many] == [0, 1, 2, 3, 4]


async def test_a_paused_queue_and_one_that_nobody_works(jobs: Inline) -> None:
    assert (await app.queue("elsewhere").add("thing")).state == "waiting"
    await app.queue("sums").pause()
    assert (await add.enqueue(1, 1)).state == "waiting"
    assert len(jobs.left()) == 2


def test_plain_code(throw_away: Server) -> None:
    with inline(app, throw_away) as jobs:
        assert jobs.wait(add.enqueue(1, 2)).return_value == 3

        async def elsewhere() -> Any:
            job = await add.enqueue(3, 4)
            await jobs.rest()
            return job.return_value

        assert asyncio.run(elsewhere()) == 7
