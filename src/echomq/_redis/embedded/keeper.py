"""The keeper: a small process, the parent of one embedded server from its start to its end.

It is run by path with ``python -s -S -P``, so that it starts in a few milliseconds, and therefore imports nothing
outside the standard library; what it shares with the processes that join (locks, the record, a question to the server)
stands here too.

Four lock files in the data folder decide everything. The kernel frees a lock when its holder ends, however it ends.

    start    exclusive   one round of starting or stopping at a time; whoever starts a keeper passes its round on to it
    users    shared      held by every user; when the keeper can take it exclusively, no user is left
    keeper   exclusive   held by the keeper, with its pid inside; a free one means that the keeper has died
    server   exclusive   inherited by the server, with its pid inside; so two servers never run on one folder

Whether ``keeper`` and ``server`` are held is asked only inside a ``start`` round, or by the keeper itself, because
asking is trying to take them. Whoever holds ``users`` exclusively waits for no lock, so no two wait for one another.

A server lives no longer than its keeper, so none is left that nobody stops. The keeper ends it; if the keeper is
killed, the kernel does: it sends the server SIGTERM (Linux). What is left all the same ends at the next start on its
folder: a server that cannot obey then (in a script without an end), and on other systems any whose keeper was killed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

TICK = 0.5
"""Seconds between two looks at the users and the server; the end of the server itself wakes the keeper at once."""

STARTING_TICK = 0.005
"""The first pause while a server starts, because somebody waits for it; the pauses grow to TICK."""

LINGER = 1.0
"""Seconds that the server outlives its last user, so that scripts run one after another find it warm."""

STOP_LIMIT = 20.0
"""Seconds for a server to write its append-only file and end, before it is killed."""

BACKOFF = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between the starts of a server that ends again and again; the last one repeats."""

STEADY = 5.0
"""Seconds that a server has to live for its end to be an accident: then it is started again at once."""

LOG_LIMIT = 1 << 20
"""Bytes after which the server's log is set aside when a server starts; one older log is kept."""


# --- locks ---------------------------------------------------------------------------

# A flock belongs to the open file, which a forked child shares: a child that lives longer would keep our locks after
# our death. So every lock of this process is known here, and a child closes (never unlocks) its copies first of all.
_forking = threading.RLock()
_held: set[FileLock] = set()


def _forget_after_fork() -> None:
    for lock in _held:
        os.close(lock.fd)
        lock.fd = -1
    _held.clear()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forget_after_fork)


class FileLock:
    """One open lock file. It is closed in forked children and in programs that this process starts."""

    def __init__(self, path: str, *, fd: int | None = None) -> None:
        with _forking:
            self.path = path
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if fd is None else fd
            _held.add(self)

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock if that is possible now."""
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def wait(self, seconds: float, *, shared: bool = False) -> bool:
        """Take the lock within a time; by trying, because the system call that waits knows no limit."""
        deadline, pause = time.monotonic() + seconds, 0.001
        while not self.take(shared=shared):
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return True

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the lock back. A lock that a forked child has forgotten, or that is closed already, stays so."""
        self._close(unlock=True)

    def leave(self) -> None:
        """Close our copy; the process that inherited the lock goes on holding it."""
        self._close(unlock=False)

    def _close(self, *, unlock: bool) -> None:
        with _forking:
            if self.fd < 0:
                return
            fd, self.fd = self.fd, -1
            _held.discard(self)
            if unlock:
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def write_pid(self, pid: int) -> None:
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, b"%d\n" % pid, 0)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def lock(folder: str, name: str) -> FileLock:
    """Open (not take) one of the folder's four locks."""
    return FileLock(os.path.join(folder, name))


def is_held(folder: str, name: str) -> bool:
    """Whether somebody holds ``keeper`` or ``server``. To be asked inside a ``start`` round only."""
    with lock(folder, name) as probe:
        return not probe.take()


def pid_in(folder: str, name: str) -> int | None:
    """The pid written in a lock file; it means something only while the lock is held."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return int(file.read(32))
    except (FileNotFoundError, ValueError):
        return None


# --- the record ----------------------------------------------------------------------


class Record:
    """``server.json``: which server wrote this folder, and how to run it. Changed only inside a ``start`` round."""

    FILE = "server.json"
    FIELDS = ("kind", "version", "created", "socket", "fsync", "persistent", "pinned")

    def __init__(
        self,
        *,
        kind: str,
        version: str,
        created: str,
        socket: str,
        fsync: str = "everysec",
        persistent: bool = True,
        pinned: bool = False,
    ) -> None:
        self.kind = kind
        self.version = version
        self.created = created
        self.socket = socket
        self.fsync = fsync
        self.persistent = persistent
        self.pinned = pinned

    @classmethod
    def read(cls, folder: str) -> Record | None:
        """The folder's record; None if it has none. Raises ValueError if it cannot be understood."""
        try:
            with open(os.path.join(folder, cls.FILE), encoding="utf-8") as file:
                known = json.load(file)
                return cls(**{field: known[field] for field in cls.FIELDS if field in known})
        except FileNotFoundError:
            return None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{os.path.join(folder, cls.FILE)} cannot be read: {error}") from error

    def write(self, folder: str) -> None:
        """Replace the record as a whole: after a crash there is the old one or the new one."""
        path = os.path.join(folder, self.FILE)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(vars(self), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))


def configuration(folder: str, record: Record) -> bytes:
    """The server's configuration file, given to it on its standard input."""
    lines = [
        f"dir {_quoted(folder)}",
        f"unixsocket {_quoted(record.socket)}",
        "unixsocketperm 700",
        "port 0",
        'save ""',
        'logfile ""',
        "maxmemory-policy noeviction",
        f"appendonly {'yes' if record.persistent else 'no'}",
        f"appendfsync {record.fsync}",
    ]
    if record.kind == "redis" and record.numbers < (7,):
        lines += ["hash-max-ziplist-value 1024"]
    else:
        lines += ["hash-max-listpack-value 1024", "latency-tracking no"]
    return "\n".join(lines).encode("ascii") + b"\n"


def _quoted(path: str) -> str:
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f'"{"".join(plain)}"'


# --- questions to the server ---------------------------------------------------------


class Refused(Exception):
    """The server answered with an error; its text is the message."""


def ask(path: str, *words: str, timeout: float) -> str:
    """Send one command to the server at this socket and return its one reply. Raises OSError or Refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout)
        link.connect(path)
        encoded = [word.encode() for word in words]
        link.sendall(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded))
        with link.makefile("rb") as replies:
            head = replies.readline().rstrip()
            if not head:
                raise ConnectionResetError("the server closed the connection")
            if head.startswith(b"-"):
                raise Refused(head[1:].decode(errors="replace"))
            if head.startswith(b"$"):
                return replies.read(int(head[1:])).decode(errors="replace")
            return head[1:].decode(errors="replace")


def health(path: str, *, timeout: float) -> str:
    """How the server at this socket does: ``ready``, ``loading``, ``silent`` (it only accepts) or ``absent``."""
    try:
        ask(path, "PING", timeout=timeout)
    except (TimeoutError, BlockingIOError):
        return "silent"
    except OSError:
        return "absent"
    except Refused as error:
        # Any other refusal (a full disk makes it refuse even PING) is for the caller's own commands to meet.
        return "loading" if str(error).startswith("LOADING") else "ready"
    return "ready"


def make_private_folder(path: str) -> None:
    """Make a folder that only this user can enter, or check that the existing one is such.

    Raises:
        OSError: it cannot be made, is a link or no folder, belongs to another user, or others may enter it.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    state = os.lstat(path)  # not stat: whoever may place a link here may choose whose folder it leads to
    if not stat.S_ISDIR(state.st_mode):
        raise PermissionError(f"{path} is not a folder (a link is not followed); remove it")
    if state.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {state.st_uid}, not to this user ({os.geteuid()}); remove it")
    if state.st_mode & 0o077:
        raise PermissionError(f"{path} may be entered by others; chmod 700 {path}")


# --- one server ----------------------------------------------------------------------


def spawn(folder: str, binary: str, record: Record) -> int:
    """Start a server on the folder, inside a ``start`` round, after ending what a dead keeper left. Raises OSError."""
    stop(folder, record)
    make_private_folder(os.path.dirname(record.socket))  # the end of a session may have removed it
    with lock(folder, "server") as held:
        if not held.take():
            raise OSError(errno.EBUSY, "another server took this folder", folder)
        os.ftruncate(held.fd, 0)  # the pid of an earlier server is nobody's, or another's
        pid = _spawn(folder, binary, record, held)
        held.leave()  # from now on the lock lives and dies with the server
        return pid


def _spawn(folder: str, binary: str, record: Record, held: FileLock) -> int:
    log = _open_log(folder)
    config, writer = os.pipe()
    inherited = os.dup(held.fd)  # a forked child closes `held` itself first of all
    keeper = os.getpid()
    try:
        os.write(writer, configuration(folder, record))
        os.close(writer)
        pid = os.fork()
        if pid == 0:
            _become_server(binary, keeper, config, log, inherited)
        return pid
    finally:
        for fd in (config, log, inherited):
            os.close(fd)


def _become_server(binary: str, keeper: int, config: int, log: int, held: int) -> NoReturn:
    """The rest of a forked child. It writes its pid itself, so no server ever runs without having said it."""
    try:
        for fd, standard in ((config, 0), (log, 1), (log, 2)):
            os.dup2(fd, standard)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _end_with(keeper)
        os.setpgid(0, 0)
        os.pwrite(held, b"%d\n" % os.getpid(), 0)
        os.set_inheritable(held, True)
        os.execv(binary, [binary, "-"])
    except BaseException as error:
        os.write(2, f"cannot start {binary}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _end_with(keeper: int) -> None:
    """Have the kernel send us SIGTERM when our parent has ended, however it ends (Linux)."""
    if sys.platform == "linux":
        try:
            import ctypes  # only here: it takes longer than all our other imports

            set_parent_death_signal = 1
            number = ctypes.c_ulong(signal.SIGTERM)
            if ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, number, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        except (ImportError, MemoryError, OSError) as error:  # a Python or a system that lacks it or forbids it
            os.write(2, f"this server will outlive a keeper that is killed: {error}\n".encode(errors="replace"))
    if os.getppid() != keeper:  # it ended before that
        os._exit(0)


def _open_log(folder: str) -> int:
    path = os.path.join(folder, "server.log")
    if os.path.exists(path) and os.path.getsize(path) > LOG_LIMIT:
        os.replace(path, path + ".1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def last_words(folder: str, *, lines: int = 4) -> str:
    """The end of the server's log, for an error message."""
    try:
        with open(os.path.join(folder, "server.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return " | ".join(file.read().decode(errors="replace").split("\n")[-lines - 1 :]).strip(" |")
    except OSError:
        return ""


def stop(folder: str, record: Record) -> None:
    """End the folder's server, if one runs, inside a ``start`` round: politely, then by force. Waits for its end."""
    with lock(folder, "server") as free:
        if not free.take():
            pid = running_pid(folder, record)
            asked = pid is None or (record.persistent and _signal(os.kill, pid, signal.SIGTERM))
            # One without a pid was only being started when its keeper died, and is about to notice that.
            if not (asked and free.wait(STOP_LIMIT)):
                if pid is None:
                    raise OSError(errno.EBUSY, "a server holds this folder, but does not say its pid", folder)
                # The whole group: a child that rewrites the append-only file holds the lock as well.
                _signal(os.killpg, pid, signal.SIGKILL)
                if not free.wait(STOP_LIMIT):
                    raise OSError(errno.EBUSY, f"server {pid} does not end", folder)
    _remove(record.socket)


def running_pid(folder: str, record: Record) -> int | None:
    """The pid of the running server: as the server says, else (if it does not answer) as it wrote before it started."""
    try:
        lines = ask(record.socket, "INFO", "server", timeout=1.0).splitlines()
        return next(int(line.partition(":")[2]) for line in lines if line.startswith("process_id:"))
    except (OSError, Refused, StopIteration, ValueError):
        return pid_in(folder, "server")


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> bool:
    """Whether there was somebody to signal."""
    try:
        send(pid, number)
    except (ProcessLookupError, PermissionError):  # it has ended (on macOS a group of ended processes is not permitted)
        return False
    return True


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_folder(folder: str) -> None:
    """Remove the folder of a server without persistence. It holds files only."""
    for name in os.listdir(folder):
        _remove(os.path.join(folder, name))
    os.rmdir(folder)


# --- the keeper ----------------------------------------------------------------------


class Keeper:
    """Starts the server, starts it again when it dies, ends it when no user is left."""

    def __init__(self, folder: str, binary: str, start: FileLock, report: int) -> None:
        self.folder = folder
        self.binary = binary
        self.socket = ""
        self.start = start
        self.report = report  # a pipe to whoever started us, closed (-1) once the server has answered
        self.pid: int | None = None  # our child until we have seen its end, so the number is nobody else's
        self.answered = False
        self.began = 0.0
        self.failures = 0
        self.next_start = 0.0
        self.starting_pause = STARTING_TICK
        self.unused_since: float | None = None
        self.asked_to_stop = False

    def run(self) -> None:
        with lock(self.folder, "keeper") as self.place:
            if not self.place.take():
                self.start.close()
                return
            self.place.write_pid(os.getpid())
            wake = self.listen()
            try:
                self.begin()  # inside the round that our starter passed on
            except (OSError, ValueError) as error:
                self.tell(f"failed {error}")
                return
            finally:
                self.start.close()
            try:
                while self.look_again():
                    select.select([wake], [], [], self.pause())
                    try:
                        while os.read(wake, 64):
                            pass
                    except BlockingIOError:
                        pass
            except (OSError, ValueError) as error:
                self.log(f"ends, and the server with it: {error}")
            finally:
                if self.pid is not None:
                    _signal(os.kill, self.pid, signal.SIGTERM)

    def pause(self) -> float:
        if self.answered:
            return TICK
        if self.pid is None:
            return max(STARTING_TICK, min(TICK, self.next_start - time.monotonic()))
        self.starting_pause = min(self.starting_pause * 1.2, TICK)
        return self.starting_pause

    def listen(self) -> int:
        wake, writer = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_stop)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        return wake

    def on_stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def look_again(self) -> bool:
        try:
            return self.look()
        except (OSError, ValueError):
            if self.was_replaced():
                return self.look()
            raise

    def look(self) -> bool:
        """One look at everything. False: the keeper's work is done."""
        if self.was_replaced():
            if self.pid is not None:
                _signal(os.killpg, self.pid, signal.SIGKILL)
            if not os.path.exists(self.folder):
                _remove(self.socket)
            return False
        if self.asked_to_stop or self.is_unused():
            if self.end():
                return False
        elif not self.lives():
            if self.report >= 0:
                _remove(self.socket)
                self.tell(f"failed the server ended at once; its last words: {last_words(self.folder)}")
                return False
            self.begin_again()
        elif not self.answered:
            self.answered = health(self.socket, timeout=0.5) == "ready"
            if self.answered:
                self.tell("ready")
        return True

    def was_replaced(self) -> bool:
        """Whether somebody removed the data folder under us: then our locks decide nothing any more."""
        try:
            return not os.path.samestat(os.stat(self.place.path), os.fstat(self.place.fd))
        except FileNotFoundError:
            return True

    def is_unused(self) -> bool:
        if self.record().pinned:
            return False
        with lock(self.folder, "users") as users:
            if not users.take():
                self.unused_since = None
                return False
        if self.unused_since is None:
            self.unused_since = time.monotonic()
        linger = LINGER if self.record().persistent else 0.0
        return time.monotonic() - self.unused_since >= linger

    def lives(self) -> bool:
        if self.pid is None:
            return False
        ended = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        if not ended and (not self.answered or os.path.exists(self.socket)):
            return True
        if not ended:
            # Somebody removed the socket (a cleaner of temporary files, the end of a session): nobody can come in.
            _signal(os.kill, self.pid, signal.SIGTERM)
            return True
        _signal(os.killpg, self.pid, signal.SIGKILL)  # a child that rewrites the append-only file
        self.pid = None
        return False

    def begin(self) -> None:
        record = self.record()
        self.socket, self.began = record.socket, time.monotonic()
        self.answered, self.starting_pause = False, STARTING_TICK
        self.pid = spawn(self.folder, self.binary, record)

    def begin_again(self) -> None:
        now = time.monotonic()
        if now < self.next_start:
            return
        with lock(self.folder, "start") as start:
            if not start.take():
                return
            self.failures = 0 if now - self.began >= STEADY else self.failures + 1
            self.next_start = now + BACKOFF[min(self.failures, len(BACKOFF) - 1)]
            try:
                self.begin()
            except (OSError, ValueError) as error:
                self.log(f"cannot start the server: {error}")
            else:
                self.log(f"started the server again as {self.pid}")

    def end(self) -> bool:
        """Stop the server, in a round of our own. False: somebody else has the round, or a user came."""
        with lock(self.folder, "start") as start, lock(self.folder, "users") as users:
            if not start.take():
                return False
            if not (users.take() or self.asked_to_stop):
                return False
            record = self.record()
            stop(self.folder, record)
            if not record.persistent:
                remove_folder(self.folder)
            return True

    def record(self) -> Record:
        record = Record.read(self.folder)
        if record is None:
            raise ValueError(f"{self.folder} has no {Record.FILE}")
        return record

    def tell(self, text: str) -> None:
        if self.report < 0:
            return
        try:
            os.write(self.report, text.encode(errors="replace"))
        except BrokenPipeError:
            pass  # whoever started us has gone; the server does not mind
        os.close(self.report)
        self.report = -1

    def log(self, text: str) -> None:
        try:
            fd = _open_log(self.folder)
        except OSError:
            return
        try:
            os.write(fd, f"keeper {os.getpid()}: {text}\n".encode(errors="replace"))
        except OSError:
            pass  # a full disk is no reason to leave the server alone
        finally:
            os.close(fd)


def main() -> None:
    """``keeper.py FOLDER BINARY START_FD REPORT_FD``, with both descriptors inherited from the process that joins."""
    folder, binary = sys.argv[1:3]
    start, report = int(sys.argv[3]), int(sys.argv[4])
    if os.fork():  # our starter waits for this process only, and never finds a child that it does not know
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for fd in (start, report):
        os.set_inheritable(fd, False)
    Keeper(folder, binary, FileLock(os.path.join(folder, "start"), fd=start), report).run()


if __name__ == "__main__":
    main()
