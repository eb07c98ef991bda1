"""A worker that was told to slow down does so, with and without a limit of its own, and drains all the same."""

from __future__ import annotations

import itertools
import time

import pytest

from echomq import Connection, Job, JobSpec, Limiter, Queue, RateLimited, Worker


@pytest.mark.parametrize("limiter", [None, Limiter(max=100, duration=60)])
async def test_a_job_that_was_told_to_wait_is_not_fetched_meanwhile(url: str, limiter: Limiter | None) -> None:
    runs: list[float] = []

    async def process(job: Job[None]) -> None:
        runs.append(time.monotonic())
        if len(runs) < 3:
            raise RateLimited(0.2)

    async with Connection(url) as connection, Queue("calls", connection=connection) as queue:
        await queue.add("call")
        worker = Worker("calls", process, connection=connection, concurrency=4, limiter=limiter)
        await worker.run_until_drained()
        assert len(runs) == 3
        assert all(later - earlier >= 0.19 for earlier, later in itertools.pairwise(runs))
        job = await queue.get_job("1")
        assert job is not None
        assert (job.state, job.attempts_started, job.attempts_made) == ("completed", 3, 1)


async def test_a_rate_limit_is_not_the_end_of_a_drain(url: str) -> None:
    async def process(job: Job[None]) -> None:
        return None

    async with Connection(url) as connection, Queue("calls", connection=connection) as queue:
        await queue.add_bulk([JobSpec("call")] * 5)
        limiter = Limiter(max=2, duration=0.2)
        await Worker("calls", process, connection=connection, concurrency=4, limiter=limiter).run_until_drained()
        assert (await queue.counts("completed", "waiting")) == {"completed": 5, "waiting": 0}
