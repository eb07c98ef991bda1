"""A worker stops in order, however it is told to and whatever its handlers and its server do meanwhile."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from echomq import Connection, Job, JobSpec, OutcomesNotStored, Queue, Worker
from echomq._worker.pump import Pump
from echomq._worker.stalled import Sweeper
from tests.chaos.rig import BASE, FAST, LOCK, QUEUE, Runs, assert_sound, completed
from tests.support.leaks import assert_no_clients
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until


async def waiting(server: Server, count: int) -> list[str]:
    """The ids in the order in which they will be fetched, once there are so many."""

    def ids() -> list[str]:
        return [job_id.decode() for job_id in reversed(server.cli("LRANGE", BASE + "wait", 0, -1))]

    await wait_until(lambda: len(ids()) == count)
    return ids()


async def test_jobs_that_end_in_the_grace_time_complete(server: Server) -> None:
    runs = Runs(0.3)
    async with Queue(QUEUE, connection=server.url) as queue:
        async with Worker(QUEUE, runs, connection=server.url, concurrency=3, **FAST):
            await queue.add_bulk([JobSpec("work", {}) for _ in range(6)])
            await wait_until(lambda: len(runs.started) == 3)
        assert sorted(runs.ended) == ["1", "2", "3"]
        assert await queue.counts("completed", "waiting", "active") == {"completed": 3, "waiting": 3, "active": 0}
    assert len(runs.started) == 3
    assert_sound(server, jobs=6)


async def test_a_job_longer_than_the_grace_time_starts_elsewhere_at_once(server: Server) -> None:
    here, there = Runs(60), Runs(60)
    async with Queue(QUEUE, connection=server.url) as queue:
        async with Worker(QUEUE, there, connection=server.url, shutdown_timeout=0.1, **FAST) as other:
            await other.pause()
            async with Worker(QUEUE, here, connection=server.url, shutdown_timeout=0.2, **FAST):
                await queue.add("work", {})
                await wait_until(lambda: here.started)
                await other.resume()
            ended = time.monotonic()
            await wait_until(lambda: there.started)
            assert there.started[0][2] - ended < 2
    assert await waiting(server, 1) == ["1"]
    assert_sound(server, jobs=1, starts=2)


async def test_what_is_given_back_keeps_its_order(server: Server) -> None:
    runs = Runs(60)
    jobs = 120  # more than one call carries
    async with Queue(QUEUE, connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {}) for _ in range(jobs + 10)])
        worker = Worker(QUEUE, runs, connection=server.url, concurrency=jobs, shutdown_timeout=0.1, **FAST)
        async with worker:
            await wait_until(lambda: len(runs.started) == jobs)
    assert await waiting(server, jobs + 10) == [str(number) for number in range(1, jobs + 11)]
    assert_sound(server, jobs=jobs + 10)


async def test_a_fetch_that_answers_after_the_close_is_given_back_whole(server: Server) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue, Proxy(server) as proxy:
        worker = Worker(QUEUE, runs, connection=proxy.url, concurrency=10, **FAST)
        async with worker:
            await worker.ready()
            await worker.pause()
            await queue.add_bulk([JobSpec("work", {}) for _ in range(5)])
            proxy.lose("hold", needle("moveToActive-11"))
            await worker.resume()
            await wait_until(lambda: proxy.holds == 1)
            closing = asyncio.create_task(worker.close(), name="closing")
            await asyncio.sleep(0.05)
            proxy.release()
            await closing
    assert await waiting(server, 5) == ["1", "2", "3", "4", "5"]
    assert not runs.started
    assert_sound(server, jobs=5, starts=0)


async def test_cancelling_twice_gives_back_at_once(server: Server) -> None:
    runs = Runs(60)
    async with Queue(QUEUE, connection=server.url) as queue:
        running = asyncio.create_task(Worker(QUEUE, runs, connection=server.url, **FAST).run(), name="running")
        await queue.add("work", {})
        await wait_until(lambda: runs.started)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=0.3)
        assert not done, "the grace time goes on"
        began = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - began < 1
    assert await waiting(server, 1) == ["1"]
    assert_sound(server, jobs=1)


async def test_force_gives_back_at_once(server: Server) -> None:
    runs = Runs(60)
    async with (
        Queue(QUEUE, connection=server.url) as queue,
        Worker(QUEUE, runs, connection=server.url, **FAST) as worker,
    ):
        await queue.add("work", {})
        await wait_until(lambda: runs.started)
        began = time.monotonic()
        await worker.close(force=True)
        assert time.monotonic() - began < 1
    assert await waiting(server, 1) == ["1"]
    assert_sound(server, jobs=1)


async def test_what_is_given_back_is_told(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    freed, begun = asyncio.Event(), []

    async def handler(job: Job[Any]) -> None:
        begun.append(job.id)
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                if job.data["heeds"]:
                    raise

    caplog.set_level(logging.DEBUG, "echomq")
    async with Queue(QUEUE, connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {"heeds": heeds}) for heeds in (True, False)])
        async with Worker(QUEUE, handler, connection=server.url, concurrency=2, shutdown_timeout=0.1, name="w", **FAST):
            await wait_until(lambda: len(begun) == 2)
    freed.set()
    assert await waiting(server, 2) == ["1", "2"]
    told = [record.getMessage() for record in caplog.records]
    assert (
        "the handler of job 2 (work) does not stop; the job is given back, and another worker runs it; "
        "what it still returns is discarded"
    ) in told
    assert told[-2:] == ["worker w gave back 2 jobs: 1, 2", "worker w has stopped"]
    assert any(said.startswith(f"job 1 (work) of queue {QUEUE} is given back, after ") for said in told)
    assert f"job 2 (work) of queue {QUEUE} is given back, and its handler goes on" in told


async def test_many_jobs_given_back_are_told_in_one_line(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    runs = Runs(60)
    caplog.set_level(logging.INFO, "echomq")
    async with Queue(QUEUE, connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {}) for _ in range(50)])
        async with Worker(QUEUE, runs, connection=server.url, concurrency=50, shutdown_timeout=0.1, name="w", **FAST):
            await wait_until(lambda: len(runs.started) == 50)
    [said] = [record.getMessage() for record in caplog.records if "gave back" in record.getMessage()]
    assert said == f"worker w gave back 50 jobs: {', '.join(map(str, range(1, 21)))}, …"


@pytest.mark.parametrize("away", ["down", "frozen"])
async def test_the_server_is_away_while_the_worker_stops(away: str, make_server: Callable[..., Server]) -> None:
    server, runs = make_server(appendonly=True), Runs(0.3)
    async with Queue(QUEUE, connection=Connection(server.url, wait=10)) as queue:
        worker = Worker(QUEUE, runs, connection=server.url, concurrency=3, shutdown_timeout=0.4, **FAST)
        running = asyncio.create_task(worker.run(), name="running")
        await queue.add_bulk([JobSpec("work", {"seconds": seconds}) for seconds in (0.2, 0.3, 60)])
        await wait_until(lambda: len(runs.started) == 3)
        await asyncio.to_thread(server.kill if away == "down" else server.pause)
        began = time.monotonic()
        closing = asyncio.create_task(worker.close(), name="closing")
        with pytest.raises(OutcomesNotStored) as told:
            await running
        assert time.monotonic() - began < 0.4 + 1 + 5 + 2
        assert sorted(told.value.job_ids) == ["1", "2", "3"]
        await closing
        await asyncio.to_thread(server.start if away == "down" else server.resume)
        server.cli("HSET", BASE + "3", "data", "{}")
        async with Worker(QUEUE, Runs(), connection=server.url, **FAST):
            await completed(queue, 3)
    assert_sound(server, jobs=3, ended=["1", "2", "3"], starts=2, stalls=1)


@pytest.mark.parametrize("shared", [False, True])
async def test_what_a_handler_has_asked_for_keeps_no_worker_from_stopping(
    shared: bool, make_server: Callable[..., Server]
) -> None:
    """The server is away, and the connection would wait for it for ever."""
    server = make_server()
    asks = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        while True:
            await job.update_progress(1)
            asks.set()

    async with Connection(server.url, wait=math.inf) as connection:
        async with Queue(QUEUE, connection=server.url) as queue:
            await queue.add("work", {})
        if shared:
            connection.acquire()  # by another worker, say
        worker = Worker(QUEUE, handler, connection=connection, shutdown_timeout=0.1, **FAST)
        running = asyncio.create_task(worker.run(), name="running")
        await asks.wait()
        server.kill()
        async with asyncio.timeout(20):
            await worker.close()
            with pytest.raises(OutcomesNotStored):
                await running
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "echomq calls"]


@pytest.mark.parametrize("idle", ["never connected", "cut off"])
async def test_an_idle_worker_stops_without_its_server(idle: str, make_server: Callable[..., Server]) -> None:
    server = make_server()
    if idle == "never connected":
        server.kill()
    worker = Worker(QUEUE, Runs(), connection=server.url, **FAST)
    running = asyncio.create_task(worker.run(), name="running")
    if idle == "cut off":
        await worker.ready()
        server.kill()
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await worker.close()
    await running
    assert time.monotonic() - began < (1 if idle == "never connected" else 7)


async def test_an_idle_worker_stops_at_once(server: Server) -> None:
    async with Worker(QUEUE, Runs(), connection=server.url, concurrency=10, **FAST) as worker:
        await worker.ready()
        await wait_until(lambda: any("bzpopmin" in line for line in server.clients()))
        began = time.monotonic()
        await worker.close()
        assert time.monotonic() - began < 0.2
    assert_no_clients(server)


async def test_a_thread_is_told_and_its_late_result_is_discarded(server: Server) -> None:
    told, let_go = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> str:
        if job.attempts_started == 1:
            told.set() if job.cancelled.wait(20) else None
            let_go.wait(20)
        return f"run {job.attempts_started}"

    async with Queue(QUEUE, connection=server.url) as queue:
        job = await queue.add("work", {})
        async with Worker(QUEUE, handler, connection=server.url, shutdown_timeout=0.1, **FAST) as first:
            await wait_until(lambda: server.cli("LLEN", BASE + "active") == 1)
            await first.close()
            assert told.is_set()
        async with Worker(QUEUE, handler, connection=server.url, **FAST):
            assert await job.result(timeout=10) == "run 2"
        let_go.set()
    assert_sound(server, jobs=1, ended=["1"], starts=2)


def test_a_thread_that_never_ends_does_not_keep_the_loop_from_ending(server: Server) -> None:
    let_go, started = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> None:
        started.set()
        let_go.wait(30)

    async def main() -> None:
        async with Queue(QUEUE, connection=server.url) as queue:
            await queue.add("work", {})
        async with Worker(QUEUE, handler, connection=server.url, shutdown_timeout=0.1, **FAST):
            await wait_until(started.is_set)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 5
    let_go.set()
    assert_sound(server, jobs=1)


async def test_handlers_that_fill_the_executor_of_the_loop_keep_no_worker_from_stopping(server: Server) -> None:
    let_go, started = threading.Event(), threading.Event()

    def blocks() -> None:
        started.set()
        let_go.wait(30)

    async def handler(job: Job[Any]) -> None:
        await asyncio.to_thread(blocks)

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    try:
        async with Queue(QUEUE, connection=server.url) as queue:
            await queue.add("work", {})
        async with Worker(QUEUE, handler, connection=server.url, shutdown_timeout=0.1, **FAST) as worker:
            await wait_until(started.is_set)
            async with asyncio.timeout(10):
                await worker.close()
    finally:
        let_go.set()
    assert_sound(server, jobs=1)


async def test_a_thread_keeps_its_slot_until_it_ends(server: Server) -> None:
    """A lost lock tells the thread; nothing else runs in its slot meanwhile."""
    let_go = threading.Event()
    running = 0
    most = 0

    def handler(job: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if job.id == "1" and job.attempts_started == 1:
            job.cancelled.wait(20)
            let_go.wait(20)
        running -= 1

    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, handler, connection=server.url, **FAST):
        first = await queue.add("work", {})
        await wait_until(lambda: running == 1)
        server.cli("SET", BASE + "1:lock", "another's")
        second = await queue.add("work", {})
        await asyncio.sleep(0.8)
        assert (await second.refresh()).state == "waiting"  # type: ignore[union-attr]
        server.cli("DEL", BASE + "1:lock")
        let_go.set()
        await second.result(timeout=10)
        await first.result(timeout=10)
    assert most == 1
    assert_sound(server, jobs=2, starts=2, stalls=1)


async def test_a_lost_lock_tells_the_handler_within_a_second(server: Server) -> None:
    told: list[float] = []

    async def handler(job: Job[Any]) -> None:
        if job.attempts_started == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                told.append(time.monotonic())
                raise

    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, handler, connection=server.url, **FAST):
        job = await queue.add("work", {})
        await wait_until(lambda: server.cli("EXISTS", BASE + "1:lock"))
        lost = time.monotonic()
        server.cli("SET", BASE + "1:lock", "another's")
        await wait_until(lambda: told)
        assert told[0] - lost < 1
        server.cli("DEL", BASE + "1:lock")
        await job.result(timeout=10)
    assert_sound(server, jobs=1, ended=["1"], starts=2, stalls=1)


@pytest.mark.parametrize("role", ["sweep", "lane", "block"])
async def test_a_fault_of_a_role_ends_the_worker_loudly_but_in_order(
    role: str, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Fault(Exception):
        pass

    break_now = asyncio.Event()
    here, there = Runs(60), Runs()

    fetched = Pump._fetched
    faults = [Fault()]

    def broken_fetched(self: Pump, *args: Any) -> None:
        if faults:
            raise faults.pop()
        fetched(self, *args)

    async def broken(self: Any) -> None:
        await break_now.wait()
        raise Fault

    with monkeypatch.context() as patched:
        if role != "lane":
            patched.setattr(Sweeper if role == "sweep" else Pump, "run" if role == "sweep" else "_block", broken)
        worker = Worker(QUEUE, here, connection=server.url, concurrency=2, shutdown_timeout=0.1, **FAST)
        running = asyncio.create_task(worker.run(), name="running")
        async with Queue(QUEUE, connection=server.url) as queue:
            await queue.add("work", {})
            await wait_until(lambda: here.started)
            if role == "lane":
                patched.setattr(Pump, "_fetched", broken_fetched)
                await queue.add("work", {"seconds": 60})
            break_now.set()
            with caplog.at_level(logging.ERROR, "echomq"), pytest.raises(Fault):
                await running
    assert "met an error of its own, and stops" in caplog.text
    async with Queue(QUEUE, connection=server.url) as queue:
        jobs = len(await waiting(server, 2 if role == "lane" else 1))
        for number in range(1, jobs + 1):
            server.cli("HSET", f"{BASE}{number}", "data", "{}")
        async with Worker(QUEUE, there, connection=server.url, **FAST):
            await completed(queue, jobs, 1 + LOCK)
    assert_sound(server, jobs=jobs, starts=2, stalls=0)


def test_an_event_loop_that_ends_under_a_worker_gives_its_jobs_back(server: Server) -> None:
    runs = Runs(60)
    worker = Worker(QUEUE, runs, connection=server.url, concurrency=3, **FAST)

    async def main() -> None:
        await worker.ready()  # works from now on; nobody closes it
        async with Queue(QUEUE, connection=server.url) as queue:
            await queue.add_bulk([JobSpec("work", {}) for _ in range(3)])
            await wait_until(lambda: len(runs.started) == 3)

    asyncio.run(main())
    with server.client() as client:
        assert client.llen(BASE + "wait") == 3
    assert_no_clients(server)
    assert_sound(server, jobs=3)


@pytest.mark.parametrize("how", ["pause", "close"])
async def test_a_marker_that_was_on_its_way_wakes_another_worker(how: str, server: Server) -> None:
    """The server has just given the marker to a worker that stops, which never sees it."""
    here, there = Runs(), Runs()
    async with Queue(QUEUE, connection=server.url) as queue, Proxy(server) as proxy:
        proxy.lose("silence", b"BZPOPMIN")
        first, second = Worker(QUEUE, here, connection=proxy.url), Worker(QUEUE, there, connection=server.url)
        async with second:
            async with first:
                await wait_until(lambda: proxy.holds == 1)
                await second.ready()
                await wait_until(lambda: len([line for line in server.clients() if "cmd=bzpopmin" in line]) == 2)
                await queue.add("work", {})
                await wait_until(lambda: not server.cli("EXISTS", BASE + "marker"))
                began = time.monotonic()
                await (first.pause() if how == "pause" else first.close())
                await wait_until(lambda: there.ended)
                assert time.monotonic() - began < 1
    assert not here.started
    assert_sound(server, jobs=1, ended=["1"])
