"""``echomq worker``: works the queues of an app, in one process or several."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated, Any, Final, NoReturn

import typer

from echomq import Backoff, EchoMQ, EchoMQError, OutcomesNotStored, RetryPolicy, Worker
from echomq.cli._logs import LogFormat, log_to_stderr
from echomq.cli._loop import run_in_loop
from echomq.cli._shell import seconds_option

EXIT_NOT_STORED: Final = 75
"""EX_TEMPFAIL: the server was away while the worker stopped; the jobs that it names will run again."""

CONCURRENCY: Final = 10
SHUTDOWN_TIMEOUT: Final = 25.0

_RESTART_PAUSE: Final = 1.0
_LOOK_EVERY: Final = 0.05
_WATCH_EVERY: Final = 1.0
_CHILD: Final = "ECHOMQ_WORKER_CHILD"
_OWN_SERVER: Final = "embedded://memory"
_SHARED_SERVER: Final = "use embedded://NAME, which processes share"
_POLICIES: Final = {"default": RetryPolicy.DEFAULT, "always": RetryPolicy.ALWAYS}
_OURS: Final = str(Path(__file__).parents[1])


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Where the app is: package.module:name. An EchoMQ, or a Worker, which has its own queue, concurrency and "
            "shutdown_timeout, and whatever else a Worker can be given.",
        ),
    ],
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Queues to work; left out, those that its tasks name."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"Jobs at once, for each queue and process; left out, {CONCURRENCY}.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes.")] = 1,
    metrics_points: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100_000,
            metavar="MINUTES",
            help="Keep counts of the jobs that end in each of the last minutes; left out, none.",
            show_default=False,
        ),
    ] = None,
    shutdown_timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help=f"What running jobs get to finish; left out, {SHUTDOWN_TIMEOUT:g}.",
            show_default=False,
        ),
    ] = None,
    retry_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Which errors are worth another attempt, for tasks that do not say: default, always, or where a RetryPolicy "
            "is: package.module:name.",
            show_default=False,
        ),
    ] = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option("--dead-letter", help="Each job that fails for good leaves a dead letter.", show_default=False),
    ] = None,
    max_stalled_count: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="How often a job's workers may die before --on-crash-limit holds; left out, once.",
            show_default=False,
        ),
    ] = None,
    on_crash_limit: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What becomes of a job whose workers died more often: fail, dead_letter or backoff; left out, fail.",
            show_default=False,
        ),
    ] = None,
    crash_backoff: Annotated[
        float | None,
        seconds_option(
            "--crash-backoff", help="What backoff waits at first, and each time double; left out, a minute."
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Touched when every process takes jobs; removed at the end, and while an event loop is held up for longer than "
            "a lock lasts.",
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    log_format: Annotated[
        LogFormat, typer.Option(help="As text, or one JSON object a line, with queue, job_id and job_name.")
    ] = LogFormat.text,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print events (ready, stopped) as JSON lines, on the standard output, where also goes what handlers print.",
        ),
    ] = False,
) -> None:
    """Take jobs and run them, until SIGTERM or SIGINT (Ctrl-C).

    Then it fetches no more, lets running jobs finish, cancels what is left and gives it back, so that another worker runs
    it. A second signal gives running jobs back at once. Exit code 75: the server was away, and outcomes could not be stored.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        _refuse(f"--log-level {log_level}: must be debug, info, warning or error")
    log_to_stderr(level, log_format)
    found = _load(target)
    given = {
        "concurrency": concurrency,
        "shutdown_timeout": shutdown_timeout,
        "retry_policy": None if retry_policy is None else _retry_policy(retry_policy),
        "dead_letter": dead_letter,
        "max_stalled_count": max_stalled_count,
        "on_crash_limit": on_crash_limit,
        "metrics_points": metrics_points,
        "crash_backoff": None if crash_backoff is None else Backoff.exponential(crash_backoff),
    }
    workers = _workers(
        target, found, queues or [], {option: value for option, value in given.items() if value is not None}
    )
    if found.connection.where == _OWN_SERVER:
        _has_its_own_server(target, processes)
    announce = _Announcer(ready_file, as_json, log_format)
    code = _Group(processes, announce).run() if processes > 1 else run_in_loop(_work(workers, announce))
    announce.stopped(code)
    raise typer.Exit(code)


def _refuse(message: str) -> NoReturn:
    typer.echo(f"echomq worker: {message}", err=True)
    raise typer.Exit(2)


def _load(target: str) -> EchoMQ | Worker:
    module, found = _named(target, "school:app")
    if not isinstance(found, EchoMQ | Worker):
        _refuse(
            f"{target!r}: must name an EchoMQ or a Worker, and is of type {type(found).__name__}; {_what_it_has(module)}"
        )
    return found


def _retry_policy(given: str) -> RetryPolicy:
    if given in _POLICIES:
        return _POLICIES[given]
    if ":" not in given:
        _refuse(
            f"--retry-policy {given}: must be {', '.join(_POLICIES)}, or package.module:name, such as school:policy"
        )
    _, found = _named(given, "school:policy")
    if not isinstance(found, RetryPolicy):
        _refuse(f"--retry-policy {given}: must name a RetryPolicy, and is of type {type(found).__name__}")
    return found


def _named(target: str, example: str) -> tuple[ModuleType, Any]:
    """What ``package.module:name`` is, and its module."""
    file, _, name = target.partition(":")
    if file.endswith(".py") or "/" in file:
        module_name = os.path.relpath(file).removesuffix(".py").replace("/", ".")
        remedy = f"write {module_name}:{name or example.partition(':')[2]}"
        if module_name.startswith("."):
            remedy = "run the command in its folder"
        _refuse(f"{target!r}: must name a module, not a file; {remedy}")
    if not file or not name:
        _refuse(f"{target!r}: must be package.module:name, such as {example}")
    module = _imported(target, file)
    try:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        _refuse(f"{target!r}: the module {file} has no {name!r}; {_what_it_has(module)}")
    return module, found


def _imported(target: str, name: str) -> ModuleType:
    folder = os.getcwd()
    if "" not in sys.path and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name or (error.name is not None and name.startswith(f"{error.name}.")):
            _refuse(
                f"{target!r}: there is no module {error.name!r} in {folder} or on Python's path; run the command in the "
                "folder where it is"
            )
        failure: Exception = error
    except Exception as error:  # whatever the user's own code raises
        failure = error
    failure.__traceback__ = _from_the_module_on(failure.__traceback__)
    if isinstance(failure, EchoMQError):  # it says what is wrong and what to do; all that is missing is where
        _refuse(f"{target!r}: {failure}{_place(failure.__traceback__)}")
    typer.echo(f"echomq worker: {target!r}: the module {name} cannot be imported:", err=True)
    traceback.print_exception(failure)
    raise typer.Exit(1)


def _from_the_module_on(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that only say how we and importlib came to run the module."""
    ours = (__file__, importlib.__file__, "<frozen importlib")
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(ours):
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType | None) -> str:
    """Where the user's code was."""
    theirs = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_OURS)]
    return f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""


def _has_its_own_server(target: str, processes: int) -> None:
    """Each process has its own server then, which keeps nothing, and which no other program reaches."""
    if processes > 1:
        _refuse(
            f"{target} is at {_OWN_SERVER}, a server for one process alone, so --processes {processes} would be as many servers; "
            f"{_SHARED_SERVER}"
        )
    logging.getLogger("echomq").warning(
        "%s is at %s, a server for this process alone: no other program can add a job; %s",
        target,
        _OWN_SERVER,
        _SHARED_SERVER,
    )


def _what_it_has(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, EchoMQ | Worker))
    return f"it has: {', '.join(names)}" if names else "it has no EchoMQ and no Worker at all"


def _workers(target: str, found: EchoMQ | Worker, queues: Sequence[str], options: Mapping[str, Any]) -> list[Worker]:
    if isinstance(found, Worker):
        if queues:
            _refuse_to_worker(target, "queue", "leave the queue names out")
        for option, value in options.items():
            word = "--" + option.replace("_", "-")
            written = f"{value:g}" if isinstance(value, float) else repr(value)
            _refuse_to_worker(target, option, f"leave {word} out, or write Worker(…, {option}={written})")
        return [found]
    named = sorted({task.queue for task in found.tasks.values()})
    if not queues and not named:
        _refuse("the app has no task, so there is no queue to work: name one, or give the app a task")
    settings = {"concurrency": CONCURRENCY, "shutdown_timeout": SHUTDOWN_TIMEOUT, **options}
    try:
        workers = [found.worker(name, **settings) for name in queues or named]
    except EchoMQError as error:
        _refuse(str(error))
    strange = [name for name in queues if name not in named]
    if strange and _CHILD not in os.environ:
        logging.getLogger("echomq").warning(
            "no task of %s names the queue %s; its tasks name: %s",
            target,
            ", ".join(map(repr, strange)),
            ", ".join(map(repr, named)) or "none",
        )
    return workers


def _refuse_to_worker(target: str, option: str, remedy: str) -> NoReturn:
    _refuse(f"{target} is a Worker, which has its {option}; {remedy}")


class _Announcer:
    """Says when all is ready, stops and has stopped: to people, programs, and whoever watches a file."""

    def __init__(self, ready_file: Path | None, as_json: bool, log_format: LogFormat) -> None:
        self._ready_file = ready_file
        self._as_json = as_json
        self._log_format = log_format

    def ready(self, names: Sequence[str]) -> None:
        self.healthy(True)
        if _CHILD in os.environ:
            _tell_parent(list(names))
        elif self._as_json:
            print(json.dumps({"event": "ready", "workers": list(names), "pid": os.getpid()}), flush=True)  # noqa: T201
        else:
            self._say(f"ready: {', '.join(names)}")

    def healthy(self, is_healthy: bool) -> None:
        """Lets the file come and go. Called in any thread."""
        if self._ready_file is not None and is_healthy:
            self._ready_file.touch()
        elif self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

    def stopping(self) -> None:
        if _CHILD not in os.environ:
            self._say("stopping: running jobs may finish; a second signal (or Ctrl-C) gives them back at once")

    def stopped(self, code: int) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        if self._as_json and _CHILD not in os.environ:
            print(json.dumps({"event": "stopped", "code": code, "pid": os.getpid()}), flush=True)  # noqa: T201

    def _say(self, text: str) -> None:
        """Among the lines of the log, in one write, since threads of handlers log meanwhile."""
        if self._log_format is LogFormat.json:
            logging.getLogger("echomq").info("%s", text)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _tell_parent(news: list[str] | bool) -> None:
    """The names of workers that are ready, or whether they are healthy."""
    with contextlib.suppress(OSError):  # it is gone, and `_parent_gone` will stop us
        os.write(int(os.environ[_CHILD]), json.dumps(news).encode() + b"\n")


class _Watch:
    """Follows the health of workers from a thread of its own: where the event loop is held up, nothing in it can tell.

    Args:
        tell: called in that thread when it changes.
    """

    def __init__(self, workers: Sequence[Worker], tell: Callable[[bool], None]) -> None:
        self._workers = workers
        self._tell = tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echomq watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        was_healthy = True
        while not self._stop.wait(_WATCH_EVERY):
            is_healthy = all(one.is_healthy for one in self._workers)
            if is_healthy != was_healthy:
                was_healthy = is_healthy
                self._tell(is_healthy)


async def _work(workers: list[Worker], announce: _Announcer) -> int:
    loop = asyncio.get_running_loop()
    asked = 0
    stop = asyncio.Event()

    def on_signal() -> None:
        nonlocal asked
        asked += 1
        stop.set()
        if asked == 1:
            announce.stopping()
        else:
            closing.extend(loop.create_task(_quietly(one.close(force=True))) for one in workers)

    closing: list[asyncio.Task[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    parent = loop.create_task(_parent_gone(stop)) if os.environ.get(_CHILD) else None
    running = [loop.create_task(one.run()) for one in workers]
    watch = _Watch(workers, _tell_parent if _CHILD in os.environ else announce.healthy)
    ready = loop.create_task(_all_ready(workers, announce, stop, watch))
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
        ends = await asyncio.gather(*(one.close() for one in workers), *running, return_exceptions=True)
    finally:
        for task in (ready, stopping, *([parent] if parent else [])):
            task.cancel()
        await asyncio.gather(ready, stopping, *closing, *([parent] if parent else []), return_exceptions=True)
        watch.stop()
    code = 0
    for end in ends:
        if isinstance(end, OutcomesNotStored):
            logging.getLogger("echomq").error("%s", end)
            code = EXIT_NOT_STORED
        elif isinstance(end, EchoMQError):
            logging.getLogger("echomq").error("%s", end)
            code = code or 1
        elif isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end
    return code


async def _all_ready(workers: list[Worker], announce: _Announcer, stop: asyncio.Event, watch: _Watch) -> None:
    with contextlib.suppress(EchoMQError):  # why a worker cannot start is said once, when it has ended
        await asyncio.gather(*(one.ready() for one in workers))
        # The wait also ends when a worker stops before it was ready.
        if not stop.is_set() and all(one.is_running for one in workers):
            announce.ready([one.name for one in workers])
            watch.start()


async def _quietly(closing: Any) -> None:
    with contextlib.suppress(EchoMQError):
        await closing


async def _parent_gone(stop: asyncio.Event) -> None:
    """A child watches a pipe whose other end its parent holds: it stops in order when the parent is gone, however it went."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def readable() -> None:
        loop.remove_reader(0)
        gone.set_result(None)

    loop.add_reader(0, readable)
    await gone
    stop.set()


class _Group:
    """Several worker processes under one parent, which passes signals on and replaces a process that dies.

    A child is in a session of its own, so that Ctrl-C reaches it once, through its parent; it stops when its parent is gone.
    """

    def __init__(self, size: int, announce: _Announcer) -> None:
        self._size = size
        self._announce = announce
        self._children: list[subprocess.Popen[bytes]] = []
        self._pipes: dict[int, int] = {}
        self._held_up: set[int] = set()
        self._names: list[str] = []
        self._signals: list[int] = []

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: self._signals.append(received))
        for _ in range(self._size):
            self._spawn()
        worst, passed_on, announced = 0, 0, False
        while self._children:
            while passed_on < len(self._signals):
                passed_on += 1
                if passed_on == 1:
                    self._announce.stopping()
                for child in self._children:
                    child.send_signal(signal.SIGTERM)
            was_held_up = bool(self._held_up)
            self._listen()
            if not announced and len(self._names) >= self._size:
                announced = True
                self._announce.ready(self._names)
            if announced and bool(self._held_up) != was_held_up:
                self._announce.healthy(was_held_up)
            for child in [child for child in self._children if child.poll() is not None]:
                self._children.remove(child)
                worst = max(worst, self._ended(child))
        return worst

    def _listen(self) -> None:
        """Waits a moment; hears which children are ready, and which are held up."""
        readable, _, _ = select.select(list(self._pipes), [], [], _LOOK_EVERY)
        for descriptor in readable:
            pid = self._pipes[descriptor]
            told = os.read(descriptor, 65536)
            for line in told.splitlines():
                news = json.loads(line)
                if isinstance(news, list):
                    self._names += news
                else:
                    (self._held_up.discard if news else self._held_up.add)(pid)
            if not told:  # it has ended
                os.close(descriptor)
                del self._pipes[descriptor]
                self._held_up.discard(pid)

    def _ended(self, child: subprocess.Popen[bytes]) -> int:
        code = child.returncode
        if self._signals:
            if code == -signal.SIGTERM:
                return 0  # it was still starting, and had no job
            return code if code >= 0 else 128 - code
        if code >= 0:  # it ended by itself: a wrong setting, which a new process would meet as well
            self._signals.append(signal.SIGTERM)
            return code
        logging.getLogger("echomq").error("worker process %d died of signal %d; a new one starts", child.pid, -code)
        time.sleep(_RESTART_PAUSE)
        self._spawn()
        return 0

    def _spawn(self) -> None:
        ours, theirs = os.pipe()
        arguments = [*_without(_without(sys.argv[1:], "--ready-file"), "--processes"), "--processes=1"]
        self._children.append(
            subprocess.Popen(
                [sys.executable, "-m", "echomq.cli", *arguments],
                stdin=subprocess.PIPE,  # never written to: its end tells the child that we are gone
                pass_fds=[theirs],
                env={**os.environ, _CHILD: str(theirs)},
                start_new_session=True,
            )
        )
        os.close(theirs)
        self._pipes[ours] = self._children[-1].pid


def _without(arguments: list[str], option: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
