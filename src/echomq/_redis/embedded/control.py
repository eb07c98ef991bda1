"""Status, start and stop of an embedded server from outside, for people and their scripts."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from echomq._redis.embedded import keeper, places
from echomq._redis.embedded.member import ROUND_LIMIT, Fsync, join, read_record
from echomq.errors import ServerUnavailable

Ending = Literal["stopped", "not running", "in use"]

STOP_LIMIT = 2 * keeper.STOP_LIMIT + 10.0
"""Seconds for a server to end, with what its keeper does about one that does not want to."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an embedded server at one moment; None where it is not running or not known.

    Attributes:
        name: as it is joined.
        path: the data folder, which may not exist.
        running: whether there is a server process.
        state: ``ready``, ``loading`` (it reads its data), ``silent`` (it does not answer) or ``absent``.
        pid: the server process.
        keeper_pid: the process that looks after it.
        kind: ``valkey`` or ``redis``.
        version: of the running server, or of the one that wrote the data.
        socket: where it listens.
        url: the same as a URL.
        in_use: whether a process uses it.
        users: the pids of these processes, where the system tells (Linux).
        kept: whether it was started to run without users (`start`).
        uptime: seconds since this server process started.
        memory: bytes that it uses.
        fsync: ``everysec`` or ``always``.
        aof_size: bytes of the append-only file.
        aof_ok: whether the last write to it succeeded.
    """

    name: str
    path: str
    running: bool
    state: str = "absent"
    pid: int | None = None
    keeper_pid: int | None = None
    kind: str | None = None
    version: str | None = None
    socket: str | None = None
    url: str | None = None
    in_use: bool = False
    users: list[int] | None = None
    kept: bool = False
    uptime: int | None = None
    memory: int | None = None
    fsync: str | None = None
    aof_size: int | None = None
    aof_ok: bool | None = None


def status(name: str = "default") -> Status:
    """Look at a server without starting it.

    Raises:
        InvalidOption: no name of a server that has a folder.
        ServerUnavailable: it is being started or stopped for a minute already.
    """
    folder = places.data_folder(name)
    record = read_record(folder)
    if record is None:
        return Status(name=name, path=str(folder), running=False)
    with _round(name, folder):
        record = read_record(folder) or record
        running = keeper.is_held(str(folder), "server")
        has_keeper = keeper.is_held(str(folder), "keeper")
        in_use = _in_use(folder)
    facts = _facts(record.socket) if running else {}
    number = {key: int(value) for key, value in facts.items() if value.isdigit()}
    return Status(
        name=name,
        path=str(folder),
        running=running,
        state=keeper.health(record.socket, timeout=1.0) if running else "absent",
        pid=keeper.running_pid(str(folder), record) if running else None,
        keeper_pid=keeper.pid_in(str(folder), "keeper") if has_keeper else None,
        kind=record.kind,
        version=facts.get("valkey_version") or facts.get("redis_version") or record.version,
        socket=record.socket,
        url=places.url(record.socket),
        in_use=in_use,
        users=user_pids(folder),
        kept=record.pinned and running,
        uptime=number.get("uptime_in_seconds"),
        memory=number.get("used_memory"),
        fsync=record.fsync,
        aof_size=number.get("aof_current_size"),
        aof_ok=facts["aof_last_write_status"] == "ok" if "aof_last_write_status" in facts else None,
    )


def start(name: str = "default", *, fsync: Fsync = "everysec") -> Status:
    """Start a server that runs on without users until `stop` (or until the machine goes down).

    Raises:
        InvalidOption, UnsupportedServer, ServerUnavailable: as for `join`.
    """
    folder = places.data_folder(name)
    with join(name, fsync=fsync):
        _pin(name, folder)
    return status(name)


def stop(name: str = "default", *, force: bool = False) -> Ending:
    """Stop a server, and wait until it has ended.

    Args:
        name: as it is joined.
        force: also if processes use it. They lose their connections; one that goes on working starts the server again.

    Returns:
        ``stopped``, ``not running``, or ``in use``: then processes use it, ``force`` was not given, and it runs on.

    Raises:
        InvalidOption: no name of a server that has a folder.
        ServerUnavailable: it does not end.
    """
    folder = places.data_folder(name)
    if read_record(folder) is None:
        return "not running"
    with _round(name, folder):
        record = read_record(folder)
        running = keeper.is_held(str(folder), "server")
        has_keeper = keeper.is_held(str(folder), "keeper")
        if record is None or not (running or has_keeper):
            return "not running"
        if _in_use(folder) and not force:
            return "in use"
        if record.pinned:
            record.pinned = False
            record.write(str(folder))
        if not has_keeper:
            try:
                keeper.stop(str(folder), record)
            except OSError as error:
                raise ServerUnavailable(f"the embedded server {name!r} cannot be stopped: {error}") from error
            return "stopped"
        pid = keeper.pid_in(str(folder), "keeper")
    # The keeper stops an unused server by itself; a signal stops a used one.
    if force and pid is not None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGTERM)
    return _wait_for_end(name, folder, pid, force=force)


def _wait_for_end(name: str, folder: Path, pid: int | None, *, force: bool) -> Ending:
    """Wait until the keeper of this pid has ended, and its server with it; a user may have started another at once."""
    deadline = time.monotonic() + STOP_LIMIT
    while time.monotonic() < deadline:
        with _round(name, folder):
            if not keeper.is_held(str(folder), "keeper") or keeper.pid_in(str(folder), "keeper") != pid:
                return "stopped"
            if not force and _in_use(folder):
                return "in use"
        time.sleep(0.05)
    raise ServerUnavailable(
        f"the embedded server {name!r} did not end in {STOP_LIMIT:.0f} seconds; see {folder / 'server.log'}"
    )


def user_pids(folder: Path) -> list[int] | None:
    """The processes that use the server of this folder, where the system tells (Linux)."""
    if not os.path.isdir("/proc/self/fdinfo"):
        return None
    file = os.path.realpath(folder / "users")
    return sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _holds(pid, file))


def _holds(pid: str, file: str) -> bool:
    """Whether the process has this lock file open with a shared lock on it."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False  # it has ended, or is another user's
    for fd in descriptors:
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}") == file:
                info = Path(f"/proc/{pid}/fdinfo/{fd}").read_text(encoding="ascii")
                if re.search(r"^lock:.*FLOCK.*READ", info, re.MULTILINE):
                    return True
        except OSError:
            continue  # closed meanwhile
    return False


def _in_use(folder: Path) -> bool:
    with keeper.lock(str(folder), "users") as users:
        return not users.take()


def _pin(name: str, folder: Path) -> None:
    with _round(name, folder):
        record = read_record(folder)
        if record is not None and not record.pinned:
            record.pinned = True
            record.write(str(folder))


@contextmanager
def _round(name: str, folder: Path) -> Iterator[None]:
    with keeper.lock(str(folder), "start") as start:
        if not start.wait(ROUND_LIMIT):
            raise ServerUnavailable(
                f"another process has been starting or stopping the embedded server {name!r} for {ROUND_LIMIT:.0f} "
                f"seconds; see {folder / 'server.log'}"
            )
        yield


def _facts(socket: str) -> dict[str, str]:
    """What the server tells of itself; nothing if it does not answer."""
    try:
        lines = [line for part in ("server", "memory", "persistence") for line in _info(socket, part)]
    except (OSError, keeper.Refused):
        return {}
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _info(socket: str, section: str) -> list[str]:
    return keeper.ask(socket, "INFO", section, timeout=1.0).splitlines()
