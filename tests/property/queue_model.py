"""A queue in plain Python, as the protocol and docs/ tell it: the second description of the rules, which the scripts are held to.

``Model.keys()`` is all that must stand on the server, and ``Model.events`` all that has been said since somebody looked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

CLASS = 2**32
TICK = 4096
MANUAL = str(2**53 - 1)
STALLED = "job stalled more than allowable limit"
WHY = "why"

ADDED, THERE, HELD, FULL = 1, 0, 2, 3
ENDED, CANCELLED, ASKED = 0, 1, 2
DONE, GONE, NO_LOCK, NOT_THERE, NOT_OWNED, CURRENT = 0, -1, -2, -3, -6, -8

Scores = dict[str, int]


def class_of(score: int) -> int:
    """The priority that a score belongs to; what was put to the front may stand up to half a share below."""
    return (score + CLASS // 2) // CLASS


@dataclass
class Job:
    """What stands in the hash of a job, and its lock."""

    id: str
    data: str = "{}"
    opts: dict[str, Any] = field(default_factory=dict)
    timestamp: int = 0
    delay: int = 0
    priority: int = 0
    made: int = 0
    started: int = 0
    stalls: int = 0
    name: str = "job"
    more: dict[str, str] = field(default_factory=dict)
    """Fields that are there or not: its latest start, its end, to whom it belongs."""
    token: str | None = None

    def fields(self) -> dict[str, Any]:
        counters = {"atm": self.made, "ats": self.started, "stc": self.stalls}
        return {
            "name": self.name, "data": self.data, "opts": self.opts, "timestamp": str(self.timestamp),
            "delay": str(self.delay), "priority": str(self.priority),
            **{name: str(count) for name, count in counters.items() if count}, **self.more,
        }  # fmt: skip

    @property
    def deid(self) -> str | None:
        return self.more.get("deid")

    def since(self, *fields: str) -> int:
        """The first of these moments that it has, or when it was made: its age, for cleaning."""
        return next((int(self.more[name]) for name in fields if name in self.more), self.timestamp)


@dataclass
class Hold:
    """Who holds a deduplication id; until when, or (None) until its end."""

    owner: str
    until: int | None = None


@dataclass
class Schedule:
    """A schedule of an interval: its template, its current run, and the number of that."""

    every: int
    data: str
    template: dict[str, Any]
    missed: str
    slot: int | None
    count: int
    offset: int | None = None
    paused: bool = False
    begun: bool = False
    """Paused while the run of its slot had begun."""

    @property
    def repeat(self) -> dict[str, Any]:
        return {"every": self.every, **({"missed": self.missed} if self.missed != "once" else {})}

    def fields(self) -> dict[str, Any]:
        given = {"data": self.data, **({"opts": self.template} if self.template else {})}
        numbers = {"ic": self.count, "offset": self.offset, **self.repeat}
        return {"name": "tick", **given, **{name: str(value) for name, value in numbers.items()}}

    def after(self, now: int, missed: str) -> int:
        """The next slot: after a missed one the first in the future, unless all are caught up with."""
        assert self.slot is not None
        slot = self.slot + self.every
        while slot < now and missed == "once":
            slot += self.every
            if slot == now:
                slot += self.every
        return slot


class Model:
    """One queue."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.wait: list[str] = []  # head first; the tail is next
        self.active: list[str] = []
        self.ranked: Scores = {}
        self.delayed: Scores = {}
        self.completed: Scores = {}
        self.failed: Scores = {}
        self.marked: set[str] = set()
        self.suspects: set[str] = set()
        self.holds: dict[str, Hold] = {}
        self.kept: dict[str, dict[str, Any]] = {}  # by deduplication id: what is to be added when its holder has ended
        self.number = 0
        self.tie = 0
        self.paused = False
        self.most: int | None = None
        self.rate: tuple[int, int] | None = None
        self.limited_until: int | None = None
        self.window: tuple[str, int] | None = None  # what `limiter` holds, and until when
        self.schedules: dict[str, Schedule] = {}
        self.events: list[list[str]] = []

    # -- what must stand on the server

    def keys(self) -> dict[str, Any]:
        """Every key by its suffix, without markers and what is ours."""
        meta = {
            "paused": "1" if self.paused else None,
            "concurrency": self.most,
            "max": self.rate and self.rate[0],
            "duration": self.rate and self.rate[1],
            "limitedUntil": self.limited_until,
        }
        found: dict[str, Any] = {
            "wait": self.wait, "active": self.active, "prioritized": self.ranked, "delayed": self.delayed,
            "completed": self.completed, "failed": self.failed, "stalled": self.marked,
            "id": self.number and str(self.number), "pc": self.tie and str(self.tie),
            "limiter": self.window and self.window[0], "repeat": self.current,
            "meta": {name: str(value) for name, value in meta.items() if value is not None},
        }  # fmt: skip
        for job in self.jobs.values():
            found[job.id] = job.fields()
            found[f"{job.id}:lock"] = job.token
            found[f"{job.id}:lock expires"] = job.token is not None
        found["limiter expires"] = self.window is not None
        for deid, hold in self.holds.items():
            found[f"de:{deid}"] = hold.owner
            found[f"de:{deid} expires"] = hold.until is not None
        found |= {f"dn:{deid}": payload for deid, payload in self.kept.items()}
        found |= {f"repeat:{one}": schedule.fields() for one, schedule in self.schedules.items() if not schedule.paused}
        return {key: value for key, value in found.items() if value}

    def tell(self, *event: str | int) -> None:
        self.events.append([str(one) for one in event])

    # -- places

    @property
    def closed(self) -> bool:
        """No worker may fetch: paused or maxed."""
        return self.paused or (self.most is not None and len(self.active) >= self.most)

    @property
    def waits(self) -> bool:
        return bool(self.wait or self.ranked)

    def order(self, scores: Scores) -> list[str]:
        return sorted(scores, key=lambda job_id: (scores[job_id], job_id.encode()))

    def places(self) -> list[Collection[str]]:
        """Completed, failed, delayed, prioritized, wait, active."""
        return [self.completed, self.failed, self.delayed, self.ranked, self.wait, self.active]

    def state(self, job_id: str) -> str:
        names = ("completed", "failed", "delayed", "prioritized", "waiting", "active")
        places = dict(zip(names, self.places(), strict=True))
        return next((name for name, place in places.items() if job_id in place), "unknown")

    def leave(self, job_id: str) -> None:
        """Out of where it is."""
        for line in (self.wait, self.active):
            if job_id in line:
                line.remove(job_id)
        for scores in (self.ranked, self.delayed, self.completed, self.failed):
            scores.pop(job_id, None)

    def rank(self, priority: int) -> int:
        self.tie += 1
        return priority * CLASS + self.tie

    def first(self, priority: int) -> int | None:
        """The lowest score of a class: what was put to its front may stand below its own share."""
        return min((score for score in self.ranked.values() if class_of(score) == priority), default=None)

    def front(self, priority: int, room: int) -> int:
        if (first := self.first(priority)) is not None:
            return first - 1
        self.tie += room
        return self.rank(priority)

    def place(self, job: Job, *, first: bool = False) -> None:
        """To the end of the line, or to the front of one without classes."""
        if job.priority:
            self.ranked[job.id] = self.rank(job.priority)
        elif first:
            self.wait.append(job.id)
        else:
            self.wait.insert(0, job.id)

    def place_first(self, job: Job, room: int = 0) -> None:
        """To the front, of its class if it has a priority; where that is empty, with room for those that follow."""
        if job.priority:
            self.ranked[job.id] = self.front(job.priority, room)
        else:
            self.wait.append(job.id)

    def put_off(self, job: Job, due: int) -> None:
        """Into delayed. Those of one millisecond keep their order."""
        mates = [score for score in self.delayed.values() if due * TICK <= score < (due + 1) * TICK]
        self.delayed[job.id] = min(max(mates) + 1, (due + 1) * TICK - 1) if mates else due * TICK
        self.tell("delayed", "jobId", job.id, "delay", due)

    # -- adding

    def add(self, job: Job, max_size: int | None = None) -> tuple[str, int]:
        """A job whose id is "" gets the next number."""
        self.number += 1
        job.id = job.id or str(self.number)
        if job.id in self.jobs:
            self.tell("duplicated", "jobId", job.id)
            return job.id, THERE
        de = job.opts.get("de")
        hold = self.holder(de["id"]) if de else None
        if de and hold:
            if not self.meet(job, de, hold):
                return hold.owner, HELD
        elif max_size is not None and (size := len(self.wait) + len(self.ranked) + len(self.delayed)) >= max_size:
            return str(size), FULL
        elif de:
            self.hold(de, job.id)
        if de:
            job.more["deid"] = de["id"]
        self.store(job, lifo=job.opts.get("lifo", False))
        return job.id, ADDED

    def store(self, job: Job, *, lifo: bool = False) -> None:
        self.jobs[job.id] = job
        self.tell("added", "jobId", job.id, "name", job.name)
        if job.delay:
            self.put_off(job, job.timestamp + job.delay)
        else:
            self.place(job, first=lifo)
            self.tell("waiting", "jobId", job.id)

    # -- deduplication

    def holder(self, deid: str) -> Hold | None:
        """Who holds it. One that was to hold it until its end, and has ended or is gone, does not."""
        hold = self.holds.get(deid)
        if hold and hold.until is None and self.state(hold.owner) in ("completed", "failed", "unknown"):
            del self.holds[deid]
            self.kept.pop(deid, None)
            return None
        return hold

    def hold(self, de: Mapping[str, Any], owner: str) -> None:
        ttl = None if de.get("keepLastIfActive") else de.get("ttl")
        self.holds[de["id"]] = Hold(owner, None if ttl is None else self.now + ttl)

    def meet(self, job: Job, de: Mapping[str, Any], hold: Hold) -> bool:
        """A job whose deduplication id is held. Gives whether it takes the owner's place."""
        deid, owner = de["id"], hold.owner
        told = ("deduplicated", "jobId", owner, "deduplicationId", deid, "deduplicatedJobId", job.id)
        if de.get("replace") and owner in self.delayed:
            self.leave(owner)
            del self.jobs[owner]
            self.kept.pop(deid, None)
            self.tell("removed", "jobId", owner, "prev", "delayed")
            self.tell("deduplicated", "jobId", job.id, "deduplicationId", deid, "deduplicatedJobId", owner)
            if "ttl" in de and not de.get("extend") and not de.get("keepLastIfActive"):
                hold.owner = job.id
            else:
                self.hold(de, job.id)
            return True
        if de.get("keepLastIfActive") and owner in self.active:
            self.kept[deid] = {"name": job.name, "data": job.data, "opts": job.opts, "jid": job.id, "owner": owner}
            hold.until = None
            self.tell(*told)
        elif not de.get("replace"):
            if de.get("extend"):
                self.hold(de, owner)
            self.tell(*told)
            if de.get("reschedule") and owner in self.delayed:
                self.jobs[owner].delay = job.delay
                self.put_off(self.jobs[owner], job.timestamp + job.delay)
        return False

    def release(self, job: Job) -> None:
        """Its end: its deduplication id is free, and what was kept to come after it comes, or after another that holds it."""
        deid = job.deid
        if deid is None:
            return
        hold = self.holds.get(deid)
        if hold and hold.until is None and hold.owner == job.id:
            del self.holds[deid]
        if hold and hold.owner != job.id and self.state(hold.owner) not in ("completed", "failed", "unknown"):
            if deid in self.kept:
                self.kept[deid]["owner"] = hold.owner
        elif payload := self.kept.pop(deid, None):
            self.number += 1
            job_id = payload["jid"] if payload["jid"] not in self.jobs else str(self.number)
            opts = payload["opts"]
            self.hold(opts["de"], job_id)
            delay, priority = opts.get("delay", 0), opts.get("priority", 0)
            job = Job(job_id, payload["data"], opts, self.now, delay, priority, more={"deid": deid})
            self.store(job, lifo=opts.get("lifo", False))

    def forget(self, job_id: str) -> None:
        """A job is removed, and its deduplication id is free."""
        job = self.jobs.pop(job_id)
        self.leave(job_id)
        hold = self.holds.get(job.deid or "")
        if hold and hold.owner == job_id:
            del self.holds[job.deid or ""]
            self.kept.pop(job.deid or "", None)
        elif self.kept.get(job.deid or "", {}).get("owner") == job_id:
            del self.kept[job.deid or ""]

    # -- fetching

    def fetch(self, wanted: int, token: str, share: int = 0) -> list[str]:
        """Takes jobs. (The look of an idle worker at a queue where nothing is runnable or due is no fetch.)"""
        self.promote_due()
        if self.paused:
            return []
        admitted = self.admitted()
        if self.most is not None:
            wanted = min(wanted, self.most - len(self.active))
        wanted = min(wanted, admitted)
        if wanted <= 0:
            return []
        taken = self.choose(wanted, share)
        counted = 0
        for job_id in taken:
            self.leave(job_id)
            self.active.insert(0, job_id)
            job = self.jobs[job_id]
            job.started += 1
            job.token = token
            job.more["processedOn"] = str(self.now)
            counted += "defa" not in job.more
            self.tell("active", "jobId", job_id, "prev", "waiting")
        if self.rate and counted:
            self.window = (
                (str(int(self.window[0]) + counted), self.window[1])
                if self.window
                else (str(counted), self.now + self.rate[1])
            )
        return taken

    def admitted(self) -> int:
        """How many starts the limits by rate and by hand allow."""
        used = self.window[0] if self.window else "0"
        if self.rate:
            return max(self.rate[0] - int(used), 0)
        by_hand = used == MANUAL and self.limited_until is not None and self.now < self.limited_until
        return 0 if by_hand else len(self.jobs) + 1

    def choose(self, wanted: int, share: int) -> list[str]:
        """Those of wait, then the prioritized; of ``share`` of them those first that have waited longest."""
        ranked = self.order(self.ranked)
        if not share or not ranked:
            taken = self.wait[::-1][:wanted]
            return taken + ranked[: wanted - len(taken)]
        classes = sorted({class_of(self.ranked[job_id]) for job_id in ranked})
        lines = [self.wait[::-1], *([one for one in ranked if class_of(self.ranked[one]) == each] for each in classes)]
        waiting, early = lines[0], list[str]()
        for _ in range(min(share, wanted)):
            # Of several that came at the same time the one of the lowest priority.
            line = min(filter(None, reversed(lines)), key=lambda line: self.jobs[line[0]].timestamp, default=None)
            if line is None:
                break
            job_id = line.pop(0)
            if line is not waiting:
                early.append(job_id)
        taken = early + self.wait[::-1][: wanted - len(early)]
        return taken + [job_id for job_id in ranked if job_id not in early][: wanted - len(taken)]

    def promote_due(self) -> None:
        for job_id in self.order(self.delayed):
            if self.delayed[job_id] < (self.now + 1) * TICK:
                self.run_now(job_id)

    def run_now(self, job_id: str) -> None:
        """Out of delayed, into the line."""
        del self.delayed[job_id]
        self.jobs[job_id].delay = 0
        self.place(self.jobs[job_id])
        self.tell("waiting", "jobId", job_id, "prev", "delayed")

    # -- finishing

    def owned(self, job_id: str, token: str) -> int:
        if job_id not in self.jobs:
            return GONE
        lock = self.jobs[job_id].token
        return DONE if lock == token else NO_LOCK if lock is None else NOT_OWNED

    def out_of_active(self, job_id: str) -> Job:
        self.active.remove(job_id)
        self.marked.discard(job_id)
        job = self.jobs[job_id]
        job.token = None
        return job

    def end(
        self, job_id: str, place: str, value: str, fields: Mapping[str, str], attempts: int = 0, *, keep: bool = True,
        said: str = "",
    ) -> None:  # fmt: skip
        """Completed, or failed for good."""
        job = self.out_of_active(job_id)
        self.release(job)
        job.made += 1
        if said:
            self.tell(said, "jobId", job_id)
        name = "returnvalue" if place == "completed" else "failedReason"
        if keep:
            job.more |= {**fields, name: value, "finishedOn": str(self.now)}
            (self.completed if place == "completed" else self.failed)[job_id] = self.now
            if place == "failed":
                job.more.pop("defa", None)
        else:
            del self.jobs[job_id]
        self.tell(place, "jobId", job_id, name, value, "prev", "active")
        if place == "failed" and job.made >= attempts:
            self.tell("retries-exhausted", "jobId", job_id, "attemptsMade", job.made)

    def cancel(self, job_id: str) -> int:
        """Fails a job that is not being run; of one that is, keeps that somebody wants it to end."""
        job, state = self.jobs.get(job_id), self.state(job_id)
        if job is None or state in ("completed", "failed"):
            return GONE if job is None else ENDED
        if state in ("active", "unknown"):
            job.more.setdefault("cancelRequested", WHY)
            return ASKED
        if self.is_current(job):
            return CURRENT
        self.leave(job_id)
        job.delay = 0 if state == "delayed" else job.delay
        job.more.setdefault("stacktrace", "[]")
        self.end_cancelled(job, state)
        return CANCELLED

    def end_cancelled(self, job: Job, state: str) -> None:
        """It is out of where it was, and fails because somebody has cancelled it."""
        self.release(job)
        job.more |= {"failedReason": WHY, "failureKind": "cancelled", "finishedOn": str(self.now)}
        for name in ("defa", "cancelRequested"):
            job.more.pop(name, None)
        self.failed[job.id] = self.now
        self.tell("cancelled", "jobId", job.id, "reason", WHY)
        self.tell("failed", "jobId", job.id, "failedReason", WHY, "prev", state, "failureKind", "cancelled")

    def trim(self, place: str, most: int) -> None:
        """Retention: the oldest of those that have ended go. (What they hold has been released.)"""
        scores = self.completed if place == "completed" else self.failed
        for job_id in self.order(scores)[: max(len(scores) - most, 0)]:
            del scores[job_id], self.jobs[job_id]

    def retry(self, job_id: str, fields: Mapping[str, str], *, lifo: bool = False) -> None:
        job = self.out_of_active(job_id)
        job.more |= fields
        job.made += 1
        self.place(job, first=lifo)
        self.tell("waiting", "jobId", job_id, "prev", "active")

    def delay(self, job_id: str, delay: int, fields: Mapping[str, str], *, skip: bool = False) -> None:
        job = self.out_of_active(job_id)
        job.more |= fields
        job.made += not skip
        job.delay = delay
        self.put_off(job, self.now + delay)

    def give_back(self, job_id: str, room: int, *, called: bool = True) -> None:
        """To the front: its worker stops, or its handler was told to slow down."""
        job = self.out_of_active(job_id)
        job.started -= not called
        self.place_first(job, room)
        self.tell("waiting", "jobId", job_id, "prev", "active")

    # -- keeping

    def stalled(self) -> set[str]:
        """The marked and suspected that have no lock."""
        return {one for one in self.marked | self.suspects if one in self.active and self.jobs[one].token is None}

    def recover(self, job_id: str, most: int, pause: int | None) -> None:
        """A job whose worker has died goes back; what has died too often is to be failed, or (with a pause) waits."""
        self.active.remove(job_id)
        job = self.jobs[job_id]
        job.stalls += 1
        if job.stalls > most and pause is not None:
            job.delay = pause
            self.put_off(job, self.now + pause)
        else:
            self.place_first(job)
            if job.stalls > most and job.more.get("rjk") not in self.current:
                job.more["defa"] = STALLED
            self.tell("waiting", "jobId", job_id, "prev", "active")
        self.tell("stalled", "jobId", job_id)

    def heal(self, job_id: str) -> None:
        """A job that stood in no state goes to the front, since it has waited longest."""
        self.leave(job_id)
        job = self.jobs[job_id]
        job.more["healed"] = str(int(job.more.get("healed", 0)) + 1)
        self.place_first(job)
        self.tell("waiting", "jobId", job_id, "prev", "unknown")

    # -- control

    def pause(self) -> None:
        self.paused = True
        self.tell("paused")

    def resume(self) -> None:
        self.paused = False
        self.tell("resumed")

    def remove(self, job_id: str) -> int:
        job = self.jobs.get(job_id)
        if job and self.is_current(job):
            return CURRENT
        if job and job.token is not None:
            return 0
        if job:
            names = {"waiting": "wait"}
            state = self.state(job_id)
            self.forget(job_id)
            self.tell("removed", "jobId", job_id, "prev", names.get(state, state))
        return 1

    def is_current(self, job: Job) -> bool:
        """Whether a schedule waits for just this run of it."""
        scheduler_id = job.more.get("rjk")
        return scheduler_id in self.current and job.id == f"repeat:{scheduler_id}:{self.current[scheduler_id]}"

    def promote(self, job_id: str) -> list[Any]:
        if found := self.not_in(job_id, "delayed"):
            return found
        self.run_now(job_id)
        return [DONE, ""]

    def not_in(self, job_id: str, *states: str) -> list[Any] | None:
        """The answer for a job that is not where a change needs it."""
        if job_id not in self.jobs:
            return [GONE, ""]
        state = self.state(job_id)
        return None if state in states else [NOT_THERE, state]

    def change_delay(self, job_id: str, delay: int | None, due: int) -> list[Any]:
        """``due`` counts where ``delay`` is None; what has passed is now."""
        if found := self.not_in(job_id, "delayed"):
            return found
        job = self.jobs[job_id]
        job.delay = max(due - self.now, 0) if delay is None else delay
        self.put_off(job, self.now + job.delay)
        return [DONE, ""]

    def change_priority(self, job_id: str, priority: int, *, lifo: bool) -> list[Any]:
        if job_id not in self.jobs:
            return [GONE, ""]
        job = self.jobs[job_id]
        job.priority = priority
        if self.state(job_id) in ("waiting", "prioritized"):
            self.leave(job_id)
            if lifo and priority:
                front = self.first(priority)
                self.ranked[job_id] = priority * CLASS if front is None else min(priority * CLASS, front - 1)
            else:
                self.place(job, first=lifo)
        return [DONE, ""]

    def run_again(self, job_id: str, *, first: bool = False) -> None:
        """One that has ended goes back into the line; what it ended with goes, its traces stay."""
        job, state = self.jobs[job_id], self.state(job_id)
        self.leave(job_id)
        end = ("returnvalue",) if state == "completed" else ("failedReason", "failureKind")
        for name in ("finishedOn", "processedOn", "cancelRequested", *end):
            job.more.pop(name, None)
        self.place(job, first=first)
        self.tell("waiting", "jobId", job_id, "prev", state)

    def retry_ended(self, job_id: str, *, reset: bool) -> list[Any]:
        if found := self.not_in(job_id, "failed", "completed"):
            return found
        job = self.jobs[job_id]
        self.run_again(job_id, first=job.opts.get("lifo", False))
        if reset:
            job.made = job.started = 0
        return [DONE, ""]

    def move_all(self, state: str) -> int:
        """retry_all and promote_all."""
        ids = self.order({"failed": self.failed, "completed": self.completed, "delayed": self.delayed}[state])
        ids = [job_id for job_id in ids if state != "delayed" or not self.is_current(self.jobs[job_id])]
        for job_id in ids:
            if state == "delayed":
                self.run_now(job_id)
            else:
                self.run_again(job_id)
        return len(ids)

    def drain(self, *, delayed: bool) -> int:
        ids = [*self.wait, *self.ranked, *(self.delayed if delayed else ())]
        gone = [job_id for job_id in ids if not self.is_current(self.jobs[job_id])]
        for job_id in gone:
            self.forget(job_id)
        return len(gone)

    def clean(self, state: str, grace: int, limit: int | None) -> list[str]:
        """Those that are old enough, the oldest place in line first."""
        cut = self.now - grace
        started = (
            () if state == "prioritized" else ("processedOn",) if state == "delayed" else ("finishedOn", "processedOn")
        )
        line = {
            "completed": self.order(self.completed), "failed": self.order(self.failed),
            "delayed": self.order(self.delayed), "prioritized": self.order(self.ranked),
            "wait": self.wait[::-1], "active": self.active[::-1],
        }[state]  # fmt: skip
        old = []
        for job_id in line:
            job = self.jobs[job_id]
            running = state == "active" and job.token is not None
            if job.since(*started) <= cut and not running and not self.is_current(job):
                old.append(job_id)
        gone = old[:limit]
        for job_id in gone:
            self.forget(job_id)
        self.tell("cleaned", "count", len(gone))
        return gone

    def limit_by_hand(self, after: int) -> None:
        self.limited_until = self.now + after if after else None
        if after:
            self.window = (MANUAL, self.now + after)
        elif self.window and self.window[0] == MANUAL:
            self.window = None

    def free(self, deid: str) -> int:
        """remove_deduplication: whoever holds it goes on, and what is kept to come after it too."""
        return 1 if self.holds.pop(deid, None) else 0

    # -- schedules

    @property
    def current(self) -> Scores:
        """Of each schedule that goes on: when its current run is due."""
        return {one: found.slot for one, found in self.schedules.items() if not found.paused and found.slot is not None}

    def unstarted(self, job_id: str) -> bool:
        """Whether this job waits, and nobody has started it."""
        return self.state(job_id) in ("delayed", "prioritized", "waiting") and not self.jobs[job_id].started

    def upsert(self, one: str, wanted: Schedule) -> None:
        old = self.schedules.get(one)
        self.schedules[one] = wanted
        same = old is not None and old.every == wanted.every and old.slot is not None
        if old is None:
            wanted.slot = self.now
        elif old.paused:
            wanted.slot, wanted.offset = (old.slot, old.offset) if same else (None, None)
            wanted.count, wanted.paused, wanted.begun = old.count, True, old.begun
            return
        else:
            current = f"repeat:{one}:{old.slot}"
            replaced = self.unstarted(current)
            wanted.count = old.count if replaced else old.count + 1
            wanted.slot = self.now
            if same:
                wanted.slot = old.slot if replaced else old.after(self.now, wanted.missed)
            self.begin(one, wanted, current if replaced else None)
            return
        self.begin(one, wanted, None)

    def begin(self, one: str, schedule: Schedule, replaced: str | None, **carried: int) -> None:
        """Makes the run of a schedule's slot. A job that has its id is replaced if nobody has started it, and is the run
        itself if somebody has and it waits; one that runs or has ended is stepped over."""
        self.number += 1
        assert schedule.slot is not None
        while self.state(job_id := f"repeat:{one}:{schedule.slot}") in ("active", "completed", "failed"):
            self.tell("duplicated", "jobId", job_id)
            schedule.slot += schedule.every
        place = None
        due = schedule.slot <= self.now and not schedule.template.get("priority")
        if due and self.state(job_id) == "waiting" and self.unstarted(job_id):
            place = self.wait.index(job_id)
        for out in {replaced, job_id} - {None}:
            if out in self.jobs and self.unstarted(out):
                if place is not None and out != job_id and out in self.wait and self.wait.index(out) < place:
                    place -= 1
                self.leave(out)
                del self.jobs[out]
        if schedule.offset is None:
            schedule.offset = schedule.slot % schedule.every
        if job_id not in self.jobs:
            opts = {**schedule.template, "repeat": {**schedule.repeat, **carried, "count": schedule.count}}
            self.iteration(one, schedule, job_id, opts, schedule.template.get("priority", 0), place)

    def iteration(
        self, one: str, schedule: Schedule, job_id: str, opts: dict[str, Any], priority: int, place: int | None
    ) -> None:  # fmt: skip
        assert schedule.slot is not None
        delay = max(schedule.slot - self.now, 0)
        opts |= {"repeatJobKey": one, "jobId": job_id, "delay": delay, "timestamp": self.now}
        job = Job(job_id, schedule.data, opts, self.now, delay, priority, name="tick", more={"rjk": one})
        if place is None:
            self.store(job)
        else:
            self.jobs[job_id] = job
            self.wait.insert(place, job_id)
            self.tell("added", "jobId", job_id, "name", job.name)
            self.tell("waiting", "jobId", job_id)

    def advance(self, job_id: str) -> None:
        """A worker has started this job. If it is the current run of a schedule, the next is made."""
        job = self.jobs[job_id]
        if not self.is_current(job):
            return
        one = job.more["rjk"]
        schedule = self.schedules[one]
        repeat = job.opts["repeat"]
        schedule.slot = schedule.after(self.now, repeat.get("missed", "once"))
        while (next_id := f"repeat:{one}:{schedule.slot}") in self.jobs:
            self.tell("duplicated", "jobId", next_id)
            if self.state(next_id) not in ("active", "completed", "failed"):
                break
            schedule.slot += schedule.every
        schedule.count += 1
        if next_id not in self.jobs:
            self.number += 1
            opts = {"attempts": 0, **job.opts, "repeat": {**repeat, "count": repeat["count"] + 1}}
            self.iteration(one, schedule, next_id, opts, job.priority, None)

    def pause_schedule(self, one: str) -> bool:
        schedule = self.schedules.get(one)
        if schedule and not schedule.paused:
            job_id = f"repeat:{one}:{schedule.slot}"
            schedule.paused, schedule.begun = True, not self.unstarted(job_id)
            if not schedule.begun:
                state = self.state(job_id)
                self.leave(job_id)
                del self.jobs[job_id]
                self.tell("removed", "jobId", job_id, "prev", "wait" if state == "waiting" else state)
        return schedule is not None

    def resume_schedule(self, one: str) -> None:
        schedule = self.schedules.get(one)
        if schedule and schedule.paused:
            schedule.paused = False
            schedule.count += schedule.begun
            schedule.begun = False
            if schedule.slot is None:
                schedule.slot = self.now
            elif schedule.slot <= self.now:
                schedule.slot = schedule.after(self.now, "once")
            carried = {} if schedule.offset is None else {"offset": schedule.offset}
            self.begin(one, schedule, None, **carried)

    def remove_schedule(self, one: str) -> bool:
        schedule = self.schedules.pop(one, None)
        if schedule and not schedule.paused:
            job_id = f"repeat:{one}:{schedule.slot}"
            if job_id in self.delayed:
                self.leave(job_id)
                del self.jobs[job_id]
                self.tell("removed", "jobId", job_id, "prev", "delayed")
        return schedule is not None

    # -- time

    def tick(self, milliseconds: int) -> list[str]:
        """Time goes by. Gives the keys whose own time is over, which the server drops by its own clock."""
        self.now += milliseconds
        over = [deid for deid, hold in self.holds.items() if hold.until is not None and hold.until <= self.now]
        for deid in over:
            del self.holds[deid]
        keys = [f"de:{deid}" for deid in over]
        if self.window and self.window[1] <= self.now:
            self.window = None
            keys.append("limiter")
        return keys
