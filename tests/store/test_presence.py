"""The records of workers: written with the sweep's call, dropped by others, read whatever stands beside them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from echomq import Connection, Queue, Worker
from echomq._store.keys import QueueKeys
from echomq._store.presence import Record, seen, workers
from tests.store.scripts import Queue as Scripts
from tests.store.scripts import T, pairs, text
from tests.support.server import Server
from tests.support.wait import wait_until

KEYS = QueueKeys.of("q")
KEY = "emqx:{q}:workers"
LIVES = 45_000
RECORD = Record("desk", "host", 7, "0.1.0", "3.11.7", slots=3, paused=False, up=5_000, lag=12)
_numbers = itertools.count(1)
both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


def say(server: Server, worker: str, now: int, *, lives: int = LIVES, interval: int = 15_000) -> None:
    """A worker's sweep, which says that it is there."""
    with server.client() as client:
        queue = Scripts(client, prefix="emq", at=now)
        told = (worker, msgspec.json.encode(RECORD).decode(), lives)
        queue.sweep(interval=interval, worker=told, lane=f"lane {worker}", number=next(_numbers))


def fields(server: Server) -> dict[str, str]:
    """What stands in the hash."""
    return pairs(text(server.cli("HGETALL", KEY)))


@both_servers
def test_a_record_is_renewed_with_each_call_and_dropped_after_its_time(server: Server) -> None:
    say(server, "a", T)
    say(server, "b", T + 1)  # it is not its turn to sweep
    assert set(fields(server)) == {"a", "b", "seen"}
    assert 0 < server.cli("PTTL", KEY) <= 86_400_000
    say(server, "b", T + 15_001)
    say(server, "b", T + 30_002)
    assert fields(server)["a"].startswith(f"{T}:{T + LIVES}:")
    say(server, "b", T + 45_003)
    assert set(fields(server)) == {"b", "seen"}
    assert fields(server)["seen"] == str(T + 45_003)


@both_servers
def test_many_that_died_at_once_are_all_dropped_in_time(server: Server) -> None:
    for number in range(300):
        server.cli("HSET", KEY, f"dead {number}", f"{T}:{T + 1}:{{}}")
    server.cli("HSET", KEY, "by hand", "rubbish")
    sweeps = 0
    now = T + 2
    while len(fields(server)) > 2:
        say(server, "a", now, interval=10)
        now, sweeps = now + 11, sweeps + 1
        assert sweeps < 100
    assert set(fields(server)) == {"a", "seen"}


def test_a_full_memory_hides_no_worker(make_server: Callable[..., Server]) -> None:
    server = make_server()
    say(server, "other", T)  # keeps the guard
    server.cli("DEL", KEY)
    server.cli("CONFIG", "SET", "maxmemory", "1")
    say(server, "a", T + 1)
    assert set(fields(server)) == {"a", "seen"}
    assert server.cli("PTTL", KEY) > 0
    say(server, "a", T + 20_000)
    assert fields(server)["seen"] == str(T + 20_000)


@pytest.fixture
async def queue(server: Server) -> AsyncIterator[Queue]:
    async with Queue("q", connection=server.url) as queue:
        yield queue


async def nothing(job: Any) -> None:
    """A handler."""


async def test_what_is_no_record_is_passed_over(server: Server, queue: Queue) -> None:
    now, _ = server.cli("TIME")
    ms = int(now) * 1000
    good = msgspec.json.encode(RECORD).decode()
    for name, value in {
        "good": f"{ms}:{ms + 60_000}:{good}",
        "later version": f"{ms}:{ms + 60_000}:" + good[:-1] + ',"more":1}',
        "gone": f"{ms - 60_000}:{ms - 1}:{good}",
        "no record": "rubbish",
        "no json": f"{ms}:{ms + 60_000}:{{",
        "too deep": f'{ms}:{ms + 60_000}:{{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        "another": f"{ms}:{ms + 60_000}:[1]",
    }.items():
        server.cli("HSET", KEY, name, value)
    found = await workers(queue._home.line)
    assert [(one.name, one.is_connected, one.pid, one.loop_lag) for one in found] == [("desk", False, 7, 0.012)] * 2
    assert found[0].started_at is not None
    assert found[0].last_seen.timestamp() * 1000 == ms
    assert (found[0].last_seen - found[0].started_at).total_seconds() == 5


async def test_jobs_that_are_strange_are_passed_over(server: Server, queue: Queue) -> None:
    for job_id in ("gone", "broken", "nobody's", "kept"):
        server.cli("LPUSH", KEYS.key("active"), job_id)
    server.cli("SET", KEYS.job("broken"), "rubbish")
    server.cli("HSET", KEYS.job("nobody's"), "name", "n")
    server.cli("HSET", KEYS.job("kept"), "name", "n", "pb", "desk", "processedOn", "soon")
    async with Worker(queue, nothing, name="desk", stalled_interval=60):

        async def has_it() -> bool:
            found = await workers(queue._home.line)
            return [(job.id, job.name, job.since) for one in found for job in one.jobs] == [("kept", "n", None)]

        await wait_until(has_it)


async def test_many_jobs_are_read_in_parts(server: Server, queue: Queue) -> None:
    with server.client() as client:
        pipe = client.pipeline()
        for number in range(1_100):
            pipe.execute_command("LPUSH", KEYS.key("active"), number)
            pipe.execute_command("HSET", KEYS.job(str(number)), "name", "n", "pb", "desk", "processedOn", T + number)
            pipe.execute_command("SET", KEYS.job(f"{number}:lock"), "token", "EX", 60)
        pipe.execute()
    say(server, "a", int(server.cli("TIME")[0]) * 1000)
    [found] = await workers(queue._home.line)
    assert [job.id for job in found.jobs] == [str(number) for number in range(1_100)]


async def test_a_user_who_may_not_list_clients_sees_our_workers(make_server: Callable[..., Server]) -> None:
    server = make_server(acl=["user ada on >pw ~* &* +@all -client|list"])
    url = server.unix_url_for(user="ada", password="pw")
    async with Connection(url) as connection, Queue("q", connection=connection) as queue:
        async with Worker(queue, nothing, name="desk"):

            async def listed() -> bool:
                return [(one.name, one.is_connected) for one in await queue.workers()] == [("desk", None)]

            await wait_until(listed)
            connected, last = await seen(queue._home.line)
            assert connected is None
            assert last is not None
        assert await queue.workers() == []


async def test_when_a_worker_was_last_seen_is_known_after_its_end(queue: Queue, server: Server) -> None:
    assert await seen(queue._home.line) == (frozenset(), None)
    async with Worker(queue, nothing, stalled_interval=60) as worker:
        await worker.ready()
        await wait_until(lambda: server.cli("HLEN", KEY) == 2)
        server.cli("HSET", KEY, "seen", T)

        async def connected() -> bool:
            return (await seen(queue._home.line))[0] == frozenset({worker.name})

        await wait_until(connected)
        _, last = await seen(queue._home.line)
        assert last is not None
        assert last.timestamp() * 1000 > T  # for it is there now
    assert server.cli("HKEYS", KEY) == [b"seen"]
    connected_now, last = await seen(queue._home.line)
    assert connected_now == frozenset()
    assert last is not None
    assert last.timestamp() * 1000 == T
    server.cli("HSET", KEY, "seen", "rubbish")
    assert await seen(queue._home.line) == (frozenset(), None)
