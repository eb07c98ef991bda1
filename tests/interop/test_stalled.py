"""A worker of either side is killed in the middle of a job; a worker of the other side runs the job again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.conftest import Pair
from tests.interop.processes import OurProcess
from tests.support.node_peer import NodeError, NodePeer
from tests.support.server import Server
from tests.support.wait import wait_until

# As short as it goes without stalls of their own on a busy machine.
NODE_FAST: dict[str, Any] = {"lockDuration": 1000, "stalledInterval": 400}
OURS_FAST: dict[str, Any] = {"lock_duration": 1.0, "stalled_interval": 0.4}


def counters(job: dict[str, Any]) -> tuple[int, int, int]:
    """atm, ats, stc."""
    return job["attemptsMade"], job["attemptsStarted"], job["stalledCounter"]


async def test_node_runs_what_our_killed_worker_had(pair: Pair, server: Server) -> None:
    ids = [await pair.theirs.add("hang", {"n": n}, attempts=1) for n in range(3)]
    urgent = await pair.theirs.add("hang", {}, priority=5)
    with OurProcess(server.url, pair.name, pair.place.prefix, concurrency=4, **OURS_FAST) as ours:
        await ours.tells("start", times=4)
        ours.kill()
    await pair.theirs.listen()
    await pair.theirs.work(concurrency=4, **NODE_FAST)
    for job_id in [*ids, urgent]:
        await pair.node.tells("start", id=job_id)
        await pair.node("release", id=job_id, value="by node")
        assert await pair.theirs.wait(job_id) == "by node"
        job = await pair.theirs.job(job_id)
        assert counters(job) == (1, 2, 1)
    assert await pair.theirs.counts() == {"completed": 4}
    stalled = [news["args"]["jobId"] for news in pair.node.told("event", event="stalled")]
    assert sorted(stalled) == sorted([*ids, urgent])


async def test_we_run_what_a_killed_node_had(pair: Pair, server: Server, node: NodePeer, doomed: NodePeer) -> None:
    ids = [await pair.theirs.add("hang", {"n": n}, attempts=1) for n in range(3)]
    ids.append(await pair.theirs.add("hang", {}, priority=5))
    theirs = doomed.queue(pair.theirs.name, prefix=pair.theirs.prefix)
    await theirs.work(concurrency=4, **NODE_FAST)
    await doomed.tells("start", times=4)
    doomed.kill()
    await pair.theirs.listen()
    async with pair.worker(concurrency=4, **OURS_FAST):
        for job_id in ids:
            await wait_until(lambda job_id=job_id: pair.runs.of(job_id))
            pair.runs.gates[job_id].set()
            assert await pair.theirs.wait(job_id) == "let go"
            [run] = pair.runs.of(job_id)
            assert (run.made, run.started, run.stalled) == (0, 2, 1)
            assert counters(await pair.theirs.job(job_id)) == (1, 2, 1)
    assert await pair.theirs.counts() == {"completed": 4}
    stalled = [news["args"]["jobId"] for news in node.told("event", event="stalled")]
    assert sorted(stalled) == sorted(ids)


@pytest.mark.parametrize("finisher", ["ours", "theirs"])
async def test_a_job_that_stalled_too_often_fails_with_the_same_words(
    bull: Pair, server: Server, finisher: str
) -> None:
    """Whoever sweeps it marks it, and whoever fetches it next fails it, without calling its handler."""
    job_id = await bull.theirs.add("hang", {}, attempts=3)
    await bull.theirs.listen()
    with OurProcess(server.url, bull.name, "bull", **OURS_FAST) as ours:
        await ours.tells("start")
        ours.kill()
    if finisher == "ours":
        async with bull.worker(max_stalled_count=0, **OURS_FAST):
            with pytest.raises(NodeError, match="job stalled more than allowable limit"):
                await bull.theirs.wait(job_id)
    else:
        await bull.theirs.work(maxStalledCount=0, **NODE_FAST)
        with pytest.raises(NodeError, match="job stalled more than allowable limit"):
            await bull.theirs.wait(job_id)
    assert not bull.runs.seen
    assert not bull.node.told("start")
    job = await bull.theirs.job(job_id)
    assert job["failedReason"] == "job stalled more than allowable limit"
    assert counters(job) == (1, 2, 1)
    assert not job.get("deferredFailure")


@pytest.mark.parametrize("sweeper", ["ours", "theirs"])
async def test_what_one_side_marked_the_other_side_fails(bull: Pair, server: Server, sweeper: str) -> None:
    """One side's sweep sets the deferred failure while the other side alone fetches."""
    job_id = await bull.theirs.add("hang", {})
    with OurProcess(server.url, bull.name, "bull", **OURS_FAST) as ours:
        await ours.tells("start")
        ours.kill()
    if sweeper == "ours":
        async with bull.worker(max_stalled_count=0, **OURS_FAST) as worker:
            await worker.pause()
            await wait_until(lambda: _is(bull, job_id, "waiting"))
        await bull.theirs.work(stalledInterval=60_000)
    else:
        handle = await bull.theirs.work(maxStalledCount=0, **NODE_FAST)
        await bull.ours.pause()
        await wait_until(lambda: _is(bull, job_id, "waiting"))
        await bull.theirs.stop(handle)
        await bull.ours.resume()
    if sweeper == "ours":
        with pytest.raises(NodeError, match="job stalled more than allowable limit"):
            await bull.theirs.wait(job_id)
    else:
        async with bull.worker():
            with pytest.raises(NodeError, match="job stalled more than allowable limit"):
                await bull.theirs.wait(job_id)
    assert not bull.runs.seen
    assert not bull.node.told("start")


async def _is(pair: Pair, job_id: str, state: str) -> bool:
    return await pair.theirs.state(job_id) == state


async def test_nobody_takes_a_job_from_a_worker_that_lives(bull: Pair) -> None:
    """Both sides sweep often while each runs a job for longer than its lock lasts."""
    ids = [await bull.theirs.add("slow", {"seconds": 3}) for _ in range(4)]
    await bull.theirs.work(concurrency=2, **NODE_FAST)
    async with bull.worker(concurrency=2, **OURS_FAST):
        for job_id in ids:
            assert await bull.theirs.wait(job_id) == "slept"
            assert counters(await bull.theirs.job(job_id)) == (1, 1, 0)
    assert bull.runs.seen
    assert bull.node.told("start")
