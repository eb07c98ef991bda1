"""The line of a pool of processes: who gets a process, and who wants none any more, at moments that seldom come."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from echomq import Job, JobCancelled, JobFailed, ProcessCrashed, ProcessPool, Queue, Worker
from echomq._redis import forks
from echomq._worker import pipe, processes
from tests.support.wait import wait_until
from tests.worker import process_tasks
from tests.worker.test_processes import POOL, children, route

CRASH = ProcessCrashed("it is broken")


class Child:
    """In place of a process that is ready; begins whatever it is given."""

    def __init__(self, at_once: int = 1) -> None:
        self.is_ready, self.jobs, self.memory, self.at_once = True, 0, 0, at_once
        self.begun: list[Any] = []

    def begin(self, works: list[Any]) -> None:
        self.begun += works


@pytest.fixture
async def pool() -> processes.Processes:
    """One whose line is looked at from outside."""
    home: Any = SimpleNamespace(keys=SimpleNamespace(queue="computed"))
    made = processes.Processes(1, ProcessPool(size=1), home, lambda verb, arguments: asyncio.sleep(0))
    made._size = 0  # it starts none of its own
    return made


def works(count: int, timeout: float | None = None) -> list[Any]:
    loop = asyncio.get_running_loop()
    return [processes._Work(SimpleNamespace(called=False, kill=None), (), timeout, loop) for _ in range(count)]  # type: ignore[arg-type]


def has(pool: processes.Processes, child: Child) -> Any:
    found: Any = child
    pool._children.add(found)
    return found


async def test_a_process_that_frees_gets_nothing_that_is_not_wanted_any_more(pool: processes.Processes) -> None:
    first, second, third, fourth = line = works(4)
    child = Child(at_once=16)
    pool._waiting.extend(line)
    first.ended.cancel()  # its task was cancelled in this very step, and has not come to leave the line
    third.ended.cancel()
    pool._has_nothing_to_do(has(pool, child))
    assert child.begun == [second, fourth]
    assert not pool._waiting


async def test_a_process_waits_where_nobody_wants_one_any_more(pool: processes.Processes) -> None:
    [only] = works(1)
    pool._waiting.append(only)
    only.ended.cancel()
    child = Child()
    pool._has_nothing_to_do(has(pool, child))
    assert child.begun == []
    assert pool._idle == [has(pool, child)]


async def test_what_has_a_timeout_goes_alone(pool: processes.Processes) -> None:
    [gone], [late], others = works(1), works(1, timeout=5), works(2)
    gone.ended.cancel()
    pool._waiting.extend([*others[:1], gone, late, *others[1:]])
    child = Child(at_once=16)
    has(pool, child)
    for expected in ([others[0]], [late], [others[1]]):
        child.begun.clear()
        pool._has_nothing_to_do(child)  # type: ignore[arg-type]
        assert child.begun == expected


async def test_of_what_is_taken_back_an_idle_process_gets_what_is_wanted(pool: processes.Processes) -> None:
    first, second = works(2)
    idle = Child()
    pool._idle.append(has(pool, idle))
    first.ended.cancel()
    pool.take_back([first, second])
    assert idle.begun == [second]
    assert not pool._waiting


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_process_that_cannot_load_costs_one_that_still_waits_its_run(
    pool: processes.Processes, is_broken: bool
) -> None:
    first, second, third = line = works(3)
    pool._waiting.extend(line)
    child = has(pool, Child())
    pool._starting.add(child)
    first.ended.cancel()
    pool.ended(child, CRASH, is_broken=is_broken)
    assert [work.ended.done() for work in (second, third)] == [is_broken, False]
    if is_broken:
        assert second.ended.result() == (None, CRASH)


# -- with real processes -----------------------------------------------------------------------------------------------


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("computed", connection=url) as made:
        yield made


async def test_a_run_that_is_cancelled_as_its_answer_comes_ends(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cancelled = processes._Child._hear, list[Any]()

    def hear(child: processes._Child, frame: pipe.Frame) -> None:
        if frame[0] == pipe.RETURNED and not cancelled:
            cancelled.append(child._works[0].held)
            cancelled[0].task.cancel()  # as a middleware with a timeout of its own may
        real(child, frame)

    monkeypatch.setattr(processes._Child, "_hear", hear)
    async with Worker("computed", route=route, connection=url, processes=POOL) as worker:
        job = await queue.add("pid", [])
        await wait_until(lambda: cancelled and worker.stats.running == 0, timeout=30)
        [before] = children()
        assert await (await queue.add("pid", [])).result(timeout=30) == before.pid  # the process goes on
        found = await job.refresh()
        assert found is not None
        assert found.state != "active"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_fork_holds_nothing_that_leads_to_a_process(url: str) -> None:
    async with Worker("computed", route=route, connection=url, processes=POOL):
        [child] = [one for one in forks._open if isinstance(one, processes._Child) and one.is_ready]
        numbers = child.descriptors()
        assert len(numbers) == (4 if hasattr(os, "memfd_create") else 3)
        pid = os.fork()
        if pid == 0:
            nothing = os.stat(os.devnull).st_rdev
            os._exit(sum(os.fstat(number).st_rdev != nothing for number in numbers))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def test_a_process_that_is_not_wanted_before_it_has_begun_to_start_is_gone(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = processes._Child.start, list[Any]()

    def start(child: processes._Child, not_before: float) -> None:
        real(child, not_before)
        if not left:
            left.append(child)
            child.leave()

    monkeypatch.setattr(processes._Child, "start", start)
    async with Worker("computed", route=route, connection=url, processes=ProcessPool(size=1, warm=False)):
        assert await (await queue.add("give", [1])).result(timeout=30) == 1  # another one has its place
        assert left[0].gone.done()


@pytest.fixture
async def batch(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[Worker, list[Job[Any]]]]:
    """Five jobs that one process has got at once, and of which the first one goes on."""
    monkeypatch.setattr(processes, "_SHORT", 1_000.0)
    monkeypatch.setattr(processes, "_TAKEN_BACK_AFTER", 1_000.0)
    async with Worker("computed", route=route, connection=url, processes=POOL, concurrency=60) as worker:
        for number in range(5):
            assert await (await queue.add("give", [number])).result(timeout=30) == number
        before = await queue.add("until", [str(tmp_path / "before")])
        jobs = [await queue.add("once_begun_until", [str(tmp_path / "began"), str(tmp_path / "let go")])]
        jobs += [await queue.add("give", [number]) for number in range(4)]
        await wait_until(lambda: worker.stats.running == 6, what="all are in the worker")
        (tmp_path / "before").touch()
        await before.result(timeout=30)
        await wait_until((tmp_path / "began").exists, what="the first of five has begun")
        yield worker, jobs


async def test_of_a_batch_one_that_has_not_begun_can_be_cancelled(
    batch: tuple[Worker, list[Job[Any]]], tmp_path: Path
) -> None:
    _, (first, *others) = batch
    [before] = children()
    assert await others[1].cancel("not wanted")
    with pytest.raises(JobCancelled, match="not wanted"):
        await others[1].result(timeout=30)
    (tmp_path / "let go").touch()
    assert await first.result(timeout=30) == before.pid
    assert [await others[number].result(timeout=30) for number in (0, 2, 3)] == [0, 2, 3]
    assert children() == [before]


async def test_of_a_batch_the_one_that_goes_on_can_be_cancelled(batch: tuple[Worker, list[Job[Any]]]) -> None:
    _, (first, *others) = batch
    [before] = children()
    assert await first.cancel("not wanted")
    with pytest.raises(JobCancelled, match="not wanted"):
        await first.result(timeout=30)
    assert [await job.result(timeout=30) for job in others] == [0, 1, 2, 3]
    for job in others:
        found = await job.refresh()
        assert found is not None
        assert (found.attempts_made, found.attempts_started) == (1, 1)
    assert before not in children()


# -- processes that cannot start ---------------------------------------------------------------------------------------


async def test_jobs_wait_while_no_process_can_be_started(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(
        "computed", route=route, connection=url, processes=ProcessPool(size=2, warm=False), concurrency=4
    ):
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        jobs = [await queue.add("give", [number]) for number in range(4)]
        await wait_until(lambda: caplog.text.count("a process for jobs could not be started: ") >= 5, timeout=30)
        monkeypatch.undo()
        assert [await job.result(timeout=30) for job in jobs] == [0, 1, 2, 3]
    for job in jobs:
        found = await job.refresh()
        assert found is not None
        assert (found.attempts_made, found.attempts_started) == (1, 1)


async def test_a_process_that_dies_while_it_starts_costs_no_job_its_run(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker("computed", route=route, connection=url, processes=ProcessPool(size=1, warm=False)):
        monkeypatch.setattr(processes, "_PROGRAM", "import os; os.kill(os.getpid(), 9)  # {path} {descriptors}")
        job = await queue.add("give", [1])
        said = (
            f"a process for jobs died while it started of signal {signal.SIGKILL:d} (SIGKILL); the kernel sends it when"
        )
        await wait_until(lambda: said in caplog.text, timeout=30)
        monkeypatch.undo()
        assert await job.result(timeout=30) == 1
    found = await job.refresh()
    assert found is not None
    assert (found.attempts_made, found.attempts_started) == (1, 1)


async def test_a_process_that_cannot_load_what_it_is_to_run_costs_its_job_an_attempt(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker("computed", route=route, connection=url, processes=ProcessPool(size=1, warm=False))
    monkeypatch.setattr(worker, "_loads", lambda: [functools.partial(process_tasks.fail, "key")])
    async with worker:
        with pytest.raises(
            JobFailed, match=r"ProcessCrashed: .* while it started: it could not load .*KeyError: 'course'"
        ):
            await (await queue.add("give", [1])).result(timeout=30)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("os._exit(7)", "ended itself while it started with exit code 7"),
        ("os.kill(os.getpid(), 9)", "died while it started"),
    ],
)
async def test_a_worker_whose_first_process_ends_as_it_starts_says_so_and_tries_the_next(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, says: str
) -> None:
    monkeypatch.setattr(processes, "_PROGRAM", f"import os; {what}  # {{path}} {{descriptors}}")
    job = await queue.add("give", [1])
    async with asyncio.TaskGroup() as group:
        worker = Worker("computed", route=route, connection=url, processes=POOL)
        group.create_task(worker.run())
        await wait_until(lambda: caplog.text.count(f"a process for jobs {says}") >= 2, timeout=30)
        monkeypatch.undo()
        assert await job.result(timeout=30) == 1
        await worker.close()


async def test_a_worker_whose_processes_all_end_as_they_start_can_be_stopped(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "_PROGRAM", "import os; os._exit(7)  # {path} {descriptors}")
    async with asyncio.TaskGroup() as group:
        worker = Worker("computed", route=route, connection=url, processes=POOL)
        group.create_task(worker.run())
        await wait_until(lambda: "exit code 7" in caplog.text, timeout=30)
        await worker.close()


async def test_a_process_that_is_told_to_end_as_it_starts_goes_on_but_what_it_starts_does_not(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "import os; os.kill(os.getpid(), 15); os.kill(os.getpid(), 2); " + processes._PROGRAM
    monkeypatch.setattr(processes, "_PROGRAM", told)
    async with Worker("computed", route=route, connection=url, processes=ProcessPool(size=1, warm=False)):
        assert await (await queue.add("end_programs", [])).result(timeout=30) == [-signal.SIGTERM, -signal.SIGINT]
        assert await (await queue.add("give", [1])).result(timeout=30) == 1


async def test_what_python_passes_over_on_its_path_does_no_harm(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path, tmp_path, None])
    async with Worker("computed", route=route, connection=url, processes=POOL):
        assert await (await queue.add("give", [1])).result(timeout=30) == 1
