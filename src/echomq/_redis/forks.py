"""What a fork must not share: a connection has one speaker, and that is the parent.

A child that was forked in a handler would otherwise write into its parent's calls, read its parent's replies, and keep
its parent's name in the server's list of clients. Nor is a signal that somebody sends to the child the parent's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
"""By what a handler ends the processes that it has forked."""
_LOOPS: Final = ("asyncio", "uvloop")
"""Packages of event loops: what they have handle a signal does nothing where the loop does not run."""


class HasSockets(Protocol):
    """Something with open sockets, or other descriptors."""

    def descriptors(self) -> Iterable[int]:
        """Their numbers, of those that are open."""


_open: Final[weakref.WeakSet[HasSockets]] = weakref.WeakSet()
_locks: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def remember(connection: HasSockets) -> None:
    """From now on a forked child has nothing in place of this connection's sockets."""
    _open.add(connection)


def new_lock() -> threading.Lock:
    """A lock that is free in a forked child, also if another thread of the parent, which the child has not, held it then."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_recursive_lock() -> threading.RLock:
    """The same, but for a lock that one thread may take more than once."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def ignored(number: int, frame: object) -> None:
    """A handler of signals that do nothing to this process. One that is forked from it they end, as any other."""


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """A program of ours that is started meanwhile hears no signal of ``ENDING`` before it says that it wants to."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Fork(threading.local):
    """Of the thread that forks: which signals wait meanwhile, and which did before."""

    def __init__(self) -> None:
        self.waiting: list[signal.Signals] = []
        self.mask: set[Any] = set()


_fork: Final = _Fork()


def _before() -> None:
    # One that comes for the child in its first moments would still be heard by the event loop of the parent.
    _fork.waiting = [number for number in ENDING if _is_the_parents(signal.getsignal(number))]
    if _fork.waiting:
        _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _fork.waiting)


def _is_the_parents(handler: object) -> bool:
    """Whether the child of a fork would be deaf by it."""
    function = getattr(handler, "func", handler)  # asyncio.run's for SIGINT is a functools.partial
    return function is ignored or str(getattr(function, "__module__", "")).partition(".")[0] in _LOOPS


def _go_on() -> None:
    if _fork.waiting:
        signal.pthread_sigmask(signal.SIG_SETMASK, _fork.mask)


def _in_child() -> None:
    signal.set_wakeup_fd(-1)  # its other end is read by the event loop of the parent
    for number in _fork.waiting:
        signal.signal(number, signal.SIG_DFL)
    _go_on()
    for lock in list(_locks):
        lock._at_fork_reinit()  # what the standard library does with its own
    # The numbers stay taken, so that what still believes to own them cannot close something else by mistake.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_open):
        for descriptor in connection.descriptors():
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_go_on, after_in_child=_in_child)
