"""``HeartbeatLink``: the connection of the thread that renews locks. Blocking, and bound by a deadline at each step."""

from __future__ import annotations

import select
import socket
import threading
import time

import hiredis

from echomq._redis.connect import Settings, check_greeting, check_link_options, unavailable
from echomq._redis.dial import dial
from echomq._redis.forks import remember
from echomq._redis.wire import INCOMPLETE, Argument, Reply, new_reader, pack, refused_for_now
from echomq.errors import ConnectionLost, ServerError, ServerUnavailable

_READ_SIZE = 65536


class HeartbeatLink:
    """One connection for one thread, one call at a time. Connects when it is used; ``close`` may come from any thread.

    Args:
        settings: where the server is, and who we are to it.
        client_name: what ``CLIENT LIST`` shows for this connection.
        connect_timeout: seconds for name lookup, connecting, TLS and greeting together.

    Example:
        >>> link = HeartbeatLink(Settings.from_url("redis://127.0.0.1:6379/0"))
        >>> link.call("PING", timeout=2)
        b'PONG'
        >>> link.close()
    """

    def __init__(self, settings: Settings, *, client_name: str | None = None, connect_timeout: float = 5.0) -> None:
        check_link_options(client_name, connect_timeout=connect_timeout)
        self.settings = settings
        self._client_name = client_name
        self._connect_timeout = connect_timeout
        self._socket: socket.socket | None = None
        self._reader = new_reader()
        self._closed = False
        # Held while a call runs. Only its holder closes the socket, so that nobody reads from a descriptor that has
        # been given to another socket meanwhile.
        self._in_use = threading.Lock()
        remember(self)

    def descriptors(self) -> list[int]:
        """The number of its socket, for the child of a fork."""
        return [] if self._socket is None else [self._socket.fileno()]

    def call(self, *args: Argument, timeout: float) -> Reply:
        """Send one command and give its reply.

        Args:
            args: the command's name and arguments.
            timeout: seconds for all of it, connecting included.

        Raises:
            ServerUnavailable: the command was surely not carried out.
            ConnectionLost: the command was sent and no whole reply came in time: it may have been carried out. The
                connection is closed, so that the late reply cannot be taken for another's.
            ServerError: the server answered with an error.
            TypeError, EncodingError: an argument cannot be sent; nothing was written.
        """
        packed = pack(args)
        try:
            with self._in_use:
                if self._closed:
                    raise RuntimeError(f"the link to {self.settings.where} is closed: make a new one")
                deadline = time.monotonic() + timeout
                sock = self._kept() or self._connect(deadline, timeout)
                reply = self._exchange(sock, packed, deadline)
        finally:
            self._discard_if_closed()
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def close(self) -> None:
        """End the connection for good; a call that runs in another thread fails. Closing again does nothing."""
        self._closed = True
        sock = self._socket
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads; it then closes the socket
            except OSError:
                pass  # not connected any more
        self._discard_if_closed()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _kept(self) -> socket.socket | None:
        # With nothing outstanding there is nothing to read, except that the server has hung up (or talks nonsense).
        # Found now, that costs this call nothing; found after sending, its outcome would be unknown.
        if self._socket is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(0):
                self._discard()
        return self._socket

    def _exchange(self, sock: socket.socket, packed: bytes, deadline: float) -> Reply:
        where = self.settings.where
        try:
            self._send(sock, packed, deadline)
            reply = self._receive(sock, deadline)
            if self._reader.has_data():
                # Then this reply may not be ours either.
                raise hiredis.ProtocolError("the server sent what nobody asked for")
        except BaseException as error:
            self._discard()
            if isinstance(error, (OSError, hiredis.HiredisError)):
                reason = "no whole reply in time" if isinstance(error, TimeoutError) else str(error)
                raise ConnectionLost(
                    f"{where}: {reason}; the call was sent, it may or may not have been carried out"
                ) from error
            raise
        if isinstance(reply, ServerError) and refused_for_now(reply):
            self._discard()
            raise ServerUnavailable(f"{where}: the server refuses work for now: {reply}")
        return reply

    def _connect(self, deadline: float, timeout: float) -> socket.socket:
        allowed = min(timeout, self._connect_timeout)
        deadline = min(deadline, time.monotonic() + self._connect_timeout)
        settings = self.settings
        try:
            greeting = settings.greeting(settings.credentials(), self._client_name)
            packed = b"".join(pack(command) for command in greeting)
            self._reader = new_reader()
            # Stored before it greets: so `close` can wake it, and a failure finds what to discard.
            self._refuse_if_closed()
            sock = self._socket = self._dial(deadline)
            self._refuse_if_closed()
            self._send(sock, packed, deadline)
            replies: list[Reply | BaseException] = []
            while len(replies) < len(greeting):
                reply = self._receive(sock, deadline)
                replies.append(reply)
                if isinstance(reply, ServerError) and refused_for_now(reply):
                    break  # a server that has too many clients says so once, and hangs up
            check_greeting(settings.where, greeting[: len(replies)], replies)
        except BaseException as error:
            self._discard()
            if isinstance(error, Exception) and not isinstance(error, (ServerError, ServerUnavailable)):
                raise unavailable(settings, error, allowed) from error
            raise
        return sock

    def _refuse_if_closed(self) -> None:
        # `close` wakes a call by shutting its socket; the call must not take that for a reason to connect anew.
        if self._closed:
            raise ServerUnavailable(f"{self.settings.where}: the link was closed; the call was not sent")

    def _dial(self, deadline: float) -> socket.socket:
        settings = self.settings
        if settings.path is not None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(_left(deadline))
                sock.connect(settings.path)
            except BaseException:
                sock.close()
                raise
            return sock
        context = settings.tls_context()
        sock = dial(settings.host, settings.port, deadline)
        if context is None:
            return sock
        try:
            sock.settimeout(_left(deadline))
            return context.wrap_socket(sock, server_hostname=settings.host)
        except BaseException:
            sock.close()
            raise

    def _send(self, sock: socket.socket, packed: bytes, deadline: float) -> None:
        sock.settimeout(_left(deadline))
        sock.sendall(packed)

    def _receive(self, sock: socket.socket, deadline: float) -> Reply:
        reply: Reply
        while (reply := self._reader.gets()) is INCOMPLETE:
            sock.settimeout(_left(deadline))
            data = sock.recv(_READ_SIZE)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def _discard(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def _discard_if_closed(self) -> None:
        # Whoever comes last does it: a call looks after it has let go of the lock, `close` after it has set the flag.
        if self._closed and self._in_use.acquire(blocking=False):
            try:
                self._discard()
            finally:
                self._in_use.release()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
