"""Real databases for the tests: PostgreSQL and MariaDB from the system, each in a private folder, on a unix socket only.

They end with the test process, however that ends (on Linux; elsewhere only when that ends by itself).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql

START_TIMEOUT = 30.0
STOP_TIMEOUT = 10.0

# The parent-death signal comes when the *thread* that started the process ends.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="database-starter")


@contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL server; gives its folder, which is the host for its clients: user ``echomq``, database ``postgres``."""
    with _folder() as (folder, as_user):
        data = folder / "data"
        _run(
            [*as_user, _postgres("initdb"), "-D", data, "-U", "echomq", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        )
        command: list[str | Path] = [_postgres("postgres"), "-D", data, "-k", folder, "-h", "", "-F"]

        def look() -> None:
            psycopg.connect(host=str(folder), user="echomq", dbname="postgres").close()

        with _served(as_user, command, folder, look, psycopg.OperationalError, signal.SIGINT):
            yield str(folder)


@contextmanager
def mariadb() -> Iterator[str]:
    """A MariaDB server; gives the path of its socket: user ``root``, database ``test``."""
    with _folder() as (folder, as_user):
        data, path = folder / "data", folder / "s"
        # A tmpdir of its own: a server that starts removes all temporary tables that it finds there, also another's.
        private = ["--no-defaults", f"--datadir={data}", f"--tmpdir={folder}"]
        _run([*as_user, "mariadb-install-db", *private,
              "--auth-root-authentication-method=normal", "--skip-name-resolve"])  # fmt: skip
        command = ["mariadbd", *private, f"--socket={path}", "--skip-networking",
                   "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0",
                   f"--pid-file={folder / 'pid'}", "--innodb-lock-wait-timeout=20"]  # fmt: skip

        def look() -> None:
            with socket.socket(socket.AF_UNIX) as probe:  # PyMySQL leaves a socket behind that was refused
                probe.connect(str(path))
            connection = pymysql.connect(unix_socket=str(path), user="root")
            connection.cursor().execute("CREATE DATABASE IF NOT EXISTS test")
            connection.close()

        with _served(as_user, command, folder, look, (OSError, pymysql.OperationalError), signal.SIGTERM):
            yield str(path)


@contextmanager
def _folder() -> Iterator[tuple[Path, list[str]]]:
    """A private folder, and how to run a command as its owner: these servers refuse to run as root."""
    folder = Path(tempfile.mkdtemp(prefix="echomq-"))
    as_user: list[str] = []
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            as_user = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--"]
        yield folder, as_user
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _served(
    as_user: Sequence[str],
    command: Sequence[str | Path],
    folder: Path,
    look: Callable[[], None],
    refusal: type[Exception] | tuple[type[Exception], ...],
    end: signal.Signals,
) -> Iterator[None]:
    log = folder / "log"
    # The innermost: a change of user would make the kernel forget the signal.
    guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
    with log.open("ab") as output:
        process: subprocess.Popen[bytes] = _starter.submit(
            subprocess.Popen, [*as_user, *guard, *command], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        ).result()  # fmt: skip
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                look()
                break
            except refusal:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command} did not start:\n{log.read_text(errors='replace')[-4000:]}") from None
                time.sleep(0.02)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(end)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run(command: Sequence[Any]) -> None:
    done = subprocess.run(command, capture_output=True, cwd="/", check=False)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{(done.stdout + done.stderr).decode(errors='replace')[-4000:]}")


def _postgres(name: str) -> str:
    """A program of the server; Debian keeps those of each version in a folder that is not on PATH."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    found = shutil.which(name) or (str(beside[-1]) if beside else None)
    if found is None:
        raise FileNotFoundError(f"no {name} on PATH: install PostgreSQL's server (Debian: apt-get install postgresql)")
    return found


@contextmanager
def when_asked_for() -> Iterator[dict[str, Callable[[], str]]]:
    """The two servers, by name; each started when it is first asked for, and ended with the block."""
    started: dict[str, str] = {}
    with ExitStack() as stack:

        def lazily(name: str, start: Callable[[], AbstractContextManager[str]]) -> Callable[[], str]:
            def get() -> str:
                if name not in started:
                    started[name] = stack.enter_context(start())
                return started[name]

            return get

        yield {"postgresql": lazily("postgresql", postgresql), "mariadb": lazily("mariadb", mariadb)}
