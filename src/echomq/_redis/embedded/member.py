"""A process that uses an embedded server: it joins, looks again when the server seems away, and leaves."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self, TypeVar, get_args

from echomq._redis.embedded import keeper, places
from echomq._redis.embedded.binary import Binary, check_can_read, find
from echomq._redis.embedded.keeper import FileLock, Record
from echomq.errors import EchoMQError, InvalidOption, ServerUnavailable, UnsupportedServer

Fsync = Literal["everysec", "always"]

ROUND_LIMIT = 60.0
"""Seconds to wait for other processes' rounds of starting and stopping."""

ANSWER_LIMIT = 30.0
"""Seconds to wait for a server that gives no sign of life."""

LOADING_LIMIT = 1800.0
"""Seconds to wait for a server that is reading its data."""

PROGRESS_INTERVAL = 5.0
"""Seconds between two log lines while the server reads its data."""

SWEEP_AGE = 60.0
"""Seconds after which a folder of a server without persistence is looked at by the next such server's user."""

STARTS = 3
"""How many keepers a joiner puts in place before it gives up; more than one is needed only if somebody kills them."""

_log = logging.getLogger("echomq")

T = TypeVar("T")


def join(name: str = "default", *, fsync: Fsync = "everysec") -> EmbeddedServer:
    """Use the embedded server of this name: start it, or join the processes that use it already.

    It blocks, normally for a few milliseconds, or for a tenth of a second if the server has to start, or until the
    server has read its data. In an event loop use `join_async`.

    Args:
        name: letters, digits, ``-``, ``_`` and ``.``. ``memory`` is a server for this process only, that keeps nothing.
        fsync: how often written data is forced to disk: ``everysec`` or ``always``. The stricter wish of its users
            wins, until the server stops.

    Raises:
        InvalidOption: the name, ``fsync`` or the data folder cannot be used.
        UnsupportedServer: there is no server program, or it is too old, or it cannot read the data.
        ServerUnavailable: the server does not start or does not answer.

    Example:
        >>> with join("orders") as server:
        ...     print(server.url)
        unix:///run/user/1000/echomq/orders-5f2c9d1e08a7b364.sock
    """
    return _joined(name, fsync, threading.Event())


def _joined(name: str, fsync: Fsync, left: threading.Event) -> EmbeddedServer:
    if fsync not in get_args(Fsync):
        raise InvalidOption(f"fsync {fsync!r}: data is forced to disk 'everysec' or 'always'; choose one of them")
    if name == places.MEMORY:
        sweep_memory_folders()
        folder = places.memory_folder()
    else:
        folder = places.data_folder(name)
        places.make_data_folder(folder)
    server = EmbeddedServer(name, folder, fsync, left)
    server._join()
    return server


async def join_async(name: str = "default", *, fsync: Fsync = "everysec") -> EmbeddedServer:
    """`join` without blocking the event loop. If the caller is cancelled meanwhile, the server is left again."""
    left = threading.Event()
    joining = in_thread(functools.partial(_joined, name, fsync, left))
    try:
        return await asyncio.wrap_future(joining)
    except asyncio.CancelledError:
        left.set()
        joining.add_done_callback(_leave_again)  # in the thread: the loop may be gone by then
        raise


def _leave_again(joining: Future[EmbeddedServer]) -> None:
    if not joining.cancelled() and joining.exception() is None:
        joining.result().close()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Does it in a thread for which the interpreter does not wait at its end, as it would for one of an executor.

    A server may take half an hour to read its data; and whoever ends while it joins leaves nothing.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            found = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=run, name="echomq embedded", daemon=True).start()
    return future


class EmbeddedServer:
    """This process's share in an embedded server, from `join` until `close` or until the process ends, however it ends.

    Joining twice gives two shares. A forked child has none: it joins for itself, or relies on its parent.

    Attributes:
        name: as it was joined.
        path: the data folder.
        socket: the path of the server's socket.
        url: the same as a URL, ``unix:///…``. It stays the same when the server is restarted.
    """

    def __init__(self, name: str, path: Path, fsync: Fsync, left: threading.Event) -> None:
        self.name = name
        self.path = path
        self.socket: str = ""
        self._fsync = fsync
        self._left = left
        self._users: FileLock | None = None

    @property
    def url(self) -> str:
        return places.url(self.socket)

    @property
    def pid(self) -> int | None:
        """The server's process; another one after a restart. None while it has none."""
        return keeper.pid_in(str(self.path), "server")

    def close(self) -> None:
        """Leave the server; the last user's leaving stops it, about a second later. Leaving twice does nothing."""
        self._left.set()
        if self._users is not None:
            self._users.close()

    def ensure(self) -> None:
        """Look after the server: if its keeper was killed, put a new one in its place; wait until the server answers.

        To be called when the server seems away. It blocks as `join` does, and raises the same errors.
        """
        if self._users is None or self._users.fd < 0:
            raise ServerUnavailable(f"the embedded server {self.name!r} was left by this process; join it again")
        self._start_until_ready()

    async def ensure_async(self) -> None:
        """`ensure` without blocking the event loop."""
        await asyncio.wrap_future(in_thread(self.ensure))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {self.name!r} {self.url}>"

    def _join(self) -> None:
        try:
            self._start_until_ready()
            if self._fsync == "always":
                # A server that was running before us may have been started with less.
                keeper.ask(self.socket, "CONFIG", "SET", "appendfsync", "always", timeout=ANSWER_LIMIT)
        except keeper.Refused as error:
            self.close()
            raise ServerUnavailable(f"the embedded server {self.name!r} refuses fsync='always': {error}") from error
        except OSError as error:
            self.close()
            if isinstance(error, EchoMQError):
                raise
            raise ServerUnavailable(self._explain(error)) from error
        except BaseException:
            self.close()
            raise

    def _explain(self, error: OSError) -> str:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            return (
                f"the embedded server's data folder {str(self.path)!r} is on a file system without locks ({error}); "
                "set ECHOMQ_HOME to a folder on a local disk"
            )
        return f"the embedded server {self.name!r} in {str(self.path)!r} cannot be started: {error}"

    def _start_until_ready(self) -> None:
        for _ in range(STARTS):
            report = self._enter()
            try:
                if self._is_ready(report):
                    return
            finally:
                if report is not None:
                    os.close(report)
        raise ServerUnavailable(
            f"the embedded server {self.name!r}: its keeper was killed {STARTS} times while the server started; "
            f"see {self.path / 'server.log'}"
        )

    def _enter(self) -> int | None:
        """One ``start`` round: become a user, and start a keeper if there is none. Its report, if it is ours."""
        folder = str(self.path)
        with keeper.lock(folder, "start") as start:
            if not start.wait(ROUND_LIMIT):
                raise ServerUnavailable(
                    f"another process has been starting or stopping the embedded server {self.name!r} for "
                    f"{ROUND_LIMIT:.0f} seconds; see {self.path / 'server.log'}"
                )
            if self._users is None:
                self._users = keeper.lock(folder, "users")
                if not self._users.wait(ROUND_LIMIT, shared=True):
                    raise ServerUnavailable(
                        f"another process has held {self._users.path} for {ROUND_LIMIT:.0f} seconds, so this one cannot say that "
                        f"it uses the embedded server {self.name!r}; end that process"
                    )
            if keeper.is_held(folder, "keeper"):
                running = read_record(self.path)
                if running is None:
                    raise UnsupportedServer(
                        f"{self.path / Record.FILE} was removed while the server runs; end the processes that use it"
                    )
                self._require_fsync(running)
                keeper.make_private_folder(os.path.dirname(running.socket))
                self.socket = running.socket
                return None
            program = find()
            record = self._prepare(program, is_running=keeper.is_held(folder, "server"))
            self.socket = record.socket
            return start_keeper(folder, program, start)

    def _prepare(self, program: Binary, *, is_running: bool) -> Record:
        """The record for a keeper to start with.

        A server may still run, though its keeper was killed. The new keeper ends it, and its successor is for its users:
        so where it listens and what was asked of it stay.
        """
        old = read_record(self.path)
        if old is not None:
            check_can_read(program, old, str(self.path))
        left = old if is_running else None
        persistent = self.name != places.MEMORY
        new = Record(
            kind=program.kind,
            version=".".join(map(str, program.version)),
            created=old.created if old is not None else datetime.now(UTC).isoformat(timespec="seconds"),
            socket=places.socket_path(self.path) if left is None else left.socket,
            fsync=self._fsync if left is None or left.fsync != "always" else "always",
            persistent=persistent,
            pinned=left is not None and left.pinned,
        )
        if old is None or vars(old) != vars(new):
            new.write(str(self.path))
        return new

    def _require_fsync(self, record: Record) -> None:
        if self._fsync == "always" and record.fsync != "always":
            record.fsync = "always"
            record.write(str(self.path))

    def _is_ready(self, report: int | None) -> bool:
        """Wait until the server answers. False: its keeper has died, and a new one is needed.

        Whoever started the keeper waits for the keeper's word, because before that a server that ends is a failed start
        (for us to report), and after that an accident (for the keeper to mend).
        """
        began = last_sign = last_progress = time.monotonic()
        pause = 0.002
        while True:
            if report is not None and (said := self._keeper_says(report, pause)) is not None:
                return said
            state = keeper.health(self.socket, timeout=1.0)
            if state == "ready" and report is None:
                return True
            now = time.monotonic()
            if state in ("ready", "loading"):
                last_sign = now
            if state == "loading" and now - last_progress >= PROGRESS_INTERVAL:
                last_progress = now
                _log.info("embedded server %r is reading its data: %s", self.name, loading_progress(self.socket))
            if now - last_sign > ANSWER_LIMIT or now - began > LOADING_LIMIT:
                raise ServerUnavailable(
                    f"the embedded server {self.name!r} at {self.socket} does not answer: it has been {state} for "
                    f"{now - began:.0f} seconds; see `echomq server status {self.name}` and {self.path / 'server.log'}"
                )
            if self._left.is_set():
                raise ServerUnavailable(f"the embedded server {self.name!r} was left while it started")
            if report is None:
                self._left.wait(pause)
                if pause >= 0.05 and not self._has_keeper():
                    return False
            pause = min(pause * 1.5, 0.05)

    def _keeper_says(self, report: int, seconds: float) -> bool | None:
        """Wait a moment for the keeper's word: the server is ready, or (False) the keeper died. Raises if it failed."""
        poll = select.poll()  # select() refuses descriptors from 1,024 on
        poll.register(report, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return None
        text = os.read(report, 8192).decode(errors="replace")
        if text.startswith("failed "):
            raise ServerUnavailable(
                f"the embedded server {self.name!r} does not start: {text.removeprefix('failed ')}; "
                f"see {self.path / 'server.log'}"
            )
        return text == "ready"

    def _has_keeper(self) -> bool:
        with keeper.lock(str(self.path), "start") as start:
            return not start.wait(ROUND_LIMIT) or keeper.is_held(str(self.path), "keeper")


def read_record(folder: Path) -> Record | None:
    """The folder's record, if it has one.

    Raises:
        UnsupportedServer: it cannot be understood.
    """
    try:
        return Record.read(str(folder))
    except ValueError as error:
        raise UnsupportedServer(
            f"{error}; without it nobody knows which server can read the data in {str(folder)!r}: "
            "use another name, or remove this file to let the present server try"
        ) from error


def loading_progress(socket: str) -> str:
    """What the server says of its reading, such as ``42.10%, 7 s left``."""
    try:
        lines = keeper.ask(socket, "INFO", "persistence", timeout=1.0).splitlines()
    except (OSError, keeper.Refused):
        return "no details"
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return f"{facts.get('loading_loaded_perc', '?')}%, {facts.get('loading_eta_seconds', '?')} s left"


def start_keeper(folder: str, program: Binary, start: FileLock) -> int:
    """Start the keeper, inside a ``start`` round, which passes on to it. Returns the pipe on which it reports."""
    report, writer = os.pipe()
    try:
        starter = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", keeper.__file__, folder, program.path, str(start.fd), str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(start.fd, writer),
        )
        start.leave()
        # It forks and ends; the keeper is nobody's child. If it is killed, it is as with a killed keeper: no word comes.
        if starter.wait() > 0:
            raise OSError(f"{sys.executable} {keeper.__file__} ended with code {starter.returncode}")
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(writer)
    return report


def sweep_memory_folders() -> None:
    """Remove what servers without persistence left behind whose user and keeper were both killed."""
    for folder in places.temporary_folder().glob(f"{places.MEMORY}-*"):
        try:
            if time.time() - folder.stat().st_mtime > SWEEP_AGE and (folder / Record.FILE).exists():
                _sweep(str(folder))
        except OSError as error:
            _log.debug("cannot remove %s: %s", folder, error)


def _sweep(folder: str) -> None:
    with keeper.lock(folder, "start") as start, keeper.lock(folder, "users") as users:
        if start.take() and users.take() and not keeper.is_held(folder, "keeper"):
            record = Record.read(folder)
            if record is not None:
                keeper.stop(folder, record)
                keeper.remove_folder(folder)
