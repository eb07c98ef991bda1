"""Jobs are cancelled at random moments while workers stop and lose calls: what ``cancel`` has said is what became of each."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from echomq import Job, Queue, Worker
from tests.chaos.rig import BASE, FAST, QUEUE
from tests.support.audit import audit
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.wait import wait_until

SEED = 23


class Handler:
    """Runs for a random time; some runs fail and are retried, some take their time to stop."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.stopped = 0

    async def __call__(self, job: Job[object]) -> str:
        try:
            await asyncio.sleep(self._chance.choice((0, 0, 0.002, 0.01, 0.05)))
        except asyncio.CancelledError:
            self.stopped += 1
            await asyncio.sleep(self._chance.choice((0, 0.001)))
            raise
        if self._chance.random() < 0.2:
            raise ValueError("no seat")
        return "done"


async def trial(server: Server, *, jobs: int, rounds: int) -> Handler:
    chance = random.Random(SEED)
    handler = Handler(chance)
    said: dict[str, bool] = {}
    added: list[Job[object]] = []
    async with Queue(QUEUE, connection=server.url) as queue, Proxy(server) as proxy:

        async def cancels() -> None:
            for number in range(jobs):
                kind = chance.choice(("plain", "delay", "priority"))
                options = {"plain": {}, "delay": {"delay": 0.02}, "priority": {"priority": 3}}[kind]
                added.append(await queue.add("work", {}, attempts=20, backoff=0.01, **options))  # type: ignore[arg-type]
                if chance.random() < 0.5:
                    victim = chance.choice(added[-30:])
                    said[victim.id] = await queue.cancel(victim.id, f"victim {number}") or said.get(victim.id, False)
                await asyncio.sleep(chance.choice((0, 0, 0.001, 0.005)))

        cancelling = asyncio.create_task(cancels(), name="cancels")
        for _ in range(rounds):
            worker = Worker(QUEUE, handler, connection=proxy.url, concurrency=8, shutdown_timeout=0.01, **FAST)
            running = asyncio.create_task(worker.run(), name="running")
            await asyncio.sleep(chance.random() * 0.03)
            proxy.lose(chance.choice(("request", "reply")), b"EVALSHA", times=chance.randrange(2))
            await asyncio.sleep(chance.random() * 0.03)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        await cancelling
        async with Worker(QUEUE, handler, connection=server.url, concurrency=50, **FAST):
            await wait_until(lambda: all_ended(queue), timeout=60)
        for job in added:
            found = await job.refresh()
            assert found is not None
            if said.get(job.id):
                assert (found.state, found.failure_kind) == ("failed", "cancelled"), job.id
                assert (found.failed_reason or "").startswith("victim ")
            else:
                assert (found.state, found.return_value) == ("completed", "done"), job.id
    assert sum(said.values()) > jobs / 10
    with server.client() as client:
        assert audit(client, "emq", QUEUE) == []
        assert not client.exists(f"{BASE}active")
    return handler


async def all_ended(queue: Queue) -> bool:
    counts = await queue.counts()
    return all(not count for state, count in counts.items() if state not in ("completed", "failed"))


async def test_whatever_happens_to_the_workers(server: Server) -> None:
    handler = await trial(server, jobs=300, rounds=25)
    assert handler.stopped > 0


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_whatever_happens_to_the_workers_many_times(server: Server) -> None:
    await trial(server, jobs=10_000, rounds=600)
