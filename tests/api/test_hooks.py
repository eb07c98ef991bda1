"""What an app is told of its jobs, in the process that runs them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from echomq import EchoMQ, InvalidOption, JobFailed, RetryLater, RunEvent, current_job
from tests.support.wait import wait_until


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


async def test_hooks_are_told_what_becomes_of_each_run(app: EchoMQ) -> None:
    told: list[tuple[object, ...]] = []

    @app.on("started", "completed")
    def plain(event: RunEvent) -> None:
        told.append((event.kind, event.job.name, event.result))

    @app.on("failed", "retried", "delayed")
    async def asynchronous(event: RunEvent) -> None:
        assert current_job() is event.job
        told.append((event.kind, event.job.name, repr(event.error), event.reason, event.delay))

    @app.task(queue="seats", attempts=2)
    async def enroll(course: str) -> str:
        job = current_job()
        assert job is not None
        if course == "later" and job.attempts_started == 1:
            raise RetryLater(0.01)
        if course == "wrong":
            raise ConnectionError("no such course")
        return f"a seat in {course}"

    async with app.worker("seats"):
        await (await enroll.enqueue("redis")).result(timeout=10)
        with pytest.raises(JobFailed):
            await (await enroll.enqueue("wrong")).result(timeout=10)
        await (await enroll.enqueue("later")).result(timeout=10)
    error = "ConnectionError('no such course')"
    assert told == [
        *(("started", "enroll", None), ("completed", "enroll", "a seat in redis")),
        *(("started", "enroll", None), ("retried", "enroll", error, "ConnectionError: no such course", 0)),
        *(("started", "enroll", None), ("failed", "enroll", error, "ConnectionError: no such course", None)),
        *(
            ("started", "enroll", None),
            ("delayed", "enroll", "RetryLater('asked to run again after 0.01')", None, 0.01),
        ),
        *(("started", "enroll", None), ("completed", "enroll", "a seat in later")),
    ]


async def test_a_hook_is_told_when_the_server_has_the_outcome(app: EchoMQ) -> None:
    states: list[object] = []

    @app.on("completed")
    async def look(event: RunEvent) -> None:
        job = await event.job.refresh()
        states.append(job and job.state)

    @app.task(queue="seats")
    def enroll() -> None: ...

    async with app.worker("seats"):
        await (await enroll.enqueue()).result(timeout=10)
    assert states == ["completed"]  # the worker waits for it


async def test_hooks_are_told_of_jobs_that_are_cancelled_or_given_back(app: EchoMQ) -> None:
    told: list[tuple[str, str | None]] = []
    begun = asyncio.Event()

    @app.on("cancelled", "given_back")
    def hear(event: RunEvent) -> None:
        told.append((event.kind, event.reason))

    @app.task(queue="seats")
    async def enroll() -> None:
        begun.set()
        await asyncio.sleep(3600)

    worker = app.worker("seats", shutdown_timeout=0)
    async with worker:
        job = await enroll.enqueue()
        await begun.wait()
        await job.cancel("changed her mind")
        await wait_until(lambda: told)
        begun.clear()
        await enroll.enqueue()
        await begun.wait()
    assert told == [("cancelled", "changed her mind"), ("given_back", None)]


async def test_an_error_in_a_hook_is_logged_and_changes_nothing(app: EchoMQ, caplog: pytest.LogCaptureFixture) -> None:
    @app.on("started", "completed")
    def breaks(_: RunEvent) -> None:
        raise OSError("disk full")

    class Chat:
        async def __call__(self, event: RunEvent) -> None:
            raise OSError("no network")

    app.on("completed")(Chat())
    app.on("completed")(functools.partial(Chat()))

    @app.task(queue="seats")
    async def enroll() -> int:
        return 7

    async with app.worker("seats"):
        assert await (await enroll.enqueue()).result(timeout=10) == 7
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 4
    assert "(enroll) of queue seats: the hook" in records[0].getMessage()
    assert "breaks for 'started' has raised" in records[0].getMessage()


def _cancelled() -> None:
    done = asyncio.get_running_loop().create_future()
    done.cancel()
    done.result()


def _exits() -> None:
    raise SystemExit(3)


def _generator_exits() -> None:
    raise GeneratorExit


@pytest.mark.parametrize("breaks", [_cancelled, _exits, _generator_exits])
async def test_whatever_a_hook_raises_changes_nothing(
    app: EchoMQ, breaks: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    @app.on("started", "completed")
    def plain(_: RunEvent) -> None:
        breaks()

    @app.on("completed")
    async def asynchronous(_: RunEvent) -> None:
        breaks()

    @app.task(queue="seats", attempts=2)
    async def enroll(learner: int) -> int:
        runs.append(learner)
        return learner

    async with app.worker("seats") as worker:
        jobs = await enroll.map(range(5))
        assert [await job.result(timeout=10) for job in jobs] == [0, 1, 2, 3, 4]
        assert worker.is_running
    assert runs == [0, 1, 2, 3, 4]
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(records) == 15
    assert all("has raised; nothing else is changed" in record.getMessage() for record in records)


async def test_a_hook_that_forks_leaves_no_second_worker(app: EchoMQ) -> None:
    children: list[int] = []

    @app.on("completed")
    def forks(_: RunEvent) -> None:
        child = os.fork()
        if not child:
            raise SystemExit(7)
        children.append(child)

    @app.task(queue="seats")
    async def enroll() -> int:
        return 7

    async with app.worker("seats"):
        assert await (await enroll.enqueue()).result(timeout=10) == 7
        await wait_until(lambda: children)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7


async def test_jobs_that_have_come_are_run_although_telling_of_others_fails(
    app: EchoMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.on("completed")
    def never(_: RunEvent) -> None:
        raise AssertionError

    @app.task(queue="seats")
    async def enroll(learner: int) -> int:
        return learner

    def breaks(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("echomq._worker.hooks.Listener.stored", breaks)
    async with app.worker("seats"):
        jobs = await enroll.map(range(5))
        assert [await job.result(timeout=10) for job in jobs] == [0, 1, 2, 3, 4]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        f"hooks could not be told of job {job.id} (enroll)" for job in jobs
    ]


async def test_hooks_that_are_slower_than_jobs_hold_nothing_up(
    app: EchoMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("echomq._hooks._MOST", 3)
    monkeypatch.setattr("echomq._hooks._TO_END", 0.05)
    ended: list[Any] = []

    @app.on("completed")
    async def endless(_: RunEvent) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    @app.task(queue="seats")
    async def enroll() -> None: ...

    async with app.worker("seats", concurrency=10):
        for job in [await enroll.enqueue() for _ in range(10)]:
            await job.result(timeout=10)
    assert len(ended) == 3
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines if "hooks" in line] == [
        "3 calls of hooks go on",
        "3 hooks have not ended 0.05 s after the last job, and are cancelled",
    ]


def test_what_hooks_cannot_be_told_of_is_refused(url: str) -> None:
    app = EchoMQ(url)
    with pytest.raises(InvalidOption, match=r"@app\.on\('done'\): must be of 'started', 'completed'"):
        app.on("done")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="name what to be told of"):
        app.on()
    with pytest.raises(InvalidOption, match=r"write @app\.on\('completed'\) for it"):
        app.on(print)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidOption, match=r"@app\.on\('completed'\) of 'x': must be a function that takes the RunEvent"
    ):
        app.on("completed")("x")  # type: ignore[type-var]
