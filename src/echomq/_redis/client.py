"""``Link``: a pipelined connection to one server that comes into being when it is first needed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from echomq._redis.connect import Settings, check_greeting, check_link_options, unavailable
from echomq._redis.dial import dial_async
from echomq._redis.pipe import Pipe
from echomq._redis.wire import Argument, Head, Reply, pack
from echomq.errors import ConnectionLost, EchoMQError, ServerError, ServerUnavailable


class Link:
    """One connection to one server, shared by any number of callers in one event loop.

    It connects when it is first used, and again when it is used after a loss. It never sends a command twice: whether a
    call may be sent again, only the caller knows.

    It may be made anywhere, before any event loop runs; its first use ties it to that loop until ``drop`` or ``close``.

    Args:
        settings: where the server is, and who we are to it.
        client_name: what ``CLIENT LIST`` shows for this connection.
        connect_timeout: seconds for name lookup, connecting, TLS and greeting together.
        reply_timeout: seconds a reply may take, unless a call says otherwise. When it passes, the connection is given
            up, because no later reply on it could be waited for with more hope.

    Example:
        >>> link = Link(Settings.from_url("redis://127.0.0.1:6379/0"), client_name="worker")
        >>> await link.call("SET", "k", 1)
        b'OK'
        >>> await link.close()
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client_name: str | None = None,
        connect_timeout: float = 5.0,
        reply_timeout: float = 10.0,
    ) -> None:
        check_link_options(client_name, connect_timeout=connect_timeout, reply_timeout=reply_timeout)
        self.settings = settings
        self._client_name = client_name
        self._connect_timeout = connect_timeout
        self._reply_timeout = reply_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pipe: Pipe | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "not connected"
        return f"<Link {self.settings.where} {state}>"

    @property
    def connected(self) -> bool:
        """Whether a connection is open, as far as this side knows."""
        return self._pipe is not None and self._pipe.alive

    @property
    def moved_at(self) -> float:
        """When bytes last came, or some of a large command went, on the event loop's clock; ``-inf`` without a connection."""
        return -math.inf if self._pipe is None else self._pipe.moved_at

    async def call(self, *args: Argument, reply_timeout: float | None = None) -> Reply:
        """Send one command and give its reply, connecting first if need be.

        Cancelling the caller never touches the connection; the reply is then read and dropped.

        Args:
            args: the command's name and arguments.
            reply_timeout: seconds for this reply, instead of the link's own; ``math.inf`` to wait for ever.

        Raises:
            ServerUnavailable: the command was surely not carried out: no connection, or the server refuses for now.
            ConnectionLost: the command was sent and no reply came: it may have been carried out.
            ServerError: the server answered with an error.
            TypeError, EncodingError: an argument cannot be sent; nothing was written.
        """
        packed = pack(args)
        pipe = self._usable() or await self._opened()
        reply: Reply = await pipe.send(packed, self._reply_timeout if reply_timeout is None else reply_timeout)
        return reply

    async def call_with(self, head: Head, args: Sequence[Argument]) -> Reply:
        """The same as ``call(*head.args, *args)``, for a command whose beginning is the same each time."""
        packed = head.pack_with(args)
        pipe = self._usable() or await self._opened()
        reply: Reply = await pipe.send(packed, self._reply_timeout)
        return reply

    async def call_many(
        self, commands: Sequence[Sequence[Argument]], *, reply_timeout: float | None = None
    ) -> list[Reply | EchoMQError]:
        """Send commands together (not as a transaction) and give their replies in the same order.

        An error answer stands in its place among the replies (``ServerError``, or ``ServerUnavailable`` where the
        server refused that command for now); it is not raised.

        Raises:
            ServerUnavailable: nothing was sent.
            ConnectionLost: the connection ended before the last reply: any of the commands may have been carried out.
            TypeError, EncodingError: an argument cannot be sent; nothing was written.
        """
        if not commands:
            return []
        packed = b"".join(map(pack, commands))
        pipe = self._usable() or await self._opened()
        timeout = self._reply_timeout if reply_timeout is None else reply_timeout
        replies: list[Reply | EchoMQError] = await pipe.send(packed, timeout, len(commands))
        return replies

    async def connect(self) -> None:
        """Connect now, if there is no connection. Concurrent callers share one attempt.

        Raises:
            ServerUnavailable: there is no server, or it refuses work for now; the cause is chained.
            ServerError: the server answered with another error, such as ``WRONGPASS``, ``NOAUTH`` or ``NOPERM``.
        """
        self._claim_loop()
        if self.connected:
            return
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._open(), name=f"echomq connect {self.settings.where}")
            self._attempt.add_done_callback(_mark_as_seen)
        attempt = self._attempt
        # Waiting for it, rather than awaiting it: a cancelled caller leaves the attempt to the others, and an
        # attempt that was dropped does not look like a cancellation of its callers.
        await asyncio.wait([attempt])
        if attempt.cancelled():
            raise ServerUnavailable(f"{self.settings.where}: the link was dropped while it connected")
        attempt.result()

    def drop(self, reason: str) -> None:
        """Give the connection up now: outstanding calls fail with ``ConnectionLost``. The next use connects anew."""
        self._leave_dead_loop()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.abort(reason)
        self._loop = None

    async def close(self) -> None:
        """End the connection for good. Outstanding calls fail with ``ConnectionLost``; closing again does nothing."""
        self._leave_dead_loop()
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise self._other_loop()
        self._closed = True
        attempt, pipe = self._attempt, self._pipe
        self.drop("the link was closed")
        if attempt is not None:
            await asyncio.wait([attempt])
        if pipe is not None:
            await asyncio.wait([pipe.closed])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _usable(self) -> Pipe | None:
        pipe = self._pipe
        if pipe is not None and pipe.alive and not pipe.paused and asyncio.get_running_loop() is self._loop:
            return pipe
        return None

    async def _opened(self) -> Pipe:
        while True:
            await self.connect()
            pipe = self._pipe
            if pipe is None or not pipe.alive:
                raise ServerUnavailable(f"{self.settings.where}: the connection was closed as soon as it was open")
            if not pipe.paused:
                return pipe
            # What was written before has not left yet. A connection that ends meanwhile is replaced: of this call
            # nothing was sent.
            await pipe.writable()

    def _claim_loop(self) -> None:
        if self._closed:
            raise RuntimeError(f"the link to {self.settings.where} is closed: make a new one")
        self._leave_dead_loop()
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise self._other_loop()

    def _leave_dead_loop(self) -> None:
        # A program that runs one event loop after the other (asyncio.run twice) leaves connections that died.
        if self._loop is not None and self._loop.is_closed():
            self._loop = self._pipe = self._attempt = None

    def _other_loop(self) -> RuntimeError:
        return RuntimeError(
            f"the link to {self.settings.where} is in use in another event loop: close it there first, or make one for "
            "each event loop"
        )

    async def _open(self) -> None:
        this = asyncio.current_task()
        try:
            pipe = await open_pipe(self.settings, self._client_name, self._connect_timeout)
            if self._attempt is not this:
                pipe.abort("dropped while it connected")
                raise ServerUnavailable(f"{self.settings.where}: the link was dropped while it connected")
            self._pipe = pipe
        finally:
            if self._attempt is this:
                self._attempt = None


def _mark_as_seen(attempt: asyncio.Task[None]) -> None:
    # All who waited for it may have been cancelled; then nobody is left to hear why it failed.
    if not attempt.cancelled():
        attempt.exception()


async def open_pipe(settings: Settings, client_name: str | None, timeout: float) -> Pipe:
    """Connect and greet within ``timeout`` seconds. Whatever goes wrong, no socket is left behind."""
    loop = asyncio.get_running_loop()
    pipe: Pipe | None = None
    try:
        async with asyncio.timeout(timeout) as limit:
            greeting = settings.greeting(await settings.credentials_async(), client_name)
            pipe = made = Pipe(settings.where, [pack(command) for command in greeting], loop)
            if settings.path is not None:
                await loop.create_unix_connection(lambda: made, settings.path)
            else:
                context = settings.tls_context()
                deadline = limit.when()
                assert deadline is not None
                sock = await dial_async(settings.host, settings.port, deadline)
                name = None if context is None else settings.host  # whatever its address is
                await loop.create_connection(lambda: made, sock=sock, ssl=context, server_hostname=name)
            replies = await asyncio.gather(*pipe.greeted, return_exceptions=True)
        check_greeting(settings.where, greeting, replies)
    except BaseException as error:
        if pipe is not None:
            pipe.abort("connecting failed")
            for greeted in pipe.greeted:  # perhaps nobody has come to wait for them
                if not greeted.cancelled():
                    greeted.exception()
        if pipe is not None and isinstance(error, ConnectionLost):
            raise unavailable(settings, ConnectionResetError(pipe.ended), timeout) from error
        if isinstance(error, Exception) and not isinstance(error, (ServerError, ServerUnavailable)):
            raise unavailable(settings, error, timeout) from error
        raise
    return pipe
