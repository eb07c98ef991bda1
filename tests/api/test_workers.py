"""Who works: ``Queue.workers``, and what a ``Worker`` says of itself."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import echomq
from echomq import Connection, Job, Queue, Worker, WorkerInfo
from tests.support.command import echomq as command
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("enrollments", connection=url) as queue:
        yield queue


class Hanging:
    """A handler whose jobs end when they are told to."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, job: Job[Any]) -> None:
        self.running.append(job.id)
        await self.go_on.wait()


async def nothing(job: Job[Any]) -> None:
    """A handler."""


async def known(queue: Queue, count: int = 1) -> list[WorkerInfo]:
    """The queue's workers, once there are so many and each has said what it is."""
    found: list[WorkerInfo] = []

    async def all_are_known() -> bool:
        found[:] = await queue.workers()
        return len(found) == count and all(one.host and one.is_connected for one in found)

    await wait_until(all_are_known)
    return found


async def test_a_queue_without_workers_says_so(queue: Queue) -> None:
    assert await queue.workers() == []


async def test_a_slot_that_a_cancelled_thread_holds_is_shown(queue: Queue, url: str) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def handler(job: Job[Any]) -> None:
        begun.set()
        go_on.wait(30)

    try:
        async with Worker(queue, handler, concurrency=2):
            job = await queue.add("enroll")
            await wait_until(begun.is_set)
            assert [one.going_on for one in await known(queue)] == [0]
            await job.cancel("no seat")

            async def said(number: int) -> bool:
                return [(one.going_on, one.jobs) for one in await queue.workers()] == [(number, ())]

            await wait_until(lambda: said(1), 20)
            assert "0/2 (1 goes on)" in (await command("workers", "enrollments", url=url)).out
            go_on.set()
            await wait_until(lambda: said(0))
    finally:
        go_on.set()


async def test_a_worker_says_where_it_runs_and_what(queue: Queue) -> None:
    handler = Hanging()
    jobs = [await queue.add("enroll", {"learner": number}) for number in range(3)]
    async with Worker(queue, handler, name="desk 1", concurrency=2) as worker:
        [found] = await known(queue)
        await wait_until(lambda: len(handler.running) == 2)
        [found] = await queue.workers()
        assert (found.queue, found.name, found.is_connected) == ("enrollments", worker.name, True)
        assert (found.host, found.pid) == (socket.gethostname(), os.getpid())
        assert (found.version, found.python) == (echomq.__version__, platform.python_version())
        assert (found.slots, found.paused) == (2, False)
        assert found.started_at is not None
        assert found.loop_lag is not None
        now = datetime.now(UTC)
        for moment in (found.started_at, found.last_seen, *(job.since for job in found.jobs)):
            assert moment is not None
            assert now - timedelta(minutes=1) < moment < now + timedelta(minutes=1)
        assert [(job.id, job.name) for job in found.jobs] == [(job.id, "enroll") for job in jobs[:2]]
        handler.go_on.set()
        await wait_until(lambda: len(handler.running) == 3)
        await jobs[2].result(timeout=10)
        [found] = await queue.workers()
        assert found.jobs == ()
    assert await queue.workers() == []


async def test_the_address_on_a_unix_socket_is_its_path(server: Server) -> None:
    async with Queue("enrollments", connection=server.url) as queue, Worker(queue, nothing):
        [found] = await known(queue)
        assert found.address == str(server.socket_path)


async def test_workers_stand_by_name_and_each_has_its_own_jobs(queue: Queue) -> None:
    handler = Hanging()
    async with Worker(queue, handler, name="two"), Worker(queue, handler, name="one"):
        await known(queue, 2)
        ids = {(await queue.add("enroll")).id for _ in range(2)}
        await wait_until(lambda: len(handler.running) == 2)
        one, two = await queue.workers()
        assert (one.name, two.name) == ("one", "two")
        assert (len(one.jobs), len(two.jobs)) == (1, 1)
        assert {job.id for job in one.jobs + two.jobs} == ids
        handler.go_on.set()


async def test_workers_of_one_name_are_as_many_as_there_are(queue: Queue) -> None:
    async with Worker(queue, nothing, name="twin", concurrency=3), Worker(queue, nothing, name="twin", concurrency=4):
        found = await known(queue, 2)
        assert sorted(one.slots or 0 for one in found) == [3, 4]


async def test_workers_of_another_queue_are_not_among_them(queue: Queue, url: str) -> None:
    async with Queue("enrollments2", connection=url) as other, Worker(other, nothing):
        await known(other)
        assert await queue.workers() == []


async def test_a_pause_of_a_worker_is_seen_at_once(queue: Queue) -> None:
    async with Worker(queue, nothing, stalled_interval=60) as worker:
        await known(queue)

        async def is_paused() -> bool:
            [found] = await queue.workers()
            return bool(found.paused)

        async def is_open() -> bool:
            return not await is_paused()

        await worker.pause()
        await wait_until(is_paused)
        await worker.resume()
        await wait_until(is_open)


async def test_a_worker_is_connected_also_while_it_is_busy_or_paused(queue: Queue) -> None:
    handler = Hanging()
    await queue.add("enroll")
    async with Worker(queue, handler) as worker:
        await wait_until(lambda: handler.running)
        await known(queue)
        handler.go_on.set()
        await worker.pause()

        async def is_paused_and_connected() -> bool:
            return [(one.paused, one.is_connected) for one in await queue.workers()] == [(True, True)]

        await wait_until(is_paused_and_connected)


async def test_a_worker_whose_prefix_no_server_takes_in_a_name_is_seen_all_the_same(url: str) -> None:
    async with Queue("enrollments", connection=url, prefix="Ämter") as queue, Worker(queue, nothing, name="desk"):

        async def seen() -> bool:
            return [(one.name, one.is_connected) for one in await queue.workers()] == [("desk", None)]

        await wait_until(seen)


# -- what a worker says here -------------------------------------------------------------------------------------------


async def test_a_worker_knows_its_own_figures(queue: Queue, url: str) -> None:
    handler = Hanging()
    async with Connection(url) as connection:
        worker = Worker("enrollments", handler, connection=connection, concurrency=5)
        assert (worker.stats.slots, worker.stats.running, worker.stats.loop_lag) == (5, 0, 0.0)
        health = [worker.is_healthy]
        async with worker:
            await worker.ready()
            health.append(worker.is_healthy)
            await queue.add("enroll")
            await wait_until(lambda: worker.stats.running == 1)
            handler.go_on.set()
            await wait_until(lambda: worker.stats.running == 0)
        assert [*health, worker.is_healthy] == [False, True, False]


async def test_a_held_up_event_loop_is_no_healthy_worker_and_its_lag_is_told(queue: Queue) -> None:
    async def block(job: Job[Any]) -> None:
        time.sleep(2)

    seen: list[bool] = []
    stop = threading.Event()

    def probe() -> None:
        while not stop.wait(0.05):
            seen.append(worker.is_healthy)

    async with Worker(queue, block, lock_duration=1, stalled_interval=0.5) as worker:
        await worker.ready()
        watching = threading.Thread(target=probe)
        watching.start()
        job = await queue.add("enroll")
        await job.result(timeout=15)
        stop.set()
        watching.join()
        assert False in seen
        await wait_until(lambda: worker.is_healthy)
        assert worker.stats.loop_lag > 0.5

        async def told() -> bool:
            return any((one.loop_lag or 0) > 0.5 for one in await queue.workers())

        await wait_until(told)
