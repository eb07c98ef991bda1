"""One queue under the doctor's eyes: its keys are walked in bounded steps, and what seems wrong is looked at once more.

While a queue goes on, a job that moves between two looks seems to be in no state, or in two. So a walk only suspects. What it
suspects is looked at again by the script that could repair it (``scripts/doctor``): the ids and all containers in one step. What
that confirms is a finding; and a fix is the same script, told to act.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from echomq._redis.wire import Argument, Reply
from echomq._store import heal, names, presence, read, schedule
from echomq._store.codec import decode_id, id_out
from echomq._store.keys import EXPIRING, LEFT_BEHIND, QueueKeys
from echomq._store.line import Line
from echomq.errors import InvalidOption, ServerError
from echomq.findings import KINDS, Finding, QueueFacts
from echomq.models import JOB_STATES

_PAGE: Final = 1000
_LOOK: Final = 100
_LOST: Final = 500
_AT_ONCE: Final = 50
_MOST: Final = 1000
"""Of one kind in one queue no more is told: these are to be repaired first."""

ABANDONED_MS: Final = 120_000
"""How long a job must have run without a lock, while nobody sweeps: more than two sweeps of any sensible interval."""
OVERDUE_MS: Final = 60_000
"""How late a delayed job must be: a worker looks every ten seconds, every thirty under a rate limit."""
EVENTS_SURPLUS: Final = 5000
"""Events beyond the limit that come and go: a log is trimmed in whole blocks, and once a call."""
EVENTS_TIMES: Final = 4
"""By how many times a log must be larger than it may: its size is looked at once a sweep."""
MOST_LANES: Final = 10_000
"""Records of calls beyond which it is looked whose they are: a queue has one for each producer and five for each worker."""
_KEPT: Final = 250_000
"""Ended jobs beyond which nobody seems to bound them: ``Keep.DEFAULT`` has 100,000 of each."""
_FORWARDED_IN: Final = 600
"""Seconds within which a worker forwards what is in the outbox, unless the other server is away."""
_LOOKS_FOR_MARKER: Final = 3
_BETWEEN_LOOKS: Final = 0.7

_SETS: Final = ("completed", "failed", "delayed", "prioritized", "waiting-children")
_LISTS: Final = ("active", "wait", "paused")
_TYPES: Final = {
    **dict.fromkeys(_SETS, b"zset"), **dict.fromkeys(_LISTS, b"list"), "marker": b"zset", "repeat": b"zset", "meta": b"hash",
    "events": b"stream", "stalled": b"set", "id": b"string", "pc": b"string", "stalled-check": b"string", "limiter": b"string",
    "metrics:completed": b"hash", "metrics:failed": b"hash", "metrics:completed:data": b"list", "metrics:failed:data": b"list",
}  # fmt: skip
_LEGACY_SCHEDULE: Final = re.compile(rb"[^:]*:[^:]*:\d*:[^:]*:.*")
_TAGGED: Final = re.compile(r"\{([^{}]+)\}(-dead)?")

T = TypeVar("T")


def _shown(item: object) -> str:
    return decode_id(item) if isinstance(item, bytes) else str(item)


def _seconds(milliseconds: Reply) -> str:
    assert isinstance(milliseconds, int)
    return f"{milliseconds / 1000:.0f}"


def _several(places: Sequence[str]) -> str:
    """wait, delayed (twice): each place once, with how often."""
    return ", ".join(name if times == 1 else f"{name} ({times} times)" for name, times in Counter(places).items())


def _waits_since(fields: Reply) -> float | None:
    """The moment, in seconds, since when a job could have been run: made, or last run, and its delay over."""
    assert isinstance(fields, list)
    made, started, opts = fields
    if not isinstance(made, bytes) or not made.isdigit():
        return None
    try:
        delay = json.loads(opts or b"{}").get("delay", 0)  # type: ignore[arg-type]
    except (ValueError, AttributeError):
        delay = 0
    since = int(made) + (delay if isinstance(delay, (int, float)) and delay > 0 else 0)
    if isinstance(started, bytes) and started.isdigit():
        since = max(since, int(started))
    return since / 1000


def _bounds(said: Reply) -> bool:
    """Whether the retention rule by which a job ended last (``lib/last_rules.lua``) bounds how many are kept, or how long."""
    if not isinstance(said, bytes):
        return False
    count, _, more = said.partition(b":")[2].partition(b";")
    return count not in (b"", b"-1") or more.partition(b";")[0] != b""


def _is_over(slot: float, flat: Sequence[Reply]) -> bool:
    try:
        return schedule.has_come_to_its_end(slot, flat)
    except InvalidOption:  # its pattern cannot be read
        return False


def keys_named(name: str, *, prefix: str, hash_tag: bool | None) -> QueueKeys | None:
    """The keys of the queue that other programs know by this name; None if it is no queue that we could have made."""
    try:
        plain = QueueKeys.of("q", prefix=prefix, hash_tag=hash_tag)
        if not plain.hash_tag:
            return QueueKeys.of(name, prefix=prefix, hash_tag=False)
        found = _TAGGED.fullmatch(name)
        if found is None:
            return None
        keys = QueueKeys.of(found[1], prefix=prefix, hash_tag=True)
    except InvalidOption:
        return None
    return keys.dead_letters if found[2] else keys


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
    """One queue under examination. First every name is ``met``, then ``examine`` looks.

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
        self._base = id_out(self.keys.base)
        self._own_base = id_out(self.keys.own_base)
        self._found = found
        self._missed = missed
        self._passed = passed
        self._told: Counter[str] = Counter()
        self._jobs: list[bytes] = []
        self._suspects: set[bytes] = set()
        self._standing: set[bytes] = set()  # in lists
        self._optionless: set[bytes] = set()

    # -- the walk over the names -----------------------------------------------------------------------------------------

    async def meet(self, key: bytes) -> None:
        """A name that begins like the queue's keys."""
        if key.startswith(self._own_base):
            self.met.own.add(decode_id(key[len(self._own_base) :]))
            return
        name = key[len(self._base) :]
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
            if len(self._jobs) >= _LOOK:
                await self._look_at_jobs()
        elif name.startswith(b"repeat:"):
            met.definitions.add(name[7:])

    async def _look_at_jobs(self) -> None:
        ids, self._jobs = self._jobs, []
        if not ids:
            return
        for job_id, kind, places, options, deid in await self._states(ids):
            if kind == b"part":
                self.met.partial.add(job_id)
            if kind == b"hash" and not places:
                self.met.nowhere.add(job_id)
            if len(places) > 1:
                self._suspects.add(job_id)
            if options:
                self._optionless.add(job_id)
            if deid and not set(places) & set(b"12"):
                self.met.holders[deid].append(job_id)
        self._passed(len(ids))

    async def _states(self, ids: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes, bytes, bytes]]:
        reply = await self.line.read("lookAtJobs-5", ids)
        assert isinstance(reply, list)
        return [(one, *reply[4 * at : 4 * at + 4]) for at, one in enumerate(ids)]  # type: ignore[misc]

    # -- the examination -------------------------------------------------------------------------------------------------

    @property
    def is_a_queue(self) -> bool:
        """Whether there is a queue of this name at all, and not just a key of another program that is named like one."""
        return bool(self.met.known & {"meta", "id", "repeat", *_SETS, *_LISTS})

    async def examine(self, oldest_waiting: float | None) -> QueueFacts | None:
        """Looks at all of it. What cannot be read is said, and does not keep the rest from being looked at."""
        elsewhere = await self._moved()
        if elsewhere:
            self._missed(f"queue {self.keys.queue!r}: another node of the cluster has it: {elsewhere}")
            return None
        await self._careful("its jobs", self._look_at_jobs())
        if not self.is_a_queue:
            await self._careful("the keys of our own", self._own_keys())
            return None
        await self._careful("the types of its keys", self._types())
        await self._careful("its lists and sets", self._places())
        await self._careful("its options", self._options())
        await self._careful("its jobs in no state", self._lost())
        await self._careful("parents", self._parents())
        await self._careful("deduplication ids", self._deduplication())
        await self._careful("locks and parts of jobs", self._parts())
        await self._careful("its line", self._line())
        await self._careful("its schedules", self._schedules())
        await self._careful("its bounds", self._bounds())
        await self._careful("the keys of our own", self._own_keys())
        return await self._careful("its facts", self._facts(oldest_waiting))

    async def _moved(self) -> str:
        """What a node of a cluster says of a queue that it does not have."""
        try:
            await self.line.ask("EXISTS", self.keys.key("meta"))
        except ServerError as error:
            return str(error) if error.code == "MOVED" else ""
        return ""

    async def _careful(self, what: str, looking: Awaitable[T]) -> T | None:
        try:
            return await looking
        except ServerError as error:  # NOPERM, a key of a wrong type
            self._missed(f"queue {self.keys.queue!r}: {what}: {error}")
            return None

    def _tell(self, kind: str, subject: bytes | str, text: str, beside: bytes | str = "") -> None:
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

    async def _each(self, items: Iterable[T], look: Callable[[T], Awaitable[None]]) -> None:
        """A few at once. What cannot be read of one keeps no other from being looked at."""
        some: list[T] = []
        for item in items:
            some.append(item)
            if len(some) == _AT_ONCE:
                await asyncio.gather(*(self._careful(_shown(one), look(one)) for one in some))
                some.clear()
        await asyncio.gather(*(self._careful(_shown(one), look(one)) for one in some))

    async def _types(self) -> None:
        known = sorted(self.met.known)
        kinds = await asyncio.gather(*(self.line.ask("TYPE", self.keys.key(name)) for name in known))
        for name, kind in zip(known, kinds, strict=True):
            if kind not in (_TYPES[name], b"none") and isinstance(kind, bytes):
                key = self.keys.key(name)
                text = f"{key} is a {kind.decode()}, and must be a {_TYPES[name].decode()}"
                self._tell("key-of-wrong-type", key, text)

    # -- where ids stand

    async def _places(self) -> None:
        for place in _SETS:
            await self._careful(f"the set {place}", self._set(place))
        for place in _LISTS:
            await self._careful(f"the list {place}", self._list(place))
        suspects, self._suspects = self._suspects, set()
        hints = await self.positions(suspects)
        await self._each(suspects, lambda job_id: self._one_place(job_id, hints.get(job_id, [])))

    async def _set(self, place: str) -> None:
        async for ids in self._set_pages(place):
            await self._without_hash(ids)

    async def _set_pages(self, place: str) -> AsyncIterator[list[bytes]]:
        start = 0
        while True:
            ids = await self.line.ask("ZRANGE", self.keys.key(place), str(start), str(start + _PAGE - 1))
            assert isinstance(ids, list)
            yield ids  # type: ignore[misc]
            if len(ids) < _PAGE:
                return
            start += _PAGE

    async def _list_pages(self, place: str) -> AsyncIterator[tuple[int, int, list[bytes]]]:
        """The ids of a list a page at a time, with the index of the first, and the list's length at that moment.

        What is added at the head meanwhile moves the end of a page into the next one: there it is passed over.
        """
        start, key, before = 0, self.keys.key(place), set[bytes]()
        while True:
            length, ids = await asyncio.gather(
                self.line.ask("LLEN", key), self.line.ask("LRANGE", key, str(start), str(start + _PAGE - 1))
            )
            assert isinstance(ids, list)
            assert isinstance(length, int)
            again = next((at for at, one in enumerate(ids) if one not in before), len(ids))
            yield start + again, length, ids[again:]  # type: ignore[misc]
            if len(ids) < _PAGE:
                return
            before = set(ids)  # type: ignore[arg-type]
            start += _PAGE

    async def _without_hash(self, ids: Sequence[bytes]) -> None:
        """Suspects what stands somewhere without a job."""
        if not ids or await self.line.ask("EXISTS", *(self._base + one for one in ids)) == len(ids):
            return
        for start in range(0, len(ids), _LOOK):
            for job_id, kind, *_ in await self._states(ids[start : start + _LOOK]):
                if kind == b"none":
                    self._suspects.add(job_id)

    async def _list(self, place: str) -> None:
        nowhere, standing = self.met.nowhere, self._standing
        async for _, _, ids in self._list_pages(place):
            odd = []
            for job_id in ids:
                if job_id in standing:
                    self._suspects.add(job_id)
                elif job_id in nowhere:
                    nowhere.remove(job_id)
                elif not job_id.startswith(b"0:"):  # what BullMQ 4 marked its lists with
                    odd.append(job_id)
                standing.add(job_id)
            for start in range(0, len(odd), _LOOK):
                for job_id, kind, places, *_ in await self._states(odd[start : start + _LOOK]):
                    if kind == b"other":
                        await self._wrong_type(job_id, place)
                    elif kind == b"none" or places:
                        self._suspects.add(job_id)

    async def _wrong_type(self, job_id: bytes, place: str) -> None:
        key = self.keys.job(decode_id(job_id))
        kind = await self.line.ask("TYPE", key)
        if isinstance(kind, bytes) and kind not in (b"hash", b"none"):
            self._tell(
                "job-of-wrong-type", job_id, f"{key}, a job in {place}, is a {kind.decode()}, and must be a hash"
            )

    async def positions(self, suspects: set[bytes]) -> dict[bytes, list[Argument]]:
        """Where suspects stand in lists that are too long for a script to search: list, index from the head, from the tail."""
        found: dict[bytes, list[Argument]] = defaultdict(list)
        for place in _LISTS if suspects else ():
            with contextlib.suppress(ServerError):  # of a wrong type: the script will say so
                length = await self.line.ask("LLEN", self.keys.key(place))
                if isinstance(length, int) and length > _PAGE:
                    async for start, length, ids in self._list_pages(place):
                        for at, job_id in enumerate(ids, start=start):
                            if job_id in suspects:
                                found[job_id] += (place, str(at), str(length - at))
        return found

    async def _one_place(self, job_id: bytes, hints: Sequence[Argument]) -> None:
        reply = await self.line.read("keepOnePlace-11", (job_id, "", *hints))
        assert isinstance(reply, list)
        kind, _, *found = reply
        places = [decode_id(one) for one in found if isinstance(one, bytes)]
        if kind == b"none" and places:
            text = f"{decode_id(job_id)!r} stands in {_several(places)}, and there is no such job"
            self._tell("ghost-id", job_id, text, ", ".join(places))
        elif kind == b"hash" and len(set(places)) > 1:
            text = f"job {decode_id(job_id)!r} stands in {_several(places)}, and must stand in one"
            self._tell("job-in-two-states", job_id, text, ", ".join(places))
        elif kind == b"hash" and len(places) > 1:
            text = f"job {decode_id(job_id)!r} stands {len(places)} times in {places[0]}"
            self._tell("id-twice-in-list", job_id, text, places[0])

    async def _lost(self) -> None:
        """Jobs that stood in no set and in no list: most have only moved."""
        moved = self.met.nowhere | self.met.partial
        ordered = list(moved - await names.foreign(self.line.ask, self.keys, moved))
        still: list[bytes] = []
        for start in range(0, len(ordered), _LOOK):
            looked = await self._states(ordered[start : start + _LOOK])
            still += [one for one, kind, places, *_ in looked if kind in (b"hash", b"part") and not places]
        way = heal.Way.of_line(self.line)
        for start in range(0, len(still), _LOST):
            for job_id, mark in await heal.lost_at_once(way, still[start : start + _LOST]):
                name = decode_id(job_id)
                if mark:
                    self._tell(
                        "job-in-no-state", job_id, f"job {name!r} stands in no state: no worker would come upon it"
                    )
                elif not job_id.startswith(b"repeat:"):
                    lacks = "lacks its name, data, options or time, and stands in no state"
                    self._tell("partial-job", job_id, f"the hash {self.keys.job(name)} {lacks}")

    async def _options(self) -> None:
        async def look(job_id: bytes) -> None:
            if await self.line.read("mendOptions-1", (job_id, "")):
                text = f"the options of job {decode_id(job_id)!r} are no JSON object: it fails when it is run"
                self._tell("unreadable-options", job_id, text)

        await self._each(self._optionless, look)

    # -- what belongs to jobs

    async def _parents(self) -> None:
        async for ids in self._set_pages("waiting-children"):
            await self._each(ids, self._parent)

    async def _parent(self, parent_id: bytes) -> None:
        key, name = self._base + parent_id + b":dependencies", decode_id(parent_id)
        cursor: Argument = b"0"
        pending = False
        while True:
            reply = await self.line.ask("SSCAN", key, cursor, "COUNT", "500")
            assert isinstance(reply, list)
            cursor, children = reply  # type: ignore[assignment]
            pending = pending or bool(children)
            for child in children:  # type: ignore[union-attr]
                assert isinstance(child, bytes)
                code = await self.line.read("releaseParent-1", (parent_id, child, ""))
                waits = f"parent {name!r} waits for its child {decode_id(child)}"
                if code == 2:
                    self._tell("missing-child", parent_id, f"{waits}, which is gone", child)
                elif code in (3, 4):
                    ended = "completed" if code == 3 else "failed"
                    self._tell("ended-child", parent_id, f"{waits}, which has {ended} and did not tell it", child)
            if cursor == b"0":
                break
        if not pending and await self.line.read("releaseParent-1", (parent_id, "", "")) == 1:
            self._tell("stuck-parent", parent_id, f"parent {name!r} waits for children, and all of them have ended")

    async def _deduplication(self) -> None:
        await self._each(self.met.held | self.met.kept, self._one_deduplication)

    async def _one_deduplication(self, deid: bytes) -> None:
        holders = self.met.holders.get(deid, [])[:_LOOK]
        reply = await self.line.read("freeDeduplication-11", (deid, "", *holders))
        assert isinstance(reply, list)
        dead, in_vain, owner, _ = reply
        name = decode_id(deid)
        if dead:
            assert isinstance(owner, bytes)
            text = f"the deduplication id {name!r} is held for ever by job {decode_id(owner)!r}, which has ended or is gone"
            self._tell("dead-deduplication-id", deid, text)
        if in_vain:
            text = f"a job that was kept to run after the one with the deduplication id {name!r} waits for none"
            self._tell("orphaned-next-job", deid, text)

    async def _parts(self) -> None:
        await self._each(self.met.parts, self._part)

    async def _part(self, both: tuple[bytes, bytes]) -> None:
        job_id, part = both
        name = decode_id(job_id)
        if part == b"lock":
            reply = await self.line.read("dropLock-1", (job_id, ""))
            assert isinstance(reply, list)
            if reply[0]:
                lasts = "for ever" if reply[1] == -1 else f"for another {_seconds(reply[1])} s"
                text = f"job {name!r} is locked {lasts}, and is not active"
                self._tell("lock-without-run", job_id, text)
            return
        if await self.line.read("dropPart-1", (job_id, part, "")):
            if not await names.foreign(self.line.ask, self.keys, [job_id]):
                key = f"{self.keys.job(name)}:{decode_id(part)}"
                self._tell("orphaned-part", job_id, f"{key} belongs to a job that is gone", part)
        elif part == b"logs" and (surplus := await self.line.read("holdLogs-1", (job_id, ""))):
            text = f"the log of job {name!r} has {surplus!r} lines more than its options let it keep"
            self._tell("logs-too-long", job_id, text)

    # -- the line

    async def _line(self) -> None:
        async for _, _, ids in self._list_pages("active"):
            locks = await self.line.ask("MGET", *(self._base + one + b":lock" for one in ids)) if ids else []
            assert isinstance(locks, list)
            await self._each(
                [one for one, lock in zip(ids, locks, strict=True) if lock is None], self._run_without_lock
            )
        state = await self._state_of_line()
        if state.set_aside and not state.paused:
            text = f"{state.set_aside} jobs stand in the list of a paused queue (BullMQ 5), and the queue is not paused"
            self._tell("jobs-in-paused-list", "paused", text)
        elif state.set_aside and state.waiting:
            text = f"{state.waiting} jobs stand in wait and {state.set_aside} in the list with which BullMQ 5 pauses"
            self._tell("two-waiting-lists", "paused", text)
        if state.due is not None and state.now - state.due > OVERDUE_MS:
            text = f"delayed jobs are due for {(state.now - state.due) / 1000:.0f} s, and no worker has looked"
            self._tell("overdue-jobs", "delayed", text)
        for _ in range(_LOOKS_FOR_MARKER):  # a worker that has just taken the marker fetches within moments
            if not state.lacks_marker:
                return
            await asyncio.sleep(_BETWEEN_LOOKS)
            before, state = state, await self._state_of_line()
            if (before.next_id, before.running) != (state.next_id, state.running):
                return  # somebody fetches
        if state.lacks_marker:
            text = f"{state.waiting + state.prioritized} jobs wait, and there is no marker that would wake a worker"
            self._tell("missing-marker", "marker", text)

    async def _run_without_lock(self, job_id: bytes) -> None:
        reply = await self.line.read("putBackAbandoned-9", (job_id, str(ABANDONED_MS), ""))
        assert isinstance(reply, list)
        if reply[0]:
            since = f"nobody has held its lock for {_seconds(reply[1])} s, and no worker sweeps"
            text = f"job {decode_id(job_id)!r} is active: {since}"
            self._tell("run-without-lock", job_id, text)

    async def _state_of_line(self) -> _LineState:
        reply = await self.line.read("lookAtLine-9", ())
        assert isinstance(reply, list)
        now, paused, waiting, set_aside, prior, running, closed, limited, marked, next_id, due = reply
        return _LineState(
            int(now), bool(paused), waiting, set_aside, prior, running, bool(closed), bool(limited), bool(marked), next_id,  # type: ignore[arg-type]
            int(due) if due else None,  # type: ignore[arg-type]
        )  # fmt: skip

    # -- schedules

    async def _schedules(self) -> None:
        put_away = await self.line.ask("HKEYS", self.keys.resolve("paused_schedulers"))
        assert isinstance(put_away, list)
        ids = self.met.definitions | {one for one in put_away if isinstance(one, bytes)}
        async for page in self._set_pages("repeat"):
            ids |= set(page)
        await self._each(ids, self._schedule)

    async def _schedule(self, scheduler_id: bytes) -> None:
        code, slot, flat = await self._look_at_schedule(scheduler_id)
        name = decode_id(scheduler_id)
        if code == 1 and not _LEGACY_SCHEDULE.fullmatch(scheduler_id):
            self._tell("slot-without-schedule", scheduler_id, f"{name!r} has a next run, and is no schedule")
        elif code == 2:
            self._tell("schedule-without-slot", scheduler_id, f"schedule {name!r} has no next run, and is not paused")
        elif code == 3 and not _is_over(slot, flat):
            text = f"the next run of schedule {name!r} is gone or has ended, and nothing makes another"
            self._tell("schedule-without-next-run", scheduler_id, text)

    async def _look_at_schedule(self, scheduler_id: bytes, act: str = "") -> tuple[int, float, list[Reply]]:
        reply = await self.line.read("shelveSchedule-15", (scheduler_id, act))
        assert isinstance(reply, list)
        code, slot, flat = reply
        return code, float(slot or 0), flat  # type: ignore[arg-type, return-value]

    # -- bounds

    async def _bounds(self) -> None:
        await self._careful("its event log", self._events())
        await self._careful("the records of its calls", self._calls())
        for place in ("completed", "failed"):
            count, rule = await asyncio.gather(
                self.line.ask("ZCARD", self.keys.key(place)), self.line.ask("HGET", self.keys.resolve("rules"), place)
            )
            if isinstance(count, int) and count > _KEPT and not _bounds(rule):
                self._tell("no-retention", place, f"{count:,} {place} jobs are kept, and nothing seems to bound them")

    async def _events(self) -> None:
        key = self.keys.key("events")
        length = await self.line.ask("XLEN", key)
        most = await self.line.ask("HGET", self.keys.key("meta"), "opts.maxLenEvents")
        limit = int(most) if isinstance(most, bytes) and most.isdigit() and len(most) < 16 else 10_000
        assert isinstance(length, int)
        if length > limit + EVENTS_SURPLUS:
            self._tell("events-too-long", "events", f"the event log has {length:,} entries, and is to have {limit:,}")
            return
        reply = await self.line.read("holdEventBytes-2", (str(EVENTS_TIMES), ""))
        assert isinstance(reply, list)
        surplus, size, may = reply
        if surplus:
            self._tell("events-too-large", "events", f"the event log takes {size!r} bytes, and is to take {may!r}")

    async def _calls(self) -> None:
        reply = await self.line.read("holdCalls-1", (str(MOST_LANES), ""))
        assert isinstance(reply, list)
        silent, size = reply
        if silent:
            text = f"there are {size!r} records of calls, and many of lanes that have been silent for an hour"
            self._tell("silent-lanes", "calls", text)

    async def _own_keys(self) -> None:
        await self._each(self.met.own, self._own_key)

    async def _own_key(self, suffix: str) -> None:
        if suffix == "outbox":
            await self._outbox()
        name = suffix.partition(":")[0]
        if name not in LEFT_BEHIND:
            return
        key = self.keys.own_base + suffix
        code = await self.line.read("holdOwnKey-3", (key, "" if name in EXPIRING else "1", ""))
        if code == 1:
            self._tell("own-key-without-expiry", suffix, f"{key} has no expiry: it would stay for ever")
        elif code == 2:
            self._tell("leftover-own-key", suffix, f"{key} has no expiry, and there is no queue of this name any more")

    async def _outbox(self) -> None:
        first, time = await asyncio.gather(
            self.line.ask("XRANGE", self.keys.resolve("outbox"), "-", "+", "COUNT", "1"), self.line.ask("TIME")
        )
        assert isinstance(time, list)
        match first:
            case [[bytes() as entry, _]]:
                waits = int(time[0]) - int(entry.partition(b"-")[0]) // 1000  # type: ignore[arg-type]
                if waits > _FORWARDED_IN:
                    count = await self.line.ask("XLEN", self.keys.resolve("outbox"))
                    text = f"{count!r} outcomes wait to be forwarded to a results queue, the oldest for {waits} s"
                    self._tell("outcomes-not-forwarded", "outbox", text)

    # -- facts

    async def _facts(self, oldest_waiting: float | None) -> QueueFacts:
        counts = await read.counts(self.line, JOB_STATES)
        paused = await read.is_paused(self.line)
        oldest, age = await self._oldest()
        if oldest is not None and age is not None and oldest_waiting is not None and age > oldest_waiting:
            text = f"job {oldest!r} has waited for {age:,.0f} s"
            self._tell("old-waiting-job", oldest, text)
        memory = await self._careful("its memory", self._memory(sum(counts.values())))
        seen = await self._careful("its workers", presence.workers(self.line))
        workers = None if seen is None else len(seen)
        return QueueFacts(self.keys.queue, counts, paused, workers, oldest, age, memory)

    async def _oldest(self) -> tuple[str | None, float | None]:
        """Of those that would run next, the job that has waited longest, and for how many seconds."""
        wait, prioritized, time = await asyncio.gather(
            self.line.ask("LRANGE", self.keys.key("wait"), "-10", "-1"),
            self.line.ask("ZRANGE", self.keys.key("prioritized"), "0", "9"),
            self.line.ask("TIME"),
        )
        assert isinstance(wait, list)
        assert isinstance(prioritized, list)
        assert isinstance(time, list)
        now = int(time[0])  # type: ignore[arg-type]
        oldest: tuple[float, str] | None = None
        for job_id in [*wait, *prioritized]:
            assert isinstance(job_id, bytes)
            try:
                found = await self.line.ask("HMGET", self._base + job_id, "timestamp", "processedOn", "opts")
            except ServerError:  # no hash: a finding of its own
                continue
            since = _waits_since(found)
            if since is not None and (oldest is None or since < oldest[0]):
                oldest = since, decode_id(job_id)
        return (None, None) if oldest is None else (oldest[1], max(0.0, now - oldest[0]))

    async def _memory(self, jobs: int) -> int | None:
        """Bytes, by samples."""
        keys = [self.keys.key(name) for name in sorted(self.met.known)]
        sizes = await asyncio.gather(*(self.line.ask("MEMORY", "USAGE", key, "SAMPLES", "5") for key in keys))
        some = [*(await self._some_jobs())]
        of_jobs = await asyncio.gather(*(self.line.ask("MEMORY", "USAGE", key, "SAMPLES", "5") for key in some))
        known = [size for size in of_jobs if isinstance(size, int)]
        mean = sum(known) / len(known) if known else 0
        return sum(size for size in sizes if isinstance(size, int)) + round(mean * jobs)

    async def _some_jobs(self) -> list[bytes]:
        found: list[bytes] = []
        for place in _SETS:
            ids = await self.line.ask("ZRANGE", self.keys.key(place), "0", "9")
            assert isinstance(ids, list)
            found += [self._base + one for one in ids if isinstance(one, bytes)]
        for place in _LISTS:
            ids = await self.line.ask("LRANGE", self.keys.key(place), "0", "9")
            assert isinstance(ids, list)
            found += [self._base + one for one in ids if isinstance(one, bytes)]
        return found


@dataclass(frozen=True, slots=True)
class _LineState:
    now: int
    paused: bool
    waiting: int
    set_aside: int
    prioritized: int
    running: int
    closed: bool
    limited: bool
    marked: bool
    next_id: bytes
    due: int | None

    @property
    def lacks_marker(self) -> bool:
        return bool(self.waiting + self.prioritized) and not (self.closed or self.limited or self.marked)
