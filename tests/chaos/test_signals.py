"""A worker process is killed, stopped or frozen at each step of a job's way; the job runs again, and ends once.

A proxy between the worker and its server holds the very call, so that the moment is exact.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echomq import JobSpec, Queue, Worker
from echomq._lua.loader import script
from tests.chaos.rig import (
    BASE,
    FAST,
    LOCK,
    QUEUE,
    RECOVERED,
    SLACK,
    Program,
    Runs,
    StartProgram,
    assert_sound,
    completed,
    lines,
)
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

FETCH, FINISH = needle("moveToActive-11"), needle("moveToFinished-14")

STEPS: dict[str, tuple[Loss, bytes] | None] = {
    "before the fetch": ("hold", FETCH),
    "after the fetch": ("silence", FETCH),
    "in the handler": None,
    "before the finish": ("hold", FINISH),
    "after the finish": ("silence", FINISH),
}


@pytest.fixture
async def queue(server: Server, proxy: Proxy) -> AsyncIterator[Queue]:
    with server.client() as client:  # a call of a script that the server does not know yet would not do anything
        for name in ("moveToActive-11", "moveToFinished-14"):
            client.script_load(script(name).source)
    async with Queue(QUEUE, connection=server.url) as opened:
        yield opened


async def bring_to(
    step: str, queue: Queue, proxy: Proxy, start_program: StartProgram, report: Path, *, seconds: float, grace: float
) -> tuple[Program, str]:
    """A worker with one job, which has come exactly to this step and stands there."""
    program = start_program(proxy.url, shutdown_timeout=grace)
    await program.ready()
    held = STEPS[step]
    if held is not None:
        proxy.lose(*held)
    job = await queue.add("work", {"seconds": seconds})
    if held is not None:
        await wait_until(lambda: proxy.holds == 1)
    if step not in ("before the fetch", "after the fetch"):
        await wait_until(lambda: any(line["what"] == "start" for line in lines(report)))
    return program, job.id


@pytest.mark.parametrize("step", STEPS)
async def test_sigkill(
    step: str, queue: Queue, proxy: Proxy, server: Server, start_program: StartProgram, report: Path
) -> None:
    seconds = 30 if step == "in the handler" else 0
    program, job_id = await bring_to(step, queue, proxy, start_program, report, seconds=seconds, grace=25)
    runs = Runs()
    server.cli("HSET", BASE + job_id, "data", "{}")  # the next run is a quick one
    async with Worker(QUEUE, runs, connection=server.url, **FAST):
        program.send(signal.SIGKILL)
        died = time.monotonic()
        await completed(queue, 1, RECOVERED + SLACK)
        if runs.started:
            assert runs.started[0][2] - died < RECOVERED + SLACK
        proxy.release()  # what it had sent arrives when it has long been dead, and finds nothing to do
        if step == "before the fetch":
            await queue.add("another", {})
            await completed(queue, 2, RECOVERED + SLACK)
    assert len(runs.starts(job_id)) == (0 if step == "after the finish" else 1)
    # The fetch that comes late may take the other job, whose lock then has to expire.
    assert_sound(server, jobs=2 if step == "before the fetch" else 1, ended=[job_id], starts=2, stalls=1)


@pytest.mark.parametrize("step", STEPS)
async def test_sigterm(
    step: str, queue: Queue, proxy: Proxy, server: Server, start_program: StartProgram, report: Path
) -> None:
    seconds = 30 if step == "in the handler" else 0
    program, job_id = await bring_to(step, queue, proxy, start_program, report, seconds=seconds, grace=0.3)
    server.cli("HSET", BASE + job_id, "data", "{}")
    runs = Runs()
    async with Worker(QUEUE, runs, connection=server.url, **FAST) as other:
        await other.ready()
        program.send(signal.SIGTERM)
        if step != "in the handler":
            await wait_until(lambda: b"stops;" in report.with_name("log").read_bytes())
            proxy.release()
        assert await program.ended() == 0
        ended = time.monotonic()
        await completed(queue, 1, 2 + SLACK)
        for started in runs.starts(job_id):
            assert started - ended < 2
    assert lines(report)[-1]["what"] == "stopped"
    finished_there = step in ("before the finish", "after the finish")
    assert len(runs.starts(job_id)) == (0 if finished_there else 1)
    # Given back before its handler was called: as if it had never been fetched.
    assert_sound(server, jobs=1, ended=[job_id], starts=2 if step == "in the handler" else 1, stalls=0)


@pytest.mark.parametrize("step", STEPS)
async def test_sigstop_until_the_lock_has_gone(
    step: str, queue: Queue, proxy: Proxy, server: Server, start_program: StartProgram, report: Path
) -> None:
    seconds = 2 * LOCK + RECOVERED if step == "in the handler" else 0
    program, job_id = await bring_to(step, queue, proxy, start_program, report, seconds=seconds, grace=0.3)
    server.cli("HSET", BASE + job_id, "data", "{}")
    runs = Runs()
    async with Worker(QUEUE, runs, connection=server.url, **FAST):
        program.send(signal.SIGSTOP)
        await completed(queue, 1, RECOVERED + SLACK)
        program.send(signal.SIGCONT)
        proxy.release()
        if step == "in the handler":  # it is told that its job is another's, long before it would have ended
            await wait_until(lambda: any(line["what"] == "cancelled" for line in lines(report)), 1 + LOCK / 4 + SLACK)
        await queue.add("another", {})
        await completed(queue, 2, RECOVERED + SLACK)  # whichever of the two takes it
    program.send(signal.SIGTERM)
    assert await program.ended() == 0
    assert not any(line["what"] == "end" and line["job"] == job_id for line in lines(report)) or "finish" in step
    assert len(runs.starts(job_id)) == (0 if step == "after the finish" else 1)
    assert_sound(server, jobs=2, ended=[job_id], starts=2, stalls=1)


async def kill_at_random(
    queue: Queue, server: Server, start_program: StartProgram, report: Path, *, jobs: int, kills: int
) -> None:
    """Three workers, one of which is killed or frozen again and again; none of the jobs is lost or ends twice."""
    chance = random.Random(kills)
    options = {"concurrency": 5, "max_stalled_count": 50}
    programs = [start_program(server.url, **options) for _ in range(3)]
    victims: list[Program] = []
    for program in programs:
        await program.ready()
    await queue.add_bulk([JobSpec("work", {"seconds": chance.choice((0, 0.02, 0.2))}) for _ in range(jobs)])
    for number in range(1, kills + 1):
        enough = jobs * number // (kills + 1)
        await wait_until(lambda: sum(line["what"] == "end" for line in lines(report)) >= enough, 60)  # noqa: B023
        victim = programs.pop(chance.randrange(3))
        victims.append(victim)
        victim.send(chance.choice((signal.SIGKILL, signal.SIGSTOP)))
        programs.append(start_program(server.url, **options))
        await programs[-1].ready()
        victim.send(signal.SIGCONT)
    await completed(queue, jobs, 60)
    for program in [*programs, *victims]:  # one that was frozen works again
        program.kill()
    assert_sound(
        server, jobs=jobs, ended=[str(number) for number in range(1, jobs + 1)], starts=kills + 1, stalls=kills
    )


async def test_workers_are_killed_under_load(
    queue: Queue, server: Server, start_program: StartProgram, report: Path
) -> None:
    await kill_at_random(queue, server, start_program, report, jobs=300, kills=4)


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_workers_are_killed_for_long(
    queue: Queue, server: Server, start_program: StartProgram, report: Path
) -> None:
    for _ in range(20):
        server.flush()
        report.unlink(missing_ok=True)
        await kill_at_random(queue, server, start_program, report, jobs=2000, kills=20)
