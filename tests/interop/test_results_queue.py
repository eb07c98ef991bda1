"""Results queues beside Node: it works outcomes as any jobs, and its producers' jobs are told of by our workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from echomq import Worker
from tests.interop.conftest import BULL, EMQ, Pair, Place
from tests.support.wait import wait_until


@pytest.mark.parametrize("place", [BULL, EMQ], ids=["bull", "emq"])
async def test_node_adds_we_run_and_node_is_told(make_pair: Callable[..., Pair], place: Place) -> None:
    jobs, results = make_pair(place=place), make_pair(place=place)
    handle = await results.theirs.work()
    sent = [await jobs.theirs.add("echo", {"n": n}, removeOnComplete=True) for n in range(5)]
    failing = await jobs.theirs.add("fail", {"reason": "no"}, removeOnFail=True)
    async with jobs.worker(results_queue=results.name, concurrency=3):

        async def told() -> bool:
            return (await results.ours.counts("completed"))["completed"] == 6

        await wait_until(told)
    assert await jobs.ours.counts("completed", "failed") == {"completed": 0, "failed": 0}
    data = {job.data["job_id"]: job.data async for job in results.ours.jobs("completed")}
    assert [data[job_id]["result"] for job_id in sent] == [{"n": n} for n in range(5)]
    assert (data[failing]["status"], data[failing]["reason"]) == ("failed", "RuntimeError: no")
    assert datetime.fromisoformat(data[failing]["finished_at"]) >= datetime.fromisoformat(data[failing]["added_at"])
    ids = [job.id async for job in results.ours.jobs("completed")]
    assert [await results.theirs.wait(job_id) for job_id in ids] == [
        data_of["result"] for data_of in [(await results.theirs.job(job_id))["data"] for job_id in ids]
    ]
    await results.theirs.stop(handle)


async def test_what_node_ends_itself_it_tells_nobody(make_pair: Callable[..., Pair]) -> None:
    jobs, results = make_pair(), make_pair()
    handle = await jobs.theirs.work()
    async with Worker(jobs.ours, jobs.runs, results_queue=results.name) as ours:
        await ours.ready()
        await ours.pause()
        job_id = await jobs.theirs.add("echo", {"n": 1})
        assert await jobs.theirs.wait(job_id) == {"n": 1}
    await jobs.theirs.stop(handle)
    assert (await results.ours.counts("waiting"))["waiting"] == 0


async def test_an_outcome_that_node_fails_comes_again(make_pair: Callable[..., Pair]) -> None:
    """The attempts and the back-off of an outcome are Node's words too."""
    jobs, results = make_pair(), make_pair()
    await jobs.ours.add("nothing")
    async with jobs.worker(results_queue=results.name):

        async def told() -> bool:
            return (await results.ours.counts("waiting"))["waiting"] == 1

        await wait_until(told)
    [job] = [job async for job in results.ours.jobs("waiting")]
    opts: Any = (await results.theirs.job(job.id))["opts"]
    assert (opts["attempts"], opts["backoff"]) == (10, {"type": "exponential", "delay": 1000})
