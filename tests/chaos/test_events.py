"""Listeners are killed, connections cut, servers restarted: nothing is missed that the log still holds, and nobody hangs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from echomq import Connection, Event, Job, JobSpec, Queue, QueueEvents, ResultTimeout, Worker
from echomq.events import Custom
from tests.chaos import listener_program
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.wait import wait_until

EVENTS = "emq:{q}:events"


async def write(server: Server, first: int, number: int, pause: float = 0.0) -> None:
    """Writes events from elsewhere, each with its number."""
    with server.client() as client:
        for at in range(first, first + number):
            client.execute_command("XADD", EVENTS, "*", "event", "noticed", "number", str(at))
            await asyncio.sleep(pause)


class Listener:
    """A process that listens, killed at the end of the block; and what it has said."""

    def __init__(self, server: Server, since: str, *group: str) -> None:
        self._command = (sys.executable, str(listener_program.__file__), server.url, since, *group)
        self.heard: list[tuple[str, str]] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"ready\n"
        self._reading = asyncio.create_task(self._read(self._process.stdout))
        return self

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while (line := await lines.readline()).endswith(b"\n"):
            event_id, number = line.decode().split()
            self.heard.append((event_id, number))

    async def __aexit__(self, *exc_info: object) -> None:
        self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def somebody_writes(server: Server) -> AsyncIterator[list[int]]:
    """Events are written all through the block; the list holds how many."""
    written = [0]

    async def write_on() -> None:
        with server.client() as client:
            while True:
                client.execute_command("XADD", EVENTS, "*", "event", "noticed", "number", str(written[0]))
                written[0] += 1
                await asyncio.sleep(0.002)

    writing = asyncio.create_task(write_on())
    try:
        yield written
    finally:
        writing.cancel()
        await asyncio.wait([writing])


async def test_a_listener_that_is_killed_goes_on_by_the_id_that_it_kept(server: Server) -> None:
    heard: list[tuple[str, str]] = []
    since = "start"
    async with somebody_writes(server) as written:
        for _ in range(3):
            async with Listener(server, since) as listener:
                await wait_until(lambda: len(listener.heard) >= 50, 20)
            heard += listener.heard
            since = heard[-1][0]
    async with Listener(server, since) as listener:
        await wait_until(lambda: len(heard) + len(listener.heard) >= written[0], 20)
    heard += listener.heard
    assert [int(number) for _, number in heard] == [*range(written[0])]


async def test_members_of_a_group_are_killed(server: Server) -> None:
    others: list[Listener] = []

    def heard() -> Counter[int]:
        return Counter(int(number) for listener in (first, *others) for _, number in listener.heard)

    async with Listener(server, "start", "g") as first:
        async with somebody_writes(server) as written:
            for _ in range(3):
                async with Listener(server, "start", "g") as listener:
                    others.append(listener)
                    await wait_until(lambda: len(listener.heard) >= 20, 20)
        await wait_until(lambda: len(heard()) == written[0], 20)
    assert set(heard()) == {*range(written[0])}
    # Of each that was killed, the one that it had in hand, and those of which it had not said that they were done.
    assert sum(heard().values()) <= written[0] + 3 * 21


async def test_the_connection_is_cut_at_every_moment(server: Server) -> None:
    found: list[Event] = []
    async with Proxy(server) as proxy:

        async def cut() -> None:
            for turn in range(40):
                await asyncio.sleep(0.004 * (turn % 7))
                proxy.cut()

        async with QueueEvents("q", connection=proxy.url) as events:
            cutting = asyncio.create_task(cut())
            writing = asyncio.create_task(write(server, 0, 1_500, 0.001))
            async with asyncio.timeout(30):
                while len(found) < 1_500:
                    found.append(await anext(events))
            await asyncio.gather(cutting, writing)
    assert all(isinstance(event, Custom) for event in found)
    assert [int(event.fields["number"]) for event in found if isinstance(event, Custom)] == [*range(1_500)]


@pytest.mark.parametrize("group", [None, "g"])
async def test_the_server_is_restarted(make_server: Callable[..., Server], group: str | None) -> None:
    server = make_server(appendonly=True, config={"appendfsync": "always"})
    async with QueueEvents("q", connection=server.url, group=group, since="start") as events:
        found: list[Event] = []

        async def listen() -> None:
            while len(found) < 400:
                found.append(await anext(events))

        listening = asyncio.create_task(listen())
        for turn in range(4):
            await write(server, turn * 100, 100)
            if turn < 3:
                await asyncio.to_thread(server.restart, kill=turn % 2 == 0)
        await asyncio.wait_for(listening, 30)
    numbers = [int(event.fields["number"]) for event in found if isinstance(event, Custom)]
    assert sorted(numbers) == [*range(400)]


@pytest.mark.parametrize("number", [400, pytest.param(10_000, marks=pytest.mark.torture)])
async def test_thousands_wait_for_results_while_the_server_restarts(
    make_server: Callable[..., Server], number: int
) -> None:
    """Each returns or times out, none hangs: one in twenty waits for a job that nobody runs."""
    server = make_server(appendonly=True, config={"appendfsync": "always"})
    ended = 0

    async def process(job: Job[Any]) -> Any:
        nonlocal ended
        await asyncio.sleep(0.01)
        ended += 1
        return job.data

    started = time.monotonic()
    limit = 5 + number / 100
    never = number // 20
    async with Connection(server.url, wait=60) as connection:
        queue, idle = Queue("q", connection=connection), Queue("idle", connection=connection)
        jobs = await queue.add_bulk([JobSpec("echo", n) for n in range(number - never)])
        idle_jobs = await idle.add_bulk([JobSpec("echo", n) for n in range(never)])
        waiting = [asyncio.create_task(job.result(timeout=limit + 60)) for job in jobs]
        out_of_time = [asyncio.create_task(job.result(timeout=limit / 2)) for job in idle_jobs]
        async with Worker("q", process, connection=server.url, concurrency=20):
            for turn in range(1, 4):
                await wait_until(lambda: ended >= len(jobs) * turn // 4, limit + 30)  # noqa: B023
                await asyncio.to_thread(server.restart, kill=turn != 2)
            results = await asyncio.wait_for(asyncio.gather(*waiting), limit + 90)
        late = await asyncio.wait_for(asyncio.gather(*out_of_time, return_exceptions=True), limit + 10)
    assert results == [*range(number - never)]
    assert {type(one) for one in late} == {ResultTimeout}
    took = time.monotonic() - started
    sys.stdout.write(f"{number} waiters, 3 restarts: {len(results)} results, {len(late)} time-outs, {took:.1f} s\n")
