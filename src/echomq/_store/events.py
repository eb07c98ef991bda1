"""Ends of jobs: one blocked read of the queues' events for all who wait for a result.

The order makes it safe: take a place in the stream, then ask whether the job has ended, then wait for the event.
Whatever happened before the place was taken, the question finds; whatever happens after it, the stream brings. After a
lost connection, a removal or a gap in the stream, the question is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Patience, read_command, read_script
from echomq._store.codec import id_out
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq.connection import Hub
from echomq.errors import BrokenKey, ConnectionLost, EchoMQError, ServerError, ServerUnavailable

_BLOCK: Final = 10.0
_COUNT: Final = 500
_MOST_IDS: Final = 500
_MOST_EVENTS: Final = 20_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

_LOOK_ROUND: Final = 30.0
"""Seconds after which those that still wait are looked at: some removals (drain) leave no event."""

_log = logging.getLogger("echomq")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended.

    Attributes:
        kind: what became of it.
        value: of a completed one: its result as JSON.
        error: of a completed one: why its real result could not be stored.
    """

    kind: Literal["completed", "failed", "removed"]
    value: bytes = b"null"
    error: str | None = None

    @property
    def text(self) -> str:
        """Of a failed one: the reason."""
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
        checked: whether the job was seen not to have ended after its place in the stream was taken. Until then an event
            is only remembered: it may tell of an earlier job of the same id.
        early: such an event.
    """

    __slots__ = ("checked", "early", "future")

    def __init__(self, future: asyncio.Future[Ending]) -> None:
        self.future = future
        self.checked = False
        self.early: Ending | None = None


class _Stream:
    """The events of one queue, as far as somebody waits for them.

    Attributes:
        position: the id up to which it was read; None until a place in it was taken.
        before: the position before the last read, until it is certain that nothing is missing between the two.
        known: the position before the connection was lost.
        to_check: ids of jobs to be asked about.
    """

    __slots__ = ("before", "key", "keys", "known", "position", "to_check", "waiters")

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self.key = keys.key("events").encode()
        self.position: bytes | None = None
        self.before: bytes | None = None
        self.known: bytes | None = None
        self.waiters: dict[bytes, list[_Waiter]] = {}
        self.to_check: dict[bytes, None] = {}

    def check_all(self) -> None:
        """Has every job that somebody waits for asked about again."""
        self.to_check.update(dict.fromkeys(self.waiters))


class Results:
    """All who wait for results in one hub. Its reader runs while somebody waits."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._streams: dict[bytes, _Stream] = {}
        self._waiting = 0
        self._link: Link | None = None
        self._reading: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._blocked = False
        self._newcomers = False
        self._closed = False

    async def wait(self, keys: QueueKeys, job_id: bytes) -> Ending:
        """Waits for a job's end."""
        key = keys.key("events").encode()
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(keys)
            self._hurry()
        waiter = _Waiter(self._hub.loop.create_future())
        stream.waiters.setdefault(job_id, []).append(waiter)
        self._waiting += 1
        if stream.position is not None:
            stream.to_check[job_id] = None
            self._check()
        if self._reading is None:
            self._reading = self._hub.loop.create_task(self._read(), name="echomq results")
        try:
            return await waiter.future
        finally:
            self._leave(stream, job_id, waiter)

    async def close(self) -> None:
        """Ends the reader; whoever still waits is told."""
        self._closed = True
        tasks = [task for task in (self._reading, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._fail_all(ConnectionLost("the connection was closed while results were waited for"))
        if self._link is not None:
            await self._link.close()

    # -- who waits -----------------------------------------------------------------------------------------------------

    def _leave(self, stream: _Stream, job_id: bytes, waiter: _Waiter) -> None:
        waiters = stream.waiters.get(job_id)
        if waiters is not None and waiter in waiters:  # it was not resolved, but has given up
            waiters.remove(waiter)
            self._waiting -= 1
            if not waiters:
                del stream.waiters[job_id]

    def _resolve(self, stream: _Stream, job_id: bytes, ending: Ending) -> None:
        for waiter in stream.waiters.pop(job_id, ()):
            self._waiting -= 1
            if not waiter.future.done():
                waiter.future.set_result(ending)

    def _fail(self, stream: _Stream, job_ids: Iterable[bytes], error: EchoMQError) -> None:
        for job_id in job_ids:
            for waiter in stream.waiters.pop(job_id, ()):
                self._waiting -= 1
                if not waiter.future.done():
                    waiter.future.set_exception(_again(error))

    def _fail_all(self, error: EchoMQError) -> None:
        for stream in self._streams.values():
            self._fail(stream, list(stream.waiters), error)

    # -- the events ----------------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        """A stream has joined; a read that is blocked does not know of it, and is made anew."""
        if self._blocked and self._link is not None:
            self._newcomers = True
            self._link.drop("another queue's events are to be read too")

    async def _read(self) -> None:
        pause, refused = _FIRST_PAUSE, False
        looked_round = self._hub.loop.time()
        try:
            while self._waiting:
                try:
                    link = await self._connected()
                    await self._join(link, [stream for stream in self._streams.values() if stream.position is None])
                    await self._look_for_gaps(link)
                    if self._hub.loop.time() - looked_round > _LOOK_ROUND:
                        looked_round = self._hub.loop.time()
                        self._check_everything()
                    if self._waiting:
                        self._dispatch(await self._blocking_read(link))
                    pause, refused, self._newcomers = _FIRST_PAUSE, False, False
                except (ServerUnavailable, ConnectionLost) as trouble:
                    if self._newcomers:
                        self._newcomers = False
                        continue
                    await self._hub.look_after(trouble)
                    await asyncio.sleep(pause * (0.5 + random.random()))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                    self._rejoin()
                except ServerError as error:
                    if refused:
                        self._fail_all(error)
                    refused = True
                    self._rejoin()  # finds out which stream it is, if it is one
        except Exception as error:
            self._fail_unexpectedly(error)
        finally:
            self._reading = None
            if not self._waiting:
                self._streams.clear()

    async def _connected(self) -> Link:
        if self._link is None:
            first = next(iter(self._streams.values()))
            self._link = await self._hub.new_link(client_name=first.keys.client_name(":qe"))
        if not self._link.connected:
            await self._link.connect()
        return self._link

    def _fail_unexpectedly(self, error: Exception) -> None:
        _log.error("waiting for results failed", exc_info=error)
        self._fail_all(ServerError(f"waiting for results failed: {error!r}", code="ERR"))

    def _rejoin(self) -> None:
        for stream in self._streams.values():
            if stream.position is not None:
                stream.known, stream.before, stream.position = stream.position, None, None

    async def _join(self, link: Link, streams: Sequence[_Stream]) -> None:
        """Takes a place in streams, then has their jobs asked about."""
        if not streams:
            return
        replies = await link.call_many([("XREVRANGE", stream.key, "+", "-", "COUNT", "1") for stream in streams])
        for stream, reply in zip(streams, replies, strict=True):
            if isinstance(reply, (ServerUnavailable, ConnectionLost)):
                raise reply
            if isinstance(reply, EchoMQError):
                self._fail(stream, list(stream.waiters), _explained(stream, reply))
                continue
            last = _first_id(reply)
            # After a lost connection: on from where we were, unless the stream now ends before that (it was deleted, or
            # the server is another one now).
            known = stream.known
            stream.position = known if known is not None and _number(known) <= _number(last) else last
            stream.check_all()
        for stream in [stream for stream in streams if stream.position is None]:
            del self._streams[stream.key]
        self._check()

    async def _look_for_gaps(self, link: Link) -> None:
        """Whether streams were trimmed beyond where we had read to, before the last read."""
        read = [stream for stream in self._streams.values() if stream.before is not None]
        if not read:
            return
        replies = await link.call_many([("XRANGE", stream.key, "-", "+", "COUNT", "1") for stream in read])
        for stream, reply in zip(read, replies, strict=True):
            if isinstance(reply, EchoMQError):
                raise reply
            assert stream.before is not None
            if _number(_first_id(reply)) > _number(stream.before):
                stream.check_all()
            stream.before = None
        self._check()

    async def _blocking_read(self, link: Link) -> Reply:
        streams = list(self._streams.values())
        self._blocked = True
        try:
            return await link.call(
                "XREAD", "COUNT", str(_COUNT), "BLOCK", str(int(_BLOCK * 1000)), "STREAMS",
                *[stream.key for stream in streams], *[stream.position or b"0-0" for stream in streams],
                reply_timeout=_BLOCK + 5,
            )  # fmt: skip
        finally:
            self._blocked = False

    def _dispatch(self, reply: Any) -> None:
        if not isinstance(reply, list):
            return
        for key, entries in reply:
            stream = self._streams.get(key)
            if stream is None or not entries:
                continue
            stream.before, stream.position = stream.position, entries[-1][0]
            for entry in entries:
                happened = _event(entry)
                if happened is not None:
                    self._happened(stream, *happened)
        self._check()

    def _happened(self, stream: _Stream, kind: bytes, job_id: bytes, ending: Ending | None) -> None:
        if kind == b"cleaned":
            stream.check_all()
            return
        waiters = stream.waiters.get(job_id)
        if waiters is None:
            return
        if ending is not None and all(waiter.checked for waiter in waiters):
            self._resolve(stream, job_id, ending)
            return
        for waiter in waiters:
            waiter.checked = False
            waiter.early = ending
        stream.to_check[job_id] = None

    # -- the question --------------------------------------------------------------------------------------------------

    def _check_everything(self) -> None:
        for stream in self._streams.values():
            stream.check_all()
        self._check()

    def _check(self) -> None:
        if self._checking is None and any(stream.to_check for stream in self._streams.values()):
            self._checking = self._hub.loop.create_task(self._ask(), name="echomq results asked")

    async def _ask(self) -> None:
        try:
            while streams := [stream for stream in self._streams.values() if stream.to_check]:
                for stream in streams:
                    job_ids = list(stream.to_check)[:_MOST_IDS]
                    for job_id in job_ids:
                        del stream.to_check[job_id]
                    job_ids = [job_id for job_id in job_ids if job_id in stream.waiters]
                    if job_ids:
                        await self._ask_about(stream, job_ids)
        except Exception as error:
            self._fail_unexpectedly(error)
        finally:
            self._checking = None

    async def _ask_about(self, stream: _Stream, job_ids: list[bytes]) -> None:
        patience = Patience(math.inf, self._hub.look_after)
        # An event that comes while we ask may be newer than the answer, or older.
        asked = {job_id: list(stream.waiters[job_id]) for job_id in job_ids}
        for waiters in asked.values():
            for waiter in waiters:
                waiter.checked = False
        try:
            link = await self._hub.link(hash_tag=stream.keys.hash_tag)
            answers: Any = await read_script(link, "isFinished-2", stream.keys, job_ids, patience)
            gone: list[bytes] = []
            for job_id, answer in zip(job_ids, answers, strict=True):
                code, *more = answer
                if code == -1:
                    gone.append(job_id)
                elif code == 1:
                    why = more[1].decode("utf-8", "replace") if len(more) > 1 and more[1] else None
                    self._resolve(stream, job_id, Ending("completed", more[0] or b"null", why))
                elif code == 2:  # protocol 3.26
                    self._resolve(stream, job_id, Ending("failed", more[0] or b"unknown"))
                else:
                    self._goes_on(stream, job_id, asked[job_id])
            if gone:
                await self._bury(link, stream, gone, patience)
        except EchoMQError as error:
            self._fail(stream, job_ids, _explained(stream, error))

    def _goes_on(self, stream: _Stream, job_id: bytes, asked: list[_Waiter]) -> None:
        for waiter in asked:
            if waiter.early is None:
                waiter.checked = True
            else:  # the event and the answer crossed; the next answer is certainly newer than this event
                waiter.early = None
                stream.to_check[job_id] = None

    async def _bury(self, link: Link, stream: _Stream, job_ids: list[bytes], patience: Patience) -> None:
        """Jobs that are gone. One that was removed as it ended left its end in the stream, perhaps not read yet."""
        position = stream.position or b"0-0"
        command: list[Argument] = ["XRANGE", stream.key, b"(" + position, "+", "COUNT", str(_MOST_EVENTS)]
        entries = await read_command(link, command, patience)
        last: dict[bytes, Ending] = {}
        for entry in entries if isinstance(entries, list) else ():
            happened = _event(entry)
            if happened is not None and happened[2] is not None:
                last[happened[1]] = happened[2]
        for job_id in job_ids:
            early = next((waiter.early for waiter in stream.waiters.get(job_id, ()) if waiter.early is not None), None)
            self._resolve(stream, job_id, last.get(job_id) or early or _REMOVED)


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
        value = named.get(b"returnvalue")  # one that is left out stands in the job alone
        return kind, job_id, None if value is None else Ending("completed", value, why)
    if kind == b"failed":
        return kind, job_id, Ending("failed", named.get(b"failedReason", b"null"))
    return kind, job_id, None


def _first_id(entries: Reply) -> bytes:
    return entries[0][0] if isinstance(entries, list) and entries else b"0-0"  # type: ignore[index, return-value]


def _number(stream_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = stream_id.partition(b"-")
    return int(milliseconds), int(sequence or b"0")


def _explained(stream: _Stream, error: EchoMQError) -> EchoMQError:
    if isinstance(error, ServerError) and error.code == "WRONGTYPE" and not isinstance(error, BrokenKey):
        return BrokenKey(f"{stream.key.decode('utf-8', 'replace')} must be a stream: {error}", code=error.code)
    return error


def _again(error: EchoMQError) -> EchoMQError:
    """The same error for another of many who wait."""
    if isinstance(error, ServerError):
        return type(error)(str(error), code=error.code)
    if isinstance(error, (ServerUnavailable, ConnectionLost)):
        return type(error)(str(error))
    return error
