"""Requests to cancel jobs (docs/cancelling.md): heard from the queue's stream of them, and told to the runs that they are for.

An entry of the stream only says that there is something to ask about. What counts is the request in the job's hash: a fetch
brings it along, the finish refuses any other end of a job that has one, and here it is asked for whenever an entry names a
job in our hands, and for all of them where entries may have been missed. So what is lost on the way costs time and no request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from echomq._log import Seldom, about, logger
from echomq._redis.client import Link
from echomq._store.call import Patience, answered
from echomq._store.codec import cancel_reason, decode_id
from echomq._store.keys import QueueKeys
from echomq._store.streams import Entry, Stream, Streams
from echomq._worker.held import FOR_CLEANING_UP, Held, HeldTable, Hold
from echomq.errors import EchoMQError

_REMEMBERED: Final = 1_000
"""Ids of jobs that we had not in hand when we heard of them: a fetch that brings one may be on its way."""

_MOST_ASKED: Final = 500
_FOLLOW_AGAIN: Final = 5.0


class Cancels:
    """Tells runs that their jobs are cancelled.

    Args:
        streams: reads the queue's stream along with all others.
        link: for asking.
        table: the jobs in hand.
        give_up: ends the run of a job whose handler was told, and goes on.
    """

    def __init__(
        self, keys: QueueKeys, streams: Streams, link: Link, table: HeldTable, give_up: Callable[[Held], None]
    ) -> None:
        self._keys = keys
        self._streams = streams
        self._link = link
        self._table = table
        self._give_up = give_up
        self._stream: Stream | None = None
        self._heard: dict[str, None] = {}
        self._to_ask: dict[Held, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._seldom = Seldom()
        self._stopped = False

    def start(self) -> None:
        """Listens from now on."""
        if not self._stopped and not self._streams.is_closed:
            self._stream = self._streams.follow(self._keys, self, "cancels")

    async def stop(self) -> None:
        """Listens no more. The caller holds no job any more."""
        self._stopped = True
        if self._stream is not None:
            self._streams.leave(self._stream, self)
        for timer in self._timers:
            timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def taken(self, fetched: Iterable[Held]) -> None:
        """These jobs are in hand now."""
        if self._heard:
            self._ask(held for held in fetched if held.job.id in self._heard)

    # -- what the reader of the stream says

    def joined(self) -> None:
        self._ask(self._table.all())

    def missed(self, after: bytes, until: bytes | None) -> None:
        self._ask(self._table.all())

    def happened(self, entries: Sequence[Entry]) -> None:
        for _, fields in entries:
            named = dict(zip((fields or ())[::2], (fields or ())[1::2], strict=False))
            if b"jobId" not in named:
                continue
            job_id = decode_id(named[b"jobId"])
            held = self._table.get(job_id)
            if held is not None:
                self._ask([held])
            self._heard.pop(job_id, None)
            self._heard[job_id] = None
            if len(self._heard) > _REMEMBERED:
                del self._heard[next(iter(self._heard))]

    def failed(self, error: EchoMQError) -> None:
        """Until it can be read again, a request is seen when the job's outcome is stored."""
        self._stream = None
        self._complain(error)
        if not self._stopped:
            self._after(_FOLLOW_AGAIN, self.start)

    # -- asking

    def _ask(self, about_these: Iterable[Held]) -> None:
        self._to_ask.update(dict.fromkeys(about_these))
        if self._to_ask and self._asking is None and not self._stopped:
            self._asking = asyncio.create_task(self._ask_all(), name="echomq cancels")

    async def _ask_all(self) -> None:
        try:
            while self._to_ask:
                some = list(self._to_ask)[:_MOST_ASKED]
                for held in some:
                    del self._to_ask[held]
                await self._ask_some([held for held in some if held.hold in (Hold.RUNNING, Hold.STOPPED)])
        finally:
            self._asking = None

    async def _ask_some(self, some: list[Held]) -> None:
        commands = [("HGET", self._keys.job(held.job.id), "cancelRequested") for held in some]
        try:
            replies = await answered(self._link, lambda: self._link.call_many(commands), Patience(math.inf))
        except EchoMQError as error:
            self._complain(error)
            return
        for held, reply in zip(some, replies, strict=True):
            if isinstance(reply, EchoMQError):
                self._complain(reply)
            elif isinstance(reply, bytes):
                self._tell(held, cancel_reason(reply))

    def _tell(self, held: Held, reason: str) -> None:
        before = held.cancel_reason is not None
        held.cancel(reason)
        if before or held.cancel_reason is None:
            return
        logger.info(
            "job %s (%s) of queue %s is cancelled: %s",
            held.job.id,
            held.job.name,
            self._keys.queue,
            reason,
            extra=about(self._keys.queue, held.job.id, held.job.name),
        )
        self._after(FOR_CLEANING_UP, lambda: self._give_up(held))

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        def ring() -> None:
            self._timers.discard(timer)
            then()

        timer = asyncio.get_running_loop().call_later(seconds, ring)
        self._timers.add(timer)

    def _complain(self, error: EchoMQError) -> None:
        self._seldom.error(
            "queue %s: requests to cancel running jobs cannot be read, and are seen only when the jobs end: %s",
            self._keys.queue,
            error,
        )
