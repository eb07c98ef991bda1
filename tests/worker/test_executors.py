"""Where handlers run: what counts as async, and the pool of threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import Any

import pytest

from echomq._worker.executors import Threads, is_async
from echomq._worker.presence import plain, worker_name
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


async def test_a_function_runs_in_a_thread_with_the_callers_context(threads: Threads) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("the caller's")
    name, value = await threads.run(lambda: (threading.current_thread().name, variable.get()), threading.Event())
    assert name == "test-1"
    assert value == "the caller's"
    threads.close()


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_it_raises_is_raised(error: BaseException, threads: Threads) -> None:
    def function() -> None:
        raise error

    with pytest.raises(type(error)):
        await threads.run(function, threading.Event())
    assert await threads.run(lambda: 1, threading.Event()) == 1  # the thread goes on
    threads.close()


async def test_no_more_threads_than_its_size_and_no_more_than_are_needed(threads: Threads) -> None:
    for _ in range(5):
        await threads.run(a_function, threading.Event())
    assert threads._threads == 1
    both = threading.Barrier(2)
    await asyncio.gather(*(threads.run(lambda: both.wait(5), threading.Event()) for _ in range(2)))
    assert threads._threads == 2
    await asyncio.gather(*(threads.run(a_function, threading.Event()) for _ in range(20)))
    assert threads._threads == 2
    threads.close()


async def test_a_cancelled_caller_waits_for_the_function_however_often_it_is_cancelled(threads: Threads) -> None:
    let_go, told = threading.Event(), threading.Event()
    task = asyncio.create_task(threads.run(lambda: let_go.wait(10), told))
    await asyncio.sleep(0)
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0.005)
        assert not task.done()
    assert told.is_set()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()


async def test_what_has_ended_before_it_was_told_to_stop_keeps_its_value(threads: Threads) -> None:
    let_go = threading.Event()
    task = asyncio.create_task(threads.run(lambda: let_go.wait(10), threading.Event()))
    await wait_until(lambda: threads._waited_for)
    [ended] = threads._waited_for
    ended.add_done_callback(lambda _: task.cancel())
    let_go.set()
    assert await task is True
    threads.close()


async def test_closing_lets_waiting_callers_go_and_idle_threads_end(threads: Threads) -> None:
    let_go = threading.Event()
    task = asyncio.create_task(threads.run(lambda: let_go.wait(10), threading.Event()))
    await wait_until(lambda: threads._busy)
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
