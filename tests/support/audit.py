"""The audit: what must hold of every key of a queue, at any moment, whatever happened to its workers.

Each job is in exactly one state, and each id in a state has a job; locks, deduplication keys and parents point to what is
alive; every key is known, is of its type, and has its bound or expiry (protocol 1.1, 2.1, 15).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import redis

from echomq._store.keys import QueueKeys
from echomq.models import FAILURE_KINDS

_LISTS = ("wait", "paused", "active")
_SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")
_TYPES = {
    **dict.fromkeys(_LISTS, "list"),
    **dict.fromkeys(_SETS, "zset"),
    "id": "string",
    "pc": "string",
    "meta": "hash",
    "events": "stream",
    "marker": "zset",
    "stalled": "set",
    "stalled-check": "string",
    "limiter": "string",
    "repeat": "zset",
    "metrics:completed": "hash",
    "metrics:failed": "hash",
    "metrics:completed:data": "list",
    "metrics:failed:data": "list",
}
_OWN_TYPES = {
    "calls": "hash",
    "suspects": "set",
    "paused-schedulers": "hash",
    "limits": "stream",
    "cancels": "stream",
    "sent": "zset",
    "v5": "string",
    "healing": "string",
    "workers": "hash",
    "rules": "hash",
    "outbox": "stream",
    "forwarding": "string",
}
_LASTING = ("paused-schedulers", "rules", "outbox")
_LETTER = {"id", "reason", "attemptsMade", "failedOn"}
_PARTS = {
    "lock": "string",
    "logs": "list",
    "dependencies": "set",
    "processed": "hash",
    "failed": "hash",
    "unsuccessful": "zset",
}
_EXPIRING = ("stalled-check", "limiter")
_FIELDS = ("name", "data", "opts", "timestamp", "delay", "priority")
_EVENTS_MARGIN = 1000  # trimming is approximate


def audit(client: redis.Redis, prefix: str, queue: str, *, hash_tag: bool | None = None) -> list[str]:
    """Look at every key of a queue and of its dead letters and say what is wrong, a line each; nothing is changed.

    Args:
        client: any synchronous client of the server.
        prefix: as a Queue takes it, such as ``"emq"``.
        queue: the queue's name as the user gives it, without braces.
        hash_tag: as a Queue takes it.
    """
    keys = QueueKeys.of(queue, prefix=prefix, hash_tag=hash_tag)
    return _Audit(client, keys).run() + _Audit(client, keys.dead_letters).run()


class _Audit:
    def __init__(self, client: redis.Redis, keys: QueueKeys) -> None:
        self.keys = keys
        self.base = keys.base
        self.found: list[str] = []
        self.client = client
        self.kinds: dict[str, str] = {}
        self.jobs: dict[str, dict[str, str]] = {}
        self.states: dict[str, list[str]] = defaultdict(list)
        self.finished_at: dict[str, float] = {}

    def run(self) -> list[str]:
        self._list_keys()
        self._read_jobs()
        self._read_states()
        self._check_kinds_and_bounds()
        self._check_jobs()
        self._check_locks()
        self._check_deduplication()
        self._check_families()
        self._check_schedulers()
        return self.found

    # -- reading

    def _ask(self, *command: str | int) -> Any:
        """A command's reply, free of what this client makes of it."""
        return _text(self._pipe([command])[0])

    def _pipe(self, commands: list[tuple[str | int, ...]]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipe:
            pipe.response_callbacks = type(pipe.response_callbacks)({})  # its own: the client keeps its
            for command in commands:
                pipe.execute_command(*command)
            return [_text(reply) for reply in pipe.execute()] if commands else []

    def _list_keys(self) -> None:
        names: list[str] = []
        for base in (self.base, self.keys.own_base):
            cursor = "0"
            while True:
                cursor, page = self._ask(
                    "SCAN", cursor, "MATCH", re.sub(r"([\[\]*?\\])", r"\\\1", base) + "*", "COUNT", 1000
                )
                names += page
                if str(cursor) == "0":
                    break
        ordered = sorted(set(names))
        for name, kind in zip(ordered, self._pipe([("TYPE", name) for name in ordered]), strict=True):
            if kind != "none":  # expired meanwhile
                self.kinds[name] = kind

    def _job_names(self) -> list[str]:
        """The ids of hashes that are jobs: not of a known name, not a part of a job, not a scheduler."""
        found = []
        for key, kind in self.kinds.items():
            suffix = key.removeprefix(self.base)
            if kind != "hash" or not key.startswith(self.base) or suffix in _TYPES:
                continue
            owner, _, part = suffix.rpartition(":")
            if part in _PARTS and self.kinds.get(self.base + owner) == "hash":
                continue
            if suffix.startswith(("de:", "dn:", "metrics:")):
                continue
            if suffix.startswith("repeat:") and not re.search(r":\d+$", suffix):
                continue
            found.append(suffix)
        return found

    def _read_jobs(self) -> None:
        names = self._job_names()
        for name, flat in zip(names, self._pipe([("HGETALL", self.base + name) for name in names]), strict=True):
            if flat:
                self.jobs[name] = dict(zip(flat[::2], flat[1::2], strict=True))

    def _read_states(self) -> None:
        for name in _LISTS:
            if self.kinds.get(self.base + name) == "list":
                for job_id in self._ask("LRANGE", self.base + name, 0, -1):
                    if not job_id.startswith("0:"):
                        self.states[job_id].append(name)
        for name in _SETS:
            if self.kinds.get(self.base + name) == "zset":
                flat = self._ask("ZRANGE", self.base + name, 0, -1, "WITHSCORES")
                if flat and isinstance(flat[0], list):  # RESP3
                    flat = [one for pair in flat for one in pair]
                for job_id, score in zip(flat[::2], flat[1::2], strict=True):
                    self.states[job_id].append(name)
                    if name in ("completed", "failed"):
                        self.finished_at[job_id] = float(score)

    # -- checking

    def _check_kinds_and_bounds(self) -> None:
        for key, kind in self.kinds.items():
            expected = self._expected_kind(key)
            if expected is None:
                self.found.append(f"{key} ({kind}) is no key of the protocol, nor of ours, and belongs to no job")
            elif kind != expected:
                self.found.append(f"{key} is a {kind}, must be a {expected}")
        for key in self.kinds:
            suffix = key.removeprefix(self.base)
            own = key.startswith(self.keys.own_base) and key.removeprefix(self.keys.own_base) not in _LASTING
            bounded = suffix in _EXPIRING or suffix.endswith(":lock") or own
            if bounded and self._ask("PTTL", key) == -1:
                self.found.append(f"{key} has no expiry")
        events = self.base + "events"
        if self.kinds.get(events) == "stream":
            most = int(self._ask("HGET", self.base + "meta", "opts.maxLenEvents") or 10_000)
            length = self._ask("XLEN", events)
            if length > most + _EVENTS_MARGIN:
                self.found.append(f"{events} has {length} entries, must keep to {most}")
        if self.kinds.get(self.base + "marker") == "zset":
            for member in self._ask("ZRANGE", self.base + "marker", 0, -1):
                if member not in ("0", "1"):
                    self.found.append(f"{self.base}marker has the member {member!r}, must have but '0' and '1'")

    def _expected_kind(self, key: str) -> str | None:
        if key.startswith(self.keys.own_base):
            suffix = key.removeprefix(self.keys.own_base)
            return "list" if suffix.startswith("standing:") else _OWN_TYPES.get(suffix)
        suffix = key.removeprefix(self.base)
        if suffix in _TYPES:
            return _TYPES[suffix]
        if suffix in self.jobs:
            return "hash"
        owner, _, part = suffix.rpartition(":")
        if part in _PARTS and (owner in self.jobs or owner in self.states):
            return _PARTS[part]
        if suffix.startswith("de:"):
            return "string"
        if suffix.startswith("dn:") or (suffix.startswith("repeat:") and not re.search(r":\d+$", suffix)):
            return "hash"
        return None

    def _check_jobs(self) -> None:
        for job_id, places in self.states.items():
            if job_id not in self.jobs:
                self.found.append(f"{job_id} is in {' and '.join(places)} but has no hash")
        for job_id, job in self.jobs.items():
            places = self.states.get(job_id, [])
            if len(places) != 1:
                where = f"in {' and '.join(places)}" if places else "in no state"
                self.found.append(f"job {job_id} is {where}, must be in exactly one")
            if missing := [name for name in _FIELDS if name not in job]:
                self.found.append(f"job {job_id} lacks {', '.join(missing)}")
            for name in ("data", "opts", "parent", "returnvalue", "stacktrace", "progress"):
                if name in job and not _is_json(job[name]):
                    self.found.append(f"job {job_id} has a {name} that is no JSON: {job[name][:80]!r}")
            if len(places) == 1:
                self._check_fields_of_state(job_id, job, places[0])
            self._check_own_fields(job_id, job)

    def _check_fields_of_state(self, job_id: str, job: Mapping[str, str], state: str) -> None:
        wanted = {
            "active": ["processedOn", "ats"],
            "completed": ["processedOn", "ats", "atm", "returnvalue", "finishedOn"],
            "failed": ["atm", "failedReason", "finishedOn"],
        }.get(state, [])
        if job.get("failureKind") == "cancelled" and "atm" in wanted:
            wanted.remove("atm")  # it may never have been run
        if missing := [name for name in wanted if name not in job]:
            self.found.append(f"job {job_id} is {state} and lacks {', '.join(missing)}")
        if state in ("completed", "failed"):
            if job.get("finishedOn") != f"{self.finished_at[job_id]:.0f}":
                self.found.append(
                    f"job {job_id} is {state} at {self.finished_at[job_id]:.0f}, finishedOn {job.get('finishedOn')}"
                )
            if "defa" in job:
                self.found.append(f"job {job_id} is {state} and still has a deferred failure")
            if "cancelRequested" in job:
                self.found.append(f"job {job_id} is {state} and was asked to stop")
        elif "finishedOn" in job:
            self.found.append(f"job {job_id} is in {state} and has finishedOn")

    def _check_own_fields(self, job_id: str, job: Mapping[str, str]) -> None:
        if "failureKind" in job and (job["failureKind"] not in FAILURE_KINDS or "failedReason" not in job):
            self.found.append(
                f"job {job_id} has failureKind {job['failureKind']}, failedReason {job.get('failedReason')}"
            )
        for name in ("skipped", "resultError"):
            if name in job and self.states.get(job_id) != ["completed"]:
                self.found.append(f"job {job_id} has {name} and is not completed")
        opts = json.loads(job["opts"]) if _is_json(job.get("opts", "")) else {}
        letter = opts.get("deadLetter") if isinstance(opts, dict) else None
        if letter is not None and (not isinstance(letter, dict) or set(letter) != _LETTER):
            self.found.append(f"job {job_id} has the deadLetter {letter}, must have {', '.join(sorted(_LETTER))}")

    def _check_locks(self) -> None:
        for key in self.kinds:
            suffix = key.removeprefix(self.base)
            if suffix.endswith(":lock"):
                job_id = suffix.removesuffix(":lock")
                if self.states.get(job_id) != ["active"]:
                    self.found.append(f"{key} is a lock of a job that is not in active")

    def _check_deduplication(self) -> None:
        for key in self.kinds:
            suffix = key.removeprefix(self.base)
            if suffix.startswith("de:") and self.kinds[key] == "string":
                owner = self._ask("GET", key)
                if self._has_ended(owner) and self._ask("PTTL", key) == -1:
                    self.found.append(f"{key} is held for ever by job {owner}, which has ended or is not there")
            if suffix.startswith("dn:"):
                deid = suffix.removeprefix("dn:")
                owner = self._ask("GET", self.base + "de:" + deid)
                # The id may have been freed by hand, or be held for a time; then the end of any job of it is waited for.
                jobs = [owner, *(one for one, job in self.jobs.items() if job.get("deid") == deid)]
                if all(self._has_ended(job_id) for job_id in jobs):
                    self.found.append(f"{key} waits for job {owner}, which has ended or is not there")

    def _has_ended(self, job_id: str) -> bool:
        return job_id not in self.jobs or self.states.get(job_id) in (["completed"], ["failed"])

    def _check_families(self) -> None:
        for job_id, job in self.jobs.items():
            ended = self.states.get(job_id) in (["completed"], ["failed"])
            parent = job.get("parentKey")
            if parent and not ended and not self._ask("EXISTS", parent):
                self.found.append(f"job {job_id} waits to tell its parent {parent}, which is not there")
            dependencies = f"{self.base}{job_id}:dependencies"
            children: list[str] = self._ask("SMEMBERS", dependencies) if self.kinds.get(dependencies) == "set" else []
            for child in children:
                if not self._ask("EXISTS", child):
                    self.found.append(f"job {job_id} waits for its child {child}, which is not there")
                elif self._ask("ZSCORE", child.rpartition(":")[0] + ":completed", child.rpartition(":")[2]) is not None:
                    self.found.append(f"job {job_id} waits for its child {child}, which has completed")
            if self.states.get(job_id) == ["waiting-children"] and not children:
                self.found.append(f"job {job_id} is in waiting-children and waits for no child")

    def _check_schedulers(self) -> None:
        if self.kinds.get(self.base + "repeat") == "zset":
            for scheduler in self._ask("ZRANGE", self.base + "repeat", 0, -1):
                if self.kinds.get(f"{self.base}repeat:{scheduler}") != "hash":
                    self.found.append(f"scheduler {scheduler} has no definition")
        for key, kind in self.kinds.items():
            suffix = key.removeprefix(self.base)
            if kind == "hash" and suffix.startswith("repeat:") and suffix not in self.jobs:
                scheduler = suffix.removeprefix("repeat:")
                rhythms = [one for one in self._ask("HMGET", key, "every", "pattern") if one is not None]
                if len(rhythms) != 1 or not self._ask("HEXISTS", key, "ic"):
                    self.found.append(f"scheduler {scheduler} must have ic, and either every or pattern")
                if self._ask("ZSCORE", self.base + "repeat", scheduler) is None:
                    self.found.append(f"scheduler {scheduler} has a definition and is not in repeat")
        paused = self.keys.own_base + "paused-schedulers"
        if self.kinds.get(paused) == "hash":
            for scheduler in self._ask("HKEYS", paused):
                if self._ask("ZSCORE", self.base + "repeat", scheduler) is not None:
                    self.found.append(f"scheduler {scheduler} is paused, and in repeat")


def _text(value: Any) -> Any:
    """A reply as RESP2 has it: text, and flat lists where RESP3 has maps, sets and pairs."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return [_text(one) for pair in value.items() for one in pair]
    if isinstance(value, list | tuple | set):
        return [_text(one) for one in value]
    return value


def _is_json(value: str) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True
