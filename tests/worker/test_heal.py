"""The role that heals: one worker of a fleet at a time, only beside a BullMQ 5, and never louder than it has to be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

import echomq._worker.heal
from echomq import Healed, Queue
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._store.call import Lane
from echomq._store.keys import QueueKeys
from echomq._worker.heal import Healer
from tests.support.server import Server
from tests.support.wait import wait_until

KEYS = QueueKeys.of("enrollments")
GUARD, NOTE = KEYS.resolve("healing"), KEYS.resolve("version_5")


@pytest.fixture
async def make(url: str) -> AsyncIterator[Callable[[], Healer]]:
    links: list[Link] = []

    def made() -> Healer:
        links.append(Link(Settings.from_url(url)))
        return Healer(KEYS, links[-1], Lane(links[-1], KEYS))

    yield made
    await asyncio.gather(*(link.close() for link in links))


async def test_without_a_version_5_it_looks_at_two_keys(make: Callable[[], Healer], server: Server) -> None:
    healer = make()
    assert await healer.tick() is None
    server.cli("HSET", KEYS.key("meta"), "version", "bullmq:6.7.0")
    assert await healer.tick() is None
    assert server.cli("KEYS", "emqx:*") == []


async def test_one_of_a_fleet_at_a_time(make: Callable[[], Healer], server: Server) -> None:
    server.cli("SET", NOTE, 1)
    done = await asyncio.gather(*(make().tick() for _ in range(5)))
    assert [healed for healed in done if healed is not None] == [Healed(0, {}, [])]
    assert 170 < server.cli("TTL", GUARD) <= 180
    server.cli("DEL", GUARD)
    assert await make().tick() is not None


async def test_where_there_is_much_to_look_at_it_looks_seldom(
    make: Callable[[], Healer], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echomq._worker.heal, "EVERY", 0.001)
    monkeypatch.setattr(echomq._worker.heal, "_SHARE", 1e-7)
    server.cli("SET", NOTE, 1)
    await make().tick()
    assert server.cli("TTL", GUARD) > 60


async def test_it_names_what_it_puts_back_and_what_is_broken(
    make: Callable[[], Healer], url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Queue("enrollments", connection=url) as queue:
        for _ in range(120):
            await queue.add("enroll", {"secret": "payload"})
    server.cli("DEL", KEYS.key("wait"))
    server.cli("HSET", KEYS.job("ghost"), "ats", 1)
    server.cli("SET", NOTE, 1)
    await make().tick()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    named = [job_id for record in caplog.records for job_id in getattr(record, "job_ids", ())]
    assert sorted(map(int, named)) == list(range(1, 121))
    assert "ghost" in caplog.text
    assert "payload" not in caplog.text


async def test_a_broken_key_is_told_and_a_server_that_is_away_is_not(
    make: Callable[[], Healer],
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(echomq._worker.heal, "EVERY", 0.02)
    server.cli("SET", NOTE, 1)
    server.cli("HSET", KEYS.job("1"), "timestamp", 1)
    server.cli("SET", KEYS.key("completed"), "rubbish")
    healer = make()
    running = asyncio.create_task(healer.run())
    await wait_until(lambda: "cannot be looked through" in caplog.text)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    caplog.clear()
    nowhere = Link(Settings.from_url("unix:///nowhere/at/all"))
    alone = asyncio.create_task(Healer(KEYS, nowhere, Lane(nowhere, KEYS)).run())
    await asyncio.sleep(0.2)  # long enough for a mistake to show
    assert not alone.done()
    assert caplog.text == ""
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    await nowhere.close()
