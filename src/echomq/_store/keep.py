"""Keeping: locks renewed, jobs of dead workers put back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from echomq._lua.loader import script
from echomq._redis.client import Link
from echomq._redis.heartbeat import HeartbeatLink
from echomq._redis.wire import Argument, Reply
from echomq._store.call import Lane, Patience, explain, run_script
from echomq._store.codec import backoff_opts, id_out, pack, to_ms
from echomq._store.keys import QueueKeys
from echomq._store.presence import NOBODY, Present
from echomq.errors import ServerError
from echomq.options import Backoff

_EXTEND = "extendLocks-2"
_SWEEP = "moveStalledJobsToWait-14"
_TAKE_FROM_DEAD = "takeFromDead-10"
_MOST = 1000


def extend_locks(
    link: HeartbeatLink, keys: QueueKeys, held: Sequence[tuple[str, str, bytes]], lock_duration: float, timeout: float
) -> list[str]:
    """Renews the locks of (job id, token, ``StoredJob.run``); returns the ids that are lost. For the heartbeat's thread."""
    lost: list[str] = []
    for start in range(0, len(held), _MOST):
        args = [keys.base, "", *_extend_args(held[start : start + _MOST], lock_duration)]
        reply = _call_sync(link, keys, _EXTEND, args, timeout)
        lost.extend(job_id.decode("utf-8", "surrogateescape") for job_id in reply)  # type: ignore[union-attr]
    return lost


async def extend_locks_now(
    link: Link, keys: QueueKeys, held: Sequence[tuple[str, str, bytes]], lock_duration: float
) -> list[str]:
    """The same from the event loop, once an outage is over."""
    lost: list[str] = []
    for start in range(0, len(held), _MOST):
        reply = await run_script(link, _EXTEND, keys, _extend_args(held[start : start + _MOST], lock_duration))
        lost.extend(job_id.decode("utf-8", "surrogateescape") for job_id in reply)  # type: ignore[union-attr]
    return lost


def _extend_args(held: Sequence[tuple[str, str, bytes]], lock_duration: float) -> list[Argument]:
    args: list[Argument] = [str(to_ms(lock_duration)), str(len(held))]
    for job_id, token, run in held:
        args += (id_out(job_id), token, run)
    return args


def _call_sync(link: HeartbeatLink, keys: QueueKeys, name: str, args: list[Argument], timeout: float) -> list[Reply]:
    called = script(name)
    names = [keys.resolve(key) for key in called.keys]
    command: list[Argument] = ["EVALSHA", called.sha, str(len(names)), *names, *args]
    try:
        try:
            reply = link.call(*command, timeout=timeout)
        except ServerError as error:
            if error.code != "NOSCRIPT":
                raise
            link.call("SCRIPT", "LOAD", called.source, timeout=timeout)
            reply = link.call(*command, timeout=timeout)
    except ServerError as error:
        raise explain(error, called) from None
    assert isinstance(reply, list)
    return reply


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep did.

    Attributes:
        recovered: ids of jobs that went back to wait.
        next_in: seconds until the next sweep may begin.
        in_outbox: how many outcomes wait there to be forwarded.
    """

    recovered: list[str]
    next_in: float
    in_outbox: int


_LONGEST_CRASH_PAUSE = 3_600.0


async def sweep(
    lane: Lane,
    interval: float,
    max_stalled: int,
    confirm: float,
    patience: Patience,
    crash_backoff: Backoff | None = None,
    present: Present = NOBODY,
    last_rules: Mapping[str, tuple[int | None, str]] = MappingProxyType({}),
) -> Sweep:
    """Puts jobs back whose worker has died (protocol 3.22), unless another sweeper has just done so.

    A job without a lock is looked at again after ``confirm`` seconds before it goes back (docs/architecture.md). One that has
    stalled more than ``max_stalled`` times is to fail, or, with a ``crash_backoff``, to wait. Then those finished jobs go that
    are not to be kept any longer. Whoever sweeps, the call says that the worker which makes it is ``present``, and when (by the
    server's clock) and by which rule its last jobs ended, for "completed" and for "failed": ``last_rules``.
    """
    crash = _packed(crash_backoff)
    last = ["{}:{}".format(*last_rules[target]) if target in last_rules else "" for target in ("completed", "failed")]
    step = removals = 0
    recovered: list[str] = []
    while True:
        args: list[Argument] = [str(to_ms(interval)), str(max_stalled), str(to_ms(confirm)), str(step), crash]
        args += (*present.args, *last)
        reply = await lane.call(_SWEEP, args, patience)
        assert isinstance(reply, list)
        left, step, in_outbox = int(reply[1]), int(reply[2]), int(reply[3])  # type: ignore[arg-type]
        recovered += [job_id.decode("utf-8", "replace") for job_id in reply[_HEAD:]]  # type: ignore[union-attr]
        removals += step == _REMOVE
        if step == 0 or removals > _MOST_REMOVALS:
            return Sweep(recovered, max(left, 0) / 1000, in_outbox)
        if step == _CONFIRM and len(reply) == _HEAD:
            await asyncio.sleep(confirm)


def _packed(crash_backoff: Backoff | None) -> bytes:
    if crash_backoff is None:
        return b""
    longest = to_ms(max(crash_backoff.delay, _LONGEST_CRASH_PAUSE))
    return pack({**backoff_opts(crash_backoff), "longest": longest})


async def take_from_dead(
    lane: Lane, owner: str, max_stalled: int, patience: Patience, crash_backoff: Backoff | None = None
) -> list[str]:
    """Puts back at once what a process had in hand that its caller saw die, counted as ``sweep`` counts it; returns the ids.

    The ids of that process's lanes, and of no others, begin with ``owner``.

    Raises:
        ServerUnavailable, ConnectionLost: patience ended.
    """
    recovered: list[str] = []
    start = 0
    while start >= 0:
        args: list[Argument] = [owner, str(max_stalled), _packed(crash_backoff), str(start)]
        reply = await lane.call(_TAKE_FROM_DEAD, args, patience)
        assert isinstance(reply, list)
        start = int(reply[1])  # type: ignore[arg-type]
        recovered += [job_id.decode("utf-8", "replace") for job_id in reply[2:]]  # type: ignore[union-attr]
    return recovered


_CONFIRM, _REMOVE = -2, -3
_HEAD = 4
_MOST_REMOVALS = 100
"""Steps of one sweep that remove what is not to be kept. The rest is for the next one: stalled jobs come first."""
