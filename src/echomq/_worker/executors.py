"""Where handlers run: in the event loop, or in a thread; for those in processes there is ``processes``."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FunctionType
from typing import Any, Final, TypeAlias

from echomq._worker.forked import leave_fork

loading: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("loading", default=False)
"""Whether a worker's child process imports what it is to run: nothing may begin to work by that."""

Ended: TypeAlias = "asyncio.Future[tuple[Any, BaseException | None]]"
"""A function that runs in a thread: done when it has ended, with what it returned or raised; cancelled when nobody waits for it
any more."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes an awaitable: ``async def``, also behind ``partial`` and as a ``__call__`` method."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if type(inner) is FunctionType and inner.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # as most are; this is asked for each job
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004


class Threads:
    """A pool of our own: as many threads as the worker has slots, made as they are needed.

    They are daemon threads: a handler that never ends must not keep the process from ending; its job is given back.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._waited_for: set[Ended] = set()

    def start(self, function: Callable[[], Any], told: threading.Event) -> Ended:
        """Has a thread run it, as soon as one is free; unless ``told`` is set by then, since nobody wants it any more."""
        loop = asyncio.get_running_loop()
        ended: Ended = loop.create_future()
        context = contextvars.copy_context()
        process = os.getpid()

        def finish(value: Any, error: BaseException | None) -> None:
            self._busy -= 1
            self._waited_for.discard(ended)
            if not ended.done():
                ended.set_result((value, error))

        def work() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                if told.is_set():
                    raise asyncio.CancelledError
                value = context.run(function)
            except BaseException as raised:  # also SystemExit: it is the job's outcome, not the worker's
                error = raised
            leave_fork(process, error)
            try:
                loop.call_soon_threadsafe(finish, value, error)
            except RuntimeError:
                pass  # the loop has closed: the worker is gone, and its job was given back

        if self._busy >= self._threads and self._threads < self._size:
            try:
                threading.Thread(target=self._serve, name=f"{self._name}-{self._threads + 1}", daemon=True).start()
            except RuntimeError:  # no memory, or too many threads: those that there are do the work, if there are any
                if not self._threads:
                    raise
            else:
                self._threads += 1
        self._busy += 1
        self._waited_for.add(ended)
        self._work.put(work)
        return ended

    async def wait(self, ended: Ended, told: threading.Event, timed_out: Callable[[], bool]) -> Any:
        """What the function returns or raises; does not return before it has ended, or the pool is closed.

        A thread cannot be stopped. When the caller is cancelled, ``told`` is set, and the cancellation is raised once the
        function has ended; at once if it came because the run has timed out. Then the function goes on alone.
        """
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as asked:
                if ended.done() and not ended.cancelled():
                    break  # what ended before it was told to stop has ended well
                told.set()
                if cancelled is None and timed_out():
                    raise
                cancelled = asked
        if ended.cancelled():
            raise cancelled or asyncio.CancelledError
        value, error = ended.result()
        if cancelled is not None:
            raise cancelled
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """Lets idle threads end, and waits for no function any more: the jobs have been given back."""
        for ended in list(self._waited_for):
            ended.cancel()
        for _ in range(self._threads):
            self._work.put(None)
        self._threads = 0

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            work()
