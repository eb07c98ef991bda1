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
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from echomq import errors
from echomq._from_process import from_process
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

_End: TypeAlias = tuple[Encoded, str | None]
"""A result as it is stored, and what is wrong with it, if anything is."""

_TO_LEAVE: Final = 5.0
"""Seconds that a child has for ending in order, once it is asked to."""
_TO_DIE: Final = 1.0
"""Seconds between the end of a child's socket and that of the child, or the other way round."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_MOST_AT_ONCE: Final = 16
"""Jobs that a child gets in one frame, if jobs are so short that this costs them less than it saves."""
_SHORT: Final = 0.001
"""Seconds that such a job takes."""
_TAKEN_BACK_AFTER: Final = 0.01
"""Seconds after which what a child has not begun is given to others."""
_PROGRAM: Final = "import sys; sys.path[:] = {path!r}; from echomq._child import main; main{descriptors}"


class _Work:
    """One run, from when it asks for a child until it has ended.

    Attributes:
        held: the job.
        message: what a child gets.
        timeout: seconds that it may take once a child has it, or None.
        ended: done when it has ended, with what it returned or raised; cancelled if that was our doing.
        child: that which has it.
        has_timed_out: whether it is killed for that.
        is_wanted: whether anybody still waits for it.
    """

    __slots__ = ("_timer", "child", "ended", "has_timed_out", "held", "is_wanted", "message", "timeout")

    def __init__(
        self, held: Held, message: tuple[Any, ...], timeout: float | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.held = held
        self.message = message
        self.timeout = timeout
        self.ended: asyncio.Future[tuple[_End | None, BaseException | None]] = loop.create_future()
        self.child: _Child | None = None
        self.has_timed_out = False
        self.is_wanted = True
        self._timer: asyncio.TimerHandle | None = None

    def begins(self, child: _Child) -> None:
        """A child has it now."""
        self.child = child
        self.held.called = True
        self.held.kill = self.kill
        if self.timeout is not None:
            self._timer = self.ended.get_loop().call_later(self.timeout, self._times_out, child)

    def is_taken_back(self) -> None:
        """The child had not begun it."""
        self.child = None
        self.held.called = False
        self.held.kill = None

    def kill(self) -> None:
        """Ends it at once, wherever it is."""
        self.is_wanted = False
        if self.child is not None:
            self.child.kill(self)

    def has_ended(self) -> None:
        """Nothing more is to happen to it."""
        self.child = None
        self.held.kill = None
        if self._timer is not None:
            self._timer.cancel()

    def _times_out(self, child: _Child) -> None:
        self.has_timed_out = True
        self.held.timed_out = True
        child.kill(self)


class Processes:
    """A pool of children.

    Args:
        size: how many at most, where ``options`` does not say and the machine has so many processors.
        options: when they end, and when they start.
        home: of the worker, whose jobs they run.
        carry: makes a child's calls.
    """

    def __init__(self, size: int, options: ProcessPool, home: Home, carry: Carry) -> None:
        self._size = options.size or min(size, os.cpu_count() or 1)
        self._options = options
        self._home = home
        self._keys = home.keys
        self._carry = carry
        self._preload: Sequence[Callable[[], object]] = ()
        self._children: set[_Child] = set()  # those that start, wait for a job or run one
        self._starting: set[_Child] = set()
        self._idle: list[_Child] = []
        self._leaving: set[_Child] = set()
        self._waiting: deque[_Work] = deque()
        self._first: asyncio.Future[None] | None = None
        self._warm = 0
        self._failures = 0
        self._not_before = 0.0
        self._closed = False

    async def start(self, preload: Sequence[Callable[[], object]]) -> None:
        """Starts the first children, if that is wanted, and returns when one of them is ready.

        Args:
            preload: what a child calls before it takes jobs.

        Raises:
            ProcessCrashed: a child cannot be started at all, or cannot load what it is to run; says why. One that dies before it
                is ready is no reason: the next one is tried.
        """
        self._preload = preload
        if not self._options.warm:
            return
        self._warm = min(self._size, os.cpu_count() or 1)
        self._first = asyncio.get_running_loop().create_future()
        self._refill()
        await self._first

    async def run(self, held: Held, what: tuple[Any, Any], timeout: float | None) -> _End:
        """Runs a handler: how it ends.

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
        size = len(called) + sum(map(len, job.fields.values()))
        if size > pipe.MOST_BYTES:
            raise errors.Unrecoverable(f"the job's data and arguments are too large for a process: {size} bytes")
        message = (id_out(job.id), held.token, held.run, job.fields, called)
        work = _Work(held, message, timeout, asyncio.get_running_loop())
        self._has(work)
        try:
            end, raised = await work.ended
        except asyncio.CancelledError:
            if not work.ended.done() or work.ended.cancelled():
                work.kill()
                if work.child is not None:
                    with contextlib.suppress(asyncio.CancelledError):  # who does not want to wait for its end need not
                        await asyncio.shield(work.child.gone)
                elif work in self._waiting:
                    self._waiting.remove(work)
                raise
            end, raised = work.ended.result()  # what ended before it was told to stop has ended well
        finally:
            work.has_ended()
        if raised is not None:
            # Here, not by the future: that takes no StopIteration, and a GeneratorExit would close the coroutine that waits.
            raise _raisable(raised)
        assert end is not None
        return end

    async def close(self) -> None:
        """Asks the children to end, and kills those that do not. The jobs have been given back."""
        self._closed = True
        for work in self._waiting:
            work.ended.cancel()
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

    def _has(self, work: _Work) -> None:
        """Hands it to a child that has nothing to do, as soon as there is one."""
        if self._closed:
            raise asyncio.CancelledError
        while self._idle:
            child = self._idle.pop()
            if child.is_ready:
                child.begin([work])
                return
        self._waiting.append(work)
        self._refill()

    def _first_awaited(self) -> asyncio.Future[None] | None:
        """What the worker waits for before it takes jobs; None if it does not, or not any more."""
        return None if self._first is None or self._first.done() else self._first

    def _refill(self) -> None:
        """Starts what is missing: a child for each run that waits for one, and those that are to be there anyway."""
        warm = self._warm - len(self._children)
        if self._failures:
            warm = 1 if self._first_awaited() else 0
        wanted = max(len(self._waiting), warm)
        wanted = min(wanted, os.cpu_count() or 1)  # at a time: a burst of short jobs is over before many have started
        while not self._closed and len(self._starting) < wanted and len(self._children) < self._size:
            child = _Child(self)
            self._children.add(child)
            self._starting.add(child)
            child.start(self._not_before)

    def has_ended_a_run(self, child: _Child) -> None:
        """A child has nothing to do any more."""
        most_jobs, most_memory = self._options.max_jobs, self._options.max_memory
        if child.is_ready and ((most_jobs and child.jobs >= most_jobs) or (most_memory and child.memory > most_memory)):
            self._leaving.add(child)
            self._without(child)
            child.leave()
        elif child.is_ready:
            self._has_nothing_to_do(child)

    def _has_nothing_to_do(self, child: _Child) -> None:
        if not self._anybody_waits():
            self._idle.append(child)
            return
        works = [self._waiting.popleft()]
        # What waits is shared by all; and what has a timeout goes alone, since that begins with it.
        share = 1 + len(self._waiting) // len(self._children)
        most = min(child.at_once, share, (self._options.max_jobs or math.inf) - child.jobs)
        while len(works) < most and works[0].timeout is None and self._anybody_waits():
            if self._waiting[0].timeout is not None:
                break
            works.append(self._waiting.popleft())
        child.begin(works)

    def take_back(self, works: list[_Work]) -> None:
        """A child has not begun these, and will not."""
        for work in reversed(works):
            work.is_taken_back()
            if work.is_wanted:
                self._waiting.appendleft(work)
            else:
                work.ended.cancel()
        while self._idle and self._anybody_waits():
            child = self._idle.pop()
            if child.is_ready:
                self._has_nothing_to_do(child)
        self._refill()

    def _anybody_waits(self) -> bool:
        """Whether anybody still waits for a child; then who has waited longest is the first of the line."""
        while (
            self._waiting and self._waiting[0].ended.done()
        ):  # its task was told to stop, and has not come to leave it
            self._waiting.popleft()
        return bool(self._waiting)

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
        if first := self._first_awaited():
            first.set_result(None)
        self._has_nothing_to_do(child)
        self._refill()

    def is_starting(self, child: _Child) -> bool:
        """Whether it has not taken jobs yet."""
        return child in self._starting

    def ended(self, child: _Child, why: errors.ProcessCrashed, *, is_broken: bool) -> None:
        """A child is gone, or could not be started.

        Args:
            child: it.
            why: what is to be said of that.
            is_broken: whether it has said that it cannot load what it is to run.
        """
        self._leaving.discard(child)
        if child not in self._children:
            return
        if child in self._starting and not self._closed:
            self._failures += 1
            pause = min(_FIRST_PAUSE * 2 ** min(self._failures, 10), _LONGEST_PAUSE)
            self._not_before = asyncio.get_running_loop().time() + pause
            if (first := self._first_awaited()) and (is_broken or not child.has_process):
                first.set_exception(why)
            elif is_broken and self._anybody_waits():
                self._waiting.popleft().ended.set_result((None, why))
            else:  # nothing of a job's: what this machine lacks, memory say; what waits may run as soon as there is some
                logger.error("queue %s: %s; the next one starts in %g s at the earliest", self._keys.queue, why, pause)
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
        at_once: how many jobs it is to get in one frame, as far as is known.
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
        self.at_once = 1
        self._works: list[_Work] = []  # the first one goes on, unless it has ended
        self._begun_at = 0.0
        self._count = 0
        self._tickets: tuple[socket.socket, socket.socket] | None = None
        self._answers: int | None = None
        self._answers_read = 0
        self._file_frames = pipe.Frames()
        self._look: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._code: int | None = None
        self._told = ""
        self._is_broken = False
        self._killed = False

    def descriptors(self) -> list[int]:
        """All that leads to it: a process that is forked from ours must not hold it open."""
        sockets = [] if self._socket is None else [self._socket, *(self._tickets or ())]
        return [*(one.fileno() for one in sockets), *([] if self._answers is None else [self._answers])]

    @property
    def has_process(self) -> bool:
        """Whether there was a process."""
        return self._process is not None

    def start(self, not_before: float) -> None:
        """Starts it, but not before this time of the event loop."""
        self._starting = self._loop.create_task(self._start(not_before), name="echomq child")
        self._starting.add_done_callback(self._was_started)

    def begin(self, works: list[_Work]) -> None:
        """Runs these jobs, one after the other."""
        assert self._transport is not None
        self.jobs += len(works)
        self._works = works
        self._count = len(works)
        self._begun_at = self._loop.time()
        for work in works:
            work.begins(self)
        if len(works) > 1:
            assert self._tickets is not None
            assert self._answers is not None
            os.ftruncate(self._answers, 0)
            os.lseek(self._answers, 0, os.SEEK_SET)  # the child writes from there: the position is one for both of us
            self._answers_read = 0
            self._tickets[0].send(b"." * (len(works) - 1))
            self._look = self._loop.call_later(_TAKEN_BACK_AFTER, self._takes_long)
        self._transport.write(pipe.frame(pipe.RUN, [work.message for work in works]))

    def _takes_long(self) -> None:
        """What has not begun is for others, then; and what has ended is heard."""
        self._look = None
        self.at_once = 1
        self._read_answers()
        self._pool.take_back(self._not_begun())

    def _not_begun(self) -> list[_Work]:
        """The works that it has not begun; from now on it will not. The kernel decides between the two of us."""
        taken = 0
        if self._tickets is not None and self._count > 1:
            with contextlib.suppress(BlockingIOError):
                taken = len(self._tickets[1].recv(_MOST_AT_ONCE, socket.MSG_DONTWAIT))
        if not taken:
            return []
        self.jobs -= taken
        works, self._works = self._works[-taken:], self._works[:-taken]
        return works

    def _read_answers(self) -> None:
        """The answers of jobs after which another one has begun."""
        if self._answers is None or self._count == 1:
            return
        while data := os.pread(self._answers, 1024 * 1024, self._answers_read):
            self._answers_read += len(data)
            for frame in self._file_frames.read(data):
                self._hear(frame)

    def leave(self) -> None:
        """Asks it to end in order. Whoever has a job to the end of it must not."""
        self.is_ready = False
        if self._starting is not None:
            self._starting.cancel()
        if self._transport is not None:
            self._transport.close()
        if not self.gone.done():
            self._later(_TO_LEAVE, self.kill)

    def kill(self, work: _Work | None = None) -> None:
        """Ends it at once, with all that it has started in its process group. Its job has not crashed by that.

        Args:
            work: only if it is this that goes on there. If it has not begun, it waits again, and nobody is killed.
        """
        if work is not None and self._count > 1:
            self._pool.take_back(self._not_begun())
            with contextlib.suppress(Exception):  # whatever it has written there
                self._read_answers()  # after that: it begins no other any more, and what it has answered before can be read
        if work is None or work in self._works:
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
        await asyncio.sleep(not_before - self._loop.time())
        setup = self._pool.setup()
        forks.remember(self)
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._tickets = socket.socketpair()
            self._answers = os.memfd_create("echomq-answers") if hasattr(os, "memfd_create") else None
            given = (theirs.fileno(), self._tickets[1].fileno(), -1 if self._answers is None else self._answers)
            program = _PROGRAM.format(path=_path(), descriptors=given)
            with forks.deaf():  # until it says itself what these signals do to it
                self._process = subprocess.Popen(  # noqa: ASYNC220  # in a thread that ends before us it would die with that
                    [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", program],  # type: ignore[attr-defined]
                    stdin=subprocess.DEVNULL,
                    pass_fds=[one for one in given if one >= 0],
                    start_new_session=True,  # Ctrl-C is ours to hear; and what it starts can be killed with it
                )
        threading.Thread(target=self._wait, args=(self._process,), name="echomq-child", daemon=True).start()
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=ours)
        self._transport.write(setup)

    def _was_started(self, starting: asyncio.Task[None]) -> None:
        """Here, not in the task: one that is cancelled before its first step does not take it."""
        if starting.cancelled():
            why = "was not wanted any more"
        elif error := starting.exception():  # no memory, too many processes or files, what cannot be pickled
            why = f"could not be started: {error}"
        else:
            return
        self._end()
        self._gone(errors.ProcessCrashed(f"a process for jobs {why}"))

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread of its own: until the process has ended."""
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has closed, and nobody asks any more
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        self._code = code
        if self._transport is None or self._transport.is_closing():
            self._gone()
        else:  # what it said before is still to be read; a process that it has started may hold its socket open for ever
            self._later(_TO_DIE, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        """Its socket is closed: by us, by its end, or by its own hand."""
        self.is_ready = False
        if self._code is not None:
            self._gone()
        elif self._works:
            self._later(_TO_DIE, self._cut_off)

    def _cut_off(self) -> None:
        """It lives on, but says nothing any more."""
        self._told = self._told or "it closed its connection to the worker"
        self._end()

    def _gone(self, why: errors.ProcessCrashed | None = None) -> None:
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
        crash = why or self._crash()
        with contextlib.suppress(Exception):  # whatever it has written there
            self._read_answers()
        waiting = self._not_begun()
        works, self._works = self._works, []
        self._close()
        for work in works:
            if work.ended.done():
                continue
            if work.has_timed_out:
                late = TimeoutError(f"the run took longer than its timeout of {work.timeout:g} s")
                work.ended.set_result((None, late))
            elif self._killed:
                work.ended.cancel()
            else:
                work.ended.set_result((None, crash))
        self._pool.take_back(waiting)
        self._pool.ended(self, crash, is_broken=self._is_broken)

    def _crash(self) -> errors.ProcessCrashed:
        """What is to be said of its end."""
        who = "the process that ran the job" if self._works else "a process for jobs"
        when = " while it started" if self._pool.is_starting(self) else ""
        code, told = self._code, self._told
        if code is None or told:
            return errors.ProcessCrashed(f"{who} has ended{when}: {told or 'nobody knows how'}", exit_code=code)
        if code >= 0:
            hint = ", as os._exit does" if self._works else ""
            return errors.ProcessCrashed(f"{who} ended itself{when} with exit code {code}{hint}", exit_code=code)
        number = -code
        name = signal.Signals(number).name if number in signal.valid_signals() else "a signal"
        hint = "; the kernel sends it when memory runs out" if number == signal.SIGKILL else ""
        return errors.ProcessCrashed(f"{who} died{when} of signal {number} ({name}){hint}", signal=number)

    def _close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        for one in self._tickets or ():
            one.close()
        if self._answers is not None:
            os.close(self._answers)
            self._answers = None

    # -- what it says ----------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Reads what it says."""
        try:
            for frame in self._frames.read(data):
                is_last = frame[0] in (pipe.RETURNED, pipe.RAISED, pipe.DONE)
                if is_last:
                    self._read_answers()
                self._hear(frame)
                if is_last:
                    self._has_answered()
        except Exception as error:  # somebody else has written into its socket
            logger.exception("a process of queue %s cannot be understood, and is ended", self._pool._keys.queue)
            self._told = f"what it said cannot be read: {error}"
            self._end()

    def _hear(self, frame: pipe.Frame) -> None:
        kind = frame[0]
        if kind == pipe.RETURNED:
            _, text, error, misfit, self.memory = frame
            self._has_ended((Encoded(text, error), misfit), None)
        elif kind == pipe.RAISED:
            _, told, self.memory = frame
            self._has_ended(None, pipe.told_again(told))
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
            self._told, self._is_broken = frame[1], True

    def _has_ended(self, end: _End | None, error: BaseException | None) -> None:
        work = self._works.pop(0)
        if not work.ended.done():
            work.ended.set_result((end, error))
        work.has_ended()

    def _has_answered(self) -> None:
        """It has nothing to do any more."""
        if self._works:
            raise ValueError("it is done, and has not answered for all of its jobs")
        if self._look is not None:
            self._look.cancel()
            self._look = None
        is_short = self._loop.time() - self._begun_at < _SHORT * self._count
        self.at_once = min(self.at_once * 2, _MOST_AT_ONCE) if is_short and self._answers is not None else 1
        self._count = 1
        self._pool.has_ended_a_run(self)

    def _answer(self, number: int, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if call.cancelled() or self._transport is None or self._transport.is_closing():
            return
        error = call.exception()
        answer = (None, pipe.told(error)) if error is not None else (call.result(), None)
        self._transport.write(pipe.frame(pipe.REPLY, number, *answer))


def _raisable(error: BaseException) -> BaseException:
    """A coroutine cannot raise StopIteration; what is known of it stays what it was."""
    if not issubclass(type(error), StopIteration):
        return error
    other = RuntimeError("the handler raised StopIteration")
    other.__cause__ = from_process(error)
    return other


def _log(parts: dict[str, Any]) -> None:
    """Hands a record of a child's logger to our logger of the same name."""
    target = logging.getLogger(parts["name"])
    if not target.isEnabledFor(parts["levelno"]):
        return
    record = logging.makeLogRecord(parts)
    try:
        target.handle(record)
    except Exception:  # of a handler, or a filter: nothing of the child's
        with contextlib.suppress(Exception):
            logging.Handler().handleError(record)


def _path() -> list[str]:
    """Where modules are, also for a child: the empty entry is the folder that we are in."""
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]  # Python passes over all others too


def _main_module() -> dict[str, str]:
    """How a child makes our main module again, should it need it; as ``multiprocessing`` does."""
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": os.path.abspath(path)}
