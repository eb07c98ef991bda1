"""Jobs of every kind, many at once, in few processes: each ends as it must, whatever its neighbours do to theirs."""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import pytest

from echomq import Call, Job, JobFailed, JobSpec, ProcessPool, Queue, Worker
from tests.support.server import Server
from tests.worker import process_tasks

KINDS: dict[str, tuple[list[Any], str | None]] = {
    "give": ([1], None),
    "nap": ([0.02], None),
    "fail": (["plain"], "Plain: word"),
    "leave": ([3], "exit code 3"),
    "segfault": ([], "SIGSEGV"),
    "compute": ([], "TimeoutError"),
}
WEIGHTS = {"give": 200, "nap": 8, "fail": 20, "leave": 2, "segfault": 2, "compute": 1}


def route(job: Job[Any]) -> Call:
    timeout = 0.1 if job.name == "compute" else None
    return Call(functools.partial(getattr(process_tasks, job.name), *job.data), timeout=timeout, process=True)


async def all_end_as_they_must(url: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    names = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=count)
    pool = ProcessPool(size=3, max_jobs=chance.choice((None, 7, 100)))
    async with (
        Queue("mixed", connection=url) as queue,
        Worker("mixed", route=route, connection=url, processes=pool, concurrency=50),
    ):
        jobs = await queue.add_bulk([JobSpec(name, KINDS[name][0]) for name in names])
        for name, job in zip(names, jobs, strict=True):
            told = KINDS[name][1]
            if told is None:
                await job.result(timeout=50)
            else:
                with pytest.raises(JobFailed, match=told):
                    await job.result(timeout=50)
            found = await job.refresh()
            assert found is not None
            assert (found.attempts_made, found.attempts_started, found.stalled_count) == (1, 1, 0), (seed, name, job.id)
        assert (await queue.counts())["active"] == 0


async def test_each_job_ends_as_it_must(url: str) -> None:
    await all_end_as_they_must(url, 1, 400)


@pytest.mark.torture
async def test_each_job_ends_as_it_must_many_times(server: Server) -> None:
    for seed in range(int(os.environ.get("ECHOMQ_ROUNDS", "10"))):
        server.flush()
        await all_end_as_they_must(server.url, seed, 2_000)
