"""Schedules that Node and we share: each reads, changes and runs the other's, and they take turns in starting iterations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from echomq import Backoff, Cron, Every, JobScheduler, JobSpec
from tests.interop.conftest import Pair
from tests.support.server import Server
from tests.support.wait import wait_until

ECHO = JobSpec("echo", {"n": "é"}, attempts=3, backoff=Backoff.fixed(1), priority=2)
YEARLY = Cron("0 0 1 1 *", tz="Europe/Vienna")


@pytest.fixture
async def scheduler(pair: Pair) -> AsyncIterator[JobScheduler]:
    async with JobScheduler(pair.ours) as scheduler:
        yield scheduler


def slot_of(job_id: str) -> int:
    return int(job_id.rpartition(":")[2])


def iterations(server: Server, pair: Pair) -> list[str]:
    """The iterations that have not been started."""
    found = [
        *server.cli("LRANGE", pair.key("wait"), 0, -1),
        *server.cli("ZRANGE", pair.key("prioritized"), 0, -1),
        *server.cli("ZRANGE", pair.key("delayed"), 0, -1),
    ]
    return [one.decode() for one in found]


async def test_node_reads_ours(pair: Pair, scheduler: JobScheduler) -> None:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1000)
    ours = await scheduler.upsert("daily", YEARLY, ECHO, limit=7, end=end, missed="skip", spread=60)
    [theirs] = await pair.theirs.schedulers()
    assert ours.next_run is not None
    assert theirs == {
        "key": "daily", "name": "echo", "next": round(ours.next_run.timestamp() * 1000), "iterationCount": 1, "limit": 7,
        "endDate": round(end.timestamp() * 1000), "tz": "Europe/Vienna", "pattern": "0 0 1 1 *", "offset": 0,
        "template": {"data": {"n": "é"}, "opts": {"attempts": 3, "backoff": {"type": "fixed", "delay": 1000}, "priority": 2}},
    }  # fmt: skip
    assert await pair.theirs.unschedule("daily")
    assert await scheduler.list() == []
    assert await pair.ours.counts("delayed") == {"delayed": 0}


async def test_we_read_nodes(pair: Pair, scheduler: JobScheduler) -> None:
    template = {"name": "echo", "data": {"n": 1}, "opts": {"attempts": 3, "backoff": 100, "removeOnComplete": 5}}
    await pair.theirs.schedule("a", {"every": 3_600_000, "limit": 9}, template)
    await pair.theirs.schedule("b", {"pattern": "0 0 1 1 *", "tz": "Asia/Tokyo"}, {"name": "echo"})
    a, b = await scheduler.get("a"), await scheduler.get("b")
    assert a is not None
    assert b is not None
    assert (a.every, a.limit, a.data, a.iteration_count, a.name) == (3600.0, 9, {"n": 1}, 1, "echo")
    assert (a.options.attempts, a.options.backoff) == (3, Backoff.fixed(0.1))
    assert (b.pattern, b.tz, b.every, b.data) == ("0 0 1 1 *", "Asia/Tokyo", None, {})
    assert b.next_run is not None
    assert b.next_run.astimezone(UTC).hour == 15
    assert [info.id for info in await scheduler.list()] == ["a", "b"]
    job = await scheduler.run_now("a")
    assert job.data == {"n": 1}
    assert (await pair.theirs.job(job.id))["opts"]["attempts"] == 3
    assert await scheduler.remove("b")
    assert [one["key"] for one in await pair.theirs.schedulers()] == ["a"]


async def test_each_upserts_over_the_other(pair: Pair, scheduler: JobScheduler, server: Server) -> None:
    node_repeat = {"pattern": YEARLY.pattern, "tz": YEARLY.tz}
    slots = set()
    for number in range(3):
        info = await scheduler.upsert("s", YEARLY, JobSpec("echo", {"by": "us", "n": number}))
        assert info.next_run is not None
        slots.add(round(info.next_run.timestamp() * 1000))
        await pair.theirs.schedule("s", node_repeat, {"name": "echo", "data": {"by": "node", "n": number}})
        [job_id] = iterations(server, pair)
        slots.add(slot_of(job_id))
        assert (await pair.theirs.job(job_id))["data"] == {"by": "node", "n": number}
    assert len(slots) == 1


async def test_each_upserts_over_the_others_interval(pair: Pair, scheduler: JobScheduler, server: Server) -> None:
    slots = set()
    for number in range(3):
        await pair.theirs.schedule("s", {"every": 3_600_000}, {"name": "echo", "data": {"n": number}})
        slots |= {slot_of(one) for one in iterations(server, pair)}
        await scheduler.upsert("s", Every(3600), JobSpec("echo", {"by": "us", "n": number}))
        slots |= {slot_of(one) for one in iterations(server, pair)}
    assert len(slots) == 1
    [info] = await scheduler.list()
    assert info.iteration_count == 1


async def test_node_goes_past_what_we_paused(pair: Pair, scheduler: JobScheduler, server: Server) -> None:
    await scheduler.upsert("s", YEARLY, ECHO)
    await scheduler.pause("s")
    assert await pair.theirs.schedulers() == []
    assert iterations(server, pair) == []
    # Node does not know that it is paused: where it upserts, the schedule goes on.
    await pair.theirs.schedule("s", {"pattern": YEARLY.pattern, "tz": YEARLY.tz}, {"name": "echo"})
    info = await scheduler.get("s")
    assert info is not None
    assert not info.paused
    assert (await scheduler.resume("s")) == info
    await scheduler.upsert("s", YEARLY, ECHO)
    await scheduler.pause("s")
    assert (await scheduler.resume("s")).next_run == info.next_run
    assert len(iterations(server, pair)) == 1


TURNS: dict[str, tuple[Every | Cron, str, int]] = {
    "every, made by us": (Every(0.5), "us", 10),
    "offset, made by Node": (Every(0.5, offset=0.1), "node", 10),
    "pattern, made by us": (Cron("* * * * * *", tz="Europe/Vienna"), "us", 10),
    "pattern, made by Node": (Cron("* * * * * *", tz="Europe/Vienna"), "node", 3),
}


@pytest.mark.parametrize("kind", TURNS)
async def test_they_take_turns(bull: Pair, server: Server, kind: str) -> None:
    """Each iteration is started by the side that did not start the one before it."""
    rhythm, maker, turns = TURNS[kind]
    pair, node = bull, bull.theirs
    scheduler = JobScheduler(pair.ours)
    template = {"name": "value", "data": {"value": 1}, "opts": {"attempts": 2}}
    if maker == "us":
        await scheduler.upsert("tick", rhythm, JobSpec("value", {"value": 1}, attempts=2), missed="skip", grace=60)
    elif isinstance(rhythm, Every):
        repeat: dict[str, Any] = {"every": 500, **({"offset": 100} if rhythm.offset else {})}
        await node.schedule("tick", repeat, template)
    else:
        await node.schedule("tick", {"pattern": rhythm.pattern, "tz": rhythm.tz}, template)
    ran: list[str] = []
    worker = await node.work(autorun=True)
    await node.node("stop", prefix=node.prefix, worker=worker)
    for turn in range(turns):
        await wait_until(lambda: len(iterations(server, pair)) == 1)
        [waits] = iterations(server, pair)
        if turn % 2 == 0:
            async with pair.worker():
                await wait_until(lambda waits=waits: bool(pair.runs.of(waits)))
                await pair.ours.pause()
        else:
            worker = await node.work(f"node {turn}")
            await wait_until(lambda waits=waits: bool(pair.node.told("start", id=waits)))
            await pair.ours.pause()
            await node.node("stop", prefix=node.prefix, worker=worker)
        ran.append(waits)
        await pair.ours.resume()
    started = [run.id for run in pair.runs.seen] + [told["id"] for told in pair.node.told("start")]
    assert len(started) == len(set(started))
    assert set(ran) <= set(started)
    slots = sorted(map(slot_of, started))
    step = 500 if isinstance(rhythm, Every) else 1000
    assert all((later - sooner) % step == 0 for sooner, later in pairwise(slots))
    assert len(iterations(server, pair)) == 1
    [seen] = await node.schedulers()
    assert seen["iterationCount"] == len(started) + 1
    if maker == "us":
        job = await pair.ours.get_job(iterations(server, pair)[0])
        assert job is not None
        repeat = job.opts.others["repeat"]
        assert (repeat["missed"], repeat["grace"]) == ("skip", 60_000)  # which Node has carried on
    await scheduler.remove("tick")


async def test_a_failing_handler_of_either_side_keeps_it_going(bull: Pair, server: Server) -> None:
    pair, scheduler = bull, JobScheduler(bull.ours)
    await scheduler.upsert("tick", Every(0.2), JobSpec("fail"), limit=12)
    await pair.theirs.work()
    async with pair.worker():
        await wait_until(lambda: server.cli("ZCARD", pair.key("failed")) == 12)
    started = [run.id for run in pair.runs.seen] + [told["id"] for told in pair.node.told("start")]
    assert len(started) == len(set(started)) == 12
    await asyncio.sleep(0)
