"""A plain function that runs into its timeout: the attempt has failed at once; the thread goes on, and keeps its slot."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator

import pytest

from echomq import EchoMQ, Job, JobCancelled, JobFailed, RetryLater
from tests.support.server import Server
from tests.support.wait import wait_until

TOLD = r"longer than its timeout of 0\.05 s"


class Stuck:
    """A handler whose calls go on until they are let go, whatever they are told; and a task that has it."""

    def __init__(self) -> None:
        self.jobs: list[Job[object]] = []
        self.ended = 0
        self.let_go = threading.Event()

    def __call__(self, job: Job[object]) -> str:
        self.jobs.append(job)
        self.let_go.wait(30)
        self.ended += 1
        return "too late"


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


@pytest.fixture
async def stuck(app: EchoMQ) -> AsyncIterator[Stuck]:
    made = Stuck()
    app.task(name="stuck", queue="slow", timeout=0.05, pass_job=True)(made)
    app.task(name="again", queue="slow", timeout=0.05, pass_job=True, attempts=2)(made)
    yield made
    made.let_go.set()


async def test_the_attempt_has_failed_while_the_thread_still_runs(
    app: EchoMQ, stuck: Stuck, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with app.worker("slow", name="w"):
        job = await app.tasks["stuck"].enqueue()
        with pytest.raises(JobFailed, match=TOLD):
            await job.result(timeout=10)
        assert stuck.ended == 0
        assert stuck.jobs[0].cancelled.is_set()
        # Nothing of the job is ours any more: no lock is renewed, and nothing can be stored.
        with server.client() as client:
            assert not client.exists(f"emq:{{slow}}:{job.id}:lock")
        stuck.let_go.set()
        await wait_until(lambda: stuck.ended == 1)
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.attempts_made, found.return_value) == ("failed", 1, None)
    [line] = [record.getMessage() for record in caplog.records if "its thread goes on" in record.getMessage()]
    assert "of queue slow has timed out" in line
    assert "1 of 1 slots" in line


async def test_a_worker_never_runs_more_threads_than_slots(app: EchoMQ, stuck: Stuck) -> None:
    @app.task(queue="slow")
    def quick() -> str:
        return threading.current_thread().name

    async with app.worker("slow", concurrency=2, name="w"):
        timed_out = [await app.tasks["stuck"].enqueue() for _ in range(2)]
        for job in timed_out:
            with pytest.raises(JobFailed, match=TOLD):
                await job.result(timeout=10)
        waits = await quick.enqueue()
        with pytest.raises(TimeoutError):  # both slots are taken, by threads
            await waits.result(timeout=0.3)
        refreshed = await waits.refresh()
        assert refreshed is not None
        assert refreshed.state == "waiting"
        stuck.let_go.set()
        assert await waits.result(timeout=10) in ("echomq-w-1", "echomq-w-2")
        assert await (await quick.enqueue()).result(timeout=10) in ("echomq-w-1", "echomq-w-2")


async def test_a_slot_that_is_left_goes_on_taking_jobs(app: EchoMQ, stuck: Stuck) -> None:
    @app.task(queue="slow")
    def quick(number: int) -> int:
        return number

    async with app.worker("slow", concurrency=2):
        with pytest.raises(JobFailed, match=TOLD):
            await (await app.tasks["stuck"].enqueue()).result(timeout=10)
        jobs = [await quick.enqueue(number) for number in range(20)]
        assert [await job.result(timeout=10) for job in jobs] == list(range(20))
        assert stuck.ended == 0
        stuck.let_go.set()


async def test_the_next_attempt_may_run_beside_the_thread_of_the_first(app: EchoMQ, stuck: Stuck) -> None:
    async with app.worker("slow", concurrency=2):
        job = await app.tasks["again"].enqueue()
        await wait_until(lambda: len(stuck.jobs) == 2)
        first, second = stuck.jobs
        assert stuck.ended == 0
        assert first.cancelled.is_set()
        assert first.cancelled is not second.cancelled
        with pytest.raises(JobFailed, match=TOLD):
            await job.result(timeout=10)
        stuck.let_go.set()
    found = await job.refresh()
    assert found is not None
    assert found.attempts_made == 2


async def test_with_one_slot_the_next_attempt_waits_for_the_thread(app: EchoMQ, stuck: Stuck) -> None:
    async with app.worker("slow"):
        job = await app.tasks["again"].enqueue()

        async def is_back() -> bool:
            now = await job.refresh()
            return now is not None and (now.state, now.attempts_made) == ("waiting", 1)

        await wait_until(is_back)
        assert len(stuck.jobs) == 1
        stuck.let_go.set()
        assert await job.result(timeout=10) == "too late"  # the second run, which was quick enough
    assert len(stuck.jobs) == 2


async def test_what_the_thread_raises_later_is_discarded(app: EchoMQ) -> None:
    calls = 0

    @app.task(queue="slow", timeout=0.05, attempts=5, pass_job=True)
    def late(job: Job[object]) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert job.cancelled.wait(10)
            raise RetryLater(60)
        return "done"

    async with app.worker("slow"):
        assert await (await late.enqueue()).result(timeout=10) == "done"


async def test_a_stop_lets_the_thread_end_in_its_grace_time(app: EchoMQ, stuck: Stuck) -> None:
    async with app.worker("slow", shutdown_timeout=30) as worker:
        job = await app.tasks["stuck"].enqueue()
        with pytest.raises(JobFailed, match=TOLD):
            await job.result(timeout=10)
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        stuck.let_go.set()
        await asyncio.wait_for(closing, 10)
    assert stuck.ended == 1


async def test_a_stop_waits_no_longer_than_its_grace_time(
    app: EchoMQ, stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    async with app.worker("slow", shutdown_timeout=0.05):
        job = await app.tasks["stuck"].enqueue()
        with pytest.raises(JobFailed, match=TOLD):
            await job.result(timeout=10)
    assert stuck.ended == 0
    assert any("does not stop" in record.getMessage() for record in caplog.records)
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.attempts_made) == ("failed", 1)  # given back to nobody: its outcome was stored


async def test_a_timeout_within_the_grace_time_is_stored(app: EchoMQ, stuck: Stuck) -> None:
    async with app.worker("slow", shutdown_timeout=0.5) as worker:
        job = await app.tasks["stuck"].enqueue()
        await wait_until(lambda: stuck.jobs)
        await worker.close()
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.attempts_made) == ("failed", 1)


async def test_a_drained_queue_ends_the_worker_although_a_thread_goes_on(app: EchoMQ, stuck: Stuck) -> None:
    @app.task(queue="slow")
    def quick() -> int:
        return 1

    jobs = [await app.tasks["again"].enqueue(), await quick.enqueue(), await quick.enqueue()]
    await asyncio.wait_for(app.worker("slow", concurrency=3, shutdown_timeout=0.05).run_until_drained(), 20)
    assert stuck.ended == 0
    for job, state in zip(jobs, ("failed", "completed", "completed"), strict=True):
        found = await job.refresh()
        assert found is not None
        assert found.state == state


async def test_draining_with_one_slot_goes_on_when_the_thread_has_ended(app: EchoMQ, stuck: Stuck) -> None:
    job = await app.tasks["again"].enqueue()
    draining = asyncio.create_task(app.worker("slow").run_until_drained())
    await wait_until(lambda: stuck.jobs and stuck.jobs[0].cancelled.is_set())
    assert not draining.done()
    stuck.let_go.set()
    await asyncio.wait_for(draining, 10)
    assert await job.result(timeout=10) == "too late"


async def test_the_timeout_also_counts_for_what_a_plain_function_returns_to_be_awaited(app: EchoMQ) -> None:
    @app.task(queue="slow", timeout=0.05)
    def made() -> object:
        return asyncio.sleep(60)

    async with app.worker("slow"):
        with pytest.raises(JobFailed, match=TOLD):
            await (await made.enqueue()).result(timeout=10)


async def test_a_function_that_ends_in_time_is_no_timeout(app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    @app.task(queue="slow", timeout=10)
    def quick(number: int) -> int:
        return number

    async with app.worker("slow", concurrency=4):
        jobs = [await quick.enqueue(number) for number in range(50)]
        assert [await job.result(timeout=10) for job in jobs] == list(range(50))
    assert caplog.records == []


@pytest.mark.parametrize("executor", ["loop", "thread"])
async def test_a_time_out_has_a_kind_of_its_own_and_is_retried(app: EchoMQ, executor: str) -> None:
    let_go = threading.Event()

    async def in_loop() -> None:
        await asyncio.sleep(30)

    def in_thread() -> None:
        let_go.wait(30)

    work = app.task(queue="slow", timeout=0.02, attempts=2, name="work")(in_loop if executor == "loop" else in_thread)
    async with app.worker("slow", concurrency=2):
        job = await work.enqueue()
        with pytest.raises(JobFailed, match=r"longer than its timeout of 0\.02 s"):
            await job.result(timeout=10)
        let_go.set()
    found = await job.refresh()
    assert found is not None
    assert (found.failure_kind, found.attempts_made) == ("timeout", 2)


async def test_a_time_out_that_the_handler_itself_met_is_another_matter(app: EchoMQ) -> None:
    @app.task(queue="slow", timeout=10)
    async def work() -> None:
        raise TimeoutError("the far side is slow")

    async with app.worker("slow"):
        job = await work.enqueue()
        with pytest.raises(JobFailed, match="the far side is slow"):
            await job.result(timeout=10)
    found = await job.refresh()
    assert found is not None
    assert found.failure_kind == "transient"


async def test_cancelled_while_a_time_runs_and_timed_out_while_it_is_cancelled(app: EchoMQ) -> None:
    begun = asyncio.Event()

    @app.task(queue="slow", timeout=0.3, attempts=3)
    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(10)  # its time ends here

    async with app.worker("slow"):
        job = await work.enqueue()
        await begun.wait()
        await job.cancel("why")
        with pytest.raises(JobCancelled, match="why"):
            await job.result(timeout=10)
    found = await job.refresh()
    assert found is not None
    assert (found.failure_kind, found.attempts_made) == ("cancelled", 1)


async def test_a_handler_that_does_not_heed_its_time_is_given_up(
    app: EchoMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("echomq.worker.FOR_CLEANING_UP", 0.1)
    let_go, starts = asyncio.Event(), 0

    @app.task(queue="slow", timeout=0.05, attempts=2)
    async def work() -> str:
        nonlocal starts
        starts += 1
        if starts == 2:
            return "done"
        while True:
            try:
                await let_go.wait()
                return "too late"
            except asyncio.CancelledError:
                pass

    async with app.worker("slow", concurrency=2) as worker:
        job = await work.enqueue()
        assert await job.result(timeout=10) == "done"  # in the other slot
        assert worker.stats.running == 1
        let_go.set()
        await wait_until(lambda: worker.stats.running == 0)
    found = await job.refresh()
    assert found is not None
    assert (found.attempts_made, found.return_value) == (2, "done")
    assert any("has timed out, and its handler goes on" in record.getMessage() for record in caplog.records)


async def test_what_needs_no_traceback_is_logged_without(app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="slow", timeout=0.05)
    async def wait() -> None:
        await asyncio.sleep(30)

    @app.task(queue="slow")
    async def count(seats: int) -> None:
        raise TimeoutError("the user's own")

    async with app.worker("slow"):
        for job in (await wait.enqueue(), await app.queue("slow").add("count", {"seats": "x"}), await count.enqueue(1)):
            with pytest.raises(JobFailed):
                await job.result(timeout=10)
    late, wrong, own = (one for one in caplog.records if "failed for good" in one.getMessage())
    assert late.getMessage().endswith(
        "failed for good after 1 run: TimeoutError: the run took longer than its timeout of 0.05 s"
    )
    assert "failed for good after 1 run: argument seats='x' of task 'count'" in wrong.getMessage()
    assert (late.exc_info, wrong.exc_info) == (None, None)
    assert own.exc_info
