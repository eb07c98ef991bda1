"""The event logs of all queues that somebody in this event loop follows: one connection, one blocked read.

Who follows a log is told what is written into it, in order, from a place that is taken when it begins; of each new
beginning (another place, or the same one after a lost connection), for what happened before has to be asked; and of each
gap: the log was cut off, or deleted, beyond where we had read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.call import REFUSED_FOR
from echomq._store.keys import QueueKeys
from echomq.connection import Hub
from echomq.errors import BrokenKey, ConnectionLost, EchoMQError, ServerError, ServerUnavailable

Entry: TypeAlias = list[Any]
"""An entry as the server gives it: its id, and its fields and values, flat; None for the fields of one that is gone."""

START: Final = b"0-0"
"""The place before the first entry."""

_BLOCK: Final = 10.0
_MOST_ENTRIES: Final = 500
_MOST_AT_ONCE: Final = 2_000
_MANY: Final = 50
_BREATH: Final = 20e-6
"""Seconds between two reads for each of many logs: a read costs the server about that for each, and others need it too."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_UNBLOCK_AGAIN: Final = 0.002
_MOST_UNBLOCKS: Final = 50
_LOOK_ROUND: Final = 30.0
"""Seconds after which every place is looked at again: a log that was replaced by one with smaller ids never wakes a read."""

_log = logging.getLogger("echomq")


class Follower(Protocol):
    """Who follows a log. It is called in the event loop, and must not wait there."""

    def joined(self) -> None:
        """From here on it is told everything. Also when that had been interrupted: then perhaps something is to be asked."""

    def happened(self, entries: Sequence[Entry]) -> None:
        """Entries that were written."""

    def missed(self, after: bytes, until: bytes | None) -> None:
        """Between these two ids (None: what comes next) there may have been entries that nobody can read any more."""

    def failed(self, error: EchoMQError) -> None:
        """The log cannot be read. The follower has been let go, and may follow anew."""


class Stream:
    """The log of one queue, or another stream of it, as far as somebody follows it.

    Attributes:
        position: the id up to which its followers have been told; None until a place in it was taken.
        count: how many entries the log was given up to there, as far as the server counts them.
        known: the position before it is to be taken anew.
        idle: whether nobody followed it at the last look round.
    """

    __slots__ = ("count", "followers", "idle", "key", "keys", "known", "position")

    def __init__(self, keys: QueueKeys, key: bytes) -> None:
        self.keys = keys
        self.key = key
        self.position: bytes | None = None
        self.count: int | None = None
        self.known: bytes | None = None
        self.followers: list[Follower] = []
        self.idle = False


class Streams:
    """All logs that are followed in one hub. Its reader runs while somebody follows one.

    A server that is away is waited for without end. One that refuses us (a wrong password, a missing right) is tried again,
    with pauses, for ten seconds; a refusal that lasts longer is told to all who follow.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._streams: dict[bytes, Stream] = {}
        self._followers = 0
        self._link: Link | None = None
        self._client_id: bytes | str | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._reads = 0
        self._blocked = False
        self._dropped = False
        self._closed = False

    @classmethod
    def of(cls, hub: Hub) -> Streams:
        """The hub's."""
        return hub.part("streams", lambda: cls(hub))

    @property
    def is_closed(self) -> bool:
        """Whether its connection was closed, so that nobody can follow anything any more."""
        return self._closed

    def follow(self, keys: QueueKeys, follower: Follower, name: str = "events") -> Stream:
        """Lets somebody follow a queue's log, or its stream of another name. ``leave`` when done."""
        if self._closed:
            raise RuntimeError("the connection was closed: make a new one")
        key = keys.resolve(name).encode()
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(keys, key)
        stream.followers.append(follower)
        self._followers += 1
        if self._reading is None:
            self._reading = self._hub.loop.create_task(self._read(), name="echomq events")
        if stream.position is not None:
            follower.joined()
        else:
            self._wake()
        return stream

    def leave(self, stream: Stream, follower: Follower) -> None:
        """Lets it follow no more."""
        if follower in stream.followers:
            stream.followers.remove(follower)
            self._followers -= 1

    async def close(self) -> None:
        """Ends the reader; whoever still follows is told."""
        self._closed = True
        tasks = [task for task in (self._reading, self._waking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._fail_all(ConnectionLost("the connection was closed while events were waited for"))
        if self._link is not None:
            await self._link.close()

    # -- the read ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        pause, refused_at = _FIRST_PAUSE, math.inf
        looked_round = self._hub.loop.time()
        try:
            while self._followers:
                try:
                    link = await self._connected()
                    if self._hub.loop.time() - looked_round > _LOOK_ROUND:
                        looked_round = self._hub.loop.time()
                        self._forget_idle()
                        self._rejoin()
                    while new := [stream for stream in self._streams.values() if stream.position is None]:
                        await self._join(
                            link, new
                        )  # more may come meanwhile, and no read is blocked yet that they could wake
                    if self._followers:
                        await self._tell(link, await self._blocking_read(link))
                    pause, refused_at, self._dropped = _FIRST_PAUSE, math.inf, False
                    continue
                except (ServerUnavailable, ConnectionLost) as trouble:
                    if self._dropped:
                        self._dropped = False
                        continue
                    refused_at = math.inf
                    await self._hub.look_after(trouble)
                except ServerError as error:
                    now = self._hub.loop.time()
                    refused_at = min(refused_at, now)
                    if now - refused_at > REFUSED_FOR:
                        self._fail_all(error)
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, _LONGEST_PAUSE)
                self._rejoin()  # also finds out which log it is that is refused, if it is one
        except Exception as error:
            _log.error("reading events failed", exc_info=error)
            self._fail_all(ServerError(f"reading events failed: {error!r}", code="ERR"))
        finally:
            self._reading = None
            if not self._followers:
                self._streams.clear()

    async def _connected(self) -> Link:
        if self._link is None:
            first = next(iter(self._streams.values()))
            self._link = await self._hub.new_link(client_name=first.keys.client_name(":qe"))
        if not self._link.connected:
            await self._link.connect()
            self._client_id = None
        if self._client_id is None:
            try:
                self._client_id = str(await self._link.call("CLIENT", "ID"))
            except ServerError:  # somebody who may not ask; the connection is then given up to wake a read
                self._client_id = ""
        return self._link

    async def _blocking_read(self, link: Link) -> Reply:
        streams = list(self._streams.values())
        count = max(20, min(_MOST_ENTRIES, _MOST_AT_ONCE // len(streams)))
        self._reads += 1
        self._blocked = True
        try:
            return await link.call(
                "XREAD", "COUNT", str(count), "BLOCK", str(int(_BLOCK * 1000)), "STREAMS",
                *[stream.key for stream in streams], *[stream.position or START for stream in streams],
                reply_timeout=_BLOCK + 5,
            )  # fmt: skip
        finally:
            self._blocked = False

    async def _tell(self, link: Link, reply: Any) -> None:
        """Tells the followers what was read; but first, whether something is missing before it."""
        read: list[tuple[Stream, list[Entry]]] = []
        for key, entries in reply if isinstance(reply, list) else ():
            stream = self._streams.get(key)
            if stream is not None and entries:
                read.append((stream, entries))
        if not read:
            return
        firsts = await link.call_many([oldest(stream.key) for stream, _ in read])
        for (stream, entries), first in zip(read, firsts, strict=True):
            if isinstance(first, EchoMQError):
                raise first
            before = stream.position
            if before is None:  # it is to be joined anew
                continue
            gap = await lacks(link, stream.key, before, stream.count, first_id(first))
            stream.position = entries[-1][0]
            stream.count = None if stream.count is None else stream.count + len(entries)
            for follower in list(stream.followers):
                if gap:
                    follower.missed(before, entries[0][0])
                follower.happened(entries)
        if len(self._streams) >= _MANY:
            await asyncio.sleep(_BREATH * len(self._streams))

    # -- who follows ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """A log has come; a read that is blocked does not know of it."""
        if self._blocked and self._waking is None:
            self._waking = self._hub.loop.create_task(self._unblock(), name="echomq events woken")

    async def _unblock(self) -> None:
        blocked = self._reads
        try:
            for _ in range(_MOST_UNBLOCKS):
                if not (self._blocked and self._reads == blocked and self._client_id):
                    break
                try:
                    link = await self._hub.link(hash_tag=next(iter(self._streams.values())).keys.hash_tag)
                    if await link.call("CLIENT", "UNBLOCK", self._client_id) == 1:
                        break
                except EchoMQError:
                    self._client_id = ""
                    break
                await asyncio.sleep(_UNBLOCK_AGAIN)  # it was faster than the read, which had not come to block yet
            else:  # the connection has another number by now
                self._client_id = ""
            if not self._client_id and self._blocked and self._reads == blocked and self._link is not None:
                self._dropped = True
                self._link.drop("another queue's events are to be read too")
        finally:
            self._waking = None
            # Who came while this ran left the waking to it; but another read may have begun since, without that log.
            if self._reads != blocked and any(stream.position is None for stream in self._streams.values()):
                self._wake()

    def _forget_idle(self) -> None:
        for stream in list(self._streams.values()):
            if not stream.followers and stream.idle:
                del self._streams[stream.key]
            stream.idle = not stream.followers

    def _rejoin(self) -> None:
        for stream in self._streams.values():
            if stream.position is not None:
                stream.known, stream.position = stream.position, None

    async def _join(self, link: Link, streams: Sequence[Stream]) -> None:
        """Takes a place in each of these logs."""
        if not streams:
            return
        for stream, end in zip(streams, await ends(link, [stream.key for stream in streams]), strict=True):
            if isinstance(end, EchoMQError):
                self._fail(stream, end)
                continue
            # Anew: on from where we were, unless the log ends before that (it was deleted, or the server is another).
            known, stream.known = stream.known, None
            replaced = known is not None and number(known) > number(end.last)
            if known is None or replaced:
                stream.position, stream.count = end.last, end.added
            else:
                stream.position = known
            for follower in list(stream.followers):
                if replaced and known is not None:
                    follower.missed(known, None)
                follower.joined()

    def _fail(self, stream: Stream, error: EchoMQError) -> None:
        del self._streams[stream.key]
        followers, stream.followers = stream.followers, []
        self._followers -= len(followers)
        for follower in followers:
            follower.failed(error)

    def _fail_all(self, error: EchoMQError) -> None:
        for stream in list(self._streams.values()):
            self._fail(stream, error)


# -- places in a log ---------------------------------------------------------------------------------------------------


def number(stream_id: bytes) -> tuple[int, int]:
    """An id as one can compare it."""
    milliseconds, _, sequence = stream_id.partition(b"-")
    return int(milliseconds), int(sequence or b"0")


def oldest(key: bytes) -> Sequence[Argument]:
    """The command for the first entry of a log."""
    return ("XRANGE", key, "-", "+", "COUNT", "1")


def first_id(entries: Reply) -> bytes:
    """The id of the first of these entries, or the start if there are none."""
    return entries[0][0] if isinstance(entries, list) and entries else START  # type: ignore[index, return-value]


@dataclass(frozen=True, slots=True)
class End:
    """Where a log ends.

    Attributes:
        last: the last id that it gave to an entry, also to one that is gone; the start if there is no log.
        added, removed: how many entries it was given in all, and how many of them are gone; None where the server does not
            count them (before Redis 7.0).
    """

    last: bytes
    added: int | None
    removed: int | None


async def ends(link: Link, keys: Sequence[bytes]) -> list[End | EchoMQError]:
    """Where logs end; an error in the place of one that cannot be read."""
    found: list[End | EchoMQError] = []
    for key, reply in zip(keys, await link.call_many([("XINFO", "STREAM", key) for key in keys]), strict=True):
        if isinstance(reply, (ServerUnavailable, ConnectionLost)):
            raise reply
        if isinstance(reply, list):
            info: dict[Any, Any] = dict(zip(reply[::2], reply[1::2], strict=True))
            added: int | None = info.get(b"entries-added")
            found.append(End(info[b"last-generated-id"], added, None if added is None else added - info[b"length"]))
        elif isinstance(reply, ServerError) and reply.code == "ERR":  # no such key
            found.append(End(START, 0, 0))
        else:
            assert isinstance(reply, EchoMQError)
            found.append(explained(key, reply))
    return found


async def lacks(link: Link, key: bytes, position: bytes, count: int | None, first: bytes) -> bool:
    """Whether a log whose first entry is this may lack some behind a position.

    ``count`` is how many entries it was given up to there, if that is known.
    """
    if number(first) <= number(position):
        return False
    if count is None:
        return position != START
    [end] = await ends(link, [key])
    # All up to the position are gone. So many, and no more: nothing is missing. Fewer: it is another log.
    return isinstance(end, EchoMQError) or end.removed != count


def explained(key: bytes, error: EchoMQError) -> EchoMQError:
    """An error of the server about a log, as what it means."""
    if isinstance(error, ServerError) and error.code == "WRONGTYPE" and not isinstance(error, BrokenKey):
        return BrokenKey(f"{key.decode('utf-8', 'replace')} must be a stream: {error}", code=error.code)
    return error
