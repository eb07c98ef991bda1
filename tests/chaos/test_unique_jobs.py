"""Whoever dies, whatever is lost: ids are held by living jobs only, and what was added last is run (faults 68, 70, 71)."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from echomq import Connection, Deduplication, Job, Queue, Worker
from tests.chaos.rig import BASE, FAST, QUEUE, StartProgram, assert_sound, completed, lines
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until


def held(server: Server) -> list[bytes]:
    """The deduplication keys that are there."""
    found: list[bytes] = server.cli("KEYS", BASE.replace("{", "\\{").replace("}", "\\}") + "d[en]:*")
    return found


async def test_a_worker_is_killed_while_its_jobs_hold_their_ids(
    server: Server, start_program: StartProgram, report: Path
) -> None:
    """They run again elsewhere and free their ids; what came during the lost run runs after it."""
    async with Queue(QUEUE, connection=server.url) as queue:
        program = start_program(server.url, concurrency=4)
        await program.ready()
        first = [
            await queue.add("work", {"seconds": 600}, deduplication=Deduplication.latest(f"page-{n}")) for n in range(4)
        ]
        await wait_until(lambda: sum(line["what"] == "start" for line in lines(report)) == 4)
        program.send(signal.SIGKILL)
        kept = [await queue.add("work", {}, deduplication=Deduplication.latest(f"page-{n}")) for n in range(2)]
        assert [job.id for job in kept] == [job.id for job in first[:2]]
        for job in first:
            server.cli("HSET", BASE + job.id, "data", "{}")
        async with Worker(QUEUE, lambda job: job.id, connection=server.url, concurrency=4, **FAST):
            await completed(queue, 6)
        assert held(server) == []
        assert not (await queue.add("work", deduplication=Deduplication.latest("page-0"))).deduplicated
    assert_sound(server, jobs=7, starts=2, stalls=1)


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize(
    "policy",
    [Deduplication.simple("D"), Deduplication.latest("D"), Deduplication.debounce("D", 3600)],
    ids=lambda one: str(one)[14:60],
)
async def test_an_add_whose_call_is_lost_counts_once(server: Server, loss: Loss, policy: Deduplication) -> None:
    async with Proxy(server) as proxy, Queue(QUEUE, connection=Connection(proxy.url, wait=20)) as queue:
        first = await queue.add("work", {"n": 1}, deduplication=policy)
        proxy.lose(loss, needle("addJobs-11"))
        second = await queue.add("work", {"n": 2}, deduplication=policy)
        assert proxy.seen >= 1
        assert second.deduplicated == (not policy.replace)
        assert second.data == {"n": 2 if policy.replace else 1}
        assert (second.id == first.id) == (not policy.replace)
        told = server.cli("XRANGE", BASE + "events", "-", "+")
        assert sum(b"deduplicated" in fields for _, fields in told) == 1
    assert_sound(server, jobs=1, starts=0)


async def test_an_id_whose_freeing_is_lost_is_freed_once(server: Server) -> None:
    async with Proxy(server) as proxy, Queue(QUEUE, connection=Connection(proxy.url, wait=20)) as queue:
        await queue.add("work", deduplication="D")
        proxy.lose("reply", needle("removeDeduplicationKey-1"))
        assert await queue.remove_deduplication("D")
        assert not (await queue.add("work", deduplication="D")).deduplicated
        assert len(held(server)) == 1
    assert_sound(server, jobs=2, starts=0)


async def test_whenever_a_change_comes_a_run_after_it_sees_it(server: Server) -> None:
    """Many changes at random moments of a page whose job is always running or about to."""
    chance = random.Random(3)
    page = {"state": 0, "indexed": -1}

    async def index(job: Job[Any]) -> None:
        found = page["state"]
        await asyncio.sleep(chance.random() * 0.01)
        page["indexed"] = found

    async with (
        Queue(QUEUE, connection=server.url) as queue,
        Worker(QUEUE, index, connection=server.url, concurrency=3, **FAST),
    ):
        for _ in range(10):
            for _ in range(20):
                page["state"] += 1
                await queue.add("index", deduplication=Deduplication.latest("page"))
                await asyncio.sleep(chance.random() * 0.008)
            await wait_until(lambda: page["indexed"] == page["state"])
        await wait_until(lambda: held(server) == [])
    assert_sound(server)
