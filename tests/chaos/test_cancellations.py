"""A worker is cancelled at random moments, hundreds of times: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from echomq import JobSpec, Queue, StateError, Worker
from tests.chaos.rig import BASE, FAST, QUEUE, Runs, assert_sound, completed
from tests.support.leaks import assert_no_clients, assert_no_tasks
from tests.support.proxy import Proxy
from tests.support.server import Server

SEED = 11


@pytest.mark.parametrize("what", ["the caller of run", "a task of the pump", "the worker's own task"])
async def test_cancelled_at_random_moments(what: str, server: Server) -> None:
    chance, runs, rounds, jobs = random.Random(SEED), Runs(), 200 if what == "the caller of run" else 60, 600
    async with Queue(QUEUE, connection=server.url) as queue:
        await queue.add_bulk(
            [JobSpec("work", {"seconds": chance.choice((0, 0, 0.002, 0.01, 0.05))}) for _ in range(jobs)]
        )
        for _ in range(rounds):
            worker = Worker(QUEUE, runs, connection=server.url, concurrency=4, shutdown_timeout=0.01, **FAST)
            running = asyncio.create_task(worker.run(), name="running")
            await asyncio.sleep(chance.random() * 0.02)
            victims = (
                [running]
                if what == "the caller of run"
                else _tasks("echomq pump" if "pump" in what else "echomq worker")
            )
            for victim in chance.sample(victims, 1) if victims else [running]:
                victim.cancel()
                if what != "the worker's own task" and chance.random() < 0.5:
                    await asyncio.sleep(chance.random() * 0.005)
                    victim.cancel()
            done, _ = await asyncio.wait({running}, timeout=10)
            assert done, "it does not end"
            with suppress(asyncio.CancelledError, StateError):  # the latter where nobody has stopped the worker itself
                await running
            assert server.cli("LLEN", BASE + "active") == 0
        async with Worker(QUEUE, runs, connection=server.url, concurrency=50, **FAST):
            await completed(queue, jobs)
    assert len(runs.ended) >= jobs
    await assert_no_tasks()
    assert_no_clients(server)
    assert_sound(server, jobs=jobs, ended=[str(number) for number in range(1, jobs + 1)], starts=rounds)


def _tasks(name: str) -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(name)]


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_cancelled_and_cut_off_at_random_moments(server: Server) -> None:
    chance, runs, jobs = random.Random(SEED), Runs(), 3000
    async with Queue(QUEUE, connection=server.url) as queue, Proxy(server) as proxy:
        await queue.add_bulk([JobSpec("work", {"seconds": chance.choice((0, 0.002, 0.05))}) for _ in range(jobs)])
        for _ in range(1000):
            worker = Worker(QUEUE, runs, connection=proxy.url, concurrency=4, shutdown_timeout=0.01, **FAST)
            running = asyncio.create_task(worker.run(), name="running")
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(chance.random() * 0.02)
                proxy.lose(chance.choice(("request", "reply")), b"EVALSHA", times=chance.randrange(3))
            await asyncio.sleep(chance.random() * 0.02)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        async with Worker(QUEUE, runs, connection=server.url, concurrency=50, **FAST):
            await completed(queue, jobs, 60)
    assert_sound(server, jobs=jobs, starts=1000, stalls=1)  # the events of all that happened were more than are kept
