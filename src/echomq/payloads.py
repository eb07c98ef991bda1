"""How data and results stand on the server: compressed, encrypted, or in a store of large payloads (docs/payloads.md)."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from echomq._payloads import (
    LIMIT,
    Codec,
    Compressed,
    Encrypted,
    FileStore,
    Offloaded,
    PayloadStore,
    S3Store,
    StoreThreads,
)
from echomq._store.payloads import places_in_use
from echomq.connection import Connection
from echomq.errors import InvalidOption
from echomq.options import Duration, OnProgress, check_on_progress, shown, to_seconds

__all__ = ["Codec", "Compressed", "Encrypted", "FileStore", "Offloaded", "PayloadStore", "S3Store", "collect"]

_DAY: Final = timedelta(days=1)
_A_STEP: Final = 1.0
"""Seconds for which the entries of a store are read at once, so that a store which gives them slowly is not one that hangs."""


async def collect(
    store: PayloadStore,
    connections: Connection | str | Sequence[Connection | str],
    *,
    older_than: Duration = _DAY,
    timeout: Duration = LIMIT,
    on_progress: OnProgress | None = None,
) -> int:
    """Removes from a store what no job means any more: of jobs that are gone, and of adds that came to nothing.

    All keys of the servers are walked, twice, in bounded steps; every queue counts, whatever its prefix. Run it by hand, or from
    a schedule, at quiet hours.

    Args:
        store: the store.
        connections: *all* servers (and databases) with jobs whose payloads are in it: each a ``Connection`` or a URL.
        older_than: seconds, or a ``timedelta``: what was put there later stays, as its job may be on its way.
        timeout: seconds, or a ``timedelta``, that the store has to name some of its entries, or to remove one; as for
            ``Offloaded``.
        on_progress: is called after each removal with how many there have been; what it raises ends this.

    Returns:
        How many payloads were removed.

    Raises:
        InvalidOption: an argument breaks a rule.
        UnsupportedServer: a server is a node of a cluster. ServerUnavailable: a server could not be asked; nothing was removed.
        StoreUnavailable: the store has not answered in time. This, and whatever the store raises: a part was removed; call it
        again.

    Example:
        >>> await collect(FileStore("/mnt/payloads"), "redis://localhost:6379/0")
        12
    """
    if not isinstance(store, PayloadStore):
        raise InvalidOption(f"store={shown(store)}: must be a FileStore, an S3Store, or a PayloadStore of your own")
    before = datetime.now(UTC) - timedelta(seconds=to_seconds(older_than, "older_than"))
    tell = check_on_progress(on_progress)
    given = [connections] if isinstance(connections, (Connection, str)) else list(connections)
    if not given:
        raise InvalidOption("connections=[]: name all servers whose jobs use the store")
    threads = StoreThreads(repr(store), to_seconds(timeout, "timeout", least=0.001))
    servers = [Connection.of(one) for one in given]
    doomed = await _put_before(store, before, threads)
    for _ in range(2):  # a job that goes from one queue to another may be missed in one walk
        for server in servers:
            if doomed:
                doomed -= await _in_use(server)
    removed = 0
    for key in sorted(doomed):
        await threads.run(functools.partial(store.delete, key))
        removed += 1
        tell(removed)
    return removed


async def _put_before(store: PayloadStore, moment: datetime, threads: StoreThreads) -> set[str]:
    """What was put into it before this moment."""
    found: set[str] = set()
    entries = await threads.run(lambda: iter(store.entries()))
    step = min(_A_STEP, threads.limit / 2)

    def read_some() -> bool:
        """Whether there may be more."""
        until = time.monotonic() + step
        for key, put in entries:
            if put < moment:
                found.add(key)
            if time.monotonic() > until:
                return True
        return False

    while await threads.run(read_some):
        pass
    return found


async def _in_use(server: Connection) -> set[str]:
    hub = server.acquire()
    try:
        return await places_in_use(hub)
    finally:
        await hub.release()
