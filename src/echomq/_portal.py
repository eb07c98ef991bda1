"""The portal: an event loop in a thread of its own, through which plain code makes the calls of the async objects.

There is one way to the server, the async one; the portal carries a call over to it and brings its outcome back. It begins with
the first call. A forked child has none of its parent's threads: there the next call begins a portal of the child's own, and
what is left of the parent's is not touched. It ends with the interpreter, or when its ``Connection`` has nothing open there.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import selectors
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, ParamSpec, TypeVar

from echomq._redis.forks import new_recursive_lock, remember

P = ParamSpec("P")
T = TypeVar("T")

_WINDING_UP: Final = 2.0
"""Seconds that what is open has for closing, when the portal ends."""

_portals: Final[weakref.WeakSet[Portal]] = weakref.WeakSet()


class Portal:
    """The sync calls of one ``Connection``. Any thread may make them, at the same time as others.

    Args:
        where: the server, for messages.
        is_used: whether anything is open in an event loop.
        close: closes what is open in an event loop.
    """

    def __init__(
        self,
        where: str,
        is_used: Callable[[asyncio.AbstractEventLoop], bool],
        close: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]],
    ) -> None:
        self._where = where
        self._is_used = is_used
        self._close = close
        self._guard = new_recursive_lock()  # a signal handler may make a call while its thread begins one
        self._thread: _LoopThread | None = None
        self._left_behind: list[_LoopThread] = []
        _portals.add(self)

    def call(self, verb: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls an async function and waits for its outcome, which is that of this call: what it returns, or raises.

        When the wait is ended by an exception, as Ctrl-C does, the call is cancelled as an async one would be.

        Raises:
            RuntimeError: the calling thread is the portal's own, which would wait for itself; or the portal has ended meanwhile.
        """
        call: _Call[T] = _Call(lambda: verb(*args, **kwargs))
        thread = self._begin(call)
        try:
            call.ended.acquire()
        except BaseException:
            thread.give_up(call)
            raise
        if call.failed:
            self.rest()  # it may have opened nothing: a queue that is closed, a server that is not there
        return call.outcome(self._where)

    def rest(self) -> None:
        """Ends the thread if nothing is open in its event loop and no call is under way. The next call begins a new one."""
        with self._guard:
            thread = self._own_thread()
            if thread is None or thread.calls or thread.is_current or self._is_used(thread.loop):
                return
            self._thread = None
        thread.end()

    def end(self, *, with_interpreter: bool = False) -> None:
        """Ends the thread, and with it the calls that are under way when what is open has had its time for closing.

        Args:
            with_interpreter: only daemon threads are left, which end with it, too: those that wait are left waiting, and say
                nothing.
        """
        with self._guard:
            thread, self._thread = self._own_thread(), None
        if thread is not None:
            thread.is_silent = with_interpreter
            thread.end()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, call: _Call[Any]) -> _LoopThread:
        with self._guard:
            thread = self._own_thread()
            if thread is None:
                thread = self._start()
            elif thread.is_current:
                raise RuntimeError(
                    f"{self._where}: a sync call in the thread that carries out sync calls would wait for itself for ever; "
                    "a function that is called from there, such as on_progress, only notes what to do later"
                )
            thread.begin(call)
            return thread

    def _own_thread(self) -> _LoopThread | None:
        """The thread, unless it is that of a parent process."""
        thread = self._thread
        if thread is not None and thread.pid != os.getpid():
            thread.leave_behind()
            self._left_behind.append(thread)
            thread = self._thread = None
        return thread

    def _start(self) -> _LoopThread:
        thread = _LoopThread(self._ended, self._close)
        self._thread = (
            thread  # first of all: an exception in the middle of the start leaves no thread that nobody knows
        )
        try:
            thread.start()
        except BaseException:
            if not thread.is_alive():
                self._thread = None
            raise
        return thread

    def _ended(self, thread: _LoopThread) -> None:
        with self._guard:
            if self._thread is thread:
                self._thread = None


class _Call(Generic[T]):
    """One call: what to do, and what came of it."""

    __slots__ = ("_context", "_error", "_make", "_value", "ended", "task")

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._context = contextvars.copy_context()
        self._value: T
        self._error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = threading.Lock()
        self.ended.acquire()

    def start(self, thread: _LoopThread) -> None:
        """In the event loop: begins, in the context of the caller."""
        self.task = thread.loop.create_task(self._carry_out(thread), context=self._context)

    async def _carry_out(self, thread: _LoopThread) -> None:
        try:
            self._value = await self._make()
        except BaseException as error:  # also SystemExit: it is the caller's, and must not end the event loop
            self._error = error
        thread.calls.discard(self)
        if not thread.is_silent:
            self.ended.release()

    def fail(self) -> None:
        """It will not end by itself any more."""
        self._error = asyncio.CancelledError()
        self.ended.release()

    @property
    def failed(self) -> bool:
        """Whether it raised."""
        return self._error is not None

    def outcome(self, where: str) -> T:
        """What came of it."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            if isinstance(error, asyncio.CancelledError):
                raise RuntimeError(f"{where}: the connection was closed while this call was under way") from error
            raise error
        finally:
            del error  # it refers to this frame, and this frame to it


class _OwnLoop(asyncio.SelectorEventLoop):
    """An event loop that belongs to the process that made it: to a forked child it is closed.

    To really close it there would take the parent's own wake-up from the parent: the two share what the kernel keeps of it.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._pid = os.getpid()
        super().__init__(selector)

    def is_closed(self) -> bool:
        return self._pid != os.getpid() or super().is_closed()

    def call_soon_threadsafe(  # type: ignore[override]  # it passes on what it gets
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._pid != os.getpid():
            raise RuntimeError("this event loop is that of a parent process")
        return super().call_soon_threadsafe(callback, *args, context=context)


class _LoopThread(threading.Thread):
    """The thread of a portal, with its event loop."""

    def __init__(
        self,
        ended: Callable[[_LoopThread], None],
        close: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(name="echomq portal", daemon=True)
        self._tell_ended = ended
        self._close = close
        self._selector = selectors.DefaultSelector()
        self.pid = os.getpid()
        self.loop = _OwnLoop(self._selector)
        self.calls: set[_Call[Any]] = set()
        self.is_silent = False
        remember(self)

    def descriptor(self) -> int | None:
        """That of the selector, which a forked child must not change: it is the parent's too."""
        with contextlib.suppress(Exception):  # it is closed
            fileno = getattr(self._selector, "fileno", None)
            return None if fileno is None else int(fileno())
        return None

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks."""
        return threading.get_ident() == self.ident

    def begin(self, call: _Call[Any]) -> None:
        """From any thread, under the portal's lock: the event loop shall begin this call."""
        self.calls.add(call)
        self.loop.call_soon_threadsafe(call.start, self)

    def give_up(self, call: _Call[Any]) -> None:
        """From any thread: nobody waits for this call any more."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self.loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: _Call[Any]) -> None:
        self.calls.discard(call)
        if call.task is not None:
            call.task.cancel()

    def end(self) -> None:
        """From another thread: ends the event loop and waits until it has ended, or is stuck."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self.join(2 * _WINDING_UP)

    def leave_behind(self) -> None:
        """In a forked child: its tasks will never end, and that is no fault."""
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.calls.clear()

    def run(self) -> None:
        """Runs the event loop until it is stopped, and closes what is open there."""
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._wind_up())
        finally:
            self._tell_ended(self)
            for call in () if self.is_silent else list(self.calls):
                call.fail()
            self.calls.clear()
            self.loop.close()

    async def _wind_up(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WINDING_UP):
                await self._close(self.loop)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_WINDING_UP / 2)
        await self.loop.shutdown_asyncgens()


def _end_all() -> None:
    for portal in list(_portals):
        portal.end(with_interpreter=True)


atexit.register(
    _end_all
)  # here, and not with the first call: what a program registers after its imports still can make calls
