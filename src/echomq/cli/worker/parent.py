"""The supervisor, as its child sees it: two pipes and a name."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Final, Self

import msgspec
import typer

from echomq._redis.forks import remember
from echomq.cli.worker.state import ProcessState

_VARIABLE: Final = "ECHOMQ_WORKER_CHILD"

_HEARD_WITHIN: Final = 0.8
"""Seconds that the event loop has to hear that the parent is gone, before the process ends as it stands."""

_STOPPED_WITHIN: Final = 10.0
"""Seconds that stopping may take then; with a server that answers it takes one at most."""

HURRY: Final = signal.SIGINT
"""What a child is sent to give its jobs back at once. Not a second SIGTERM: a service manager may send one to every process."""

EXIT_ORPHANED: Final = 70
"""EX_SOFTWARE: the parent was gone, and this process could not stop in order."""


class Parent:
    """Hears from us how we do; when it is gone, so are we.

    Args:
        descriptor: of the pipe that we tell it by.
        process: the name that it gave this process, by which it knows our locks.
        command: what the user has called, whose name stands before what we refuse.
        dead: names of processes that have died, whose jobs we are to give back: it does not know our queues.
    """

    def __init__(self, descriptor: int, process: str, command: str, dead: Sequence[str]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.command = command
        self.dead = dead
        # Our standard input is a pipe whose end says that the parent is gone. The user's code gets another one in its place: it
        # may close it, or have a program that it starts read from it.
        self._leash = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        remember(self)

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Self | None:
        """The parent of this process, if it has one. What it starts in turn is nothing of it."""
        told = environment.pop(_VARIABLE, None)
        if told is None:
            return None
        descriptor, process, command, *dead = told.split(":")
        os.set_inheritable(int(descriptor), False)
        return cls(int(descriptor), process, command, dead)

    def descriptors(self) -> list[int]:
        """Those of both pipes, which are none of a forked child's."""
        return [self._descriptor, self._leash]

    @staticmethod
    def variable(descriptor: int, process: str, command: str, dead: Sequence[str]) -> dict[str, str]:
        """What a child's environment has, so that ``of`` finds it."""
        return {_VARIABLE: ":".join((str(descriptor), process, command, *dead))}

    def tell(self, state: ProcessState) -> None:
        """Says how we do. It may wait for the parent, so not in the event loop."""
        line = memoryview(msgspec.json.encode(state) + b"\n")
        with contextlib.suppress(OSError):  # it is gone, which `watch` hears
            while line:
                line = line[os.write(self._descriptor, line) :]

    @contextlib.contextmanager
    def told_of_a_refusal(self) -> Iterator[None]:
        """While it lasts, an end with an error is the end for good: a new process would fare no better."""
        try:
            yield
        except BaseException as error:
            ends_well = isinstance(error, (typer.Exit, SystemExit)) and not _code_of(error)
            if not ends_well:
                self.tell(ProcessState(os.getpid(), True, [], gave_up=True))
            raise

    def watch(self, gone: Callable[[], object]) -> threading.Event:
        """Calls ``gone``, in a thread of its own, when the parent has ended, however it went.

        The event that it returns is to be set by whoever then begins to stop: if nobody does, because the event loop is held up,
        this process ends there and then, and its jobs run again when their locks have expired.
        """
        heard = threading.Event()
        threading.Thread(target=self._wait, args=(gone, heard), name="echomq parent", daemon=True).start()
        return heard

    def _wait(self, gone: Callable[[], object], heard: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._leash, 1024):  # nobody writes there: it ends when the parent does
                pass
        with contextlib.suppress(RuntimeError):  # the event loop has closed: this process is ending
            gone()
        if heard.wait(_HEARD_WITHIN):
            time.sleep(_STOPPED_WITHIN)
        os._exit(EXIT_ORPHANED)


def _code_of(end: typer.Exit | SystemExit) -> object:
    return end.exit_code if isinstance(end, typer.Exit) else end.code
