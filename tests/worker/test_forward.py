"""The forwarder: deaths and rivals at each step, and quiet where nothing is. And what a sweep removes while nothing ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from echomq import Connection, Job, Keep, Queue, Worker
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._store.call import Lane
from echomq._store.forward import Destination, add_outcomes, take_outcomes
from echomq._store.keys import QueueKeys
from echomq._worker.forward import Forwarder
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

KEYS = QueueKeys.of("jobs")
THERE = QueueKeys.of("results")


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    link = Link(Settings.from_url(server.url))
    yield link
    await link.close()


def fill(server: Server, *numbers: int) -> None:
    for number in numbers:
        server.cli(
            "XADD", KEYS.resolve("outbox"), "*", "id", f"outcome-{number}", "to", THERE.base, "at", "", "data",
            json.dumps({"n": number}),
        )  # fmt: skip


def forwarder(link: Link) -> Forwarder:
    return Forwarder(KEYS, link, dict)


def arrived(server: Server) -> list[bytes]:
    found: list[bytes] = server.cli("LRANGE", THERE.key("wait"), "0", "-1")
    return found[::-1]


@pytest.mark.parametrize("added", [False, True])
async def test_one_that_dies_before_or_after_it_has_added(server: Server, link: Link, added: bool) -> None:
    fill(server, 1, 2, 3)
    taken = await take_outcomes(link, KEYS, "dead", 50, b"", [], (), ())
    assert [entry.job_id for entry in taken.entries] == [b"outcome-1", b"outcome-2", b"outcome-3"]
    if added:
        await add_outcomes(Lane(link, THERE), taken.entries[:2])
    waits = await forwarder(link).tick()
    while waits is not None:  # the lease of the dead one
        await asyncio.sleep(waits)
        waits = await forwarder(link).tick()
    assert arrived(server) == [b"outcome-1", b"outcome-2", b"outcome-3"]
    assert server.cli("XLEN", KEYS.resolve("outbox")) == 0


async def test_many_at_once(server: Server, link: Link) -> None:
    fill(server, *range(500))
    many = [forwarder(link) for _ in range(5)]
    waits = await asyncio.gather(*(one.tick() for one in many))
    assert None in waits
    server.cli("DEL", KEYS.resolve("forwarding"))
    await asyncio.gather(*(one.tick() for one in many))
    assert arrived(server) == [b"outcome-%d" % number for number in range(500)]
    assert server.cli("XLEN", KEYS.resolve("outbox")) == 0


async def test_a_broken_destination_holds_no_other_up(server: Server, link: Link) -> None:
    server.cli("XADD", KEYS.resolve("outbox"), "*", "id", "x", "to", "emq:{broken}:", "at", "", "data", "{}")
    server.cli("SET", "emq:{broken}:wait", "x")
    fill(server, 1)
    one = forwarder(link)
    waits = await one.tick()
    assert waits is not None
    assert waits < 1
    assert arrived(server) == [b"outcome-1"]
    server.cli("DEL", "emq:{broken}:wait")
    await asyncio.sleep(waits)
    assert await one.tick() is None
    assert server.cli("LRANGE", "emq:{broken}:wait", "0", "-1") == [b"x"]


async def test_queues_by_one_other_connection_do_not_knock_each_other_out(
    server: Server, link: Link, make_server: Callable[..., Server]
) -> None:
    async with Proxy(make_server()) as proxy, Connection(proxy.url) as connection, Connection(server.url) as here:
        places = [
            Destination.of(QueueKeys.of(name), connection, KEYS, here, is_cluster=False) for name in ("seats", "bills")
        ]
        elsewhere = {place.name: place for place in places}

        def fill(number: int, *names: str) -> None:
            for place in (place for place in places if place.keys.queue in names):
                server.cli(
                    "XADD", KEYS.resolve("outbox"), "*", "id", f"outcome-{number}", "to", place.keys.base, "at", place.at,
                    "data", json.dumps({"n": number}),
                )  # fmt: skip

        one = Forwarder(KEYS, link, lambda: elsewhere)
        fill(1, "seats", "bills")
        assert await one.tick() is None
        proxy.lose("reply", needle("addJobs-11"))
        fill(2, "seats")
        waits = await one.tick()
        assert waits is not None
        fill(3, "seats", "bills")
        await asyncio.sleep(waits)
        assert await one.tick() is None
        for hub in one._hubs.values():
            await hub.release()
    assert server.cli("XLEN", KEYS.resolve("outbox")) == 0


async def test_it_asks_nothing_while_nobody_says_so(server: Server, link: Link) -> None:
    one = forwarder(link)
    running = asyncio.create_task(one.run())
    await link.connect()
    server.cli("CONFIG", "RESETSTAT")
    await asyncio.sleep(0.05)
    assert b"cmdstat_evalsha" not in server.cli("INFO", "commandstats")
    one.look()
    await one.at_rest()
    assert b"cmdstat_evalsha" in server.cli("INFO", "commandstats")
    running.cancel()
    await asyncio.wait([running])


async def test_an_idle_worker_removes_what_has_become_too_old(url: str, server: Server) -> None:
    """The worker that ran the last job is gone; another, whose own rule keeps all, goes on by that of the last job."""

    async def process(job: Job[Any]) -> None:
        pass

    async with Queue("jobs", connection=url) as queue:
        await queue.add("first")
        async with Worker(queue, process, stalled_interval=0.1, remove_on_complete=Keep(age=1)) as worker:
            await worker.ready()
            await wait_until(lambda: server.cli("EXISTS", KEYS.resolve("rules")) == 1)
        async with Worker(queue, process, stalled_interval=0.1, remove_on_complete=Keep.ALL):
            await wait_until(lambda: server.cli("EXISTS", KEYS.key("completed")) == 0)
            assert server.cli("EXISTS", KEYS.job("1")) == 0
            await queue.add("second")
            await wait_until(lambda: server.cli("EXISTS", KEYS.resolve("rules")) == 1)
            assert server.cli("HGET", KEYS.resolve("rules"), "completed").endswith(b":-1;;")
