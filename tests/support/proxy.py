"""A proxy before a server that loses what it is told to lose: requests, replies, whole connections.

It works on what arrives in one piece, and knows nothing of the protocol. A needle says which requests are meant: any
bytes that stand in them, such as ``b"EVALSHA"`` or the hash of a script (``needle("addJobs-11")``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal, Self

from echomq._lua.loader import script
from tests.support.server import Server

Loss = Literal["request", "reply", "hold", "silence"]


def needle(script_name: str) -> bytes:
    """By what the calls of a script are known."""
    return script(script_name).sha.encode()


class Proxy:
    """Listens on 127.0.0.1, forwards to the server's unix socket. Use as an async context manager.

    Attributes:
        delay: seconds that each piece waits in each direction.
        black_hole: nothing is forwarded in either direction, and nothing is closed.
        seen: how many pieces with the needle of the latest loss have come from clients, lost ones included.
        lost: how many have been lost in all.

    Example:
        >>> async with Proxy(server) as proxy, Queue("q", connection=proxy.url) as queue:
        ...     proxy.lose("reply", needle("addJobs-11"))
        ...     await queue.add("paint")    # the server did it, the first reply is lost
    """

    def __init__(self, server: Server) -> None:
        self.delay = 0.0
        self.seen = 0
        self.lost = 0
        self._hole_closed = asyncio.Event()
        self._hole_closed.set()
        self._server = server
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._connections: set[_Connection] = set()
        self._loss: tuple[Loss, bytes] | None = None
        self._times = 0
        self._held: list[Callable[[], None]] = []

    # -- what to lose

    def lose(self, what: Loss, where: bytes = b"", times: int = 1) -> None:
        """Loses the next ``times`` requests with this needle.

        ``request``: the connection is cut before it reaches the server. ``reply``: it reaches the server, and the
        connection is cut when the server answers. ``hold``: it waits until ``release()``, and so does all that follows it
        on this connection; what the client does meanwhile (close, call again) changes nothing.
        ``silence``: it reaches the server, and its reply waits until ``release()``, and so do all that follow it.
        """
        self._loss, self._times, self.seen = (what, where), times, 0

    def release(self) -> None:
        """Sends what is held to the server."""
        held, self._held = self._held, []
        for send in held:
            send()

    def silence(self) -> None:
        """From now on nothing passes on the connections that are open, and they stay open; new ones are well."""
        for connection in self._connections:
            connection.passes.clear()

    @property
    def holds(self) -> int:
        """How many requests, or replies, are held."""
        return len(self._held)

    @property
    def black_hole(self) -> bool:
        return not self._hole_closed.is_set()

    @black_hole.setter
    def black_hole(self, is_one: bool) -> None:
        if is_one:
            self._hole_closed.clear()
        else:
            self._hole_closed.set()

    def cut(self) -> None:
        """Cuts every connection now."""
        for connection in list(self._connections):
            connection.cut()

    async def stop_listening(self) -> None:
        """Cuts every connection, and refuses new ones."""
        assert self._listener is not None
        self._listener.close()
        self.cut()

    async def listen(self) -> None:
        """Takes connections (again), always on the same port."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """How many connections clients have open."""
        return len(self._connections)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self._port}/0"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        self.black_hole = False
        connections = list(self._connections)
        for connection in connections:
            connection.abandon()
        await asyncio.gather(*(connection.ended.wait() for connection in connections))

    # -- inside

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up = await asyncio.open_unix_connection(str(self._server.socket_path))
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, reader, writer, *up)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            connection.ended.set()

    def _fate(self, piece: bytes) -> Loss | None:
        if self._loss is None or self._loss[1] not in piece:
            return None
        self.seen += 1
        if self._times == 0:
            return None
        self._times -= 1
        self.lost += 1
        return self._loss[0]


class _Connection:
    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._client = (reader, writer)
        self._up = (up_reader, up_writer)
        self._cut_at_reply = False
        self._held: list[bytes] | None = None
        self._unsaid: list[bytes] | None = None
        self.passes = asyncio.Event()
        self.passes.set()

    async def run(self) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests())
                group.create_task(self._replies())
        for _, writer in (self._client, self._up):
            writer.transport.abort()

    def cut(self) -> None:
        self._client[1].transport.abort()
        if self._held is None:
            self._up[1].transport.abort()

    def abandon(self) -> None:
        self._held = None
        self.passes.set()
        self.cut()

    async def _requests(self) -> None:
        reader, writer = self._client[0], self._up[1]
        while piece := await self._read(reader):
            if self._held is not None:
                self._held.append(piece)
                continue
            match self._proxy._fate(piece):
                case "request":
                    self.cut()
                    return
                case "reply":
                    self._cut_at_reply = True
                case "hold":
                    self._held = [piece]
                    self._proxy._held.append(self._release)
                    continue
                case "silence":
                    self._unsaid = []
                    self._proxy._held.append(self._speak)
                case None:
                    pass
            writer.write(piece)
        if self._held is None:
            writer.transport.abort()

    async def _replies(self) -> None:
        reader, writer = self._up[0], self._client[1]
        while piece := await self._read(reader):
            if self._cut_at_reply:
                self.cut()
                return
            if self._unsaid is not None:
                self._unsaid.append(piece)
                continue
            writer.write(piece)
        writer.transport.abort()

    def _speak(self) -> None:
        unsaid, self._unsaid = self._unsaid, None
        for piece in unsaid or []:
            self._client[1].write(piece)

    def _release(self) -> None:
        held, self._held = self._held, None
        for piece in held or []:
            self._up[1].write(piece)
        if self._client[1].is_closing() or self._client[0].at_eof():
            self._up[1].write_eof()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            piece = await reader.read(1 << 16)
        except OSError:
            return b""
        if self._proxy.delay:
            await asyncio.sleep(self._proxy.delay)
        await self._proxy._hole_closed.wait()
        await self.passes.wait()
        return piece
