"""What an app starts before its workers take jobs, and stops after their last job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from echomq import EchoMQ, InvalidOption, LifespanFailed, StateError, Worker
from tests.support.wait import wait_until


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


@pytest.fixture
def events(app: EchoMQ) -> list[str]:
    """What happened; the app has a lifespan that writes its part."""
    seen: list[str] = []

    @app.lifespan
    async def lifespan(started: EchoMQ) -> AsyncIterator[None]:
        assert started is app
        seen.append("startup")
        yield
        seen.append("shutdown")

    @app.task(queue="one")
    async def first() -> None:
        seen.append("job")

    @app.task(queue="two")
    def second() -> None:
        seen.append("job")

    return seen


async def test_it_is_started_once_for_all_queues_and_stopped_after_the_last_job(app: EchoMQ, events: list[str]) -> None:
    async with app.worker("one"), app.worker("two"):
        jobs = [await app.tasks[name].enqueue() for name in ("first", "second")]
        for job in jobs:
            await job.result(timeout=10)
        last = await app.tasks["first"].enqueue()
        await last.result(timeout=10)
    assert events == ["startup", "job", "job", "job", "shutdown"]


async def test_work_starts_and_stops_it(app: EchoMQ, events: list[str]) -> None:
    working = asyncio.create_task(app.work())
    await (await app.tasks["first"].enqueue()).result(timeout=10)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert events == ["startup", "job", "shutdown"]


async def test_running_keeps_it_while_workers_come_and_go(app: EchoMQ, events: list[str]) -> None:
    async with app.running():
        assert events == ["startup"]
        async with app.running():
            pass
        await app.tasks["first"].enqueue()
        await app.worker("one").run_until_drained()
        await app.worker("two").run_until_drained()
    assert events == ["startup", "job", "shutdown"]
    await app.worker("one").run_until_drained()
    assert events[3:] == ["startup", "shutdown"]


async def test_several_are_entered_in_order_and_left_in_reverse(app: EchoMQ, events: list[str]) -> None:
    @app.lifespan
    @asynccontextmanager
    async def inner(_: EchoMQ) -> AsyncIterator[None]:
        events.append("inner startup")
        try:
            yield
        finally:
            events.append("inner shutdown")

    async with app.running():
        pass
    assert events == ["startup", "inner startup", "inner shutdown", "shutdown"]


async def test_those_who_come_while_it_starts_or_ends_wait_for_that(app: EchoMQ) -> None:
    events: list[str] = []
    gate = asyncio.Event()

    @app.lifespan
    async def slow(_: EchoMQ) -> AsyncIterator[None]:
        events.append("startup")
        await gate.wait()
        events.append("started")
        yield
        await asyncio.sleep(0.05)
        events.append("stopped")

    async def use() -> None:
        async with app.running():
            events.append("used")

    together = [asyncio.create_task(use()) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*together)
    assert events == ["startup", "started", "used", "used", "used", "stopped"]
    await asyncio.gather(use(), use())
    assert events[6:] == ["startup", "started", "used", "used", "stopped"]


async def test_a_startup_that_fails_ends_every_worker_and_takes_no_job(app: EchoMQ, events: list[str]) -> None:
    @app.lifespan
    async def broken(_: EchoMQ) -> AsyncIterator[None]:
        await refuse()
        yield

    async def refuse() -> None:
        raise ConnectionError("no database")

    job = await app.tasks["first"].enqueue()
    said = r"the app could not be started, at lifespan .*broken.: ConnectionError: no database"
    with pytest.raises(LifespanFailed, match=said) as failure:
        await app.work()
    assert (failure.value.phase, type(failure.value.__cause__)) == ("startup", ConnectionError)
    with pytest.raises(LifespanFailed, match=said):
        await app.worker("one").run()
    with pytest.raises(LifespanFailed, match=said):
        await app.worker("one").ready()
    with pytest.raises(LifespanFailed, match=said):
        async with app.running():
            raise AssertionError("entered")
    assert events == ["startup", "shutdown"] * 4
    found = await job.refresh()
    assert found is not None
    assert found.state == "waiting"


async def test_a_shutdown_that_fails_is_told_when_all_is_done(
    app: EchoMQ, events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def broken(_: EchoMQ) -> AsyncIterator[None]:
        yield
        raise OSError("disk full")

    with pytest.raises(LifespanFailed, match="the app could not be stopped in order: OSError: disk full"):
        async with app.worker("one"):
            await (await app.tasks["first"].enqueue()).result(timeout=10)
    assert events == ["startup", "job", "shutdown"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("nothing can be said about it")


@pytest.mark.parametrize("when", ["startup", "shutdown"])
async def test_an_error_that_cannot_say_what_it_is_is_told_all_the_same(
    app: EchoMQ, events: list[str], when: str
) -> None:
    @app.lifespan
    async def broken(_: EchoMQ) -> AsyncIterator[None]:
        if when == "startup":
            raise Mute
        yield
        raise Mute

    with pytest.raises(LifespanFailed, match="Mute: its message cannot be read") as failure:
        async with app.running():
            pass
    assert failure.value.phase == when
    assert events == ["startup", "shutdown"]


class Fatal(BaseException): ...


@pytest.mark.parametrize("how", ["CancelledError", "SystemExit", "Fatal"])
@pytest.mark.parametrize("when", ["startup", "shutdown"])
async def test_whatever_one_raises_the_others_are_stopped(
    app: EchoMQ, events: list[str], how: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def broken(_: EchoMQ) -> AsyncIterator[None]:
        ping = asyncio.create_task(asyncio.sleep(3600))
        if when == "startup":
            await breaks(ping)
        yield
        await breaks(ping)

    async def breaks(ping: asyncio.Task[None]) -> None:
        ping.cancel()
        if how == "Fatal":
            raise Fatal
        if how == "SystemExit":
            raise SystemExit
        await ping

    with pytest.raises(LifespanFailed, match=how) as failure:
        await app.worker("one").run_until_drained()
    assert failure.value.phase == when
    assert events == ["startup", "shutdown"]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == (when == "shutdown")


async def test_to_be_cancelled_twice_cancels_only_the_one_that_is_being_stopped(app: EchoMQ) -> None:
    events: list[str] = []
    stopping = asyncio.Event()

    @app.lifespan
    async def outer(_: EchoMQ) -> AsyncIterator[None]:
        yield
        events.append("outer")

    @app.lifespan
    async def endless(_: EchoMQ) -> AsyncIterator[None]:
        yield
        stopping.set()
        await asyncio.sleep(3600)

    async def use() -> None:
        async with app.running():
            pass

    task = asyncio.create_task(use())
    await stopping.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["outer"]


async def test_a_worker_that_ends_although_nobody_stopped_it_says_so(app: EchoMQ, events: list[str]) -> None:
    for name in ("echomq worker mine", "echomq pump"):
        worker = app.worker("one", name="mine")
        working = asyncio.create_task(worker.run())
        await worker.ready()
        next(task for task in asyncio.all_tasks() if task.get_name() == name).cancel()
        with pytest.raises(StateError, match="was cancelled"):
            await working
        assert not worker.is_running
    assert events == ["startup", "shutdown"] * 2


async def test_a_worker_that_is_stopped_while_it_starts_cancels_that(app: EchoMQ) -> None:
    events: list[str] = []
    begun = asyncio.Event()

    @app.lifespan
    async def endless(_: EchoMQ) -> AsyncIterator[None]:
        begun.set()
        try:
            await asyncio.sleep(3600)
            yield
        finally:
            events.append("left")

    async with app.worker("one"):
        await begun.wait()
    assert events == ["left"]
    begun.clear()
    working = asyncio.create_task(app.work("one", "two"))
    await begun.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert events == ["left", "left"]


async def test_what_is_no_lifespan_is_refused(app: EchoMQ) -> None:
    def gives_nothing(_: EchoMQ) -> Any:
        return None

    async def returns(_: EchoMQ) -> None: ...

    async def takes_nothing() -> AsyncIterator[None]:
        yield

    for wrong in (returns, 7):
        with pytest.raises(InvalidOption, match="must be an async generator function of the app"):
            app.lifespan(wrong)  # type: ignore[type-var]
    for short in (lambda: 1, takes_nothing):
        with pytest.raises(InvalidOption, match="it is called with the app, and must take that one argument"):
            app.lifespan(short)  # type: ignore[type-var]
    app.lifespan(gives_nothing)
    with pytest.raises(LifespanFailed, match="gave None: must be an async context manager"):
        async with app.running():
            pass


async def test_each_event_loop_has_its_own(app: EchoMQ, events: list[str], caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        async with app.running():
            events.append("used")

    caplog.set_level(logging.WARNING)
    async with app.running():
        await asyncio.to_thread(asyncio.run, use())
    assert events == ["startup", "startup", "used", "shutdown", "shutdown"]


async def test_what_somebody_cancels_is_started_anew(app: EchoMQ, events: list[str]) -> None:
    async with app.running():
        [task] = [task for task in asyncio.all_tasks() if task.get_name() == "echomq lifespan"]
        task.cancel()
        await asyncio.wait({task})
        async with app.running():
            assert events == ["startup", "shutdown", "startup"]
    assert events[3:] == ["shutdown"]


async def test_entering_a_worker_that_cannot_start_raises_why(app: EchoMQ) -> None:
    @app.lifespan
    async def broken(started: EchoMQ) -> AsyncIterator[None]:
        if started is app:
            raise OSError("no database")
        yield

    worker = app.worker("one")
    with pytest.raises(LifespanFailed, match="OSError: no database"):
        async with worker:
            pytest.fail("its block must not be entered")
    assert not worker.is_running


async def test_entering_a_worker_does_not_wait_for_a_slow_start_and_logs_why_it_works_no_more(
    app: EchoMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("echomq.worker._LONGEST_START", 0.01)
    goes_on = asyncio.Event()

    @app.lifespan
    async def slow(_: EchoMQ) -> AsyncIterator[None]:
        await goes_on.wait()
        if goes_on.is_set():
            raise OSError("no database")
        yield

    async def work() -> None:
        async with app.worker("one") as worker:
            goes_on.set()
            await wait_until(lambda: not worker.is_running)
            [said] = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
            assert "of queue one works no more: LifespanFailed" in said
            assert "no database" in said

    with pytest.raises(LifespanFailed, match="no database"):
        await work()


async def test_entering_a_worker_whose_server_is_away_does_not_wait_for_it() -> None:
    async with Worker("one", print, connection="redis://127.0.0.1:1/0") as worker:
        assert worker.is_running
