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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from echomq import EchoMQ, EchoMQError, OutcomesNotStored, Worker

EXIT_NOT_STORED: Final = 75
"""EX_TEMPFAIL: the server was away while the worker stopped; the jobs that it names will run again."""

_RESTART_PAUSE: Final = 1.0
_LOOK_EVERY: Final = 0.05
_CHILD: Final = "ECHOMQ_WORKER_CHILD"


def worker(
    target: Annotated[str, typer.Argument(help="Where the app is: package.module:name (an EchoMQ or a Worker).")],
    queues: Annotated[
        list[str] | None, typer.Argument(help="Queues to work; left out, those that its tasks name.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs at once, for each queue and process.")] = 10,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    shutdown_timeout: Annotated[float, typer.Option(min=0, help="Seconds that running jobs get to finish.")] = 25.0,
    ready_file: Annotated[
        Path | None, typer.Option(help="Touched when every process takes jobs; removed at the end.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print events (ready, stopped) as JSON lines.")] = False,
) -> None:
    """Take jobs and run them, until SIGTERM or SIGINT: then let jobs finish, cancel what is left and give it back.

    A second signal gives running jobs back at once. Exit code 75: the server was away, and outcomes could not be stored.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        _refuse(f"--log-level {log_level}: must be debug, info, warning or error")
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s", stream=sys.stderr
    )
    found = _load(target)
    if isinstance(found, Worker) and queues:
        _refuse(f"{target} is a Worker, which has its queue; leave the queue names out")
    announce = _Announcer(ready_file, as_json)
    if processes > 1:
        code = _Group(processes, announce).run()
    else:
        code = _run(_workers(found, queues or [], concurrency, shutdown_timeout), announce)
    announce.stopped(code)
    raise typer.Exit(code)


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def _load(target: str) -> EchoMQ | Worker:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        _refuse(f"{target!r}: must be package.module:name, such as school:app")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        _refuse(f"{target!r}: there is no module {error.name!r} here or on the path; run the command beside it")
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        _refuse(f"{target!r}: {error}")
    if not isinstance(found, EchoMQ | Worker):
        _refuse(f"{target!r} is a {type(found).__name__}; it must be an EchoMQ or a Worker")
    return found


def _workers(found: EchoMQ | Worker, queues: Sequence[str], concurrency: int, shutdown_timeout: float) -> list[Worker]:
    if isinstance(found, Worker):
        return [found]
    names = queues or sorted({task.queue for task in found.tasks.values()})
    if not names:
        _refuse("the app has no task, so there is no queue to work: name one, or give the app a task")
    try:
        return [found.worker(name, concurrency=concurrency, shutdown_timeout=shutdown_timeout) for name in names]
    except EchoMQError as error:
        _refuse(str(error))


class _Announcer:
    """Says when all is ready and when it has stopped: to people, programs, and whoever watches a file."""

    def __init__(self, ready_file: Path | None, as_json: bool) -> None:
        self._ready_file = ready_file
        self._as_json = as_json

    def ready(self, names: Sequence[str]) -> None:
        if self._ready_file is not None:
            self._ready_file.touch()
        if _CHILD in os.environ:
            os.write(int(os.environ[_CHILD]), json.dumps(list(names)).encode() + b"\n")
        elif self._as_json:
            print(json.dumps({"event": "ready", "workers": list(names), "pid": os.getpid()}), flush=True)  # noqa: T201
        else:
            print(f"ready: {', '.join(names)}", file=sys.stderr, flush=True)  # noqa: T201

    def stopped(self, code: int) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)
        if self._as_json and _CHILD not in os.environ:
            print(json.dumps({"event": "stopped", "code": code, "pid": os.getpid()}), flush=True)  # noqa: T201


def _run(workers: list[Worker], announce: _Announcer) -> int:
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(_work(workers, announce))
    return uvloop.run(_work(workers, announce))


async def _work(workers: list[Worker], announce: _Announcer) -> int:
    loop = asyncio.get_running_loop()
    asked = 0
    stop = asyncio.Event()

    def on_signal() -> None:
        nonlocal asked
        asked += 1
        stop.set()
        if asked > 1:
            closing.extend(loop.create_task(_quietly(one.close(force=True))) for one in workers)

    closing: list[asyncio.Task[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    parent = loop.create_task(_parent_gone(stop)) if os.environ.get(_CHILD) else None
    running = [loop.create_task(one.run()) for one in workers]
    ready = loop.create_task(_all_ready(workers, announce))
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
        ends = await asyncio.gather(*(one.close() for one in workers), *running, return_exceptions=True)
    finally:
        for task in (ready, stopping, *([parent] if parent else [])):
            task.cancel()
        await asyncio.gather(ready, stopping, *closing, *([parent] if parent else []), return_exceptions=True)
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


async def _all_ready(workers: list[Worker], announce: _Announcer) -> None:
    with contextlib.suppress(EchoMQError):  # why a worker cannot start is said once, when it has ended
        await asyncio.gather(*(one.ready() for one in workers))
        announce.ready([one.name for one in workers])


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
        self._ready: dict[int, int] = {}
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
                for child in self._children:
                    child.send_signal(signal.SIGTERM)
            self._listen()
            if not announced and len(self._names) >= self._size:
                announced = True
                self._announce.ready(self._names)
            for child in [child for child in self._children if child.poll() is not None]:
                self._children.remove(child)
                worst = max(worst, self._ended(child))
        return worst

    def _listen(self) -> None:
        """Waits a moment; hears which children are ready."""
        readable, _, _ = select.select(list(self._ready), [], [], _LOOK_EVERY)
        for descriptor in readable:
            line = os.read(descriptor, 65536)
            if line:
                self._names += json.loads(line)
            else:
                os.close(descriptor)
                del self._ready[descriptor]

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
        self._ready[ours] = self._children[-1].pid


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
