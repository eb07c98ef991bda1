"""``Connection``: which server, and what of it is open in each event loop.

A ``Connection`` is a description until it is used. In each event loop where it is used it has one ``Hub``: one command
link, shared by all queues and workers that were given this ``Connection``; and its share in an embedded server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from echomq._portal import Portal
from echomq._redis import server_info
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._redis.embedded import EmbeddedServer, join, join_async
from echomq._redis.embedded.member import in_thread
from echomq._redis.embedded.places import MEMORY, check_name
from echomq._redis.forks import new_lock
from echomq.errors import EchoMQError, InvalidOption, ServerUnavailable
from echomq.options import Duration, shown, to_seconds

_LOOKED_AFTER: Final = 1.0
_log = logging.getLogger("echomq")


class Connection:
    """Where the server is, and how patient to be with it. Making one connects to nothing.

    Queues and workers that share a ``Connection`` share one socket for their commands in each event loop. It opens when
    one of them first needs it, and closes with the last of them, or with ``close()``.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user, password and database; or ``embedded://name``,
            a server of your own that EchoMQ starts for you, whose data is kept under that name; or ``embedded://memory``,
            one that belongs to this process and keeps nothing. Left out: the environment variable ``ECHOMQ_URL``.
        call_timeout: seconds (or a ``timedelta``) that the server may take for a reply before the socket is given up.
        connect_timeout: seconds that connecting may take.
        wait: seconds for which a call goes on trying while the server is away. 0 means one try; ``math.inf`` for ever.
            It concerns producers; workers always wait for the server to come back.

    Raises:
        InvalidOption: no URL was given and ``ECHOMQ_URL`` is not set, or the URL or a time cannot be used.

    Example:
        >>> connection = Connection("redis://localhost:6379/0", wait=10)
        >>> async with Queue("orders", connection=connection) as orders:
        ...     await orders.add("pack", {"order": 17})
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        call_timeout: Duration = 10.0,
        connect_timeout: Duration = 5.0,
        wait: Duration = 3.0,
    ) -> None:
        self._set_up(_target(_given(url)), call_timeout, connect_timeout, wait)

    @classmethod
    def from_client(
        cls,
        client: object,
        *,
        call_timeout: Duration = 10.0,
        connect_timeout: Duration = 5.0,
        wait: Duration = 3.0,
    ) -> Connection:
        """Reaches the same server in the same way as a redis-py client (sync or asyncio): address, user, database, TLS.

        The client's own sockets are not used, and it stays yours.

        Raises:
            InvalidOption: it is no such client, or one whose way of connecting cannot be repeated.

        Example:
            >>> Connection.from_client(redis.asyncio.Redis(host="redis.example", password="secret"))
        """
        made = cls.__new__(cls)
        made._set_up(Settings.from_client(client), call_timeout, connect_timeout, wait)
        return made

    @classmethod
    def of(cls, connection: Connection | str | None) -> Connection:
        """What an argument ``connection=`` means: a ``Connection`` itself, a URL, or ``ECHOMQ_URL``."""
        if isinstance(connection, Connection):
            return connection
        if connection is None or isinstance(connection, str):
            return cls(connection)
        raise InvalidOption(
            f"connection={shown(connection)}: must be a Connection or a URL; for a redis-py client use "
            "Connection.from_client(client)"
        )

    def _set_up(
        self, target: Settings | _Embedded, call_timeout: Duration, connect_timeout: Duration, wait: Duration
    ) -> None:
        self._target = target
        self._call_timeout = _positive(call_timeout, "call_timeout")
        self._connect_timeout = _positive(connect_timeout, "connect_timeout")
        self._wait = math.inf if wait == math.inf else to_seconds(wait, "wait")
        self._hubs: dict[asyncio.AbstractEventLoop, Hub] = {}
        self._portal = Portal(self.where, self._open_in, self._close_in)
        self._closed = False
        self._link_type: Callable[..., Link] = Link  # the testing kit has one whose clock can be moved
        self._for_waiting = "is a worker of this queue running?"  # the hint to who waits for a job in vain
        self._for_delayed = ""

    def __repr__(self) -> str:
        return f"<Connection {self.where}{' closed' if self._closed else ''}>"

    @property
    def where(self) -> str:
        """The server in a few words, never with a password."""
        return self._target.where

    @property
    def wait(self) -> float:
        """Seconds for which a call goes on trying while the server is away."""
        return self._wait

    @property
    def call_timeout(self) -> float:
        """Seconds that the server may take for a reply before the socket is given up."""
        return self._call_timeout

    async def close(self) -> None:
        """Closes what is open. The queues and workers that use it can no longer work; closing again does nothing."""
        self._closed = True
        for hub in list(self._hubs.values()):
            if hub.loop is asyncio.get_running_loop():
                await hub.close()
            elif hub.loop.is_closed():
                self.forget(hub)
                hub.abandon()
            else:
                run_elsewhere(hub.loop, hub.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # -- for the rest of EchoMQ ----------------------------------------------------------------------------------------

    def same_server(self, other: Connection) -> bool:
        """Not for users of EchoMQ. Whether both surely lead to the same database, as the same user."""
        if isinstance(self._target, Settings) or isinstance(other._target, Settings):
            return self._target == other._target
        return self.where == other.where

    def like(
        self, *, call_timeout: Duration = 10.0, connect_timeout: Duration = 5.0, wait: Duration = 3.0
    ) -> Connection:
        """Not for users of EchoMQ. Another one to the same server, as the same user, with a patience of its own."""
        made = type(self).__new__(type(self))
        made._set_up(self._target, call_timeout, connect_timeout, wait)
        return made

    def acquire(self) -> Hub:
        """Not for users of EchoMQ. Makes its caller a user of what is open here; ``await hub.release()`` when done."""
        if self._closed:
            raise RuntimeError(f"{self!r} is closed: make a new one")
        loop = asyncio.get_running_loop()
        # There is no lock: a signal handler may make a sync call here, for which the portal's thread comes here, too. What is of
        # a loop that lives is touched in its thread alone.
        for dead in [loop for loop in list(self._hubs) if loop.is_closed()]:
            left = self._hubs.pop(dead, None)
            if left is not None:
                left.abandon()
        hub = self._hubs.get(loop)
        if hub is None:
            hub = self._hubs[loop] = Hub(self, loop)
        hub.users += 1
        return hub

    @property
    def portal(self) -> Portal:
        """Not for users of EchoMQ. The event loop of its own through which plain code makes its calls, begun with the first."""
        return self._portal

    def _open_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        return loop in self._hubs

    async def _close_in(self, loop: asyncio.AbstractEventLoop) -> None:
        hub = self._hubs.get(loop)
        if hub is not None:
            await hub.close()

    def forget(self, hub: Hub) -> None:
        """Not for users of EchoMQ. A hub is closing."""
        if self._hubs.get(hub.loop) is hub:
            self._hubs.pop(hub.loop, None)


def run_elsewhere(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Has the event loop of another thread close what is its own, unless it has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: loop.create_task(close(), name="echomq close"))


class Part(Protocol):
    """Something that lives in a hub and closes with it."""

    async def close(self) -> None:
        """Ends it."""


_PartT = TypeVar("_PartT", bound=Part)


class Hub:
    """What a ``Connection`` has open in one event loop.

    Attributes:
        loop: that event loop.
        users: how many have acquired it.
        is_cluster: whether the server is a node of a cluster; None before ``link`` was first used, or if it does not say.
    """

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.users: int = 0
        self._connection = connection
        self._target = connection._target
        self._joining = asyncio.Lock()
        self._server: EmbeddedServer | None = None
        self._looking: asyncio.Future[None] | None = None
        self._link: Link | None = None
        self._checked: set[bool] = set()
        self._opening: dict[bool, asyncio.Task[Link]] = {}
        self._parts: dict[str, Any] = {}
        self._closed = False
        self.is_cluster: bool | None = None

    @property
    def wait(self) -> float:
        """Seconds for which producers go on trying."""
        return self._connection.wait

    async def settings(self) -> Settings:
        """How to reach the server. An embedded one is joined now, and left when the hub closes.

        Raises:
            ServerUnavailable: the embedded server does not start.
            InvalidOption, UnsupportedServer: it cannot be used here.
        """
        self._check_open()
        target = self._target
        if isinstance(target, Settings):
            return target
        if self._is_memory:
            return self._of_embedded(await asyncio.wrap_future(in_thread(_own_memory_server)))
        async with self._joining:
            if self._server is None:
                server = await join_async(target.name, fsync=target.fsync)  # type: ignore[arg-type]  # checked in join
                if self._closed:
                    server.close()
                self._check_open()
                self._server = server
            return self._of_embedded(self._server)

    def _of_embedded(self, server: EmbeddedServer) -> Settings:
        return dataclasses.replace(Settings.from_url(server.url), embedded=self._target.where)

    async def link(self, *, hash_tag: bool) -> Link:
        """The shared command link. At its first use it connects and looks whether the server can be used: one try.

        Raises:
            ServerUnavailable: no server at the moment; asking again tries again.
            UnsupportedServer, ServerError, InvalidOption: it cannot be used; says why.
        """
        if hash_tag in self._checked:
            assert self._link is not None
            return self._link
        self._check_open()
        opening = self._opening.get(hash_tag)
        if opening is None:
            opening = self._opening[hash_tag] = self.loop.create_task(self._open(hash_tag), name="echomq open")
            opening.add_done_callback(lambda task: self._opened(hash_tag, task))
        await asyncio.wait([opening])  # a cancelled caller leaves the attempt to the others
        if opening.cancelled():
            raise ServerUnavailable(f"{self._connection.where}: the connection was closed while it opened")
        return opening.result()

    async def new_link(self, *, client_name: str | None = None, reply_timeout: float | None = None) -> Link:
        """A link of your own to the same server, not connected yet; close it before you release the hub."""
        return self._make_link(await self.settings(), client_name, reply_timeout)

    async def look_after(self, trouble: Exception) -> None:
        """To be awaited when the server seems away: puts an embedded server back into its place. Never raises."""
        server = _memory_servers.get(os.getpid()) if self._is_memory else self._server
        if server is None or self._closed:
            return
        if self._looking is None:
            self._looking = asyncio.ensure_future(server.ensure_async())
            self._looking.add_done_callback(self._looked)
        # It takes as long as the server takes to read its data; the caller has its own patience.
        await asyncio.wait([self._looking], timeout=_LOOKED_AFTER)

    def part(self, name: str, make: Callable[[], _PartT]) -> _PartT:
        """The hub's one object of this name, made when first asked for, closed with the hub."""
        self._check_open()
        if name not in self._parts:
            self._parts[name] = make()
        part: _PartT = self._parts[name]
        return part

    async def release(self) -> None:
        """A user goes; with the last one everything closes."""
        self.users -= 1
        if self.users <= 0:
            await self.close()

    async def close(self) -> None:
        """Closes everything that is open in this event loop."""
        if self._closed:
            return
        self._closed = True
        self._connection.forget(self)
        try:
            for opening in list(self._opening.values()):
                opening.cancel()
                await asyncio.wait([opening])
            for part in self._parts.values():
                await part.close()
        finally:
            self._checked.clear()
            link, server = self._link, self._server
            if link is not None:
                link.drop("the connection was closed")
            if server is not None:
                server.close()
            if link is not None:
                await link.close()

    def abandon(self) -> None:
        """The event loop has ended. Its sockets close when nothing refers to them any more."""
        self._closed = True
        self._link = None
        self._parts.clear()
        self._opening.clear()
        if self._server is not None:
            self._server.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _is_memory(self) -> bool:
        return isinstance(self._target, _Embedded) and self._target.name == MEMORY

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"{self._connection!r} is closed here: make a new one")

    def _make_link(self, settings: Settings, client_name: str | None, reply_timeout: float | None) -> Link:
        return self._connection._link_type(
            settings,
            client_name=client_name,
            connect_timeout=self._connection._connect_timeout,
            reply_timeout=self._connection._call_timeout if reply_timeout is None else reply_timeout,
        )

    async def _open(self, hash_tag: bool) -> Link:
        settings = await self.settings()
        if self._link is None:
            self._link = self._make_link(settings, None, None)
        self.is_cluster = (await server_info.check(self._link, hash_tag=hash_tag)).cluster
        self._checked.add(hash_tag)
        return self._link

    def _opened(self, hash_tag: bool, task: asyncio.Task[Link]) -> None:
        self._opening.pop(hash_tag, None)
        if not task.cancelled():
            task.exception()  # all who waited for it may have been cancelled

    def _looked(self, task: asyncio.Future[None]) -> None:
        self._looking = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EchoMQError):
            _log.warning("%s: %s", self._connection.where, error)
        elif error is not None:
            _log.error("%s: looking after the embedded server failed", self._connection.where, exc_info=error)


# -- what a URL means --------------------------------------------------------------------------------------------------


class _Embedded:
    """An embedded server by its name."""

    def __init__(self, name: str, fsync: str) -> None:
        self.name = name
        self.fsync = fsync
        self.where = f"embedded://{name}"


def _given(url: str | None) -> str:
    chosen = os.environ.get("ECHOMQ_URL") if url is None else url
    if not chosen:
        raise InvalidOption(
            "no server was named: pass a URL such as 'redis://localhost:6379/0', or set ECHOMQ_URL; "
            "'embedded://name' is a server of your own, which EchoMQ starts for you"
        )
    return chosen


def _target(url: str) -> Settings | _Embedded:
    if not str(url).lower().startswith("embedded:"):
        return Settings.from_url(url)
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    fsync = options.pop("fsync", "everysec")
    if parts.path not in ("", "/") or parts.fragment or options or not url.lower().startswith("embedded://"):
        raise InvalidOption(f"url={shown(url)}: write embedded://name, or embedded://name?fsync=always")
    if fsync not in ("everysec", "always"):
        raise InvalidOption(f"url={shown(url)}: fsync must be everysec or always")
    name = parts.netloc or "default"
    check_name(name)
    return _Embedded(name, fsync)


def join_embedded(url: str) -> EmbeddedServer | None:
    """Joins the embedded server that the URL names, as a process that uses it; None if the URL is that of another server.

    Raises:
        InvalidOption: it is no URL of a server. UnsupportedServer, ServerUnavailable: the embedded server cannot be started.
    """
    target = _target(url)
    return join(target.name, fsync=target.fsync) if isinstance(target, _Embedded) else None  # type: ignore[arg-type]


def _positive(value: Duration, name: str) -> float:
    if value == math.inf:
        return math.inf
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return to_seconds(seconds, name, least=0.001)


# One for the process, as its name says: a queue and a worker that both name it meet there. It ends with the process.
_memory_servers: dict[int, EmbeddedServer] = {}
_memory_guard = new_lock()


def _own_memory_server() -> EmbeddedServer:
    with _memory_guard:
        process = os.getpid()  # a forked child has none yet
        if process not in _memory_servers:
            _memory_servers[process] = join(MEMORY)
        return _memory_servers[process]
