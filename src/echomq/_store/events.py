"""One subscriber to the event logs of some queues.

What the shared reader (``streams``) brings is put into a store of its own, which is bounded. When that is full, a log is
``behind`` for this subscriber: it reads it by itself, from where it is, until it has caught up. So a slow subscriber
costs nobody else anything, and loses nothing that the log still holds. What it reads from an id that was kept begins in
the same way.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from echomq import event_types as kinds
from echomq._redis.client import Link
from echomq._redis.wire import Reply
from echomq._store.call import Patience, answered, opened
from echomq._store.codec import decode_event, event_moment
from echomq._store.keys import QueueKeys
from echomq._store.streams import (
    START,
    Entry,
    Stream,
    Streams,
    ends,
    explained,
    first_id,
    lacks,
    number,
    oldest,
)
from echomq.connection import Hub
from echomq.errors import EchoMQError
from echomq.event_types import Event

Since: TypeAlias = Literal["now", "start"] | bytes
"""Where to begin in a log: behind its last entry, with its first, or behind an id."""

_MOST_KEPT: Final = 1_000
_MOST_BYTES: Final = 8 * 1024 * 1024
_AT_ONCE: Final = 20
_MOST_ASKED: Final = 500


class Feed:
    """The log of one queue, as far as one subscriber has come in it.

    Attributes:
        position: up to where it has been read for this subscriber; None until that was decided.
        count: how many entries the log was given up to there, if that is known.
        handed: the id of the last event that the user was given, or where the first one is to come from.
        due: whether it is to be read by itself now.
        live: whether the reader of the log reads on for it.
        sure: whether its position is known to be one of this log.
    """

    def __init__(self, subscription: Subscription, keys: QueueKeys, since: Since) -> None:
        self._subscription = subscription
        self.keys = keys
        self.key = keys.key("events").encode()
        self.since = since
        self.stream: Stream | None = None
        self.position: bytes | None = None
        self.handed: bytes | None = None
        self.count: int | None = None
        self.live = False
        self.due = True
        self.sure = False
        self.trouble: EchoMQError | None = None

    # -- what the reader of the log says

    def joined(self) -> None:
        if not self.live:
            self.due = True
            self.settle()
            self._subscription.stir()

    def settle(self) -> None:
        """If it has come as far as the reader of the log, that reads on for it."""
        reader = None if self.stream is None else self.stream.position
        if self.sure and self.position is not None and reader is not None and number(self.position) >= number(reader):
            self.live, self.due = True, False

    def happened(self, entries: Sequence[Entry]) -> None:
        if not self.live or self.position is None:
            return
        ahead = number(self.position)
        new = [entry for entry in entries if number(entry[0]) > ahead]
        if self._subscription.keep(self, new):
            self.position = entries[-1][0] if new else self.position
            self.count = None  # the reader counts
        else:
            self.live, self.due = False, True

    def missed(self, after: bytes, until: bytes | None) -> None:
        if self.position is None or self.stream is None or self.stream.position is None:
            return
        if until is None:
            if self.live or number(self.position) <= number(self.stream.position):
                self._subscription.keep_gap(self, self.position, None)
            if self.live:
                self.position = self.stream.position
            else:
                self.sure = False
        elif self.live and number(until) > number(self.position):
            self._subscription.keep_gap(self, self.position, until)

    def failed(self, error: EchoMQError) -> None:
        self.stream, self.live, self.sure, self.due, self.trouble = None, False, False, True, error
        self._subscription.stir()


class Subscription:
    """One subscriber. Its user is one task at a time.

    Args:
        since: where to begin, by the name of the queue.
    """

    def __init__(self, hub: Hub, queues: Sequence[QueueKeys], since: Mapping[str, Since]) -> None:
        self._hub = hub
        self._streams = Streams.of(hub)
        self._feeds = [Feed(self, keys, since[keys.queue]) for keys in queues]
        self._kept: deque[tuple[Feed, Event | Entry, int]] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._one = asyncio.Lock()
        self._closed = False

    @property
    def positions(self) -> dict[str, str]:
        """By the name of the queue: the id of the last event that the user was given, or where the first is to come from."""
        return {feed.keys.queue: feed.handed.decode() for feed in self._feeds if feed.handed is not None}

    @property
    def is_ready(self) -> bool:
        """Whether it has a place in each log."""
        return all(feed.position is not None for feed in self._feeds)

    async def ready(self) -> None:
        """Takes a place in each log, with the patience of a producer."""
        async with self._one:
            for feed in self._feeds:
                if feed.stream is None:
                    feed.stream = self._streams.follow(feed.keys, feed)
            new = [feed for feed in self._feeds if feed.position is None]
            patience = Patience(self._hub.wait, self._hub.look_after)
            link = await self._link(patience)
            for start in range(0, len(new), _MOST_ASKED):
                part = new[start : start + _MOST_ASKED]
                await answered(link, partial(self._take_places, link, part), patience)

    async def next(self) -> Event | None:
        """The next event; None when the subscription was closed."""
        while not self._closed:
            if self._kept:
                return self._hand_out()
            async with self._one:
                if self._kept or self._closed:
                    continue
                self._news.clear()
                self._raise_trouble()
                due = [feed for feed in self._feeds if feed.due]
                if due:
                    patience = Patience(math.inf, self._hub.look_after)
                    link = await self._link(patience)
                    await answered(link, partial(self._catch_up, link, due[:_AT_ONCE]), patience)
                    continue
            await self._news.wait()
        return None

    async def close(self) -> None:
        """Ends it; whoever waits for an event gets none."""
        self._closed = True
        for feed in self._feeds:
            if feed.stream is not None:
                self._streams.leave(feed.stream, feed)
        self._kept.clear()
        self._news.set()

    # -- what is kept --------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """There is something to do for whoever waits for an event."""
        self._news.set()

    def keep(self, feed: Feed, entries: Sequence[Entry]) -> bool:
        """Keeps entries of a log, all or none: False where there is no room."""
        sizes = [sum(map(len, entry[1] or ())) for entry in entries]
        if self._kept and (len(self._kept) + len(entries) > _MOST_KEPT or self._bytes + sum(sizes) > _MOST_BYTES):
            return False
        self._kept.extend((feed, entry, size) for entry, size in zip(entries, sizes, strict=True))
        self._bytes += sum(sizes)
        if entries:
            self._news.set()
        return True

    def keep_gap(self, feed: Feed, after: bytes, until: bytes | None) -> None:
        """Keeps, in its place, that events may be missing."""
        self._kept.append((feed, gap(feed.keys.queue, after, until), 0))
        self._news.set()

    def _hand_out(self) -> Event:
        feed, what, size = self._kept.popleft()
        self._bytes -= size
        if isinstance(what, Event):
            return what
        feed.handed = what[0]
        return decode_event(feed.keys.queue, *what)

    def _raise_trouble(self) -> None:
        for feed in self._feeds:
            if feed.trouble is not None:
                trouble, feed.trouble = feed.trouble, None
                raise trouble
            if feed.stream is None:
                feed.stream = self._streams.follow(feed.keys, feed)

    # -- reading by itself ---------------------------------------------------------------------------------------------

    async def _link(self, patience: Patience) -> Link:
        return await opened(lambda: self._hub.link(hash_tag=self._feeds[0].keys.hash_tag), patience)

    async def _take_places(self, link: Link, feeds: Sequence[Feed]) -> None:
        for feed, end in zip(feeds, await ends(link, [feed.key for feed in feeds]), strict=True):
            if isinstance(end, EchoMQError):
                raise end
            if feed.since == "start":
                feed.position, feed.count = START, end.removed
            elif feed.since == "now":
                feed.position, feed.count = end.last, end.added
            else:
                feed.position, feed.count = feed.since, None
            feed.handed = feed.position
            feed.sure = feed.since == "now"
            feed.settle()

    async def _catch_up(self, link: Link, feeds: Sequence[Feed]) -> None:
        count = max(20, _MOST_KEPT // 2 // len(feeds))
        commands = [command for feed in feeds for command in (_behind(feed, count), oldest(feed.key))]
        replies = await link.call_many(commands)
        for feed, entries, first in zip(feeds, replies[::2], replies[1::2], strict=True):
            await self._take_in(link, feed, _sound(feed, entries), first_id(_sound(feed, first)), count)

    async def _take_in(self, link: Link, feed: Feed, entries: Any, first: bytes, count: int) -> None:
        assert feed.position is not None
        read: list[Entry] = entries or []
        if not read:
            [end] = await ends(link, [feed.key])
            if isinstance(end, EchoMQError):
                raise end
            if number(end.last) > number(feed.position):  # perhaps it has come just now
                [late] = await link.call_many([_behind(feed, count)])
                read = _sound(feed, late) or []
                first = read[0][0] if read else START
            if not read and end.last != feed.position:  # cut off to its end; or it is another log, which ends before
                self.keep_gap(feed, feed.position, None)
                feed.position, feed.count = end.last, end.added
        if read:
            if await lacks(link, feed.key, feed.position, feed.count, first):
                self.keep_gap(feed, feed.position, read[0][0])
                feed.count = None
            self._kept.extend((feed, entry, 0) for entry in read)
            feed.position = read[-1][0]
            feed.count = None if feed.count is None else feed.count + len(read)
        if len(read) < count:
            if feed.stream is None or feed.stream.position is None:
                feed.due = False  # until the reader has joined it
            feed.sure = True
            feed.settle()


def gap(queue: str, after: bytes, until: bytes | None) -> kinds.Gap:
    """That events may be missing."""
    end = None if until is None else until.decode()
    return kinds.Gap(id=after.decode(), queue=queue, at=event_moment(after), until=end)


def _sound(feed: Feed, reply: Reply | EchoMQError) -> Any:
    if isinstance(reply, EchoMQError):
        raise explained(feed.key, reply)
    return reply


def _behind(feed: Feed, count: int) -> Sequence[str | bytes]:
    assert feed.position is not None
    return ("XRANGE", feed.key, b"(" + feed.position, "+", "COUNT", str(count))
