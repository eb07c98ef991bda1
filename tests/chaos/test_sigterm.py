"""SIGTERM at random moments: no job is lost, and none is both done and given back."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from echomq import JobSpec, Queue
from tests.chaos.rig import QUEUE, assert_sound, completed, lines
from tests.support.server import Server
from tests.support.wait import wait_until

PROGRAM = Path(__file__).with_name("forking_program.py")
AT_ONCE = 4
SECONDS = (0, 0, 0, 0.01, 0.01, 0.03, 0.2)
"""What jobs take: the last is longer than the grace time."""

LONGEST = 0.1
"""Seconds after its start, or after its first job has begun, in which a worker is stopped."""


class Forks:
    """Worker processes, as many as are wanted."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._starting: asyncio.Queue[int] = asyncio.Queue()
        self._ends: dict[int, asyncio.Future[int]] = {}

    async def start(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(b"one more\n")
        return await self._starting.get()

    async def end(self, pid: int) -> int:
        os.kill(pid, signal.SIGTERM)
        return await self._end_of(pid)

    def _end_of(self, pid: int) -> asyncio.Future[int]:
        return self._ends.setdefault(pid, asyncio.get_running_loop().create_future())

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            pid, *code = map(int, line.split())
            if code:
                self._end_of(pid).set_result(code[0])
            else:
                self._starting.put_nowait(pid)


@asynccontextmanager
async def forks(url: str, report: Path) -> AsyncIterator[Forks]:
    told = {"url": url, "queue": QUEUE, "report": str(report), "options": {"concurrency": 5, "shutdown_timeout": 0.05}}
    guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    process = await asyncio.create_subprocess_exec(
        *guard,
        sys.executable,
        str(PROGRAM),
        json.dumps(told),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Forks(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        process.kill()
        await process.wait()
        await listening


async def stop_at_random(server: Server, report: Path, times: int, seed: int) -> None:
    """So many workers are stopped, a few at once, while jobs flow; then one is left to do the rest."""
    chance = random.Random(seed)
    added = 0
    async with Queue(QUEUE, connection=server.url) as queue, forks(server.url, report) as programs:

        async def stop_again_and_again(rounds: int) -> None:
            nonlocal added
            for _ in range(rounds):
                await queue.add_bulk([JobSpec("work", {"seconds": chance.choice(SECONDS)}) for _ in range(15)])
                added += 15
                pid = await programs.start()
                if chance.random() < 0.7:
                    mark = f'"pid": {pid},'.encode()
                    await wait_until(lambda: report.exists() and mark in report.read_bytes())  # noqa: B023
                await asyncio.sleep(chance.uniform(0, LONGEST))  # the very moment is what is tried
                # One that was only just starting has had no job.
                assert await programs.end(pid) in (0, -signal.SIGTERM)

        await asyncio.gather(*(stop_again_and_again(times // AT_ONCE) for _ in range(AT_ONCE)))
        last = await programs.start()
        await completed(queue, added, 60)
        assert await programs.end(last) == 0
    said = lines(report)
    ends = Counter(line["job"] for line in said if line["what"] == "end")
    assert len(ends) == added
    assert not [job_id for job_id, count in ends.items() if count > 1], "done and given back"
    runs = Counter(line["job"] for line in said if line["what"] == "start")
    assert max(runs.values()) > 1, "nothing was given back: the test tests nothing"
    starts = max(runs.values())
    assert_sound(server, jobs=added, ended=[str(number) for number in range(1, added + 1)], starts=starts, stalls=0)


async def test_sigterm_at_random_moments(server: Server, report: Path) -> None:
    await stop_at_random(server, report, 40, 1)


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_sigterm_at_a_thousand_random_moments(server: Server, report: Path) -> None:
    for seed in range(10):
        server.flush()
        report.unlink(missing_ok=True)
        await stop_at_random(server, report, 100, seed)
