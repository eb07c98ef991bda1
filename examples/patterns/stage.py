"""What the proofs in this folder stand on: a server of their own, and child processes that can be killed at a known step."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import redis

from echomq._redis.embedded import join

# Short times, so that a proof takes seconds. In production the defaults are 30 s and 15 s, and a dead worker's jobs run
# again within 47 s.
SHORT: dict[str, Any] = {"lock_duration": 1.2, "stalled_interval": 0.4, "max_stalled_count": 5}

PATIENCE = 20.0

logging.getLogger("echomq").setLevel(logging.ERROR)  # a line for each job that stalls would hide what the proof says


class Broken(Exception):
    """What this proof claims does not hold."""


def claim(holds: bool, what: str) -> None:
    """Prints a claim that holds; raises one that does not."""
    if not holds:
        raise Broken(what)
    print(f"  ok: {what}", flush=True)


def until(what: str, condition: Callable[[], bool]) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"waited {PATIENCE:g} s in vain until {what}")
        time.sleep(0.01)


def plain_client(url: str) -> Any:
    """A redis-py client that answers text; for the naive versions, and to look at what is on the server."""
    return redis.Redis.from_url(url, decode_responses=True)


def checkpoint(text: str) -> None:
    """In a child: says where it is, and goes no further before the parent says so. Here the parent may kill it."""
    print(text, flush=True)
    if not sys.stdin.readline():
        os._exit(1)  # the parent is gone


class Actor:
    """A child process: this same file, run with a role and arguments."""

    def __init__(self, file: str, role: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, file, role, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def says(self, beginning: str) -> str:
        """Waits for a line that begins so, and gives the rest of it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise Broken(f"waited {PATIENCE:g} s in vain for a child to say {beginning!r}") from None
            if line.startswith(beginning):
                return line[len(beginning) :].strip()

    def go_on(self) -> None:
        """Lets it leave its checkpoint."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        """SIGSTOP: it stands still, its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL: no handler, no ``finally``, no goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Kills it if it still runs, and closes its pipes."""
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Stage:
    """A server, a client to look at it with, and the children that play on it.

    Attributes:
        url: of the server.
        client: a plain redis-py client.
    """

    def __init__(self, url: str, file: str, stack: ExitStack) -> None:
        self.url = url
        self.client = plain_client(url)
        self._file = file
        self._stack = stack
        stack.callback(self.client.close)

    def start(self, role: str, *args: str) -> Actor:
        """Starts a child; its first argument is the server's URL. It ends with the proof at the latest."""
        actor = Actor(self._file, role, self.url, *args)
        self._stack.callback(actor.end)
        return actor


@contextmanager
def stage(file: str) -> Iterator[Stage]:
    """A server in memory, for this proof alone."""
    with ExitStack() as stack:
        server = stack.enter_context(join("memory"))
        yield Stage(server.url, file, stack)


def run(play: Callable[[], None]) -> NoReturn:
    """Runs a proof: exit code 0 if every claim holds, 1 if one does not."""
    try:
        play()
    except Broken as broken:
        print(f"  BROKEN: {broken}", flush=True)
        sys.exit(1)
    print("the claim holds", flush=True)
    sys.exit(0)
