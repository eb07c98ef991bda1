"""The program of a worker's child process: it runs handlers, one at a time, and ends when its parent does.

Its main thread runs the handlers, and between them waits at the socket. A second thread waits for the end of the socket,
which is that of the parent.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import logging
import multiprocessing.spawn
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from echomq._log import running_job
from echomq._payloads import Payloads
from echomq._redis import forks
from echomq._store.codec import PlainJob, decode_id
from echomq._store.home import Home
from echomq._store.keys import QueueKeys
from echomq._worker import pipe
from echomq._worker.executors import loading
from echomq._worker.forked import leave_fork
from echomq._worker.outcome import Encoded, encoded, printable, reason_of, trace_of
from echomq.connection import Connection
from echomq.errors import LockLost, StateError
from echomq.job import Job

T = TypeVar("T")

_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
_TO_LEAVE: Final = 5.0


def main(descriptor: int, tickets: int, answers: int) -> NoReturn:
    """Runs what comes through the socket until it ends.

    Args:
        descriptor: the socket's.
        tickets: a socket's that gives a byte for each job, beyond the first of a frame, that may begin.
        answers: a file's for the answers of all jobs of a frame but the last.
    """
    _die_with_parent()
    # Whoever stops a whole group of processes means the parent, which gives this one its time.
    for number in forks.ENDING:
        signal.signal(number, forks.ignored)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forks.ENDING)  # what it starts does hear them
    for one in (descriptor, tickets, answers):
        if one >= 0:
            os.set_inheritable(one, False)
    channel = _Channel(socket.socket(fileno=descriptor))
    forks.remember(channel)
    setup = channel.read()
    if setup is None:
        sys.exit(0)
    child = _Child(channel, setup, socket.socket(fileno=tickets), answers)
    threading.Thread(target=child.watch, name="echomq-parent", daemon=True).start()
    try:
        code = child.work()
    except (BrokenPipeError, ConnectionResetError):  # nobody wants it any more
        code = 0
    sys.exit(code)


def _die_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends, whatever it does by then."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


class _Channel:
    """The socket to the parent, for several threads: one writes, or asks and gets its answer, at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", buffering=64 * 1024)
        self._lock = forks.new_recursive_lock()
        self._number = 0

    def descriptors(self) -> list[int]:
        """The socket's number."""
        return [self._socket.fileno()]

    def read(self) -> pipe.Frame | None:
        """The next frame; None at the end."""
        try:
            return pipe.read_frame(self._file.read)
        except OSError:
            return None

    def tell(self, *parts: Any) -> None:
        """Sends a frame."""
        frame = pipe.frame(*parts)
        with self._lock:
            self._socket.sendall(frame)

    def ask(self, verb: str, arguments: Sequence[Any]) -> Any:
        """Makes a call through the parent, which answers nothing else meanwhile."""
        with self._lock:
            self._number += 1
            self.tell(pipe.CALL, self._number, verb, list(arguments))
            reply = self.read()
            while reply is not None and reply[1] != self._number:  # that of a call whose thread was interrupted
                reply = self.read()
        if reply is None:
            raise LockLost("the worker of this process is gone, and with it the run of the job")
        _, _, answer, error = reply
        if error is not None:
            raise pipe.told_again(error)
        return answer

    def alone(self) -> threading.RLock:
        """To be held while nobody may write."""
        return self._lock


class _Line:
    """In place of a queue's line: its calls go through the parent.

    They wait here and now, like everything in a handler that is no coroutine; so they can be awaited anywhere.
    """

    def __init__(self, child: _Child, keys: QueueKeys) -> None:
        self._child = child
        self.keys = keys

    async def tell(self, told: Sequence[bytes | str]) -> Any:
        return self._child.ask("tell", (told,))

    async def call(self, name: str, args: Sequence[Any]) -> Any:
        return self._child.ask("call", (name, list(args)))

    async def read(self, name: str, args: Sequence[Any]) -> Any:
        return self._child.ask("read", (name, list(args)))

    async def ask(self, *command: Any) -> Any:
        return self._child.ask("ask", command)

    @property
    def hub(self) -> NoReturn:
        raise StateError(
            "in a process of its own a handler cannot wait for jobs through its own; use a Queue or a task"
        )


class _Payloads(Payloads):
    """In place of the worker's codecs, which stay there with their keys and clients."""

    def __init__(self, child: _Child) -> None:
        super().__init__(())
        self._child = child

    def encode_now(self, text: bytes) -> bytes:
        stored: bytes = self._child.ask("encode", (text,))
        return stored

    def decode_now(self, stored: bytes) -> bytes:
        text: bytes = self._child.ask("decode", (stored,))
        return text

    async def encode(self, text: bytes) -> bytes:
        return self.encode_now(text)

    async def decode(self, stored: bytes) -> bytes:
        return self.decode_now(stored)

    def is_elsewhere(self, stored: bytes) -> bool:
        return False


class _Home(Home):
    """A child's way to the queue of its job: through its parent."""

    def __init__(self, child: _Child, keys: QueueKeys, payloads: Payloads | None, max_bytes: int | None) -> None:
        connection = Connection("redis://in-a-child.invalid")
        super().__init__(connection, keys, payloads=payloads, max_bytes=max_bytes)
        self._through_parent = _Line(child, keys)

    @property
    def line(self) -> Any:
        """The line through the parent."""
        return self._through_parent

    def carry_out(self, telling: Any) -> Any:
        """Carries it out here and now: it waits for nothing but the parent, which answers in its own time."""
        try:
            telling.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a call through the parent has waited for something else")


class _Run:
    """What tells this run of a job from every other."""

    def __init__(self, token: str, run: bytes) -> None:
        self.token = token
        self.run = run


class _Child:
    def __init__(self, channel: _Channel, setup: pipe.Frame, tickets: socket.socket, answers: int) -> None:
        self._channel = channel
        self._tickets = tickets
        self._answers = answers
        _, names, main_module, levels, self._measures, self._preload, (has_codec, max_bytes) = setup
        queue, prefix, hash_tag = names
        keys = QueueKeys.of(queue, prefix=prefix, hash_tag=hash_tag)
        self._home = _Home(self, keys, _Payloads(self) if has_codec else None, max_bytes)
        self._main_module: dict[str, Any] = main_module
        sys.argv = self._main_module.pop("sys_argv")
        self._pid = os.getpid()
        self._busy = False
        self._logging = _Logging(channel, levels)
        forks.remember(self)

    def descriptors(self) -> list[int]:
        """Those that it has beside the channel's."""
        return [self._tickets.fileno(), *([self._answers] if self._answers >= 0 else [])]

    def work(self) -> int:
        """Loads, then runs jobs until the parent is gone or wants no more. Gives the exit code."""
        try:
            self._loading(self._load)
        except BaseException as error:  # whatever a user's module does when it is imported
            self._channel.tell(
                pipe.BROKEN, f"it could not load what it is to run: {reason_of(error)}\n{trace_of(error)}"
            )
            return 1
        self._channel.tell(pipe.READY)
        while (frame := self._channel.read()) is not None:
            if frame[0] == pipe.RUN:
                self._run_all(frame[1])
        return 0

    def _run_all(self, jobs: list[Any]) -> None:
        """Runs them one after the other, as long as the parent has not taken them back."""
        for position, job in enumerate(jobs):
            if position and not self._may_begin():
                self._channel.tell(pipe.DONE)
                return
            answer = self._run(*job)
            if position == len(jobs) - 1:
                self._ends(answer)
                return
            self._busy = False
            # It wakes nobody, and yet is safe from whatever the next job does to this process.
            _write(self._answers, pipe.frame(*answer))

    def _may_begin(self) -> bool:
        try:
            return bool(self._tickets.recv(1, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def _ends(self, answer: tuple[Any, ...]) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, or a full disk
                stream.flush()
        with self._channel.alone():
            self._busy = False
            self._channel.tell(*answer)

    def watch(self) -> None:
        """In a thread of its own: ends this process when its parent is gone."""
        poll = select.poll()
        poll.register(self._channel.descriptors()[0], 0)  # nothing but its end
        poll.poll()
        if not self._busy:
            time.sleep(_TO_LEAVE)  # the main thread has seen it too, and leaves in order
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def ask(self, verb: str, arguments: Sequence[Any]) -> Any:
        """A call through the parent, as long as the run lasts."""
        if os.getpid() != self._pid:
            raise StateError(
                "this process was forked from that of the handler, and has no way to the server; use a Queue"
            )
        with self._channel.alone():
            if not self._busy:
                raise LockLost("this run of the job is over")
            return self._channel.ask(verb, arguments)

    def _load(self) -> None:
        for load in self._unpickled(self._preload):
            load()
        self._logging.is_the_parents()

    def _unpickled(self, data: bytes) -> Any:
        """What the parent has pickled. If that names its main module, this is made again first, once."""
        known = len(sys.modules)
        if self._main_module and b"__main__" in data:
            main, self._main_module = self._main_module, {}
            self._loading(lambda: multiprocessing.spawn.prepare(main))
        found = pickle.loads(data)
        if len(sys.modules) != known:
            self._logging.is_the_parents()
        return found

    @staticmethod
    def _loading(load: Callable[[], T]) -> T:
        before = loading.set(True)
        try:
            return load()
        finally:
            loading.reset(before)

    def _run(self, job_id: bytes, token: str, run: bytes, fields: dict[bytes, bytes], called: bytes) -> tuple[Any, ...]:
        job: Job[Any] = Job(PlainJob(decode_id(job_id), fields), self._home, run=_Run(token, run))
        self._busy = True
        try:
            value, misfit = contextvars.copy_context().run(self._call, job, called)
        except BaseException as error:  # SystemExit too: it is the job's outcome, not the end of this process
            leave_fork(self._pid, error)
            return pipe.RAISED, pipe.told(error), self._memory()
        leave_fork(self._pid, None)
        text, error_text = _encoded(value)
        return pipe.RETURNED, text, error_text, None if misfit is None else printable(misfit), self._memory()

    def _memory(self) -> int:
        return _memory() if self._measures else 0

    def _call(self, job: Job[Any], called: bytes) -> tuple[Any, str | None]:
        running_job.set(job)
        function, misfit = self._unpickled(called)
        value = function()
        return value, None if misfit is None else misfit(value)


def _encoded(value: Any) -> Encoded:
    found = encoded(value)
    if len(found.text) > pipe.MOST_BYTES:
        return Encoded(b"null", f"result: {len(found.text)} bytes are more than a server takes")
    return found


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _memory() -> int:
    """Bytes that this process holds; where the system does not tell, the most that it has held."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class _ToParent(logging.Handler):
    """Sends records to the parent, whose logger of the same name gets them."""

    def __init__(self, channel: _Channel) -> None:
        super().__init__()
        self._channel = channel
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            parts = {name: _plain(value) for name, value in vars(record).items() if name not in ("args", "exc_info")}
            parts["msg"] = printable(record.getMessage())
            if record.exc_info:
                parts["exc_text"] = printable(self._formatter.formatException(record.exc_info))
            self._channel.tell(pipe.LOG, parts)
        except Exception:
            self.handleError(record)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**64:  # larger ones have no form in a frame
        return value
    return printable(value if isinstance(value, str) else str(value))


class _Logging:
    """All that is logged goes to the parent, at its levels.

    Modules may set up logging when they are imported. They have done so in the parent too, where each record gets to the handlers
    that this has made: here it would get to them once more, or not to the parent at all.
    """

    def __init__(self, channel: _Channel, levels: dict[str, int]) -> None:
        self._handler = _ToParent(channel)
        self._levels = levels
        self.is_the_parents()
        # A fork has no way to the parent.
        os.register_at_fork(after_in_child=lambda: logging.root.removeHandler(self._handler))

    def is_the_parents(self) -> None:
        """So it is again, whatever the modules that have been imported have made of it."""
        for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
            if isinstance(logger, logging.Logger):
                logger.propagate = True
                for handler in [one for one in logger.handlers if one is not self._handler]:
                    logger.removeHandler(handler)
        logging.root.addHandler(self._handler)
        for name, level in self._levels.items():
            logging.getLogger(name or None).setLevel(level)
