"""The processes of embedded servers, as the kernel knows them: what they have open, not what they call themselves."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

SERVERS = ("valkey-server", "redis-server")

CLOSING_TIME = 10.0
"""Seconds that servers have for ending: they outlive their last user by one, and the machine may be busy."""


def processes_of(*folders: Path) -> dict[int, str]:
    """The living servers and keepers whose data folder is one of these or inside one of these.

    A server renames itself, and a folder may have been deleted under it: it is known by its working folder and its log.
    A keeper is known by its arguments. Users, who only hold a lock file open, are not among them.
    """
    found: dict[int, str] = {}
    if not os.path.isdir("/proc/self/fd"):  # the system does not tell
        return found
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or is another user's
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"keeper.py" in b" ".join(words) and any(_is_in(os.fsdecode(word), folders) for word in words[1:]):
                found[int(pid)] = "keeper"
            elif _is_in(os.readlink(f"/proc/{pid}/cwd"), folders) or _writes_log(pid, folders):
                found[int(pid)] = "server"
    return found


def _writes_log(pid: str, folders: tuple[Path, ...]) -> bool:
    open_files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in ("1", "2") if os.path.lexists(f"/proc/{pid}/fd/{fd}")]
    return any("/server.log" in file and _is_in(file, folders) for file in open_files)


def _is_in(path: str, folders: tuple[Path, ...]) -> bool:
    plain = Path(path.removesuffix(" (deleted)"))
    return any(plain.is_relative_to(folder) for folder in folders)


def assert_no_processes(*folders: Path) -> None:
    """Wait until no server or keeper of these folders lives; end what stays all the same, and fail.

    Raises:
        AssertionError: names what stayed.
    """
    deadline = time.monotonic() + CLOSING_TIME
    while left := processes_of(*folders):
        if time.monotonic() >= deadline:
            words = []
            for pid, role in left.items():
                with suppress(OSError):
                    words.append(f"{role} {pid} in {os.readlink(f'/proc/{pid}/cwd')}")
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"left behind: {'; '.join(words) or left}")
        time.sleep(0.02)


def assert_no_server_children() -> None:
    """Fail when a server that this process started itself still runs.

    Raises:
        AssertionError: names them.
    """
    left = [child for child in psutil.Process().children(recursive=True) if child.name().startswith(SERVERS)]
    if left:
        raise AssertionError(f"left behind: {left}")
