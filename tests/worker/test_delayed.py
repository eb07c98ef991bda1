"""Delayed jobs start when they are due: by the server's clock, without traffic, whatever becomes of markers and connections."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import time_machine

from echomq import Connection, Job, JobSpec, Queue, RetryLater, Worker
from tests.chaos.rig import BASE, FAST, QUEUE, Program, Runs, assert_sound, completed
from tests.support.server import Server
from tests.support.wait import wait_until

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


def lateness(server: Server) -> list[int]:
    """Milliseconds from the moment at which each job was due to its first start, by the server's own clock; sorted."""
    found = []
    with server.client() as client:
        ids: Any = client.zrange(BASE + "completed", 0, -1)
        for job_id in ids:
            fields: Any = client.hgetall(BASE + job_id.decode())
            due = int(fields[b"timestamp"]) + json.loads(fields[b"opts"])["delay"]
            found.append(int(fields[b"processedOn"]) - due)
    return sorted(found)


async def fired(server: Server, *, workers: int, concurrency: int, delays: list[float]) -> list[int]:
    """Lets workers wait for nothing but these jobs. Gives by how many milliseconds each was late."""
    runs = Runs()
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection(server.url))
        queue = await stack.enter_async_context(Queue(QUEUE, connection=connection))
        for _ in range(workers):
            worker = await stack.enter_async_context(Worker(queue, runs, concurrency=concurrency))
            await worker.ready()
        await queue.add_bulk([JobSpec("work", {}, delay=delay) for delay in delays])
        await completed(queue, len(delays), max(delays) + 20)
    assert len(runs.started) == len(delays)
    return lateness(server)


@both_servers
@pytest.mark.parametrize(("workers", "concurrency"), [(1, 1), (6, 10)])
async def test_without_any_traffic_each_starts_at_its_time(server: Server, workers: int, concurrency: int) -> None:
    delays = [0.3 + 0.037 * number for number in range(50)]
    late = await fired(server, workers=workers, concurrency=concurrency, delays=delays)
    assert late[0] >= 0
    assert late[45] < 50, late
    assert late[-1] < 1000, late


@pytest.mark.torture
@both_servers
@pytest.mark.parametrize("workers", [1, 20])
async def test_each_starts_within_fifty_milliseconds_also_after_long_waits(server: Server, workers: int) -> None:
    late = await fired(server, workers=workers, concurrency=5, delays=[2 + 0.41 * number for number in range(60)])
    print(f"late by: median {late[30]} ms, longest {late[-1]} ms")  # noqa: T201 - a figure for bench/NOTES.md
    assert late[0] >= 0
    assert late[-1] < 50, late


@pytest.mark.parametrize("kill", [False, True])
async def test_after_a_restart_of_the_server(make_server: Callable[..., Server], kill: bool) -> None:
    server, runs = make_server(appendonly=True), Runs()
    async with Connection(server.url) as connection, Queue(QUEUE, connection=connection) as queue:
        async with (
            Worker(queue, runs, concurrency=3, **FAST) as worker,
            Worker(queue, runs, concurrency=3, **FAST) as other,
        ):
            await worker.ready()
            await other.ready()
            await queue.add_bulk([JobSpec("work", {}, delay=delay) for delay in (2.5, 2.7, 3.1, 3.5)])
            server.restart(kill=kill)
            await completed(queue, 4)
    late = lateness(server)
    assert late[0] >= 0
    assert late[2] < 50, late
    assert late[-1] < 1000, late


async def test_one_that_comes_due_while_all_slots_are_taken_starts_with_the_next_free_one(server: Server) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, runs, connection=server.url):
        await queue.add("work", {"seconds": 0.4})
        await wait_until(lambda: runs.started)
        late = await queue.add("work", {}, delay=0.1)
        await late.result(timeout=10)
        first, second = await queue.get_job("1"), await late.refresh()
        assert first is not None
        assert second is not None
        assert first.finished_on is not None
        assert second.processed_on is not None
        assert (second.processed_on - first.finished_on).total_seconds() < 0.5


async def test_a_lost_marker_costs_the_time_of_a_block_at_most(server: Server) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, runs, connection=server.url) as worker:
        await worker.ready()
        await wait_until(lambda: any("cmd=bzpopmin" in client for client in server.clients()))
        later = await queue.add("work", {}, delay=60)
        await wait_until(lambda: server.cli("EXISTS", BASE + "marker") == 0)
        with server.client() as client, client.pipeline() as both:  # it comes due sooner, and nobody is told
            seconds, micros = client.time()
            due = seconds * 1000 + micros // 1000 + 300
            both.zadd(BASE + "delayed", {later.id: due * 4096})
            both.delete(BASE + "marker")
            both.execute()
        assert await later.result(timeout=8) == later.id
        job = await later.refresh()
        assert job is not None
        assert job.processed_on is not None
        assert 0 <= job.processed_on.timestamp() * 1000 - due < 6500


async def test_the_worker_that_holds_the_marker_is_killed(server: Server, tmp_path: Path) -> None:
    """The others look by themselves, in the time of a block; those that know the time need no marker."""
    runs = Runs()
    program = Program(server.url, tmp_path / "report", tmp_path / "log")
    try:
        await program.ready()
        async with Queue(QUEUE, connection=server.url) as queue:
            await wait_until(lambda: any("cmd=bzpopmin" in client for client in server.clients()))
            job = await queue.add("work", {}, delay=1)
            await wait_until(lambda: server.cli("EXISTS", BASE + "marker") == 0)  # the program has it
            async with Worker(queue, runs) as worker:
                await worker.ready()
                program.kill()
                assert await job.result(timeout=10) == job.id
    finally:
        program.kill()
    assert len(runs.started) == 1
    assert 0 <= lateness(server)[0] < 1000


@pytest.mark.parametrize(("producer", "worker"), [(300, -240), (-300, 240)])
async def test_clocks_that_are_minutes_apart_change_nothing(
    server: Server, tmp_path: Path, producer: int, worker: int
) -> None:
    """Nothing is early, nothing is lost: all times are the server's."""
    programs = [Program(server.url, tmp_path / "report", tmp_path / "log", clock=worker, concurrency=3) for _ in "ab"]
    runs = Runs()
    try:
        for program in programs:
            await program.ready()
        with time_machine.travel(time.time() + producer, tick=True):
            async with Connection(server.url) as connection, Queue(QUEUE, connection=connection) as queue:
                await queue.add_bulk([JobSpec("work", {}, delay=0.2 + 0.05 * number) for number in range(30)])
                async with Worker(queue, runs, concurrency=3, **FAST):
                    await completed(queue, 30)
    finally:
        for program in programs:
            program.kill()
    late = lateness(server)
    assert late[0] >= 0
    assert late[26] < 100, late
    assert late[-1] < 1000, late
    assert_sound(server, jobs=30, ended=[str(number) for number in range(1, 31)])


async def test_a_handler_that_asks_for_later_is_not_called_early(server: Server) -> None:
    calls: list[float] = []

    async def process(job: Job[Any]) -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 4:
            raise RetryLater(0.2)

    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, process, connection=server.url):
        await (await queue.add("work")).result(timeout=10)
    gaps = [later - sooner for sooner, later in itertools.pairwise(calls)]
    assert all(0.19 <= gap < 1 for gap in gaps), gaps
