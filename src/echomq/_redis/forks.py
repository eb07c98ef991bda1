"""What a fork must not share: a connection has one speaker, and that is the parent.

A child that was forked in a handler would otherwise write into its parent's calls, read its parent's replies, and keep
its parent's name in the server's list of clients.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any, Final, Protocol


class HasSocket(Protocol):
    """Something with an open socket."""

    def descriptor(self) -> int | None:
        """The socket's number, or None if it is closed."""


_open: Final[weakref.WeakSet[HasSocket]] = weakref.WeakSet()
_locks: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def remember(connection: HasSocket) -> None:
    """From now on a forked child has nothing in place of this connection's socket."""
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


def _in_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # what the standard library does with its own
    # The numbers stay taken, so that what still believes to own them cannot close something else by mistake.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in list(_open):
        descriptor = connection.descriptor()
        if descriptor is not None and descriptor >= 0:
            with contextlib.suppress(OSError):
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
