"""All faults at random, for long: whatever comes together, nothing is lost and nothing ends twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from echomq import Connection, JobSpec, Queue, Worker
from tests.chaos.rig import FAST, LOCK, QUEUE, Runs, assert_sound, completed
from tests.support.proxy import Loss, Proxy
from tests.support.server import Server

LOSSES: tuple[Loss, ...] = ("request", "reply")


async def break_something(chance: random.Random, server: Server, proxy: Proxy) -> None:
    match chance.randrange(7):
        case 0:
            proxy.lose(chance.choice(LOSSES), b"EVALSHA", times=chance.randrange(1, 6))
        case 1:
            proxy.silence()
        case 2:
            proxy.cut()
        case 3:
            proxy.black_hole = True
            await asyncio.sleep(chance.random() * 2 * LOCK)
            proxy.black_hole = False
        case 4:
            await proxy.stop_listening()
            await asyncio.sleep(chance.random() * LOCK)
            await proxy.listen()
        case 5:
            await asyncio.to_thread(server.restart, kill=True)
        case 6:
            server.pause()
            await asyncio.sleep(chance.random() * 2 * LOCK)
            server.resume()
    await asyncio.sleep(chance.random() * 0.5)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
async def test_all_faults_at_random(seed: int, make_server: Callable[..., Server]) -> None:
    chance, server, runs, jobs = random.Random(seed), make_server(appendonly=True), Runs(), 0
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(Queue(QUEUE, connection=Connection(server.url, wait=60)))
        proxies = [await stack.enter_async_context(Proxy(server)) for _ in range(2)]
        for url in (server.url, *(proxy.url for proxy in proxies)):
            worker = Worker(QUEUE, runs, connection=url, concurrency=5, max_stalled_count=20, **FAST)
            await stack.enter_async_context(worker)
        for _ in range(60):
            added = await queue.add_bulk(
                [JobSpec("work", {"seconds": chance.choice((0, 0.01, 0.1, 0.5))}) for _ in range(40)]
            )
            jobs += len(added)
            await break_something(chance, server, chance.choice(proxies))
        await completed(queue, jobs, 60)
    # A worker that is cut off while others are not loses its jobs to them; that, and only that, counts as a stall.
    assert_sound(server, jobs=jobs, starts=10, stalls=5)
