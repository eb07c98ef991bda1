"""Healing in mixed fleets: where a BullMQ 5 shares the queue, jobs that it dropped are looked for and put back."""

from __future__ import annotations

import asyncio
import random

from echomq._log import logger
from echomq._redis.client import Link
from echomq._store.call import Lane
from echomq._store.heal import Way, heal, put_off, wanted
from echomq._store.keys import QueueKeys
from echomq.errors import ConnectionLost, EchoMQError, ServerUnavailable
from echomq.models import Healed

EVERY = 180.0
"""Seconds between two looks, whoever of the fleet makes them."""

_SHARE = 0.02
"""The share of the time that may go into looking, where there is much to look at."""

_NAMED = 100


class Healer:
    """Looks for lost jobs from time to time, while a BullMQ 5 is about. In other fleets it asks whether one is, and no more.

    Args:
        keys: the queue's.
        link, lane: its way to the server; the lane is its own.
    """

    def __init__(self, keys: QueueKeys, link: Link, lane: Lane) -> None:
        self._queue = keys.queue
        self._way = Way.of_lane(keys, link, lane)

    async def run(self) -> None:
        """Heals until cancelled."""
        while True:
            await asyncio.sleep(EVERY * (0.5 + random.random()))  # apart from the other workers; no secret
            try:
                await self.tick()
            except (ConnectionLost, ServerUnavailable):
                pass  # others tell of it
            except EchoMQError as error:
                logger.error("queue %s cannot be looked through for lost jobs: %s", self._queue, error)

    async def tick(self) -> Healed | None:
        """One look, if a version 5 is about and it is nobody else's turn."""
        if not await wanted(self._way, EVERY):
            return None
        loop = asyncio.get_running_loop()
        began = loop.time()
        healed = await heal(self._way)
        self._tell(healed)
        await put_off(self._way, max(EVERY, (loop.time() - began) / _SHARE))
        return healed

    def _tell(self, healed: Healed) -> None:
        ids = [job_id for ids in healed.put_back.values() for job_id in ids]
        for start in range(0, len(ids), _NAMED):
            named = ids[start : start + _NAMED]
            logger.warning(
                "queue %s: %d jobs had been dropped from every list, as BullMQ 5 does when it pauses and resumes; they are "
                "back: %s (docs/mixed-fleets.md)",
                self._queue,
                len(named),
                ", ".join(named),
                extra={"queue": self._queue, "job_ids": named},
            )
        if healed.broken:
            logger.warning(
                "queue %s: %d hashes are no whole jobs, and stand in no state: %s",
                self._queue,
                len(healed.broken),
                ", ".join(healed.broken[:_NAMED]),
                extra={"queue": self._queue},
            )
