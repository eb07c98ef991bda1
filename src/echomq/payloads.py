"""How data and results stand on the server: compressed, encrypted, or in a store of large payloads (docs/payloads.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from echomq._payloads import Codec, Compressed, Encrypted, FileStore, Offloaded, PayloadStore, S3Store
from echomq._store.payloads import places_in_use
from echomq.connection import Connection
from echomq.errors import InvalidOption
from echomq.options import Duration, OnProgress, check_on_progress, shown, to_seconds

__all__ = ["Codec", "Compressed", "Encrypted", "FileStore", "Offloaded", "PayloadStore", "S3Store", "collect"]

_DAY: Final = timedelta(days=1)


async def collect(
    store: PayloadStore,
    connections: Connection | str | Sequence[Connection | str],
    *,
    older_than: Duration = _DAY,
    on_progress: OnProgress | None = None,
) -> int:
    """Removes from a store what no job means any more: of jobs that are gone, and of adds that came to nothing.

    All keys of the servers are walked, twice, in bounded steps; every queue counts, whatever its prefix. Run it by hand, or from
    a schedule, at quiet hours.

    Args:
        store: the store.
        connections: *all* servers (and databases) with jobs whose payloads are in it: each a ``Connection`` or a URL.
        older_than: seconds, or a ``timedelta``: what was put there later stays, as its job may be on its way.
        on_progress: is called after each removal with how many there have been; what it raises ends this.

    Returns:
        How many payloads were removed.

    Raises:
        InvalidOption: an argument breaks a rule.
        UnsupportedServer: a server is a node of a cluster. ServerUnavailable: a server could not be asked; nothing was removed.
        Whatever the store raises: a part was removed; call it again.

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
    servers = [Connection.of(one) for one in given]

    def old() -> set[str]:
        return {key for key, put in store.entries() if put < before}

    doomed = await asyncio.to_thread(old)
    for _ in range(2):  # a job that goes from one queue to another may be missed in one walk
        for server in servers:
            if doomed:
                doomed -= await _in_use(server)
    removed = 0
    for key in sorted(doomed):
        await asyncio.to_thread(store.delete, key)
        removed += 1
        tell(removed)
    return removed


async def _in_use(server: Connection) -> set[str]:
    hub = server.acquire()
    try:
        return await places_in_use(hub)
    finally:
        await hub.release()
