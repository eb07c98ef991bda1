"""One open connection: commands go out in order, replies come back in the same order.

A caller holds a future and nothing else. When the caller is cancelled, its place in the line stays, its reply is read
and dropped, and everybody else still gets their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis

from echomq._redis.connect import confirmed
from echomq._redis.forks import remember
from echomq._redis.wire import INCOMPLETE, Reply, new_reader, refused_for_now
from echomq.errors import ConnectionLost, EchoMQError, ServerError, ServerUnavailable

# A deadline that passed while the event loop was held up says nothing about the server: its reply may lie in the
# socket, or the command itself may not have left yet. So a passed deadline gets a second look, as much later as the
# first one came late, within these bounds in seconds; only then is the connection given up.
_SHORTEST_SECOND_LOOK = 0.05
_LONGEST_SECOND_LOOK = 1.0

# A command of so many bytes may take longer to leave than a reply may take to come. Most of it lies in buffers then, where
# only a look from time to time (in seconds) sees it move.
_LARGE = 64 * 1024
_BETWEEN_GLANCES = 0.1

_FOR_EVER = float("inf")


class Pipe(asyncio.Protocol):
    """A connection, from ``connection_made`` to ``connection_lost``. Made and used in one event loop."""

    def __init__(self, where: str, greeting: Sequence[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.where = where
        self.closed: asyncio.Future[None] = loop.create_future()
        self.greeted: list[asyncio.Future[Any]] = []
        self._greeting = greeting
        self.paused = False
        self.ended: str | None = None  # why, once it has
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader = new_reader()
        # One entry a call: its future, its deadline, for many commands at once how many replies it takes (else 0), and its
        # timeout.
        self._outstanding: deque[tuple[asyncio.Future[Any], float, int, float]] = deque()
        self._parts: list[Reply] = []
        self._writable: list[asyncio.Future[None]] = []
        self._watchdog: asyncio.TimerHandle | None = None
        self._suspected = False
        self.moved_at = -_FOR_EVER  # when bytes last came, or some of a large command went
        self._written = 0  # bytes, ever
        self._gone = 0
        self._followed_to = 0  # the end of the last large command, counted as the two above
        self._glances: asyncio.TimerHandle | None = None
        remember(self)

    def descriptors(self) -> list[int]:
        """The number of its socket, for the child of a fork."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        return [] if found is None else [found.fileno()]

    @property
    def alive(self) -> bool:
        """Whether a command written now can reach the server, as far as this side knows."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, packed: bytes, timeout: float, parts: int = 0) -> asyncio.Future[Any]:
        """Write at once; the future gets the reply (a list of ``parts`` replies if that is not 0)."""
        assert self._transport is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + timeout
        self._outstanding.append((future, deadline, parts, timeout))
        if self._watchdog is None or deadline < self._watchdog.when():
            self._watch(deadline)
        self._transport.write(packed)
        self._written += len(packed)
        if len(packed) > _LARGE:
            self._follow()
        return future

    async def writable(self) -> None:
        """Wait until the transport takes more, or the connection has ended."""
        if self.paused and self.alive:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._writable.append(turn)
            await turn

    def abort(self, reason: str) -> None:
        """Give the connection up now: every outstanding call fails with ``ConnectionLost``."""
        self.ended = self.ended or reason
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._glances is not None:
            self._glances.cancel()
            self._glances = None
        while self._outstanding:
            future, _, _, _ = self._outstanding.popleft()
            if not future.done():
                future.set_exception(
                    ConnectionLost(
                        f"{self.where}: {reason}; the call was sent, it may or may not have been carried out"
                    )
                )
        self._parts = []
        self._wake_writers()
        if self._transport is not None:
            self._transport.abort()

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's stream transports do not derive from it
        # Sent here, before anything can be received, so that whatever the server says first answers a question of ours.
        # The deadline is that of the attempt to connect.
        self.greeted = [self.send(command, _FOR_EVER) for command in self._greeting]

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(f"the connection broke ({exc})" if exc else "the server closed the connection")
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.moved_at = self._loop.time()
        self.paused = False
        self._wake_writers()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        refusal: str | None = None
        self.moved_at = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not INCOMPLETE:
                if not self._outstanding:
                    # Nobody asked, so from here on no reply can be trusted to be whose it seems to be.
                    return self.abort(f"the server sent what nobody asked for ({_shown(reply)})")
                if type(reply) is ServerError and refused_for_now(reply):
                    refusal = str(reply)
                    reply = ServerUnavailable(f"{self.where}: the server refuses work for now: {reply}")
                future, _, parts, _ = self._outstanding[0]
                if parts:
                    self._parts.append(reply)
                    if len(self._parts) < parts:
                        continue
                    reply, self._parts = self._parts, []
                self._outstanding.popleft()
                if future.done():
                    continue
                if isinstance(reply, EchoMQError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        except hiredis.HiredisError as error:
            return self.abort(f"the server's answer cannot be parsed ({error})")
        if refusal is not None:
            self.abort(f"dropped, because the server answered {refusal!r}")

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def _watch(self, when: float) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if when < _FOR_EVER:
            self._watchdog = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        # One timer for all calls: it is set to the earliest deadline it knows of, and when it rings, most of the
        # calls that it knew have long been answered. So a call costs no timer of its own.
        self._watchdog = None
        if not self._outstanding:
            self._suspected = False
            return
        earliest, timeout = min((deadline, timeout) for _, deadline, _, timeout in self._outstanding)
        now = self._loop.time()
        if earliest > now:
            self._suspected = False
            self._watch(earliest)
        elif now < (still := self.moved_at + timeout):
            # A large reply, or a large command of ours, on a slow way: what has moved just now is not dead.
            self._suspected = False
            self._watch(still)
        elif not self._suspected:
            self._suspected = True
            late = now - earliest
            self._watch(now + min(max(late, _SHORTEST_SECOND_LOOK), _LONGEST_SECOND_LOOK))
        else:
            self.abort(f"no reply within the deadline, calls outstanding: {len(self._outstanding)}")

    def _follow(self) -> None:
        self._followed_to = self._written
        if self._glances is None:
            self._glances = self._loop.call_later(_BETWEEN_GLANCES, self._glance)

    def _glance(self) -> None:
        # Only as far as a large command goes: what follows it must not keep a dead connection, since the kernel of a frozen
        # server goes on taking small ones.
        self._glances = None
        if not self.alive:
            return
        gone = self._count_gone()
        if gone > self._gone:
            self._gone = gone
            self.moved_at = self._loop.time()
        if gone < self._followed_to:
            self._glances = self._loop.call_later(_BETWEEN_GLANCES, self._glance)

    def _count_gone(self) -> int:
        """How much of what was written has arrived, or at least left this process."""
        assert self._transport is not None
        arrived = confirmed(self._transport.get_extra_info("socket"))
        return self._written - self._transport.get_write_buffer_size() if arrived is None else arrived

    def _wake_writers(self) -> None:
        waiting, self._writable = self._writable, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


def _shown(reply: object) -> str:
    text = repr(reply)
    return text if len(text) <= 80 else text[:77] + "..."
