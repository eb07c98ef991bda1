"""Where handlers run: what counts as async, and the pool of threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from echomq._store.presence import plain
from echomq._worker.executors import Threads, is_async
from echomq._worker.presence import worker_name
from tests.support.wait import wait_until


async def an_async_function() -> None: ...


def a_function() -> None: ...


class Callable_:
    async def __call__(self) -> None: ...

    async def method(self) -> None: ...

    def plain(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (an_async_function, True),
        (functools.partial(an_async_function), True),
        (functools.partial(functools.partial(an_async_function)), True),
        (Callable_(), True),
        (Callable_().method, True),
        (a_function, False),
        (Callable_().plain, False),
        (functools.partial(a_function), False),
        (print, False),
        (lambda: None, False),
    ],
)
def test_what_is_async(function: Any, answer: bool) -> None:
    assert is_async(function) is answer


@pytest.fixture
def threads() -> Threads:
    return Threads(2, "test")


def until(let_go: threading.Event, begun: threading.Event) -> Callable[[], bool]:
    """A function that goes on until it is let go, and says that it has begun."""

    def function() -> bool:
        begun.set()
        return let_go.wait(10)

    return function


async def run(
    threads: Threads, function: Callable[[], Any], told: threading.Event, timed_out: Callable[[], bool] = lambda: False
) -> Any:
    return await threads.wait(threads.start(function, told), told, timed_out)


async def test_a_function_runs_in_a_thread_with_the_callers_context(threads: Threads) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("the caller's")
    name, value = await run(threads, lambda: (threading.current_thread().name, variable.get()), threading.Event())
    assert name == "test-1"
    assert value == "the caller's"
    threads.close()


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_it_raises_is_raised(error: BaseException, threads: Threads) -> None:
    def function() -> None:
        raise error

    with pytest.raises(type(error)):
        await run(threads, function, threading.Event())
    assert await run(threads, lambda: 1, threading.Event()) == 1  # the thread goes on
    threads.close()


async def test_no_more_threads_than_its_size_and_no_more_than_are_needed(threads: Threads) -> None:
    for _ in range(5):
        await run(threads, a_function, threading.Event())
    assert threads._threads == 1
    both = threading.Barrier(2)
    await asyncio.gather(*(run(threads, lambda: both.wait(5), threading.Event()) for _ in range(2)))
    assert threads._threads == 2
    await asyncio.gather(*(run(threads, a_function, threading.Event()) for _ in range(20)))
    assert threads._threads == 2
    threads.close()


async def test_a_cancelled_caller_waits_for_the_function_however_often_it_is_cancelled(threads: Threads) -> None:
    begun, let_go, told = threading.Event(), threading.Event(), threading.Event()
    task = asyncio.create_task(run(threads, until(let_go, begun), told))
    await wait_until(begun.is_set)
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0.005)
        assert not task.done()
    assert told.is_set()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()


async def test_past_a_timeout_the_caller_is_let_go_and_the_thread_stays_busy(threads: Threads) -> None:
    let_go, told = threading.Event(), threading.Event()
    begun = threading.Event()
    ended = threads.start(until(let_go, begun), told)
    await wait_until(begun.is_set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01) as deadline:
            await threads.wait(ended, told, deadline.expired)
    assert told.is_set()
    assert not ended.done()
    assert threads._busy == 1
    assert await run(threads, lambda: threading.current_thread().name, threading.Event()) == "test-2"
    let_go.set()
    assert await ended == (True, None)
    assert threads._busy == 0
    threads.close()


async def test_what_was_told_to_stop_before_a_thread_was_free_does_not_begin() -> None:
    threads, let_go, told, calls = Threads(1, "test"), threading.Event(), threading.Event(), list[str]()
    first = threads.start(lambda: let_go.wait(10), threading.Event())
    second = threads.start(lambda: calls.append("second"), told)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01) as deadline:
            await threads.wait(second, told, deadline.expired)
    let_go.set()
    assert await first == (True, None)
    assert isinstance((await second)[1], asyncio.CancelledError)
    assert calls == []
    threads.close()


async def test_a_caller_that_was_cancelled_before_the_timeout_waits_on(threads: Threads) -> None:
    begun, let_go, told, late = threading.Event(), threading.Event(), threading.Event(), threading.Event()
    task = asyncio.create_task(run(threads, until(let_go, begun), told, late.is_set))
    await wait_until(begun.is_set)
    task.cancel()
    await wait_until(told.is_set)
    late.set()
    task.cancel()
    await asyncio.sleep(0.005)
    assert not task.done()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()


async def test_what_has_ended_before_it_was_told_to_stop_keeps_its_value(threads: Threads) -> None:
    let_go = threading.Event()
    task = asyncio.create_task(run(threads, lambda: let_go.wait(10), threading.Event()))
    await wait_until(lambda: threads._waited_for)
    [ended] = threads._waited_for
    ended.add_done_callback(lambda _: task.cancel())
    let_go.set()
    assert await task is True
    threads.close()


async def test_closing_lets_waiting_callers_go_and_idle_threads_end(threads: Threads) -> None:
    begun, let_go = threading.Event(), threading.Event()
    task = asyncio.create_task(run(threads, until(let_go, begun), threading.Event()))
    await wait_until(begun.is_set)
    threads.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    let_go.set()
    await wait_until(lambda: not any(thread.name.startswith("test-") for thread in threading.enumerate()))


def test_names_tell_workers_apart_and_are_what_a_server_takes() -> None:
    first, second = worker_name(), worker_name()
    assert first != second
    assert plain("my worker\nüber 1") == "my_worker__ber_1"
    assert plain(first) == first
