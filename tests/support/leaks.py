"""A test fails if it leaves something behind: tasks on its loop, connections on a server."""

from __future__ import annotations

import asyncio
import time

from tests.support.server import Server

CLOSING_TIME = 2.0
"""Seconds that the server has for noticing that a connection was closed."""


async def assert_no_tasks() -> None:
    """Fail when another task than the caller's is on this loop.

    Raises:
        AssertionError: names the tasks and where they stand.
    """
    for _ in range(3):  # what was cancelled in the last step of the test may end
        await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left:
        raise AssertionError("the test left tasks behind:\n" + "\n".join(repr(task) for task in left))


def assert_no_clients(server: Server) -> None:
    """Fail when a connection to the server stays open.

    Raises:
        AssertionError: names the connections.
    """
    deadline = time.monotonic() + CLOSING_TIME
    while left := server.clients():
        if time.monotonic() >= deadline:
            raise AssertionError("the test left connections behind:\n" + "\n".join(left))
        time.sleep(0.01)
