"""Deduplicated jobs between Node and us: whichever side adds and whichever works, ids are held and freed alike.

Each scenario runs once with Node adding and once with us; Node's listener sees the same events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from echomq import Deduplication
from tests.interop.conftest import Pair
from tests.support.wait import wait_until

Side = Literal["node", "we"]
SIDES: list[Side] = ["node", "we"]
MakePair = Callable[..., Pair]

HOUR = 3600

POLICIES = {
    "simple": Deduplication.simple("D"),
    "throttle": Deduplication.throttle("D", HOUR),
    "extend": Deduplication("D", HOUR, extend=True),
    "replace": Deduplication("D", replace=True),
    "debounce": Deduplication("D", HOUR, extend=True, replace=True),
    "latest": Deduplication.latest("D"),
}


async def add(pair: Pair, side: Side, name: str, data: Any, policy: Deduplication, delay: float = 0) -> str:
    """Adds a job by one of the sides; gives the id that it was answered."""
    if side == "we":
        return (await pair.ours.add(name, data, deduplication=policy, delay=delay)).id
    kinds = {"extend": policy.extend, "replace": policy.replace, "keepLastIfActive": policy.keep_last_if_active}
    stored: dict[str, Any] = {"id": policy.id, **{kind: True for kind, is_set in kinds.items() if is_set}}
    if policy.ttl is not None:
        stored["ttl"] = int(policy.ttl * 1000)  # type: ignore[arg-type]
    return await pair.theirs.add(name, data, deduplication=stored, delay=int(delay * 1000))


def seen(pair: Pair) -> list[tuple[str, dict[str, Any]]]:
    """What Node's listener saw, without due times."""
    told = pair.node.told("event", queue=pair.theirs.name)
    return [(one["event"], {name: value for name, value in one["args"].items() if name != "delay"}) for one in told]


async def drained(pair: Pair, jobs: int) -> None:
    async def done() -> bool:
        return (await pair.theirs.counts()).get("completed", 0) == jobs

    await wait_until(done)
    await wait_until(lambda: sum(event == "completed" for event, _ in seen(pair)) == jobs)


@pytest.mark.parametrize("works", SIDES)
@pytest.mark.parametrize("name", POLICIES)
async def test_the_same_adds_by_either_side(make_pair: MakePair, name: str, works: Side) -> None:
    policy = POLICIES[name]
    lives: list[Any] = []
    for side in SIDES:
        pair = make_pair()
        await pair.theirs.listen()
        delay = 0.3 if policy.replace else 0
        ids = [await add(pair, side, "echo", {"n": n}, policy, delay) for n in range(3)]
        if works == "node":
            await pair.theirs.work()
            await drained(pair, 1)
            ids.append(await add(pair, side, "echo", {"n": 3}, policy))
            await drained(pair, 1 if policy.ttl else 2)
        else:
            async with pair.worker():
                await drained(pair, 1)
                ids.append(await add(pair, side, "echo", {"n": 3}, policy))
                await drained(pair, 1 if policy.ttl else 2)
        finished = sorted((job["id"], job["returnvalue"]) for job in await pair.theirs.completed())
        lives.append((ids, finished, [event for event in seen(pair) if event[0] != "drained"]))
    assert lives[1] == lives[0]
    ids, finished, events = lives[0]
    first, value = ("3", {"n": 2}) if policy.replace else ("1", {"n": 0})
    assert ids == [*(["1", "2", "3"] if policy.replace else ["1"] * 3), first if policy.ttl else "4"]
    assert finished[0] == (first, value)
    if policy.replace:
        assert events.count(("removed", {"jobId": "1", "prev": "delayed"})) == 1
        assert ("deduplicated", {"jobId": "2", "deduplicationId": "D", "deduplicatedJobId": "1"}) in events
    else:
        assert ("deduplicated", {"jobId": "1", "deduplicationId": "D", "deduplicatedJobId": "2"}) in events


@pytest.mark.parametrize("works", SIDES)
@pytest.mark.parametrize("adds", SIDES)
async def test_the_last_that_came_during_the_run_runs_after_it(pair: Pair, adds: Side, works: Side) -> None:
    policy = Deduplication.latest("D")
    await pair.theirs.listen()
    first = await add(pair, adds, "hang", {"n": 0}, policy)

    async def go_on(job_id: str) -> None:
        if works == "node":
            await pair.node("release", id=job_id, value=job_id)
        else:
            pair.runs.gates[job_id].set()

    async def scenario() -> None:
        await wait_until(lambda: ("active", {"jobId": first, "prev": "waiting"}) in seen(pair))
        await began(first)
        for side in (adds, *SIDES):  # the other side's are kept as well
            assert await add(pair, side, "hang", {"n": side}, policy) == first
        await go_on(first)
        await wait_until(lambda: ("active", {"jobId": "4", "prev": "waiting"}) in seen(pair))
        await began("4")
        await go_on("4")
        await drained(pair, 2)

    async def began(job_id: str) -> None:
        if works == "node":
            await pair.node.tells("start", id=job_id)
        else:
            await wait_until(lambda: pair.runs.of(job_id))

    if works == "node":
        await pair.theirs.work()
        await scenario()
    else:
        pair.runs.gates.update({first: asyncio.Event(), "4": asyncio.Event()})
        async with pair.worker():
            await scenario()
    job = await pair.theirs.job("4")
    assert job["data"] == {"n": "we"}  # the last
    assert job["deduplicationId"] == "D"
    assert not (await pair.ours.add("echo", deduplication="D")).deduplicated


async def test_each_side_sees_and_frees_the_ids_of_the_other(pair: Pair) -> None:
    job = await pair.ours.add("echo", deduplication=Deduplication.throttle("D", HOUR), expire_in=60)
    assert await pair.theirs.call("getDeduplicationJobId", "D") == job.id
    read = await pair.theirs.job(job.id)
    assert read["deduplicationId"] == "D"
    assert read["opts"]["deduplication"] == {"id": "D", "ttl": HOUR * 1000}
    assert read["opts"]["expireIn"] == 60_000
    assert await pair.theirs.call("removeDeduplicationKey", "D") == 1
    assert await pair.theirs.add("echo", {}, deduplication={"id": "D", "ttl": 5000}) == "2"
    theirs = await pair.ours.get_job("2")
    assert theirs is not None
    assert theirs.opts.deduplication == Deduplication.throttle("D", 5)
    assert not await job.remove_deduplication()
    assert await theirs.remove_deduplication()
    assert await pair.theirs.call("getDeduplicationJobId", "D") is None
