"""``QueueEvents``: what happens in queues, as it happens, or from where one has stopped listening."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Mapping
from typing import Final, Self

from echomq._store.events import Since, Subscription
from echomq._store.groups import Membership
from echomq._store.keys import QueueKeys
from echomq.connection import Connection, Hub
from echomq.errors import InvalidOption
from echomq.event_types import (
    Active,
    Added,
    Cancelled,
    Cleaned,
    Completed,
    Custom,
    Debounced,
    Deduplicated,
    Delayed,
    Drained,
    Duplicated,
    Event,
    Expired,
    Failed,
    Gap,
    JobEvent,
    Paused,
    Progress,
    Removed,
    Resumed,
    RetriesExhausted,
    Skipped,
    Stalled,
    Unreadable,
    Waiting,
    WaitingChildren,
)
from echomq.options import Duration, shown, to_seconds
from echomq.queue import Queue

__all__ = [
    "Active",
    "Added",
    "Cancelled",
    "Cleaned",
    "Completed",
    "Custom",
    "Debounced",
    "Deduplicated",
    "Delayed",
    "Drained",
    "Duplicated",
    "Event",
    "Expired",
    "Failed",
    "Gap",
    "JobEvent",
    "Paused",
    "Progress",
    "QueueEvents",
    "Removed",
    "Resumed",
    "RetriesExhausted",
    "Skipped",
    "Stalled",
    "Unreadable",
    "Waiting",
    "WaitingChildren",
]

_ID: Final = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?")
_LAST_NUMBER: Final = 2**64 - 1
_MOST_CHARACTERS: Final = 200


class QueueEvents:
    """Listens to the event logs of queues. Leave it with ``async with``, which begins with ``ready()``, or call ``close()``.

    All that listen in one event loop over one ``Connection``, and all that wait for results there, share one connection to
    the server and one read, for any number of queues. A lost connection is made again, and nothing is missed; where the log
    was cut off before it was read, a ``Gap`` says so. Whoever is slow reads on from where it is, as long as the log holds it.

    As a member of a ``group`` it shares the events with the other members: each is handled by one of them, once that asks for
    the next one. What a member that has died did not get done goes to another. The group stays on the server, with its place
    in each log, whether somebody listens or not.

    Args:
        queues: by name, or as ``Queue``, whose connection and names are then taken.
        connection: a ``Connection`` to share, or the URL of the server; left out, that of the first ``Queue``, or
            ``ECHOMQ_URL``.
        prefix, hash_tag: those of the queues that are given by name.
        since: where to begin: ``"now"``; ``"start"``, with all that the log still holds; or behind an event, by its ``id``.
            A mapping of queue names to ids, such as ``positions`` gives, begins anew in each queue where it was left; a
            queue that is not in it begins now. A group that is there already goes on from where it is.
        group: the name of a group of listeners.
        consumer: this member's name. One that takes up the name of a former self, which is gone, has its unfinished events
            at once. Left out, a name of its own.
        claim_after: seconds, or a ``timedelta``, after which what a silent member of the group did not finish goes to others.

    Raises:
        InvalidOption: a name or ``since`` breaks a rule.

    Example:
        >>> async with QueueEvents("enrollments", since=stored.get("enrollments", "start")) as events:
        ...     async for event in events:
        ...         if isinstance(event, Completed):
        ...             print(event.job_id, event.return_value)
        ...         stored[event.queue] = event.id
    """

    def __init__(
        self,
        *queues: str | Queue,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        since: str | Mapping[str, str] = "now",
        group: str | None = None,
        consumer: str | None = None,
        claim_after: Duration = 60.0,
    ) -> None:
        self._keys = _keys_of(queues, prefix, hash_tag)
        self._connection = _connection_of(queues, connection)
        self._since = _since_of(since, self._keys)
        self._group = None if group is None else _checked_name(group, "group")
        if consumer is not None and group is None:
            raise InvalidOption(f"consumer={shown(consumer)}: names a member of a group; say which with group=")
        self._consumer = _own_name() if consumer is None else _checked_name(consumer, "consumer")
        self._claim_after = to_seconds(claim_after, "claim_after", least=0.1)
        self._hub: Hub | None = None
        self._source: Subscription | Membership | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<QueueEvents {', '.join(keys.queue for keys in self._keys)} at {self._connection.where}>"

    @property
    def positions(self) -> dict[str, str]:
        """For each queue the id of the last event that it gave, or where the first one is to come from: a ``since`` that goes on.

        Of a queue whose place is not known yet, before ``ready()``, there is none.
        """
        return {} if self._source is None else self._source.positions

    async def ready(self) -> None:
        """Takes a place in each log: every event that is written when this has returned will be seen.

        Raises:
            ServerUnavailable: the server could not be reached within ``Connection.wait``.
            BrokenKey: a log's key is not a stream.
        """
        await self._opened().ready()

    def __aiter__(self) -> Self:
        """In a group, a loop that was left in the middle of an event begins anew with that one."""
        if isinstance(self._source, Membership):
            self._source.take_back()
        return self

    async def __anext__(self) -> Event:
        """The next event. While the server is away, it waits.

        In a group it says, too, that the event before has been handled.

        Raises:
            ServerUnavailable: nobody has awaited ``ready()``, as ``async with`` does, and the server was away to begin with.
            BrokenKey, ServerError: a log cannot be read. ConnectionLost: the connection was closed. Asking again goes on.
        """
        if self._closed:
            raise StopAsyncIteration
        source = self._opened()
        if not source.is_ready:
            await source.ready()
        event = await source.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """Listens no more; a loop that waits for an event ends. Closing again does nothing.

        In a group, the event at hand and what was fetched ahead go to other members.
        """
        self._closed = True
        source, self._source = self._source, None
        hub, self._hub = self._hub, None
        try:
            if source is not None:
                await source.close()
        finally:
            if hub is not None:
                await hub.release()

    async def __aenter__(self) -> Self:
        try:
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _opened(self) -> Subscription | Membership:
        if self._closed:
            raise RuntimeError(f"{self!r} is closed: make a new one")
        if self._hub is not None and self._hub.loop is not asyncio.get_running_loop():
            raise RuntimeError(f"{self!r} is in use in another event loop: make one for each event loop")
        if self._source is None:
            self._hub = self._connection.acquire()
            if self._group is None:
                self._source = Subscription(self._hub, self._keys, self._since)
            else:
                self._source = Membership(
                    self._hub, self._keys, self._since, self._group, self._consumer, self._claim_after
                )
        return self._source


def _keys_of(queues: tuple[str | Queue, ...], prefix: str, hash_tag: bool | None) -> list[QueueKeys]:
    if not queues:
        raise InvalidOption("no queue was named: QueueEvents('orders', …)")
    found: dict[str, QueueKeys] = {}
    for queue in queues:
        keys = queue._home.keys if isinstance(queue, Queue) else QueueKeys.of(queue, prefix=prefix, hash_tag=hash_tag)
        if keys.queue in found:
            raise InvalidOption(
                f"queue {keys.queue!r} is named twice: its events could not be told apart; use another QueueEvents for it"
            )
        found[keys.queue] = keys
    return list(found.values())


def _connection_of(queues: tuple[str | Queue, ...], connection: Connection | str | None) -> Connection:
    theirs = {queue._home.connection for queue in queues if isinstance(queue, Queue)}
    if connection is not None or not theirs:
        return Connection.of(connection)
    if len(theirs) > 1:
        raise InvalidOption(
            "the queues have connections of their own, and events are read over one: give them all the same Connection, "
            "or name one with connection="
        )
    return theirs.pop()


def _since_of(since: str | Mapping[str, str], queues: list[QueueKeys]) -> dict[str, Since]:
    if isinstance(since, str):
        place = _place(since)
        return {keys.queue: place for keys in queues}
    given: object = since
    if not isinstance(given, Mapping):
        raise InvalidOption(
            f"since={shown(since)}: must be 'now', 'start', the id of an event, or a mapping of such ids"
        )
    names = {keys.queue for keys in queues}
    for name in since:
        if name not in names:
            raise InvalidOption(f"since has a queue {shown(name)} that is not listened to; leave it out")
    return {name: _place(since[name]) if name in since else "now" for name in names}


def _place(since: str) -> Since:
    if since == "now":
        return "now"
    if since == "start":
        return "start"
    found = _ID.fullmatch(since) if isinstance(since, str) else None
    if found is None or max(int(found[1]), int(found[2] or 0)) > _LAST_NUMBER:
        raise InvalidOption(
            f"since={shown(since)}: must be 'now', 'start', or the id of an event, such as '1764400000000-0'"
        )
    return f"{int(found[1])}-{int(found[2] or 0)}".encode()


def _checked_name(name: str, what: str) -> str:
    given: object = name
    if not isinstance(given, str) or not given or len(given) > _MOST_CHARACTERS:
        raise InvalidOption(f"{what}={shown(name)}: must be a text of 1 to {_MOST_CHARACTERS} characters")
    return name


def _own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
