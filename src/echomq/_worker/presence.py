"""How other programs see this worker: the name in jobs and in the server's list of clients (protocol 11.2)."""

from __future__ import annotations

import itertools
import os
import re
import socket

_numbers = itertools.count(1)
_NOT_PLAIN = re.compile(r"[^!-~]")


def worker_name() -> str:
    """A name for a worker that was given none: host, process, and, from its second on, which worker of the process.

    It is kept in every job, so it is short.
    """
    number = next(_numbers)
    return plain(f"{socket.gethostname()}-{os.getpid()}" + (f"-{number}" if number > 1 else ""))


def plain(name: str) -> str:
    """A name without what a server refuses in client names (blanks, control characters), so that the worker stays visible."""
    return _NOT_PLAIN.sub("_", name)
