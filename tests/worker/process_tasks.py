"""What the tests of processes run there: a child finds it by the name of this module."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from echomq import Job, RateLimited, RetryLater, Unrecoverable
from echomq._log import running_job

log = logging.getLogger("tests.processes")


class Plain(Exception):
    """An error with an attribute, as many have."""

    def __init__(self, word: str, *, number: int) -> None:
        super().__init__(word)
        self.number = number


class BadReduce(Exception):
    def __reduce__(self) -> NoReturn:
        os._exit(66)

    def __setstate__(self, state: Any) -> NoReturn:
        os._exit(67)


class BadText(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")

    __repr__ = __str__


class BadAttribute(Exception):
    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError("no attribute")


class BadNew(Exception):
    def __new__(cls, *args: Any) -> BadNew:
        if running_job.get() is None:
            raise SystemExit("made again in the worker")
        return super().__new__(cls, *args)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


def is_the_worker() -> bool:
    return not any(name.startswith("echomq._child") for name in sys.modules)


class NoAttributes(Exception):
    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise RuntimeError("it has none")


class Registers(Exception):
    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__ or not hasattr(cls, "code"):
            raise RuntimeError("code of a class ran in the worker")


class Below(Registers):
    code = 1


def below() -> BaseException:
    class Hidden(Registers):
        code = 2

    return Hidden("below")


class Reads(Exception):
    """Does harm where it is asked for what a retry policy wants to know."""

    @property
    def response(self) -> Any:
        if is_the_worker():
            raise SystemExit("read in the worker")
        return None

    status = code = exceptions = response


class ReckonsLater(RetryLater):
    """Where ``after`` is code."""

    def __init__(self) -> None:
        Exception.__init__(self, "reckoned")

    @property
    def after(self) -> float:  # type: ignore[override]
        if is_the_worker():
            raise SystemExit("read in the worker")
        return 60.0


NOBODY: Any = object()
"""In place of a job, where some error is made outside of one."""

ERRORS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: Plain("word", number=7),
    "key": lambda: KeyError("course"),
    "file": lambda: FileNotFoundError(2, "No such file", "seat.txt"),
    "local": lambda: type("Local", (ConnectionError,), {})("gone"),
    "group": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "reduce": lambda: BadReduce("reduced"),
    "text": lambda: BadText(),
    "attribute": lambda: BadAttribute("a"),
    "new": lambda: BadNew("anew"),
    "exit": lambda: SystemExit(4),
    "interrupt": lambda: KeyboardInterrupt(),
    "memory": lambda: MemoryError("no more"),
    "cancelled": lambda: asyncio.CancelledError(),
    "stop": lambda: StopIteration(1),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "surrogate": lambda: ValueError("\ud800"),
    "object": lambda: ValueError(object()),
    "large": lambda: ValueError("x" * 1_000_000),
    "unrecoverable": lambda: Unrecoverable("stolen"),
    "later": lambda: RetryLater(60, "not yet"),
    "limited": lambda: RateLimited(0.2),
    "reckoned": lambda: ReckonsLater(),
    "generator": lambda: GeneratorExit("closed"),
    "frozen": lambda: Frozen(3),
    "no attributes": lambda: NoAttributes("x"),
    "below": lambda: Below("x"),
    "hidden": below,
    "frozen in a group": lambda: ExceptionGroup("one", [Frozen(1)]),
    "reads": lambda: Reads("x"),
}


def fail(name: str) -> None:
    raise ERRORS[name]()


def give(value: Any) -> Any:
    return value


def give_object() -> object:
    return object()


def give_text(size: int) -> str:
    return "x" * size


def pid() -> int:
    return os.getpid()


def current() -> Job[Any]:
    job = running_job.get()
    assert isinstance(job, Job)
    return job


def tell() -> list[Any]:
    """Everything that a job can be told of, and asked for."""
    job = current()
    job.update_progress({"done": 1})
    lines = job.log("first"), job.log("second")
    job.update_data({"page": 7})
    job.change_priority  # noqa: B018

    async def later() -> Any:
        await job.log("third")
        found = await job.refresh()
        assert found is not None
        return found.data

    return [*lines, asyncio.run(later()), job.name, job.data]


def tell_in_threads(count: int) -> int:
    job = current()
    threads = [threading.Thread(target=lambda: [job.log("x") for _ in range(count)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines: Any = job.log("last")  # the number itself, where nobody can await
    return int(lines)


def tell_too_late() -> None:
    """A thread that outlives its run, and tells of it while the next one goes on."""
    job = current()

    def late() -> None:
        time.sleep(0.05)
        try:
            job.log("too late")
        except Exception as error:
            log.warning("refused: %s", type(error).__name__)

    threading.Thread(target=late).start()


def write_log() -> int:
    log.warning("a %s record", "child's", extra={"seat": 7, "large": 2**80})
    log.debug("not wanted")
    try:
        raise ValueError("shown")
    except ValueError:
        log.exception("with a traceback")
    return os.getpid()


def print_much() -> str:
    sys.stdout.write("printed by a child\n" * 3)
    os.write(1, b"raw\n")
    return "printed"


def segfault() -> None:
    ctypes.string_at(0)


def leave(code: int) -> NoReturn:
    os._exit(code)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def close_everything() -> None:
    os.closerange(3, 256)


def write_into_the_pipe() -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    time.sleep(60)


def use_up_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1024**3, resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(bytearray(64 * 1024 * 1024))


def hold(size: int) -> int:
    kept.append(bytearray(size))
    return os.getpid()


kept: list[bytearray] = []


def log_in_a_fork(file: str) -> int:
    child = os.fork()
    if child == 0:
        with open(file, "w") as sys.stderr:
            log.warning("from the fork")
        os._exit(0)
    os.waitpid(child, 0)
    log.warning("after the fork")
    return os.getpid()


def fork() -> str:
    child = os.fork()
    if child == 0:
        return "from the fork"  # it comes back, as a child that nobody wanted would
    os.waitpid(child, 0)
    return "from the child"


def start_program(file: str) -> None:
    """A program of its own, which outlives nobody."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(file, "w") as out:
        out.write(str(program.pid))
    compute()


def end_programs() -> list[int]:
    codes = []
    for number in (signal.SIGTERM, signal.SIGINT):
        program = subprocess.Popen(["sleep", "600"])
        program.send_signal(number)
        codes.append(program.wait())
    return codes


def compute(file: str = "") -> None:
    if file:
        with open(file, "w") as out:
            out.write(str(os.getpid()))
    while True:
        sum(range(1000))


def compute_once(file: str) -> str:
    """Computes for ever when it runs first, and is done the second time."""
    if os.path.exists(file):
        return "second"
    compute(file)
    return "never"


def hold_the_interpreter(seconds: float) -> str:
    """A call of C code that does not let go of the interpreter lock."""
    libc = ctypes.PyDLL(None)
    libc.usleep(int(seconds * 1_000_000))
    return "held"


def ignore_signals(file: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    compute(file)


def until(file: str) -> str:
    """Goes on until there is such a file."""
    while not os.path.exists(file):
        time.sleep(0.01)
    return "let go"


def once_begun_until(began: str, file: str) -> int:
    """The same, and says that it has begun."""
    open(began, "w").close()
    until(file)
    return os.getpid()


def nap(seconds: float, file: str = "") -> int:
    if file:
        with open(file, "w") as out:
            out.write(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()
