"""The doctor beside queues at work, and what it says of servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis
import time_machine

from echomq import Backoff, Every, InvalidOption, Job, JobScheduler, JobSpec, Queue, ServerUnavailable, Worker
from echomq._lua.loader import script
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


Make = Callable[..., Server]
Damaged = contextlib.AbstractContextManager[tuple[Server, Callable[[], object]]]
"""A server on which something is wrong, and what a person does about it."""


@contextlib.contextmanager
def evicts(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(appendonly=True, config={"maxmemory-policy": "allkeys-lru"})
    yield server, lambda: server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")


@contextlib.contextmanager
def snapshots_only(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(config={"save": "3600 1"})
    yield server, lambda: server.cli("CONFIG", "SET", "appendonly", "yes")


@contextlib.contextmanager
def forgets_all(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server()
    yield server, lambda: server.cli("CONFIG", "SET", "appendonly", "yes")


@contextlib.contextmanager
def nearly_full(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(appendonly=True)
    used = int(server.cli("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])
    server.cli("CONFIG", "SET", "maxmemory", str(used + 100_000))
    yield server, lambda: server.cli("CONFIG", "SET", "maxmemory", "0")


@contextlib.contextmanager
def slow(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(appendonly=True)
    server.cli("CONFIG", "SET", "slowlog-log-slower-than", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_health, "_SLOW_US", 1)
        server.cli("EVALSHA", server.cli("SCRIPT", "LOAD", script("getCounts-8").source), "0", "emq:{orders}:", "")
        server.cli("CONFIG", "SET", "slowlog-log-slower-than", "-1")
        yield server, lambda: server.cli("SLOWLOG", "RESET")


@contextlib.contextmanager
def clock_ahead(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(appendonly=True)
    travel = time_machine.travel(time.time() + 10, tick=True)
    travel.start()
    yield server, travel.stop


@contextlib.contextmanager
def clock_behind(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(appendonly=True)
    travel = time_machine.travel(time.time() - 3600, tick=True)
    travel.start()
    yield server, travel.stop


@contextlib.contextmanager
def follows(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    primary, replica = make_server(appendonly=True), make_server(appendonly=True)
    replica.cli("REPLICAOF", "127.0.0.1", str(primary.port))
    yield replica, lambda: replica.cli("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def slots_missing(make_server: Make) -> Iterator[tuple[Server, Callable[[], object]]]:
    server = make_server(appendonly=True, config={"cluster-enabled": "yes"})
    server.cli("CLUSTER", "ADDSLOTS", *range(100))
    yield server, lambda: server.cli("CLUSTER", "ADDSLOTS", *range(100, 16_384))


OF_SERVERS: dict[str, list[Callable[[Make], Damaged]]] = {
    "eviction-policy": [evicts],
    "no-append-only-file": [snapshots_only],
    "no-persistence": [forgets_all],
    "memory-nearly-full": [nearly_full],
    "slow-scripts": [slow],
    "clock-skew": [clock_ahead, clock_behind],
    "replica": [follows],
    "cluster-down": [slots_missing],
}


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, damage) for kind, damages in OF_SERVERS.items() for damage in damages],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
@pytest.mark.parametrize("product", ["valkey", "redis"])
async def test_what_is_wrong_with_a_server_is_told_and_gone_once_somebody_has_seen_to_it(
    kind: str, damage: Callable[[Make], Damaged], product: str, make_server: Make
) -> None:
    with damage(lambda **options: make_server(product, **options)) as (server, mend):
        doctor = Doctor(server.url)
        report = await doctor.examine()
        assert [found.kind for found in report.findings] == [kind]
        [found] = report.findings
        assert not found.fixable
        with pytest.raises(InvalidOption, match=kind):
            await doctor.fix(found)
        mend()
        await wait_until(lambda: b"cluster_state:fail" not in _cluster_info(server))
        report = await doctor.examine()
        assert report.findings == []
        assert report.not_looked_at == []


def _cluster_info(server: Server) -> bytes:
    with contextlib.suppress(redis.ResponseError):
        info: bytes = server.cli("CLUSTER", "INFO")
        return info
    return b""


async def test_slow_scripts_are_told_by_their_names(make_server: Make) -> None:
    with slow(make_server) as (server, _):
        [found] = (await Doctor(server.url).examine()).findings
    assert found.text.startswith("the script getCounts was slow 1 times in the last hour")


async def test_a_replica_is_told_and_its_queues_are_not_looked_at(make_server: Make) -> None:
    with follows(make_server) as (server, _):
        report = await Doctor(server.url).examine()
    assert report.queues == []
    assert report.server.role == "replica"


@pytest.mark.parametrize("product", ["valkey", "redis"])
async def test_a_queue_that_another_node_of_the_cluster_has_is_not_looked_at(product: str, make_server: Make) -> None:
    first, second = (make_server(product, appendonly=True, config={"cluster-enabled": "yes"}) for _ in range(2))
    slot = first.cli("CLUSTER", "KEYSLOT", BASE)
    first.cli("CLUSTER", "ADDSLOTS", *(one for one in range(16_384) if one != slot))
    second.cli("CLUSTER", "ADDSLOTS", slot)
    first.cli("CLUSTER", "MEET", "127.0.0.1", str(second.port))
    await wait_until(lambda: all(b"cluster_state:ok" in _cluster_info(one) for one in (first, second)))
    report = await Doctor(first.tcp_url).examine("orders", "others")
    assert report.findings == []
    said = "another node of the cluster has it"
    assert [said in one and "'orders" in one and str(second.port) in one for one in report.not_looked_at] == [
        True,
        True,
    ]


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
