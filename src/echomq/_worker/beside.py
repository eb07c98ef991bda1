"""User code that stands beside the jobs: hooks, lifespans, what middleware does after a run. An error of its own is only its own.

``except Exception`` is not enough for that: code that waits for a task which it has cancelled raises ``CancelledError``, and
``sys.exit`` raises ``SystemExit``. Neither is meant for the worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from echomq._worker.forked import leave_fork

T = TypeVar("T")


def called(function: Callable[..., T], *args: object) -> tuple[T | None, BaseException | None]:
    """What a plain function returns, and what it raises. Only Ctrl-C goes through."""
    process = os.getpid()
    value: T | None = None
    error: BaseException | None = None
    try:
        value = function(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        error = raised
    leave_fork(process, error)
    return value, error


async def error_of(function: Callable[..., Awaitable[object]], *args: object) -> BaseException | None:
    """Calls an ``async`` function, and gives what it raised of its own.

    What was sent to the task that runs it goes through: see ``is_its_own``.
    """
    process, before = os.getpid(), cancellations()
    error: BaseException | None = None
    try:
        await function(*args)
    except BaseException as raised:
        if not is_its_own(raised, before):
            raise
        error = raised
    leave_fork(process, error)
    return error


def cancellations() -> int:
    """How often somebody has cancelled the task that runs here."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def is_its_own(error: BaseException, before: int) -> bool:
    """Whether the code has raised it; not the one who cancels its task, Ctrl-C, or the end of the event loop.

    Args:
        error: what came out of it.
        before: ``cancellations()`` when it began.
    """
    if isinstance(error, asyncio.CancelledError):
        return cancellations() <= before
    if isinstance(error, GeneratorExit):
        return loop_runs()
    return not isinstance(error, KeyboardInterrupt)


def loop_runs() -> bool:
    """Whether an event loop runs here. Without one, ``GeneratorExit`` says that it is gone, and nobody has raised it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
