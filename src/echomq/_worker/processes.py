"""The executor whose handlers run in processes of their own, one job at a time in each.

A child is spawned, never forked, and finds what it is to call by module and name (``echomq._child`` is its program). It
talks to nobody but us, through one socket: the server knows nothing of it, and the lock of its job is renewed here,
whatever the child does. A child that dies costs its own job an attempt. It ends with us, however we end: by a signal of
the kernel where there is one (Linux), and by the end of its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from echomq import errors
from echomq._log import logger
from echomq._redis import forks
from echomq._store.codec import id_out
from echomq._store.home import Home
from echomq._worker import pipe
from echomq._worker.held import Held
from echomq._worker.outcome import Encoded
from echomq.options import ProcessPool, shown

Carry = Callable[[str, Sequence[Any]], Awaitable[Any]]
"""Makes a call for a job's sake: a method of the queue's line, and its arguments."""

_TO_LEAVE: Final = 5.0
"""Seconds that a child has for ending in order, once it is asked to."""
_TO_DIE: Final = 1.0
"""Seconds between the end of a child's socket and that of the child, or the other way round."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_PROGRAM: Final = "import sys; sys.path[:] = {path!r}; from echomq._child import main; main({descriptor})"


class Processes:
    """A pool of children.

    Args:
        size: how many at most.
        options: when they end, and when they start.
        home: of the worker, whose jobs they run.
        carry: makes a child's calls.
    """

    def __init__(self, size: int, options: ProcessPool, home: Home, carry: Carry) -> None:
        self._size = options.size or size
        self._options = options
        self._home = home
        self._keys = home.keys
        self._carry = carry
        self._preload: Sequence[Callable[[], object]] = ()
        self._children: set[_Child] = set()  # those that start, wait for a job or run one
        self._starting: set[_Child] = set()
        self._idle: list[_Child] = []
        self._leaving: set[_Child] = set()
        self._waiters: deque[asyncio.Future[_Child]] = deque()
        self._warm = 0
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    async def start(self, preload: Sequence[Callable[[], object]]) -> None:
        """Starts the first children, if that is wanted, and returns when one of them is ready.

        Args:
            preload: what a child calls before it takes jobs.

        Raises:
            ProcessCrashed: a child cannot start; says why.
        """
        self._preload = preload
        if not self._options.warm or not preload:
            return
        self._warm = min(self._size, os.cpu_count() or 1)
        child = await self._free()
        self._has_ended_a_run(child)
        self._refill()

    async def run(self, held: Held, what: tuple[Any, Any], timeout: float | None) -> tuple[Encoded, str | None]:
        """Runs a handler: the result as it is stored, and what is wrong with it, if anything is.

        Cancelling it kills the child, and so does ``held.kill``, which ends it with ``CancelledError``.

        Args:
            held: the job.
            what: the function, and that which says what is wrong with its result, or None.
            timeout: seconds that it may take once it has begun, or None.

        Raises:
            ProcessCrashed: the child died.
            TimeoutError: as it says; the child was killed.
            Exception: what the handler raised.
        """
        job = held.job
        try:
            called = pickle.dumps(what, protocol=5)
        except Exception as error:
            raise errors.Unrecoverable(
                f"{shown(what[0])} cannot be sent to a process: {error}; it must be a function at the top of a module, or a "
                "functools.partial of one with values that can be pickled"
            ) from error
        message = pipe.frame(pipe.RUN, id_out(job.id), held.token, held.run, job.fields, called)
        if len(message) > pipe.MOST_BYTES:
            raise errors.Unrecoverable(
                f"the job's data and arguments are too large for a process: {len(message)} bytes"
            )
        child = await self._free()
        held.called = True
        held.kill = child.kill
        try:
            if timeout is None:
                return await child.run(held, message)
            deadline = asyncio.timeout(timeout)
            try:
                async with deadline:
                    return await child.run(held, message)
            except TimeoutError:
                if deadline.expired():
                    held.timed_out = True
                    raise TimeoutError(f"the run took longer than its timeout of {timeout:g} s") from None
                raise
        finally:
            held.kill = None
            self._has_ended_a_run(child)

    async def close(self) -> None:
        """Asks the children to end, and kills those that do not. The jobs have been given back."""
        self._closed = True
        for waiter in self._waiters:
            waiter.cancel()
        children = self._children | self._leaving
        for child in self._children:
            child.leave()
        gone = [child.gone for child in children]
        if gone:
            await asyncio.wait(gone, timeout=_TO_LEAVE)
            for child in children:
                child.kill()
            await asyncio.wait(gone, timeout=_TO_LEAVE)

    # -- inside ------------------------------------------------------------------------------------------------------------

    async def _free(self) -> _Child:
        """A child that has nothing to do, as soon as there is one."""
        while self._idle:
            child = self._idle.pop()
            if child.is_ready:
                return child
        waiter: asyncio.Future[_Child] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._refill()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._has_nothing_to_do(waiter.result())
            raise

    def _refill(self) -> None:
        """Starts what is missing: a child for each run that waits for one, and those that are to be there anyway."""
        wanted = max(len(self._waiters), self._warm - len(self._children) if not self._failures else 0)
        while not self._closed and len(self._starting) < wanted and len(self._children) < self._size:
            child = _Child(self)
            self._children.add(child)
            self._starting.add(child)
            child.start(self._not_before)

    def _has_ended_a_run(self, child: _Child) -> None:
        most_jobs, most_memory = self._options.max_jobs, self._options.max_memory
        if child not in self._children:
            return
        if not child.is_ready:
            self._without(child)
        elif (most_jobs and child.jobs >= most_jobs) or (most_memory and child.memory > most_memory):
            self._leaving.add(child)
            self._without(child)
            child.leave()
        else:
            self._has_nothing_to_do(child)

    def _has_nothing_to_do(self, child: _Child) -> None:
        while self._waiters and child.is_ready:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        if child.is_ready:
            self._idle.append(child)

    def _without(self, child: _Child) -> None:
        self._children.discard(child)
        self._starting.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        self._refill()

    def setup(self) -> bytes:
        """The first frame that a child gets."""
        manager = logging.root.manager.loggerDict
        levels = {name: one.level for name, one in manager.items() if isinstance(one, logging.Logger) and one.level}
        return pipe.frame(
            pipe.SETUP,
            (self._keys.queue, self._keys.prefix, self._keys.hash_tag),
            {"sys_argv": sys.argv, **_main_module()},
            {**levels, "": logging.root.getEffectiveLevel()},
            self._options.max_memory is not None,
            pickle.dumps(list(self._preload), protocol=5),
            (self._home.payloads is not None, self._home.max_bytes),
        )

    def ready(self, child: _Child) -> None:
        """A child takes jobs now."""
        self._starting.discard(child)
        self._failures = 0
        self._not_before = 0.0
        self._has_nothing_to_do(child)
        self._refill()

    def ended(self, child: _Child, why: errors.ProcessCrashed) -> None:
        """A child is gone, or could not be started."""
        self._leaving.discard(child)
        if child not in self._children:
            return
        if child in self._starting and not self._closed:
            self._failures += 1
            pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 10), _LONGEST_PAUSE)
            self._not_before = asyncio.get_running_loop().time() + pause
            waiter = next((one for one in self._waiters if not one.done()), None)
            if waiter is None:
                logger.error("queue %s: a process for its jobs could not be started: %s", self._keys.queue, why)
            else:
                self._waiters.remove(waiter)
                waiter.set_exception(why)
        elif child in self._idle and not self._closed:
            logger.warning("queue %s: a process that waited for jobs is gone: %s", self._keys.queue, why)
        self._without(child)

    def call(self, verb: str, arguments: Sequence[Any]) -> asyncio.Future[Any]:
        """What a child asks of the server, for its job's sake."""
        return asyncio.ensure_future(self._carry(verb, arguments))


class _Child(asyncio.Protocol):
    """One child, from its start to its end.

    Attributes:
        is_ready: whether it takes jobs.
        jobs: how many it has run.
        memory: bytes that it held after the last one.
        gone: done when the process has ended, or was never started.
    """

    def __init__(self, pool: Processes) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.is_ready = False
        self.jobs = 0
        self.memory = 0
        self._frames = pipe.Frames()
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._held: Held | None = None
        self._ended: asyncio.Future[tuple[Encoded, str | None]] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._code: int | None = None
        self._told = ""
        self._killed = False

    def descriptor(self) -> int | None:
        """That of its socket: a process that is forked from ours must not hold it open."""
        return None if self._socket is None else self._socket.fileno()

    def start(self, not_before: float) -> None:
        """Starts it, but not before this time of the event loop."""
        self._starting = self._loop.create_task(self._start(not_before), name="echomq child")

    async def run(self, held: Held, message: bytes) -> tuple[Encoded, str | None]:
        """Runs one job. See ``Processes.run``."""
        assert self._transport is not None
        self.jobs += 1
        self._held = held
        ended: asyncio.Future[tuple[Encoded, str | None]] = self._loop.create_future()
        self._ended = ended
        self._transport.write(message)
        try:
            return await ended
        except asyncio.CancelledError:
            if ended.done() and not ended.cancelled():
                return ended.result()  # what ended before it was told to stop has ended well
            self.kill()
            with contextlib.suppress(asyncio.CancelledError):  # who does not want to wait for its end need not
                await asyncio.shield(self.gone)
            raise
        finally:
            self._held = self._ended = None

    def leave(self) -> None:
        """Asks it to end in order. Whoever has a job to the end of it must not."""
        self.is_ready = False
        if self._starting is not None and self._process is None:
            self._starting.cancel()
        if self._transport is not None:
            self._transport.close()
        if not self.gone.done():
            self._later(_TO_LEAVE, self.kill)

    def kill(self) -> None:
        """Ends it at once, with all that it has started in its process group. Its job has not crashed by that."""
        self._killed = True
        self._end()

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        self._timers.append(self._loop.call_later(seconds, what))

    def _end(self) -> None:
        self.is_ready = False
        if self._process is not None and self._process.returncode is None and not self.gone.done():
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # it has not made its group yet, or has left it
                self._process.kill()

    # -- its beginning and its end -------------------------------------------------------------------------------------------

    async def _start(self, not_before: float) -> None:
        try:
            await asyncio.sleep(not_before - self._loop.time())
            setup = self._pool.setup()
            ours, theirs = socket.socketpair()
            self._socket = ours
            with theirs:
                program = _PROGRAM.format(path=_path(), descriptor=theirs.fileno())
                self._process = subprocess.Popen(  # noqa: ASYNC220  # in a thread that ends before us it would die with that
                    [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", program],  # type: ignore[attr-defined]
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is ours to hear; and what it starts can be killed with it
                )
            forks.remember(self)
            threading.Thread(target=self._wait, args=(self._process,), name="echomq-child", daemon=True).start()
            self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
            self._transport.write(setup)
        except asyncio.CancelledError:
            self._end()
            self._gone("it was not wanted any more")
        except Exception as error:  # no memory, too many processes or files, something that cannot be pickled
            self._end()
            self._gone(f"it could not be started: {error}")

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread of its own: until the process has ended."""
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has closed, and nobody asks any more
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        self._code = code
        if self._transport is None or self._transport.is_closing():
            self._gone("")
        else:  # what it said before is still to be read; a process that it has started may hold its socket open for ever
            self._later(_TO_DIE, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        """Its socket is closed: by us, by its end, or by its own hand."""
        self.is_ready = False
        if self._code is not None:
            self._gone("")
        elif self._ended is not None:
            self._later(_TO_DIE, self._cut_off)

    def _cut_off(self) -> None:
        """It lives on, but says nothing any more."""
        self._told = self._told or "it closed its connection to the worker"
        self._end()

    def _gone(self, why: str) -> None:
        if self.gone.done():
            return
        self.is_ready = False
        self.gone.set_result(None)
        for call in self._calls:
            call.cancel()
        for timer in self._timers:
            timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:
            self._socket.close()
        crash = _crash(self._code, why or self._told)
        if self._ended is not None and not self._ended.done():
            if self._killed:
                self._ended.cancel()
            else:
                self._ended.set_exception(crash)
        self._pool.ended(self, crash)

    # -- what it says ----------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Reads what it says."""
        try:
            for frame in self._frames.read(data):
                self._hear(frame)
        except Exception as error:  # somebody else has written into its socket
            logger.exception("a process of queue %s cannot be understood, and is ended", self._pool._keys.queue)
            self._told = f"what it said cannot be read: {error}"
            self._end()

    def _hear(self, frame: pipe.Frame) -> None:
        kind = frame[0]
        if kind == pipe.RETURNED:
            _, text, error, misfit, self.memory = frame
            if self._ended is not None and not self._ended.done():
                self._ended.set_result((Encoded(text, error), misfit))
        elif kind == pipe.RAISED:
            _, told, self.memory = frame
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(_not_stopping(pipe.told_again(told)))
        elif kind == pipe.CALL:
            _, number, verb, arguments = frame
            call = self._pool.call(verb, arguments)
            self._calls.add(call)
            call.add_done_callback(lambda done: self._answer(number, done))
        elif kind == pipe.LOG:
            _log(frame[1])
        elif kind == pipe.READY:
            self.is_ready = True
            self._pool.ready(self)
        elif kind == pipe.BROKEN:
            self._told = frame[1]

    def _answer(self, number: int, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if call.cancelled() or self._transport is None or self._transport.is_closing():
            return
        error = call.exception()
        answer = (None, pipe.told(error)) if error is not None else (call.result(), None)
        self._transport.write(pipe.frame(pipe.REPLY, number, *answer))


def _not_stopping(error: BaseException) -> BaseException:
    """A future takes no StopIteration."""
    return RuntimeError(str(error)) if isinstance(error, StopIteration) else error


def _crash(code: int | None, told: str) -> errors.ProcessCrashed:
    """What is to be said of the end of a process."""
    if code is None or told:
        return errors.ProcessCrashed(f"the process for the job has ended: {told or 'nobody knows how'}", exit_code=code)
    if code >= 0:
        return errors.ProcessCrashed(
            f"the process that ran the job ended itself with exit code {code}, as os._exit does", exit_code=code
        )
    number = -code
    name = signal.Signals(number).name if number in signal.valid_signals() else "a signal"
    hint = "; the kernel sends it when memory runs out" if number == signal.SIGKILL else ""
    return errors.ProcessCrashed(f"the process that ran the job died of signal {number} ({name}){hint}", signal=number)


def _log(parts: dict[str, Any]) -> None:
    """Hands a record of a child's logger to our logger of the same name."""
    target = logging.getLogger(parts["name"])
    if target.isEnabledFor(parts["levelno"]):
        target.handle(logging.makeLogRecord(parts))


def _path() -> list[str]:
    """Where modules are, also for a child: the empty entry is the folder that we are in."""
    return [entry or os.getcwd() for entry in sys.path]


def _main_module() -> dict[str, str]:
    """How a child makes our main module again, should it need it; as ``multiprocessing`` does."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}
