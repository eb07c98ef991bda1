"""The kit on a real server: what was enqueued, and jobs that run when a test says so."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest

from echomq import Backoff, EchoMQ, InvalidOption, Job, JobFailed, Queue, ResultTimeout, UnsupportedServer, Worker
from echomq.testing import Kit, NotSettled, Server, inline, on_server

app = EchoMQ("redis://127.0.0.1:1")  # where nobody listens: nothing may connect to it


@app.task(queue="enrollments", attempts=3, backoff=Backoff.fixed(60))
async def enroll(learner: int, course: str = "redis") -> str:
    if learner == 13:
        raise ValueError("unlucky")
    await receipt.options(priority=3).enqueue(learner)
    return f"{learner} in {course}"


@app.task(queue="mail")
def receipt(learner: int, at: datetime | None = None) -> None: ...


@app.task(queue="audit")
async def audit(learner: int) -> None: ...


@pytest.fixture
async def kit(throw_away: Server) -> AsyncIterator[Kit]:
    async with on_server(app, throw_away, patience=5) as kit:
        yield kit


def ran(jobs: list[Job[Any]]) -> list[tuple[str, str | None, int]]:
    return [(job.name, job.state, job.attempts_made) for job in jobs]


async def test_jobs_run_when_the_test_says_so(kit: Kit) -> None:
    job = await enroll.enqueue(7)
    assert [left.id for left in kit.left()] == [job.id]
    assert ran(await kit.run_until_drained()) == [("enroll", "completed", 1), ("receipt", "completed", 1)]
    assert await job.result(timeout=1) == "7 in redis"
    assert kit.left() == []
    assert await kit.run_until_drained() == []


async def test_what_was_enqueued_is_there_whatever_became_of_it(kit: Kit) -> None:
    await enroll.enqueue(7, course="lua")
    await enroll.options(delay=5).enqueue(8)
    await kit.run_until_drained()
    assert [job.data for job in kit.enqueued(enroll)] == [{"learner": 7, "course": "lua"}, {"learner": 8}]
    assert [job.name for job in kit.enqueued(queue="mail")] == ["receipt"]
    assert [job.id for job in kit.enqueued(state="delayed")] == [job.id for job in kit.enqueued(enroll, delay=5.0)]
    [job] = kit.assert_enqueued(enroll, {"course": "lua"}, attempts=3)
    assert job.state == "completed"
    kit.assert_enqueued("receipt", count=1)
    kit.assert_enqueued(audit, count=0)


async def test_an_argument_that_the_task_does_not_have_is_refused(kit: Kit) -> None:
    with pytest.raises(InvalidOption, match=r"task 'audit' has no argument 'lerner'; its arguments are: learner\."):
        kit.assert_enqueued(audit, {"lerner": 1}, count=0)
    job = await kit.app.queue("audit").add("audit", {"lerner": 1})
    assert [found.id for found in kit.enqueued("audit", {"lerner": 1})] == [job.id]


async def test_who_waits_in_vain_hears_what_runs_jobs_here(kit: Kit) -> None:
    with pytest.raises(ResultTimeout, match=r"still waiting: .* when it awaits run_until_drained\(\)"):
        await (await audit.enqueue(1)).result(timeout=0.01)
    with pytest.raises(ResultTimeout, match=r"runs when that is over; .* when it awaits advance\("):
        await (await audit.options(delay=60).enqueue(1)).result(timeout=0.01)


async def test_a_call_that_is_not_awaited_is_no_test(throw_away: Server) -> None:
    with pytest.raises(AssertionError, match=r"called advance\(…\) and did not await it, so it did nothing"):
        async with on_server(app, throw_away) as kit:
            kit.advance(hours=3)  # type: ignore[unused-coroutine]
    with (
        pytest.raises(AssertionError, match=r"`echomq\.wait\(echomq\.run_until_drained\(…\)\)`"),
        on_server(app, throw_away) as kit,
    ):
        kit.run_until_drained()  # type: ignore[unused-coroutine]
    with pytest.raises(pytest.fail.Exception, match="told first") as raised, on_server(app, throw_away) as kit:
        pytest.fail(f"told first: {kit.advance(hours=3)}")
    assert "called advance(…)" in raised.value.__notes__[0]


async def test_a_failure_says_what_was_enqueued_instead(kit: Kit) -> None:
    with pytest.raises(AssertionError, match="Nothing was enqueued at all"):
        kit.assert_enqueued(enroll)
    await audit.enqueue(1)
    await enroll.options(priority=2).enqueue(7, course="lua")
    with pytest.raises(AssertionError) as raised:
        kit.assert_enqueued(enroll, {"learner": 8}, attempts=5)
    assert str(raised.value) == (
        "a job of task 'enroll' with learner=8 and the options attempts=5 was not enqueued.\n"
        "Enqueued was, the likeliest first:\n"
        "  enroll(learner=7, course='lua') [queue 'enrollments', prioritized, priority 2]\n"
        "      learner is 7, not 8; attempts is 3, not 5\n"
        "  audit(learner=1) [queue 'audit', waiting]"
    )
    with pytest.raises(AssertionError, match="a job of task 'enroll' was enqueued once, and should have been twice"):
        kit.assert_enqueued(enroll, count=2)
    with pytest.raises(AssertionError, match="was enqueued once, and should have been 0 times"):
        kit.assert_enqueued(enroll, count=0)
    with pytest.raises(InvalidOption, match=r"must be a task, or the name of one; write 'enroll'"):
        kit.assert_enqueued(enroll.function)  # type: ignore[call-overload]


async def test_an_option_that_no_job_has(kit: Kit) -> None:
    with pytest.raises(InvalidOption, match="tries=3: is no option of a job; there are attempts, "):
        kit.assert_enqueued(enroll, tries=3)


async def test_arguments_are_compared_as_the_job_has_them(kit: Kit) -> None:
    at = kit.now
    await receipt.enqueue(7, at)
    kit.assert_enqueued(receipt, {"at": at})


async def test_errors_are_those_of_real_workers(kit: Kit) -> None:
    job = await enroll.enqueue(13)
    assert ran(await kit.run_until_drained()) == [("enroll", "delayed", 1)]
    assert ran(await kit.run_until_drained(delayed=True)) == [("enroll", "delayed", 2), ("enroll", "failed", 3)]
    with pytest.raises(JobFailed, match="ValueError: unlucky"):
        await job.result()
    wrong = await app.queue("enrollments").add("enroll", {"learner": "x"})
    [failed] = await kit.run_until_drained()
    assert (failed.id, failed.state, failed.failure_kind) == (wrong.id, "failed", "unrecoverable")


async def test_a_seed_gives_an_order_that_can_be_repeated(kit: Kit) -> None:
    async def order(seed: int | None) -> list[tuple[str, Any]]:
        for learner in range(3):
            await receipt.enqueue(learner)
            await audit.enqueue(learner)
        return [(job.name, job.data) for job in await kit.run_until_drained(seed=seed)]

    plain = await order(None)
    assert [name for name, _ in plain] == ["audit"] * 3 + ["receipt"] * 3
    orders = [await order(seed) for seed in (1, 2, 3, 1)]
    assert orders[0] == orders[3]
    assert len({tuple(name for name, _ in one) for one in orders}) > 1
    for one in orders:  # within a queue it is the queue's
        assert [data["learner"] for name, data in one if name == "receipt"] == [0, 1, 2]


async def test_a_job_that_waits_for_another_needs_a_second_slot(throw_away: Server) -> None:
    waiting = EchoMQ("redis://127.0.0.1:1")

    @waiting.task
    async def inner() -> int:
        return 1

    @waiting.task
    async def outer() -> int:
        return await (await inner.enqueue()).result() + 1

    async with on_server(waiting, throw_away, patience=0.5) as kit:
        job = await outer.enqueue()
        with pytest.raises(NotSettled, match="one that waits for another waits for ever"):
            await kit.run_until_drained(worker={"shutdown_timeout": 0})
        await kit.run_until_drained(concurrency=2)
        assert await job.result(timeout=1) == 2


async def test_what_others_work_is_waited_for(kit: Kit) -> None:
    began = []

    async def process(job: Job[Any]) -> None:
        began.append(kit.now)

    async with (
        Queue("elsewhere", connection=kit.connection) as queue,
        Worker("elsewhere", process, connection=kit.connection) as worker,
    ):
        await worker.ready()
        due = await queue.add("thing", delay=3600)
        await kit.advance(minutes=59)
        assert began == []
        await kit.advance(minutes=2)
        assert (await due.result(timeout=5), len(began)) == (None, 1)


async def test_each_kit_is_empty_and_gives_the_app_back(throw_away: Server) -> None:
    before = app.connection
    for _ in range(2):
        async with on_server(app, throw_away) as kit:
            assert kit.enqueued() == []
            await audit.enqueue(1)
            assert len(kit.enqueued()) == 1
            with pytest.raises(InvalidOption, match="in another kit already"):
                on_server(app, throw_away).open()
    assert app.connection is before


def test_a_server_that_cannot_be_used_changes_nothing(throw_away: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_old(link: object) -> None:
        raise UnsupportedServer("too old")

    before = app.connection
    monkeypatch.setattr("echomq._testing.clock.check", too_old)
    with pytest.raises(UnsupportedServer, match="too old"), on_server(app, throw_away):
        pass
    assert app.connection is before


def test_plain_tests_wait(throw_away: Server) -> None:
    with on_server(app, throw_away) as kit:
        job = kit.wait(enroll.enqueue(7))
        kit.assert_enqueued(enroll, {"learner": 7})
        assert len(kit.wait(kit.run_until_drained())) == 2
        assert kit.wait(job.result()) == "7 in redis"
        assert asyncio.run(rested(kit)) == "9 in redis"


def test_what_a_plain_test_has_carried_out_may_look_and_not_wait(throw_away: Server) -> None:
    with on_server(app, throw_away) as kit:

        async def scenario() -> None:
            await receipt.enqueue(7, kit.now)
            kit.assert_enqueued(receipt, {"learner": 7}, count=1)
            assert len(kit.left()) == 1
            with pytest.raises(RuntimeError, match=r"wait\(…\) of the testing kit .* would wait for itself .* `await`"):
                kit.wait(kit.run_until_drained())
            with pytest.raises(RuntimeError, match=r"close\(\) .* close it afterwards"):
                throw_away.close()
            await kit.run_until_drained()
            assert kit.left() == []
            other = EchoMQ("redis://127.0.0.1:1")
            with on_server(other, throw_away) as inner:
                assert inner.enqueued() == []

        kit.wait(scenario())
        assert len(kit.enqueued()) == 1


def test_a_kit_is_not_closed_by_what_it_carries_out() -> None:
    before = app.connection
    with on_server(app) as kit:

        async def scenario() -> None:
            with pytest.raises(RuntimeError, match="close it afterwards"):
                kit.close()
            await receipt.enqueue(7)

        kit.wait(scenario())
        assert len(kit.enqueued()) == 1
    assert app.connection is before
    assert "not started" in repr(kit._server)


@pytest.mark.parametrize("make", [on_server, inline])
async def test_an_end_that_fails_gives_the_app_back(
    make: Callable[[EchoMQ, Server], Kit], throw_away: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise OSError("the end has failed")

    before, type_before = app.connection, app._queue_type
    with pytest.raises(OSError, match="the end has failed"):  # noqa: PT012
        async with make(app, throw_away):
            await receipt.enqueue(7)
            monkeypatch.setattr(app, "close", fail)
    monkeypatch.undo()
    assert (app.connection, app._queue_type) == (before, type_before)
    async with on_server(app, throw_away) as kit:
        assert kit.enqueued() == []


@pytest.mark.parametrize("make", [on_server, inline])
def test_a_close_that_fails_gives_the_app_back(make: Callable[[EchoMQ], Kit], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the close has failed")

    before, type_before = app.connection, app._queue_type
    kit = make(app).open()
    receipt.sync.enqueue(7)
    lent = kit.connection
    monkeypatch.setattr(lent, "close_everywhere", fail)
    with pytest.raises(OSError, match="the close has failed"):
        kit.close()
    assert (app.connection, app._queue_type) == (before, type_before)
    assert "not started" in repr(kit._server)  # it has ended


async def rested(kit: Kit) -> str:
    try:
        job = await enroll.enqueue(9)
        await kit.run_until_drained()
        return await job.result()
    finally:
        await kit.rest()


class WithUnittest(unittest.IsolatedAsyncioTestCase):
    """There need be no pytest."""

    async def asyncSetUp(self) -> None:
        self.kit = await self.enterAsyncContext(on_server(app))

    async def test_it(self) -> None:
        job = await enroll.enqueue(7)
        await self.kit.run_until_drained()
        self.assertEqual(await job.result(), "7 in redis")  # noqa: PT009
        self.kit.assert_enqueued(receipt, {"learner": 7})
