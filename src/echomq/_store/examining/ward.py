"""One queue under the doctor's eyes: what the walk over the names met of it, and how it is looked at and told of.

While a queue goes on, a job that moves between two looks seems to be in no state, or in two. So a walk only suspects. What it
suspects is looked at again by the script that could repair it (``scripts/doctor``): the ids and all containers in one step. What
that confirms is a finding; and a fix is the same script, told to act.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from echomq._redis.wire import Reply
from echomq._store import names
from echomq._store.codec import decode_id, id_out
from echomq._store.line import Line
from echomq.errors import ServerError
from echomq.findings import KINDS, Finding

PAGE: Final = 1000
LOOK: Final = 100
_AT_ONCE: Final = 50
_MOST: Final = 1000
"""Of one kind in one queue no more is told: these are to be repaired first."""
SETS: Final = ("completed", "failed", "delayed", "prioritized", "waiting-children")
LISTS: Final = ("active", "wait", "paused")
_TYPES: Final = {
    **dict.fromkeys(SETS, b"zset"), **dict.fromkeys(LISTS, b"list"), "marker": b"zset", "repeat": b"zset", "meta": b"hash",
    "events": b"stream", "stalled": b"set", "id": b"string", "pc": b"string", "stalled-check": b"string", "limiter": b"string",
    "metrics:completed": b"hash", "metrics:failed": b"hash", "metrics:completed:data": b"list", "metrics:failed:data": b"list",
}  # fmt: skip
_COUNTERS: Final = ("id", "pc")
_COUNT: Final = re.compile(rb"0|-?[1-9]\d{0,17}")
"""What the server can count on from, and scripts with it."""

T = TypeVar("T")


def _shown(item: object) -> str:
    return decode_id(item) if isinstance(item, bytes) else str(item)


def seconds(milliseconds: Reply) -> str:
    """Milliseconds in seconds, as they are told."""
    assert isinstance(milliseconds, int)
    return f"{milliseconds / 1000:.0f}"


@dataclass
class Met:
    """What the walk over the names met of one queue.

    Attributes:
        known: which of the queue's own keys there are.
        own: keys of ours beside it.
        nowhere: ids of jobs that stood in no set when they were met; those in lists are among them.
        partial: ids of hashes that are no whole jobs.
        parts: what belongs to jobs: id and part.
        held, kept: deduplication ids that are held, and for which something is kept.
        holders: the jobs of each deduplication id that had not ended.
        definitions: schedules.
    """

    known: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    nowhere: set[bytes] = field(default_factory=set)
    partial: set[bytes] = field(default_factory=set)
    parts: list[tuple[bytes, bytes]] = field(default_factory=list)
    held: set[bytes] = field(default_factory=set)
    kept: set[bytes] = field(default_factory=set)
    holders: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    definitions: set[bytes] = field(default_factory=set)


class Ward:
    """One queue under examination. First every name is ``met``, then each family of kinds has its look.

    Attributes:
        base: what the queue's keys begin with.
        suspects: ids that seem to stand in two places.
        optionless: jobs whose options seem to be none.

    Args:
        line: the queue's line.
        found: takes each finding.
        missed: takes what could not be looked at.
        passed: is told how many jobs were looked at.
    """

    def __init__(
        self, line: Line, found: Callable[[Finding], None], missed: Callable[[str], None], passed: Callable[[int], None]
    ) -> None:
        self.line = line
        self.keys = line.keys
        self.met = Met()
        self.base = id_out(self.keys.base)
        self._own_base = id_out(self.keys.own_base)
        self._found = found
        self._missed = missed
        self._passed = passed
        self._told: Counter[str] = Counter()
        self._jobs: list[bytes] = []
        self.suspects: set[bytes] = set()
        self.optionless: set[bytes] = set()

    async def meet(self, key: bytes) -> None:
        """A name that begins like the queue's keys."""
        if key.startswith(self._own_base):
            self.met.own.add(decode_id(key[len(self._own_base) :]))
            return
        name = key[len(self.base) :]
        met = self.met
        if decode_id(name) in _TYPES:
            met.known.add(decode_id(name))
        elif name.startswith(b"de:"):
            met.held.add(name[3:])
        elif name.startswith(b"dn:"):
            met.kept.add(name[3:])
        elif (owner := names.owner(name)) is not None:
            met.parts.append((owner, name[len(owner) + 1 :]))
        elif names.may_be_a_job(name):
            self._jobs.append(name)
            if len(self._jobs) >= LOOK:
                await self.look_at_jobs()
        elif name.startswith(b"repeat:"):
            met.definitions.add(name[7:])

    async def look_at_jobs(self) -> None:
        """Looks at the jobs that have been met and not been looked at."""
        ids, self._jobs = self._jobs, []
        if not ids:
            return
        for job_id, kind, places, options, deid in await self.states(ids):
            if kind == b"part":
                self.met.partial.add(job_id)
            if kind == b"hash" and not places:
                self.met.nowhere.add(job_id)
            if len(places) > 1:
                self.suspects.add(job_id)
            if options:
                self.optionless.add(job_id)
            if deid and not set(places) & set(b"12"):
                self.met.holders[deid].append(job_id)
        self._passed(len(ids))

    async def states(self, ids: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes, bytes, bytes]]:
        """Of each id: itself, and what ``lookAtJobs`` says of it."""
        reply = await self.line.read("lookAtJobs-5", ids)
        assert isinstance(reply, list)
        return [(one, *reply[4 * at : 4 * at + 4]) for at, one in enumerate(ids)]  # type: ignore[misc]

    @property
    def is_a_queue(self) -> bool:
        """Whether there is a queue of this name at all, and not just a key of another program that is named like one."""
        return bool(self.met.known & {"meta", "id", "repeat", *SETS, *LISTS})

    async def is_here(self) -> bool:
        """Whether this server has the queue; where another node of its cluster does, that is said."""
        try:
            await self.line.ask("EXISTS", self.keys.key("meta"))
        except ServerError as error:
            if error.code == "MOVED":
                self._missed(f"queue {self.keys.queue!r}: another node of the cluster has it: {error}")
                return False
        return True

    async def careful(self, what: str, looking: Awaitable[T]) -> T | None:
        """Awaits a look. What cannot be read is said, and None comes of it."""
        try:
            return await looking
        except ServerError as error:  # NOPERM, a key of a wrong type
            self._missed(f"queue {self.keys.queue!r}: {what}: {error}")
            return None

    def tell(self, kind: str, subject: bytes | str, text: str, beside: bytes | str = "") -> None:
        """A finding."""
        self._told[kind] += 1
        if self._told[kind] > _MOST:
            if self._told[kind] == _MOST + 1:
                self._missed(
                    f"queue {self.keys.queue!r}: more than {_MOST} findings {kind}: repair these, and look again"
                )
            return
        severity, fixable, remedy = KINDS[kind]
        subject, beside = (decode_id(one) if isinstance(one, bytes) else one for one in (subject, beside))
        dead = self.keys.protocol_name.endswith("}-dead")
        name = self.keys.queue.removesuffix("-dead") if dead else self.keys.queue
        self._found(Finding(kind, severity, name, subject, text, remedy, fixable, beside, dead))

    async def each(self, items: Iterable[T], look: Callable[[T], Awaitable[None]]) -> None:
        """A few at once. What cannot be read of one keeps no other from being looked at."""
        some: list[T] = []
        for item in items:
            some.append(item)
            if len(some) == _AT_ONCE:
                await asyncio.gather(*(self.careful(_shown(one), look(one)) for one in some))
                some.clear()
        await asyncio.gather(*(self.careful(_shown(one), look(one)) for one in some))

    async def types(self) -> None:
        """Looks whether the queue's own keys are what they must be."""
        known = sorted(self.met.known)
        kinds = await asyncio.gather(*(self.line.ask("TYPE", self.keys.key(name)) for name in known))
        for name, kind in zip(known, kinds, strict=True):
            if kind not in (_TYPES[name], b"none") and isinstance(kind, bytes):
                key = self.keys.key(name)
                text = f"{key} is a {kind.decode()}, and must be a {_TYPES[name].decode()}"
                self.tell("key-of-wrong-type", key, text)
            elif name in _COUNTERS and kind == b"string":
                value = await self.line.ask("GET", self.keys.key(name))
                if isinstance(value, bytes) and not _COUNT.fullmatch(value):
                    key, found = self.keys.key(name), decode_id(value[:40])
                    self.tell("key-of-wrong-type", key, f"{key} is {found!r}, and must be a whole number")

    async def set_pages(self, place: str) -> AsyncIterator[list[bytes]]:
        """The ids of a set, a page at a time."""
        start = 0
        while True:
            ids = await self.line.ask("ZRANGE", self.keys.key(place), str(start), str(start + PAGE - 1))
            assert isinstance(ids, list)
            yield ids  # type: ignore[misc]
            if len(ids) < PAGE:
                return
            start += PAGE

    async def list_pages(self, place: str) -> AsyncIterator[tuple[int, int, list[bytes]]]:
        """The ids of a list a page at a time, with the index of the first, and the list's length at that moment.

        What is added at the head meanwhile moves the end of a page into the next one: there it is passed over.
        """
        start, key, before = 0, self.keys.key(place), set[bytes]()
        while True:
            length, ids = await asyncio.gather(
                self.line.ask("LLEN", key), self.line.ask("LRANGE", key, str(start), str(start + PAGE - 1))
            )
            assert isinstance(ids, list)
            assert isinstance(length, int)
            again = next((at for at, one in enumerate(ids) if one not in before), len(ids))
            yield start + again, length, ids[again:]  # type: ignore[misc]
            if len(ids) < PAGE:
                return
            before = set(ids)  # type: ignore[arg-type]
            start += PAGE
