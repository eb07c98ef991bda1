"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def wait_until(
    predicate: Callable[[], object] | Callable[[], Awaitable[object]],
    timeout: float = 10,
    what: str = "",
) -> None:
    """Return as soon as the predicate, sync or async, gives something true.

    The predicate is asked once more when the time is up, so that a slow machine alone fails no test.

    Raises:
        AssertionError: it did not within ``timeout`` seconds; names ``what`` and the last answer.
    """
    deadline = time.monotonic() + timeout
    pause = 0.001
    while True:
        last_try = time.monotonic() >= deadline
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if last_try:
            raise AssertionError(f"not within {timeout} s: {what or predicate!r} (last answer: {answer!r})")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
