"""The doctor beside queues at work, and what it says of servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from echomq import Backoff, Every, InvalidOption, Job, JobScheduler, JobSpec, Queue, ServerUnavailable, Worker
from echomq._store import server_health
from echomq.doctor import Doctor, Finding, Report
from tests.support.server import Server
from tests.support.wait import wait_until

BASE = "emq:{orders}:"


def of_queues(report: Report) -> list[Finding]:
    return [found for found in report.findings if found.queue]


def of_server(report: Report) -> list[str]:
    return [found.kind for found in report.findings if not found.queue]


@contextlib.asynccontextmanager
async def at_work(url: str) -> AsyncIterator[list[int]]:
    """A queue with producers and workers at load: retries, delays, priorities, schedules, unique jobs, pauses, removals."""
    done = [0]

    async def handler(job: Job[Any]) -> None:
        done[0] += 1
        if job.attempts_made == 0 and int(job.data or 0) % 7 == 0:
            raise ValueError("once more")

    async def produce(queue: Queue) -> None:
        for number in itertools.count():
            await queue.add_bulk(
                JobSpec("pack", one, attempts=2, backoff=Backoff.fixed(0.01), priority=one % 3, delay=(one % 5) * 0.01)
                for one in range(number * 40, number * 40 + 40)
            )
            await queue.add("unique", 1, deduplication="one")
            job = await queue.add("gone", delay=60)
            await job.change_priority(number % 4)
            await job.remove()
            if number % 10 == 9:
                await queue.pause()
                await queue.resume()
            await asyncio.sleep(0.002)

    async with Queue("orders", connection=url) as queue, JobScheduler(queue) as scheduler:
        await scheduler.upsert("often", Every(0.05), JobSpec("tick", 1))
        await scheduler.upsert("daily", Every(86_400), JobSpec("tick", 1))
        workers = [Worker(queue, handler, concurrency=10) for _ in range(2)]
        async with contextlib.AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(worker)
            producer = asyncio.create_task(produce(queue))
            try:
                yield done
                assert not producer.done()
            finally:
                producer.cancel()
                await asyncio.wait([producer])


@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
async def test_a_queue_at_work_has_no_finding(server: Server) -> None:
    doctor = Doctor(server.url)
    async with at_work(server.url) as done:
        await wait_until(lambda: done[0] > 200)
        for names in (("orders",), (), ("orders",), ()):
            before = done[0]
            report = await doctor.examine(*names)
            assert of_queues(report) == []
            assert report.not_looked_at == []
            await wait_until(lambda before=before: done[0] > before + 100)
        [facts] = report.queues
        assert facts.workers == 2


async def test_damages_are_found_while_the_queue_is_at_work(server: Server) -> None:
    doctor = Doctor(server.url)
    async with at_work(server.url) as done:
        await wait_until(lambda: done[0] > 100)
        server.cli("ZADD", BASE + "failed", "1", "nobody")
        server.cli(
            "HSET", BASE + "lost", "name", "pack", "data", "1", "opts", "{}", "timestamp", "1", "delay", "0", "priority", "0"
        )  # fmt: skip
        server.cli("SET", BASE + "de:dead", "nobody")
        found = of_queues(await doctor.examine("orders"))
        assert {(one.kind, one.subject) for one in found} == {
            ("ghost-id", "nobody"), ("job-in-no-state", "lost"), ("dead-deduplication-id", "dead"),
        }  # fmt: skip
        for one in found:
            assert await doctor.fix(one) == 1
        assert of_queues(await doctor.examine("orders")) == []
        async with Queue("orders", connection=server.url) as queue:
            lost = await queue.get_job("lost")
            assert lost is None or await lost.result(timeout=20) is None  # or done, and removed by its retention


async def test_many_queues_are_looked_at_in_one_walk(server: Server) -> None:
    for number in range(30):
        async with Queue(f"q{number}", connection=server.url) as queue:
            await queue.add("x")
    seen: list[int] = []
    server.cli("CONFIG", "RESETSTAT")
    report = await Doctor(server.url).examine(on_progress=seen.append)
    assert b"cmdstat_scan:calls=1," in server.cli("INFO", "commandstats")
    assert of_queues(report) == []
    assert len(report.queues) == 30
    assert seen[-1] == 30


# -- servers


async def test_a_server_that_keeps_what_it_is_given_has_no_finding(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    report = await Doctor(server.url).examine()
    assert report.healthy
    assert report.server.append_only
    assert report.server.role == "primary"
    assert abs(report.server.clock_ahead or 0) < 2


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "eviction-policy"),
        ({"save": "3600 1"}, "no-append-only-file"),
        ({}, "no-persistence"),
    ],
)
async def test_settings_that_lose_jobs_are_told(
    config: dict[str, str], kind: str, make_server: Callable[..., Server]
) -> None:
    server = make_server(appendonly=kind == "eviction-policy", config=config)
    report = await Doctor(server.url).examine()
    assert of_server(report) == [kind]
    with pytest.raises(InvalidOption, match="CONFIG SET"):
        await Doctor(server.url).fix(report.findings[0])


async def test_a_memory_that_is_nearly_full_is_told(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    used = int(server.cli("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])
    server.cli("CONFIG", "SET", "maxmemory", str(used + 100_000))
    assert of_server(await Doctor(server.url).examine()) == ["memory-nearly-full"]


async def test_slow_scripts_are_told_by_their_names(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(appendonly=True)
    monkeypatch.setattr(server_health, "_SLOW_US", 1)
    server.cli("CONFIG", "SET", "slowlog-log-slower-than", "0")
    async with Queue("orders", connection=server.url) as queue:
        await queue.add("x")
    report = await Doctor(server.url).examine()
    assert "the script addJobs was slow" in " ".join(one.text for one in report.findings)


async def test_a_replica_is_told_and_its_queues_are_not_looked_at(make_server: Callable[..., Server]) -> None:
    primary, replica = make_server(appendonly=True), make_server(appendonly=True)
    replica.cli("REPLICAOF", "127.0.0.1", str(primary.port))
    report = await Doctor(replica.url).examine()
    assert of_server(report) == ["replica"]
    assert report.queues == []
    assert report.server.role == "replica"


async def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(ServerUnavailable):
        await Doctor("redis://127.0.0.1:1/0").examine()


async def test_a_name_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        await Doctor(url).examine("a:b")
    with pytest.raises(InvalidOption, match="must be a Finding"):
        await Doctor(url).fix("all")  # type: ignore[arg-type]


async def test_what_the_access_list_denies_is_said_and_the_rest_is_looked_at(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(appendonly=True)
    async with Queue("orders", connection=server.url) as queue:
        await queue.add("x")
    url = f"redis://ada:secret@127.0.0.1:{server.port}/0"
    for rights in (
        "-info", "-slowlog", "-time", "-client", "-memory", "-scan", "-type", "-zrange", "-lrange", "-hkeys", "-evalsha",
        "-exists", "-@dangerous -@admin",
    ):  # fmt: skip
        server.cli("ACL", "SETUSER", "ada", "reset", "on", ">secret", "~*", "&*", "+@all", *rights.split())
        report = await Doctor(url).examine("orders")
        assert report.findings == [], rights
        assert report.not_looked_at or rights == "-client", rights


async def test_a_queue_that_waits_for_its_workers_has_no_finding(server: Server) -> None:
    """All slots busy for long, none free for what waits; then limits, and a pause: each keeps jobs waiting, and is in order."""
    gate, running = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        running.set()
        await gate.wait()

    doctor = Doctor(server.url)
    async with Queue("orders", connection=server.url) as queue:
        await queue.add_bulk(JobSpec("pack") for _ in range(5))
        async with Worker(queue, handler):
            await running.wait()
            assert of_queues(await doctor.examine("orders")) == []
            await queue.rate_limit(60)
            gate.set()
            await wait_until(lambda: server.cli("LLEN", BASE + "active") == 0)
            assert of_queues(await doctor.examine("orders")) == []
            await queue.pause()
            assert of_queues(await doctor.examine("orders")) == []
