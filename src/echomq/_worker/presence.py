"""How other programs see this worker: its name in jobs, and what it says of itself."""

from __future__ import annotations

import itertools
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable

from echomq._store.codec import to_ms
from echomq._store.presence import LONGEST_SILENCE, Present, Record, plain
from echomq._version import __version__

_numbers = itertools.count(1)

_LEAST_LIFE = 5.0


def worker_name() -> str:
    """A name for a worker that was given none: host, process, and, from its second on, which worker of the process.

    It is kept in every job, so it is short.
    """
    number = next(_numbers)
    return plain(f"{socket.gethostname()}-{os.getpid()}" + (f"-{number}" if number > 1 else ""))


class Presence:
    """What one run of a worker says of itself, each time it sweeps.

    Args:
        interval: seconds between its sweeps; what it says holds for three of them.
        is_paused, loop_lag, going_on: asked each time; the second in seconds.
    """

    def __init__(
        self,
        name: str,
        slots: int,
        interval: float,
        is_paused: Callable[[], bool],
        loop_lag: Callable[[], float],
        going_on: Callable[[], int],
    ) -> None:
        self.id = secrets.token_urlsafe(9)
        self._name = name
        self._slots = slots
        self._lives = max(3 * min(interval, LONGEST_SILENCE), _LEAST_LIFE)
        self._is_paused = is_paused
        self._loop_lag = loop_lag
        self._going_on = going_on
        self._began = time.monotonic()

    def now(self) -> Present:
        """As it is at this moment."""
        record = Record(
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            python=platform.python_version(),
            slots=self._slots,
            paused=self._is_paused(),
            up=to_ms(time.monotonic() - self._began),
            lag=to_ms(self._loop_lag()),
            going_on=self._going_on(),
        )
        return Present(self.id, record, self._lives)
