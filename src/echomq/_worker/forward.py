"""Forwarding: what became of jobs goes from the outbox to the queues that are to know it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from echomq._log import Seldom
from echomq._redis.client import Link
from echomq._store.call import Lane
from echomq._store.finish import ENDINGS, Outcome
from echomq._store.forward import Destination, Entry, add_outcomes, take_outcomes
from echomq._store.keys import QueueKeys
from echomq.connection import Connection, Hub
from echomq.errors import ConnectionLost, EchoMQError, ServerUnavailable

_LEASE_MS = 5_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


@dataclass(slots=True)
class _PutOff:
    """A destination that could not be reached."""

    until: float
    pause: float


class Forwarder:
    """Empties the outbox. It sleeps until an outcome has been written there, or the sweep has seen some that were left.

    Args:
        keys: of the queue whose outbox it is.
        link: to its server.
        elsewhere: the queues on other servers that outcomes go to, by what the outbox calls them.
    """

    def __init__(self, keys: QueueKeys, link: Link, elsewhere: Callable[[], Mapping[str, Destination]]) -> None:
        self._keys = keys
        self._link = link
        self._elsewhere = elsewhere
        self._id = secrets.token_urlsafe(9)
        self._wanted = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._put_off: dict[str, _PutOff] = {}
        self._lanes: dict[str, Lane] = {}
        self._hubs: dict[Connection, Hub] = {}
        self._seldom = Seldom()

    def look(self) -> None:
        """Something may be in the outbox."""
        self._wanted.set()
        self._at_rest.clear()

    def stored(self, outcomes: Sequence[Outcome]) -> None:
        """These have been stored, some by way of the outbox perhaps."""
        for outcome in outcomes:
            if isinstance(outcome, ENDINGS) and outcome.forward is not None and outcome.forward.outbox is not None:
                self.look()
                return

    async def at_rest(self) -> None:
        """Waits until all has been forwarded that could be."""
        await self._at_rest.wait()

    async def run(self) -> None:
        """Forwards until cancelled."""
        again: float | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout(again):
                        await self._wanted.wait()
                except TimeoutError:
                    pass
                self._wanted.clear()
                again = await self.tick()
                if not self._wanted.is_set():
                    self._at_rest.set()
        finally:
            for hub in self._hubs.values():
                await hub.release()

    async def tick(self) -> float | None:
        """Goes through the outbox once. Gives the seconds after which it is worth another look; None: when somebody says so."""
        now = asyncio.get_running_loop().time()
        elsewhere = self._elsewhere()
        avoided = {name for name, put_off in self._put_off.items() if put_off.until > now}
        after, passed = b"", 0
        done: list[Entry] = []
        try:
            while True:
                taken = await take_outcomes(
                    self._link, self._keys, self._id, _LEASE_MS, after, done, elsewhere, avoided
                )
                if taken.held_for:
                    return taken.held_for
                passed = taken.passed + (passed if after else 0)
                after = taken.last
                if not after and not taken.entries:
                    break
                done = await self._forward(taken.entries, elsewhere, avoided)
        except (ServerUnavailable, ConnectionLost):
            return _FIRST_PAUSE  # others tell of it
        except EchoMQError as error:
            self._complain(f"outcomes cannot be forwarded: {error}")
            return _LONGEST_PAUSE
        if passed:
            self._complain("outcomes wait in the outbox for servers that this worker does not know")
        return self._next_look()

    async def _forward(
        self, entries: Sequence[Entry], elsewhere: Mapping[str, Destination], avoided: set[str]
    ) -> list[Entry]:
        """Adds the jobs of these entries, and gives those that are there now. Others are to be avoided for a time."""
        by_name: dict[str, list[Entry]] = {}
        for entry in entries:
            by_name.setdefault(entry.destination, []).append(entry)
        done: list[Entry] = []
        for name, some in by_name.items():
            try:
                await add_outcomes(await self._lane(some[0], elsewhere.get(name)), some)
            except (EchoMQError, RuntimeError) as error:  # RuntimeError: its user has closed the other connection
                avoided.add(name)
                self._fails(name, error)
                await self._let_go(name, elsewhere, error)
            else:
                done += some
                self._put_off.pop(name, None)
        return done

    async def _lane(self, entry: Entry, destination: Destination | None) -> Lane:
        lane = self._lanes.get(entry.destination)
        if lane is None:
            if destination is None:
                lane = Lane(self._link, QueueKeys.at(entry.base))
            else:
                hub = self._hubs.get(destination.connection)
                if hub is None:
                    hub = self._hubs[destination.connection] = destination.connection.acquire()
                lane = Lane(await hub.link(hash_tag=destination.keys.hash_tag), destination.keys)
            self._lanes[entry.destination] = lane
        return lane

    async def _let_go(self, name: str, elsewhere: Mapping[str, Destination], error: Exception) -> None:
        """The next try begins with another lane. Where the connection is not the worker's, all that go by it begin anew."""
        self._lanes.pop(name, None)
        destination = elsewhere.get(name)
        hub = None if destination is None else self._hubs.pop(destination.connection, None)
        if destination is None or hub is None:
            return
        for other, one in elsewhere.items():
            if one.connection is destination.connection:
                self._lanes.pop(other, None)
        await hub.look_after(error)
        await hub.release()

    def _fails(self, name: str, error: Exception) -> None:
        former = self._put_off.get(name)
        pause = _FIRST_PAUSE if former is None else min(2 * former.pause, _LONGEST_PAUSE)
        self._put_off[name] = _PutOff(asyncio.get_running_loop().time() + pause, pause)
        self._complain(f"outcomes for {name.strip()} wait in the outbox, and are tried again: {error}")

    def _next_look(self) -> float | None:
        now = asyncio.get_running_loop().time()
        self._put_off = {name: put_off for name, put_off in self._put_off.items() if put_off.until > now}
        return min((put_off.until - now for put_off in self._put_off.values()), default=None)

    def _complain(self, text: str) -> None:
        self._seldom.warning("queue %s: %s (docs/results-queue.md)", self._keys.queue, text)
