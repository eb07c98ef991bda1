"""Either side obliterates, cleans, drains and trims what the other has filled, and the queue works anew afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from echomq import Every, JobFailed, JobScheduler, JobSpec
from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.server import Server
from tests.support.wait import wait_until


async def fill(pair: Pair) -> int:
    """Jobs of both sides in each state, a schedule of each, deduplication ids, logs; gives how many jobs that is."""
    ours, node = pair.ours, pair.theirs
    async with pair.worker(metrics_points=10):
        await (await ours.add("echo", {})).result(timeout=10)
        with pytest.raises(JobFailed):
            await (await ours.add("fail", {})).result(timeout=10)
        await node.wait(await node.add("echo", {}))
        failed = await node.add("fail", {})
        with pytest.raises(NodeError):
            await node.wait(failed)
        await node.call_job(failed, "log", "a line")
    for options in ({}, {"delay": 60_000}, {"priority": 2}, {"deduplication": {"id": "theirs"}}):
        await node.add("echo", {}, **options)
    await ours.add_bulk([JobSpec("echo"), JobSpec("echo", delay=60), JobSpec("echo", priority=2)])
    await ours.add("echo", deduplication="ours")
    await node.schedule("theirs", {"every": 3_600_000}, {"name": "echo"})
    async with JobScheduler(ours) as schedules:
        await schedules.upsert("ours", Every(3600), JobSpec("echo"))
    return sum((await ours.counts()).values())


def keys_of(pair: Pair, server: Server) -> set[str]:
    """All keys of the queue, ours and those of the protocol."""
    prefix, name = pair.place.prefix, pair.theirs.name
    return {key.decode() for start in (prefix, f"{prefix}x") for key in server.cli("KEYS", f"{start}:{name}:*")}


async def works_anew(pair: Pair) -> None:
    """A job of each side, worked by a worker of each."""
    ours = [await pair.ours.add("echo", {"n": n}, deduplication=f"n{n}") for n in range(20)]
    theirs = [await pair.theirs.add("echo", {"n": n}, deduplication={"id": f"theirs {n}"}) for n in range(20)]
    assert len({job.id for job in ours} | set(theirs)) == 40
    await pair.theirs.work(concurrency=5)
    async with pair.worker(concurrency=5):
        for n, (job, job_id) in enumerate(zip(ours, theirs, strict=True)):
            assert await job.result(timeout=10) == {"n": n}
            assert await pair.theirs.wait(job_id) == {"n": n}


async def test_we_obliterate_what_both_filled_and_node_uses_it_anew(pair: Pair, server: Server) -> None:
    jobs = await fill(pair)
    assert await pair.ours.admin.obliterate() == jobs
    assert keys_of(pair, server) == set()
    assert await pair.theirs.counts() == {}
    assert not await pair.theirs.is_paused()
    await works_anew(pair)


async def test_node_obliterates_what_both_filled_and_we_use_it_anew(pair: Pair, server: Server) -> None:
    await fill(pair)
    await pair.theirs.call("obliterate", {"count": 3})
    assert {name.rpartition(":")[0] for name in keys_of(pair, server)} <= {f"{pair.place.prefix}x:{pair.theirs.name}"}
    assert await pair.ours.counts() == dict.fromkeys(await pair.ours.counts(), 0)
    await works_anew(pair)


async def test_we_obliterate_what_nodes_worker_is_running(pair: Pair, server: Server) -> None:
    """Its end finds no job; the worker stays of use."""
    node = pair.theirs
    worker = await node.work(concurrency=2)
    held = await node.add("hang")
    await pair.node.tells("start", id=held)
    assert await pair.ours.admin.obliterate(force=True) == 1
    await pair.node("release", id=held, value=1)
    assert await node.wait(await node.add("echo", {"n": 1}, jobId="anew")) == {"n": 1}
    assert await pair.ours.counts("active", "completed") == {"active": 0, "completed": 1}
    await node.stop(worker)


async def test_node_obliterates_what_our_worker_is_running(pair: Pair, server: Server) -> None:
    async with pair.worker(concurrency=2):
        held = await pair.ours.add("hang")
        await wait_until(lambda: pair.runs.of(held.id))
        with pytest.raises(NodeError):
            await pair.theirs.call("obliterate")
        await pair.theirs.call("obliterate", {"force": True})
        pair.runs.gates[held.id].set()
        anew = await pair.ours.add("echo", {"n": 1}, job_id="anew")
        assert await anew.result(timeout=10) == {"n": 1}
        assert await pair.ours.counts("active", "completed") == {"active": 0, "completed": 1}


async def test_a_parent_of_nodes_is_free_when_its_childrens_queue_is_obliterated(bull: Pair, make_pair: Any) -> None:
    """Node's children stand in our queue, their parent in another, which Node works."""
    parents = make_pair()
    child = {"name": "echo", "queueName": bull.theirs.name, "prefix": "bull", "opts": {"delay": 60_000}}
    ids = await bull.theirs.flow(
        {"name": "nothing", "queueName": parents.theirs.name, "prefix": "bull", "children": [child, child]}
    )
    assert await bull.ours.admin.obliterate() == 2
    await parents.theirs.work()
    await parents.theirs.wait(ids["id"])


@pytest.mark.parametrize("state", ["completed", "failed", "delayed", "prioritized", "wait"])
async def test_each_cleans_what_the_other_filled(pair: Pair, state: Any) -> None:
    await fill(pair)
    ours = {"wait": "waiting"}.get(state, state)
    before = await pair.ours.counts()
    runs = [
        job.id async for job in pair.ours.jobs(ours) if job.id.startswith("repeat:")
    ]  # those that schedules wait for
    assert len(await pair.theirs.call("clean", 0, 1, state)) == 1
    assert len(await pair.ours.admin.clean(ours, 0)) == before[ours] - 1 - len(runs)
    assert [job.id async for job in pair.ours.jobs(ours)] == runs
    others = {name: count for name, count in before.items() if count and name != ours}
    assert {name: count for name, count in (await pair.theirs.counts()).items() if name != ours} == others


async def test_each_trims_the_events_and_keeps_to_the_length_that_the_other_set(pair: Pair, server: Server) -> None:
    await pair.theirs.counts()  # a queue of Node's sets the length when it is made
    for _ in range(5):
        await pair.ours.add_bulk(JobSpec("echo") for _ in range(250))
    assert await pair.ours.admin.trim_events(100) > 0
    assert server.cli("XLEN", pair.key("events")) < 300
    await pair.ours.admin.limit_events(count=500)
    await pair.theirs.add_bulk([{"name": "echo", "data": {}} for _ in range(1000)])
    assert server.cli("XLEN", pair.key("events")) < 700
    await pair.theirs.call("trimEvents", 100)
    await pair.ours.add("echo")
    assert server.cli("XLEN", pair.key("events")) < 300
