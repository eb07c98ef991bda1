"""However a handler ends, that is its job's outcome, stored once; the worker goes on."""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from echomq import (
    Backoff,
    Call,
    InvalidOption,
    Job,
    JobFailed,
    ProcessPool,
    Queue,
    ResultUnavailable,
    RetryLater,
    Unrecoverable,
    Worker,
)
from echomq._redis import wire
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until
from tests.worker import process_tasks


class BadStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BadRepr(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class ExitsWhenRead(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Disguised(Exception):
    @property  # type: ignore[misc]  # that it may not be written either
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class NeedsArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class ForgetfulLater(RetryLater):
    def __init__(self) -> None:
        pass


class Odd(BaseException):
    pass


def in_a_cycle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def deep() -> Exception:
    error: Exception = ValueError("innermost")
    for number in range(300):
        outer = ValueError(number)
        outer.__cause__ = error
        error = outer
    return error


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "BaseException": lambda: BaseException("bare"),
    "Odd": Odd,
    "StopIteration": lambda: StopIteration(4),
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "BadStr": BadStr,
    "BadRepr": BadRepr,
    "NotText": NotText,
    "ExitsWhenRead": ExitsWhenRead,
    "Disguised": Disguised,
    "NeedsArguments": lambda: NeedsArguments(1, 2),
    "a subclass of RetryLater that forgot its duty": ForgetfulLater,
    "RetryLater for no time": lambda: RetryLater(float("nan")),
    "a cycle": in_a_cycle,
    "a long chain": deep,
    "a group": lambda: ExceptionGroup("several", [ValueError(1), ExceptionGroup("in it", [BadStr(), in_a_cycle()])]),
    "a base group": lambda: BaseExceptionGroup("several", [SystemExit(1), KeyboardInterrupt()]),
    "ten megabytes": lambda: ValueError("x" * 10_000_000),
    "lone surrogates": lambda: ValueError("half \ud83d of \x00 it"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_whatever_an_awaited_future_raises_fails_its_job_and_nothing_else(name: str, server: Server) -> None:
    async def handler(job: Job[Any]) -> str:
        if job.name == "well":
            return "well"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        error = HOSTILE[name]()
        if name == "StopIteration":  # no future takes it
            raise error
        loop.call_soon(future.set_exception, error)
        return await future

    async with Queue("q", connection=server.url) as queue, Worker("q", handler, connection=server.url) as worker:
        bad = await queue.add("bad", {})
        with pytest.raises(JobFailed):
            await bad.result(timeout=10)
        assert await (await queue.add("well", {})).result(timeout=10) == "well"
        await wait_until(lambda: worker.stats.running == 0)


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_whatever_a_handler_raises_fails_its_job_and_nothing_else(name: str, kind: str, server: Server) -> None:
    def handler(job: Job[Any]) -> str:
        if job.name == "well":
            return "well"
        raise HOSTILE[name]()

    async def async_handler(job: Job[Any]) -> str:
        return handler(job)

    async with Queue("q", connection=server.url) as queue:
        processor = handler if kind == "thread" else async_handler
        async with Worker("q", processor, connection=server.url):
            bad = await queue.add("bad", {}, attempts=2)
            with pytest.raises(JobFailed):
                await bad.result(timeout=10)
            well = await queue.add("well", {})
            assert await well.result(timeout=10) == "well"
        read = await queue.get_job(bad.id)
    assert read is not None
    assert read.failed_reason
    assert len(read.failed_reason) <= 64 * 1024
    assert (read.attempts_made, read.attempts_started) in ((2, 2), (1, 1))
    with server.client() as client:
        assert not audit(client, "emq", "q")


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_an_error_that_cannot_be_read_costs_one_attempt(kind: str, server: Server) -> None:
    async def fail(name: str) -> None:
        process_tasks.fail(name)

    def route(job: Job[Any]) -> Call:
        function: Callable[..., Any] = fail if kind == "async" else process_tasks.fail
        return Call(functools.partial(function, "attribute"), process=kind == "process")

    async with Queue("q", connection=server.url) as queue:
        async with Worker("q", route=route, connection=server.url, processes=ProcessPool(size=1)):
            bad = await queue.add("bad", {}, attempts=3)
            with pytest.raises(JobFailed, match=r"failed: the error that it raised cannot be read"):
                await bad.result(timeout=30)
        read = await queue.get_job(bad.id)
    assert read is not None
    assert (read.attempts_made, read.failure_kind, len(read.stacktrace)) == (3, "unknown", 3)


def has_no_json() -> Any:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


RESULTS: dict[str, Callable[[], Any]] = {
    "NaN": lambda: {"a": [1, float("nan")]},
    "an object": object,
    "a cycle": has_no_json,
    "a function": lambda: print,
}


@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_without_json_form_completes_once_and_says_so(
    name: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def handler(job: Job[Any]) -> Any:
        nonlocal runs
        runs += 1
        return RESULTS[name]()

    async with Queue("q", connection=server.url) as queue, Worker("q", handler, connection=server.url):
        job = await queue.add("work", {}, attempts=3)
        with pytest.raises(ResultUnavailable, match="result"):
            await job.result(timeout=10)
        read = await job.refresh()
    assert read is not None
    assert (read.state, read.return_value) == ("completed", None)
    assert "result" in (read.result_error or "")
    [said] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said == f"job {job.id} (work) of queue q completes without its result: {read.result_error}"
    assert runs == 1


async def test_what_has_a_json_form_comes_back(server: Server) -> None:
    results = [None, 0, 2**70, "half \ud83d", {"ü": [1.5, True]}, (1, 2), datetime.date(2026, 11, 29)]

    async def handler(job: Job[Any]) -> Any:
        return results[job.data["which"]]

    async with Queue("q", connection=server.url) as queue, Worker("q", handler, connection=server.url):
        for which, result in enumerate(results):
            job = await queue.add("work", {"which": which})
            expected = json.loads(json.dumps(result, default=str))
            assert await job.result(timeout=10) == expected


async def test_each_run_leaves_its_trace_and_unrecoverable_ends_it(server: Server) -> None:
    async def handler(job: Job[Any]) -> None:
        if job.attempts_made == 2:
            raise Unrecoverable("no use")
        raise ValueError(f"run {job.attempts_made}")

    async with Queue("q", connection=server.url) as queue, Worker("q", handler, connection=server.url):
        job = await queue.add("work", {}, attempts=10, backoff=Backoff.fixed(0.01))
        with pytest.raises(JobFailed, match="no use"):
            await job.result(timeout=10)
        read = await job.refresh()
    assert read is not None
    assert read.attempts_made == 3
    assert [trace.strip().splitlines()[-1] for trace in read.stacktrace[:2]] == [
        "ValueError: run 0",
        "ValueError: run 1",
    ]


async def test_a_job_whose_options_cannot_be_read_fails_and_blocks_nothing(server: Server) -> None:
    async def handler(job: Job[Any]) -> str:
        return "ran"

    async with Queue("q", connection=server.url) as queue:
        bad = await queue.add("work", {})
        server.cli("HSET", f"emq:{{q}}:{bad.id}", "opts", "no json")
        good = await queue.add("work", {})
        async with Worker("q", handler, connection=server.url):
            assert await good.result(timeout=10) == "ran"
            with pytest.raises(JobFailed, match="opts"):
                await bad.result(timeout=10)


async def test_an_id_without_a_job_is_dropped_and_does_not_delay_the_next(server: Server) -> None:
    async def handler(job: Job[Any]) -> str:
        return "ran"

    async with Queue("q", connection=server.url) as queue, Worker("q", handler, connection=server.url) as worker:
        await worker.ready()
        with server.client() as client, client.pipeline(transaction=True) as together:
            together.lpush("emq:{q}:wait", "ghost")
            together.execute()
        job = await queue.add("work", {})
        assert await job.result(timeout=2) == "ran"
        assert await queue.counts("waiting", "active") == {"waiting": 0, "active": 0}


async def test_a_handler_that_swallows_its_cancellation_has_completed(server: Server) -> None:
    started = asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "tidied up"
        return "slept"

    async with Queue("q", connection=server.url) as queue:
        job = await queue.add("work", {})
        async with Worker("q", handler, connection=server.url, shutdown_timeout=0):
            await started.wait()
        assert await job.result(timeout=5) == "tidied up"


async def test_a_subclass_of_timeout_is_told_from_a_timeout(server: Server) -> None:
    async def handler(job: Job[Any]) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    async with Queue("q", connection=server.url) as queue, Worker("q", handler, connection=server.url):
        job = await queue.add("work", {})
        with pytest.raises(JobFailed, match="TimeoutError"):
            await job.result(timeout=10)


async def test_a_result_that_is_more_than_a_server_takes_holds_nobody_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_MAX_ARGUMENT_BYTES", 100_000)
    runs: list[str] = []
    together = asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        runs.append(job.id)
        if len(runs) == 10:
            together.set()
        await together.wait()
        return "x" * (200_000 if job.name == "huge" else 10)

    async with Queue("q", connection=server.url) as queue:
        async with Worker("q", handler, connection=server.url, concurrency=20):
            jobs = [await queue.add("huge" if number % 3 == 0 else "small", {}) for number in range(10)]
            for number, job in enumerate(jobs):
                if number % 3 == 0:
                    with pytest.raises(ResultUnavailable, match="longer than 100000 bytes"):
                        await job.result(timeout=20)
                else:
                    assert await job.result(timeout=20) == "x" * 10
    assert len(runs) == 10


class TakesTheJob:
    def __call__(self, job: Job[Any]) -> None: ...


@pytest.mark.parametrize(
    "processor",
    [print, str, TakesTheJob(), functools.partial(print, "job:"), lambda job, *more, **named: None],
)
def test_a_processor_takes_the_job(url: str, processor: Any) -> None:
    Worker("a", processor, connection=url)


@pytest.mark.parametrize("processor", [lambda: 1, lambda job, other: 1, lambda *, job: 1])
def test_a_processor_that_cannot_take_the_job_is_refused(url: str, processor: Any) -> None:
    with pytest.raises(InvalidOption, match="must take the job as its only argument, as in `async def process"):
        Worker("a", processor, connection=url)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_failures_are_logged_with_queue_time_and_the_users_own_lines(
    url: str, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    def sick() -> None:
        raise ValueError("broken")

    async def process(job: Job[Any]) -> None:
        sick()

    def process_plainly(job: Job[Any]) -> None:
        sick()

    handler: Callable[[Job[Any]], Any] = process if kind == "async" else process_plainly
    async with Queue("clinic", connection=url) as queue, Worker("clinic", handler, connection=url):
        jobs = [
            await queue.add("x", attempts=1),
            await queue.add("x", attempts=2),
            await queue.add("x", attempts=2, backoff=0.05),
        ]
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(timeout=10)
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [
        "job 1 (x) of queue clinic failed for good after 1 run",
        "job 2 (x) of queue clinic failed for good after 2 runs",
        "job 2 (x) of queue clinic failed in run 1; it runs again at once",
        "job 3 (x) of queue clinic failed for good after 2 runs",
        "job 3 (x) of queue clinic failed in run 1; it runs again in 0.05 s",
    ]
    for record in caplog.records:
        assert record.exc_info is not None
        assert record.exc_info[2] is not None
        assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == [handler.__name__, "sick"]


def long() -> Exception:
    return ValueError("x" * 10_000_000)


def from_a_long_one() -> Exception:
    error = RuntimeError("short")
    error.__cause__ = long()
    return error


LONG: dict[str, Callable[[], Exception]] = {
    "alone": long,
    "behind another": from_a_long_one,
    "in a group": lambda: ExceptionGroup("several", [ValueError(1), from_a_long_one()]),
}


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("name", LONG)
async def test_of_an_error_that_says_very_much_the_log_has_as_much_as_the_job(
    url: str, caplog: pytest.LogCaptureFixture, kind: str, name: str
) -> None:
    def plain(job: Job[Any]) -> None:
        raise LONG[name]()

    async def process(job: Job[Any]) -> None:
        plain(job)

    handler: Callable[[Job[Any]], Any] = process if kind == "async" else plain
    async with Queue("clinic", connection=url) as queue, Worker("clinic", handler, connection=url):
        job = await queue.add("x", attempts=2)
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
    first, last = caplog.records
    assert first.getMessage().startswith("job 1 (x) of queue clinic failed in run 1; it runs again at once\n")
    assert last.getMessage().startswith("job 1 (x) of queue clinic failed for good after 2 runs\n")
    for record in caplog.records:
        told = logging.Formatter().format(record)
        assert "xxxxxxxxxx" in told
        assert len(told) < 65 * 1024


async def test_a_job_that_has_stalled_too_often_is_logged_when_it_fails(
    server: Server, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Queue("clinic", connection=url) as queue:
        job = await queue.add("x")
        with server.client() as client:
            client.hset(f"emq:{{clinic}}:{job.id}", "defa", "job stalled more than allowable limit")
        async with Worker("clinic", print, connection=url):
            with pytest.raises(JobFailed, match="job stalled more than allowable limit"):
                await job.result(timeout=10)
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == "job 1 (x) of queue clinic failed for good: job stalled more than allowable limit"
    assert (vars(record)["queue"], vars(record)["job_id"]) == ("clinic", "1")
