"""Cancelling jobs: over the states in which they are, the executors that run them, and the moments at which it may come."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from echomq import (
    Call,
    Cron,
    EchoMQ,
    Every,
    InvalidOption,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobScheduler,
    JobSpec,
    JobState,
    ProcessPool,
    Queue,
    QueueEvents,
    RetryLater,
    Worker,
)
from echomq.events import Cancelled, Failed
from tests.support.server import Server
from tests.support.wait import wait_until
from tests.worker import process_tasks

WHY = "the learner has left"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("seats", connection=url) as made:
        yield made


async def cancelled(queue: Queue, job: Job[object], reason: str = WHY) -> Job[object]:
    """The job, which has ended as cancelled."""
    with pytest.raises(JobCancelled) as raised:
        await job.result(timeout=10)
    assert (raised.value.job_id, raised.value.reason) == (job.id, reason)
    found = await queue.get_job(job.id)
    assert found is not None
    assert (found.state, found.failed_reason, found.failure_kind) == ("failed", reason, "cancelled")
    assert found.finished_on is not None
    return found


# -- jobs that are not being run -----------------------------------------------------------------------------------------


async def waiting(queue: Queue, state: JobState) -> Job[object]:
    if state == "waiting":
        return await queue.add("seat", {})
    if state == "prioritized":
        return await queue.add("seat", {}, priority=3)
    return await queue.add("seat", {}, delay=100)


@pytest.mark.parametrize("state", ["waiting", "prioritized", "delayed"])
@pytest.mark.parametrize("paused", [False, True])
async def test_one_that_waits_fails_at_once(queue: Queue, state: JobState, paused: bool) -> None:
    if paused:
        await queue.pause()
    before = await queue.add("other", {})
    job = await waiting(queue, state)
    assert await job.cancel(WHY)
    found = await cancelled(queue, job)
    assert (found.attempts_made, found.attempts_started, found.stacktrace) == (0, 0, [])
    counts = await queue.counts()
    assert counts["failed"] == counts["waiting"] == 1
    assert counts[state] == (1 if state == "waiting" else 0)
    assert not await job.cancel(WHY)
    assert (await queue.get_job(before.id)) is not None


async def test_who_waits_is_told_and_the_events_say_it(queue: Queue) -> None:
    async with QueueEvents(queue) as events:
        job = await queue.add("seat", {})
        waits = asyncio.create_task(job.result(timeout=10))
        await asyncio.sleep(0)
        assert await queue.cancel(job.id, WHY)
        with pytest.raises(JobCancelled, match="was cancelled: the learner has left"):
            await waits
        told = []
        async for event in events:
            told.append(event)
            if isinstance(event, Failed):
                break
    assert isinstance(told[-2], Cancelled)
    assert (told[-2].job_id, told[-2].reason) == (job.id, WHY)
    assert isinstance(told[-1], Failed)
    assert (told[-1].job_id, told[-1].reason, told[-1].previous) == (job.id, WHY, "waiting")


async def test_without_a_reason(queue: Queue) -> None:
    job = await queue.add("seat", {})
    assert await job.cancel()
    await cancelled(queue, job, "cancelled")


async def test_a_worker_never_sees_it(queue: Queue, url: str) -> None:
    ran: list[str] = []

    async def process(job: Job[object]) -> None:
        ran.append(job.name)

    job = await queue.add("never", {})
    await queue.add("ever", {})
    await job.cancel()
    async with Worker(queue, process) as worker:
        await worker.run_until_drained()
    assert ran == ["ever"]


async def test_what_has_ended_stays_as_it_is(queue: Queue) -> None:
    async def process(job: Job[object]) -> str:
        if job.name == "bad":
            raise ValueError("no seat")
        return "done"

    good, bad = await queue.add("good", {}), await queue.add("bad", {})
    async with Worker(queue, process) as worker:
        await worker.run_until_drained()
    assert not await good.cancel(WHY)
    assert not await queue.cancel(bad.id, WHY)
    assert await good.result(timeout=5) == "done"
    with pytest.raises(JobFailed) as raised:
        await bad.result(timeout=5)
    assert type(raised.value) is JobFailed


async def test_what_is_gone(queue: Queue) -> None:
    job = await queue.add("seat", {})
    await job.remove()
    for cancel in (job.cancel(), queue.cancel(job.id), queue.cancel("no such id")):
        with pytest.raises(
            JobNotFound, match=r"^job '.*' of queue '\w+' is not cancelled: there is no such job; .* or never was$"
        ):
            await cancel


@pytest.mark.parametrize("reason", [None, 7, "x" * 1001, "\ud800"])
async def test_reasons_that_are_none(queue: Queue, reason: str) -> None:
    job = await queue.add("seat", {})
    with pytest.raises(InvalidOption, match="reason="):
        await job.cancel(reason)
    with pytest.raises(InvalidOption, match="reason="):
        await queue.cancel(job.id, reason)
    assert (await queue.counts("waiting"))["waiting"] == 1


async def test_an_id_that_is_none(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match="job_id=7: must be a text that is not empty; write '7'"):
        await queue.cancel(7)  # type: ignore[arg-type]


async def test_its_deduplication_id_is_free_again(queue: Queue) -> None:
    job = await queue.add("seat", {}, deduplication="one at a time")
    assert (await queue.add("seat", {}, deduplication="one at a time")).deduplicated
    await job.cancel()
    assert not (await queue.add("seat", {}, deduplication="one at a time")).deduplicated


async def test_one_that_waits_for_its_next_attempt(queue: Queue) -> None:
    async def process(job: Job[object]) -> None:
        raise ValueError("no seat")

    job = await queue.add("seat", {}, attempts=3, backoff=100)
    async with Worker(queue, process) as worker:
        await worker.run_until_drained()
    assert await job.cancel(WHY)
    found = await cancelled(queue, job)
    assert (found.attempts_made, len(found.stacktrace)) == (1, 1)


async def test_it_runs_again_if_somebody_wants_that(queue: Queue) -> None:
    job = await queue.add("seat", {})
    await job.cancel(WHY)
    await job.retry()

    async def process(job: Job[object]) -> str:
        return "done"

    async with Worker(queue, process) as worker:
        await worker.run_until_drained()
    found = await queue.get_job(job.id)
    assert found is not None
    assert (found.state, found.return_value, found.failure_kind, found.failed_reason) == (
        "completed", "done", None, None,
    )  # fmt: skip


# -- jobs that are being run ---------------------------------------------------------------------------------------------


class Handlers:
    """Handlers that go on until they are told to stop, one for each executor; and what became of them."""

    def __init__(self) -> None:
        self.begun = 0
        self.stopped: list[str] = []
        self.ignores = False
        self.let_go = threading.Event()

    async def loop(self, job: Job[object]) -> str:
        self.begun += 1
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.stopped.append("loop")
                if not self.ignores:
                    raise
                await wait_until(self.let_go.is_set, timeout=30)
                return "all the same"

    def thread(self, job: Job[object]) -> str:
        self.begun += 1
        while not job.cancelled:
            time.sleep(0.01)
        self.stopped.append("thread")
        if self.ignores:
            self.let_go.wait(30)
        return "all the same"


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


EXECUTORS = ["loop", "thread"]


@pytest.mark.parametrize("executor", EXECUTORS)
async def test_a_running_handler_is_told_within_a_second(
    queue: Queue, handlers: Handlers, executor: str, url: str
) -> None:
    async with Worker(queue, getattr(handlers, executor)) as worker:
        job = await queue.add("seat", {}, attempts=5)
        await wait_until(lambda: handlers.begun == 1)
        began = time.monotonic()
        async with Queue("seats", connection=url) as elsewhere:
            assert await elsewhere.cancel(job.id, WHY)
        await wait_until(lambda: handlers.stopped == [executor])
        assert time.monotonic() - began < 5  # a tenth of a second where nobody else uses the machine
        found = await cancelled(queue, job)
        assert (found.attempts_made, found.attempts_started) == (1, 1)
        assert worker.is_running
        again = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 2)
        await again.cancel()
        await cancelled(queue, again, "cancelled")


@pytest.mark.parametrize("executor", EXECUTORS)
async def test_a_handler_that_does_not_stop_is_given_up(
    queue: Queue, handlers: Handlers, executor: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("echomq._worker.cancels.FOR_CLEANING_UP", 0.1)
    handlers.ignores = True
    async with Worker(queue, getattr(handlers, executor)) as worker:
        job = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 1)
        await job.cancel(WHY)
        await cancelled(queue, job)
        assert worker.stats.running == 1  # what goes on keeps its slot
        after = await queue.add("seat", {})
        with pytest.raises(TimeoutError):
            await after.result(timeout=0.2)
        assert handlers.begun == 1
        handlers.let_go.set()
        await wait_until(lambda: handlers.begun == 2)
        await after.cancel(WHY)
        await cancelled(queue, after)
    assert any("was cancelled, and its" in record.getMessage() for record in caplog.records)
    found = await queue.get_job(job.id)
    assert found is not None
    assert (found.return_value, found.failure_kind) == (None, "cancelled")


@pytest.mark.parametrize("ends", ["returns", "raises", "puts it off"])
@pytest.mark.parametrize("hears", [True, False])
async def test_however_the_handler_ends(queue: Queue, server: Server, ends: str, hears: bool) -> None:
    """Also where the word of it is lost, and its outcome comes to the server after the request."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(job: Job[object]) -> str:
        begun.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # cleaning up
        if ends == "raises":
            raise ValueError("no seat")
        if ends == "puts it off":
            raise RetryLater(1)
        return "done"

    async with Worker(queue, process):
        job = await queue.add("seat", {}, attempts=3, backoff=100)
        await begun.wait()
        if hears:
            await job.cancel(WHY)
        else:
            with server.client() as client:
                client.hset(f"emq:{{seats}}:{job.id}", "cancelRequested", WHY)
            go_on.set()
        found = await cancelled(queue, job)
        assert found.return_value is None


async def test_one_that_comes_back_is_not_run(queue: Queue, server: Server) -> None:
    """The request outlives the worker that had the job."""
    ran = []

    async def process(job: Job[object]) -> None:
        ran.append(job.id)

    job = await queue.add("seat", {})
    with server.client() as client:
        client.hset(f"emq:{{seats}}:{job.id}", "cancelRequested", WHY)
    async with Worker(queue, process):
        found = await cancelled(queue, job)
    assert ran == []
    assert found.attempts_started == 1
    with server.client() as client:
        assert not client.hexists(f"emq:{{seats}}:{job.id}", "cancelRequested")


async def test_between_the_fetch_and_the_handler(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request comes while the answer to the fetch is on its way: its worker has not heard of the job yet."""
    from echomq._worker.pump import Pump

    ran = []
    asked: list[bool] = []
    call = Pump._call

    async def slow(self: Pump, lane: Any, ask: Any) -> Any:
        turn = await call(self, lane, ask)
        if turn.jobs and not asked:
            asked.append(await queue.cancel("x", WHY))
            await wait_until(lambda: heard())
        return turn

    async def process(job: Job[object]) -> None:
        ran.append(job.id)
        await asyncio.sleep(30)

    monkeypatch.setattr(Pump, "_call", slow)
    async with Worker(queue, process) as worker:
        await worker.ready()

        def heard() -> bool:
            session = worker._session
            return session is not None and session._crew is not None and "x" in session._crew._cancels._heard

        job = await queue.add("seat", {}, job_id="x")
        await cancelled(queue, job)
    assert asked == [True]


@pytest.mark.parametrize("executor", EXECUTORS)
async def test_while_the_worker_stops(queue: Queue, handlers: Handlers, executor: str) -> None:
    """It waits for its jobs, and hears that one is cancelled."""
    worker = Worker(queue, getattr(handlers, executor), shutdown_timeout=60)
    async with worker:
        job = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 1)
        stopping = asyncio.create_task(worker.close())
        await wait_until(lambda: worker._session is not None and worker._session._stop.is_set())
        await job.cancel(WHY)
        await asyncio.wait_for(stopping, 20)
    await cancelled(queue, job)


async def test_a_handler_that_cleans_up_when_the_worker_stops(queue: Queue) -> None:
    """It was told to stop by the worker, and then its job is cancelled: it is not told twice, and the job is not given back."""
    told: list[str] = []
    begun = asyncio.Event()

    async def process(job: Job[object]) -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            await job.cancel(WHY)
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                told.append("twice")

    async with Worker(queue, process) as worker:
        job = await queue.add("seat", {})
        await begun.wait()
        await worker.close(force=True)
    assert told == []
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.state == "failed"


async def test_a_handler_cancels_its_own_job(queue: Queue) -> None:
    async def process(job: Job[object]) -> str:
        assert await job.cancel(WHY)
        await asyncio.sleep(30)
        return "done"

    async with Worker(queue, process):
        await cancelled(queue, await queue.add("seat", {}))


async def test_twice(queue: Queue, handlers: Handlers) -> None:
    async with Worker(queue, handlers.thread):
        job = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 1)
        assert await job.cancel(WHY)
        assert await job.cancel("for another reason") in (True, False)
        await cancelled(queue, job)


async def test_many_at_once(queue: Queue, handlers: Handlers) -> None:
    async with Worker(queue, handlers.loop, concurrency=50):
        jobs = [await queue.add("seat", {}) for _ in range(60)]
        await wait_until(lambda: handlers.begun == 50)
        assert all(await asyncio.gather(*(job.cancel(WHY) for job in jobs)))
        for job in jobs:
            await cancelled(queue, job)
    assert len(handlers.stopped) == handlers.begun >= 50


async def test_after_an_outage(queue: Queue, handlers: Handlers, server: Server) -> None:
    """All connections are cut, and the request comes before the worker reads the stream again."""
    async with Worker(queue, handlers.loop):
        job = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 1)
        with server.client() as client:
            client.hset(f"emq:{{seats}}:{job.id}", "cancelRequested", WHY)
            client.client_kill_filter(skipme=True, _type="normal")
        await wait_until(lambda: handlers.stopped == ["loop"])
        await cancelled(queue, job)


async def test_a_stream_that_is_none_is_told_and_the_request_counts_all_the_same(
    queue: Queue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(job: Job[object]) -> None:
        begun.set()
        await go_on.wait()

    with server.client() as client:
        client.set("emqx:{seats}:cancels", "rubbish")
    async with Worker(queue, process):
        job = await queue.add("seat", {})
        await begun.wait()
        await wait_until(lambda: any("cannot be read" in record.getMessage() for record in caplog.records))
        with server.client() as client:
            client.hset(f"emq:{{seats}}:{job.id}", "cancelRequested", WHY)
        go_on.set()
        await cancelled(queue, job)
    with server.client() as client:
        client.delete("emqx:{seats}:cancels")


# -- jobs in processes of their own --------------------------------------------------------------------------------------


def in_process(job: Job[Any]) -> Call:
    return Call(functools.partial(getattr(process_tasks, job.name), *job.data), process=True)


def running(file: Path) -> int:
    """The id of the process that has written it, once it has."""
    return int(file.read_text() or 0) if file.exists() else 0


@pytest.mark.parametrize("name", ["nap", "compute", "ignore_signals"])
async def test_a_process_is_killed(queue: Queue, tmp_path: Path, name: str) -> None:
    file = tmp_path / "began"
    async with Worker(queue, route=in_process, processes=ProcessPool(size=1)):
        job = await queue.add(name, [30, str(file)] if name == "nap" else [str(file)], attempts=3)
        await wait_until(lambda: running(file), timeout=30)
        assert psutil.pid_exists(running(file))
        began = time.monotonic()
        assert await job.cancel(WHY)
        found = await cancelled(queue, job)
        assert time.monotonic() - began < 5
        await wait_until(lambda: not psutil.pid_exists(running(file)))
        assert (found.attempts_made, found.attempts_started) == (1, 1)
        assert await (await queue.add("give", ["next"])).result(timeout=30) == "next"


async def test_one_that_waits_for_a_process(queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "began"
    async with Worker(queue, route=in_process, processes=ProcessPool(size=1), concurrency=2):
        first = await queue.add("nap", [30, str(file)])
        await wait_until(lambda: running(file), timeout=30)
        second = await queue.add("nap", [30, str(tmp_path / "never")])
        await wait_until(lambda: is_active(second))
        await second.cancel(WHY)
        await cancelled(queue, second)
        await first.cancel(WHY)
        await cancelled(queue, first)
    assert not (tmp_path / "never").exists()


async def is_active(job: Job[object]) -> bool:
    now = await job.refresh()
    return now is not None and now.state == "active"


async def test_a_process_while_the_worker_stops(queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "began"
    worker = Worker(queue, route=in_process, processes=ProcessPool(size=1), shutdown_timeout=60)
    async with worker:
        job = await queue.add("nap", [30, str(file)])
        await wait_until(lambda: running(file), timeout=30)
        stopping = asyncio.create_task(worker.close())
        await wait_until(lambda: worker._session is not None and worker._session._stop.is_set())
        await job.cancel(WHY)
        await asyncio.wait_for(stopping, 20)
    await cancelled(queue, job)


# -- races ---------------------------------------------------------------------------------------------------------------


async def test_racing_the_finish(queue: Queue) -> None:
    """Whatever cancel said, that is what became of the job."""

    async def process(job: Job[object]) -> str:
        await asyncio.sleep(job.data["pause"])
        return "done"

    async with Worker(queue, process, concurrency=20):
        for turn in range(40):
            job = await queue.add("seat", {"pause": 0.0005 * (turn % 8)})
            await asyncio.sleep(0.0005 * (turn // 8))
            if await job.cancel(WHY):
                await cancelled(queue, job)
            else:
                assert await job.result(timeout=10) == "done"


# -- around it -----------------------------------------------------------------------------------------------------------


async def test_no_dead_letter(queue: Queue, handlers: Handlers) -> None:
    async with Worker(queue, handlers.loop, dead_letter=True):
        job = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 1)
        await job.cancel(WHY)
        await cancelled(queue, job)
    assert (await queue.dead_letter.counts("waiting"))["waiting"] == 0


async def test_the_results_queue_is_told(queue: Queue, handlers: Handlers, url: str) -> None:
    async with Queue("results", connection=url) as results, Worker(queue, handlers.loop, results_queue=results):
        job = await queue.add("seat", {})
        await wait_until(lambda: handlers.begun == 1)
        await job.cancel(WHY)
        await cancelled(queue, job)
        [told] = [one async for one in results.jobs("waiting")]
        assert told.data["status"] == "cancelled"
        assert told.data["reason"] == WHY


async def test_a_task_of_an_app(url: str) -> None:
    async with EchoMQ(url) as app:
        begun = asyncio.Event()

        @app.task(queue="seats")
        async def seat(learner: int) -> str:
            begun.set()
            await asyncio.sleep(30)
            return "done"

        async with app.worker("seats"):
            job = await seat.enqueue(7)
            await begun.wait()
            assert await job.cancel(WHY)
            with pytest.raises(JobCancelled):
                await job.result(timeout=10)


# -- schedules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rhythm", [Every(3600), Cron("0 9 * * *")], ids=["interval", "pattern"])
async def test_the_next_run_of_a_schedule(queue: Queue, rhythm: Every | Cron) -> None:
    """It does not run, and the schedule goes on with the one after it."""
    schedules = JobScheduler(queue)
    await schedules.upsert("report", rhythm, JobSpec("report"))
    [first] = [job async for job in queue.jobs("delayed", "waiting")]
    assert await first.cancel(WHY)
    await cancelled(queue, first)
    [second] = [job async for job in queue.jobs("delayed", "waiting")]
    assert second.scheduled_for is not None
    assert first.scheduled_for is not None
    assert second.scheduled_for > first.scheduled_for
    assert await queue.cancel(second.id)
    [third] = [job async for job in queue.jobs("delayed", "waiting")]
    assert third.id not in (first.id, second.id)


async def test_the_last_run_of_a_schedule(queue: Queue) -> None:
    await JobScheduler(queue).upsert("report", Every(3600), JobSpec("report"), limit=1)
    [only] = [job async for job in queue.jobs("delayed", "waiting")]
    assert await only.cancel(WHY)
    await cancelled(queue, only)
    assert await queue.count() == 0


async def test_a_run_of_a_schedule_that_was_fetched_makes_its_successor_first(queue: Queue, server: Server) -> None:
    ran = []

    async def process(job: Job[object]) -> None:
        ran.append(job.id)

    await JobScheduler(queue).upsert("report", Every(3600), JobSpec("report"))
    [first] = [job async for job in queue.jobs("delayed", "waiting")]
    with server.client() as client:
        client.hset(f"emq:{{seats}}:{first.id}", "cancelRequested", WHY)
    if first.state == "delayed":
        await first.promote()
    async with Worker(queue, process):
        await cancelled(queue, first)
    assert ran == []
    assert await queue.count() == 1
