"""Jobs that one side added and the other changes, and limits that one side sets and the other keeps."""

from __future__ import annotations

from typing import Any

import pytest

from echomq import JobFailed, Limiter, StateError
from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until


async def fetched(pair: Pair, job_id: str) -> Any:
    """A job, read by us."""
    job = await pair.ours.get_job(job_id)
    assert job is not None
    return job


async def test_we_change_what_node_added(pair: Pair) -> None:
    node = pair.theirs
    soon, later = await node.add("echo", {"n": 1}, delay=60_000), await node.add("echo", {"n": 2}, delay=60_000)
    low, high = await node.add("echo", {"n": 3}, priority=9), await node.add("echo", {"n": 4}, priority=3)
    await (await fetched(pair, soon)).promote()
    await (await fetched(pair, later)).change_delay(0.05)
    await (await fetched(pair, low)).change_priority(1)
    assert await node.counts() == {"waiting": 1, "delayed": 1, "prioritized": 2}
    assert (await node.job(soon))["delay"] == 0
    assert [job["id"] for job in await node.jobs("prioritized", asc=True)] == [low, high]
    await node.work()
    for n, job_id in enumerate((soon, later, low, high), 1):
        assert await node.wait(job_id) == {"n": n}


async def test_node_changes_what_we_added(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    soon, later = await ours.add("echo", {"n": 1}, delay=60), await ours.add("echo", {"n": 2}, delay=60)
    low, high = await ours.add("echo", {"n": 3}, priority=9), await ours.add("echo", {"n": 4}, priority=3)
    await node.call_job(soon.id, "promote")
    await node.call_job(later.id, "changeDelay", 50)
    await node.call_job(low.id, "changePriority", {"priority": 1})
    assert [job.id async for job in ours.jobs("prioritized")] == [low.id, high.id]
    assert await ours.counts("waiting", "delayed") == {"waiting": 1, "delayed": 1}
    async with pair.worker():
        for n, job in enumerate((soon, later, low, high), 1):
            assert await job.result(timeout=10) == {"n": n}


async def test_each_refuses_what_is_elsewhere(pair: Pair) -> None:
    theirs, ours = await pair.theirs.add("echo"), await pair.ours.add("echo")
    for change in ((await fetched(pair, theirs)).promote(), (await fetched(pair, theirs)).retry()):
        with pytest.raises(StateError):
            await change
    with pytest.raises(NodeError):
        await pair.theirs.call_job(ours.id, "promote")
    assert await pair.theirs.counts() == {"waiting": 2}


async def test_we_retry_what_failed_at_node_and_node_what_failed_here(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    worker = await node.work()
    there = await node.add("fail", {"times": 1})
    with pytest.raises(NodeError, match="as planned"):
        await node.wait(there)
    job = await fetched(pair, there)
    await job.retry()
    assert await node.wait(there) == "at last"
    await node.stop(worker)
    async with pair.worker():
        here = await ours.add("fail", {"times": 1})
        with pytest.raises(JobFailed, match="as planned"):
            await here.result(timeout=10)
        await node.retry(here.id)
        assert await here.result(timeout=10) == "at last"


async def test_many_at_once_from_either_side(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    ids = [await node.add("fail", {"times": 1, "n": n}) for n in range(5)]
    ids += [(await ours.add("fail", {"times": 1, "n": n})).id for n in range(5)]
    async with pair.worker():
        await wait_until(lambda: _has(pair, failed=10))
        assert await ours.admin.retry_all() == 10
        await wait_until(lambda: _has(pair, completed=10))
        await node.call("retryJobs", {"state": "completed"})
        await wait_until(lambda: _has(pair, completed=10))
    cleaned = await ours.admin.clean("completed", 0, limit=4)  # of those that ended in one millisecond, any
    assert len(cleaned) == 4
    assert set(cleaned) < set(ids)
    assert len(await node.call("clean", 0, 100, "completed")) == 6
    for n in range(3):
        await node.add("echo", {"n": n}, delay=60_000)
        await ours.add("echo", {"n": n}, delay=60)
    assert await ours.admin.promote_all() == 6
    assert await node.counts() == {"waiting": 6}
    assert await ours.admin.drain() == 6
    assert await node.counts() == {}
    await ours.add("echo", delay=60)
    await node.call("promoteJobs")
    assert await ours.counts("waiting", "delayed") == {"waiting": 1, "delayed": 0}
    await node.call("drain")
    assert await ours.counts("waiting") == {"waiting": 0}


async def _has(pair: Pair, **counts: int) -> bool:
    return await pair.theirs.counts() == counts


async def test_a_child_that_is_retried_is_waited_for_again(bull: Pair) -> None:
    """A flow of Node's: its child fails, its parent with it; both are retried by us, and the flow completes."""
    node, name = bull.theirs, bull.theirs.name
    child = {
        "name": "fail",
        "queueName": name,
        "prefix": "bull",
        "data": {"times": 1},
        "opts": {"failParentOnFailure": True},
    }
    ids = await node.flow({"name": "nothing", "queueName": name, "prefix": "bull", "children": [child]})
    child_id = ids["children"][0]["id"]
    async with bull.worker():
        await wait_until(lambda: _has(bull, failed=2))
        await (await fetched(bull, child_id)).retry()
        await wait_until(lambda: _has(bull, failed=1, completed=1))
        await (await fetched(bull, ids["id"])).retry()
        await node.wait(ids["id"])
    assert (await node.dependencies(ids["id"]))["processed"] == {f"bull:{name}:{child_id}": "at last"}


async def test_each_sees_the_limits_that_the_other_sets(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    await ours.set_concurrency(7)
    await ours.set_rate_limit(50, 2)
    assert await node.call("getGlobalConcurrency") == 7
    assert await node.call("getGlobalRateLimit") == {"max": 50, "duration": 2000}
    await node.call("setGlobalConcurrency", 3)
    await node.call("setGlobalRateLimit", 4, 5000)
    assert await ours.concurrency() == 3
    assert await ours.limiter() == Limiter(4, 5)
    await ours.set_concurrency(None)
    await ours.remove_rate_limit()
    assert await node.call("getGlobalConcurrency") is None
    assert await node.call("getGlobalRateLimit") is None


async def test_limits_hold_for_the_workers_of_the_other(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    await ours.set_rate_limit(3, 60)
    await node.work(concurrency=5)
    ids = [await node.add("echo", {"n": n}) for n in range(5)]
    await wait_until(lambda: _has(pair, completed=3, waiting=2))
    assert await node.call("getRateLimitTtl") > 0
    assert await ours.rate_limit_ttl() > 0
    async with pair.worker():
        await ours.remove_rate_limit()
        for n, job_id in enumerate(ids):
            assert await node.wait(job_id) == {"n": n}


async def test_a_limit_by_hand(pair: Pair) -> None:
    """Node heeds ours where a maximum is set, and we heed Node's there; Node's own end of it ends ours too."""
    ours, node = pair.ours, pair.theirs
    await ours.set_rate_limit(100, 1)
    await ours.rate_limit(60)
    assert 59_000 < await node.call("getRateLimitTtl") <= 60_000
    job = await ours.add("echo", {"n": 1})
    await node.call("removeRateLimitKey")
    async with pair.worker():
        assert await job.result(timeout=10) == {"n": 1}
    await node.call("rateLimit", 60_000)
    assert 59 < await ours.rate_limit_ttl() <= 60
    await ours.rate_limit(0)
    await node.work()
    assert await node.wait(await node.add("echo", {"n": 2})) == {"n": 2}


async def test_node_hears_an_event_of_ours(pair: Pair) -> None:
    await pair.theirs.listen()
    await pair.ours.publish("course-closed", course="redis")
    job = await pair.ours.add("nothing")
    await pair.node.tells("event", event="added")  # the listener goes on after it
    assert await job.refresh() is not None
