"""A queue's line of calls: whoever asks gets a future, one call is under way, and adds that wait meanwhile go together.

Callers hold futures only. A cancelled caller leaves its call in the line: what was asked for may still happen, which is
all that can be promised once a call may have been sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Lane, Patience
from echomq._store.codec import NewJob
from echomq._store.keys import QueueKeys

MOST_JOBS = 250
MOST_BYTES = 1024 * 1024
_ADD = "addJobs-11"


@dataclass(frozen=True, slots=True)
class Added:
    """What became of one job of an add.

    Attributes:
        job_id: its id.
        new: False if a job of this id was there already.
        at: the server's time in milliseconds.
    """

    job_id: str
    new: bool
    at: int


@dataclass(slots=True)
class _Add:
    jobs: Sequence[NewJob]
    size: int
    future: asyncio.Future[list[Added]]


@dataclass(slots=True)
class _Call:
    name: str
    args: Sequence[Argument]
    future: asyncio.Future[Any]


def size_of(job: NewJob) -> int:
    """About how many bytes a job takes on its way."""
    return len(job[1]) + len(job[2]) + 64


class Line:
    """The line of one queue object in one event loop."""

    def __init__(self, link: Link, keys: QueueKeys, patience: Patience) -> None:
        self._lane = Lane(link, keys)
        self._patience = patience
        self._waiting: deque[_Add | _Call] = deque()
        self._walk: asyncio.Task[None] | None = None

    def add(self, jobs: Sequence[NewJob]) -> asyncio.Future[list[Added]]:
        """Adds at most ``MOST_JOBS`` jobs, all or none, in order."""
        future: asyncio.Future[list[Added]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Add(jobs, sum(map(size_of, jobs)), future))
        self._go()
        return future

    def call(self, name: str, args: Sequence[Argument]) -> asyncio.Future[Any]:
        """Calls a lane script; the future gets its reply."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(name, args, future))
        self._go()
        return future

    async def settled(self) -> None:
        """Waits until nothing is under way."""
        while self._walk is not None:
            await asyncio.wait([self._walk])

    def _go(self) -> None:
        if self._walk is None:
            self._walk = asyncio.create_task(self._run(), name="echomq calls")

    async def _run(self) -> None:
        try:
            while self._waiting:
                first = self._waiting.popleft()
                if isinstance(first, _Call):
                    await self._one(first)
                else:
                    await self._together(first)
        finally:
            self._walk = None
            while self._waiting:  # only when this task itself was cancelled, with its event loop
                self._waiting.popleft().future.cancel()

    async def _one(self, call: _Call) -> None:
        try:
            reply = await self._lane.call(call.name, call.args, self._patience)
        except Exception as error:
            _fail([call.future], error)
        else:
            if not call.future.done():
                call.future.set_result(reply)

    async def _together(self, first: _Add) -> None:
        adds, count, size = [first], len(first.jobs), first.size
        while self._waiting and isinstance(self._waiting[0], _Add):
            following = self._waiting[0]
            if count + len(following.jobs) > MOST_JOBS or size + following.size > MOST_BYTES:
                break
            self._waiting.popleft()
            adds.append(following)
            count, size = count + len(following.jobs), size + following.size
        args: list[Argument] = [str(count)]
        for add in adds:
            for job in add.jobs:
                args.extend(job)
        try:
            reply = await self._lane.call(_ADD, args, self._patience)
        except Exception as error:
            _fail([add.future for add in adds], error)
            return
        results = _results(reply)
        start = 0
        for add in adds:
            end = start + len(add.jobs)
            if not add.future.done():
                add.future.set_result(results[start:end])
            start = end


def _results(reply: Reply) -> list[Added]:
    assert isinstance(reply, list)
    now = int(reply[0])  # type: ignore[arg-type]
    ids, flags = reply[1::2], reply[2::2]
    return [Added(job_id.decode(), new == 1, now) for job_id, new in zip(ids, flags, strict=True)]  # type: ignore[union-attr]


def _fail(futures: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
