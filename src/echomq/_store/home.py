"""A queue as its public objects use it: its keys, and in each event loop its line of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from echomq._payloads import Payloads
from echomq._store.codec import NewJob
from echomq._store.keys import QueueKeys
from echomq._store.line import Added, Line
from echomq._telemetry import Guard
from echomq.connection import Connection, run_elsewhere
from echomq.errors import PayloadTooLarge, QueueFull
from echomq.options import MAX_BYTES, JobSpec

T = TypeVar("T")

_AT_ONCE: Final = 16
"""How many payloads are encoded at once."""


class Home:
    """One queue object's, or one worker's, way to its queue. Making one connects to nothing.

    Attributes:
        connection: to which server.
        keys: the queue's keys.
        max_size: how many jobs may wait in the queue for an add to be taken; None for any number.
        telemetry: what hears of what is done here; None for nothing.
        payloads: how data and results are stored; None: as they are.
        max_bytes: how many bytes the data of a job may take as they are stored; None for any number.
        loop: the event loop that carries out what the threads of handlers ask for; None where there are none.
    """

    def __init__(
        self,
        connection: Connection,
        keys: QueueKeys,
        max_size: int | None = None,
        telemetry: Guard | None = None,
        payloads: Payloads | None = None,
        max_bytes: int | None = MAX_BYTES,
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.max_size = max_size
        self.telemetry = telemetry
        self.payloads = payloads
        self.max_bytes = max_bytes
        self.loop: asyncio.AbstractEventLoop | None = None
        self._line: Line | None = None  # the one used last
        self._lines: dict[asyncio.AbstractEventLoop, Line] = {}
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it can be used no more."""
        return self._closed

    @property
    def line(self) -> Line:
        """The line in the running event loop, made when it is first needed there."""
        line = self._line
        if line is not None and line.loop is asyncio.get_running_loop() and not self._closed:
            return line
        # There is no lock: a signal handler may make a sync call here, for which the portal's thread comes here, too. What is of
        # a loop that lives is touched in its thread alone, or taken out by ``close``.
        if self._closed:
            raise self._error_closed()
        for dead in [loop for loop in list(self._lines) if loop.is_closed()]:
            self._lines.pop(dead, None)
        loop = asyncio.get_running_loop()
        found = self._lines.get(loop)
        if found is None:
            found = self._lines[loop] = Line(self.connection.acquire(), self.keys, self.max_size)
            if self.max_size is not None:
                found.bound(self.max_size)  # ``bound`` may have come too early to see this line
            if self.is_closed:  # in another thread, meanwhile; one of the two takes it out
                if self._lines.pop(loop, None) is not None:
                    run_elsewhere(loop, found.close)
                raise self._error_closed()
        self._line = found
        return found

    def _error_closed(self) -> RuntimeError:
        return RuntimeError(f"queue {self.keys.queue!r} is closed: make a new Queue")

    def carry_out(self, telling: Coroutine[Any, Any, T]) -> Any:
        """For a thread without an event loop: carries it out in that of the worker. What it gives is to be awaited, elsewhere."""
        if self.loop is None:
            return telling
        try:
            return asyncio.run_coroutine_threadsafe(telling, self.loop).result()
        except RuntimeError:  # the loop has closed
            telling.close()
            raise

    async def wrapped(self, new: NewJob, most: int | None = None) -> NewJob:
        """A new job with its data as they are to be stored.

        Args:
            new: the job.
            most: how many bytes its data may take, where that is another number than the queue's.

        Raises:
            PayloadTooLarge: they take more. StoreUnavailable: the store of large payloads does not answer.
        """
        sent = await self.encoded(new)
        self.check_size(sent[1], most)
        return sent

    def may_wait(self, new: NewJob) -> bool:
        """Whether to wrap its data may need the store of large payloads."""
        return self.payloads is not None and self.payloads.may_wait(len(new[1]))

    async def encoded(self, new: NewJob) -> NewJob:
        """The same, whatever its size."""
        if self.payloads is None:
            return new
        name, data, *rest = new
        return (name, await self.payloads.encode(data.encode() if isinstance(data, str) else data), *rest)

    async def all_wrapped(self, new: Sequence[NewJob], specs: Sequence[JobSpec]) -> list[NewJob]:
        """New jobs, each of its spec, with their data as they are to be stored; a few at a time, as each may wait for a store.

        Raises:
            PayloadTooLarge: those of one of them take more; names its position. StoreUnavailable: as ``wrapped``.
        """
        sent = list(new)
        if self.payloads is not None:
            for start in range(0, len(new), _AT_ONCE):
                some = map(self.encoded, new[start : start + _AT_ONCE])
                made = await asyncio.gather(*some, return_exceptions=True)  # so that none goes on alone
                for position, one in enumerate(made, start):
                    if isinstance(one, BaseException):
                        raise one
                    sent[position] = one
        for position, (job, spec) in enumerate(zip(sent, specs, strict=True)):
            self.check_size(job[1], spec.max_bytes, position)
        return sent

    def check_size(self, data: bytes | str, most: int | None = None, position: int | None = None) -> None:
        """Refuses data that take more bytes than they may.

        Args:
            data: as they are to be stored.
            most: how many they may take, where that is another number than the queue's.
            position: of their job, where several are added.

        Raises:
            PayloadTooLarge: they take more.
        """
        most = most or self.max_bytes
        if most is not None and len(data) > most:
            raise PayloadTooLarge("data" if position is None else f"jobs[{position}]: data", len(data), most)

    def full(self, added: Added) -> QueueFull:
        """What the caller of an add hears whose job the queue, being full, has refused."""
        assert self.max_size is not None
        return QueueFull(self.keys.queue, int(added.job_id), self.max_size)

    def leads_where(self, other: Home) -> bool:
        """Whether that one is a way to the same queue."""
        return self.keys.base == other.keys.base and self.connection.same_server(other.connection)

    def bound(self, max_size: int) -> None:
        """Lets that many jobs wait, from the next add on."""
        self.max_size = max_size
        for line in list(self._lines.values()):
            line.bound(max_size)

    async def close(self, within: float | None = None) -> None:
        """Waits for the calls under way, so many seconds at most if there is a bound, and lets the connection go.

        Closing again does nothing.
        """
        self._closed = True
        self._line = None
        lines = [line for loop in list(self._lines) if (line := self._lines.pop(loop, None)) is not None]
        here = asyncio.get_running_loop()
        for line in lines:
            if line.loop is not here:
                run_elsewhere(line.loop, line.close)
        for line in lines:
            if line.loop is here:
                await line.close(within)
