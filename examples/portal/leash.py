"""Ends this process when its parent has gone, however the parent went."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Watches standard input, a pipe whose other end only the parent has: at its end, this process ends too.

    A frozen process watches nothing, so on Linux the kernel is asked as well. Elsewhere it sends SIGHUP and SIGCONT to the
    frozen ones of a process group that its parent leaves behind.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, name="leash", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
