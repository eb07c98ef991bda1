"""Queues that share slots, while connections break and queues are paused and limited: all jobs run, and no slot is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from echomq import Job, JobSpec, Limiter, Queue, RateLimited, RetryLater, SharedSlots, Worker
from tests.chaos.rig import FAST
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.wait import wait_until

NAMES = ("first", "second", "third")
SIZE = 3


async def share_through_trouble(proxy: Proxy, server: Server, *, seed: int, rounds: int, strict: bool) -> None:
    chance = random.Random(seed)
    running = most = 0
    done: set[tuple[str, str]] = set()

    async def process(job: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(job.data["seconds"])
        finally:
            running -= 1
        if job.attempts_started == 1 and job.data["how"] == "later":
            raise RetryLater(0.05)
        if job.attempts_started == 1 and job.data["how"] == "limit":
            raise RateLimited(0.05)
        done.add((job.queue_name, job.id))

    slots = SharedSlots(SIZE, strict=NAMES) if strict else SharedSlots(SIZE, weights={"first": 5, "second": 2})
    async with AsyncExitStack() as stack:
        queues = {name: await stack.enter_async_context(Queue(name, connection=server.url)) for name in NAMES}
        for name in NAMES:
            limiter: dict[str, Any] = {"limiter": Limiter(max=5, duration=0.1)} if name == "second" else {}
            worker = Worker(name, process, connection=proxy.url, slots=slots, **limiter, **FAST)
            await stack.enter_async_context(worker)
        added = 0
        for _ in range(rounds):
            name = chance.choice(NAMES)
            specs = [
                JobSpec(
                    "work",
                    {
                        "seconds": chance.choice((0, 0, 0.01, 0.05)),
                        "how": chance.choice(("run", "run", "later", "limit")),
                    },
                    delay=chance.choice((None, None, 0.05)),
                )
                for _ in range(chance.randrange(1, 12))
            ]
            await queues[name].add_bulk(specs)
            added += len(specs)
            paused = chance.choice(NAMES)
            match chance.randrange(5):
                case 0:
                    await queues[paused].pause()
                    await asyncio.sleep(0.05)
                    await queues[paused].resume()
                case 1:
                    proxy.cut()
                case 2:
                    await asyncio.sleep(chance.uniform(0, 0.1))
        await wait_until(lambda: len(done) == added, 30, "all jobs have run")
        assert most <= SIZE
        await wait_until(lambda: running == 0)
        pool = slots.pool()
        await wait_until(lambda: pool.free == SIZE, what="all slots are free")


@pytest.mark.parametrize("strict", [False, True])
async def test_no_slot_is_lost_in_trouble(proxy: Proxy, server: Server, strict: bool) -> None:
    await share_through_trouble(proxy, server, seed=1, rounds=25, strict=strict)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strict", [False, True])
async def test_no_slot_is_lost_in_much_trouble(proxy: Proxy, server: Server, strict: bool) -> None:
    for seed in range(25):
        server.flush()
        await share_through_trouble(proxy, server, seed=seed, rounds=60, strict=strict)
