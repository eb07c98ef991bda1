"""A worker process dies under its supervisor: its jobs run again at once, not when their locks have expired.

The locks last half a minute, so whatever runs again within seconds was given back by hand.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echomq import JobSpec, Queue, Worker
from echomq._lua.loader import script
from tests.chaos.rig import BASE, QUEUE, Runs, assert_sound, completed, lines
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

FETCH, FINISH = needle("moveToActive-11"), needle("moveToFinished-14")

AT_ONCE = 2.0
SLACK = 4.0
"""Seconds that a slow test machine may add: a new process has to start on it. Far below the 30 of a lock."""

PROGRAM = """\
import asyncio, contextlib, json, os, time
from echomq import Worker

report = os.open(os.environ["REPORT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def say(what, job):
    line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), "job": job.id, "starts": job.attempts_started}
    os.write(report, json.dumps(line).encode() + b"\\n")

async def process(job):
    say("start", job)
    if job.attempts_started <= job.data.get("times", 1):
        if job.data.get("how") == "exit":
            os._exit(3)
        if job.data.get("how") == "block":
            time.sleep(job.data["seconds"])
        if job.data.get("how") == "thread":
            await asyncio.to_thread(time.sleep, job.data["seconds"])
        while job.data.get("how") == "stubborn":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(job.data["seconds"])
        await asyncio.sleep(job.data.get("seconds", 0))
    say("end", job)

worker = Worker("rig", process, max_stalled_count=9, shutdown_timeout=0.3, concurrency=2)
"""


class Supervised:
    """One running ``echomq worker --processes``."""

    def __init__(self, folder: Path, url: str) -> None:
        self.report, self.log = folder / "report", folder / "log"
        self._ready = folder / "ready"
        self._ready.unlink(missing_ok=True)
        (folder / "program.py").write_text(PROGRAM)
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        words = ["worker", "program:worker", "--processes=2", f"--ready-file={self._ready}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*guard, sys.executable, "-m", "echomq.cli", *words],
                cwd=folder,
                env={**os.environ, "ECHOMQ_URL": url, "REPORT": str(self.report)},
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    async def ready(self) -> None:
        await wait_until(lambda: self._ready.exists() or self.process.poll() is not None, 30, "all are ready")
        assert self.process.poll() is None, self.log.read_text()

    def children(self) -> list[int]:
        """Their process ids."""
        told = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in told.split()]

    def starts(self, job_id: str = "1") -> list[dict[str, Any]]:
        return [line for line in lines(self.report) if line["what"] == "start" and line["job"] == job_id]

    async def started(self, job_id: str = "1", times: int = 1) -> dict[str, Any]:
        """What it said when it began for the last time."""
        await wait_until(lambda: len(self.starts(job_id)) >= times, 20, f"job {job_id} runs for the {times}. time")
        return self.starts(job_id)[times - 1]

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: self.process.poll() is not None, 30, "it ends")
        return self.process.returncode


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(url: str) -> Supervised:
        started.append(Supervised(tmp_path, url))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        print(one.log.read_text()[-20_000:])  # noqa: T201 - pytest shows it with a failure


@pytest.fixture
async def queue(server: Server) -> AsyncIterator[Queue]:
    with server.client() as client:  # a call of a script that the server does not know yet would not do anything
        for name in ("moveToActive-11", "moveToFinished-14", "takeFromDead-10"):
            client.script_load(script(name).source)
    async with Queue(QUEUE, connection=server.url) as opened:
        yield opened


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill(pid: int) -> float:
    """Gives when."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


async def test_idle_in_a_handler_twice_in_a_row_and_a_process_that_leaves(
    start: Start, queue: Queue, server: Server
) -> None:
    group = start(server.url)
    await group.ready()
    kill(group.children()[0])  # an idle one
    job = await queue.add("work", {"seconds": 60, "times": 2})
    first = await group.started(job.id)
    died = kill(first["pid"])
    second = await group.started(job.id, 2)
    assert second["at"] - died < AT_ONCE + SLACK
    died = kill(second["pid"])
    assert (await group.started(job.id, 3))["at"] - died < AT_ONCE + SLACK
    await completed(queue, 1)
    other = await queue.add("work", {"how": "exit"})
    left = await group.started(other.id)
    assert (await group.started(other.id, 2))["at"] - left["at"] < AT_ONCE + SLACK
    await completed(queue, 2)
    assert await group.end() == 0
    assert "ended by itself, with exit code 3; a new one starts" in group.log.read_text()
    assert_sound(server, jobs=2, ended=["1", "2"], starts=3, stalls=2)


async def test_all_processes_at_once(start: Start, queue: Queue, server: Server) -> None:
    group = start(server.url)
    await group.ready()
    jobs = [await queue.add("work", {"seconds": 60}) for _ in range(4)]
    for job in jobs:
        await group.started(job.id)
    for pid in group.children():
        died = kill(pid)
    for job in jobs:
        assert (await group.started(job.id, 2))["at"] - died < AT_ONCE + SLACK
    await completed(queue, 4)
    assert await group.end() == 0
    assert_sound(server, jobs=4, ended=[job.id for job in jobs], starts=2, stalls=1)


@pytest.mark.parametrize(
    ("what", "where"),
    [("silence", FETCH), ("hold", FINISH), ("silence", FINISH)],
    ids=["fetch", "end", "after the end"],
)
async def test_at_a_fetch_and_at_an_end(
    what: Any, where: bytes, start: Start, queue: Queue, server: Server, proxy: Proxy
) -> None:
    group = start(proxy.url)
    await group.ready()
    proxy.lose(what, where)
    job = await queue.add("work", {"times": 0})
    await wait_until(lambda: proxy.holds == 1)
    starts = len(group.starts(job.id))
    for pid in group.children():
        died = kill(pid)
    await completed(queue, 1)
    proxy.release()  # what the dead one had sent arrives now, and finds nothing to do
    again = group.starts(job.id)[starts:]
    assert len(again) == (0 if (what, where) == ("silence", FINISH) else 1)
    assert all(one["at"] - died < AT_ONCE + SLACK for one in again)
    await wait_until(lambda: group.log.read_text().count("died of signal 9") == 2)
    assert await group.end() == 0
    assert_sound(server, jobs=1, ended=[job.id], starts=2, stalls=1)


async def test_while_the_server_is_away(start: Start, queue: Queue, server: Server) -> None:
    group = start(server.url)
    await group.ready()
    job = await queue.add("work", {"seconds": 60})
    pid = (await group.started(job.id))["pid"]
    server.pause()
    kill(pid)
    await wait_until(lambda: not is_there(pid))
    await wait_until(lambda: "died of signal 9" in group.log.read_text())
    server.resume()
    back = time.monotonic()
    assert (await group.started(job.id, 2))["at"] - back < AT_ONCE + SLACK
    await completed(queue, 1)
    assert await group.end() == 0
    assert_sound(server, jobs=1, ended=[job.id], starts=2, stalls=1)


@pytest.mark.parametrize("doing", ["nothing", "sleep", "block", "thread", "stubborn"])
async def test_the_supervisor_itself_is_killed(doing: str, start: Start, queue: Queue, server: Server) -> None:
    group = start(server.url)
    await group.ready()
    children = group.children()
    if doing != "nothing":
        await queue.add("work", {"seconds": 60, "how": doing})
        await group.started()
    died = kill(group.process.pid)
    group.process.wait()
    await wait_until(lambda: not any(map(is_there, children)), 10, "its processes have ended")
    assert time.monotonic() - died < 1 + SLACK
    if doing == "sleep":  # given back in order: nobody died with the job in hand
        async with Worker(QUEUE, Runs(), connection=server.url):
            server.cli("HSET", BASE + "1", "data", "{}")
            await completed(queue, 1)
        assert_sound(server, jobs=1, ended=["1"], starts=2, stalls=0)


async def test_a_job_that_is_longer_than_the_grace_time_runs_elsewhere(
    start: Start, queue: Queue, server: Server
) -> None:
    group = start(server.url)
    await group.ready()
    job = await queue.add("work", {"seconds": 60})
    await group.started(job.id)
    server.cli("HSET", BASE + job.id, "data", "{}")
    runs = Runs()
    async with Worker(QUEUE, runs, connection=server.url) as other:
        await other.ready()
        assert await group.end() == 0
        ended = time.monotonic()
        await completed(queue, 1)
    assert runs.started[0][2] - ended < AT_ONCE
    assert_sound(server, jobs=1, ended=[job.id], starts=2, stalls=0)


async def kill_at_random(start: Start, queue: Queue, server: Server, *, jobs: int, kills: int, seed: int) -> None:
    """Processes are killed at any moment while jobs flow. Nothing waits for a lock to expire, is lost, or ends twice."""
    chance = random.Random(seed)
    group = start(server.url)
    await group.ready()
    began = time.monotonic()
    await queue.add_bulk(
        [JobSpec("work", {"seconds": chance.choice((0, 0.01, 0.05)), "times": 99}) for _ in range(jobs)]
    )
    for number in range(kills):
        enough = jobs * (number + 1) // (kills + 1)
        await wait_until(lambda: sum(line["what"] == "end" for line in lines(group.report)) >= enough, 60)  # noqa: B023
        await asyncio.sleep(chance.uniform(0, 0.05))
        await wait_until(group.children)
        kill(chance.choice(group.children()))
    await completed(queue, jobs, 25)
    assert time.monotonic() - began < 29, "a lock may have expired"
    assert await group.end() in (0, 137)
    assert_sound(
        server, jobs=jobs, ended=[str(number) for number in range(1, jobs + 1)], starts=kills + 1, stalls=kills
    )


async def test_at_any_moment(start: Start, queue: Queue, server: Server) -> None:
    await kill_at_random(start, queue, server, jobs=200, kills=4, seed=1)


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_at_any_moment_for_long(start: Start, queue: Queue, server: Server, report: Path) -> None:
    for seed in range(20):
        server.flush()
        (report.parent / "report").unlink(missing_ok=True)
        await kill_at_random(start, queue, server, jobs=300, kills=5, seed=seed)
