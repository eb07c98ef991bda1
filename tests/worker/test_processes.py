"""The executor of processes: what a handler does to its process costs its own job, and nothing else."""

from __future__ import annotations

import functools
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from echomq import (
    Call,
    InvalidOption,
    Job,
    JobFailed,
    JobSpec,
    ProcessCrashed,
    ProcessPool,
    Queue,
    ResultUnavailable,
    RetryPolicy,
    Worker,
)
from tests.support.wait import wait_until
from tests.worker import process_tasks

POOL = ProcessPool(size=1)


def route(job: Job[Any], **options: Any) -> Call:
    """The function of the job's name, with the job's data as its arguments."""
    return Call(functools.partial(getattr(process_tasks, job.name), *job.data), process=True, **options)


def within(seconds: float) -> Callable[[Job[Any]], Call]:
    return lambda job: route(job, timeout=seconds)


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("computed", connection=url) as made:
        yield made


@pytest.fixture
async def worker(url: str) -> AsyncIterator[Worker]:
    async with Worker("computed", route=route, connection=url, processes=POOL, shutdown_timeout=1) as made:
        yield made


async def result(queue: Queue, name: str, *args: Any, **options: Any) -> Any:
    return await (await queue.add(name, list(args), **options)).result(timeout=30)


def children() -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process().children(recursive=True)
        if one.status() != psutil.STATUS_ZOMBIE and any("echomq._child" in word for word in one.cmdline())
    ]


def written(file: Path) -> int:
    """The number that a child has written, once it has."""
    text = file.read_text() if file.exists() else ""
    return int(text or 0)


async def starts(file: Path) -> int:
    await wait_until(lambda: written(file), timeout=30, what="the handler has begun")
    return written(file)


@pytest.mark.usefixtures("worker")
async def test_a_function_runs_in_a_process_which_stays_warm(queue: Queue) -> None:
    first, second = await result(queue, "pid"), await result(queue, "pid")
    assert first == second != os.getpid()
    assert await result(queue, "give", {"seats": [1, None, 2.5, "ü", 2**70]}) == {"seats": [1, None, 2.5, "ü", 2**70]}


@pytest.mark.usefixtures("worker")
async def test_a_job_is_told_of_and_asked_for_through_the_pipe(queue: Queue) -> None:
    job = await queue.add("tell", [])
    assert await job.result(timeout=30) == [1, 2, {"page": 7}, "tell", []]
    found = await job.refresh()
    assert found is not None
    assert (found.progress, found.data) == ({"done": 1}, {"page": 7})
    assert (await job.logs()).lines == ["first", "second", "third"]
    assert await result(queue, "tell_in_threads", 20) == 81


@pytest.mark.usefixtures("worker")
async def test_a_thread_that_outlives_its_run_tells_nothing_of_it(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    job = await queue.add("tell_too_late", [])
    await job.result(timeout=30)
    assert await result(queue, "nap", 0.2) > 0
    await wait_until(lambda: "refused: LockLost" in caplog.text)
    assert (await job.logs()).lines == []


@pytest.mark.usefixtures("worker")
async def test_records_of_a_child_reach_the_same_logger_here(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    pid = await result(queue, "write_log")
    await wait_until(lambda: len(caplog.records) >= 2)
    first, second = caplog.records
    assert (first.name, first.levelno, first.getMessage()) == ("tests.processes", logging.WARNING, "a child's record")
    assert (first.process, first.__dict__["seat"], first.funcName) == (pid, 7, "write_log")
    assert "ValueError: shown" in (second.exc_text or "")


async def test_a_handler_of_logs_that_raises_harms_no_job(
    queue: Queue, worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    class Bad(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the host of logs is away")

    pid, handler = await result(queue, "pid"), Bad()
    process_tasks.log.addHandler(handler)
    try:
        assert await result(queue, "write_log") == pid
        assert await result(queue, "pid") == pid
    finally:
        process_tasks.log.removeHandler(handler)
    assert worker.is_running
    assert capfd.readouterr().err.count("OSError: the host of logs is away\n") == 2


async def test_what_it_prints_does_no_harm(url: str, queue: Queue, capfd: pytest.CaptureFixture[str]) -> None:
    async with Worker("computed", route=route, connection=url, processes=POOL, shutdown_timeout=1) as worker:
        assert await result(queue, "print_much") == "printed"
        assert worker.is_running
    assert capfd.readouterr().out.count("printed by a child\n") == 3


# -- how a process can end --------------------------------------------------------------------------------------------

DEATHS = {
    "segfault": ((), r"ProcessCrashed: .* signal 11 \(SIGSEGV\)"),
    "leave": ((3,), "ProcessCrashed: .* exit code 3"),
    "kill_itself": ((), r"ProcessCrashed: .* signal 9 \(SIGKILL\); the kernel .* memory"),
    "close_everything": ((), "ProcessCrashed: .* exit code 1"),
    "write_into_the_pipe": ((), "ProcessCrashed: .* cannot be read"),
}


@pytest.mark.parametrize("name", DEATHS)
@pytest.mark.usefixtures("worker")
async def test_a_process_that_dies_costs_its_own_job_an_attempt(
    queue: Queue, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    args, told = DEATHS[name]
    dies = await queue.add(name, list(args), attempts=2)
    others = [await queue.add("give", [number]) for number in range(5)]
    with pytest.raises(JobFailed, match=told):
        await dies.result(timeout=30)
    found = await dies.refresh()
    assert found is not None
    assert (found.attempts_made, found.attempts_started, found.stalled_count) == (2, 2, 0)
    assert found.failure_kind == "unknown"
    assert [await job.result(timeout=30) for job in others] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("worker")
async def test_a_process_that_somebody_kills_costs_its_own_job_an_attempt(queue: Queue, tmp_path: Path) -> None:
    job = await queue.add("compute_once", [str(tmp_path / "began")], attempts=2)
    os.kill(await starts(tmp_path / "began"), signal.SIGKILL)
    assert await job.result(timeout=30) == "second"
    found = await job.refresh()
    assert found is not None
    assert (found.attempts_made, found.stalled_count) == (2, 0)


@pytest.mark.usefixtures("worker")
async def test_a_process_that_dies_while_it_waits_is_replaced(queue: Queue) -> None:
    first = await result(queue, "pid")
    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: not psutil.pid_exists(first))
    assert await result(queue, "pid") != first


@pytest.mark.usefixtures("worker")
async def test_memory_that_runs_out_fails_the_run(queue: Queue) -> None:
    with pytest.raises(JobFailed, match=r"MemoryError|ProcessCrashed"):
        await result(queue, "use_up_memory")
    assert await result(queue, "give", 1) == 1


@pytest.mark.usefixtures("worker")
async def test_a_handler_that_forks_has_one_outcome(queue: Queue) -> None:
    assert await result(queue, "fork") == "from the child"
    assert await result(queue, "give", 1) == 1
    assert len(children()) == 1


@pytest.mark.usefixtures("worker")
async def test_a_fork_may_log_and_has_no_way_to_the_worker(
    queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await result(queue, "log_in_a_fork", str(tmp_path / "printed"))
    assert [one.getMessage() for one in caplog.records if one.name == "tests.processes"] == ["after the fork"]
    assert (tmp_path / "printed").read_text() == "from the fork\n"  # as Python prints what nobody handles


# -- errors ----------------------------------------------------------------------------------------------------------------

REASONS = {
    "plain": "Plain: word",
    "key": "KeyError: 'course'",
    "file": "FileNotFoundError: .*No such file.*seat.txt",
    "local": "Local: gone",
    "group": r"ExceptionGroup: two \(2 sub-exceptions\)",
    "reduce": "BadReduce: reduced",
    "text": "BadText: its message cannot be read",
    "attribute": "the error that it raised cannot be read",
    "new": "BadNew: anew",
    "exit": "SystemExit: 4",
    "interrupt": "KeyboardInterrupt",
    "memory": "MemoryError: no more",
    "cancelled": "CancelledError",
    "generator": "GeneratorExit: closed",
    "frozen": "Frozen: ",
    "no attributes": "NoAttributes: x",
    "below": "Below: x",
    "hidden": "Hidden: below",
    "frozen in a group": r"ExceptionGroup: one \(1 sub-exception\)",
    "reads": "Reads: x",
    "stop": "StopIteration: 1",
    "unicode": "UnicodeDecodeError: 'utf-8' codec",
    "surrogate": r"ValueError: \\ud800",
    "object": "ValueError: <object object",
    "large": "ValueError: x{1000}",
    "unrecoverable": "stolen",
}


async def test_what_a_handler_raises_is_told_as_it_was_there(queue: Queue, worker: Worker) -> None:
    pid = await result(queue, "pid")
    for name, told in REASONS.items():
        job = await queue.add("fail", [name])
        with pytest.raises(JobFailed, match=f"failed: {told}"):
            await job.result(timeout=30)
        found = await job.refresh()
        assert found is not None
        assert name == "attribute" or "process_tasks.py" in found.stacktrace[0], name
    assert await result(queue, "pid") == pid  # none of them has ended the process
    assert worker.is_running


async def test_policies_see_the_errors_class(queue: Queue, url: str) -> None:
    seen: list[BaseException] = []

    class Watching(RetryPolicy, frozen=True):
        def kind(self, error: BaseException) -> Any:
            seen.append(error)
            return super().kind(error)

    policy = Watching(permanent=(process_tasks.Plain,))
    async with Worker("computed", route=route, connection=url, processes=POOL, retry_policy=policy):
        kinds = {}
        for name in ("plain", "file", "local", "group", "unrecoverable"):
            job = await queue.add("fail", [name], attempts=2)
            with pytest.raises(JobFailed):
                await job.result(timeout=30)
            found = await job.refresh()
            assert found is not None
            kinds[name] = (found.failure_kind, found.attempts_made)
    assert kinds == {
        "plain": ("permanent", 1),
        "file": ("unknown", 2),
        "local": ("transient", 2),
        "group": ("unknown", 2),
        "unrecoverable": ("unrecoverable", 1),
    }
    plain, file, *_ = seen
    assert isinstance(plain, process_tasks.Plain)
    assert (plain.args, plain.number) == (("word",), 7)
    assert isinstance(file, FileNotFoundError)
    assert (file.errno, file.filename) == (2, "seat.txt")


@pytest.mark.usefixtures("worker")
async def test_outcomes_that_a_handler_chooses(queue: Queue) -> None:
    later, reckoned = await queue.add("fail", ["later"]), await queue.add("fail", ["reckoned"])

    async def are_delayed() -> bool:
        found = [await one.refresh() for one in (later, reckoned)]
        return all(one is not None and one.state == "delayed" and one.attempts_made == 0 for one in found)

    await wait_until(are_delayed, timeout=30)
    limited = await queue.add("fail", ["limited"], attempts=1)

    async def was_put_back() -> bool:
        found = await limited.refresh()
        return found is not None and found.attempts_started > 1 and found.attempts_made == 0

    await wait_until(was_put_back, timeout=30)
    await later.remove()


# -- results ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
async def test_a_result_without_a_form_is_no_second_run(queue: Queue) -> None:
    job = await queue.add("give_object", [], attempts=3)
    with pytest.raises(ResultUnavailable, match="type object"):
        await job.result(timeout=30)
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.attempts_made) == ("completed", 1)


@pytest.mark.usefixtures("worker")
async def test_large_data_and_results_come_through(queue: Queue) -> None:
    size = 15_000_000
    assert await result(queue, "give_text", size) == "x" * size
    assert await result(queue, "give", "y" * size) == "y" * size


@pytest.mark.usefixtures("worker")
async def test_what_cannot_be_sent_to_a_process_says_so(queue: Queue, url: str) -> None:
    def nowhere(job: Job[Any]) -> Call:
        return Call(lambda: 1, process=True)

    async with Queue("nowhere", connection=url) as other, Worker("nowhere", route=nowhere, connection=url):
        with pytest.raises(JobFailed, match=r"cannot be sent to a process: .* top of a module"):
            await (await other.add("x")).result(timeout=30)


# -- timeouts, stops and locks ---------------------------------------------------------------------------------------------


async def test_past_its_timeout_the_process_is_killed_with_what_it_started(
    queue: Queue, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker("computed", route=within(0.5), connection=url, processes=POOL):
        await result(queue, "give", 1)  # so that the process is there
        job = await queue.add("start_program", [str(tmp_path / "program")])
        program = await starts(tmp_path / "program")
        with pytest.raises(JobFailed, match=r"TimeoutError: the run took longer than its timeout of 0\.5 s"):
            await job.result(timeout=30)
        await wait_until(lambda: not psutil.pid_exists(program), what="what the handler started is gone too")
        assert await result(queue, "give", 1) == 1  # the slot is free
    assert "ProcessCrashed" not in caplog.text


async def test_the_timeout_does_not_count_while_a_job_waits_for_a_process(queue: Queue, url: str) -> None:
    async with Worker("computed", route=within(2), connection=url, processes=POOL, concurrency=4):
        jobs = [await queue.add("nap", [0.6]) for _ in range(4)]
        assert len({await job.result(timeout=30) for job in jobs}) == 1


async def test_a_stop_waits_for_its_grace_time_then_kills_and_gives_back(
    queue: Queue, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker("computed", route=route, connection=url, processes=POOL, shutdown_timeout=0.2) as worker:
        job = await queue.add("ignore_signals", [str(tmp_path / "began")], attempts=1)
        pid = await starts(tmp_path / "began")
        await worker.close()
        assert not psutil.pid_exists(pid)
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.attempts_made, found.stalled_count) == ("waiting", 0, 0)
    assert "crash" not in caplog.text.lower()
    assert children() == []


async def test_a_run_within_the_grace_time_is_completed(queue: Queue, url: str, tmp_path: Path) -> None:
    async with Worker("computed", route=route, connection=url, processes=POOL, shutdown_timeout=20) as worker:
        job = await queue.add("nap", [0.3, str(tmp_path / "began")])
        await starts(tmp_path / "began")
        await worker.close()
    assert await job.result(timeout=5) > 0


async def test_a_signal_for_the_whole_group_leaves_the_run_its_time(
    queue: Queue, worker: Worker, tmp_path: Path
) -> None:
    job = await queue.add("nap", [0.5, str(tmp_path / "began")])
    pid = await starts(tmp_path / "began")
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    assert await job.result(timeout=30) == pid
    assert worker.is_running


async def test_a_job_that_waits_for_a_process_is_given_back_as_if_never_begun(
    queue: Queue, url: str, tmp_path: Path
) -> None:
    async with Worker("computed", route=route, connection=url, processes=POOL, concurrency=2) as worker:
        await queue.add("compute", [str(tmp_path / "began")])
        await starts(tmp_path / "began")
        waits = await queue.add("give", [1])

        async def is_active() -> bool:
            found = await waits.refresh()
            return found is not None and found.state == "active"

        await wait_until(is_active)
        await worker.close(force=True)
    found = await waits.refresh()
    assert found is not None
    assert (found.state, found.attempts_started) == ("waiting", 0)


async def test_a_call_that_holds_the_interpreter_keeps_its_lock(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Worker("computed", route=route, connection=url, processes=POOL, lock_duration=0.6, stalled_interval=0.2),
        Worker("computed", route=route, connection=url, processes=POOL, lock_duration=0.6, stalled_interval=0.2),
    ):
        job = await queue.add("hold_the_interpreter", [1.5])
        assert await job.result(timeout=30) == "held"
    found = await job.refresh()
    assert found is not None
    assert (found.attempts_started, found.stalled_count) == (1, 0)


# -- the pool --------------------------------------------------------------------------------------------------------------


async def test_a_process_ends_after_its_jobs(queue: Queue, url: str) -> None:
    async with Worker("computed", route=route, connection=url, processes=ProcessPool(size=1, max_jobs=3)):
        pids = [await result(queue, "pid") for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


async def test_a_process_that_holds_too_much_memory_ends(queue: Queue, url: str) -> None:
    pool = ProcessPool(size=1, max_memory=200 * 1024 * 1024)
    async with Worker("computed", route=route, connection=url, processes=pool):
        small, again = await result(queue, "hold", 1024), await result(queue, "hold", 300 * 1024 * 1024)
        assert small == again != await result(queue, "pid")


@pytest.mark.parametrize("size", [2, None], ids=["size", "processors"])
async def test_as_many_processes_as_are_needed_and_no_more_than_its_size_or_the_processors(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2 if size is None else 64)
    pool = ProcessPool(size=size, warm=False)
    async with Worker("computed", route=route, connection=url, processes=pool, concurrency=8):
        assert children() == []
        await result(queue, "pid")
        assert len(children()) == 1
        jobs = [await queue.add("nap", [0.2]) for _ in range(8)]
        assert len({await job.result(timeout=30) for job in jobs}) == 2
    assert children() == []


async def test_threads_and_descriptors_are_given_back(queue: Queue, url: str) -> None:
    before = None
    for _ in range(3):
        async with Worker("computed", route=route, connection=url, processes=ProcessPool(size=1, max_jobs=1)):
            for _ in range(3):
                await result(queue, "give", 1)
        await wait_until(lambda: not any(one.name == "echomq-child" for one in threading.enumerate()))
        now = psutil.Process().num_fds()
        assert before is None or now <= before
        before = before or now


async def test_warm_processes_are_there_before_the_first_job(url: str) -> None:
    async with Worker("computed", route=route, connection=url, processes=ProcessPool(size=1)) as worker:
        await worker.ready()
        assert len(children()) == 1


async def test_a_worker_whose_processes_cannot_start_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(ProcessCrashed, match="could not be started"):
        await Worker("computed", route=route, connection=url, processes=POOL).run()


def test_options_that_are_refused(url: str) -> None:
    for wrong in ({"size": 0}, {"max_jobs": 0}, {"max_memory": 1000}, {"warm": 1}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            ProcessPool(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="must be a ProcessPool"):
        Worker("q", route=route, processes=4, connection=url)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="process=True"):
        Worker("q", lambda job: None, processes=POOL, connection=url)


# -- many short jobs -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def busy(url: str) -> AsyncIterator[Worker]:
    """One process, which is used to jobs that are so short that it gets several at once."""
    async with (
        Worker("computed", route=route, connection=url, processes=POOL, concurrency=60, shutdown_timeout=1) as worker,
        Queue("computed", connection=url) as queue,
    ):
        jobs = await queue.add_bulk([JobSpec("give", [number]) for number in range(300)])
        assert [await job.result(timeout=30) for job in jobs] == list(range(300))
        yield worker


async def after_pause(queue: Queue, specs: list[JobSpec]) -> list[Job[Any]]:
    """All of them are there before the first one begins, so that they come together."""
    await queue.pause()
    jobs = await queue.add_bulk(specs)
    await queue.resume()
    return jobs


async def test_a_long_job_does_not_hold_up_what_came_with_it(url: str, queue: Queue, tmp_path: Path) -> None:
    pool = ProcessPool(size=2)
    async with Worker("computed", route=route, connection=url, processes=pool, concurrency=60):
        jobs = await queue.add_bulk([JobSpec("give", [number]) for number in range(300)])
        assert [await job.result(timeout=30) for job in jobs] == list(range(300))
        give = [JobSpec("give", [number]) for number in range(20)]
        jobs = await after_pause(queue, [*give, JobSpec("until", [str(tmp_path / "let go")]), *give])
        for job in jobs[:20] + jobs[21:]:
            await job.result(timeout=30)
        now = await jobs[20].refresh()
        assert now is not None
        assert now.state == "active"  # the long one goes on, and all others are done
        (tmp_path / "let go").touch()
        await jobs[20].result(timeout=30)


@pytest.mark.parametrize("name", ["segfault", "leave"])
@pytest.mark.usefixtures("busy")
async def test_of_jobs_that_come_together_only_the_one_that_crashes_has_failed(queue: Queue, name: str) -> None:
    args: list[Any] = [3] if name == "leave" else []
    specs = [JobSpec(name, args) if number in (7, 8, 30) else JobSpec("give", [number]) for number in range(50)]
    jobs = await after_pause(queue, specs)
    for number, job in enumerate(jobs):
        if number in (7, 8, 30):
            with pytest.raises(JobFailed, match="ProcessCrashed"):
                await job.result(timeout=30)
        else:
            assert await job.result(timeout=30) == number
            found = await job.refresh()
            assert found is not None
            assert (found.attempts_made, found.attempts_started) == (1, 1)


async def test_of_jobs_that_come_together_a_stop_gives_back_what_has_not_begun(
    queue: Queue, busy: Worker, tmp_path: Path
) -> None:
    await queue.pause()
    jobs = await queue.add_bulk([JobSpec("give", [1])] * 3 + [JobSpec("compute", [str(tmp_path / "began")])])
    jobs += await queue.add_bulk([JobSpec("give", [2])] * 20)
    await queue.resume()
    await starts(tmp_path / "began")
    await busy.close(force=True)
    found = [await job.refresh() for job in jobs]
    states = [(one.state, one.attempts_started, one.attempts_made) for one in found if one is not None]
    assert states[3] == ("waiting", 1, 0)
    for state in states[:3] + states[4:]:
        assert state in (("completed", 1, 1), ("waiting", 0, 0))
    assert children() == []
