"""A worker's life: pause and resume, draining, several in one process, made anywhere and run in any loop."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from typing import Any

import pytest

from echomq import InvalidOption, Job, JobSpec, Limiter, Queue, RateLimited, Worker
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._store.call import Lane, Patience
from echomq._store.fetch import Want, take
from echomq._store.keys import QueueKeys
from tests.support.leaks import assert_no_clients, assert_no_tasks
from tests.support.server import Server
from tests.support.wait import wait_until


class Names:
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, job: Job[Any]) -> str:
        self.seen.append(job.id)
        return job.id


async def test_a_paused_worker_takes_nothing_and_goes_on_when_resumed(server: Server) -> None:
    names = Names()
    async with Queue("q", connection=server.url) as queue, Worker("q", names, connection=server.url) as worker:
        await worker.ready()
        await worker.pause()
        assert worker.is_paused
        job = await queue.add("work", {})
        await asyncio.sleep(0.1)
        assert not names.seen
        await worker.resume()
        assert await job.result(timeout=2) == job.id


async def test_what_a_paused_worker_leaves_another_takes(server: Server) -> None:
    here, there = Names(), Names()
    async with Queue("q", connection=server.url) as queue:
        first, second = Worker("q", here, connection=server.url), Worker("q", there, connection=server.url)
        async with first, second:
            await first.ready()
            await second.ready()
            for _ in range(20):
                await first.pause()
                assert await (await queue.add("work", {})).result(timeout=2)
                await first.resume()
                await second.pause()
                assert await (await queue.add("work", {})).result(timeout=2)
                await second.resume()
    assert len(here.seen) == len(there.seen) == 20


async def test_a_worker_paused_before_it_starts_takes_nothing(server: Server) -> None:
    names = Names()
    worker = Worker("q", names, connection=server.url)
    await worker.pause()
    async with Queue("q", connection=server.url) as queue, worker:
        job = await queue.add("work", {})
        await asyncio.sleep(0.1)
        assert not names.seen
        await worker.resume()
        assert await job.result(timeout=2) == job.id


async def test_draining_ends_when_nothing_waits(server: Server) -> None:
    names = Names()
    async with Queue("q", connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {}) for _ in range(300)])
        await queue.add("later", {}, delay=60)
        worker = Worker("q", names, connection=server.url, concurrency=20)
        await worker.run_until_drained()
        assert len(names.seen) == 300
        assert not worker.is_running
        await worker.run_until_drained()  # an empty queue is drained already
        assert await queue.counts("waiting", "delayed") == {"waiting": 0, "delayed": 1}


async def test_draining_waits_for_windows_of_the_limiter_and_for_large_jobs(server: Server) -> None:
    names = Names()
    async with Queue("q", connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {"text": "x" * 600_000}) for _ in range(6)])
        limiter = Limiter(max=4, duration=0.2)
        await Worker("q", names, connection=server.url, concurrency=10, limiter=limiter).run_until_drained()
    assert len(names.seen) == 6


@pytest.mark.parametrize("slots", [1, 3, 10])
async def test_draining_does_not_wait_for_a_window_that_nobody_needs(server: Server, slots: int) -> None:
    names = Names()
    async with Queue("q", connection=server.url) as queue:
        await queue.set_rate_limit(2, 3600)
        await queue.add_bulk([JobSpec("work", {})] * 2)
        async with asyncio.timeout(5):
            await Worker("q", names, connection=server.url, concurrency=slots).run_until_drained()
    assert len(names.seen) == 2


class Busy(Names):
    async def __call__(self, job: Job[Any]) -> str:
        await super().__call__(job)
        raise RateLimited(3600)


@pytest.mark.parametrize("kind", [Names, Busy])
async def test_a_stopped_worker_is_kept_by_no_timer(server: Server, kind: type[Names]) -> None:
    """A program that lives on may start many: each had waited for a job that is due in an hour, or for a window."""

    async def work(queue: Queue) -> weakref.ref[Names]:
        names = kind()
        async with Worker(queue, names):
            await wait_until(lambda: names.seen, what="the job runs")
        return weakref.ref(names)

    async with Queue("q", connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work"), JobSpec("work", delay=3600)])
        handler = await work(queue)

        def is_gone() -> bool:
            gc.collect()
            return handler() is None

        await wait_until(is_gone, what="nothing keeps it, once the thread of the heartbeat has come to its end")


async def test_a_marker_that_comes_while_a_fetch_is_under_way_is_not_lost(server: Server) -> None:
    """The one that blocks is given the marker of a job that the answer on its way does not know yet."""
    seen: list[int] = []
    dice = random.Random(5)

    async def work(job: Job[Any]) -> None:
        await asyncio.sleep(dice.random() * 0.004)
        seen.append(job.data)

    async with Queue("q", connection=server.url) as queue, Worker("q", work, connection=server.url, concurrency=3):
        for number in range(300):
            await queue.add("work", number)
            await asyncio.sleep(dice.random() * 0.004)
            if number % 30 == 29:
                started = time.monotonic()
                await wait_until(lambda number=number: len(seen) == number + 1)
                assert time.monotonic() - started < 2.5  # the time of a block is 5 s


async def test_a_worker_may_run_again_after_it_was_closed(server: Server) -> None:
    names = Names()
    worker = Worker("q", names, connection=server.url)
    async with Queue("q", connection=server.url) as queue:
        for _ in range(3):
            async with worker:
                job = await queue.add("work", {})
                assert await job.result(timeout=2) == job.id
            await worker.close()
            assert not worker.is_running
    await assert_no_tasks()
    assert_no_clients(server)


async def test_a_worker_that_runs_cannot_be_entered_again(server: Server) -> None:
    async with Worker("q", Names(), connection=server.url) as worker:
        with pytest.raises(InvalidOption, match="running already"):
            await worker.__aenter__()


def test_made_in_one_thread_and_run_in_the_loop_of_another(server: Server) -> None:
    names = Names()
    worker = Worker("q", names, connection=server.url)
    stop = threading.Event()
    failed: list[BaseException] = []

    async def work() -> None:
        async with worker:
            await worker.ready()
            await wait_until(stop.is_set, timeout=20)

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failed.append(error)

    async def main() -> None:
        async with Queue("q", connection=server.url) as queue:
            job = await queue.add("work", {})
            assert await job.result(timeout=5) == job.id

    for _ in range(2):  # and in a second loop, after the first has gone
        stop.clear()
        thread = threading.Thread(target=run)
        thread.start()
        asyncio.run(main())
        stop.set()
        thread.join()
    assert not failed
    assert_no_clients(server)


async def test_two_workers_share_a_process_and_a_queue(server: Server) -> None:
    names = Names()
    async with Queue("q", connection=server.url) as queue:
        async with (
            Worker("q", names, connection=server.url, concurrency=3) as one,
            Worker(queue, names, concurrency=3) as two,
        ):
            assert one.name != two.name
            jobs = await queue.add_bulk([JobSpec("work", {}) for _ in range(200)])
            for job in jobs:
                assert await job.result(timeout=5) == job.id
    assert sorted(names.seen, key=int) == [job.id for job in jobs]


@pytest.mark.parametrize("prefix", ["my app", "écho"])
async def test_a_prefix_that_no_client_name_can_hold_does_all_the_same(
    server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Names()
    async with (
        Queue("q", connection=server.url, prefix=prefix) as queue,
        Worker("q", handler, connection=server.url, prefix=prefix),
    ):
        job = await queue.add("work")
        assert await job.result(timeout=10) == job.id
    assert caplog.text.count(f"the prefix {prefix!r} holds a blank or a letter beyond ASCII") == 1


async def test_never_more_jobs_than_slots(server: Server) -> None:
    running = most = 0

    async def handler(job: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (int(job.id) % 5))
        running -= 1

    async with Queue("q", connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {}) for _ in range(400)])
        await Worker("q", handler, connection=server.url, concurrency=7).run_until_drained()
    assert most == 7


async def test_a_lane_steps_back_over_a_cancelled_call_only(server: Server) -> None:
    link = Link(Settings.from_url(server.url))
    lane = Lane(link, QueueKeys.of("q"))
    want = Want(lock_duration=30).args
    patience = Patience(5)
    async with Queue("q", connection=server.url) as queue:
        await queue.add_bulk([JobSpec("work", {}) for _ in range(4)])
        [first] = (await take(lane, want, 1, patience)).jobs
        lane.step_back()  # nothing to step back over: the call was answered
        [second] = (await take(lane, want, 1, patience)).jobs
        assert (first.id, second.id) == ("1", "2")
        cancelled = asyncio.create_task(take(lane, want, 1, patience))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        lane.step_back()
        turn = await take(lane, want, 1, patience)
        assert [job.id for job in turn.jobs] == ["3"]  # what the cancelled call fetched
        assert turn.token == server.cli("GET", "emq:{q}:3:lock").decode()
        with pytest.raises(TypeError):
            await lane.call("moveToActive-11", (True,), patience)  # never sent
        lane.step_back()
        assert [job.id for job in (await take(lane, want, 1, patience)).jobs] == ["4"]
    await link.close()
