"""Cancelled jobs beside Node: what it sees of them, what becomes of those that it added or runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from echomq import JobCancelled
from tests.interop.conftest import Pair
from tests.interop.test_flows import child, parent
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until

WHY = "the learner has left"


async def theirs_failed(pair: Pair, job_id: str) -> dict[str, Any]:
    """The job as Node sees it, which has failed; its ``waitUntilFinished`` rejects with the reason."""
    with pytest.raises(NodeError, match=WHY):
        await pair.theirs.wait(job_id)
    assert await pair.theirs.state(job_id) == "failed"
    job = await pair.theirs.job(job_id)
    assert job["failedReason"] == WHY
    return job


@pytest.mark.parametrize("options", [{}, {"delay": 60_000}, {"priority": 3}], ids=["waiting", "delayed", "prioritized"])
async def test_a_job_of_nodes_that_waits(pair: Pair, options: dict[str, Any]) -> None:
    await pair.theirs.listen()
    job_id = await pair.theirs.add("echo", {"n": 1}, **options)
    waits = asyncio.create_task(pair.theirs.wait(job_id))
    assert await pair.ours.cancel(job_id, WHY)
    with pytest.raises(NodeError, match=WHY):
        await waits
    job = await theirs_failed(pair, job_id)
    assert (job["attemptsMade"], job["stacktrace"]) == (0, [])
    [told] = await pair.node.tells("event", queue=pair.theirs.name, event="failed", times=1)
    assert (told["args"]["jobId"], told["args"]["failedReason"]) == (job_id, WHY)
    assert not await pair.ours.cancel(job_id)
    handle = await pair.theirs.work()
    assert await pair.theirs.wait(await pair.theirs.add("echo", {"n": 2})) == {"n": 2}
    await pair.theirs.stop(handle)
    assert (await pair.theirs.counts())["failed"] == 1


async def test_a_job_of_nodes_that_ours_run(pair: Pair) -> None:
    async with pair.worker():
        job_id = await pair.theirs.add("hang", {}, attempts=3)
        await wait_until(lambda: pair.runs.of(job_id))
        await pair.ours.cancel(job_id, WHY)
        job = await theirs_failed(pair, job_id)
    assert (job["attemptsMade"], len(pair.runs.of(job_id))) == (1, 1)


async def test_node_retries_what_was_cancelled(pair: Pair) -> None:
    job = await pair.ours.add("echo", {"n": 1})
    await job.cancel(WHY)
    await pair.theirs.retry(job.id)
    async with pair.worker():
        assert await pair.theirs.wait(job.id) == {"n": 1}


async def test_a_job_that_node_runs_goes_on_there(pair: Pair) -> None:
    job = await pair.ours.add("slow", {"seconds": 0.3})
    handle = await pair.theirs.work()
    await wait_until(lambda: is_active(pair, job.id))
    assert await job.cancel(WHY)
    assert await job.result(timeout=15) == "slept"
    await pair.theirs.stop(handle)
    assert not await job.cancel(WHY)


async def test_a_job_that_node_retries_ends_with_us(pair: Pair) -> None:
    job = await pair.ours.add("fail", {}, attempts=5, backoff=0.5)
    handle = await pair.theirs.work()
    await wait_until(lambda: is_delayed(pair, job.id))
    await pair.theirs.stop(handle)
    key = pair.key(job.id)
    await pair.ours._home.line.connected()
    link = await pair.ours._home.line.hub.link(hash_tag=pair.ours._home.keys.hash_tag)
    await link.call("HSET", key, "cancelRequested", WHY)  # as if it had been cancelled while Node ran it
    async with pair.worker():
        with pytest.raises(JobCancelled):
            await job.result(timeout=15)
    assert not pair.runs.of(job.id)
    await theirs_failed(pair, job.id)


async def is_active(pair: Pair, job_id: str) -> bool:
    return await pair.theirs.state(job_id) == "active"


async def is_delayed(pair: Pair, job_id: str) -> bool:
    return await pair.theirs.state(job_id) == "delayed"


async def test_a_child_in_a_flow_of_nodes(pair: Pair) -> None:
    """Its parent fails, as its options say of a child that fails."""
    ids = await pair.theirs.flow(parent(pair, child(pair, "echo", {}, failParentOnFailure=True)))
    [child_id] = [one["id"] for one in ids["children"]]
    assert await pair.ours.cancel(child_id, WHY)
    handle = await pair.theirs.work()
    with pytest.raises(NodeError, match=r"child .* failed"):
        await pair.theirs.wait(ids["id"])
    await pair.theirs.stop(handle)


async def test_a_parent_in_a_flow_of_nodes(pair: Pair) -> None:
    ids = await pair.theirs.flow(parent(pair, child(pair, "echo", {"n": 1})))
    assert await pair.theirs.state(ids["id"]) == "waiting-children"
    assert await pair.ours.cancel(ids["id"], WHY)
    await theirs_failed(pair, ids["id"])
    handle = await pair.theirs.work()
    [child_id] = [one["id"] for one in ids["children"]]
    assert await pair.theirs.wait(child_id) == {"n": 1}
    assert await pair.theirs.state(ids["id"]) == "failed"
    await pair.theirs.stop(handle)
