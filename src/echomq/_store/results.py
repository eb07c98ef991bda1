"""Ends of jobs: all who wait for results, told by the one reader of the event logs (``streams``).

The order makes it safe: follow the log from a place in it, then ask whether the job has ended, then wait for the event.
Whatever happened before the place was taken, the question finds; whatever happens after it, the log brings. After a
lost connection, a removal or a gap in the log, the question is asked again; and every 30 s, when the reader looks round,
for some removals (drain) leave no event.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from echomq._redis.client import Link
from echomq._redis.wire import Argument
from echomq._store.call import Patience, read_command, read_script
from echomq._store.codec import id_out
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.streams import START, Entry, Stream, Streams, explained, number
from echomq.connection import Hub
from echomq.errors import ConnectionLost, EchoMQError, ServerError, ServerUnavailable

_MOST_IDS: Final = 500
_MOST_EVENTS: Final = 20_000

_log = logging.getLogger("echomq")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended.

    Attributes:
        kind: what became of it.
        value: of a completed one: its result as JSON.
        error: of a completed one: why its real result could not be stored.
    """

    kind: Literal["completed", "failed", "cancelled", "removed"]
    value: bytes = b"null"
    error: str | None = None

    @property
    def text(self) -> str:
        """Of a failed or cancelled one: the reason."""
        return self.value.decode("utf-8", "replace")


_REMOVED: Final = Ending("removed")


async def result_of(line: Line, job_id: str) -> Ending:
    """Waits for a job's end.

    Raises:
        ServerUnavailable: the server cannot be reached to begin with.
        BrokenKey, ServerError: what is needed cannot be read.
    """
    await line.connected()
    hub = line.hub
    return await hub.part("results", lambda: Results(hub)).wait(line.keys, id_out(job_id))


class _Waiter:
    """One who waits for one job.

    Attributes:
        checked: the last entry of the log when the job was seen not to have ended: a later one tells of this job, an earlier
            one may tell of another that had its id. None until it was asked about, or while it is.
        early: the id of an event that came meanwhile, and what it says.
    """

    __slots__ = ("checked", "early", "future")

    def __init__(self, future: asyncio.Future[Ending]) -> None:
        self.future = future
        self.checked: bytes | None = None
        self.early: tuple[bytes, Ending] | None = None


class _Queue:
    """Those who wait for jobs of one queue.

    Attributes:
        stream: its log, as it is read.
        to_check: ids of jobs to be asked about.
    """

    def __init__(self, results: Results, keys: QueueKeys) -> None:
        self._results = results
        self.keys = keys
        self.waiters: dict[bytes, list[_Waiter]] = {}
        self.to_check: dict[bytes, None] = {}
        self.stream: Stream | None = None

    @property
    def position(self) -> bytes | None:
        """The place up to which its log was read; None until it is followed."""
        return None if self.stream is None else self.stream.position

    def check_all(self) -> None:
        """Has every job that somebody waits for asked about again."""
        self.to_check.update(dict.fromkeys(self.waiters))
        self._results.check()

    def joined(self) -> None:
        self.check_all()

    def missed(self, after: bytes, until: bytes | None) -> None:
        self.check_all()

    def happened(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            told = _event(entry)
            if told is not None:
                self._happened(entry[0], *told)
        self._results.check()

    def failed(self, error: EchoMQError) -> None:
        self.stream = None
        self._results.fail(self, list(self.waiters), error)

    def _happened(self, place: bytes, kind: bytes, job_id: bytes, ending: Ending | None) -> None:
        if kind == b"cleaned":
            self.check_all()
            return
        for waiter in self.waiters.get(job_id, ()):
            if ending is None:
                self.to_check[job_id] = None
            elif waiter.checked is None:
                waiter.early = (place, ending)
                self.to_check[job_id] = None
            elif number(place) > number(waiter.checked):
                self._results.resolve(self, job_id, ending)
                break


class Results:
    """All who wait for results in one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._streams = Streams.of(hub)
        self._queues: dict[str, _Queue] = {}
        self._checking: asyncio.Task[None] | None = None

    async def wait(self, keys: QueueKeys, job_id: bytes) -> Ending:
        """Waits for a job's end."""
        queue = self._queues.get(keys.base)
        if queue is None:
            queue = self._queues[keys.base] = _Queue(self, keys)
        waiter = _Waiter(self._hub.loop.create_future())
        queue.waiters.setdefault(job_id, []).append(waiter)
        if queue.stream is None:
            queue.stream = self._streams.follow(keys, queue)
        if queue.position is not None:
            queue.to_check[job_id] = None
            self.check()
        try:
            return await waiter.future
        finally:
            self._leave(queue, job_id, waiter)

    async def close(self) -> None:
        """Ends the question; whoever still waits is told."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        self._fail_all(ConnectionLost("the connection was closed while results were waited for"))

    # -- who waits -----------------------------------------------------------------------------------------------------

    def _leave(self, queue: _Queue, job_id: bytes, waiter: _Waiter) -> None:
        waiters = queue.waiters.get(job_id)
        if waiters is not None and waiter in waiters:  # it was not resolved, but has given up
            waiters.remove(waiter)
            if not waiters:
                del queue.waiters[job_id]
        self._forget(queue)

    def _forget(self, queue: _Queue) -> None:
        """Follows the log no more if nobody waits."""
        if queue.waiters:
            return
        if queue.stream is not None:
            self._streams.leave(queue.stream, queue)
            queue.stream = None
        if self._queues.get(queue.keys.base) is queue:
            del self._queues[queue.keys.base]

    def resolve(self, queue: _Queue, job_id: bytes, ending: Ending) -> None:
        """Tells those who wait for a job."""
        for waiter in queue.waiters.pop(job_id, ()):
            if not waiter.future.done():
                waiter.future.set_result(ending)
        self._forget(queue)

    def fail(self, queue: _Queue, job_ids: Iterable[bytes], error: EchoMQError) -> None:
        """Tells those who wait for some jobs that it cannot be known."""
        for job_id in job_ids:
            for waiter in queue.waiters.pop(job_id, ()):
                if not waiter.future.done():
                    waiter.future.set_exception(_again(error))
        self._forget(queue)

    def _fail_all(self, error: EchoMQError) -> None:
        for queue in list(self._queues.values()):
            self.fail(queue, list(queue.waiters), error)

    def _fail_unexpectedly(self, error: Exception) -> None:
        _log.error("waiting for results failed", exc_info=error)
        self._fail_all(ServerError(f"waiting for results failed: {error!r}", code="ERR"))

    # -- the question --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Asks about the jobs that are to be asked about."""
        if self._checking is None and any(queue.to_check for queue in self._queues.values()):
            self._checking = self._hub.loop.create_task(self._ask(), name="echomq results asked")

    async def _ask(self) -> None:
        try:
            while queues := [queue for queue in self._queues.values() if queue.to_check]:
                for queue in queues:
                    job_ids = list(queue.to_check)[:_MOST_IDS]
                    for job_id in job_ids:
                        del queue.to_check[job_id]
                    job_ids = [job_id for job_id in job_ids if job_id in queue.waiters]
                    if job_ids:
                        await self._ask_about(queue, job_ids)
        except Exception as error:
            self._fail_unexpectedly(error)
        finally:
            self._checking = None

    async def _ask_about(self, queue: _Queue, job_ids: list[bytes]) -> None:
        patience = Patience(math.inf, self._hub.look_after)
        # An event that comes while we ask may be newer than the answer, or older: their places in the log say it.
        asked = {job_id: list(queue.waiters[job_id]) for job_id in job_ids}
        for waiters in asked.values():
            for waiter in waiters:
                waiter.checked = None
        try:
            link = await self._hub.link(hash_tag=queue.keys.hash_tag)
            reply: Any = await read_script(link, "isFinished-2", queue.keys, job_ids, patience)
            *answers, last = reply
            gone: list[bytes] = []
            for job_id, answer in zip(job_ids, answers, strict=True):
                code, *more = answer
                if code == -1:
                    gone.append(job_id)
                elif code == 1:
                    why = more[1].decode("utf-8", "replace") if len(more) > 1 and more[1] else None
                    self.resolve(queue, job_id, Ending("completed", more[0] or b"null", why))
                elif code == 2:  # protocol 3.26
                    self.resolve(queue, job_id, _failed(more[0] or b"unknown", more[1] if len(more) > 1 else None))
                else:
                    self._goes_on(queue, job_id, asked[job_id], last)
            if gone:
                await self._bury(link, queue, gone, patience)
        except EchoMQError as error:
            self.fail(queue, job_ids, explained(queue.keys.key("events").encode(), error))

    def _goes_on(self, queue: _Queue, job_id: bytes, asked: list[_Waiter], last: bytes) -> None:
        for waiter in asked:
            waiter.checked, early, waiter.early = last, waiter.early, None
            if early is not None and number(early[0]) > number(last):  # it has ended since
                self.resolve(queue, job_id, early[1])
                break

    async def _bury(self, link: Link, queue: _Queue, job_ids: list[bytes], patience: Patience) -> None:
        """Jobs that are gone. One that was removed as it ended left its end in the stream, perhaps not read yet."""
        position = queue.position or START
        command: list[Argument] = ["XRANGE", queue.keys.key("events"), b"(" + position, "+", "COUNT", str(_MOST_EVENTS)]
        entries = await read_command(link, command, patience)
        last: dict[bytes, Ending] = {}
        for entry in entries if isinstance(entries, list) else ():
            happened = _event(entry)
            if happened is not None and happened[2] is not None:
                last[happened[1]] = happened[2]
        for job_id in job_ids:
            early = next(
                (waiter.early[1] for waiter in queue.waiters.get(job_id, ()) if waiter.early is not None), None
            )
            self.resolve(queue, job_id, last.get(job_id) or early or _REMOVED)


def _event(entry: Any) -> tuple[bytes, bytes, Ending | None] | None:
    """What an entry says about the end of a job: its kind, the job's id, how it ended. None for anything else."""
    fields = entry[1] if isinstance(entry, list) and len(entry) > 1 else None
    if not fields or len(fields) < 2 or fields[0] != b"event":  # a foreign entry
        return None
    kind = fields[1]
    if kind == b"cleaned":
        return kind, b"", None
    if kind not in (b"completed", b"failed", b"removed"):
        return None
    named = dict(zip(fields[2::2], fields[3::2], strict=False))
    job_id = named.get(b"jobId")
    if job_id is None:
        return None
    if kind == b"completed":
        trouble = named.get(b"resultError")  # ours: the result could not be stored, and null stands in its place
        why = None if trouble is None else trouble.decode("utf-8", "replace")
        value = named.get(b"returnvalue")
        if value is None or b"resultBytes" in named:  # one that is too large stands in the job alone
            return kind, job_id, None
        return kind, job_id, Ending("completed", value, why)
    if kind == b"failed":
        return kind, job_id, _failed(named.get(b"failedReason", b"null"), named.get(b"failureKind"))
    return kind, job_id, None


def _failed(reason: bytes, kind: bytes | None) -> Ending:
    return Ending("cancelled" if kind == b"cancelled" else "failed", reason)


def _again(error: EchoMQError) -> EchoMQError:
    """The same error for another of many who wait."""
    if isinstance(error, ServerError):
        return type(error)(str(error), code=error.code)
    if isinstance(error, (ServerUnavailable, ConnectionLost)):
        return type(error)(str(error))
    return error
