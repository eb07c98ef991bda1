"""The event loop of commands: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end."""
    # Chosen first and run afterwards: what is raised must not carry the missing uvloop as its context.
    run: Callable[[Coroutine[Any, Any, T]], T]
    try:
        import uvloop
    except ModuleNotFoundError:
        run = asyncio.run
    else:
        run = uvloop.run
    return run(work)
