"""Forwarding: how a job ended becomes a job ``outcome`` of another queue, at once or by way of the outbox.

The outbox is a stream beside the queue's other keys. The finish writes there what belongs to a queue in another slot of a
cluster, or on another server; a worker takes it, adds the job under the id that the entry gives it, and only then removes the
entry. Whatever is done twice for that is done to one id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from echomq._redis.client import Link
from echomq._redis.wire import Argument
from echomq._store.call import Lane, Patience, run_script
from echomq._store.codec import OUTCOME_OPTS, decode_id, outcome_job
from echomq._store.keys import QueueKeys
from echomq.connection import Connection

_TAKE, _ADD = "takeOutcomes-2", "addJobs-11"
_HEAD, _VALUES = 3, 5


class Forward(msgspec.Struct, frozen=True):
    """What the finish is told about forwarding one outcome.

    Attributes:
        queue: what the keys of the other queue begin with.
        head: the data of its job, up to the result.
        outbox: the key of the outbox, if it goes there first.
        at: then the other server; "" for this one.
    """

    queue: str
    head: bytes
    outbox: str | None = None
    at: str = ""

    def packed(self) -> dict[str, Any]:
        """As moveToFinished takes it."""
        if self.outbox is None:
            return {"base": self.queue, "opts": OUTCOME_OPTS, "head": self.head.decode()}
        return {"outbox": self.outbox, "to": self.queue, "at": self.at, "head": self.head.decode()}


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue that outcomes are forwarded to.

    Attributes:
        keys: its keys.
        connection: how to reach it.
        at: its server, as entries of the outbox name it; "" for our own.
        outbox: the key of our outbox, if outcomes go there first; None if a finish reaches that queue itself.
    """

    keys: QueueKeys
    connection: Connection
    at: str
    outbox: str | None

    @classmethod
    def of(
        cls, keys: QueueKeys, connection: Connection, ours: QueueKeys, here: Connection, *, is_cluster: bool | None
    ) -> Destination:
        """Where outcomes of our queue go for that one. What cannot be known to be in reach goes through the outbox."""
        at = "" if here.same_server(connection) else connection.where
        in_reach = not at and (is_cluster is False or (ours.slot is not None and ours.slot == keys.slot))
        return cls(keys, connection, at, None if in_reach else ours.resolve("outbox"))

    @property
    def name(self) -> str:
        """What takeOutcomes calls it."""
        return name_of(self.at, self.keys.base)

    def forward(self, head: bytes) -> Forward:
        """An outcome on its way there."""
        return Forward(self.keys.base, head, self.outbox, self.at)


def name_of(at: str, base: str) -> str:
    """What takeOutcomes calls the queue whose keys begin so."""
    return f"{at} {base}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What waits in the outbox.

    Attributes:
        id: of the entry.
        job_id: that its job will have.
        at: the server that it goes to; "" for our own.
        base: what the keys of its queue begin with.
        data: of the job.
    """

    id: bytes
    job_id: bytes
    at: str
    base: str
    data: bytes

    @property
    def destination(self) -> str:
        """The name of its destination."""
        return name_of(self.at, self.base)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a look into the outbox gave.

    Attributes:
        held_for: seconds for which another worker forwards; 0 if none does.
        last: where the next look goes on; empty at the end.
        passed: how many entries are for queues that we do not know.
        entries: what is ours to forward.
    """

    held_for: float
    last: bytes
    passed: int
    entries: list[Entry]


async def take_outcomes(
    link: Link,
    keys: QueueKeys,
    forwarder: str,
    lease: int,
    after: bytes,
    done: Sequence[Entry],
    known: Iterable[str],
    avoided: Iterable[str],
) -> Taken:
    """Removes what has been forwarded (``done``), and takes up to 100 entries or 1 MiB more, if no other worker is at it.

    The ``forwarder`` gets a ``lease`` of so many milliseconds, in which no other is given any. ``after`` is where the look before
    this one ended; empty to begin. ``known`` are names of queues on other servers that it can reach, ``avoided`` those of queues
    that it wants nothing for.
    """
    known, avoided = list(known), list(avoided)
    counts = (str(len(done)), str(len(known)), str(len(avoided)))
    args: list[Argument] = [forwarder, str(lease), after, *counts, *(entry.id for entry in done), *known, *avoided]
    reply: Any = await run_script(link, _TAKE, keys, args)
    entries = [
        Entry(entry, job_id, at.decode(), base.decode(), data)
        for entry, job_id, at, base, data in (
            reply[start : start + _VALUES] for start in range(_HEAD, len(reply), _VALUES)
        )
    ]
    return Taken(reply[0] / 1000, reply[1], reply[2], entries)


async def add_outcomes(lane: Lane, entries: Sequence[Entry]) -> None:
    """Adds the jobs of these entries, all of one queue, where they are not there already; all or none."""
    args: list[Argument] = [str(len(entries)), ""]  # no bound: what a full queue refused would be lost, or wait here
    for entry in entries:
        args.extend(outcome_job(decode_id(entry.job_id), entry.data))
    await lane.call(_ADD, args, Patience(0))
