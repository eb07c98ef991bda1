"""Programs whose jobs run in processes, as users write them; killed and stopped from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from echomq import JobFailed, Queue
from tests.support.wait import wait_until

SCHOOL = """
import asyncio, os, pathlib, signal, sys, time
from echomq import EchoMQ

app = EchoMQ(os.environ["SCHOOL_URL"])

def note(name):
    file = pathlib.Path(os.environ["SCHOOL_FOLDER"], name)
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)

@app.task(queue="school", process=True)
def add(a: int, b: int) -> int:
    return a + b

@app.task(queue="school", process=True)
def compute(name: str) -> None:
    note(name)
    while True:
        sum(range(10_000))

@app.task(queue="school", process=True)
def once_for_ever(name: str) -> str:
    if pathlib.Path(os.environ["SCHOOL_FOLDER"], name).exists():
        return "again"
    return compute.function(name)

@app.task(queue="school", process=True)
def nap(name: str, seconds: float) -> str:
    note(name)
    time.sleep(seconds)
    return "slept"

async def main():
    async with app.worker("school", concurrency=2, lock_duration=1.5, stalled_interval=0.5, shutdown_timeout=20) as worker:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        print("ready", flush=True)
        await stop.wait()
"""
GUARDED = 'if __name__ == "__main__":\n    asyncio.run(main())\n'

# The parent-death signal comes when the *thread* that started the process ends.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="school-starter")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("school", connection=url) as made:
        yield made


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a program in its own folder and session; it is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []
    guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []

    def run(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "SCHOOL_URL": url, "SCHOOL_FOLDER": str(tmp_path)}
        settings: dict[str, Any] = {
            **{"cwd": tmp_path, "env": environment, "start_new_session": True, "text": True},
            **options,
        }
        command = [*guard, sys.executable, *arguments]
        program: subprocess.Popen[str] = _starter.submit(lambda: subprocess.Popen(command, **settings)).result()
        started.append(program)
        return program

    yield run
    for program in started:
        if program.poll() is None:
            program.kill()
        program.wait()


def write(tmp_path: Path, text: str, name: str = "school.py") -> str:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    return name


async def began(tmp_path: Path, name: str) -> int:
    await wait_until((tmp_path / name).exists, 30, f"{name} has begun")
    return int((tmp_path / name).read_text())


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_script_is_found_again_by_its_processes(start: Start, tmp_path: Path, queue: Queue) -> None:
    start(write(tmp_path, SCHOOL + GUARDED))
    assert await (await queue.add("add", {"a": 2, "b": 3})).result(timeout=30) == 5
    with pytest.raises(JobFailed, match="argument a='x'"):
        await (await queue.add("add", {"a": "x", "b": 3})).result(timeout=30)


async def test_an_app_in_a_package_is_found_by_the_command_line(start: Start, tmp_path: Path, queue: Queue) -> None:
    write(tmp_path, SCHOOL, "campus/school.py")
    write(tmp_path, "from campus.school import app, add\n", "campus/__init__.py")
    program = start("-m", "echomq.cli", "worker", "campus.school:app", "--concurrency=2")
    assert await (await queue.add("add", {"a": 2, "b": 3})).result(timeout=30) == 5
    program.terminate()
    assert program.wait(20) == 0


async def test_children_end_with_their_parent_while_they_compute(start: Start, tmp_path: Path, queue: Queue) -> None:
    program = start(write(tmp_path, SCHOOL + GUARDED))
    jobs = [await queue.add("once_for_ever", {"name": name}) for name in ("a", "b")]
    pids = [await began(tmp_path, name) for name in ("a", "b")]
    children = psutil.Process(program.pid).children(recursive=True)
    assert set(pids) <= {child.pid for child in children}
    died = time.monotonic()
    program.kill()
    await wait_until(lambda: not any(lives(child.pid) for child in children), 5, "the children are gone")
    print(f"gone after {time.monotonic() - died:.3f} s")  # noqa: T201 - for whoever reads a run
    start("school.py")
    for job in jobs:
        assert await job.result(timeout=30) == "again"
        found = await job.refresh()
        assert found is not None
        assert found.stalled_count == 1


async def test_a_signal_to_everybody_leaves_a_run_its_time(start: Start, tmp_path: Path, queue: Queue) -> None:
    program = start(write(tmp_path, SCHOOL + GUARDED))
    job = await queue.add("nap", {"name": "a", "seconds": 1})
    pid = await began(tmp_path, "a")
    for one in (program.pid, pid):  # as systemd does
        os.kill(one, signal.SIGTERM)
    assert program.wait(20) == 0
    assert await job.result(timeout=5) == "slept"
    assert not lives(pid)


async def test_a_script_that_starts_its_worker_unguarded_says_so(start: Start, tmp_path: Path) -> None:
    program = start(write(tmp_path, SCHOOL + "asyncio.run(app.worker('school').run())\n"), stderr=subprocess.PIPE)
    _, said = program.communicate(timeout=30)
    assert program.returncode != 0
    assert "put what starts it under `if __name__ == '__main__':`" in said
