"""A queue's line of calls: whoever asks gets a future, one call is under way, and adds that wait meanwhile go together.

Callers hold futures only. What a cancelled caller asked for is not sent any more if it still waits in the line, or if it was
surely not carried out and nobody else's goes with it; else it may still happen, which is all that can be promised.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Lane, Patience, opened, read_command, read_script
from echomq._store.codec import MORE, NewJob, decode_id
from echomq._store.keys import QueueKeys
from echomq.connection import Hub
from echomq.errors import BrokenKey, ConnectionLost, EchoMQError, ServerError, ServerUnavailable, UnsupportedServer

MOST_JOBS = 100
"""So that one call takes the server less than a millisecond, and below 5 ms where its memory grows meanwhile."""

MOST_BYTES = 1024 * 1024
_ADD = "addJobs-11"
_MOST_TOLD = 100
_TELL = "updateJobs-4"


@dataclass(frozen=True, slots=True)
class Added:
    """What became of one job of an add.

    Attributes:
        job_id: its id; of one whose deduplication id is held, the id of the job that holds it; of one that the full queue
            refused, how many jobs wait there.
        code: ``ADDED``, ``DUPLICATE``, ``DEDUPLICATED`` or ``FULL`` (``codes``).
        at: the server's time in milliseconds.
    """

    job_id: str
    code: int
    at: int


@dataclass(slots=True)
class _Add:
    future: asyncio.Future[list[Added]]
    asked: float
    jobs: Sequence[NewJob]
    size: int


@dataclass(slots=True)
class _Telling:
    future: asyncio.Future[int | str]
    asked: float
    told: Sequence[bytes | str]
    size: int


@dataclass(slots=True)
class _Call:
    future: asyncio.Future[Any]
    asked: float
    name: str
    args: Sequence[Argument]


def size_of(job: NewJob) -> int:
    """About how many bytes a job takes on its way."""
    return len(job[0]) + len(job[1]) + len(job[2]) + 64


class Line:
    """The line of one queue object in one event loop. It is a user of the hub until it is closed.

    A call that waits in the line is given up when it has waited as long as the connection is to wait for a server that
    is away, and the call before it has just been given up. A call that was sent is repeated as long as that at least.

    Args:
        max_size: how many jobs may wait in the queue once one is added; None for any number.
    """

    def __init__(self, hub: Hub, keys: QueueKeys, max_size: int | None = None) -> None:
        self.loop: asyncio.AbstractEventLoop = hub.loop
        self.hub = hub
        self.keys = keys
        self._max_size = ""
        if max_size is not None:
            self.bound(max_size)
        self._lane: Lane | None = None
        self._waiting: deque[_Add | _Telling | _Call] = deque()
        self._walk: asyncio.Task[None] | None = None
        self._closed = False

    def bound(self, max_size: int) -> None:
        """Lets that many jobs wait in the queue, from the next add on."""
        self._max_size = str(max_size)

    def add(self, jobs: Sequence[NewJob]) -> asyncio.Future[list[Added]]:
        """Adds at most ``MOST_JOBS`` jobs, all or none, in order."""
        size = size_of(jobs[0]) if len(jobs) == 1 else sum(map(size_of, jobs))
        return self._ask(_Add(self.loop.create_future(), self.loop.time(), jobs, size))

    def tell(self, told: Sequence[bytes | str]) -> asyncio.Future[int | str]:
        """Writes what is told of one job, as updateJobs takes it; what waits together goes together, in order.

        The future gets what the script answers for it: a code, the length of a log, or what is broken.
        """
        return self._ask(_Telling(self.loop.create_future(), self.loop.time(), told, sum(map(len, told))))

    def call(self, name: str, args: Sequence[Argument]) -> asyncio.Future[Any]:
        """Calls a lane script; the future gets its reply."""
        return self._ask(_Call(self.loop.create_future(), self.loop.time(), name, args))

    async def read(self, name: str, args: Sequence[Argument]) -> Reply:
        """Calls a script that changes nothing. It goes past the line."""
        patience = Patience(self.hub.wait, self.hub.look_after)
        try:
            return await read_script(await self._link(patience), name, self.keys, args, patience)
        except EchoMQError as error:
            raise _retold(error, self.keys.queue, "could not be read") from error

    async def ask(self, *command: Argument) -> Reply:
        """One command that changes nothing. It goes past the line."""
        patience = Patience(self.hub.wait, self.hub.look_after)
        try:
            return await read_command(await self._link(patience), command, patience)
        except EchoMQError as error:
            raise _retold(error, self.keys.queue, "could not be read") from error

    async def connected(self) -> None:
        """Waits for the first connection, as long as the connection is to wait."""
        try:
            await self._link(Patience(self.hub.wait, self.hub.look_after))
        except EchoMQError as error:
            raise _retold(error, self.keys.queue, "could not be reached") from error

    async def settled(self) -> None:
        """Waits until nothing is under way."""
        while self._walk is not None:
            await asyncio.wait([self._walk])

    async def close(self, within: float | None = None) -> None:
        """Takes nothing more, waits for what was asked, and leaves the hub.

        Args:
            within: seconds after which nobody is interested in that any more, and it is given up; None: it waits.
        """
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(within):
                await self.settled()
        except TimeoutError:
            if self._walk is not None:
                self._walk.cancel()
                await asyncio.wait([self._walk])
        finally:
            await self.hub.release()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ask(self, asked: Any) -> asyncio.Future[Any]:
        if self._closed:
            raise RuntimeError(f"queue {self.keys.queue!r} is closed: make a new Queue")
        self._waiting.append(asked)
        if self._walk is None:
            self._walk = self.loop.create_task(self._run(), name="echomq calls")
        return asked.future  # type: ignore[no-any-return]

    async def _link(self, patience: Patience) -> Link:
        return await opened(lambda: self.hub.link(hash_tag=self.keys.hash_tag), patience)

    async def _run(self) -> None:
        under_way: list[Any] = []
        try:
            while self._waiting:
                first = self._waiting.popleft()
                if first.future.cancelled():
                    continue
                under_way = [first]
                try:
                    if isinstance(first, _Call):
                        await self._one(first, under_way)
                    elif isinstance(first, _Telling):
                        await self._tell(first, under_way)
                    else:
                        await self._together(first, under_way)
                except Exception as error:  # it is the callers' to hear, also if it is a fault of ours
                    self._fail(under_way, error)
                under_way = []
        finally:
            self._walk = None
            for left in (*under_way, *self._waiting):  # only when this task itself was cancelled, with its event loop
                left.future.cancel()
            self._waiting.clear()

    async def _send(self, name: str, args: Sequence[Argument], asked: Sequence[_Add | _Telling | _Call]) -> Reply:
        wait = self.hub.wait
        waited = self.loop.time() - asked[-1].asked
        patience = Patience(wait - waited if waited < wait else 0.0, self.hub.look_after, callers=asked)
        if self._lane is None:
            self._lane = Lane(await self._link(patience), self.keys)
            if patience.is_given_up:
                raise ServerUnavailable("all who asked have been cancelled")
        return await self._lane.call(name, args, patience)

    async def _one(self, call: _Call, calls: list[_Call]) -> None:
        reply = await self._send(call.name, call.args, calls)
        if not call.future.done():
            call.future.set_result(reply)

    async def _tell(self, first: _Telling, tellings: list[_Telling]) -> None:
        size = first.size
        while self._waiting and len(tellings) < _MOST_TOLD:
            following = self._waiting[0]
            if not isinstance(following, _Telling) or size + following.size > MOST_BYTES:
                break
            self._waiting.popleft()
            if not following.future.cancelled():
                tellings.append(following)
                size += following.size
        reply = await self._send(_TELL, [part for one in tellings for part in one.told], tellings)
        assert isinstance(reply, list)
        for one, answer in zip(tellings, reply[1:], strict=True):
            if not one.future.done():
                one.future.set_result(answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer)  # type: ignore[arg-type]

    async def _together(self, first: _Add, adds: list[_Add]) -> None:
        count, size = len(first.jobs), first.size
        while self._waiting:
            following = self._waiting[0]
            if not isinstance(following, _Add):
                break
            if count + len(following.jobs) > MOST_JOBS or size + following.size > MOST_BYTES:
                break
            self._waiting.popleft()
            if not following.future.cancelled():
                adds.append(following)
                count, size = count + len(following.jobs), size + following.size
        await self._add(adds, count)

    async def _add(self, adds: list[_Add], count: int) -> None:
        args: list[Argument] = [str(count), self._max_size]
        for add in adds:
            for job in add.jobs:
                args.extend(job)
        try:
            reply = await self._send(_ADD, args, adds)
        except BrokenKey:
            if len(adds) == 1 or not any(job[MORE] for add in adds for job in add.jobs):
                raise
            for add in adds:  # nothing was changed; what is broken may be the key of one job alone
                await self._add_alone(add)
            return
        results = _results(reply)
        start = 0
        for add in adds:
            end = start + len(add.jobs)
            if not add.future.done():
                add.future.set_result(results[start:end])
            start = end

    async def _add_alone(self, add: _Add) -> None:
        try:
            await self._add([add], len(add.jobs))
        except Exception as error:
            self._fail([add], error)

    def _fail(self, asked: Sequence[_Add | _Telling | _Call], error: Exception) -> None:
        for one in asked:
            _refuse(one, error, self.keys.queue)
        if not isinstance(error, (ServerUnavailable, ConnectionLost)):
            return
        overdue = self.loop.time() - self.hub.wait
        while self._waiting and self._waiting[0].asked <= overdue:
            behind = ServerUnavailable(f"the server has not answered for {self.hub.wait:g} s")
            _refuse(self._waiting.popleft(), behind, self.keys.queue)


def _results(reply: Reply) -> list[Added]:
    assert isinstance(reply, list)
    now = int(reply[0])  # type: ignore[arg-type]
    ids, flags = reply[1::2], reply[2::2]
    return [Added(decode_id(job_id), code, now) for job_id, code in zip(ids, flags, strict=True)]  # type: ignore[arg-type]


def _refuse(asked: _Add | _Telling | _Call, error: Exception, queue: str) -> None:
    if asked.future.done():
        return
    if isinstance(error, ConnectionLost):
        what = "outcome unknown"
    else:
        what = "not added" if isinstance(asked, _Add) else "not carried out"
    told = _retold(error, queue, what)
    if told is not error:
        told.__cause__ = error
    asked.future.set_exception(told)


def _retold(error: Exception, queue: str, what: str) -> Exception:
    """The error once more, for one caller, with the queue's name and what became of the call."""
    message = f"queue {queue!r}: {what}: {error}"
    if isinstance(error, ServerError):
        return type(error)(message, code=error.code)
    if isinstance(error, (ServerUnavailable, ConnectionLost, UnsupportedServer)):
        return type(error)(message)
    return error
