"""``echomq dev`` and ``echomq worker --reload``: a change of a file starts the worker anew, in order."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from echomq import Connection, Queue
from tests.support.wait import wait_until

APP = """\
from echomq import EchoMQ

app = EchoMQ()

@app.task(queue="dev")
async def version() -> str:
    return "VERSION"
"""


class Running:
    """One command, in a folder with ``program.py``."""

    def __init__(self, folder: Path, words: list[str], environment: dict[str, str], read: bool) -> None:
        self.file, self.log = folder / "program.py", folder / "log"
        self.log.touch()
        with self.log.open("w") if read else _unread_pipe() as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "echomq.cli", *words], cwd=folder, env=environment, stderr=log
            )

    def write(self, version: str) -> None:
        self.file.write_text(APP.replace("VERSION", version))

    async def says(self, text: str, times: int = 1) -> None:
        await wait_until(lambda: self.log.read_text().count(text) >= times, 30, text)

    async def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        await wait_until(lambda: self.process.poll() is not None, 20, "it ends")
        return self.process.returncode


def _unread_pipe() -> IO[Any]:
    reads, writes = os.pipe()
    os.close(reads)
    return os.fdopen(writes, "w")


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []
    (tmp_path / "work").mkdir()

    def start(*words: str, url: str | None = None, text: str = APP, read: bool = True) -> Running:
        (tmp_path / "work" / "program.py").write_text(text)
        environment = {name: value for name, value in os.environ.items() if name != "ECHOMQ_URL"}
        if url is not None:
            environment["ECHOMQ_URL"] = url
        started.append(Running(tmp_path / "work", list(words), environment, read))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        print(one.log.read_text())  # noqa: T201 - pytest shows it with a failure


async def answered(queue: Queue) -> str:
    return str(await (await queue.add("version")).result(timeout=20))


async def test_dev_has_a_server_of_its_own_and_follows_the_files(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path / "home"))
    running = start("dev", "program:app")
    await running.says("elsewhere: export ECHOMQ_URL=embedded://dev")
    await running.says("works on dev with 10 slots")
    await running.says("ready: ")
    async with Connection("embedded://dev") as connection, Queue("dev", connection=connection) as queue:
        assert await answered(queue) == "VERSION"
        await running.says("DEBUG   job 1 (version) of queue dev completed in ")
        running.write("two")
        await running.says("works on dev", 2)
        await running.says("ready: ", 2)
        assert await answered(queue) == "two"
        running.file.write_text("def broken(")
        await running.says("SyntaxError")
        await running.says("waiting for a file to change")
        assert running.process.poll() is None
        running.write("three")
        await running.says("works on dev", 3)
        assert await answered(queue) == "three"
    assert await running.end() == 0
    assert running.log.read_text().count("has stopped") == 3


async def test_a_worker_that_begins_with_a_broken_file_waits_for_a_better_one(start: Start, url: str) -> None:
    running = start("worker", "program:app", "--reload", "--processes", "2", url=url, text="1 / 0")
    await running.says("ZeroDivisionError", 2)
    await running.says("waiting for a file to change", 2)
    running.write("mended")
    await running.says("ready: ")
    async with Queue("dev", connection=url) as queue:
        assert await answered(queue) == "mended"
    assert await running.end() == 0


async def test_what_a_process_had_that_died_is_given_back_by_the_next(start: Start, url: str) -> None:
    text = (
        APP
        + """
@app.task(queue="dev", pass_job=True)
async def die(job) -> int:
    import os
    if job.attempts_started == 1:
        os.kill(os.getpid(), 9)
    return job.attempts_started
"""
    )
    running = start("worker", "program:app", "--reload", url=url, text=text)
    await running.says("ready: ")
    async with Queue("dev", connection=url) as queue:
        job = await queue.add("die")
        assert await job.result(timeout=15) == 2  # a lock lasts for 30 seconds
    assert await running.end() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dev", "program:app", "--log-level", "loud"], "echomq dev: --log-level loud"),
        (["dev", "program:app", "--url", "http://x"], "echomq dev: "),
        (["dev", "program:app", "--reload-dir", "nowhere"], "--reload-dir nowhere: there is no such folder"),
        (["dev", "program"], "echomq dev: 'program': must be package.module:name, such as school:app"),
        (["dev", "program.py"], "echomq dev: 'program.py': must name a module, not a file; write program:app"),
        (["worker", "program", "--reload"], "echomq worker: 'program': must be package.module:name"),
    ],
)
async def test_wrong_words(start: Start, words: list[str], said: str) -> None:
    running = start(*words)
    assert running.process.wait(20) == 2
    assert said in running.log.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["program:ap"], "echomq dev: 'program:ap': the module program has no 'ap'"),
        (["program:empty"], "echomq dev: the app has no task"),
    ],
)
async def test_what_a_change_may_mend_is_told_by_the_command_that_was_called(
    start: Start, url: str, words: list[str], said: str
) -> None:
    running = start("dev", *words, url=url, text=APP + "\nempty = EchoMQ()\n")
    await running.says("waiting for a file to change")
    assert said in running.log.read_text()
    assert await running.end() == 0


async def test_without_watchfiles_it_says_what_to_install(start: Start, tmp_path: Path, url: str) -> None:
    (tmp_path / "work" / "watchfiles.py").write_text("raise ModuleNotFoundError(name='watchfiles')")
    running = start("worker", "program:app", "--reload", url=url)
    assert running.process.wait(20) == 2
    assert "echomq worker: watchfiles" in running.log.read_text()
    assert "pip install 'echomq[cli]'" in running.log.read_text()


def test_what_the_command_line_needs_brings_watchfiles() -> None:
    needed = importlib.metadata.requires("echomq") or []
    assert [one for one in needed if one.startswith("watchfiles") and "extra == 'cli'" in one.replace('"', "'")]


async def test_an_app_that_names_its_server_gets_no_other(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path / "home"))
    running = start("dev", "program:app", text=APP.replace("EchoMQ()", "EchoMQ('embedded://own')"))
    await running.says("ready: ")
    assert "elsewhere: export ECHOMQ_URL=embedded://own" in running.log.read_text()
    assert await running.end() == 0
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["own"]


@pytest.mark.parametrize("words", [["dev", "program:app"], ["worker", "program:app", "--processes", "2"]])
async def test_it_stops_where_nobody_reads_what_it_says(start: Start, url: str, words: list[str]) -> None:
    running = start(*words, url=url, text=APP, read=False)
    async with Queue("dev", connection=url) as queue:
        assert await answered(queue) == "VERSION"
    assert await running.end() == 0
