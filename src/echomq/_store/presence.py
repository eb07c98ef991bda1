"""Which workers there are: those of any runtime by the names of their connections (protocol 11.2), ours by what they say.

Each worker of ours has a record in a hash of our own, which its sweep renews (``lib/workers_seen.lua``). What it runs is not in
there, as that would always be late: the jobs in ``active`` say whose they are.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from echomq._redis.client import Link
from echomq._redis.wire import Argument, Reply
from echomq._store.codec import decode_id, to_moment, to_ms
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq.errors import ServerError, ServerUnavailable
from echomq.models import CurrentJob, WorkerInfo

LONGEST_SILENCE = 60.0
"""Seconds after which a worker says again that it is there, however seldom it sweeps."""

_KEY = "workers"
_SEEN = b"seen"
_ON_SOCKET = re.compile(r"\[?(/.*?)(?::0)?\]?:0")
"""How servers write where a client of a unix socket is connected: its path, and ports that there are not."""
_NOT_PLAIN = re.compile(r"[^!-~]")
COMMANDS = b" cmd=evalsha "
"""Of the two connections of a worker of BullMQ for Python, which have one name, the one that is not counted."""

_RECORD = re.compile(rb"(\d+):(\d+):(.*)", re.DOTALL)
_PAGE = 500
_MOST_JOBS = 10_000


def plain(name: str) -> str:
    """A name without what a server refuses in client names (blanks, control characters), so that the worker stays visible."""
    return _NOT_PLAIN.sub("_", name)


class Record(msgspec.Struct, frozen=True):
    """What a worker of ours says of itself. ``up`` and ``lag`` are milliseconds; the server's clock says the rest."""

    name: str
    host: str
    pid: int
    version: str
    python: str
    slots: int
    paused: bool
    up: int
    lag: int
    going_on: int = 0


@dataclass(frozen=True, slots=True)
class Present:
    """A worker's word that it is there.

    Attributes:
        id: of this run of the worker.
        record: what it says of itself; None: nobody is there.
        lives: seconds for which that holds.
    """

    id: str
    record: Record | None
    lives: float

    @property
    def args(self) -> tuple[Argument, ...]:
        """As the sweep takes it."""
        if self.record is None:
            return ("", "", "0")
        return (self.id, msgspec.json.encode(self.record), str(to_ms(self.lives)))


NOBODY = Present("", None, 0.0)


async def leave(link: Link, keys: QueueKeys, present_id: str) -> None:
    """Takes a worker's record out. That it was there until now stays known."""
    await link.call("HDEL", keys.resolve(_KEY), present_id)


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Client:
    """A worker's connection, as CLIENT LIST shows it.

    Attributes:
        worker: the worker's name; empty where the connection has a name without it.
        idle: seconds since it was used.
        counts: whether it is the one of its worker's connections by which workers are counted.
    """

    worker: str
    address: str
    idle: int
    library: str | None
    counts: bool


async def workers(line: Line) -> list[WorkerInfo]:
    """Every worker of the queue, in any runtime, by name."""
    clients, records, (now, running) = await asyncio.gather(_clients(line), _records(line), _running(line))
    unclaimed: defaultdict[str, list[_Client]] = defaultdict(list)
    for client in clients or ():
        if client.counts:
            unclaimed[client.worker].append(client)
    found = []
    for at, until, record in records:
        if until > now:
            same = unclaimed[plain(record.name)]
            ours = _ours(line.keys, record, at, running.get(record.name, ()), same.pop() if same else None, now)
            found.append(ours if clients is not None else msgspec.structs.replace(ours, is_connected=None))
    for same in unclaimed.values():
        found += [_others(line.keys, client, running.get(client.worker, ()), now) for client in same]
    return sorted(found, key=lambda one: (one.name, one.host or "", one.pid or 0, one.address or ""))


def _ours(
    keys: QueueKeys, record: Record, at: int, jobs: tuple[CurrentJob, ...], client: _Client | None, now: int
) -> WorkerInfo:
    return WorkerInfo(
        queue=keys.queue,
        name=record.name,
        is_connected=client is not None,
        last_seen=to_moment(at if client is None else max(at, now - client.idle * 1000)),
        started_at=to_moment(at - record.up),
        address=None if client is None else client.address,
        library=None if client is None else client.library,
        host=record.host,
        pid=record.pid,
        version=record.version,
        python=record.python,
        slots=record.slots,
        paused=record.paused,
        loop_lag=record.lag / 1000,
        going_on=record.going_on,
        jobs=jobs,
    )


def _others(keys: QueueKeys, client: _Client, jobs: tuple[CurrentJob, ...], now: int) -> WorkerInfo:
    return WorkerInfo(
        queue=keys.queue,
        name=client.worker,
        is_connected=True,
        last_seen=to_moment(now - client.idle * 1000),
        address=client.address,
        library=client.library,
        jobs=jobs,
    )


async def seen(line: Line) -> tuple[frozenset[str] | None, datetime | None]:
    """The names, made plain, of the workers of any runtime that are connected, and when one was last there: now, if one is.

    The first is None where the server does not say, the second where none of ours was there in the last day. Among the names is
    the empty one if the connection of a worker does not tell its name.
    """
    clients, last, time = await asyncio.gather(
        _clients(line), line.ask("HGET", line.keys.resolve(_KEY), _SEEN), line.ask("TIME")
    )
    if clients:
        assert isinstance(time, list)
        return frozenset(client.worker for client in clients), to_moment(int(time[0]) * 1000)  # type: ignore[arg-type]
    moment = to_moment(int(last)) if isinstance(last, bytes) and last.isdigit() else None
    return None if clients is None else frozenset(), moment


async def _clients(line: Line) -> list[_Client] | None:
    """The named connections of workers, or None: the server or our rights do not let us ask, or they go without names."""
    name = line.keys.client_name()
    if name is None:
        return None
    try:
        reply = await line.ask("CLIENT", "LIST", "TYPE", "normal")
    except ServerUnavailable:
        raise
    except ServerError:
        return None
    assert isinstance(reply, bytes)
    either = rb"(?:%b|(%b))" % (re.escape(name.encode()), re.escape(line.keys.bare_client_name.encode()))
    of_workers = re.compile(rb"^.* name=" + either + rb"(?::w:(\S*))? .*$", re.MULTILINE)
    return [
        _client(found[0], found[2] or b"", not (found[1] and COMMANDS in found[0]))
        for found in of_workers.finditer(reply)
    ]


def _address(told: str) -> str:
    on_socket = _ON_SOCKET.fullmatch(told)
    return on_socket[1] if on_socket else told


def _client(line: bytes, worker: bytes, counts: bool) -> _Client:
    fields = dict(part.partition("=")[::2] for part in line.decode("utf-8", "replace").split(" "))
    library = " ".join(filter(None, (fields.get("lib-name"), fields.get("lib-ver"))))
    return _Client(
        worker.decode("utf-8", "replace"),
        _address(fields.get("addr", "")),
        int(fields.get("idle", "0")),
        library or None,
        counts,
    )


async def _records(line: Line) -> list[tuple[int, int, Record]]:
    """What our workers say: when, until when it holds, and what. Entries that are none of ours are passed over."""
    found: dict[bytes, bytes] = {}
    cursor = b""
    while cursor != b"0":
        reply: Any = await line.ask("HSCAN", line.keys.resolve(_KEY), cursor or b"0", "COUNT", str(_PAGE))
        cursor, flat = reply
        found.update(zip(flat[::2], flat[1::2], strict=True))
    return [record for value in found.values() if (record := _record(value)) is not None]


def _record(value: bytes) -> tuple[int, int, Record] | None:
    parts = _RECORD.fullmatch(value)
    if parts is None:
        return None
    try:
        return int(parts[1]), int(parts[2]), msgspec.json.decode(parts[3], type=Record)
    except (msgspec.DecodeError, RecursionError):
        return None


async def _running(line: Line) -> tuple[int, dict[str, tuple[CurrentJob, ...]]]:
    """The server's time in milliseconds, and the jobs in ``active`` by the names of their workers, the oldest first."""
    jobs: defaultdict[str, list[CurrentJob]] = defaultdict(list)
    start, passed = 0, 1
    while passed and start < _MOST_JOBS:
        reply = await line.read("getRunning-1", (str(start), str(_PAGE)))
        assert isinstance(reply, list)
        now, passed = int(reply[0]), reply[1]  # type: ignore[arg-type, assignment]
        start += passed
        for at in range(2, len(reply), 4):
            _put(jobs, reply[at : at + 4])
        if passed < _PAGE:
            break
    return now, {worker: tuple(held) for worker, held in jobs.items()}


def _put(jobs: defaultdict[str, list[CurrentJob]], fields: Sequence[Reply]) -> None:
    job_id, name, worker, since = fields
    if not isinstance(job_id, bytes) or not isinstance(worker, bytes):
        return
    jobs[worker.decode("utf-8", "replace")].append(
        CurrentJob(
            decode_id(job_id),
            name.decode("utf-8", "replace") if isinstance(name, bytes) else "",
            to_moment(int(since)) if isinstance(since, bytes) and since.isdigit() else None,
        )
    )
