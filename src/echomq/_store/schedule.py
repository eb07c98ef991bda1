"""Schedules: the next iteration is made when one starts, by the worker that starts it (protocol 3.24)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from echomq import _cron
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Lane, Patience
from echomq._store.codec import StoredJob, moment_ms, to_moment
from echomq.errors import InvalidOption

_ADVANCE = "advanceScheduler-15"
_FROM_SCRIPT = ("jobId", "delay", "timestamp", "prevMillis")
_TAKEN = 2
_TRIES = 32


class Schedules:
    """Advances schedules, through a lane of its own."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._turn = asyncio.Lock()

    async def advance(self, job: StoredJob, patience: Patience) -> None:
        """Makes the iteration that follows this job, if it is the current one of a schedule that goes on.

        Raises:
            InvalidOption: its pattern, time zone or end cannot be read.
        """
        scheduler_id = job.text(b"rjk")
        repeat = job.opts.raw.get("repeat")
        if scheduler_id is None:
            return
        if not isinstance(repeat, dict):
            repeat = {}
        count = int(_number(repeat.get("count")) or 0) + 1
        limit, end = _number(repeat.get("limit")), _instant_ms(repeat.get("endDate"))
        now = job.number(b"processedOn")  # the server's now, at the fetch
        if (limit is not None and count > limit) or (end is not None and now > end):
            return
        opts = {key: value for key, value in job.opts.raw.items() if key not in _FROM_SCRIPT}
        opts["repeat"] = {**repeat, "count": count}
        opts["repeatJobKey"] = scheduler_id
        text = json.dumps(opts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
        every, offset = _number(repeat.get("every")), _number(repeat.get("offset"))
        pattern, zone = repeat.get("pattern"), repeat.get("tz")
        after = max(now, int(_number(job.opts.raw.get("prevMillis")) or 0))
        for _ in range(_TRIES):
            next_ms = ""
            if isinstance(pattern, str):
                after = _next_of(pattern, after, zone if isinstance(zone, str) else None)
                next_ms = str(after)
            args = (scheduler_id, job.id, next_ms, _text(every), _text(offset), str(job.number(b"priority")), text)
            reply = await self._called(args, patience)
            assert isinstance(reply, list)
            if reply[1] != _TAKEN or not next_ms:
                return

    async def _called(self, args: Sequence[Argument], patience: Patience) -> Reply:
        """A run may be cancelled at any moment; its call in the lane may not, and goes on behind a shield."""

        async def call() -> Reply:
            async with self._turn:
                return await self._lane.call(_ADVANCE, args, patience)

        return await asyncio.shield(asyncio.create_task(call(), name="echomq schedule"))


def _next_of(pattern: str, after_ms: int, zone: str | None) -> int:
    return moment_ms(_cron.successor(pattern, to_moment(after_ms), zone))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _instant_ms(value: Any) -> float | None:
    """A date as Node stores it: milliseconds, or ISO text."""
    if not isinstance(value, str):
        return _number(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        raise InvalidOption(f"endDate {value!r} has no time zone")
    return float(moment_ms(moment))
