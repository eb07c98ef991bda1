"""``echomq worker``: start, readiness, signals, exit codes, several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from echomq import JobFailed, Queue
from tests.support.command import echomq
from tests.support.server import Server
from tests.support.wait import wait_until

APP = """\
import asyncio, os, time
from echomq import EchoMQ, Worker

app = EchoMQ()
empty = EchoMQ()
worker = Worker("cli", print)
number = 5

@app.task(queue="cli")
async def note(path: str, seconds: float = 0.0) -> int:
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    await asyncio.sleep(seconds)
    return os.getpid()

@app.task(queue="cli")
def die(path: str) -> None:
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), 9)
"""


class Command:
    """One running ``echomq worker``."""

    def __init__(self, folder: Path, url: str, words: Sequence[str]) -> None:
        self.ready_file = folder / "ready"
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = self._spawn(words, folder, url, log)

    def _spawn(self, words: Sequence[str], folder: Path, url: str, log: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "echomq.cli", "worker", *words, "--json", "--ready-file", str(self.ready_file)],
            cwd=folder,
            env={**os.environ, "ECHOMQ_URL": url},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    async def says(self, text: str) -> None:
        await wait_until(lambda: text in self.log.read_text(), 20, text)

    async def ready(self) -> None:
        await wait_until(lambda: self.ready_file.exists() or self.process.poll() is not None, 20, "ready")
        assert self.process.poll() is None, self.log.read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = 20) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, events, and what it logged."""
        out, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], self.log.read_text()


@pytest.fixture
def start(tmp_path: Path, server: Server) -> Iterator[Callable[..., Command]]:
    (tmp_path / "program.py").write_text(APP)
    started: list[Command] = []

    def start(*words: str, url: str = server.url) -> Command:
        command = Command(tmp_path, url, words)
        started.append(command)
        return command

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


async def test_it_says_when_it_is_ready_works_and_stops(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    command = start("program:app", "--concurrency", "3")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        job = await queue.add("note", {"path": str(tmp_path / "notes")})
        assert await job.result(timeout=10) == command.process.pid
    command.send(signal.SIGTERM)
    code, events, _ = command.end()
    assert code == 0
    assert [event["event"] for event in events] == ["ready", "stopped"]
    assert not command.ready_file.exists()


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        ([signal.SIGTERM, signal.SIGTERM], []),
        ([signal.SIGINT, signal.SIGTERM], []),
        ([signal.SIGINT, signal.SIGTERM], ["--processes", "2"]),
    ],
)
async def test_a_second_signal_gives_jobs_back_at_once(
    start: Callable[..., Command], url: str, tmp_path: Path, signals: list[int], words: list[str]
) -> None:
    command = start("program:app", *words)
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        notes = tmp_path / "notes"
        job = await queue.add("note", {"path": str(notes), "seconds": 60})
        await wait_until(notes.exists, what="the job runs")
        begun = time.monotonic()
        command.send(signals[0])
        await command.says("stops")
        command.send(signals[1])
        assert command.end()[0] == 0
        assert time.monotonic() - begun < 15
        found = await job.refresh()
        assert found is not None
        assert (found.state, found.attempts_started, found.attempts_made, found.stalled_count) == ("waiting", 1, 0, 0)


@pytest.mark.parametrize(
    "words", [["-q", "high=9", "-q", "cli"], ["-q", "high", "-q", "cli", "--strict", "--processes", "2"]]
)
async def test_queues_share_the_slots(
    start: Callable[..., Command], url: str, tmp_path: Path, words: list[str]
) -> None:
    notes = str(tmp_path / "notes")
    async with Queue("cli", connection=url) as low, Queue("high", connection=url) as high:
        jobs = [await queue.add("note", {"path": notes, "seconds": 0.02}) for queue in (low, high) for _ in range(10)]
        command = start("program:app", *words, "--concurrency", "1")
        await command.ready()
        for job in jobs:
            await job.result(timeout=15)
        ended = [job.finished_on for job in [await job.refresh() for job in jobs] if job and job.finished_on]
        assert sum(one.timestamp() for one in ended[:10]) > sum(one.timestamp() for one in ended[10:])
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0


async def test_what_fails_is_kept_as_the_options_say(start: Callable[..., Command], url: str, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "from echomq import EchoMQ, RetryPolicy\napp = EchoMQ()\npolicy = RetryPolicy(permanent=(KeyError,))\n"
        "@app.task(queue='cli', attempts=5)\nasync def fail() -> None: raise KeyError('x')\n"
    )
    command = start("failing:app", "--retry-policy", "failing:policy", "--dead-letter", "--max-stalled-count", "3")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        with pytest.raises(JobFailed):
            await (await queue.add("fail", attempts=5)).result(timeout=10)
        [letter] = [job async for job in queue.dead_letter.jobs("waiting")]
        assert letter.dead_letter is not None
        assert letter.dead_letter.attempts_made == 1
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0


async def test_a_service_manager_may_tell_every_process_to_stop(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    command = start("program:app", "--processes", "2")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        notes = tmp_path / "notes"
        job = await queue.add("note", {"path": str(notes), "seconds": 1})
        await wait_until(lambda: notes.exists() and notes.read_text(), what="the job runs")
        pid = int(notes.read_text())
        os.kill(pid, signal.SIGTERM)
        command.send(signal.SIGTERM)
        assert command.end()[0] == 0
        assert await job.result(timeout=1) == pid


async def test_several_processes_share_the_work_and_stop_together(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    command = start("program:app", "cli", "--processes", "2", "--concurrency", "1")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        notes = str(tmp_path / "notes")
        jobs = [await queue.add("note", {"path": notes, "seconds": 0.3}) for _ in range(4)]
        pids = {await job.result(timeout=10) for job in jobs}
    assert len(pids) == 2
    assert command.process.pid not in pids
    command.send(signal.SIGINT)
    assert command.end()[0] == 0
    await wait_until(lambda: not any(_alive(pid) for pid in pids), what="the processes have ended")


STUBBORN = """\
import asyncio, time
from echomq import Worker

async def process(job):
    open("began", "w").close()
    if job.data["how"] == "thread":
        await asyncio.to_thread(time.sleep, 60)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

worker = Worker("cli", process, shutdown_timeout=0)
"""


@pytest.mark.parametrize("how", ["thread", "task"])
async def test_what_a_handler_leaves_running_does_not_keep_the_process(
    start: Callable[..., Command], url: str, tmp_path: Path, how: str
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    command = start("stubborn:worker")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        job = await queue.add("work", {"how": how})
        await wait_until((tmp_path / "began").exists)
        command.send(signal.SIGTERM)
        code, events, log = command.end()
        assert code == 0
        assert [event["event"] for event in events] == ["ready", "stopped"]
        assert "the process ends without it" in log
        found = await job.refresh()
        assert found is not None
        assert (found.state, found.stalled_count) == ("waiting", 0)


EXITING = """\
import atexit, time
from echomq import Worker

def flush():
    time.sleep({seconds})
    open("flushed", "w").close()

atexit.register(flush)
worker = Worker("cli", print)
"""


@pytest.mark.parametrize(("seconds", "has_time"), [(2.5, True), (60, False)])
async def test_functions_of_atexit_have_a_time_of_their_own(
    start: Callable[..., Command], tmp_path: Path, seconds: float, has_time: bool
) -> None:
    (tmp_path / "exiting.py").write_text(EXITING.format(seconds=seconds))
    command = start("exiting:worker")
    await command.ready()
    command.send(signal.SIGTERM)
    code, events, log = command.end()
    assert code == 0
    assert [event["event"] for event in events] == ["ready", "stopped"]
    assert (tmp_path / "flushed").exists() == has_time
    assert ("a function that was registered with atexit does not end" in log) != has_time
    assert "a handler" not in log


LIFESPANS = """\
import os
from echomq import EchoMQ

def made():
    app = EchoMQ()

    @app.lifespan
    async def around(app):
        note("in")
        yield
        note("out")

    return app

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

app = made()
for name in ("one", "two", "three"):
    app.task(name=name, queue=name)(lambda: None)
"""


async def test_a_lifespan_is_entered_once_a_process(start: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "spans.py").write_text(LIFESPANS)
    command = start("spans:app", "--processes", "2")
    await command.ready()
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0
    notes = (tmp_path / "notes").read_text().split("\n")[:-1]
    assert [note.partition(" ")[0] for note in notes] == ["in", "in", "out", "out"]
    assert len({note.partition(" ")[2] for note in notes}) == 2


BROKEN = """\
from echomq import EchoMQ

app = EchoMQ()
for name in ("one", "two"):
    app.task(name=name, queue=name)(lambda: None)

@app.lifespan
async def database(app):
    raise ConnectionError("no database")
    yield
"""


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_lifespan_that_cannot_be_started_ends_it_and_says_why(
    start: Callable[..., Command], tmp_path: Path, processes: int
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    code, events, log = start("broken:app", "--processes", str(processes)).end()
    assert (code, [event["event"] for event in events]) == (1, ["stopped"])
    said = "the app could not be started, at lifespan 'database': ConnectionError: no database"
    assert 1 <= log.count(said) <= processes
    assert 'raise ConnectionError("no database")' in log


RECKLESS = """\
import asyncio
from echomq import EchoMQ

app = EchoMQ()

@app.task(queue="one")
async def cancel(name):
    for task in asyncio.all_tasks():
        if task.get_name().startswith(name):
            task.cancel()
    await asyncio.sleep(3600)
"""


@pytest.mark.parametrize("name", ["echomq worker", "echomq pump"])
async def test_a_worker_that_nobody_has_stopped_ends_it_with_an_error(
    start: Callable[..., Command], url: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "reckless.py").write_text(RECKLESS)
    command = start("reckless:app", "--shutdown-timeout", "0")
    await command.ready()
    async with Queue("one", connection=url) as queue:
        job = await queue.add("cancel", {"name": name})
        code, events, log = command.end()
        assert (code, [event["event"] for event in events]) == (1, ["ready", "stopped"])
        assert "was cancelled" in log
        found = await job.refresh()
        assert found is not None
        assert found.state == "waiting"


STOPPED = """\
import asyncio
from echomq import EchoMQ

app = EchoMQ()

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what}\\n")

@app.lifespan
async def around(app):
    note("in")
    yield
    note("out")

@app.task(queue="one")
async def slow():
    note("begun")
    await asyncio.sleep(0.5)
    note("ended")
"""


async def test_on_sigterm_the_lifespan_ends_after_the_last_job(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED)
    command = start("stopped:app")
    notes = tmp_path / "notes"
    await command.ready()
    async with Queue("one", connection=url) as queue:
        await queue.add("slow")
        await wait_until(lambda: "begun" in notes.read_text(), 20)
        command.send(signal.SIGTERM)
        assert command.end()[0] == 0
    assert notes.read_text().split() == ["in", "begun", "ended", "out"]


BRISK = """\
import time
from echomq import Worker

def block(job):
    time.sleep(job.data["seconds"])

async def process(job):
    block(job)

worker = Worker("cli", process, lock_duration=1, stalled_interval=1)
"""


@pytest.mark.parametrize("processes", [1, 2])
async def test_the_ready_file_is_gone_while_an_event_loop_is_held_up(
    start: Callable[..., Command], url: str, tmp_path: Path, processes: int
) -> None:
    (tmp_path / "brisk.py").write_text(BRISK)
    command = start("brisk:worker", "--processes", str(processes))
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        job = await queue.add("block", {"seconds": 4})
        await wait_until(lambda: not command.ready_file.exists(), what="the file is gone")
        await job.result(timeout=15)
        await command.ready()
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0
    assert not command.ready_file.exists()


async def test_a_process_that_dies_is_replaced(start: Callable[..., Command], url: str, tmp_path: Path) -> None:
    command = start("program:app", "--processes", "2")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        await queue.add("die", {"path": str(tmp_path / "died")})
        await command.says("died of signal 9; a new one starts")
        for _ in range(4):
            job = await queue.add("note", {"path": str(tmp_path / "notes")})
            assert await job.result(timeout=10)
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0


async def test_children_stop_when_their_parent_is_killed(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    command = start("program:app", "--processes", "2")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        pids = set()
        for _ in range(6):
            pids.add(await (await queue.add("note", {"path": str(tmp_path / "notes")})).result(timeout=10))
    command.process.kill()
    command.process.communicate()
    await wait_until(lambda: not any(_alive(pid) for pid in pids), what="the children have stopped")


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_the_server_is_waited_for(
    start: Callable[..., Command], make_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_server()
    url = server.url
    server.stop()
    command = start("program:app", url=url)
    await command.says("waits for the server")
    server.start()
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        assert await (await queue.add("note", {"path": str(tmp_path / "notes")})).result(timeout=10)
    command.send(signal.SIGTERM)
    code, _, log = command.end()
    assert code == 0
    assert log.count("waits for the server") == 1


async def test_without_a_server_at_the_end_it_names_the_jobs(
    start: Callable[..., Command], make_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_server()
    command = start("program:app", "--shutdown-timeout", "0.2", url=server.url)
    await command.ready()
    async with Queue("cli", connection=server.url) as queue:
        await queue.add("note", {"path": str(tmp_path / "notes"), "seconds": 60})
        await wait_until((tmp_path / "notes").exists, what="the job runs")
    server.kill()
    command.send(signal.SIGTERM)
    code, _, log = command.end(timeout=30)
    assert code == 75
    assert "jobs that will run again (1): 1" in log


def test_what_a_module_lacks_is_told_with_its_own_line(start: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text(
        "import asyncio\nfrom echomq import EchoMQ, Inject\napp = EchoMQ()\n"
        "@app.task\nasync def send(to: int = Inject()) -> None: ...\n"
        "async def main() -> None:\n    async with app.running(): ...\nasyncio.run(main())\n"
    )
    code, _, log = start("lacking:app").end()
    assert code == 2
    assert "nothing provides int" in log
    assert "lacking.py, line 7)" in log


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["program"], "must be package.module:name"),
        (["program.py:app"], "must name a module, not a file; write program:app"),
        (["./program.py"], "must name a module, not a file; write program:app"),
        (["deep/er/program.py:jobs"], "write deep.er.program:jobs"),
        (["../program.py:app"], "not a file; run the command in its folder"),
        (["nowhere:app"], "there is no module 'nowhere' in /"),
        (["program:nothing"], "the module program has no 'nothing'; it has: app, empty, worker"),
        (["program:number"], "must name an EchoMQ or a Worker, and is of type int; it has: app, empty, worker"),
        (["os:name"], "it has no EchoMQ and no Worker at all"),
        (["program:empty"], "has no task"),
        (["program:worker", "cli"], "is a Worker, which has its queue"),
        (
            ["program:worker", "--concurrency", "3"],
            "is a Worker, which has its concurrency; leave --concurrency out, or write Worker(…, concurrency=3)",
        ),
        (
            ["program:worker", "--shutdown-timeout", "10"],
            "leave --shutdown-timeout out, or write Worker(…, shutdown_timeout=10)",
        ),
        (["program:worker", "--dead-letter"], "leave --dead-letter out, or write Worker(…, dead_letter=True)"),
        (
            ["program:worker", "--on-crash-limit", "backoff"],
            "leave --on-crash-limit out, or write Worker(…, on_crash_limit='backoff')",
        ),
        (["program:worker", "--max-stalled-count", "3"], "or write Worker(…, max_stalled_count=3)"),
        (["program:worker", "--retry-policy", "always"], "or write Worker(…, retry_policy=RetryPolicy("),
        (["program:worker", "--crash-backoff", "5"], "or write Worker(…, crash_backoff=Backoff("),
        (["program:app", "cli", "-q", "high=3"], "name each queue that shares slots with -q"),
        (["program:app", "--strict"], "name each queue that shares slots with -q"),
        (["program:app", "-q", "high=much"], "-q high=much: must be NAME"),
        (["program:app", "-q", "high=3", "--strict"], "or without --strict NAME=WEIGHT"),
        (["program:app", "-q", "high,low"], "-q high,low: each names one queue; write -q high -q low"),
        (["program:app", "-q", "high=0"], "weight of 'high'"),
        (["program:app", "-q", "high", "-q", "high=3"], "is named twice"),
        (["program:worker", "-q", "high"], "is a Worker, which has its queue"),
        (["program:app", "--on-crash-limit", "die"], "must be one of fail, "),
        (["program:app", "--crash-backoff", "5"], "goes with on_crash_limit='backoff' only"),
        (
            ["program:app", "--retry-policy", "never"],
            "--retry-policy never: must be default, always, or package.module:name",
        ),
        (["program:app", "--retry-policy", "program:app"], "must name a RetryPolicy, and is of type EchoMQ"),
        (["program:app", "a:b"], "must not contain ':'"),
        (["program:app", "--log-level", "loud"], "must be debug, info, warning or error"),
        (["program:app", "--concurrency", "0"], "concurrency"),
        (["-A", "program"], "there is no option -A; write the app alone: echomq worker program:app"),
        (["program:app", "-c", "4"], "there is no option -c; write --concurrency 4"),
        (["program:app", "-Q", "high,low"], "there is no option -Q; write the queues behind the app"),
    ],
)
def test_wrong_words_are_refused(start: Callable[..., Command], words: list[str], said: str) -> None:
    code, _, log = start(*words).end()
    assert code == 2
    assert said in log


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("import other", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_shows_its_own_traceback(
    start: Callable[..., Command], tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    (tmp_path / "other.py").write_text("1 / 0")
    code, _, log = start("broken:app").end()
    assert code == 1
    lines = log.splitlines()
    assert lines[0] == "echomq worker: 'broken:app': the module broken cannot be imported:"
    files = [line.split('"')[1] for line in lines if line.startswith("  File ")]
    assert files[0].endswith("broken.py")
    assert not any("echomq" in Path(file).parts or "importlib" in file for file in files)
    assert said in log
    assert "During handling" not in log


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('EchoMQ("http://localhost")', "http://localhost"),
        ("EchoMQ()", "no server was named: pass a URL"),
        ('EchoMQ().task(attempts="many")(print)', "attempts='many'"),
    ],
)
def test_a_wrong_option_in_the_module_is_one_line_with_its_place(
    start: Callable[..., Command], tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "wrong.py").write_text(f"from echomq import EchoMQ\n\napp = {line}\n")
    code, _, log = start("wrong:app", url="" if line == "EchoMQ()" else "embedded://memory").end()
    assert code == 2
    [told] = log.splitlines()
    assert told.startswith("echomq worker: 'wrong:app': ")
    assert said in told
    assert told.endswith(f"({tmp_path / 'wrong.py'}, line 3)")


async def test_a_server_for_one_process_alone_is_warned_of(start: Callable[..., Command]) -> None:
    command = start("program:app", url="embedded://memory")
    await command.ready()
    command.send(signal.SIGTERM)
    code, _, log = command.end()
    assert code == 0
    assert log.count("program:app is at embedded://memory, a server for this process alone: no other program can") == 1


@pytest.mark.parametrize("target", ["program:app", "program:worker"])
def test_a_server_for_one_process_alone_is_refused_to_several(start: Callable[..., Command], target: str) -> None:
    code, _, log = start(target, "--processes", "2", url="embedded://memory").end()
    assert code == 2
    assert "--processes 2 would be as many servers; use embedded://NAME" in log


async def test_a_queue_that_no_task_names_is_said_once(start: Callable[..., Command]) -> None:
    command = start("program:app", "cli", "qwerty", "--processes", "2")
    await command.ready()
    command.send(signal.SIGTERM)
    code, _, log = command.end()
    assert code == 0
    assert log.count("no task of program:app names the queue 'qwerty'; its tasks name: 'cli'") == 1


@pytest.mark.parametrize("words", [[], ["--processes", "2"]])
async def test_without_a_server_it_is_never_ready(start: Callable[..., Command], words: list[str]) -> None:
    command = start("program:app", *words, url="redis://127.0.0.1:1")
    await command.says("waits for the server")
    command.send(signal.SIGINT)
    code, events, log = command.end()
    assert code == 0
    assert [event["event"] for event in events] == ["stopped"]
    assert log.count("a second signal (or Ctrl-C) gives them back at once") == 1


async def test_an_error_does_not_carry_that_uvloop_is_missing(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError(\"No module named 'uvloop'\", name='uvloop')")
    (tmp_path / "raising.py").write_text(
        "from echomq import EchoMQ\napp = EchoMQ()\n@app.task(queue='cli')\nasync def fail() -> None: raise OSError('x')\n"
    )
    command = start("raising:app")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        job = await queue.add("fail")
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        found = await job.refresh()
        assert found is not None
        assert "OSError: x" in found.stacktrace[0]
        assert "uvloop" not in found.stacktrace[0]
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0


@pytest.mark.parametrize("module", ["echomq", "echomq.cli"])
def test_the_version(module: str) -> None:
    shown = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("echomq ")


@pytest.mark.parametrize("words", [[], ["server"], ["queue"], ["job"]])
def test_help_cuts_no_sentence(words: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "echomq.cli", *words, "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert "..." not in shown.stdout.partition("Commands:")[2]


# -- odd surroundings ----------------------------------------------------------------------------------------------------


async def test_a_job_that_kills_its_process_at_once_does_not_end_the_supervisor(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    program = 'import os\nfrom echomq import EchoMQ\napp = EchoMQ()\n@app.task(queue="cli")\nasync def die() -> None:\n'
    program += '    if not os.path.exists("died"):\n        open("died", "w").close()\n        os._exit(3)\n'
    (tmp_path / "poison.py").write_text(program)
    async with Queue("cli", connection=url) as queue:
        job = await queue.add("die")
        command = start("poison:app", "--processes", "2")
        assert await job.result(timeout=20) is None
        await command.ready()
    command.send(signal.SIGTERM)
    code, _, log = command.end()
    assert code == 0
    assert "ended by itself, with exit code 3; a new one starts" in log


async def test_the_standard_input_of_a_child_is_the_apps_own(
    start: Callable[..., Command], url: str, tmp_path: Path
) -> None:
    program = "import os, sys\nfrom echomq import EchoMQ\nassert os.read(0, 1) == b''\nsys.stdin.close()\n"
    program += "os.dup2(os.open(os.devnull, os.O_RDONLY), 0)\n"
    program += 'app = EchoMQ()\n@app.task(queue="cli")\nasync def one() -> int:\n    return 1\n'
    (tmp_path / "closing.py").write_text(program)
    command = start("closing:app", "--processes", "2")
    await command.ready()
    async with Queue("cli", connection=url) as queue:
        assert await (await queue.add("one")).result(timeout=10) == 1
    command.send(signal.SIGTERM)
    assert command.end()[0] == 0


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-", ">/dev/full 2>/dev/full"])
async def test_whatever_becomes_of_what_it_prints(url: str, tmp_path: Path, processes: int, closed: str) -> None:
    (tmp_path / "program.py").write_text(APP)
    ready = tmp_path / "ready"
    words = f"worker program:app --processes {processes} --ready-file {ready} --json"
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -m echomq.cli {words} {closed}'],
        cwd=tmp_path, env={**os.environ, "ECHOMQ_URL": url},
    )  # fmt: skip
    try:
        await wait_until(lambda: ready.exists() or process.poll() is not None, 20, "ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_ready_file_that_cannot_be_written(url: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(APP)
    words = ("worker", "program:app", "--ready-file", str(tmp_path / "nowhere" / "ready"))
    ran = await echomq(*words, url=url, env={"PYTHONPATH": str(tmp_path)})
    assert ran.code == 2
    assert (
        "nowhere/ready: cannot be written (No such file or directory); name a file in a folder that is there" in ran.err
    )
