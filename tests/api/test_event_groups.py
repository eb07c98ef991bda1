"""Groups of listeners: each event is handled by one member, at least once, through deaths, restarts and cut logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from echomq import Connection, ConnectionLost, Event, Queue, QueueEvents
from echomq.events import Custom, Gap
from tests.api.test_events import EVENTS, nothing_more, numbers, take, write
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("q", connection=url) as queue:
        yield queue


def pending(server: Server, group: str = "g") -> int:
    with server.client() as client:
        return int(client.xpending(EVENTS, group)["pending"])


def members(server: Server, group: str = "g") -> list[str]:
    with server.client() as client:
        return [found["name"].decode() for found in client.xinfo_consumers(EVENTS, group)]


def member(url: str | Connection, name: str | None = None, **options: Any) -> QueueEvents:
    return QueueEvents("q", connection=url, group="g", consumer=name, since="start", **options)


@both_servers
async def test_each_event_is_handled_by_one_of_them(server: Server) -> None:
    seen: Counter[int] = Counter()
    by: Counter[int] = Counter()

    async def listen(name: int, events: QueueEvents) -> None:
        async for event in events:
            await asyncio.sleep(0)
            seen.update(numbers([event]))
            by[name] += 1

    async with Connection(server.url) as connection:
        all_members = [member(connection) for _ in range(4)]
        for events in all_members:
            await events.ready()
        listening = [asyncio.create_task(listen(name, events)) for name, events in enumerate(all_members)]
        for start in range(0, 2_000, 50):
            write(server, *range(start, start + 50))
            await asyncio.sleep(0)
        await wait_until(lambda: len(seen) == 2_000)
        await wait_until(lambda: pending(server) == 0)
        assert set(seen.values()) == {1}
        assert sum(by.values()) == 2_000
        assert len(server.clients()) <= 2 + 1  # one for the read, one for the commands; and the test's own
        for events in all_members:
            await events.close()
        await asyncio.gather(*listening)
    assert members(server) == []


async def test_an_event_is_acknowledged_when_the_next_is_asked_for(server: Server, url: str) -> None:
    write(server, 0, 1)
    async with member(url) as events:
        assert numbers(await take(events, 1)) == [0]
        assert pending(server) == 2
        assert numbers(await take(events, 1)) == [1]
        await wait_until(lambda: pending(server) == 1)
        waiting = asyncio.ensure_future(anext(events))
        await wait_until(lambda: pending(server) == 0)
        waiting.cancel()


async def test_a_loop_that_failed_in_its_body_begins_anew_with_that_event(server: Server, url: str) -> None:
    write(server, *range(5))
    handled: list[int] = []

    async def until_the_third(events: QueueEvents) -> None:
        async for event in events:
            if numbers([event]) == [2]:
                raise ZeroDivisionError
            handled.extend(numbers([event]))

    async with member(url) as events:
        with pytest.raises(ZeroDivisionError):
            await until_the_third(events)
        async for event in events:
            handled += numbers([event])
            if len(handled) == 5:
                break
    assert handled == [0, 1, 2, 3, 4]
    async with member(url) as events:  # the last one was not finished: its loop was left
        assert numbers(await take(events, 1)) == [4]


async def test_what_one_leaves_unfinished_others_take_at_once(server: Server, url: str) -> None:
    write(server, *range(10))
    async with member(url, claim_after=0.5) as other:
        async with member(url, "leaver") as leaver:
            assert numbers(await take(leaver, 3)) == [0, 1, 2]
        assert sorted(numbers(await take(other, 8))) == [2, 3, 4, 5, 6, 7, 8, 9]
        await nothing_more(other)
        await wait_until(lambda: pending(server) == 0)


async def test_what_a_dead_one_had_goes_to_others_and_a_slow_one_keeps_its_own(server: Server, proxy: Proxy) -> None:
    write(server, *range(6))
    dead = member(Connection(proxy.url, wait=0), "dead")
    await dead.ready()
    await take(dead, 1)
    await proxy.stop_listening()  # it holds all six, and cannot say a word any more
    async with member(server.url, "slow", claim_after=0.6) as slow, member(server.url, "idle", claim_after=0.6) as idle:
        waiting = asyncio.create_task(take(idle, 1))
        assert (await take(slow, 1)) or waiting.done()
        await asyncio.sleep(1.5)  # longer than `claim_after`: it is slow, but says that it is at work
        found = await take(slow, 5) if not waiting.done() else []
        if waiting.done():  # the other one was there first
            found = await take(idle, 5)
        assert len({*numbers(found)}) == 5
        waiting.cancel()
        await asyncio.wait([waiting])
    await dead.close()


async def test_the_same_name_goes_on_where_it_was(server: Server, proxy: Proxy) -> None:
    write(server, *range(300))
    before = member(Connection(proxy.url, wait=0), "me")
    await before.ready()
    assert numbers(await take(before, 10)) == [*range(10)]
    await wait_until(lambda: pending(server) == 100 - 9)
    await proxy.stop_listening()
    async with member(server.url, "me") as events:
        assert numbers(await take(events, 291)) == [*range(9, 300)]
    await before.close()


@both_servers
@pytest.mark.parametrize("cut", ["reply", "request"])
async def test_whatever_is_lost_each_event_comes(server: Server, cut: Any) -> None:
    async with Proxy(server) as proxy:
        async with member(proxy.url) as events:
            found: list[Event] = []
            for number in range(20):
                proxy.lose(cut, needle("takeEvents-1"))
                write(server, number)
                found += await take(events, 1)
            assert numbers(found) == [*range(20)]


async def test_a_cancelled_wait_loses_nothing(server: Server, url: str) -> None:
    async with member(url) as events:
        found: list[Event] = []
        for number in range(200):
            write(server, number)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.wait([waiting], timeout=number % 5 * 0.0003)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                found.append(waiting.result())
        while len(found) < 200:
            found += await take(events, 1)
        assert sorted(numbers(found)) == [*range(200)]


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_of_the_server(make_server: Callable[..., Server], kill: bool) -> None:
    server = make_server(appendonly=True)
    async with member(server.url) as events:
        write(server, *range(10))
        assert numbers(await take(events, 5)) == [*range(5)]
        await asyncio.to_thread(server.restart, kill=kill)
        write(server, 10)
        found = {*numbers(await take(events, 6))}
        assert found == {5, 6, 7, 8, 9, 10}


@both_servers
async def test_a_log_that_was_deleted(server: Server) -> None:
    async with member(server.url) as events:
        write(server, 0)
        await take(events, 1)
        await asyncio.sleep(0.005)
        server.cli("DEL", EVENTS)
        write(server, 1, 2)
        found = await take(events, 3)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [1, 2]
        server.cli("DEL", EVENTS)
        write(server, *range(3, 200))
        found = await take(events, 198)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [*range(3, 200)]


@both_servers
async def test_what_was_cut_off_before_the_group_came_to_it(server: Server) -> None:
    async with member(server.url):
        pass
    write(server, *range(10))
    server.cli("XTRIM", EVENTS, "MAXLEN", "4")
    async with member(server.url) as events:
        found = await take(events, 5)
        assert isinstance(found[0], Gap)
        assert numbers(found) == [6, 7, 8, 9]
        assert found[0].until == found[1].id
        await nothing_more(events)
        server.cli("XTRIM", EVENTS, "MAXLEN", "0")  # nothing that the group has not had
        write(server, 10)
        assert numbers(await take(events, 1)) == [10]


@both_servers
@pytest.mark.parametrize("cut", ["reply", "request"])
@pytest.mark.parametrize("harm", ["DEL", "XTRIM", "XGROUP DESTROY"])
async def test_a_gap_is_told_whatever_is_lost(server: Server, cut: Any, harm: str) -> None:
    commands = {
        "DEL": ("DEL", EVENTS), "XTRIM": ("XTRIM", EVENTS, "MAXLEN", "3"), "XGROUP DESTROY": ("XGROUP", "DESTROY", EVENTS, "g"),
    }  # fmt: skip
    async with Proxy(server) as proxy, member(proxy.url) as events:
        write(server, 0)
        await take(events, 1)
        await asyncio.sleep(0.005)
        write(server, *range(1, 9))
        server.cli(*commands[harm])
        write(server, 9)
        proxy.lose(cut, needle("takeEvents-1"))
        found = await take(events, 2)
        assert isinstance(found[0], Gap)
        if harm == "DEL":
            assert numbers(found) == [9]
        proxy.lose(cut, needle("takeEvents-1"))
        write(server, 10)
        while 10 not in numbers(found):
            found += await take(events, 1)
        assert sum(isinstance(event, Gap) for event in found) == 1
        await nothing_more(events)


@both_servers
async def test_what_was_cut_off_while_a_dead_member_had_it(server: Server) -> None:
    async with Proxy(server) as proxy:
        write(server, *range(10))
        dead = member(Connection(proxy.url, wait=0), "dead")
        await dead.ready()
        await take(dead, 1)
        await proxy.stop_listening()
        server.cli("XTRIM", EVENTS, "MAXLEN", "4")
        async with member(server.url, claim_after=0.2) as events:
            await asyncio.sleep(0.3)
            found = await take(events, 5)
            assert any(isinstance(event, Gap) for event in found)
            assert sorted(numbers(found)) == [6, 7, 8, 9]
            await nothing_more(events)
            await wait_until(lambda: pending(server) == 0)
        await dead.close()


async def test_members_that_are_long_gone_are_forgotten(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(server, 0)
    with server.client() as client:
        client.xgroup_create(EVENTS, "g", "0")
        client.xreadgroup("g", "busy", {EVENTS: ">"}, count=1)
        for number in range(5):
            client.xgroup_createconsumer(EVENTS, "g", f"gone{number}")
    async with member(url, "me"):
        assert sorted(members(server)) == ["busy", *(f"gone{number}" for number in range(5)), "me"]
    monkeypatch.setattr("echomq._store.groups._FORGET_AFTER", 0.0)
    await asyncio.sleep(0.01)
    async with member(url, "me"):
        assert sorted(members(server)) == ["busy", "me"]


async def test_a_group_begins_now_unless_it_is_told_otherwise(server: Server, queue: Queue) -> None:
    write(server, 0)
    async with QueueEvents(queue, group="g") as events:
        write(server, 1)
        [event] = await take(events, 1)
        assert isinstance(event, Custom)
        assert numbers([event]) == [1]
        await nothing_more(events)
    write(server, 2)
    async with QueueEvents(queue, group="g", since="start") as events:  # it is there already
        assert numbers(await take(events, 1)) == [2]


async def test_many_queues_over_one_connection(server: Server) -> None:
    names = [f"q{number}" for number in range(100)]
    async with QueueEvents(*names, connection=server.url, group="g") as events:
        for name in names:
            write(server, 0, 1, 2, key=f"emq:{{{name}}}:events")
        found = await take(events, 300)
        assert Counter((event.queue, *numbers([event])) for event in found) == Counter(
            (name, number) for name in names for number in range(3)
        )
        assert len(server.clients()) <= 3


async def test_a_connection_that_is_closed_first(server: Server) -> None:
    write(server, *range(3))
    connection = Connection(server.url)
    async with member(connection) as events:
        await take(events, 2)
        await connection.close()
        with pytest.raises(ConnectionLost):
            await take(events, 5)
