"""The doctor's round: the server, then one walk over all names, then queue after queue."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store import mending
from echomq._store.call import Patience, read_command
from echomq._store.codec import decode_id, id_out
from echomq._store.examining import belongings, facts, growth, jobs
from echomq._store.examining import line as the_line
from echomq._store.examining.ward import Ward
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.names import pattern, scan
from echomq._store.server_health import Checkup
from echomq.connection import Connection
from echomq.errors import InvalidOption, ServerError
from echomq.findings import KINDS, Finding, QueueFacts, Report, ServerFacts

_PAGE: Final = 500
_TAGGED: Final = re.compile(r"\{([^{}]+)\}(-dead)?")


class Round:
    """One examination of one server.

    Args:
        connection: to which server.
        prefix, hash_tag: of the queues.
        oldest_waiting: seconds that a job may wait; None for any time.
        on_progress: is told how many jobs have been looked at.
    """

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        hash_tag: bool | None,
        oldest_waiting: float | None,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._hash_tag = hash_tag
        self._oldest_waiting = oldest_waiting
        self._on_progress = on_progress
        self._findings: list[Finding] = []
        self._missed: list[str] = []
        self._passed = 0
        self._wards: dict[bytes, Ward | None] = {}

    async def examine(self, queues: Sequence[str]) -> Report:
        """Looks at these queues, or at all that there are."""
        hub = self._connection.acquire()
        try:
            link = await hub.new_link()
            try:
                server = await Checkup(link, self._findings.append, self._missed.append).examine()
                if any(found.kind in ("replica", "cluster-down") for found in self._findings):
                    return self._report(server, [])
                patience = Patience(hub.wait, hub.look_after)
                try:
                    facts = await self._queues(link, patience, queues)
                finally:
                    for ward in self._wards.values():
                        if ward is not None:
                            await ward.line.close()
            finally:
                await link.close()
        finally:
            await hub.release()
        return self._report(server, facts)

    def _report(self, server: ServerFacts, facts: list[QueueFacts]) -> Report:
        order = list(KINDS)
        self._findings.sort(key=lambda found: (found.severity, order.index(found.kind), found.queue))
        return Report(self._findings, server, sorted(facts, key=lambda one: one.queue), self._missed)

    async def _queues(self, link: Link, patience: Patience, queues: Sequence[str]) -> list[QueueFacts]:
        for queue in queues:
            keys = QueueKeys.of(queue, prefix=self._prefix, hash_tag=self._hash_tag)
            self._ward(keys)
            if keys.hash_tag:
                self._ward(keys.dead_letters)
        await self._walk(link, patience, all_queues=not queues)
        return [facts for name in list(self._wards) if (facts := await self._examined(name)) is not None]

    async def _examined(self, name: bytes) -> QueueFacts | None:
        ward = self._wards[name]
        if ward is None:
            return None
        found = await _examine(ward, self._oldest_waiting)
        self._wards[name] = None  # what it has met may be much
        await ward.line.close()
        return found

    def _ward(self, keys: QueueKeys) -> Ward:
        name = id_out(keys.protocol_name)
        found = self._wards.get(name)
        if found is None:
            line = Line(self._connection.acquire(), keys)
            found = self._wards[name] = Ward(line, self._findings.append, self._missed.append, self._count)
        return found

    def _count(self, jobs: int) -> None:
        self._passed += jobs
        if self._on_progress is not None:
            self._on_progress(self._passed)

    async def _walk(self, link: Link, patience: Patience, *, all_queues: bool) -> None:
        """Each ward meets the names that begin like its keys. They are read once, however many queues there are."""
        theirs, ours = id_out(f"{self._prefix}:"), id_out(f"{self._prefix}x:")
        async for names in self._names(link, patience):
            for key in names:
                start = theirs if key.startswith(theirs) else ours
                queue, _, suffix = key[len(start) :].partition(b":")
                if not key.startswith(start) or not suffix or not queue:
                    continue
                if queue not in self._wards:
                    keys = all_queues and _keys_named(decode_id(queue), prefix=self._prefix, hash_tag=self._hash_tag)
                    self._wards[queue] = None
                    if keys:
                        self._ward(keys)
                ward = self._wards[queue]
                if ward is not None:
                    await ward.meet(key)

    async def _names(self, link: Link, patience: Patience) -> AsyncIterator[list[bytes]]:
        async def read(*command: Argument) -> Reply:
            return await read_command(link, command, patience)

        try:
            async for names in scan(read, pattern(self._prefix), count=_PAGE):
                yield names
        except ServerError as error:
            self._missed.append(f"the names of all keys: {error}")


def _keys_named(name: str, *, prefix: str, hash_tag: bool | None) -> QueueKeys | None:
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


async def _examine(ward: Ward, oldest_waiting: float | None) -> QueueFacts | None:
    """Looks at all of a queue. What cannot be read is said, and does not keep the rest from being looked at."""
    if not await ward.is_here():
        return None
    await ward.careful("its jobs", ward.look_at_jobs())
    if not ward.is_a_queue:
        await ward.careful("the keys of our own", growth.own_keys(ward))
        return None
    await ward.careful("the types of its keys", ward.types())
    await ward.careful("its lists and sets", jobs.places(ward))
    await ward.careful("its options", jobs.options(ward))
    await ward.careful("its jobs in no state", jobs.lost(ward))
    await ward.careful("parents", belongings.parents(ward))
    await ward.careful("deduplication ids", belongings.deduplication(ward))
    await ward.careful("locks and parts of jobs", belongings.parts(ward))
    await ward.careful("its line", the_line.line(ward))
    await ward.careful("its schedules", the_line.schedules(ward))
    await ward.careful("its bounds", growth.bounds(ward))
    await ward.careful("the keys of our own", growth.own_keys(ward))
    return await ward.careful("its facts", facts.facts(ward, oldest_waiting))


async def fix(connection: Connection, prefix: str, hash_tag: bool | None, finding: Finding) -> int:
    """Repairs a finding, if it is still so."""
    if not finding.queue:
        raise InvalidOption(f"finding {finding.kind}: nothing repairs that by itself: {finding.remedy}")
    keys = QueueKeys.of(finding.queue, prefix=prefix, hash_tag=hash_tag)
    line = Line(connection.acquire(), keys.dead_letters if finding.dead_letters else keys)
    try:
        return await mending.fix(line, finding)
    finally:
        await line.close()
