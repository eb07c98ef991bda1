"""A small client for the store tests: runs our scripts one by one, with a clock that stands where the test puts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from echomq._lua.loader import script
from echomq._store.keys import QueueKeys

T = 1_764_400_000_000
"""The time at which the tests begin."""

KEEP_ALL = "-1;;"

Dump = dict[str, Any]


def text(value: Any) -> Any:
    """A reply with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [text(one) for one in value]
    return value


def pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    """A flat list of names and values; of a name that comes twice the last."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def dump(client: redis.Redis, pattern: str = "*") -> Dump:
    """Every key with its whole content: what two states are compared by. Expiries count as "has one" or not."""
    found: Dump = {}
    for key in sorted(text(client.execute_command("KEYS", pattern))):
        found[key] = content(client, key)
        if client.execute_command("PTTL", key) != -1:
            found[key + " expires"] = True
    return found


def content(client: redis.Redis, key: str) -> Any:
    """What a key holds, by its type."""
    kind = text(client.execute_command("TYPE", key))
    match kind:
        case "string":
            return text(client.execute_command("GET", key))
        case "hash":
            return pairs(text(client.execute_command("HGETALL", key)))
        case "list":
            return text(client.execute_command("LRANGE", key, 0, -1))
        case "set":
            return set(text(client.execute_command("SMEMBERS", key)))
        case "zset":
            flat = text(client.execute_command("ZRANGE", key, 0, -1, "WITHSCORES"))
            return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]
        case "stream":
            return [text(fields) for _, fields in client.execute_command("XRANGE", key, "-", "+")]
    return None


@dataclass(slots=True)
class Taken:
    """What a fetch or a finish answered."""

    now: str
    codes: list[Any]
    flags: int
    limited_ms: int
    next_due: int
    dropped: list[str]
    jobs: dict[str, dict[str, str]]

    @property
    def ids(self) -> list[str]:
        return list(self.jobs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome for ``finish``, as moveToFinished takes it."""

    kind: str
    job_id: str
    token: str
    value: str = ""
    rule: str = ""
    more: Mapping[str, Any] | None = None

    @property
    def args(self) -> list[str | bytes]:
        packed = msgspec.msgpack.encode(self.more) if self.more is not None else b""
        return [self.kind, self.job_id, self.token, self.value, self.rule, packed]


def completed(job_id: str, token: str, value: str = "null", rule: str = KEEP_ALL, **more: Any) -> Outcome:
    return Outcome("completed", job_id, token, value, rule, more or None)


def failed(
    job_id: str, token: str, reason: str, rule: str = KEEP_ALL, *, attempts: int = 0, before: Sequence[str] = ()
) -> Outcome:
    """A last failure; ``before`` are the traces of the earlier ones."""
    return Outcome("failed", job_id, token, reason, rule, {"fields": _traces(reason, before), "attempts": attempts})


def _traces(reason: str, before: Sequence[str]) -> list[str]:
    return ["failedReason", reason, "stacktrace", msgspec.json.encode([*before, f"Error: {reason}"]).decode()]


def retried(
    job_id: str, token: str, reason: str, delay: int = 0, *, lifo: bool = False, before: Sequence[str] = ()
) -> Outcome:
    """A failure with an attempt left, at once or in ``delay`` milliseconds."""
    fields = _traces(reason, before)
    if delay:
        return Outcome("delayed", job_id, token, str(delay), "", {"fields": fields})
    return Outcome("retry", job_id, token, "", "", {"fields": fields, "lifo": lifo})


class Queue:
    """One queue on one server, driven through our scripts alone."""

    def __init__(self, client: redis.Redis, name: str = "q", *, prefix: str = "bull", at: int = T) -> None:
        client.response_callbacks.clear()
        self.client = client
        self.keys = QueueKeys.of(name, prefix=prefix)
        self.base = self.keys.base
        self.clock: int | None = at
        self.lane = "lane"
        self.number = 0
        self.waiting = 0

    # -- calls

    def run(
        self,
        name: str,
        *args: str | bytes | int,
        keys: Mapping[str, str] | None = None,
        lane: str | None = None,
        number: int | None = None,
        resent: bool = False,
    ) -> Any:
        """Runs a script; a lane script with the next number of this queue's lane, unless others are given."""
        found = script(name)
        names = [(keys or {}).get(key) or self.keys.resolve(key) for key in found.keys]
        common: list[str | bytes | int] = [self.base, "" if self.clock is None else self.clock]
        if found.lane:
            if number is None:
                self.number += 1
                number = self.number
            common += [lane or self.lane, number, "1" if resent else ""]
        return self.client.execute_command("EVAL", found.source, len(names), *names, *common, *args)

    @property
    def token(self) -> str:
        """The token of the last call."""
        return f"{self.lane}:{self.number}"

    def add(self, name: str = "job", data: str = "{}", **options: Any) -> str:
        """Adds a job and gives its id; see ``job_args`` for the options."""
        reply = text(self.run("addJobs-11", 1, "", *job_args(name, data, **options)))
        return str(reply[1])

    def add_many(self, jobs: Iterable[Sequence[str | bytes]], *, max_size: int | str = "", **call: Any) -> list[Any]:
        flat = [one for job in jobs for one in job]
        return list(text(self.run("addJobs-11", len(flat) // 9, max_size, *flat, **call)))

    def fetch(
        self,
        count: int = 1,
        *,
        lock: int = 30_000,
        worker: str = "",
        limit: tuple[int, int] | None = None,
        share: int | str = "",
        **call: Any,
    ) -> Taken:
        maximum, window = limit or ("", "")
        return taken(self.run("moveToActive-11", count, lock, worker, maximum, window, share, **call))

    def finish(
        self, *outcomes: Outcome, count: int = 0, lock: int = 30_000, worker: str = "", points: int = 0, **call: Any
    ) -> Taken:
        flat = [one for outcome in outcomes for one in outcome.args]
        return taken(
            self.run("moveToFinished-14", count, lock, worker, "", "", "", points, len(outcomes), *flat, **call)
        )

    def sweep(
        self,
        *,
        interval: int = 30_000,
        most: int = 1,
        confirm: int = 0,
        step: int = 0,
        crash: Mapping[str, Any] | None = None,
        worker: tuple[str, str, int] = ("", "", 0),
        last: Sequence[str] = ("", ""),
        **call: Any,
    ) -> list[Any]:
        """One call of the sweep: now, what is left, the step that follows, ids. ``waiting`` has what waits in the outbox."""
        pauses = b"" if crash is None else msgspec.msgpack.encode(crash)
        reply = text(
            self.run("moveStalledJobsToWait-14", interval, most, confirm, step, pauses, *worker, *last, **call)
        )
        self.waiting = reply.pop(3)
        return list(reply)

    def run_of(self, job_id: str, starts: int | None = None) -> str:
        """By what the job's present run is known; with another ``ats``, if it is given."""
        found = text(self.client.execute_command("HMGET", self.base + job_id, "ats", "processedOn", "timestamp"))
        return ":".join([str(starts) if starts is not None else found[0] or "", found[1] or "", found[2] or ""])

    def extend(self, *jobs: tuple[str, str, int | str], lock: int = 30_000) -> list[str]:
        """Jobs are id, token, and what ``run_of`` gave, or just the ``ats``."""
        flat = []
        for job_id, token, run in jobs:
            flat += [job_id, token, self.run_of(job_id, run) if isinstance(run, int) else run]
        return list(text(self.run("extendLocks-2", lock, len(jobs), *flat)))

    def pause(self, **call: Any) -> list[Any]:
        return list(text(self.run("pause-6", **call)))

    def resume(self, **call: Any) -> list[Any]:
        return list(text(self.run("resume-8", **call)))

    def remove(self, job_id: str, *, children: bool = True, begin_at: str = "", **call: Any) -> int:
        return int(self.run("remove-5", job_id, "1" if children else "", begin_at, **call)[1])

    def state(self, job_id: str) -> str:
        return str(text(self.run("getState-8", job_id)))

    def counts(self, *states: str) -> list[int]:
        return list(self.run("getCounts-8", *states))

    def is_finished(self, *job_ids: str) -> list[Any]:
        return list(text(self.run("isFinished-2", *job_ids)))[:-1]

    # -- looks

    def get(self, suffix: str) -> Any:
        """What the key ``{base}{suffix}`` holds; None if it is not there."""
        return content(self.client, self.base + suffix)

    def command(self, *args: str | int | float) -> Any:
        """One command, as the server answers it, text in place of bytes; ``~x`` stands for the key ``{base}x``."""
        named = [self.base + one[1:] if isinstance(one, str) and one.startswith("~") else one for one in args]
        return text(self.client.execute_command(*named))

    def dump(self) -> Dump:
        """Every key of the server, without the lanes."""
        return {key: value for key, value in dump(self.client).items() if not key.startswith(self.keys.own_base)}

    def events(self, since: int = 0) -> list[list[str]]:
        """The event log from this position on, each entry a flat list; the event itself first."""
        return [entry[1:] for entry in (self.get("events") or [])[since:]]

    def new_events(self) -> list[list[str]]:
        """The events since the last such look; empties the log."""
        found = self.events()
        self.client.execute_command("XTRIM", self.base + "events", "MAXLEN", 0)
        return found


def job_args(
    name: str = "job",
    data: str = "{}",
    *,
    opts: Mapping[str, Any] | None = None,
    timestamp: int | str = "",
    delay: int = 0,
    due: int | str = "",
    priority: int = 0,
    lifo: bool = False,
    job_id: str = "",
    de: Mapping[str, Any] | None = None,
) -> list[str | bytes]:
    """A job as addJobs takes it; ``de``: its deduplication, by the names of the server."""
    stored: dict[str, Any] = {"attempts": 0} if opts is None else dict(opts)
    if de is not None:
        stored["de"] = dict(de)
    more: dict[str, Any] = {"lifo": lifo, **({} if de is None else {"de": dict(de)})}
    packed = msgspec.msgpack.encode(more) if lifo or de is not None else ""
    written = msgspec.json.encode(stored).decode()
    return [name, data, written, str(timestamp), str(delay), str(due), str(priority), packed, job_id]


def taken(reply: list[Any]) -> Taken:
    now, codes, flags, limited_ms, next_due, dropped = text(reply[:6])
    jobs = {text(reply[at]): pairs(text(reply[at + 1])) for at in range(6, len(reply), 2)}
    return Taken(now, codes, flags, limited_ms, int(next_due), dropped, jobs)
