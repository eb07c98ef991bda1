"""How soon: a dead worker's jobs run again, a blocked event loop costs nothing, a free slot is used."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from echomq import Backoff, Job, JobSpec, Limiter, Queue, RateLimited, RetryLater, Worker
from tests.chaos.rig import (
    BASE,
    FAST,
    LOCK,
    QUEUE,
    RECOVERED,
    SLACK,
    Runs,
    StartProgram,
    assert_sound,
    completed,
    lines,
)
from tests.support.server import Server
from tests.support.wait import wait_until

PROMPT = 0.1
"""Seconds after which a free slot has its next job, and what a busy test machine may add."""
MACHINE = 0.15

LONGEST_WAIT = 2 * LOCK


async def killed_in_handler(
    url: str, queue: Queue, start_program: StartProgram, report: Path, jobs: int, wait: float, **options: object
) -> float:
    """Kills a worker that runs so many jobs, some time after it began; gives when."""
    program = start_program(url, concurrency=jobs, **options)
    await program.ready()
    await queue.add_bulk([JobSpec("work", {"seconds": 600}) for _ in range(jobs)])
    await wait_until(lambda: sum(line["what"] == "start" for line in lines(report)) >= jobs)
    await asyncio.sleep(wait)
    program.send(signal.SIGKILL)
    return time.monotonic()


@pytest.mark.timeout(120)
async def test_with_the_default_settings_within_47_seconds(
    server: Server, start_program: StartProgram, report: Path
) -> None:
    defaults: dict[str, Any] = {"lock_duration": 30.0, "stalled_interval": 15.0}
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue:
        # The surviving worker's sweeps are at another phase than the dead one's locks.
        died = await killed_in_handler(server.url, queue, start_program, report, 5, 1.0, **defaults)
        for number in range(1, 6):
            server.cli("HSET", f"{BASE}{number}", "data", "{}")
        await asyncio.sleep(random.uniform(0, 10))
        async with Worker(QUEUE, runs, connection=server.url, concurrency=5):
            await completed(queue, 5, 47)
    assert max(at for _, _, at in runs.started) - died < 47
    assert_sound(server, jobs=5, ended=runs.ended, starts=2, stalls=1)


async def check_phase(server: Server, start_program: StartProgram, report: Path, alive: bool, wait: float) -> None:
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue:
        survivor = Worker(QUEUE, runs, connection=server.url, concurrency=5, **FAST)
        if alive:
            await survivor.ready()
            await survivor.pause()
        died = await killed_in_handler(server.url, queue, start_program, report, 3, wait)
        for number in range(1, 4):
            server.cli("HSET", f"{BASE}{number}", "data", "{}")
        if not alive:
            await asyncio.sleep(wait)
        async with asyncio.timeout(60):
            if alive:
                await survivor.resume()
            else:
                await survivor.ready()
            await completed(queue, 3, RECOVERED + SLACK)
            await survivor.close()
    assert max(at for _, _, at in runs.started) - died < RECOVERED + SLACK
    assert_sound(server, jobs=3, ended=runs.ended, starts=2, stalls=1)


@pytest.mark.parametrize("wait", [0.0, 0.6])
@pytest.mark.parametrize("alive", [True, False])
async def test_a_dead_workers_jobs_run_again(
    alive: bool, wait: float, server: Server, start_program: StartProgram, report: Path
) -> None:
    await check_phase(server, start_program, report, alive, wait)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_a_dead_workers_jobs_run_again_at_any_phase(
    server: Server, start_program: StartProgram, report: Path
) -> None:
    for _ in range(60):
        server.flush()
        report.unlink(missing_ok=True)
        await check_phase(server, start_program, report, random.random() < 0.5, random.uniform(0, LONGEST_WAIT))


async def test_an_event_loop_that_is_blocked_for_five_lock_times_keeps_its_job(
    server: Server, start_program: StartProgram, report: Path
) -> None:
    lock: dict[str, Any] = {"lock_duration": 0.8, "stalled_interval": 0.4}
    runs = Runs()
    async with Queue(QUEUE, connection=server.url) as queue:
        program = start_program(server.url, **lock)
        await program.ready()
        job = await queue.add("reckon", {"seconds": 5 * 0.8, "how": "block"})
        await wait_until(lambda: server.cli("LLEN", BASE + "active") == 1)
        async with Worker(QUEUE, runs, connection=server.url, **lock):
            assert await job.result(timeout=15) == job.id
        program.send(signal.SIGTERM)
        assert await program.ended() == 0
    assert [line["job"] for line in lines(report) if line["what"] == "start"] == [job.id]
    assert not runs.started
    log = report.with_name("log").read_text()
    assert "the event loop has not answered for" in log
    assert f"the first is {job.id} (reckon)" in log
    assert "time.sleep(seconds)" in log
    assert_sound(server, jobs=1, ended=[job.id])


# -- a slot becomes free ---------------------------------------------------------------------------------------------------


class Slot:
    """A handler whose first job holds the only slot until it is told how to free it.

    Attributes:
        freed: when the slot became free, or is to become free.
        started: when the next job started.
    """

    def __init__(self, raises: BaseException | None = None) -> None:
        self.raises = raises
        self.end = asyncio.Event()
        self.freed = 0.0
        self.started = 0.0

    async def __call__(self, job: Job[Any]) -> None:
        if job.name == "next":
            self.started = time.monotonic()
        elif job.attempts_started == 1:
            try:
                await self.end.wait()
            finally:
                self.freed = self.freed or time.monotonic()
            if self.raises is not None:
                raise self.raises

    async def add_both(self, queue: Queue, server: Server, **options: Any) -> None:
        await queue.add("first", {}, **options)
        await wait_until(lambda: server.cli("LLEN", BASE + "active") == 1)
        await queue.add("next", {})

    async def used_at_once(self) -> None:
        await wait_until(lambda: self.started)
        assert self.started - self.freed < PROMPT + MACHINE


WAYS: dict[str, tuple[BaseException | None, dict[str, Any]]] = {
    "finish": (None, {}),
    "fail": (ValueError(), {}),
    "retry": (ValueError(), {"attempts": 2}),
    "retry later": (ValueError(), {"attempts": 2, "backoff": Backoff.fixed(20)}),
    "delay": (RetryLater(30), {}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_slot_that_a_handler_frees_is_used_at_once(way: str, server: Server) -> None:
    raises, options = WAYS[way]
    slot = Slot(raises)
    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, slot, connection=server.url, **FAST):
        await slot.add_both(queue, server, **options)
        slot.end.set()
        await slot.used_at_once()
        await wait_until(lambda: not server.cli("LLEN", BASE + "active") and not server.cli("LLEN", BASE + "wait"))
    assert_sound(server, jobs=2, starts=2)


async def test_a_rate_limit_that_a_handler_asked_for_ends_on_time(server: Server) -> None:
    slot = Slot(RateLimited(0.3))
    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, slot, connection=server.url, **FAST):
        await slot.add_both(queue, server)
        slot.freed = time.monotonic() + 0.3
        slot.end.set()
        await completed(queue, 2)
        await slot.used_at_once()
    assert_sound(server, jobs=2, starts=2)


async def test_a_window_of_the_limiter_is_used_as_soon_as_it_opens(server: Server) -> None:
    slot, limiter = Slot(), Limiter(max=1, duration=0.5)
    worker = Worker(QUEUE, slot, connection=server.url, limiter=limiter, **FAST)
    async with Queue(QUEUE, connection=server.url) as queue, worker:
        await slot.add_both(queue, server)
        slot.freed = time.monotonic() + server.cli("PTTL", BASE + "limiter") / 1000
        slot.end.set()
        await slot.used_at_once()
        await completed(queue, 2)
    assert_sound(server, jobs=2)


async def test_a_slot_whose_job_was_lost_is_used_at_once(server: Server) -> None:
    slot = Slot()
    async with Queue(QUEUE, connection=server.url) as queue, Worker(QUEUE, slot, connection=server.url, **FAST):
        await slot.add_both(queue, server)
        server.cli("SET", BASE + "1:lock", "another's")
        await slot.used_at_once()
        server.cli("DEL", BASE + "1:lock")
        await completed(queue, 2, RECOVERED + SLACK)
    assert_sound(server, jobs=2, starts=2, stalls=1)


@pytest.mark.parametrize("way", ["give-back", "finish"])
async def test_a_place_under_the_global_limit_is_used_by_another_worker(way: str, server: Server) -> None:
    slot = Slot()
    server.cli("HSET", BASE + "meta", "concurrency", "1")
    first = Worker(QUEUE, slot, connection=server.url, shutdown_timeout=0, **FAST)
    second = Worker(QUEUE, slot, connection=server.url, **FAST)
    async with Queue(QUEUE, connection=server.url) as queue, first, second:
        await second.pause()
        await slot.add_both(queue, server)
        await second.resume()
        if way == "finish":
            await first.pause()  # it frees the place, and fetches nothing
            slot.end.set()
        else:
            await first.close()
        await slot.used_at_once()
        await completed(queue, 2)
    assert_sound(server, jobs=2, starts=2)
