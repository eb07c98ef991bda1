"""A handler may fork. Its child has no event loop, no connections and no job: it ends when the handler does."""

from __future__ import annotations

import os
from typing import NoReturn


def leave_fork(process: int, error: BaseException | None) -> None:
    """Ends this process here if it is not ``process``: it is a child that has come back from the handler.

    Args:
        process: the worker's own.
        error: what the handler raised; ``SystemExit`` gives the exit code.
    """
    if os.getpid() != process:
        _leave(error)


def _leave(error: BaseException | None) -> NoReturn:
    code = error.code if isinstance(error, SystemExit) else (None if error is None else 1)
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
