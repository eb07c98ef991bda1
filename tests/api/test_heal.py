"""Jobs that stand in no state are found and put back; one idea a test."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import echomq._worker.heal
from echomq import Every, Healed, Job, JobScheduler, JobSpec, Queue, Worker
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until

BASE = "emq:{enrollments}:"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("enrollments", connection=url) as queue:
        yield queue


async def nothing(job: Job[Any]) -> None:
    """A handler."""


def take_out(server: Server, job_id: str, place: str = "wait") -> None:
    """What BullMQ 5 does to a whole list."""
    command = "LREM" if place in ("wait", "active") else "ZREM"
    server.cli(command, BASE + place, *(["0"] if command == "LREM" else []), job_id)


async def test_a_queue_in_order_has_nothing_to_heal(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("enroll", priority=n % 3, delay=n % 5) for n in range(30)])
    async with JobScheduler(queue) as scheduler:
        await scheduler.upsert("daily", Every(86_400), JobSpec("report"))
        await scheduler.upsert("weekly", Every(604_800), JobSpec("report"))
        await scheduler.pause("weekly")
    async with Worker(queue, nothing) as worker:
        await worker.run_until_drained()
    await queue.add("enroll", deduplication="one")
    assert await queue.admin.heal() == Healed(sum((await queue.counts()).values()), {}, [])


async def test_the_oldest_of_the_lost_jobs_run_first(queue: Queue, server: Server) -> None:
    jobs = await queue.add_bulk([JobSpec("enroll") for _ in range(250)])
    server.cli("DEL", BASE + "wait")
    last = await queue.add("enroll")
    healed = await queue.admin.heal()
    assert healed.looked_at == 251
    assert sorted(healed.put_back["waiting"], key=int) == [job.id for job in jobs]
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Worker(queue, handler) as worker:
        await worker.run_until_drained()
    assert Counter(ran) == Counter([*(job.id for job in jobs), last.id])
    assert ran[-1] == last.id
    assert await queue.admin.heal() == Healed(251, {}, [])


async def test_what_cannot_be_run_is_reported(queue: Queue, server: Server) -> None:
    server.cli("HSET", BASE + "17", "ats", "1", "processedOn", "5")
    assert (await queue.admin.heal()).broken == ["17"]
    assert (await queue.admin.heal()).broken == ["17"]


async def test_jobs_of_a_queue_whose_prefix_begins_like_ours_are_not_ours(url: str, server: Server) -> None:
    names = {"bull": "q", "bull:q": "x", "bull:q:y": "x"}
    for prefix, name in names.items():
        async with Queue(name, connection=url, prefix=prefix, hash_tag=False) as queue:
            await queue.add("enroll")
            await queue.add("enroll", job_id="a:b:c")
    async with Queue("q", connection=url, prefix="bull") as queue:
        assert (await queue.admin.heal()).put_back == {}
        server.cli("DEL", "bull:q:wait")
        assert (await queue.admin.heal()).put_back == {"waiting": ["a:b:c", "1"]}


@pytest.mark.parametrize("seen", ["list", "version", "not"])
async def test_workers_heal_beside_a_bullmq_5_alone(
    queue: Queue, server: Server, seen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(echomq._worker.heal, "EVERY", 0.2)
    monkeypatch.setattr(echomq._worker.heal, "_SHARE", 1)
    lost = await queue.add("enroll", job_id="lost")
    server.cli("DEL", BASE + "wait")
    if seen == "list":
        await queue.pause()
        server.cli("RPUSH", BASE + "paused", (await queue.add("enroll")).id)
        server.cli("DEL", BASE + "wait")
        await queue.resume()
    elif seen == "version":
        server.cli("HSET", BASE + "meta", "version", "bullmq:5.81.5")
    async with Worker(queue, nothing):
        if seen == "not":
            await asyncio.sleep(1)  # long enough for a mistake to show
            assert server.cli("EXISTS", "emqx:{enrollments}:healing") == 0
        else:
            await lost.result(timeout=10)
            [told] = [record for record in caplog.records if "dropped" in record.message]
            assert told.levelno == logging.WARNING
            assert "lost" in told.message
    await queue.admin.heal()


@pytest.mark.timeout(120)
async def test_beside_fifty_thousand_jobs_under_way(queue: Queue, server: Server) -> None:
    """What is live is not touched, and nothing runs twice, whatever moves while a heal looks around."""
    ran: Counter[str] = Counter()

    async def handler(job: Job[Any]) -> None:
        ran[job.id] += 1
        if job.name == "fail":
            raise ValueError("no seat")
        if job.name == "held":
            await asyncio.Event().wait()

    hurt: dict[str, list[str]] = {}
    for place, spec in {
        "completed": JobSpec("enroll"), "failed": JobSpec("fail"), "active": JobSpec("held"),
        "wait": JobSpec("enroll"), "prioritized": JobSpec("enroll", priority=3), "delayed": JobSpec("enroll", delay=3),
        "waiting-children": JobSpec("enroll"),
    }.items():  # fmt: skip
        hurt[place] = [job.id for job in await queue.add_bulk([spec] * 120)]
        if place in ("completed", "failed", "active"):
            async with Worker(queue, handler, concurrency=120, shutdown_timeout=0):
                count = "LLEN" if place == "active" else "ZCARD"
                await wait_until(lambda count=count, place=place: server.cli(count, BASE + place) == 120)
                if place == "active":
                    server.cli("DEL", BASE + "active", *(f"{BASE}{job_id}:lock" for job_id in hurt["active"]))
    assert len(ran) == 360
    ran.clear()
    for job_id in hurt["waiting-children"]:
        server.cli("SADD", f"{BASE}{job_id}:dependencies", BASE + hurt["delayed"][0])
    server.cli("DEL", *(BASE + place for place in hurt))

    specs = [JobSpec("enroll") for _ in range(45_000)]
    specs += [JobSpec("enroll", priority=1 + n % 5) for n in range(2_500)]
    specs += [JobSpec("enroll", delay=0.5 + n % 5) for n in range(2_500)]
    added = {job.id for job in await queue.add_bulk(specs)}
    expected = added | {job_id for place in ("active", "wait", "prioritized", "delayed") for job_id in hurt[place]}
    healed: Counter[str] = Counter()
    looks = 0
    async with Worker(queue, handler, concurrency=20) as worker:
        for job_id in hurt["active"]:  # this time it ends
            server.cli("HSET", BASE + job_id, "name", "enroll")
        while len(ran) < len(expected):
            report = await queue.admin.heal()
            looks += 1
            healed.update(job_id for ids in report.put_back.values() for job_id in ids)
            assert report.broken == []
        await worker.run_until_drained()
    assert looks > 1
    assert healed == {job_id: 1 for ids in hurt.values() for job_id in ids}
    assert ran == dict.fromkeys(expected, 1)
    counts = await queue.counts()
    assert counts["waiting_children"] == 120
    assert counts["failed"] == 120
    assert counts["completed"] == len(expected) + 120
    for job_id in hurt["waiting-children"]:
        server.cli("DEL", f"{BASE}{job_id}:dependencies")
        server.cli("ZREM", BASE + "waiting-children", job_id)
        server.cli("DEL", BASE + job_id)
    with server.client() as client:
        assert audit(client, "emq", "enrollments") == []
