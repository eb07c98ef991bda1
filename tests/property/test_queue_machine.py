"""One queue against a pure model: any order of moves, with repeated and stale calls among them, through the real scripts.

After each move the whole state is compared: who stands where and in which order, the counters of each job, every lock.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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

from tests.store.scripts import KEEP_ALL, Dump, Outcome, Queue, completed, failed, retried
from tests.support.server import Server

CLASS = 2**32
TICK = 4096
NONE = "0;;"


@dataclass
class Job:
    """What the model knows of a job."""

    id: str
    priority: int = 0
    delay: int = 0
    made: int = 0
    started: int = 0
    stalls: int = 0
    deferred: bool = False
    token: str | None = None


@dataclass
class Model:
    """The queue as the protocol tells it, in plain Python."""

    jobs: dict[str, Job] = field(default_factory=dict)
    wait: list[str] = field(default_factory=list)  # head first; the tail is next
    ranked: dict[str, int] = field(default_factory=dict)
    delayed: dict[str, int] = field(default_factory=dict)
    active: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    number: int = 0
    tie: int = 0
    paused: bool = False
    most: int | None = None

    def rank(self, priority: int) -> int:
        self.tie += 1
        return priority * CLASS + self.tie

    def front(self, priority: int) -> int:
        mates = [score for score in self.ranked.values() if priority * CLASS <= score < (priority + 1) * CLASS]
        return max(min(mates) - 1, priority * CLASS) if mates else self.rank(priority)

    def due_score(self, due: int) -> int:
        mates = [score for score in self.delayed.values() if due * TICK <= score < (due + 1) * TICK]
        return min(max(mates) + 1, (due + 1) * TICK - 1) if mates else due * TICK

    def order(self, scores: dict[str, int]) -> list[str]:
        return sorted(scores, key=lambda job_id: (scores[job_id], job_id.encode()))

    def place(self, job: Job, *, front: bool) -> None:
        if job.priority:
            self.ranked[job.id] = self.rank(job.priority)
        elif front:
            self.wait.append(job.id)
        else:
            self.wait.insert(0, job.id)

    def place_first(self, job: Job) -> None:
        if job.priority:
            self.ranked[job.id] = self.front(job.priority)
        else:
            self.wait.append(job.id)

    def promote(self, now: int) -> None:
        for job_id in self.order(self.delayed):
            if self.delayed[job_id] < (now + 1) * TICK:
                del self.delayed[job_id]
                self.jobs[job_id].delay = 0
                self.place(self.jobs[job_id], front=False)

    def fetch(self, wanted: int, now: int, token: str) -> list[str]:
        """The idle look (nothing runnable, nothing due) changes nothing; everything else is one fetch."""
        self.promote(now)
        if self.paused:
            return []
        if self.most is not None:
            wanted = min(wanted, self.most - len(self.active))
        if wanted <= 0:
            return []
        taken: list[str] = []
        while len(taken) < wanted and self.wait:
            taken.append(self.wait.pop())
        ranked = self.order(self.ranked)
        if len(ranked) < wanted - len(taken):
            self.tie = 0
        for job_id in ranked[: wanted - len(taken)]:
            del self.ranked[job_id]
            taken.append(job_id)
        for job_id in taken:
            self.active.insert(0, job_id)
            self.jobs[job_id].started += 1
            self.jobs[job_id].token = token
        return taken

    def drop(self, job_id: str) -> None:
        for line in (self.wait, self.active):
            if job_id in line:
                line.remove(job_id)
        for scores in (self.ranked, self.delayed):
            scores.pop(job_id, None)
        self.ended.pop(job_id, None)
        del self.jobs[job_id]


class QueueMachine(RuleBasedStateMachine):
    """The moves."""

    client: redis.Redis

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.client.script_flush()
        self.queue = Queue(self.client, "m", prefix="emq")
        self.model = Model()
        self.again: Callable[..., Any] | None = None
        self.again_number = 0
        self.again_token = ""
        self.again_starts: dict[str, int] = {}
        self.limited = False

    def now(self) -> int:
        assert self.queue.clock is not None
        return self.queue.clock

    # -- adding

    @rule(
        kind=st.sampled_from(["plain", "lifo", "ranked", "delayed", "named", "delayed ranked"]),
        priority=st.integers(1, 3),
        delay=st.integers(1, 30),
        name=st.sampled_from(["a", "b", "c"]),
    )
    def add(self, kind: str, priority: int, delay: int, name: str) -> None:
        model = self.model
        options: dict[str, Any] = {}
        if "ranked" in kind:
            options["priority"] = priority
        if "delayed" in kind:
            options["delay"] = delay
        if kind == "lifo":
            options["lifo"] = True
        if kind == "named":
            options["job_id"] = name
        job_id = self.queue.add(**options)
        model.number += 1
        if kind == "named":
            assert job_id == name
            if name in model.jobs:
                return
        else:
            assert job_id == str(model.number)
        job = model.jobs[job_id] = Job(job_id, options.get("priority", 0), options.get("delay", 0))
        if job.delay:
            model.delayed[job_id] = model.due_score(self.now() + job.delay)
        else:
            model.place(job, front=kind == "lifo")

    # -- fetching and finishing

    @rule(count=st.integers(1, 4))
    def fetch(self, count: int) -> None:
        model, queue = self.model, self.queue
        nothing = not model.paused and not model.wait and not model.ranked
        due = any(score < (self.now() + 1) * TICK for score in model.delayed.values())
        taken = queue.fetch(count)
        if nothing and not due:
            assert taken.ids == []
            model.tie = 0
            return
        assert taken.ids == model.fetch(count, self.now(), queue.token)
        self.keep(lambda **call: queue.fetch(count, **call), taken.ids)

    @precondition(lambda self: self.model.active)
    @rule(data=st.data(), count=st.integers(0, 3))
    def finish(self, data: st.DataObject, count: int) -> None:
        model, queue = self.model, self.queue
        chosen = data.draw(st.lists(st.sampled_from(sorted(model.jobs)), min_size=1, max_size=3, unique=True), "jobs")
        outcomes: list[Outcome] = []
        expected: list[int] = []
        promoted = False
        plans = []
        for job_id in chosen:
            job = model.jobs[job_id]
            kind = data.draw(
                st.sampled_from(["completed", "failed", "gone", "retry", "later", "wait", "back", "wrong"]), "kind"
            )
            plans.append((job, kind, "other:1" if kind == "wrong" else job.token or "other:1"))
        for job, kind, token in plans:
            outcomes.append(_outcome(job, kind, token))
            if job.token != token or job.token is None:
                expected.append(-2 if job.token is None else -6)
                continue
            if kind == "retry" and not promoted:
                promoted = True
                model.promote(self.now())
            expected.append(0)
            self._end(job, kind)
        taken = queue.finish(*outcomes, count=count)
        assert taken.codes == expected
        assert taken.ids == (model.fetch(count, self.now(), queue.token) if count else [])
        self.keep(lambda **call: queue.finish(*outcomes, count=count, **call), taken.ids)

    def _end(self, job: Job, kind: str) -> None:
        model = self.model
        model.active.remove(job.id)
        model.marked.discard(job.id)
        job.token = None
        if kind in ("completed", "failed"):
            job.made += 1
            job.deferred = job.deferred and kind == "completed"
            model.ended[job.id] = kind
        elif kind == "gone":
            del model.jobs[job.id]
        elif kind == "retry":
            job.made += 1
            model.place(job, front=False)
        elif kind == "later":
            job.made += 1
            job.delay = 5
            model.delayed[job.id] = model.due_score(self.now() + 5)
        elif kind == "wait" and job.priority:
            model.ranked[job.id] = job.priority * CLASS
        else:
            model.place_first(job)

    # -- trouble

    @precondition(lambda self: any(job.token for job in self.model.jobs.values()))
    @rule(data=st.data())
    def lose_lock(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(job.id for job in self.model.jobs.values() if job.token)), "job")
        self.queue.command("DEL", f"~{job_id}:lock")
        self.model.jobs[job_id].token = None

    @rule()
    def sweep(self) -> None:
        model = self.model
        self.queue.command("DEL", "~stalled-check")
        reply = self.queue.sweep(most=1)
        stalled = [job_id for job_id in model.marked if job_id in model.active and model.jobs[job_id].token is None]
        assert sorted(reply[3:]) == sorted(stalled)
        for job_id in reply[3:]:
            job = model.jobs[job_id]
            model.active.remove(job_id)
            job.stalls += 1
            job.deferred = job.deferred or job.stalls > 1
            model.place_first(job)
        model.marked = set(model.active)

    @precondition(lambda self: self.model.active)
    @rule(data=st.data(), old=st.booleans())
    def extend(self, data: st.DataObject, old: bool) -> None:
        """A heartbeat; also of a run that has lost its lock while nobody started the job again, or somebody did."""
        model = self.model
        job = model.jobs[data.draw(st.sampled_from(sorted(model.active)), "job")]
        token = job.token or "mine:1"
        starts = job.started - 1 if old else job.started
        ours = job.token is not None or not old
        lost = self.queue.extend((job.id, token, starts))
        assert lost == ([] if ours else [job.id])
        if ours:
            job.token = token
            model.marked.discard(job.id)

    @precondition(lambda self: self.again is not None and self.queue.number == self.again_number)
    @rule()
    def send_again(self) -> None:
        """A reply was lost and the call is sent again: the same answer, and nothing is done twice."""
        self._repeat(resent=True)

    @precondition(lambda self: self.again is not None and self.queue.number > self.again_number)
    @rule()
    def arrive_late(self) -> None:
        """A copy of an old call arrives after its caller has moved on: refused, or answered again."""
        with contextlib.suppress(redis.ResponseError):
            self._repeat(resent=False)

    def _repeat(self, *, resent: bool) -> None:
        """Only a lock may change: of a job that this fetch took, that has lost it, and that nobody has started since."""
        assert self.again is not None
        before = self._without_locks()
        try:
            answer = self.again(number=self.again_number, resent=resent)
        finally:
            assert self._without_locks() == before
        for job_id in answer.ids:
            assert self.model.jobs[job_id].started == self.again_starts[job_id]
            self.model.jobs[job_id].token = self.again_token

    def _without_locks(self) -> Dump:
        return {key: value for key, value in self.queue.dump().items() if ":lock" not in key}

    def keep(self, call: Callable[..., Any], ids: list[str]) -> None:
        self.again, self.again_number, self.again_token = call, self.queue.number, self.queue.token
        self.again_starts = {job_id: self.model.jobs[job_id].started for job_id in ids}

    # -- control

    @rule()
    def pause(self) -> None:
        self.queue.pause()
        self.model.paused = True
        self.again = None

    @rule()
    def resume(self) -> None:
        self.queue.resume()
        self.model.paused = False
        self.again = None

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        model = self.model
        job_id = data.draw(st.sampled_from(sorted(model.jobs)), "job")
        locked = model.jobs[job_id].token is not None
        assert self.queue.remove(job_id) == (0 if locked else 1)
        self.again = None
        if not locked:
            model.drop(job_id)

    @rule(milliseconds=st.integers(1, 40))
    def tick(self, milliseconds: int) -> None:
        assert self.queue.clock is not None
        self.queue.clock += milliseconds

    @rule(most=st.one_of(st.none(), st.integers(1, 3)))
    def set_concurrency(self, most: int | None) -> None:
        if most is None:
            self.queue.command("HDEL", "~meta", "concurrency")
        else:
            self.limited = True
            self.queue.command("HSET", "~meta", "concurrency", most)
        self.model.most = most

    # -- what must hold

    @invariant()
    def agrees(self) -> None:
        model, get = self.model, self.queue.get
        assert (get("wait") or []) == model.wait
        assert (get("active") or []) == model.active
        assert [job_id for job_id, _ in get("prioritized") or []] == model.order(model.ranked)
        assert dict(get("delayed") or []) == model.delayed
        ends = {job_id: kind for kind in ("completed", "failed") for job_id, _ in get(kind) or []}
        assert ends == model.ended
        for job in model.jobs.values():
            stored = get(job.id)
            assert stored is not None, f"job {job.id} is lost"
            counters = [int(stored.get(name, 0)) for name in ("atm", "ats", "stc", "priority", "delay")]
            assert counters == [job.made, job.started, job.stalls, job.priority, job.delay], job.id
            assert ("defa" in stored) == job.deferred
            assert get(f"{job.id}:lock") == job.token

    @invariant()
    def marker_is_set(self) -> None:
        """Nobody takes the marker here, so whenever a job could run it must be there: no worker may sleep on."""
        model = self.model
        if not self.limited and not model.paused and (model.wait or model.ranked):
            assert ("0", 0.0) in (self.queue.get("marker") or [])

    @invariant()
    def delay_marker_is_early_enough(self) -> None:
        model = self.model
        if not self.limited and not model.paused and model.delayed:
            marks = dict(self.queue.get("marker") or [])
            assert min(marks.values(), default=math.inf) <= min(model.delayed.values()) / TICK


def _outcome(job: Job, kind: str, token: str) -> Outcome:
    match kind:
        case "completed" | "wrong":
            return completed(job.id, token, rule=KEEP_ALL)
        case "gone":
            return completed(job.id, token, rule=NONE)
        case "failed":
            return failed(job.id, token, "no", rule=KEEP_ALL)
        case "retry":
            return retried(job.id, token, "no")
        case "later":
            return retried(job.id, token, "no", 5)
        case "wait":
            return Outcome("wait", job.id, token)
        case _:
            return Outcome("back", job.id, token)


@pytest.fixture(params=["valkey", "redis"])
def own_server(request: pytest.FixtureRequest, make_server: Callable[..., Server]) -> Server:
    return make_server(request.param)


def check(server: Server, *, examples: int, steps: int) -> None:
    with server.client() as client:
        machine = type("Machine", (QueueMachine,), {"client": client})
        chosen = settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(machine, settings=chosen)


def test_any_order_of_moves(own_server: Server) -> None:
    check(own_server, examples=150, steps=40)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_any_order_of_many_moves(own_server: Server) -> None:
    check(own_server, examples=5000, steps=80)
