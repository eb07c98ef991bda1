"""One queue against a pure model: any order of moves, with repeated and stale calls among them, through the real scripts.

After each move everything on the server is compared: each key with its whole content, and each event that was written. So each
job is in one state, no id is left without a job and no job without a state, and no key is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from echomq import Every, JobSpec
from echomq._store import schedule
from echomq._store.call import Patience
from echomq._store.codec import NewJob
from tests.property.queue_model import TICK, WHY, Hold, Job, Model, Schedule
from tests.property.snapshot import snapshot
from tests.store.schedules import Clocked, Schedules
from tests.store.scripts import KEEP_ALL, Outcome, Queue, T, Taken, job_args, text
from tests.support.audit import audit
from tests.support.server import Server

NONE, FEW = "0;;", "2;;"
LONG = 60_000
"""Of what ends by the server's own clock: no example lasts as long. The machine ends it when the model's time has come."""

CRASH = {"type": "exponential", "delay": 10, "longest": 25}
PLACES = ["completed", "failed", "delayed", "prioritized", "wait", "active"]
NAMES = ["a", "b", "c"]
OUTCOMES = [
    "completed", "completed few", "completed gone", "failed", "failed gone", "failed dead", "failed expired", "retry",
    "cancelled", "retry lifo", "later", "skip", "wait", "wait limited", "back", "back uncalled", "wrong",
]  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "none": {}, "simple": {}, "throttle": {"ttl": LONG}, "extend": {"ttl": LONG, "extend": True},
    "debounce": {"ttl": LONG, "extend": True, "replace": True}, "replace": {"replace": True},
    "replace, throttled": {"ttl": LONG, "replace": True}, "latest": {"keepLastIfActive": True},
    "latest, replace": {"keepLastIfActive": True, "replace": True}, "reschedule": {"reschedule": True},
}  # fmt: skip
FAILURE = {"failedReason": "no", "stacktrace": '["Error: no"]', "failureKind": "unknown"}


Draw = Callable[..., Any]


@dataclass
class Call:
    """A call as it was made, for making it again."""

    number: int
    make: Callable[..., Any]
    answer: Any = None
    token: str = ""
    starts: dict[str, int] = field(default_factory=dict)


class QueueMachine(RuleBasedStateMachine):
    """The moves."""

    client: redis.Redis

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.queue = Queue(self.client, "m", prefix="emq")
        self.dead = Queue(self.client, "m", prefix="emq")
        self.dead.keys = self.dead.keys.dead_letters
        self.dead.base = self.dead.keys.base
        self.model, self.letters = Model(T), Model(T)
        self.calls: list[Call] = []
        self.adds = 0
        self.nobody_looks = False

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Any of the moves that there are now."""
        moves = [name for name, weight in self.moves().items() for _ in range(weight)]
        getattr(self, data.draw(st.sampled_from(moves), "move"))(data.draw)

    def moves(self) -> dict[str, int]:
        """What can be done now, by name, and how often it is to be done."""
        model = self.model
        running = bool(model.active)
        return {
            "add": 4, "fetch": 7 if model.waits else 1, "finish": 8 * running, "extend": running, "tick": 2,
            "lose_lock": 2 * bool(self.locked()), "sweep": 1 + 2 * running, "confirm": 2 * bool(model.suspects),
            "remove": 2, "cancel": 2, "change": 4 * bool(model.jobs), "change_many": 2, "heal": bool(model.waits),
            "requeue": 2 * bool(self.letters.jobs), "limit": 5 if model.closed else 2,
            "pause_or_resume": 3 if model.paused else 1, "arrive_late": len(self.calls) > 3,
            "send_again": bool(self.calls) and self.calls[-1].number == self.queue.number,
        }  # fmt: skip

    def locked(self) -> list[str]:
        return [job.id for job in self.model.jobs.values() if job.token]

    # -- calls

    def call(self, script: str, *args: str | bytes | int) -> list[Any]:
        """What a script of the lane answers, without the time."""
        return list(text(self.record(script, *args)))[1:]

    def record(self, script: str, *args: str | bytes | int) -> list[Any]:
        """The whole answer as it comes; keeps the call."""

        def make(**again: Any) -> Any:
            return self.queue.run(script, *args, **again)

        answer = make()
        self.calls.append(Call(self.queue.number, make, answer))
        return list(answer)

    def taking(self, make: Callable[..., Taken], taken: Taken) -> None:
        """Keeps a call that took jobs."""
        starts = {job_id: self.model.jobs[job_id].started for job_id in taken.ids}
        self.calls.append(Call(self.queue.number, make, taken.codes, self.queue.token, starts))

    def send_again(self, draw: Draw) -> None:
        """A reply was lost and the call is sent again: the same answer, and nothing is done twice."""
        last = self.calls[-1]
        answer = self.repeat(last, resent=True)
        assert (answer.codes if isinstance(answer, Taken) else answer) == last.answer

    def arrive_late(self, draw: Draw) -> None:
        """A copy of an old call arrives after its caller has moved on: refused. (Or it is an idle worker's look.)"""
        answer = None
        with contextlib.suppress(redis.ResponseError):
            answer = self.repeat(draw(st.sampled_from(self.calls[-4:-1]), "call"), resent=False)
        if answer is not None:
            assert isinstance(answer, Taken)
            assert answer.ids == answer.codes == []

    def repeat(self, call: Call, *, resent: bool) -> Any:
        """Only a lock may change: of a job that this fetch took, that has lost it, and that nobody has started since."""
        before = self.without_locks()
        try:
            answer = call.make(number=call.number, resent=resent)
        finally:
            assert self.without_locks() == before
        for job_id in answer.ids if isinstance(answer, Taken) else ():
            assert self.model.jobs[job_id].started == call.starts[job_id]
            self.model.jobs[job_id].token = call.token
        return answer

    def without_locks(self) -> dict[str, Any]:
        kept = {key: found for key, found in snapshot(self.client).items() if ":lock" not in key}
        if not self.model.ranked:
            kept.pop(self.queue.base + "pc", None)
        return kept

    def some_job(self, draw: Draw, ids: Collection[str] | None = None) -> str:
        """An id, now and then one that no job has."""
        known = sorted(self.model.jobs if ids is None else ids)
        return str(draw(st.sampled_from([*known, "gone"] if ids is None else known), "job"))

    # -- adding

    def drawn(self, draw: Draw) -> dict[str, Any]:
        """What an add is given."""
        kind = draw(st.sampled_from(["plain", "lifo", "ranked", "delayed", "named", "delayed ranked"]), "kind")
        given: dict[str, Any] = {"opts": {"attempts": 2}}
        if "ranked" in kind:
            given["priority"] = draw(st.integers(1, 3), "priority")
        if "delayed" in kind:
            given["delay"] = draw(st.integers(1, 30), "delay")
        if kind == "lifo":
            given["lifo"] = True
        if kind == "named":
            given["job_id"] = draw(st.sampled_from(NAMES), "id")
        given["opts"] |= {name: value for name, value in given.items() if name in ("priority", "delay", "lifo")}
        return given

    def add(self, draw: Draw) -> None:
        count = draw(st.integers(1, 3), "count")
        max_size = draw(st.sampled_from([None, None, 1, 6]), "max_size")
        jobs, args = [], list[str | bytes]()
        for _ in range(count):
            given = self.drawn(draw)
            self.adds += 1
            payload = f'{{"n":{self.adds}}}'
            args += job_args("job", payload, **given)
            opts = {**given["opts"], **({"de": given["de"]} if "de" in given else {})}
            job = Job(
                given.get("job_id", ""), payload, opts, self.model.now, given.get("delay", 0), given.get("priority", 0)
            )
            jobs.append(job)
        expected = [one for job in jobs for one in self.model.add(job, max_size)]
        reply = self.call("addJobs-11", count, "" if max_size is None else max_size, *args)
        assert reply == expected

    # -- fetching and finishing

    def fetch(self, draw: Draw) -> None:
        """Sometimes ``woken`` by the base marker, which it has taken."""
        count, share = draw(st.integers(1, 4), "count"), draw(st.sampled_from([0, 0, 1, 2]), "share")
        woken = draw(st.booleans(), "woken")
        model, queue = self.model, self.queue
        due = any(score < (model.now + 1) * TICK for score in model.delayed.values())
        idle = not model.waits and not due and not (model.paused and (model.delayed or model.tie))
        if woken:
            queue.command("ZREM", "~marker", "0")
        taken = queue.fetch(count, share=share or "")
        self.looked(taken, woken)
        if idle:
            assert taken.ids == []
            return
        assert taken.ids == model.fetch(count, queue.token, share)
        self.check_taken(taken)
        self.taking(lambda **again: queue.fetch(count, share=share or "", **again), taken)

    def looked(self, taken: Taken, woken: bool) -> None:
        """A worker that was woken and took nothing waits by what it was told: for the end of a limit, or for what is due next."""
        if taken.ids:
            self.nobody_looks = False
        elif woken:
            self.nobody_looks = taken.limited_ms > 0
            if taken.next_due:
                self.queue.command("ZADD", "~marker", "LT", taken.next_due, "1")

    def check_taken(self, taken: Taken) -> None:
        for job_id, found in taken.jobs.items():
            assert decoded(found) == self.model.jobs[job_id].fields()

    def finish(self, draw: Draw) -> None:
        """What runs, and now and then what does not."""
        model, queue = self.model, self.queue
        count = draw(st.integers(0, 3), "count")
        among = draw(st.sampled_from([model.active, model.active, model.active, model.jobs]), "among")
        chosen = draw(st.lists(st.sampled_from(sorted(among)), min_size=1, max_size=3, unique=True), "jobs")
        plans = []
        for job_id in chosen:
            job = model.jobs[job_id]
            kind = draw(st.sampled_from(OUTCOMES), "kind")
            if "defa" in job.more and kind.startswith("completed"):
                kind = "failed"  # as each worker does
            plans.append((job_id, kind, "other:1" if kind == "wrong" else job.token or "other:1"))
        outcomes = [_outcome(model.jobs[job_id], kind, token, self.dead.base) for job_id, kind, token in plans]
        expected, ended, promoted, few = [], False, False, False
        for index, (job_id, kind, token) in enumerate(plans, 1):
            code: int | str = model.owned(job_id, token)
            asked = "cancelRequested" in model.jobs[job_id].more if job_id in model.jobs else False
            if code == 0 and asked and kind not in ("cancelled", "back", "back uncalled"):
                code = "CANCEL " + WHY
            expected.append(code)
            if code == 0:
                if kind.startswith("retry") and not promoted:
                    promoted = True
                    model.promote_due()
                self.end(job_id, kind, len(plans) - index)
                ended = kind.startswith(("completed", "failed", "cancelled"))
                few = few or kind == "completed few"
        if few:
            model.trim("completed", 2)
        taken = queue.finish(*outcomes, count=count)
        codes = [0 if isinstance(code, int) and code > 0 else code for code in taken.codes]  # a limit's milliseconds
        assert codes == expected
        had_slots = not model.closed and model.admitted() > 0
        assert taken.ids == (model.fetch(count, queue.token) if count else [])
        self.check_taken(taken)
        self.looked(taken, woken=False)
        if ended and not taken.ids and not model.waits and not model.active:
            if count == 0 or (had_slots and not model.delayed):
                model.tell("drained")
        self.taking(lambda **again: queue.finish(*outcomes, count=count, **again), taken)

    def end(self, job_id: str, kind: str, room: int) -> None:
        model = self.model
        job = model.jobs[job_id]
        match kind.split():
            case ["completed", *how]:
                model.end(job_id, "completed", "7", {}, keep=how != ["gone"])
            case ["failed", *how]:
                fields = {**FAILURE, "failureKind": "expired"} if how == ["expired"] else FAILURE
                if how == ["dead"]:
                    letter = {"id": job_id, "reason": "no", "attemptsMade": job.made + 1, "failedOn": model.now}
                    opts = {**job.opts, "deadLetter": letter}
                    self.letters.number += 1
                    letter_id = str(self.letters.number)
                    self.letters.store(Job(letter_id, job.data, opts, model.now, name=job.name, more=dict(FAILURE)))
                said = "expired" if how == ["expired"] else ""
                model.end(job_id, "failed", "no", fields, 2, keep=how != ["gone"], said=said)
            case ["cancelled"]:
                model.out_of_active(job_id)
                job.made += 1
                model.end_cancelled(job, "active")
            case ["retry", *how]:
                model.retry(job_id, FAILURE, lifo=bool(how))
            case ["later"]:
                model.delay(job_id, 5, FAILURE)
            case ["skip"]:
                model.delay(job_id, 7, {}, skip=True)
            case ["wait", *how]:
                model.give_back(job_id, room)
                if how:
                    model.limit_by_hand(LONG)
            case ["back", *how]:
                model.give_back(job_id, room, called=not how)

    # -- trouble

    def lose_lock(self, draw: Draw) -> None:
        job_id = self.some_job(draw, self.locked())
        self.queue.command("DEL", f"~{job_id}:lock")
        self.model.jobs[job_id].token = None

    def sweep(self, draw: Draw) -> None:
        """The look that marks, and puts back what was marked and has no lock; or with ``confirm`` suspects it first."""
        model = self.model
        confirm, crash = draw(st.booleans(), "confirm"), draw(st.booleans(), "crash")
        self.queue.command("DEL", "~stalled-check")
        gone = {one for one in model.marked if one not in model.jobs or model.jobs[one].token is None}
        doubted = gone - model.suspects if confirm else set[str]()
        stalled = model.stalled() & (model.marked - doubted)
        reply = self.call(
            "moveStalledJobsToWait-14", 30_000, 1, 1500 if confirm else 0, 0, packed(CRASH if crash else None)
        )
        self.put_back(reply[3:], stalled, crash)
        model.suspects |= doubted
        model.marked = set(model.active)

    def confirm(self, draw: Draw) -> None:
        """The second look at the suspected."""
        model, crash = self.model, draw(st.booleans(), "crash")
        stalled = model.stalled() & model.suspects
        reply = self.call("moveStalledJobsToWait-14", 30_000, 1, 1500, -2, packed(CRASH if crash else None))
        self.put_back(reply[3:], stalled, crash)
        model.suspects = set()

    def put_back(self, ids: list[str], expected: set[str], crash: bool) -> None:
        assert sorted(ids) == sorted(expected)
        for job_id in ids:  # in which order is chance
            excess = self.model.jobs[job_id].stalls
            pause = min(CRASH["delay"] * 2 ** max(excess - 1, 0), CRASH["longest"]) if crash else None
            self.model.recover(job_id, 1, pause)

    def extend(self, draw: Draw) -> None:
        """A heartbeat; also of a run that has lost its lock while nobody started the job again, or somebody did."""
        model, old = self.model, draw(st.booleans(), "old")
        job = model.jobs[self.some_job(draw, model.active)]
        token = job.token or "mine:1"
        starts = job.started - 1 if old else job.started
        ours = job.token is not None or not old
        lost = self.queue.extend((job.id, token, starts))
        assert lost == ([] if ours else [job.id])
        if ours:
            job.token = token
            model.marked.discard(job.id)

    def heal(self, draw: Draw) -> None:
        """A BullMQ 5 has dropped the line with a job in it; somebody looks for what was lost, and puts it back."""
        model = self.model
        job_id = self.some_job(draw, [*model.wait, *model.ranked])
        dropped = ("ZREM", "~prioritized", job_id) if job_id in model.ranked else ("LREM", "~wait", 0, job_id)
        self.queue.command(*dropped)
        found = text(self.queue.run("lookForLost-9", "look", job_id))
        assert self.call("healJobs-12", *found) == [job_id, model.state(job_id)]
        model.heal(job_id)

    # -- control

    def pause_or_resume(self, draw: Draw) -> None:
        if self.model.paused:
            self.call("resume-8")
            self.model.resume()
        else:
            self.call("pause-6")
            self.model.pause()

    def remove(self, draw: Draw) -> None:
        job_id = self.some_job(draw)
        assert self.call("remove-5", job_id, "1", "") == [self.model.remove(job_id), ""]

    def cancel(self, draw: Draw) -> None:
        job_id = self.some_job(draw)
        assert self.call("cancelJob-16", job_id, WHY, "") == [self.model.cancel(job_id)]

    def change(self, draw: Draw) -> None:
        """A change of one job, as often as not of one that is where the change needs it."""
        how = draw(st.sampled_from(["promote", "delay", "priority", "retry", "retry"]), "how")
        model, fits = self.model, draw(st.booleans(), "that fits")
        needed: Mapping[str, int] = {"retry": {**model.failed, **model.completed}, "priority": {}}.get(
            how, model.delayed
        )
        job_id = self.some_job(draw, needed if fits and needed else None)
        match how:
            case "promote":
                assert self.call("promote-9", job_id) == model.promote(job_id)
            case "delay":
                delay = draw(st.one_of(st.none(), st.integers(0, 30)), "delay")
                moment = model.now + draw(st.integers(-5, 30), "due")
                args = ("", moment) if delay is None else (delay, "")
                assert self.call("changeDelay-5", job_id, *args) == model.change_delay(job_id, delay, moment)
            case "priority":
                priority, lifo = draw(st.integers(0, 3), "priority"), draw(st.booleans(), "lifo")
                reply = self.call("changePriority-8", job_id, priority, "1" if lifo else "")
                assert reply == model.change_priority(job_id, priority, lifo=lifo)
            case "retry":
                reset = draw(st.booleans(), "reset")
                reply = self.call("reprocessJob-10", job_id, "1" if reset else "")
                assert reply == model.retry_ended(job_id, reset=reset)

    def change_many(self, draw: Draw) -> None:
        """retry_all, promote_all, drain, clean."""
        how = draw(st.sampled_from(["failed", "failed", "completed", "delayed", "delayed", "drain", "clean"]), "how")
        model = self.model
        if how == "drain":
            delayed, removed = draw(st.booleans(), "delayed"), 0
            for place in ("paused", "wait", "prioritized", *(["delayed"] if delayed else [])):
                removed += self.call("drain-9", place, 0, "", "")[0]
            assert removed == model.drain(delayed=delayed)
        elif how == "clean":
            filled = [name for name, found in zip(PLACES, model.places(), strict=True) if found]
            place, grace = draw(st.sampled_from(filled or PLACES), "place"), draw(st.integers(0, 40), "grace")
            limit = draw(st.one_of(st.none(), st.integers(1, 3)), "limit")
            reply = self.call("cleanJobs-12", place, 0, "", grace, "" if limit is None else limit)
            assert reply[0] == model.clean(place, grace, limit)
        else:
            assert self.call("moveJobsToWait-11", how, "")[:2] == [model.move_all(how), 0]

    def requeue(self, draw: Draw) -> None:
        """Dead letters go back, all or one."""
        letters, model = self.letters, self.model
        one = draw(st.booleans(), "one")
        ids = [draw(st.sampled_from(sorted(letters.jobs)), "letter")] if one else letters.wait[::-1]
        reply = text(self.dead.run("requeue-5", self.queue.base, ids[0] if one else "", 100))
        assert reply[5:] == [self.back_from_dead(job_id) for job_id in ids]
        assert reply[1:5] == [0, "waiting" if one else "", len(ids), len(letters.wait)]
        assert model.waits

    def back_from_dead(self, letter_id: str) -> str:
        letter, model = self.letters.jobs[letter_id], self.model
        opts = {name: value for name, value in letter.opts.items() if name != "deadLetter"}
        job_id = str(letter.opts["deadLetter"]["id"])
        while job_id in model.jobs or job_id.startswith("repeat:"):  # a run's id is not one that an add takes
            model.number += 1
            job_id = str(model.number)
        job = Job(job_id, letter.data, opts, model.now, priority=opts.get("priority", 0), name=letter.name)
        model.store(job, lifo=opts.get("lifo", False))
        self.letters.forget(letter_id)
        self.letters.tell("removed", "jobId", letter_id, "prev", "wait")
        return job_id

    # -- limits

    def limit(self, draw: Draw) -> None:
        what = draw(st.sampled_from(["concurrency", "concurrency", "rate", "by hand"]), "what")
        most = draw(st.one_of(st.none(), st.integers(1, 4)), "most")
        if what == "concurrency":
            self.call("setLimits-7", "concurrency", most or "")
            self.model.most = most
        elif what == "rate":
            self.call("setLimits-7", "max", most or "", "duration", LONG if most else "")
            self.model.rate = (most, LONG) if most else None
        else:
            self.call("rateLimit-8", LONG if most else 0)
            self.model.limit_by_hand(LONG if most else 0)

    def tick(self, draw: Draw) -> None:
        milliseconds = draw(st.one_of(st.sampled_from([10, 20, 60]), st.integers(1, 40), st.just(LONG)), "milliseconds")
        assert self.queue.clock is not None
        self.queue.clock += milliseconds
        self.dead.clock = self.queue.clock
        self.letters.tick(milliseconds)
        for key in self.model.tick(milliseconds):
            self.queue.command("DEL", f"~{key}")

    # -- what must hold

    @invariant()
    def agrees(self) -> None:
        found = snapshot(self.client)
        marks: dict[str, dict[str, float]] = {}
        bases = {"": self.queue.base, "dead": self.dead.base}
        expected: dict[str, Any] = {}
        for name, model in (("", self.model), ("dead", self.letters)):
            base = bases[name]
            if base + "pc" not in found and not model.ranked:
                model.tie = 0  # a fetch that finds nothing prioritized lets ties count from the start again
            expected |= {base + key: value for key, value in model.keys().items()}
            events, model.events = model.events, []
            assert found.pop(base + "events", []) == events
            marks[name] = found.pop(base + "marker", {})
            found.pop(base + "stalled-check", None)
            found.pop(base + "stalled-check expires", None)
            meta = found.get(base + "meta", {})
            meta.pop("opts.maxLenEvents", None)
        self.client.execute_command("XTRIM", bases[""] + "events", "MAXLEN", 0)
        self.client.execute_command("XTRIM", bases["dead"] + "events", "MAXLEN", 0)
        own = {key: found.pop(key) for key in list(found) if key.startswith("emqx:")}
        assert all(key + " expires" in own for key in own if not key.endswith((" expires", ":paused-schedulers")))
        there = {key: decoded(value) for key, value in found.items() if value}
        keys = there.keys() | expected.keys()
        other = {key: (there.get(key), expected.get(key)) for key in keys if there.get(key) != expected.get(key)}
        assert not other, f"on the server, and by the model: {other}"
        assert own.get("emqx:{m}:suspects", set()) == self.model.suspects
        self.check_markers(marks[""])

    def check_markers(self, marks: Mapping[str, float]) -> None:
        """Who takes the base marker fetches, or waits by what it was told: so no worker may sleep while a job could run."""
        model = self.model
        assert set(marks) <= {"0", "1"}
        if model.waits and not model.closed and not self.nobody_looks:
            assert "0" in marks
        if model.delayed and not model.paused:
            assert min(marks.values(), default=math.inf) <= min(model.delayed.values()) / TICK

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            assert audit(self.client, "emq", "m") == []


class UniqueMachine(QueueMachine):
    """The moves, with deduplication in all its modes."""

    def moves(self) -> dict[str, int]:
        return {
            **super().moves(),
            "remove_deduplication": bool(self.model.holds),
            "leave_behind": bool(self.model.jobs),
        }

    def drawn(self, draw: Draw) -> dict[str, Any]:
        given = super().drawn(draw)
        mode = draw(st.sampled_from([*MODES, "latest"]), "mode")
        if mode != "none":
            given["de"] = {"id": draw(st.sampled_from(["x", "y"]), "deduplication id"), **MODES[mode]}
        return given

    def remove_deduplication(self, draw: Draw) -> None:
        """Whoever holds it, or only if this job does."""
        deid, owner = draw(st.sampled_from(["x", "y"]), "deduplication id"), draw(st.booleans(), "owner")
        hold = self.model.holds.get(deid)
        job_id = self.some_job(draw) if owner else ""
        expected = 1 if hold and job_id in ("", hold.owner) else 0
        assert self.call("removeDeduplicationKey-1", deid, job_id) == [expected]
        if expected:
            del self.model.holds[deid]

    def leave_behind(self, draw: Draw) -> None:
        """An older client has left an id to a job that has ended, or is gone: the next add heals that."""
        deid = draw(st.sampled_from(["x", "y"]), "deduplication id")
        owner = draw(st.sampled_from(["gone", *self.model.order(self.model.completed)]), "owner")
        self.queue.command("SET", f"~de:{deid}", owner)
        self.model.holds[deid] = Hold(owner)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            for deid, hold in self.model.holds.items():
                if self.model.state(hold.owner) in ("completed", "unknown"):
                    self.queue.command("DEL", f"~de:{deid}", f"~dn:{deid}")
        super().teardown()


class ScheduleMachine(QueueMachine):
    """The moves, with schedules of intervals that begin, change, advance, pause and end among them."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.schedules = Schedules(self.queue)
        self.schedules._line = _Line(self)

    def moves(self) -> dict[str, int]:
        known = bool(self.model.schedules)
        return {
            **super().moves(),
            "add": 1,
            "upsert": 3,
            "change_schedule": 3 * known,
            "advance": 4 * bool(self.runs()),
        }

    def runs(self) -> list[str]:
        return [job_id for job_id in self.model.active if "rjk" in self.model.jobs[job_id].more]

    def upsert(self, draw: Draw) -> None:
        one, every = draw(st.sampled_from(["s", "t"]), "schedule"), draw(st.sampled_from([20, 30]), "every")
        n, priority = draw(st.integers(1, 2), "n"), draw(st.sampled_from([0, 0, 2]), "priority")
        missed = draw(st.sampled_from(["once", "catch_up"]), "missed")
        spec = JobSpec("tick", {"n": n}, priority=priority)
        self.schedules.upsert(one, Every(every / 1000), spec, missed=missed)
        template = {"priority": priority} if priority else {}
        self.model.upsert(one, Schedule(every, f'{{"n":{n}}}', template, missed, None, 1))

    def advance(self, draw: Draw) -> None:
        """What a worker does when it has started a run; at any time after that, and once more."""
        job_id = self.some_job(draw, self.runs())
        self.schedules.advance(job_id)
        self.model.advance(job_id)

    def change_schedule(self, draw: Draw) -> None:
        one = draw(st.sampled_from(["s", "t"]), "schedule")
        how = draw(st.sampled_from(["pause", "pause", "resume", "resume", "remove", "run now"]), "how")
        model, schedules = self.model, self.schedules
        if how == "pause":
            assert schedules.pause(one) == model.pause_schedule(one)
        elif how == "resume":
            schedules.resume(one)
            model.resume_schedule(one)
        elif how == "remove":
            assert schedules.remove(one) == model.remove_schedule(one)
        else:
            found = asyncio.run(schedule.run_now(schedules._line, one))
            known = model.schedules.get(one)
            assert (found is None) == (known is None)
            if known:
                opts, priority = {"attempts": 0, **known.template}, known.template.get("priority", 0)
                model.add(Job("", known.data, opts, model.now, priority=priority, name="tick"))

    @invariant()
    def lists_what_there_is(self) -> None:
        paused = {info.id: info.paused for info in self.schedules.all()}
        assert paused == {one: found.paused for one, found in self.model.schedules.items()}


class _Line(Clocked):
    """Sends the calls of schedules on the machine's lane."""

    def __init__(self, machine: QueueMachine) -> None:
        super().__init__(machine.queue)
        self.machine = machine

    async def call(self, name: str, args: Sequence[Any], patience: Patience | None = None) -> Any:
        return self.machine.record(name, *args)

    async def add(self, jobs: Sequence[NewJob]) -> list[Any]:
        return [self.machine.call("addJobs-11", 1, "", *job) for job in jobs]


def decoded(content: Any) -> Any:
    """A hash with its options as they are meant, whoever wrote the text, and without a start that was taken back."""
    if not isinstance(content, dict) or "opts" not in content:
        return content
    meant = {**content, "opts": json.loads(content["opts"])}
    return {name: value for name, value in meant.items() if (name, value) != ("ats", "0")}


def packed(crash: Mapping[str, Any] | None) -> bytes:
    return b"" if crash is None else msgspec.msgpack.encode(crash)


def _outcome(job: Job, kind: str, token: str, dead: str) -> Outcome:
    failure = [part for pair in FAILURE.items() for part in pair]
    match kind.split():
        case ["completed" | "wrong", *how]:
            rule = NONE if how == ["gone"] else FEW if how == ["few"] else KEEP_ALL
            return Outcome("completed", job.id, token, "7", rule)
        case ["failed", *how]:
            more: dict[str, Any] = {"fields": failure, "attempts": 2}
            if how == ["expired"]:
                more |= {"fields": [*failure[:-1], "expired"], "said": ["expired"]}
            if how == ["dead"]:
                letter = {"id": job.id, "reason": "no", "attemptsMade": job.made + 1}
                opts = json.dumps(job.opts)[:-1] + ', "deadLetter":' + json.dumps(letter)[:-1] + ',"failedOn":'
                more["letter"] = [dead, opts]
            return Outcome("failed", job.id, token, "no", NONE if how == ["gone"] else KEEP_ALL, more)
        case ["cancelled"]:
            fields = ["failedReason", WHY, "failureKind", "cancelled"]
            more = {"fields": fields, "said": ["cancelled", "reason", WHY]}
            return Outcome("failed", job.id, token, WHY, KEEP_ALL, more)
        case ["retry", *how]:
            return Outcome("retry", job.id, token, "", "", {"fields": failure, "lifo": bool(how)})
        case ["later"]:
            return Outcome("delayed", job.id, token, "5", "", {"fields": failure})
        case ["skip"]:
            return Outcome("delayed", job.id, token, "7", "", {"skip": True})
        case ["wait", *how]:
            return Outcome("wait", job.id, token, str(LONG) if how else "")
        case ["back", *how]:
            return Outcome("back", job.id, token, "1" if how else "")
    raise AssertionError(kind)


@pytest.fixture(params=["valkey", "redis"])
def own_server(request: pytest.FixtureRequest, make_server: Callable[..., Server]) -> Server:
    return make_server(request.param)


def check(server: Server, machine: type[QueueMachine], *, examples: int, steps: int) -> None:
    with server.client() as client:
        machine = type(machine.__name__, (machine,), {"client": client})
        chosen = settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(machine, settings=chosen)


def test_any_order_of_moves(own_server: Server) -> None:
    check(own_server, QueueMachine, examples=100, steps=40)


def test_any_order_of_unique_jobs(own_server: Server) -> None:
    check(own_server, UniqueMachine, examples=60, steps=40)


def test_any_order_of_schedules(own_server: Server) -> None:
    check(own_server, ScheduleMachine, examples=60, steps=40)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [QueueMachine, UniqueMachine, ScheduleMachine])
def test_any_order_of_many_moves(own_server: Server, machine: type[QueueMachine]) -> None:
    check(own_server, machine, examples=5000, steps=80)
