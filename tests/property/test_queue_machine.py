"""One queue against a pure model: any order of moves, with repeated and stale calls among them, through the real scripts.

After each move everything on the server is compared: each key with its whole content, and each event that was written. So each
job is in one state, no id is left without a job and no job without a state, and no key is left behind.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping
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
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property.queue_model import TICK, Hold, Job, Model
from tests.property.snapshot import snapshot
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
    "retry lifo", "later", "skip", "wait", "wait limited", "back", "back uncalled", "wrong",
]  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "none": {}, "simple": {}, "throttle": {"ttl": LONG}, "extend": {"ttl": LONG, "extend": True},
    "debounce": {"ttl": LONG, "extend": True, "replace": True}, "replace": {"replace": True},
    "replace, throttled": {"ttl": LONG, "replace": True}, "latest": {"keepLastIfActive": True},
    "latest, replace": {"keepLastIfActive": True, "replace": True}, "reschedule": {"reschedule": True},
}  # fmt: skip
FAILURE = {"failedReason": "no", "stacktrace": '["Error: no"]', "failureKind": "unknown"}


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
        self.client.script_flush()
        self.queue = Queue(self.client, "m", prefix="emq")
        self.dead = Queue(self.client, "m", prefix="emq")
        self.dead.keys = self.dead.keys.dead_letters
        self.dead.base = self.dead.keys.base
        self.model, self.letters = Model(T), Model(T)
        self.calls: list[Call] = []
        self.adds = 0
        self.nobody_looks = False

    # -- calls

    def call(self, script: str, *args: str | bytes | int) -> list[Any]:
        """What a script of the lane answers, without the time."""

        def make(**again: Any) -> list[Any]:
            return list(text(self.queue.run(script, *args, **again)))

        answer = make()
        self.calls.append(Call(self.queue.number, make, answer))
        return answer[1:]

    def taking(self, make: Callable[..., Taken], taken: Taken) -> None:
        """Keeps a call that took jobs."""
        starts = {job_id: self.model.jobs[job_id].started for job_id in taken.ids}
        self.calls.append(Call(self.queue.number, make, taken.codes, self.queue.token, starts))

    @precondition(lambda self: self.calls and self.calls[-1].number == self.queue.number)
    @rule()
    def send_again(self) -> None:
        """A reply was lost and the call is sent again: the same answer, and nothing is done twice."""
        last = self.calls[-1]
        answer = self.repeat(last, resent=True)
        assert (answer.codes if isinstance(answer, Taken) else answer) == last.answer

    @precondition(lambda self: len(self.calls) > 1)
    @rule(back=st.integers(2, 4))
    def arrive_late(self, back: int) -> None:
        """A copy of an old call arrives after its caller has moved on: refused. (Or it is an idle worker's look.)"""
        answer = None
        with contextlib.suppress(redis.ResponseError):
            answer = self.repeat(self.calls[-min(back, len(self.calls))], resent=False)
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

    def some_job(self, data: st.DataObject, ids: Any = None) -> str:
        """An id, now and then one that no job has."""
        known = sorted(self.model.jobs if ids is None else ids)
        return str(data.draw(st.sampled_from([*known, "gone"] if ids is None else known), "job"))

    # -- adding

    def drawn(self, draw: Callable[..., Any]) -> dict[str, Any]:
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

    @rule(data=st.data(), count=st.sampled_from([1, 1, 1, 3]), max_size=st.sampled_from([None, None, 1, 4]))
    def add(self, data: st.DataObject, count: int, max_size: int | None) -> None:
        jobs, args = [], list[str | bytes]()
        for _ in range(count):
            given = self.drawn(data.draw)
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

    @rule(count=st.integers(1, 4), share=st.sampled_from([0, 0, 1, 2]), woken=st.booleans())
    def fetch(self, count: int, share: int, woken: bool) -> None:
        """``woken``: by the base marker, which it has taken."""
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

    @precondition(lambda self: self.model.active)
    @rule(data=st.data(), count=st.integers(0, 3))
    def finish(self, data: st.DataObject, count: int) -> None:
        model, queue = self.model, self.queue
        chosen = data.draw(st.lists(st.sampled_from(sorted(model.jobs)), min_size=1, max_size=3, unique=True), "jobs")
        plans = []
        for job_id in chosen:
            job = model.jobs[job_id]
            kind = data.draw(st.sampled_from(OUTCOMES), "kind")
            if "defa" in job.more and kind.startswith("completed"):
                kind = "failed"  # as each worker does
            plans.append((job_id, kind, "other:1" if kind == "wrong" else job.token or "other:1"))
        outcomes = [_outcome(model.jobs[job_id], kind, token, self.dead.base) for job_id, kind, token in plans]
        expected, ended, promoted, few = [], False, False, False
        for index, (job_id, kind, token) in enumerate(plans, 1):
            code = model.owned(job_id, token)
            expected.append(code)
            if code == 0:
                if kind.startswith("retry") and not promoted:
                    promoted = True
                    model.promote_due()
                self.end(job_id, kind, len(plans) - index)
                ended = kind.startswith(("completed", "failed"))
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
                    self.letters.add(Job("", job.data, opts, model.now, more=dict(FAILURE)))
                said = "expired" if how == ["expired"] else ""
                model.end(job_id, "failed", "no", fields, 2, keep=how != ["gone"], said=said)
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

    @precondition(lambda self: any(job.token for job in self.model.jobs.values()))
    @rule(data=st.data())
    def lose_lock(self, data: st.DataObject) -> None:
        job_id = self.some_job(data, [job.id for job in self.model.jobs.values() if job.token])
        self.queue.command("DEL", f"~{job_id}:lock")
        self.model.jobs[job_id].token = None

    @rule(confirm=st.booleans(), crash=st.booleans())
    def sweep(self, confirm: bool, crash: bool) -> None:
        """The look that marks, and puts back what was marked and has no lock; or with ``confirm`` suspects it first."""
        model = self.model
        self.queue.command("DEL", "~stalled-check")
        gone = {one for one in model.marked if one not in model.jobs or model.jobs[one].token is None}
        doubted = gone - model.suspects if confirm else set[str]()
        stalled = model.stalled() & (model.marked - doubted)
        reply = self.call(
            "moveStalledJobsToWait-11", 30_000, 1, 1500 if confirm else 0, 0, packed(CRASH if crash else None)
        )
        self.put_back(reply[2:], stalled, crash)
        model.suspects |= doubted
        model.marked = set(model.active)

    @precondition(lambda self: self.model.suspects)
    @rule(crash=st.booleans())
    def confirm(self, crash: bool) -> None:
        model = self.model
        stalled = model.stalled() & model.suspects
        reply = self.call("moveStalledJobsToWait-11", 30_000, 1, 1500, -2, packed(CRASH if crash else None))
        self.put_back(reply[2:], stalled, crash)
        model.suspects = set()

    def put_back(self, ids: list[str], expected: set[str], crash: bool) -> None:
        assert sorted(ids) == sorted(expected)
        for job_id in ids:  # in which order is chance
            excess = self.model.jobs[job_id].stalls
            pause = min(CRASH["delay"] * 2 ** max(excess - 1, 0), CRASH["longest"]) if crash else None
            self.model.recover(job_id, 1, pause)

    @precondition(lambda self: self.model.active)
    @rule(data=st.data(), old=st.booleans())
    def extend(self, data: st.DataObject, old: bool) -> None:
        """A heartbeat; also of a run that has lost its lock while nobody started the job again, or somebody did."""
        model = self.model
        job = model.jobs[self.some_job(data, model.active)]
        token = job.token or "mine:1"
        starts = job.started - 1 if old else job.started
        ours = job.token is not None or not old
        lost = self.queue.extend((job.id, token, starts))
        assert lost == ([] if ours else [job.id])
        if ours:
            job.token = token
            model.marked.discard(job.id)

    # -- control

    @rule()
    def pause(self) -> None:
        self.call("pause-6")
        self.model.pause()

    @rule()
    def resume(self) -> None:
        self.call("resume-8")
        self.model.resume()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job_id = self.some_job(data)
        assert self.call("remove-5", job_id, "1") == [self.model.remove(job_id)]

    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        job_id = self.some_job(data)
        assert self.call("promote-9", job_id) == self.model.promote(job_id)

    @rule(data=st.data(), delay=st.one_of(st.none(), st.integers(0, 30)), due=st.integers(-5, 30))
    def change_delay(self, data: st.DataObject, delay: int | None, due: int) -> None:
        job_id, moment = self.some_job(data), self.model.now + due
        args = ("", moment) if delay is None else (delay, "")
        assert self.call("changeDelay-5", job_id, *args) == self.model.change_delay(job_id, delay, moment)

    @rule(data=st.data(), priority=st.integers(0, 3), lifo=st.booleans())
    def change_priority(self, data: st.DataObject, priority: int, lifo: bool) -> None:
        job_id = self.some_job(data)
        reply = self.call("changePriority-8", job_id, priority, "1" if lifo else "")
        assert reply == self.model.change_priority(job_id, priority, lifo=lifo)

    @rule(data=st.data(), reset=st.booleans())
    def retry(self, data: st.DataObject, reset: bool) -> None:
        job_id = self.some_job(data)
        reply = self.call("reprocessJob-10", job_id, "1" if reset else "")
        assert reply == self.model.retry_ended(job_id, reset=reset)

    @rule(state=st.sampled_from(["failed", "completed", "delayed"]))
    def move_all(self, state: str) -> None:
        """retry_all, promote_all."""
        assert self.call("moveJobsToWait-11", state, "")[:2] == [self.model.move_all(state), 0]

    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        removed = 0
        for place in ("paused", "wait", "prioritized", *(["delayed"] if delayed else [])):
            removed += self.call("drain-9", place, 0, "", "")[0]
        assert removed == self.model.drain(delayed=delayed)

    @rule(place=st.sampled_from(PLACES), grace=st.integers(0, 40), limit=st.one_of(st.none(), st.integers(1, 3)))
    def clean(self, place: str, grace: int, limit: int | None) -> None:
        reply = self.call("cleanJobs-12", place, 0, "", grace, "" if limit is None else limit)
        assert reply[0] == self.model.clean(place, grace, limit)

    @precondition(lambda self: self.letters.jobs)
    @rule(data=st.data(), one=st.booleans())
    def requeue(self, data: st.DataObject, one: bool) -> None:
        """Dead letters go back, all or one."""
        letters, model = self.letters, self.model
        ids = [data.draw(st.sampled_from(sorted(letters.jobs)), "letter")] if one else letters.wait[::-1]
        reply = text(self.dead.run("requeue-5", self.queue.base, ids[0] if one else "", 100))
        assert reply[5:] == [self.back_from_dead(job_id) for job_id in ids]
        assert reply[1:5] == [0, "waiting" if one else "", len(ids), len(letters.wait)]
        assert model.waits

    def back_from_dead(self, letter_id: str) -> str:
        letter, model = self.letters.jobs[letter_id], self.model
        opts = {name: value for name, value in letter.opts.items() if name != "deadLetter"}
        job_id = str(letter.opts["deadLetter"]["id"])
        while job_id in model.jobs:
            model.number += 1
            job_id = str(model.number)
        model.store(Job(job_id, letter.data, opts, model.now, priority=opts.get("priority", 0)))
        self.letters.forget(letter_id)
        self.letters.tell("removed", "jobId", letter_id, "prev", "wait")
        return job_id

    # -- limits

    @rule(most=st.one_of(st.none(), st.integers(1, 3)))
    def set_concurrency(self, most: int | None) -> None:
        self.call("setLimits-7", "concurrency", "" if most is None else most)
        self.model.most = most

    @rule(rate=st.one_of(st.none(), st.integers(1, 4)))
    def set_rate_limit(self, rate: int | None) -> None:
        self.call("setLimits-7", "max", rate or "", "duration", LONG if rate else "")
        self.model.rate = (rate, LONG) if rate else None

    @rule(after=st.sampled_from([0, LONG]))
    def rate_limit(self, after: int) -> None:
        self.call("rateLimit-8", after)
        self.model.limit_by_hand(after)

    @rule(milliseconds=st.one_of(st.integers(1, 40), st.just(LONG)))
    def tick(self, milliseconds: int) -> None:
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
        assert {key: decoded(value) for key, value in found.items() if value} == expected
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

    def drawn(self, draw: Callable[..., Any]) -> dict[str, Any]:
        given = super().drawn(draw)
        mode = draw(st.sampled_from(list(MODES)), "mode")
        if mode != "none":
            given["de"] = {"id": draw(st.sampled_from(["x", "y"]), "deduplication id"), **MODES[mode]}
        return given

    @rule(deid=st.sampled_from(["x", "y"]), owner=st.booleans(), data=st.data())
    def remove_deduplication(self, deid: str, owner: bool, data: st.DataObject) -> None:
        """Whoever holds it, or only if this job does."""
        hold = self.model.holds.get(deid)
        job_id = self.some_job(data) if owner else ""
        expected = 1 if hold and job_id in ("", hold.owner) else 0
        assert self.call("removeDeduplicationKey-1", deid, job_id) == [expected]
        if expected:
            del self.model.holds[deid]

    @rule(deid=st.sampled_from(["x", "y"]), data=st.data())
    def leave_behind(self, deid: str, data: st.DataObject) -> None:
        """An older client has left an id to a job that has ended, or is gone: the next add heals that."""
        owner = data.draw(st.sampled_from(["gone", *self.model.order(self.model.completed)]), "owner")
        self.queue.command("SET", f"~de:{deid}", owner)
        self.model.holds[deid] = Hold(owner)

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            for deid, hold in self.model.holds.items():
                if self.model.state(hold.owner) in ("completed", "unknown"):
                    self.queue.command("DEL", f"~de:{deid}", f"~dn:{deid}")
            for deid in self.model.kept:  # freed by hand, and then the job was removed whose end was waited for
                if deid not in self.model.holds:
                    self.queue.command("DEL", f"~dn:{deid}")
        super().teardown()


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
    check(own_server, QueueMachine, examples=150, steps=40)


def test_any_order_of_unique_jobs(own_server: Server) -> None:
    check(own_server, UniqueMachine, examples=150, steps=40)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [QueueMachine, UniqueMachine])
def test_any_order_of_many_moves(own_server: Server, machine: type[QueueMachine]) -> None:
    check(own_server, machine, examples=5000, steps=80)
