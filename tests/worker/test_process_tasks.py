"""Tasks that run in processes, and how these find them."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

import pytest

from echomq import EchoMQ, InvalidOption, Job, JobFailed, Middleware, ProcessPool, RunEvent, RunOutcome
from echomq._in_process import InProcess
from tests.support.wait import wait_until
from tests.worker import process_school, process_tasks

POOL = ProcessPool(size=1)


async def test_a_task_of_an_app_that_no_module_has(url: str) -> None:
    async with EchoMQ(url) as app:
        where = app.task(process=True)(process_tasks.pid)
        typed = app.task(process=True, pass_job=True, name="typed")(process_school.typed)
        async with app.worker(processes=POOL):
            assert await (await where.enqueue()).result(timeout=30) != os.getpid()
            seat = process_school.Seat(row=3, course="redis")
            job = await typed.enqueue(seat, day=process_school.DAY)
            assert await job.result(timeout=30) == process_school.Seat(row=4, course="typed 2026-11-30")
            with pytest.raises(JobFailed, match=r"Unrecoverable|argument seat"):
                await (await app.queue("default").add("typed", {"seat": {"row": "x"}, "day": "2026-11-30"})).result(
                    timeout=30
                )


async def test_a_task_of_a_group_that_an_app_includes(url: str) -> None:
    async with EchoMQ(url) as app:
        app.include(process_school.group, name_prefix="school.")
        async with app.worker("grades", processes=POOL):
            job = await process_school.grade.enqueue("ten points")
            assert job.name == "school.grade"
            points, process = await job.result(timeout=30)
            assert points == 10
            assert process != os.getpid()


async def test_a_result_that_cannot_be_read_back_stops_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    around: list[object] = []

    class Around(Middleware):
        async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
            around.append(outcome)

    def too_deep(_: bytes) -> None:
        raise ValueError("it is nested too deep to be read")

    async with EchoMQ(url, middleware=[Around()]) as app:
        give = app.task(process=True)(process_tasks.give)

        @app.on("completed")
        def hear(event: RunEvent) -> None:
            told.append(event.result)

        async with app.worker(processes=POOL) as worker:
            assert await (await give.enqueue([[7]])).result(timeout=30) == [[7]]
            await wait_until(lambda: told and around)
            monkeypatch.setattr("echomq._worker.hooks.decode_json", too_deep)
            jobs = [await give.enqueue([[number]]) for number in range(2)]
            assert [await job.result(timeout=30) for job in jobs] == [[[0]], [[1]]]
            await wait_until(lambda: len(told) == 3)
            assert worker.is_running
    assert told == [[[7]], None, None]
    assert around == [RunOutcome([[7]]), RunOutcome(), RunOutcome()]
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 4
    assert f"job {jobs[0].id} (give) of queue default: hooks and middleware are told nothing of its result" in lines[0]


async def test_a_result_that_does_not_fit_is_said(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with EchoMQ(url) as app:
        wrong = app.task(process=True)(process_school.wrong)
        async with app.worker(processes=POOL):
            job = await wrong.enqueue()
            found = None
            while found is None or found.state != "completed":
                found = await job.refresh()
                await asyncio.sleep(0.01)
            assert found.return_value == "a text"
    assert "returned what does not fit its task" in caplog.text


def test_what_no_process_could_find_is_refused(url: str) -> None:
    app = EchoMQ(url)

    def local() -> None: ...

    async def asynchronous() -> None: ...

    for function in (local, lambda: None, functools.partial(process_tasks.pid), process_school.Seat(1, "x")):
        with pytest.raises(InvalidOption, match=r"top of a module|must be a function"):
            app.task(process=True, name="x")(function)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="not async def"):
        app.task(process=True)(asynchronous)
    with pytest.raises(InvalidOption, match="process"):
        app.task(process=1)(process_tasks.pid)  # type: ignore[call-overload]
    assert app.tasks == {}


async def test_a_worker_does_not_start_with_a_task_that_is_not_where_it_says(url: str) -> None:
    def moved() -> None: ...

    moved.__qualname__ = "moved"
    async with EchoMQ(url) as app:
        app.task(process=True)(moved)
        with pytest.raises(InvalidOption, match=r"would not find .*moved of tests.worker.test_process_tasks"):
            await app.worker().run()


def test_an_app_at_the_top_of_a_module_is_found_there() -> None:
    place = InProcess.of(process_school.app.tasks["of_the_app"], process_school.app)
    assert place.app == ("tests.worker.process_school", "app")
