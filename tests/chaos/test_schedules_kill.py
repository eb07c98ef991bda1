"""A worker is killed at each step of a run of a schedule: the run comes again, the next one is made once, and all goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from echomq import Cron, Every, JobScheduler, JobSpec, Queue
from tests.chaos.rig import BASE, QUEUE, StartProgram, lines
from tests.support.audit import audit
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

WORK = JobSpec("work", {"seconds": 0})


def starts(report: Path) -> list[str]:
    return [line["job"] for line in lines(report) if line["what"] == "start"]


EVERY, YEARLY = Every(3600), Cron("0 0 1 1 *")

STEPS: dict[str, tuple[str, Loss | None, Every | Cron]] = {
    "before the fetch": ("moveToActive-11", "hold", EVERY),
    "after the fetch": ("moveToActive-11", "silence", YEARLY),
    "before an interval's next run is made": ("advanceScheduler-15", "hold", EVERY),
    "before a pattern's next run is made": ("advanceScheduler-15", "hold", YEARLY),
    "after an interval's next run was made": ("advanceScheduler-15", "silence", EVERY),
    "after a pattern's next run was made": ("advanceScheduler-15", "silence", YEARLY),
    "in the handler": ("", None, YEARLY),
    "before the end is stored": ("moveToFinished-14", "hold", YEARLY),
    "after the end is stored": ("moveToFinished-14", "silence", EVERY),
}


@pytest.mark.parametrize("step", STEPS)
async def test_killed(step: str, server: Server, proxy: Proxy, start_program: StartProgram, report: Path) -> None:
    where, loss, rhythm = STEPS[step]
    async with Queue(QUEUE, connection=server.url) as queue:
        scheduler = JobScheduler(queue)
        job = JobSpec("work", {"seconds": 600}) if loss is None else WORK
        program = start_program(proxy.url, concurrency=1)
        await program.ready()
        if loss is not None:
            proxy.lose(loss, needle(where))
        made = await scheduler.upsert("s", rhythm, job, immediately=isinstance(rhythm, Cron))
        assert made.next_run is not None
        first = f"repeat:s:{round(made.next_run.timestamp() * 1000)}"
        await wait_until(lambda: proxy.holds == 1 if loss else starts(report) == [first], 15)
        program.send(signal.SIGKILL)
        # While nobody works, somebody deploys.
        for _ in range(2):
            await scheduler.upsert("s", rhythm, WORK, immediately=isinstance(rhythm, Cron))
        server.cli("HSET", BASE + first, "data", "{}")
        other = start_program(server.url, concurrency=1)
        await wait_until(lambda: server.cli("ZSCORE", BASE + "completed", first) is not None, 20)
        proxy.release()  # what the dead one had sent arrives now
        await wait_until(lambda: server.cli("LLEN", BASE + "active") == 0)
        await asyncio.sleep(0.2)
        [info] = await scheduler.list()
        assert info.next_run is not None
        next_id = f"repeat:s:{round(info.next_run.timestamp() * 1000)}"
        assert server.cli("ZRANGE", BASE + "delayed", 0, -1) == [next_id.encode()]
        assert server.cli("LLEN", BASE + "wait") == 0
        assert info.iteration_count == 2
        if isinstance(rhythm, Every):
            assert (info.next_run - made.next_run).total_seconds() == 3600
        assert set(starts(report)) == {first}
        other.send(signal.SIGTERM)
        await other.ended()
    with server.client() as client:
        assert audit(client, "emq", QUEUE) == []


async def test_killed_again_and_again(server: Server, start_program: StartProgram, report: Path) -> None:
    """Three workers of which one is killed each half second; a schedule of each 100 ms with catching up loses no slot."""
    async with Queue(QUEUE, connection=server.url) as queue:
        scheduler = JobScheduler(queue)
        await scheduler.upsert("s", Every(0.1), WORK, missed="catch_up", limit=60)
        programs = [start_program(server.url, concurrency=2, max_stalled_count=100) for _ in range(3)]
        for turn in range(8):
            await programs[turn % 3].ready()
            await asyncio.sleep(0.3)
            programs[turn % 3].kill()
            programs[turn % 3] = start_program(server.url, concurrency=2, max_stalled_count=100)
            await scheduler.upsert("s", Every(0.1), WORK, missed="catch_up", limit=60)
        await wait_until(lambda: server.cli("ZCARD", BASE + "completed") == 60, 30)
        ids = sorted(one.decode() for one in server.cli("ZRANGE", BASE + "completed", 0, -1))
        slots = [int(one.rpartition(":")[2]) for one in ids]
        assert slots == list(range(slots[0], slots[0] + 6000, 100))
        [info] = await scheduler.list()
        assert (info.iteration_count, info.next_run) == (60, None)
    for program in programs:
        program.kill()
