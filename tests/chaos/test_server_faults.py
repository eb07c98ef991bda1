"""The server, or the way to it, fails in every way; workers and queues go on by themselves as soon as it is back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from echomq import Connection, JobSpec, Queue, ServerError, ServerUnavailable, Worker
from echomq._store.call import Lane
from echomq._worker.pump import Pump
from tests.chaos.rig import BASE, FAST, LOCK, QUEUE, Runs, assert_sound, completed
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

BLOCK = 5.0


@asynccontextmanager
async def workers(url: str, runs: Runs, count: int = 1, **options: object) -> AsyncIterator[list[Worker]]:
    async with AsyncExitStack() as stack:
        made = [Worker(QUEUE, runs, connection=url, **{**FAST, "concurrency": 5, **options}) for _ in range(count)]
        for worker in made:
            await stack.enter_async_context(worker)
        for worker in made:
            await worker.ready()
        yield made


def kill_clients(server: Server, which: str) -> int:
    """Closes connections from the server's side: ``blocking``, ``unnamed`` (commands, heartbeat, queues) or ``all``."""
    with server.client() as client:
        client.response_callbacks.clear()
        killed = 0
        for line in server.clients():
            blocking = ":w:" in line
            if which == "all" or blocking == (which == "blocking"):
                number = line.split()[0].removeprefix("id=")
                killed += client.execute_command("CLIENT", "KILL", "ID", number)
        return killed


@pytest.mark.parametrize("which", ["blocking", "unnamed", "all"])
async def test_connections_are_killed_under_load(which: str, server: Server) -> None:
    runs = Runs(0.02)
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs, 2):
        for round_ in range(8):
            await queue.add_bulk([JobSpec("work", {}) for _ in range(20)])
            kill_clients(server, which)
            await wait_until(lambda: len(runs.started) >= 20 * round_)  # noqa: B023
        await completed(queue, 160)
    assert len(runs.started) == 160
    assert_sound(server, jobs=160, ended=runs.ended)


@pytest.mark.parametrize("which", ["blocking", "unnamed", "all"])
async def test_an_idle_worker_is_back_within_two_seconds(which: str, server: Server) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs):
        await wait_until(lambda: any("bzpopmin" in line for line in server.clients()))
        assert kill_clients(server, which)
        began = time.monotonic()
        await queue.add("work", {})
        await completed(queue, 1)
        assert time.monotonic() - began < 2
    assert_sound(server, jobs=1, ended=["1"])


def break_off(server: Server) -> bool:
    """Ends the blocked read, if there is one just now: the last command of a client may have ended."""
    blocked = [line.split()[0].removeprefix("id=") for line in server.clients() if "cmd=bzpopmin" in line]
    return any(server.cli("CLIENT", "UNBLOCK", number, "ERROR") == 1 for number in blocked)


async def test_a_blocked_read_that_is_broken_off_by_the_server(server: Server) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs):
        for number in range(1, 4):
            await wait_until(lambda: break_off(server))
            await queue.add("work", {})
            await completed(queue, number, 2)
    assert_sound(server, jobs=3, ended=["1", "2", "3"])


@pytest.mark.parametrize("kill", [True, False])
async def test_the_server_stops_and_starts_again(kill: bool, make_server: Callable[..., Server]) -> None:
    server, runs = make_server(appendonly=True), Runs(0.05)
    async with Queue(QUEUE, connection=Connection(server.url, wait=20)) as queue, workers(server.url, runs, 3):
        await queue.add_bulk([JobSpec("work", {}) for _ in range(200)])
        for share in (50, 120):
            await wait_until(lambda: len(runs.ended) >= share)  # noqa: B023
            await asyncio.to_thread(server.kill if kill else server.stop)
            await asyncio.to_thread(server.start)
            back, before = time.monotonic(), len(runs.started)
            await wait_until(lambda: len(runs.started) > before)  # noqa: B023
            assert time.monotonic() - back < 2
        await completed(queue, 200)
    assert len(runs.started) == 200
    assert_sound(server, jobs=200, ended=runs.ended)


async def test_the_server_is_away_for_longer_than_a_lock(make_server: Callable[..., Server]) -> None:
    server, runs = make_server(appendonly=True), Runs(0.2)
    async with Queue(QUEUE, connection=Connection(server.url, wait=20)) as queue, workers(server.url, runs, 3):
        await queue.add_bulk([JobSpec("work", {"seconds": 2 * LOCK if n % 10 == 0 else 0.05}) for n in range(60)])
        await wait_until(lambda: len(runs.ended) >= 5)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(1.5 * LOCK)
        await asyncio.to_thread(server.start)
        await completed(queue, 60)
    assert_sound(server, jobs=60, ended=runs.ended, starts=3, stalls=0)


async def test_a_fetch_whose_answer_was_lost_is_not_held_against_its_jobs(server: Server) -> None:
    """The reply of a fetch is lost, and the worker is cut off until the locks have expired."""
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, Proxy(server) as proxy, workers(proxy.url, runs):
        proxy.lose("reply", needle("moveToActive-11"))
        await queue.add_bulk([JobSpec("work", {}) for _ in range(3)])
        await wait_until(lambda: proxy.seen == 1)
        await proxy.stop_listening()
        await asyncio.sleep(1.2 * LOCK)
        await proxy.listen()
        await completed(queue, 3)
    assert_sound(server, jobs=3, ended=["1", "2", "3"])


async def test_twenty_restarts_in_a_row(make_server: Callable[..., Server]) -> None:
    server, runs = make_server(appendonly=True), Runs(0.01)
    patient = Connection(server.url, wait=30)
    async with Queue(QUEUE, connection=patient) as queue, workers(server.url, runs, 2, lock_duration=10):
        stop = asyncio.Event()
        added: list[str] = []

        async def produce() -> None:
            while not stop.is_set():
                added.extend([job.id for job in await queue.add_bulk([JobSpec("work", {}) for _ in range(5)])])
                await asyncio.sleep(0.005)

        producing = asyncio.create_task(produce())
        for _ in range(20):
            before = len(added)
            await asyncio.to_thread(server.restart, kill=True)
            await wait_until(lambda: len(added) > before)  # noqa: B023
        stop.set()
        await producing
        await completed(queue, len(added))
    assert len(runs.started) == len(set(added)) == len(added)
    assert_sound(server, jobs=len(added), ended=added)


async def test_the_server_is_frozen_for_one_and_a_half_lock_times_twice(make_server: Callable[..., Server]) -> None:
    server, runs = make_server(), Runs()
    async with Queue(QUEUE, connection=Connection(server.url, wait=30)) as queue, workers(server.url, runs, 3):
        await queue.add_bulk([JobSpec("work", {"seconds": 0.02 * (n % 20)}) for n in range(400)])
        for share in (50, 150):
            await wait_until(lambda: len(runs.ended) >= share)  # noqa: B023
            server.pause()
            await asyncio.sleep(1.5 * LOCK)
            server.resume()
        await completed(queue, 400, 30)
    assert_sound(server, jobs=400, ended=[str(number) for number in range(1, 401)], starts=3, stalls=0)


async def test_half_open_sockets_are_noticed_within_the_time_of_a_block(server: Server) -> None:
    idle, busy = Runs(), Runs()
    finish = asyncio.Event()

    async def busy_handler(job: object) -> None:
        await busy(job)  # type: ignore[arg-type]
        await finish.wait()

    async with (
        Queue(QUEUE, connection=server.url) as queue,
        Queue("other", connection=server.url) as other,
        Proxy(server) as proxy,
        workers(proxy.url, idle),
        Worker("other", busy_handler, connection=proxy.url, lock_duration=10),
    ):
        await other.add("work", {})
        await wait_until(lambda: len(busy.started) == 1)
        await wait_until(lambda: any("bzpopmin" in line for line in server.clients()))
        proxy.silence()
        began = time.monotonic()
        await queue.add("work", {})
        finish.set()
        await completed(queue, 1)
        await completed(other, 1)
        assert time.monotonic() - began < BLOCK + 2
    assert_sound(server, jobs=1, ended=["1"])


async def test_a_black_hole_loses_nothing(server: Server) -> None:
    runs = Runs(0.01)
    patient = Connection(server.url, wait=30)
    async with Proxy(server) as proxy, Queue(QUEUE, connection=patient) as queue, workers(proxy.url, runs, 2):
        await queue.add_bulk([JobSpec("work", {}) for _ in range(200)])
        await wait_until(lambda: len(runs.ended) > 40)
        proxy.black_hole = True
        await asyncio.sleep(1.5 * LOCK)
        proxy.black_hole = False
        await completed(queue, 200)
    assert_sound(server, jobs=200, ended=runs.ended, starts=2, stalls=0)


async def test_no_client_is_accepted_for_a_while(make_server: Callable[..., Server]) -> None:
    server, runs = make_server(maxclients=8), Runs(0.01)
    async with Queue(QUEUE, connection=Connection(server.url, wait=20)) as queue:
        await queue.add_bulk([JobSpec("work", {}) for _ in range(50)])
        hogs = [await asyncio.open_unix_connection(str(server.socket_path)) for _ in range(6)]
        async with AsyncExitStack() as stack:
            for _ in range(2):  # they need six
                await stack.enter_async_context(Worker(QUEUE, runs, connection=server.url, concurrency=5, **FAST))
            await asyncio.sleep(0.5)
            for _, writer in hogs:
                writer.close()
                await writer.wait_closed()
            await completed(queue, 50)
    assert_sound(server, jobs=50, ended=runs.ended)


async def test_memory_is_full_and_free_again(make_server: Callable[..., Server]) -> None:
    server, runs = make_server(), Runs(0.3)
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs):
        await queue.add_bulk([JobSpec("work", {}) for _ in range(20)])
        await wait_until(lambda: len(runs.started) == 5)
        server.cli("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(ServerError, match="OOM"):
            await queue.add("work", {})
        await wait_until(lambda: len(runs.ended) >= 5)

        async def stored() -> bool:
            return (await queue.counts())["completed"] >= 5

        await wait_until(stored)  # what has been done is stored all the same
        server.cli("CONFIG", "SET", "maxmemory", "0")
        await completed(queue, 20)
        await queue.add("work", {})
        await completed(queue, 21)
    assert len(runs.started) == 21
    assert_sound(server, jobs=21, ended=runs.ended)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_the_server_is_a_replica_for_a_while(kind: str, make_server: Callable[..., Server]) -> None:
    """What blocks is answered UNBLOCKED, what writes READONLY."""
    server, runs = make_server(kind), Runs(0.02)
    patient = Connection(server.url, wait=20)
    async with Queue(QUEUE, connection=patient) as queue, workers(server.url, runs, 2):
        await queue.add("work", {})
        await completed(queue, 1)
        await wait_until(lambda: any("bzpopmin" in line for line in server.clients()))
        server.cli("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ServerUnavailable, match=r"READONLY|replica"):
            async with Queue(QUEUE, connection=Connection(server.url, wait=0)) as hasty:
                await hasty.add("work", {})
        jobs = [JobSpec("work", {}) for _ in range(100)]
        adding = asyncio.create_task(queue.add_bulk(jobs), name="adding")
        await asyncio.sleep(0.3)
        server.cli("REPLICAOF", "NO", "ONE")
        assert len(await adding) == len(jobs)
        await wait_until(lambda: len(runs.ended) > 30)
        server.cli("REPLICAOF", "127.0.0.1", "1")
        await asyncio.sleep(0.3)
        server.cli("REPLICAOF", "NO", "ONE")
        back, before = time.monotonic(), len(runs.started)
        await wait_until(lambda: len(runs.started) > before)
        assert time.monotonic() - back < 2
        await completed(queue, 101)
    assert len(runs.started) == 101
    assert_sound(server, jobs=101, ended=runs.ended)


@pytest.mark.parametrize("setting", ["READONLY", "NOREPLICAS"])
async def test_a_server_that_refuses_all_work_counts_as_away(
    setting: str, make_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server, runs = make_server(), Runs()

    def said(text: str) -> int:
        return len([record for record in caplog.records if record.name == "echomq" and text in record.message])

    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs) as [worker]:
        await worker.pause()
        await queue.add("work", {})
        if setting == "READONLY":
            server.cli("REPLICAOF", "127.0.0.1", "1")
        else:
            server.cli("CONFIG", "SET", "min-replicas-to-write", "1")
        with caplog.at_level(logging.WARNING, "echomq"):
            await worker.resume()
            await wait_until(lambda: worker.stats.away_for > 2)
            assert said(f"{setting} ") == 1
            assert not said("answers again")
            if setting == "READONLY":
                server.cli("REPLICAOF", "NO", "ONE")
            else:
                server.cli("CONFIG", "SET", "min-replicas-to-write", "0")
            await completed(queue, 1)
            await wait_until(lambda: worker.stats.away_for == 0)
            assert said("answers again") == 1
    assert_sound(server, jobs=1, ended=["1"])


async def test_a_fetch_that_is_refused_leaves_its_slots_to_what_comes(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fetch asks for all other slots and is refused, after the one beside it has brought the last jobs that waited."""
    call, asked = Pump._call, list[int]()

    async def answer(self: Pump, lane: Lane, ask: Any) -> Any:
        asked.append(ask.wanted)
        if asked == [4, 3]:
            await wait_until(lambda: self._empty and not self._changed.is_set())  # the one that blocks has looked
            raise ServerError("BROKEN the wait list", code="BROKEN")
        return await call(self, lane, ask)

    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs, concurrency=8) as [worker]:
        await queue.add("work", {"seconds": 60})
        await wait_until(lambda: runs.started)
        assert worker._session is not None
        assert worker._session._crew is not None
        pump = worker._session._crew.pump
        await worker.pause()
        await wait_until(lambda: not pump._blocked)
        await queue.add_bulk([JobSpec("work", {"seconds": 60}) for _ in range(4)])
        monkeypatch.setattr(Pump, "_call", answer)
        pump._ramp = 8
        await worker.resume()
        pump._wake_all()
        await wait_until(lambda: len(runs.started) == 5 and not pump._fetching)
        await queue.add("work", {})
        await wait_until(lambda: runs.ended == ["6"])
        await worker.close(force=True)
    assert_sound(server, jobs=6, ended=["6"])


async def test_the_server_loads_its_data_for_a_while(make_server: Callable[..., Server]) -> None:
    server = make_server(
        appendonly=True, config={"key-load-delay": "1000", "loading-process-events-interval-bytes": "1024"}
    )
    runs = Runs(0.02)
    async with Queue(QUEUE, connection=Connection(server.url, wait=20)) as queue, workers(server.url, runs):
        await queue.add_bulk([JobSpec("work", {}) for _ in range(150)])
        with server.client() as client:
            for number in range(500):
                client.set(f"ballast:{number}", "x" * 100)
        await wait_until(lambda: len(runs.ended) >= 30)
        await asyncio.to_thread(server.restart, kill=True)
        await completed(queue, 150)
    assert len(runs.started) == 150
    assert_sound(server, jobs=150, ended=runs.ended)


async def test_a_script_cache_that_is_emptied_costs_nothing(server: Server) -> None:
    runs = Runs(0.005)
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs):
        for _ in range(10):
            await queue.add_bulk([JobSpec("work", {}) for _ in range(10)])
            server.cli("SCRIPT", "FLUSH")
        await completed(queue, 100)
    assert_sound(server, jobs=100, ended=runs.ended)


async def test_a_broken_key_is_named_once_and_all_goes_on_when_it_is_mended(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, workers(server.url, runs):
        server.cli("SET", BASE + "prioritized", "not a sorted set")
        with contextlib.suppress(ServerError):
            await queue.add("work", {})
        with caplog.at_level(logging.ERROR, "echomq"):
            await wait_until(lambda: "prioritized" in caplog.text)
        server.cli("DEL", BASE + "prioritized")
        await queue.add("work", {})
        await wait_until(lambda: len(runs.ended) >= 1)
        jobs = len(runs.ended)
        await completed(queue, jobs)
    assert_sound(server, jobs=jobs)
