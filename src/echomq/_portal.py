"""The portal: an event loop in a thread of its own, through which plain code makes the calls of the async objects.

There is one way to the server, the async one; the portal carries a call over to it and brings its outcome back. It begins with
the first call. A forked child has none of its parent's threads: there the next call begins a portal of the child's own, and
what is left of the parent's is not touched. It ends with the interpreter, or when its ``Connection`` has nothing open there.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import contextvars
import inspect
import os
import selectors
import threading
import time
import weakref
from collections import deque
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
        while True:
            try:
                thread = self._hand_over(call)
                call.ended.acquire()
            except BaseException:
                call.is_given_up = True  # first of all, and no call: nothing can come between
                if call.thread is not None:
                    call.thread.give_up(call)
                raise
            if not call.is_turned_away:
                break
            call.is_turned_away = False
        if call.is_last:
            thread.wait_until_ended()
        return call.outcome(self._where)

    def rest(self) -> None:
        """Ends the thread if nothing is open in its event loop and no call is under way. The next call begins a new one.

        After each call the thread looks for itself; this is for what was closed without one.
        """
        thread = self._own_thread()
        if thread is not None and not (thread.is_ending or thread.is_current or thread.is_used):
            self.call(_nothing)

    def end(self, *, with_interpreter: bool = False) -> None:
        """Ends the thread, and with it the calls that are under way when what is open has had its time for closing.

        Args:
            with_interpreter: only daemon threads are left, which end with it, too: those that wait are left waiting, and say
                nothing.
        """
        thread = self._own_thread()
        if thread is not None:
            thread.is_silent = with_interpreter
            thread.must_end = True
            thread.wake()
            thread.wait_until_ended()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _hand_over(self, call: _Call[Any]) -> _LoopThread:
        while True:
            with self._guard:
                thread = self._serving()
            if thread.is_current:
                raise RuntimeError(
                    f"{self._where}: a sync call in the thread that carries out sync calls would wait for itself for ever; "
                    "a function that is called from there, such as on_progress, only notes what to do later"
                )
            call.thread = thread
            if thread.take_over(call):
                return thread

    def _serving(self) -> _LoopThread:
        """Under the lock: the thread that takes calls; it need not have begun yet."""
        found = self._own_thread()
        while found is None or found.is_ending:
            made = _LoopThread(self._is_used, self._close)
            # A signal handler may have made one meanwhile. There is no call between this look and what follows from it.
            if self._thread is found:
                self._thread = made
            found = self._thread
        return found

    def _own_thread(self) -> _LoopThread | None:
        """The thread, unless it is that of a parent process."""
        thread = self._thread
        if thread is not None and thread.pid != os.getpid():
            with self._guard:
                thread.leave_behind()
                self._left_behind.append(thread)
                if self._thread is thread:
                    self._thread = None
                thread = self._thread
        return thread


async def _nothing() -> None:
    """A call for what follows each call."""


class _Call(Generic[T]):
    """One call: what to do, and what came of it.

    Attributes:
        ended: free when there is an outcome, or it was turned away.
        is_given_up: nobody waits for it any more.
        is_turned_away: it came when the thread was about to end, and has not begun: it is to be handed over again.
        is_last: the thread ends after it, as nothing is open there.
    """

    __slots__ = (
        "_context",
        "_error",
        "_make",
        "_value",
        "ended",
        "is_given_up",
        "is_last",
        "is_turned_away",
        "task",
        "thread",
    )

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._context = contextvars.copy_context()
        self._value: T
        self._error: BaseException | None = None
        self.thread: _LoopThread | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_given_up = False
        self.is_turned_away = False
        self.is_last = False
        self.ended = threading.Lock()
        self.ended.acquire()

    def start(self, thread: _LoopThread, loop: asyncio.AbstractEventLoop) -> None:
        """In the event loop: begins, in the context of the caller."""
        self.task = loop.create_task(self._carry_out(thread), context=self._context)

    async def _carry_out(self, thread: _LoopThread) -> None:
        try:
            self._value = await self._make()
        except BaseException as error:  # also SystemExit: it is the caller's, and must not end the event loop
            self._error = error
        thread.calls.discard(self)
        self.is_last = thread.ends_if_unused()
        if not thread.is_silent:
            self.ended.release()

    def fail(self, error: BaseException) -> None:
        """It will not end by itself any more."""
        self._error = error
        self.ended.release()

    def turn_away(self) -> None:
        """It has not begun, and another thread is to carry it out."""
        self.is_turned_away = True
        self.ended.release()

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
    """The thread of a portal, with its event loop.

    An exception of a signal handler, such as Ctrl-C's, can come to a calling thread between any two steps, and a signal handler
    can make a call of its own there. No signal ever comes to this thread. So it is this one that makes, decides and ends; a
    caller only puts something down in one step (into a deque, or an attribute) and wakes it, and what a caller has left
    undone does harm to nobody. For the same reason no caller waits for this thread in a lock of this thread's, and none uses
    ``Thread.start`` or ``Thread.join``, which do not stand being interrupted.

    Attributes:
        calls: those under way.
        is_ending: it takes no further call.
        is_silent: those that wait for calls are left waiting.
        must_end: somebody asked for its end.
    """

    def __init__(
        self,
        is_used: Callable[[asyncio.AbstractEventLoop], bool],
        close: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(name="echomq portal", daemon=True)
        self._is_used = is_used
        self._close = close
        self.pid = os.getpid()
        self._handed_over: deque[_Call[Any]] = deque()
        self._given_up: deque[_Call[Any]] = deque()
        self._watching: deque[threading.Lock] = deque()
        self._starting = threading.Lock()  # only _launch takes it
        self._launcher: int | None = None
        self._selector: selectors.BaseSelector | None = None
        self._loop: _OwnLoop | None = None
        self._is_launched = False
        self._takes_nothing = False
        self._has_ended = False
        self.calls: set[_Call[Any]] = set()
        self.is_ending = False
        self.is_silent = False
        self.must_end = False

    def descriptors(self) -> list[int]:
        """That of the selector, which a forked child must not change: it is the parent's too."""
        with contextlib.suppress(Exception):  # it is closed
            fileno = getattr(self._selector, "fileno", None)
            return [] if fileno is None else [int(fileno())]
        return []

    # -- what callers do -----------------------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that asks, or the one that begins it."""
        return threading.get_ident() in (self.ident, self._launcher)

    @property
    def is_used(self) -> bool:
        """Whether anything is open in its event loop."""
        return self._loop is not None and self._is_used(self._loop)

    def take_over(self, call: _Call[Any]) -> bool:
        """The event loop shall begin this call. False if it has ended, and another thread must."""
        self._handed_over.append(call)
        self.wake()
        if self._takes_nothing:  # it said so before it looked for the last time: one of the two sees the other
            try:
                self._handed_over.remove(call)
            except ValueError:  # it did find the call
                return True
            return False
        return True

    def wake(self) -> None:
        """It shall look at what was put down; begins it, if it has not begun."""
        loop = self._loop
        if loop is None:
            if not self._takes_nothing:
                _thread.start_new_thread(self._launch, ())  # one step; that twice begin it is no harm
            return
        try:
            loop.call_soon_threadsafe(self._look)
        except RuntimeError:
            if not loop.is_closed():
                raise  # the error of a signal handler

    def give_up(self, call: _Call[Any]) -> None:
        """Nobody waits for this call any more."""
        self._given_up.append(call)
        if self._loop is not None:
            self.wake()

    def wait_until_ended(self) -> None:
        """Waits until it has ended, or is stuck."""
        if self.is_current:
            return
        watching = threading.Lock()
        watching.acquire()
        self._watching.append(watching)
        if not self._has_ended:
            watching.acquire(timeout=2 * _WINDING_UP)

    def leave_behind(self) -> None:
        """In a forked child: its tasks will never end, and that is no fault."""
        if self._loop is not None:
            for task in asyncio.all_tasks(self._loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.calls.clear()

    # -- what no signal interrupts -------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """In a thread for this alone: begins the thread, unless that is done."""
        with self._starting:
            if self._is_launched:
                return
            self._launcher = threading.get_ident()
            try:
                self.start()
            except RuntimeError as error:  # the system has no more threads: the next call may try again
                self._refuse(error)
            else:
                self._is_launched = True
            finally:
                self._launcher = None

    def run(self) -> None:
        """Runs the event loop until it is stopped, and closes what is open there."""
        try:
            self._selector = selectors.DefaultSelector()
            loop = _OwnLoop(self._selector)
        except BaseException as error:
            self.is_ending = self._takes_nothing = True
            self._refuse(error)
            self._tell_ended()
            return
        remember(self)
        self._loop = loop
        try:
            loop.call_soon(self._look)
            loop.run_forever()
            self.is_ending = True
            loop.run_until_complete(self._wind_up(loop))
        finally:
            self.is_ending = True
            if not self.is_silent:
                for call in list(self.calls):
                    call.fail(asyncio.CancelledError())
            self.calls.clear()
            loop.close()
            self._takes_nothing = True
            self._turn_away()
            self._tell_ended()

    def ends_if_unused(self) -> bool:
        """In the event loop: it ends if nothing is open and no call under way."""
        assert self._loop is not None
        if self.is_ending or self.calls or self._handed_over or self._is_used(self._loop):
            return False
        self.is_ending = True
        self._loop.stop()
        return True

    def _look(self) -> None:
        """In the event loop: takes up what was put down."""
        assert self._loop is not None
        if self.must_end and not self.is_ending:
            self.is_ending = True
            self._loop.stop()
        while self._given_up:
            given_up = self._given_up.popleft()
            task = given_up.task
            if task is not None:
                if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
                    self.calls.discard(given_up)  # it ends without a step of its own
                task.cancel()
        if self.is_ending:
            self._turn_away()
            return
        while self._handed_over:
            call = self._handed_over.popleft()
            if not call.is_given_up:
                self.calls.add(call)
                call.start(self, self._loop)
        self.ends_if_unused()

    def _turn_away(self) -> None:
        while not self.is_silent and self._next_handed_over():
            pass

    def _next_handed_over(self, error: BaseException | None = None) -> bool:
        """Takes out one call that has not begun. A caller that saw the end may take its own out at the same time."""
        try:
            call = self._handed_over.popleft()
        except IndexError:
            return False
        if error is None:
            call.turn_away()
        else:
            call.fail(error)
        return True

    def _refuse(self, error: BaseException) -> None:
        while self._next_handed_over(error):
            pass

    def _tell_ended(self) -> None:
        try:
            _thread.start_new_thread(self._tell_when_ended, ())
        except RuntimeError:  # no more threads, or the interpreter ends: a little early, then
            self._release_watching()

    def _tell_when_ended(self) -> None:
        """In a thread for this alone: what remains of the other is a few steps of the interpreter."""
        while self.is_alive():
            time.sleep(0.0002)
        self._release_watching()

    def _release_watching(self) -> None:
        self._has_ended = True
        with contextlib.suppress(IndexError):
            while True:
                self._watching.popleft().release()

    async def _wind_up(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WINDING_UP):
                await self._close(loop)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_WINDING_UP / 2)
        await loop.shutdown_asyncgens()


def _end_all() -> None:
    for portal in list(_portals):
        portal.end(with_interpreter=True)


atexit.register(
    _end_all
)  # here, and not with the first call: what a program registers after its imports still can make calls
