"""Handlers that fork, and end what they have forked: neither their worker nor its other jobs notice anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echomq import Queue
from tests.support.wait import wait_until

PROGRAM = """\
import asyncio, multiprocessing, os, signal, sys, time
from echomq import EchoMQ

app = EchoMQ()
forks = multiprocessing.get_context("fork")

def square(number):
    time.sleep(0.01)
    return number * number

def use_a_pool():
    with forks.Pool(3) as pool:
        return next(iter(pool.imap(square, range(2, 100))))  # the pool is terminated as this block ends

def end_processes():
    codes = []
    for _ in range(10):
        process = forks.Process(target=time.sleep, args=(30,))
        process.start()
        process.terminate()
        process.join()
        codes.append(process.exitcode)
    return codes

def end_forks():
    codes = []
    for number in (signal.SIGTERM, signal.SIGINT) * 5:
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        os.kill(pid, number)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return codes

WAYS = {"pool": use_a_pool, "processes": end_processes, "forks": end_forks}

@app.task(queue="forks")
def in_a_thread(way: str) -> object:
    return WAYS[way]()

@app.task(queue="forks")
async def in_the_loop(way: str) -> object:
    return WAYS[way]()

@app.task(queue="forks", process=True)
def in_a_process(way: str) -> object:
    return WAYS[way]()

async def main():
    work = asyncio.create_task(app.work())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    await asyncio.wait([work])

if __name__ == "__main__":
    if sys.argv[1:] == ["uvloop"]:
        import uvloop
        uvloop.run(main())
    else:
        asyncio.run(main())
"""
NO_UVLOOP = 'raise ModuleNotFoundError("uvloop")\n'

WORKERS = {
    "worker": ["-m", "echomq.cli", "worker", "program:app"],
    "worker without uvloop": ["-m", "echomq.cli", "worker", "program:app"],
    "two processes": ["-m", "echomq.cli", "worker", "program:app", "--processes=2"],
    "own program": ["program.py"],
    "own program with uvloop": ["program.py", "uvloop"],
}

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str) -> subprocess.Popen[bytes]:
        (tmp_path / "program.py").write_text(PROGRAM)
        if "without" in kind:
            (tmp_path / "uvloop.py").write_text(NO_UVLOOP)
        environment = {**os.environ, "ECHOMQ_URL": url, "PYTHONPATH": str(tmp_path)}
        with (tmp_path / "log").open("w") as log:
            started.append(
                subprocess.Popen([sys.executable, *WORKERS[kind]], cwd=tmp_path, env=environment, stderr=log)
            )
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()
    print((tmp_path / "log").read_text())  # noqa: T201 - pytest shows it with a failure


@pytest.mark.parametrize("kind", WORKERS)
async def test_a_handler_may_end_what_it_has_forked(start: Start, url: str, kind: str, tmp_path: Path) -> None:
    worker = start(kind)
    results = {"pool": 4, "processes": [-signal.SIGTERM] * 10, "forks": [-signal.SIGTERM, -signal.SIGINT] * 5}
    async with Queue("forks", connection=url) as queue:
        for name in ("in_a_thread", "in_the_loop", "in_a_process"):
            for way, expected in results.items():
                job = await queue.add(name, {"way": way})
                assert await job.result(timeout=30) == expected, f"{name} {way}"
                found = await job.refresh()
                assert found is not None
                assert (found.attempts_started, found.stalled_count) == (1, 0)
    assert worker.poll() is None
    said = (tmp_path / "log").read_text()
    assert "stop" not in said
    assert "ended by itself" not in said
    worker.send_signal(signal.SIGTERM)
    await wait_until(lambda: worker.poll() is not None, 20, "it stops when it is told to")
    assert worker.returncode == 0
