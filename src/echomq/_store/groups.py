"""One member of a group of listeners: each event is handled by one of them, at least once.

The group is the server's own (a consumer group of each log), and so is the list of what each member was given and has not
acknowledged. The shared reader (``streams``) says that there is something new; the member then takes as much as it will
handle, by a script that does not block. A reply that is lost, or that nobody waited for, costs nothing: what it brought
stands in the member's list, which is read again. While a member lives it says so of all that it has; what a silent one has
goes to others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from echomq._clock import lasting
from echomq._redis.client import Link
from echomq._store.call import Patience, answered, opened, run_script
from echomq._store.codec import decode_event, to_ms
from echomq._store.events import Since, gap
from echomq._store.keys import QueueKeys
from echomq._store.streams import START, Entry, Stream, Streams, explained, number
from echomq.connection import Hub
from echomq.errors import ConnectionLost, EchoMQError, ServerUnavailable
from echomq.event_types import Event

_AHEAD: Final = 100
_AT_ONCE: Final = 20
_MOST_UNSAID: Final = 20
"""How many events may have been handled without that the server knows it: they come again if this process dies."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FORGET_AFTER: Final = 3_600.0
"""Seconds after which a member that has nothing in hand and was not heard of is forgotten."""

_log = logging.getLogger("echomq")


class Share:
    """The log of one queue, as far as one member has to do with it.

    Attributes:
        held: ids of the events that it has and has not finished, each with the moment at which the server last knew of that.
        done: ids of finished ones that the server is to be told of.
        own: behind which id its list on the server is to be read again; None if there is nothing there that it does not know.
        known: the last id that it was given.
        heard: behind which id a gap was that it was told of, until the group has gone on from there; empty if there is none.
        stirred: whether there may be something to take.
        claim: whether what others let lie is to be looked for.
    """

    def __init__(self, membership: Membership, keys: QueueKeys, since: Since) -> None:
        self._membership = membership
        self.keys = keys
        self.key = keys.key("events").encode()
        self.start = {"now": b"$", "start": START}.get(since, since) if isinstance(since, str) else since
        self.stream: Stream | None = None
        self.ready = False
        self.held: dict[bytes, float] = {}
        self.done: dict[bytes, None] = {}
        self.own: bytes | None = START
        self.known = b""
        self.heard = b""
        self.handed: bytes | None = None
        self.stirred = True
        self.claim = True
        self.cursor: bytes = START
        self.turn = 0
        self.trouble: EchoMQError | None = None

    def stir(self) -> None:
        """There may be something to take."""
        self.stirred = True
        self._membership.stir()

    def joined(self) -> None:
        self.stir()

    def happened(self, entries: Sequence[Entry]) -> None:
        self.stir()

    def missed(self, after: bytes, until: bytes | None) -> None:
        self.stir()  # what the group misses, its own place in the log tells

    def failed(self, error: EchoMQError) -> None:
        self.stream, self.trouble = None, error
        self.stir()


class Membership:
    """One member. Its user is one task at a time.

    Args:
        since: where the group begins in a log in which it is new, by the name of the queue.
        claim_after: seconds of silence after which what a member has goes to others.
    """

    def __init__(
        self,
        hub: Hub,
        queues: Sequence[QueueKeys],
        since: Mapping[str, Since],
        group: str,
        name: str,
        claim_after: float,
    ) -> None:
        self._hub = hub
        self._streams = Streams.of(hub)
        self._group = group
        self._name = name
        self._claim_after = claim_after
        self._shares = [Share(self, keys, since[keys.queue]) for keys in queues]
        self._kept: deque[tuple[Share, Event | Entry]] = deque()
        self._in_hand: tuple[Share, Entry] | None = None
        self._news = asyncio.Event()
        self._one = asyncio.Lock()
        self._turns = 0
        self._pause = _FIRST_PAUSE
        self._tending: asyncio.Task[None] | None = None
        self._acknowledging: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def positions(self) -> dict[str, str]:
        """By the name of the queue: the id of the last event that the user was given."""
        return {share.keys.queue: share.handed.decode() for share in self._shares if share.handed is not None}

    @property
    def is_ready(self) -> bool:
        """Whether the group stands in each log."""
        return all(share.ready for share in self._shares)

    async def ready(self) -> None:
        """Makes the group where it is not, and sees what a former self of this name left unfinished."""
        async with self._one:
            for share in self._shares:
                if share.stream is None:
                    share.stream = self._streams.follow(share.keys, share)
            patience = Patience(self._hub.wait, self._hub.look_after)
            link = await self._link(patience)
            for share in [share for share in self._shares if not share.ready]:
                await answered(link, partial(self._take, link, share, _AHEAD), patience)
                await answered(link, partial(self._forget_others, link, share), patience)
                share.ready = True
            if self._tending is None and not self._closed:
                self._tending = self._hub.loop.create_task(self._tend(), name="echomq group")

    async def next(self) -> Event | None:
        """The next event; None when the membership was closed. The one before has been handled."""
        if self._in_hand is not None:
            share, entry = self._in_hand
            self._in_hand = None
            self._acknowledge(share, entry[0])
            await asyncio.sleep(0)  # so that it is on its way, also if the user never waits for anything else
            if len(share.done) >= _MOST_UNSAID and self._acknowledging is not None:
                await asyncio.wait([self._acknowledging])
        while not self._closed:
            async with self._one:
                self._news.clear()
                if not self._kept:
                    self._raise_trouble()
                try:
                    event = await self._hand_out()
                    if event is not None or self._closed:
                        return event
                    due = sorted((share for share in self._shares if share.stirred), key=lambda share: share.turn)
                    if due:
                        await self._take_some(due[:_AT_ONCE])
                        self._pause = _FIRST_PAUSE
                        continue
                except (ServerUnavailable, ConnectionLost) as trouble:
                    await self._hub.look_after(trouble)
                    await asyncio.sleep(self._pause * (0.5 + random.random()))
                    self._pause = min(self._pause * 2, _LONGEST_PAUSE)
                    continue
            await self._news.wait()
        return None

    def take_back(self) -> None:
        """The event in hand was not finished: it comes next."""
        if self._in_hand is not None:
            self._kept.appendleft(self._in_hand)
            self._in_hand = None

    def stir(self) -> None:
        """There is something to do for whoever waits for an event."""
        self._news.set()

    async def close(self) -> None:
        """Ends it. What is not finished, others may take at once."""
        self._closed = True
        self._news.set()
        for share in self._shares:
            if share.stream is not None:
                self._streams.leave(share.stream, share)
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait([self._tending])
        try:
            if self._acknowledging is not None:
                await asyncio.wait([self._acknowledging], timeout=self._hub.wait if self._hub.wait < math.inf else None)
            if any(share.ready for share in self._shares):
                await self._leave()
        except (
            EchoMQError,
            RuntimeError,
        ) as error:  # RuntimeError: the connection was closed before; then silence says it
            _log.info("group %r was left without a word: %s", self._group, error)
        finally:
            if self._acknowledging is not None:
                self._acknowledging.cancel()
                await asyncio.wait([self._acknowledging])

    # -- taking --------------------------------------------------------------------------------------------------------

    async def _link(self, patience: Patience) -> Link:
        return await opened(lambda: self._hub.link(hash_tag=self._shares[0].keys.hash_tag), patience)

    async def _take_some(self, shares: Sequence[Share]) -> None:
        link = await self._link(Patience(math.inf, self._hub.look_after))
        count = max(1, _AHEAD // len(shares))
        ends = await asyncio.gather(*(self._take(link, share, count) for share in shares), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _take(self, link: Link, share: Share, count: int) -> None:
        self._turns += 1
        share.turn, share.stirred = self._turns, False
        own, claims = share.own, share.claim and share.own is None
        idle = str(to_ms(self._claim_after)) if claims else ""
        args = (
            self._group,
            self._name,
            share.start,
            share.known,
            share.heard,
            own or b"",
            str(count),
            idle,
            share.cursor,
        )
        asked = lasting()
        try:
            reply: Any = await run_script(link, "takeEvents-1", share.keys, args)
        except BaseException as error:  # also when its caller was cancelled: what it may have brought is ours by now
            share.own, share.stirred = START, True
            if isinstance(error, EchoMQError):
                raise explained(share.key, error) from None
            raise
        after, until, cursor, *flat = reply
        if after:
            self._kept.append((share, gap(share.keys.queue, after, until or None)))
            share.heard, share.stirred = after, True
        elif own is None:
            share.heard = b""
        entries = list(zip(flat[::2], flat[1::2], strict=True))
        self._keep(share, entries, asked)
        if own is not None and not after:
            share.own = entries[-1][0] if len(entries) >= count else None
            share.stirred = True
        elif len(entries) >= count:
            share.stirred = True
        if claims:
            share.cursor, share.claim = cursor, cursor != START
            share.stirred = share.stirred or share.claim

    def _keep(self, share: Share, entries: Sequence[tuple[bytes, Any]], asked: float) -> None:
        gone = [entry_id for entry_id, fields in entries if fields is None and entry_id not in share.done]
        if gone:  # given to a member, and cut off before it could handle them
            self._kept.append((share, gap(share.keys.queue, gone[0], None)))
            for entry_id in gone:
                self._acknowledge(share, entry_id)
        for entry_id, fields in entries:
            if fields is None or entry_id in share.held or entry_id in share.done:
                continue
            share.held[entry_id] = asked
            self._kept.append((share, [entry_id, fields]))
            if not share.known or number(entry_id) > number(share.known):
                share.known = entry_id

    async def _hand_out(self) -> Event | None:
        while self._kept:
            share, what = self._kept[0]
            if isinstance(what, Event):
                self._kept.popleft()
                return what
            if lasting() - share.held.get(what[0], math.inf) > self._claim_after * 2 / 3:
                await self._renew(share)  # we stood still, and somebody may have taken it over
            self._kept.popleft()
            if what[0] in share.held:
                self._in_hand = (share, what)
                share.handed = what[0]
                return decode_event(share.keys.queue, what[0], what[1])
        return None

    def _raise_trouble(self) -> None:
        for share in self._shares:
            if share.trouble is not None:
                trouble, share.trouble = share.trouble, None
                raise trouble
            if share.stream is None:
                share.stream = self._streams.follow(share.keys, share)

    # -- what it has ---------------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        """Says of what it has that it is at work on it; and looks, now and then, for what others let lie."""
        looks = False
        while True:
            await asyncio.sleep(self._claim_after / 3)
            for share in [share for share in self._shares if share.held]:
                try:
                    await self._renew(share)
                except (EchoMQError, RuntimeError) as error:
                    _log.debug("group %r: could not say that it is alive: %s", self._group, error)
            looks = not looks
            for share in self._shares if looks else ():
                share.claim = True
                share.stir()

    async def _renew(self, share: Share) -> None:
        ids = list(share.held)
        asked = lasting()
        link = await self._hub.link(hash_tag=share.keys.hash_tag)
        lost: Any = await run_script(link, "keepEvents-1", share.keys, (self._group, self._name, *ids))
        for entry_id in ids:
            if entry_id in share.held:
                share.held[entry_id] = asked
        for entry_id in lost:
            share.held.pop(entry_id, None)

    def _acknowledge(self, share: Share, entry_id: bytes) -> None:
        share.held.pop(entry_id, None)
        share.done[entry_id] = None
        if self._acknowledging is None:
            self._acknowledging = self._hub.loop.create_task(self._send_done(), name="echomq group done")

    async def _send_done(self) -> None:
        patience = Patience(math.inf, self._hub.look_after)
        try:
            while shares := [share for share in self._shares if share.done]:
                for share in shares:
                    ids = list(share.done)
                    try:
                        link = await self._link(patience)
                        await answered(link, partial(link.call, "XACK", share.key, self._group, *ids), patience)
                    except (EchoMQError, RuntimeError) as error:  # RuntimeError: the connection was closed
                        _log.warning("group %r: what was handled could not be said: %s", self._group, error)
                    for entry_id in ids:
                        share.done.pop(entry_id, None)
        finally:
            self._acknowledging = None

    async def _forget_others(self, link: Link, share: Share) -> None:
        await run_script(link, "leaveEvents-1", share.keys, self._leaving(""))

    async def _leave(self) -> None:
        link = await self._hub.link(hash_tag=self._shares[0].keys.hash_tag)
        for share in self._shares:
            if share.ready:
                await run_script(link, "leaveEvents-1", share.keys, (*self._leaving("1"), *share.held))

    def _leaving(self, leaves: str) -> tuple[str, ...]:
        return (self._group, self._name, leaves, str(to_ms(_FORGET_AFTER)))
