"""A real server to throw away, and a thread from which plain code can ask it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from echomq._redis.embedded import EmbeddedServer, join
from echomq._redis.embedded.places import MEMORY
from echomq._testing.clock import MovableLink
from echomq.connection import Connection

T = TypeVar("T")

_DATABASES: Final = 15
"""Those beside the first, which is for whoever connects by the server's URL."""


class Server:
    """A real server that belongs to this process, keeps nothing, and is gone when it is closed or the process ends.

    It starts when it is first asked for something. One for a whole run of tests is enough: each ``Kit`` has an empty database.

    Example:
        >>> with Server() as server, on_server(app, server) as kit:
        ...     kit.wait(enroll.enqueue(7, "redis"))
        ...     kit.wait(kit.run_until_drained())
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._embedded: EmbeddedServer | None = None
        self._portal: Portal | None = None
        self._known: dict[str, str] = {}
        self._lent = 0

    def __repr__(self) -> str:
        return f"<Server {'not started' if self._embedded is None else self._embedded.url}>"

    @property
    def url(self) -> str:
        """Its URL: of a database that no ``Kit`` uses, with a clock that nothing moves."""
        with self._guard:
            if self._embedded is None:
                self._embedded = join(MEMORY)
            return self._embedded.url

    @property
    def portal(self) -> Portal:
        """Not for users of EchoMQ. The thread that asks it for plain code."""
        if self._portal is None:
            self._portal = Portal()
        return self._portal

    def lend(self) -> LentConnection:
        """Not for users of EchoMQ. A way to an empty database, whose clock can be moved. The longest unused one."""
        with self._guard:
            number, self._lent = 1 + self._lent % _DATABASES, self._lent + 1
        return LentConnection(f"{self.url}?db={number}", self._known)

    def check_can_close(self) -> None:
        """Not for users of EchoMQ. Refuses to be closed by what it carries out itself.

        Raises:
            RuntimeError: it is so.
        """
        if self._portal is not None:
            self._portal.check_is_elsewhere("close()", "close it afterwards")

    def close(self) -> None:
        """Ends it. Closing again does nothing."""
        self.check_can_close()
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()
        with self._guard:
            embedded, self._embedded = self._embedded, None
        if embedded is not None:
            embedded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LentConnection(Connection):
    """A connection whose clock can be moved."""

    def __init__(self, url: str, known: dict[str, str]) -> None:
        super().__init__(url)
        self._link_type = functools.partial(MovableLink, known=known)
        self._for_waiting = "in a test with this kit jobs run when it awaits run_until_drained(), not by themselves"
        self._for_delayed = "; in a test with this kit time passes when it awaits advance(…)"

    def runs_at_once(self) -> None:
        """Jobs do not wait here, but where nothing runs them."""
        self._for_waiting = "nothing runs it: no task of the app belongs to this queue"

    async def close_here(self) -> None:
        """Closes what is open in this event loop."""
        hub = self._hubs.get(asyncio.get_running_loop())
        if hub is not None:
            await hub.close()

    def close_everywhere(self) -> None:
        """Closes what is open in whatever event loop, from plain code, as far as these loops have not ended."""
        self._closed = True
        for hub in list(self._hubs.values()):
            if hub.loop.is_closed():
                self.forget(hub)
                hub.abandon()
            else:
                finish(hub.loop, hub.close)


def finish(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Has an event loop close what is its own, from plain code, unless it has ended."""
    if loop.is_closed():
        return
    if not loop.is_running():
        loop.run_until_complete(close())
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # it runs in another thread
        with contextlib.suppress(RuntimeError, TimeoutError):
            asyncio.run_coroutine_threadsafe(close(), loop).result(10)
    else:  # nothing here may be waited for; whoever runs an event loop awaits `rest`
        loop.call_soon_threadsafe(lambda: loop.create_task(close(), name="echomq close"))


class Portal:
    """An event loop in a thread of its own, for plain code to wait for what is asynchronous."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="echomq-testing", daemon=True)
        self._beside: Portal | None = None
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises.

        Raises:
            RuntimeError: it is asked for in its own thread.
        """
        try:
            self.check_is_elsewhere("wait(…)", "write `await`")
        except RuntimeError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def look(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same for what only looks at the server, also in its own thread: that stands still while another one looks."""
        if threading.current_thread() is not self._thread:
            return self.wait(coroutine)
        if self._beside is None:
            self._beside = Portal()
        return self._beside.wait(coroutine)

    def check_is_elsewhere(self, what: str, remedy: str) -> None:
        """Refuses in its own thread what waits for this thread.

        Raises:
            RuntimeError: it is so.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                f"{what} of the testing kit in what its wait(…) carries out would wait for itself for ever: {remedy}"
            )

    def close(self) -> None:
        """Ends the thread, once what was begun there has come to its end."""
        if self._beside is not None:
            self._beside.close()
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_others_end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _others_end() -> None:
    """Waits for all that runs in this event loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
