"""Outcomes are told exactly as jobs end: while workers are killed, and while calls and replies are lost at every step."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from echomq import Connection, Job, JobSpec, Keep, Queue, Worker
from tests.support.audit import audit
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

FAST: dict[str, Any] = {"lock_duration": 0.5, "stalled_interval": 0.2}

WORKER = """
import asyncio, json, sys
from echomq import Keep, Queue, Worker

async def process(job):
    if job.data["n"] % 3 == 0:
        raise ValueError(job.data["n"])
    return job.data["n"]

async def main():
    url, there, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    await Worker(
        "jobs", process, connection=url, results_queue=Queue("results", connection=there),
        remove_on_complete=Keep.NONE, remove_on_fail=Keep.NONE, **options
    ).run()

asyncio.run(main())
"""


@contextmanager
def telling_worker(url: str, there: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, killed at the end of the block."""
    options = {**FAST, "max_stalled_count": 1000, "concurrency": 4}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, url, there, json.dumps(options)], stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def process(job: Job[Any]) -> int:
    return int(job.data["n"])


@pytest.mark.parametrize("elsewhere", [False, True], ids=["at once", "outbox"])
async def test_workers_are_killed(server: Server, make_server: Callable[..., Server], elsewhere: bool) -> None:
    there = make_server() if elsewhere else server
    async with Queue("jobs", connection=server.url) as queue, Queue("results", connection=there.url) as results:
        jobs = await queue.add_bulk([JobSpec("job", {"n": n}) for n in range(600)])

        async def enough(number: int) -> bool:
            return (await results.counts("waiting"))["waiting"] >= number

        for deaths in range(1, 5):
            with telling_worker(server.url, there.url), telling_worker(server.url, there.url):
                await wait_until(lambda number=deaths * 100: enough(number), 20)
                await asyncio.sleep(random.uniform(0, 0.02))
        with telling_worker(server.url, there.url):
            await wait_until(lambda: enough(len(jobs)), 30)
            await wait_until(lambda: server.cli("XLEN", "emqx:{jobs}:outbox") == 0, 30)
        told = [job.data async for job in results.jobs("waiting")]
        assert Counter(one["job_id"] for one in told) == Counter(job.id for job in jobs)
        assert Counter(one["status"] for one in told) == {"failed": 200, "completed": 400}
    with server.client() as client:
        assert audit(client, "emq", "jobs") == []
    with there.client() as client:
        assert audit(client, "emq", "results") == []


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("step", ["moveToFinished-14", "takeOutcomes-2", "addJobs-11"])
async def test_calls_are_lost(server: Server, make_server: Callable[..., Server], step: str, loss: Loss) -> None:
    other = make_server()
    async with (
        Proxy(server) as here, Proxy(other) as there, Queue("jobs", connection=server.url) as queue,
        Queue("results", connection=Connection(there.url, wait=0)) as results,
    ):  # fmt: skip
        jobs = await queue.add_bulk([JobSpec("job", {"n": n}) for n in range(40)])
        at = there if step == "addJobs-11" else here
        at.lose(loss, needle(step), times=3)
        options: dict[str, Any] = {"remove_on_complete": Keep.NONE, "concurrency": 2, **FAST}
        async with Worker("jobs", process, connection=here.url, results_queue=results, **options):

            async def all_told() -> bool:
                return int(other.cli("LLEN", "emq:{results}:wait")) == len(jobs)

            await wait_until(all_told, 30)
            await wait_until(lambda: server.cli("XLEN", "emqx:{jobs}:outbox") == 0)
        assert at.lost >= 1
        async with Queue("results", connection=other.url) as quiet:
            told = [job.data["job_id"] async for job in quiet.jobs("waiting")]
        assert Counter(told) == Counter(job.id for job in jobs)
