"""What stands around the jobs of an app's tasks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from echomq import (
    EchoMQ,
    Inject,
    InvalidOption,
    Job,
    JobCancelled,
    JobFailed,
    JobSpec,
    Middleware,
    RetryLater,
    RunOutcome,
    Unrecoverable,
    current_job,
)


class Tells(Middleware):
    """Writes down what it is called for."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    def on_enqueue(self, spec: JobSpec) -> JobSpec:
        self.events.append(f"{self.name} on_enqueue")
        return spec

    async def around(self, job: Job[Any], call_next: Any) -> Any:
        assert current_job() is job
        self.events.append(f"{self.name} around {job.name}")
        try:
            return await call_next()
        finally:
            self.events.append(f"{self.name} left")

    async def before(self, job: Job[Any]) -> None:
        self.events.append(f"{self.name} before")

    async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
        self.events.append(f"{self.name} after: {outcome.result} {outcome.error!r}")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_it_stands_around_every_job_in_order(url: str, kind: str) -> None:
    events: list[str] = []
    async with EchoMQ(url, middleware=[Tells("outer", events), Tells("inner", events)]) as app:

        @app.provide
        def word() -> Iterator[str]:
            events.append("word")
            yield "word"
            events.append("word back")

        def enroll(learner: int, word: str = Inject()) -> int:
            events.append(f"enroll in {'loop' if threading.current_thread() is threading.main_thread() else 'thread'}")
            return learner

        async def enroll_async(learner: int, word: str = Inject()) -> int:
            return enroll(learner, word)

        task = app.task(name="enroll", queue="seats")(enroll if kind == "plain" else enroll_async)
        async with app.worker("seats"):
            assert await (await task.enqueue(7)).result(timeout=10) == 7
    assert events == [
        *("inner on_enqueue", "outer on_enqueue"),
        *("outer before", "outer around enroll", "inner before", "inner around enroll"),
        *("word", f"enroll in {'thread' if kind == 'plain' else 'loop'}", "word back"),
        *("inner left", "inner after: 7 None", "outer left", "outer after: 7 None"),
    ]


async def test_around_may_change_the_result_hide_an_error_and_call_again(url: str) -> None:
    class Persistent(Middleware):
        async def around(self, job: Job[Any], call_next: Any) -> Any:
            try:
                return f"{await call_next()}!"
            except ConnectionError:
                return await call_next()
            except KeyError:
                return None

    tries: list[int] = []
    async with EchoMQ(url, middleware=[Persistent()]) as app:

        @app.task(queue="seats")
        def flaky() -> str:
            tries.append(1)
            if len(tries) < 2:
                raise ConnectionError
            return "done"

        @app.task(queue="seats")
        async def wrong() -> object:
            raise KeyError("course")

        async with app.worker("seats"):
            assert await (await flaky.enqueue()).result(timeout=10) == "done"
            assert await (await flaky.enqueue()).result(timeout=10) == "done!"
            assert await (await wrong.enqueue()).result(timeout=10) is None


async def test_what_it_raises_is_as_if_the_function_had_raised_it(url: str) -> None:
    ran: list[str] = []

    class Refuses(Middleware):
        async def before(self, job: Job[Any]) -> None:
            if job.name == "pay":
                raise Unrecoverable("the shop is closed")
            if job.attempts_started == 1:
                raise RetryLater(0)

    async with EchoMQ(url, middleware=[Refuses()]) as app:

        @app.task(queue="shop", attempts=3)
        async def pay() -> None:
            ran.append("pay")

        @app.task(queue="shop")
        async def pack() -> None:
            ran.append("pack")

        async with app.worker("shop"):
            with pytest.raises(JobFailed, match="the shop is closed"):
                await (await pay.enqueue()).result(timeout=10)
            await (await pack.enqueue()).result(timeout=10)
    assert ran == ["pack"]


async def test_an_error_in_after_is_logged_and_changes_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Middleware):
        async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
            raise OSError("disk full")

    async with EchoMQ(url, middleware=[Breaks()]) as app:

        @app.task(queue="seats")
        async def enroll() -> int:
            return 7

        async with app.worker("seats"):
            job = await enroll.enqueue()
            assert await job.result(timeout=10) == 7
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"job {job.id} (enroll) of queue seats: the middleware" in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.parametrize("how", ["cancelled", "exit"])
async def test_whatever_after_raises_the_work_is_not_done_again(
    url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    class Breaks(Middleware):
        async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
            if how == "exit":
                raise SystemExit(3)
            ping = asyncio.create_task(asyncio.sleep(3600))
            ping.cancel()
            await ping

    async with EchoMQ(url, middleware=[Breaks()]) as app:

        @app.task(queue="shop", attempts=2)
        async def pay() -> int:
            runs.append(1)
            return 7

        async with app.worker("shop"):
            assert await (await pay.enqueue()).result(timeout=10) == 7
    assert runs == [1]
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "has raised after its run" in record.getMessage()


async def test_a_job_that_is_cancelled_while_after_runs_ends_as_cancelled(url: str) -> None:
    begun = asyncio.Event()
    ended: list[BaseException] = []

    class Slow(Middleware):
        async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError as error:
                ended.append(error)
                raise

    async with EchoMQ(url, middleware=[Slow()]) as app:

        @app.task(queue="shop")
        async def pay() -> int:
            return 7

        async with app.worker("shop"):
            job = await pay.enqueue()
            await asyncio.wait_for(begun.wait(), 10)
            await job.cancel("changed her mind")
            with pytest.raises(JobCancelled, match="changed her mind"):
                await job.result(timeout=10)
    assert len(ended) == 1


async def test_its_time_counts_towards_the_timeout_and_it_hears_of_the_end(url: str) -> None:
    events: list[str] = []

    class Slow(Tells):
        async def before(self, job: Job[Any]) -> None:
            await asyncio.sleep(3600)

    async with EchoMQ(url, middleware=[Tells("outer", events), Slow("slow", events)]) as app:

        @app.task(queue="seats", timeout=0.05)
        async def enroll() -> None: ...

        async with app.worker("seats"):
            with pytest.raises(JobFailed, match="longer than its timeout"):
                await (await enroll.enqueue()).result(timeout=10)
    assert events[-1] == "outer after: None CancelledError()"


async def test_on_enqueue_may_change_every_job_that_a_task_makes(url: str) -> None:
    class Urgent(Middleware):
        def on_enqueue(self, spec: JobSpec) -> JobSpec:
            if spec.name == "refused":
                raise PermissionError("not today")
            return msgspec.structs.replace(spec, priority=spec.priority or 5)

    async with EchoMQ(url, middleware=[Urgent()]) as app:

        @app.task(queue="seats")
        async def enroll(learner: int) -> None: ...

        @app.task(queue="seats")
        async def refused() -> None: ...

        jobs = [await enroll.enqueue(7), await enroll.options(priority=2).enqueue(8)]
        jobs += await enroll.map([9])
        jobs += await app.enqueue_all([enroll.spec(10)])
        assert [job.priority for job in jobs] == [5, 2, 5, 5]
        with pytest.raises(PermissionError, match="not today"):
            await refused.enqueue()


def test_a_method_that_would_fail_every_job_is_refused(url: str) -> None:
    class Plain(Middleware):
        def before(self, job: Job[Any]) -> None:  # type: ignore[override]
            """Its author forgot that it is awaited."""

    class Waiting(Middleware):
        async def on_enqueue(self, spec: JobSpec) -> JobSpec:  # type: ignore[override]
            return spec

    with pytest.raises(InvalidOption, match=r"Plain\.before must be async: write `async def before`"):
        EchoMQ(url, middleware=[Plain()])
    with pytest.raises(InvalidOption, match=r"Waiting\.on_enqueue must not be async: write `def on_enqueue`"):
        EchoMQ(url, middleware=[Waiting()])


def test_what_is_no_middleware_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match=r"must be an object of a Middleware; write Middleware\(\)"):
        EchoMQ(url, middleware=[Middleware])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="make it a subclass of Middleware"):
        EchoMQ(url, middleware=[7])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match="must be a list of Middleware objects"):
        EchoMQ(url, middleware=7)  # type: ignore[arg-type]

    class Wrong(Middleware):
        def on_enqueue(self, spec: JobSpec) -> JobSpec:
            return None  # type: ignore[return-value]

    app = EchoMQ(url, middleware=[Wrong()])
    with pytest.raises(InvalidOption, match="on_enqueue of a middleware gave None: must give a JobSpec"):
        app.task(name="any")(lambda: None).spec()
