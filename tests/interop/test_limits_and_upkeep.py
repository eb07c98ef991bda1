"""Limits that Node sets hold for all workers, and Node's upkeep of a queue of ours harms nothing."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from echomq import Job, JobLocked, Limiter, Worker
from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.server import Server
from tests.support.wait import wait_until


async def finish(pair: Pair, ids: list[str]) -> list[dict[str, Any]]:
    """The jobs, when all have ended."""
    for job_id in ids:
        await pair.theirs.wait(job_id)
    return [await pair.theirs.job(job_id) for job_id in ids]


def most_at_once(jobs: list[dict[str, Any]]) -> int:
    """How many of them ran at the same moment, by their own times."""
    changes = sorted(
        [(job["finishedOn"], -1) for job in jobs] + [(job["processedOn"], 1) for job in jobs],
    )
    return max(itertools.accumulate(change for _, change in changes))


async def test_global_concurrency_holds_over_both_kinds_of_workers(pair: Pair) -> None:
    node = pair.theirs
    await node.call("setGlobalConcurrency", 2)
    ids = await node.add_bulk([{"name": "slow", "data": {"seconds": 0.05}} for _ in range(24)])
    await node.work(concurrency=5)
    async with pair.worker(concurrency=5):
        jobs = await finish(pair, ids)
    assert most_at_once(jobs) <= 2


async def test_global_rate_limit_holds_over_both_kinds_of_workers(pair: Pair) -> None:
    node = pair.theirs
    await node.call("setGlobalRateLimit", 4, 400)
    ids = await node.add_bulk([{"name": "nothing"} for _ in range(14)])
    await node.work(concurrency=3)
    async with pair.worker(concurrency=3):
        jobs = await finish(pair, ids)
    starts = sorted(job["processedOn"] for job in jobs)
    windows = starts[::4]  # each opens with the first start that the one before did not admit
    assert all(later - sooner >= 300 for sooner, later in itertools.pairwise(windows))


async def test_the_limit_of_a_worker_is_shared_with_nodes_of_the_same_limit(bull: Pair) -> None:
    node = bull.theirs
    ids = await node.add_bulk([{"name": "nothing"} for _ in range(12)])
    await node.work(concurrency=3, limiter={"max": 3, "duration": 300})
    async with bull.worker(concurrency=3, limiter=Limiter(max=3, duration=0.3)):
        jobs = await finish(bull, ids)
    starts = sorted(job["processedOn"] for job in jobs)
    assert all(later - sooner >= 200 for sooner, later in itertools.pairwise(starts[::3]))


async def test_neither_side_removes_what_the_other_is_running(bull: Pair) -> None:
    async with bull.worker():
        by_us = await bull.ours.add("hang")
        await wait_until(lambda: bull.runs.of(by_us.id))
        with pytest.raises(NodeError, match="lock"):
            await bull.theirs.remove(by_us.id)
        bull.runs.gates[by_us.id].set()
        assert await by_us.result(timeout=10) == "let go"
    await bull.theirs.work()
    by_node = await bull.ours.add("hang")
    await bull.node.tells("start", id=by_node.id)
    with pytest.raises(JobLocked):
        await by_node.remove()
    await bull.node("release", id=by_node.id, value=1)
    assert await by_node.result(timeout=10) == 1
    await bull.theirs.remove(by_us.id)
    await by_node.remove()
    assert await bull.theirs.counts() == {}


IDS = ["order 17/ä", "😀", "a:b:c", "__proto__", "constructor", "1.5", "007", "x" * 300]
NAMES = ["ünï cödé 😀", "a:b", "__proto__", "n" * 300, "\x00"]


async def test_ids_and_names_of_every_shape(pair: Pair) -> None:
    async def process(job: Job[Any]) -> Any:
        return [job.id, job.name]

    theirs = {await pair.theirs.add("named", {}, jobId=job_id): job_id for job_id in IDS}
    assert list(theirs) == IDS
    named = [(await pair.ours.add(name)).id for name in NAMES] + [await pair.theirs.add(name) for name in NAMES]
    async with Worker(pair.ours, process):
        for job_id in IDS:
            assert await pair.theirs.wait(job_id) == [job_id, "named"]
        for job_id, name in zip(named, NAMES * 2, strict=True):
            assert await pair.theirs.wait(job_id) == [job_id, name]
            assert (await pair.theirs.job(job_id))["name"] == name
    ours = [
        await pair.ours.add("echo", {"n": n}, job_id=f"our {job_id}")
        for n, job_id in enumerate(IDS)
        if ":" not in job_id
    ]
    await pair.theirs.work()
    for job in ours:
        assert await job.result(timeout=10) == job.data


@pytest.mark.parametrize("method", ["removeOrphanedJobs", "trimEvents", "promoteJobs", "retryJobs", "drain", "clean"])
async def test_nodes_upkeep_while_we_work(pair: Pair, server: Server, method: str) -> None:
    """Nothing that runs is lost, no call of ours loses its lane, and what is added afterwards is done."""
    arguments: dict[str, list[Any]] = {"trimEvents": [1], "clean": [60_000, 100, "completed"], "drain": [True]}
    node = pair.theirs
    async with pair.worker(concurrency=4):
        done = [await pair.ours.add("echo", {"n": n}) for n in range(3)]
        for job in done:
            await job.result(timeout=10)
        failed = await node.add("fail", {"times": 1})
        with pytest.raises(NodeError):
            await node.wait(failed)
        held = await pair.ours.add("hang")
        later = await pair.ours.add("echo", {"later": True}, delay=60)
        await wait_until(lambda: pair.runs.of(held.id))
        own = set(server.cli("KEYS", f"{pair.place.prefix}x:*"))
        assert own
        await node.call(method, *arguments.get(method, []))
        assert set(server.cli("KEYS", f"{pair.place.prefix}x:*")) == own
        pair.runs.gates[held.id].set()
        assert await held.result(timeout=10) == "let go"
        again = await asyncio.gather(*(pair.ours.add("echo", {"n": n}) for n in range(20)))
        for n, job in enumerate(again):
            assert await job.result(timeout=10) == {"n": n}
        if method == "promoteJobs":
            assert await later.result(timeout=10) == {"later": True}
        if method == "retryJobs":
            assert await node.wait(failed) == "at last"
        for job in done:
            assert await job.refresh() is not None
        gone = await later.refresh() is None
        assert gone == (method == "drain")
    assert server.cli("LLEN", pair.key("active")) == 0


async def test_a_long_line_is_worked_by_both_in_no_more_than_one_run_each(pair: Pair) -> None:
    ids = await pair.theirs.add_bulk([{"name": "echo", "data": {"n": n}} for n in range(1500)])
    await pair.theirs.work(concurrency=50)
    async with pair.worker(concurrency=50):
        await wait_until(lambda: _completed(pair, 1500), 30)
        await pair.node.tells("start", times=1500 - len(pair.runs.seen))
    starts = [run.id for run in pair.runs.seen] + [news["id"] for news in pair.node.told("start")]
    assert sorted(starts, key=int) == ids
    assert len(pair.runs.seen) > 0
    assert pair.node.told("start")


async def _completed(pair: Pair, number: int) -> bool:
    return await pair.ours.counts("completed") == {"completed": number}
