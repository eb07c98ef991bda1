"""What a job was given comes back whole, whichever way it goes back into the line: each option, through each way.

A job is added, runs, goes back by one of the ways, and runs again. Then its hash is what it was, text for text, but for the
counters and facts that this way writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from echomq import Backoff, Every, JobSpec, Keep
from echomq._store.codec import StoredJob, dead_letter_opts
from tests.store.schedules import Schedules
from tests.store.scripts import Outcome, Queue, T, job_args, text
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

Changes = dict[str, str | None]
"""The fields that a way writes; None: the field is gone."""

CLASS = 2**32
DATA = (
    '{"s":"é \\u0000 \\"/\\" \\ud83d\\ude00","n":null,"big":12345678901234567890,"one":1.0,"list":[],"deep":[{"a":{}}]}'
)
FAILED: Changes = {"failedReason": "no", "stacktrace": '["Error: no"]', "failureKind": "transient"}
FAILURE = [part for pair in FAILED.items() for part in pair]


@dataclass(frozen=True)
class Given:
    """What a job is given: its options as they are stored, arguments of the add, and fields that Node's add would write."""

    opts: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    add: dict[str, Any] = field(default_factory=dict)


FOREIGN = {"group": {"id": 7, "limit": None}, "nested": [{"x": []}, 1.0, "a/b"], "big": 12345678901234567890, "ü": True}
PARENT = {
    "parentKey": "bull:q:P", "parent": '{"id":"P","queueKey":"bull:q","idof":true}',
}  # fmt: skip
OPTIONS = {
    "nothing": Given(),
    "priority": Given({"priority": 7}, add={"priority": 7}),
    "highest priority": Given({"priority": 2097151}, add={"priority": 2097151}),
    "lifo": Given({"lifo": True}, add={"lifo": True}),
    "delay": Given({"delay": 30}, add={"delay": 30}),
    "delay and priority": Given({"delay": 30, "priority": 2}, add={"delay": 30, "priority": 2}),
    "timestamp": Given({"timestamp": 1_700_000_000_000}, add={"timestamp": 1_700_000_000_000}),
    "job_id": Given({"jobId": "mine"}, add={"job_id": "mine"}),
    "attempts": Given({"attempts": 5}),
    "backoff": Given({"attempts": 3, "backoff": {"type": "exponential", "delay": 1000, "jitter": 0.25}}),
    "retention": Given({"removeOnComplete": {"age": 10, "count": 5, "limit": 3}, "removeOnFail": False}),
    "stack_trace_limit": Given({"stackTraceLimit": 0}),
    "expire_in": Given({"expireIn": 60_000}),
    "telemetry": Given({"tm": '{"traceparent":"00-1-2-01"}', "omc": True, "kl": 7, "sizeLimit": 10_000}, {"tm": "t"}),
    "deduplication": Given(add={"de": {"id": "D"}}),
    "throttled": Given(add={"de": {"id": "D", "ttl": 900_000}}),
    "latest": Given(add={"de": {"id": "D", "keepLastIfActive": True}}),
    "child of a Node flow": Given({"parent": {"id": "P", "queue": "bull:q"}, "idof": True, "attempts": 0}, PARENT),
    "options unknown to us": Given(FOREIGN),
    "all at once": Given(
        {**FOREIGN, "priority": 3, "attempts": 9, "backoff": {"type": "by-hour"}, "expireIn": 5, "tm": "x", "lifo": True},
        {"tm": "t", "pb": "a worker", "progress": '{"half":0.5}', **PARENT},
        {"priority": 3, "lifo": True, "de": {"id": "D"}},
    ),
}  # fmt: skip


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return Queue(client)


@pytest.fixture(params=list(OPTIONS))
def given(request: pytest.FixtureRequest) -> Given:
    return OPTIONS[request.param]


def add(queue: Queue, given: Given) -> str:
    """Adds a job of these options, with Node's own fields."""
    job_id = queue.add("job", DATA, opts=given.opts, **given.add)
    if "parentKey" in given.fields:
        queue.command("HSET", "~P", "name", "parent", "data", "{}", "opts", "{}", "timestamp", T)
        queue.command("SADD", "~P:dependencies", queue.base + job_id)
    for name, value in given.fields.items():
        queue.command("HSET", f"~{job_id}", name, value)
    return job_id


def start(queue: Queue, job_id: str) -> dict[str, str]:
    """Lets the job run; gives its hash."""
    assert queue.clock is not None
    queue.clock += 1000
    assert queue.fetch().ids == [job_id]
    return dict(queue.get(job_id))


def finish(queue: Queue, job_id: str, kind: str, value: str = "", rule: str = "", **more: Any) -> None:
    token = queue.get(f"{job_id}:lock")
    code = queue.finish(Outcome(kind, job_id, token, value, rule, more)).codes[0]
    assert isinstance(code, int)
    assert 0 <= code <= 5  # where it was rate limited, what is left of its milliseconds


def fail(queue: Queue, job_id: str) -> None:
    finish(queue, job_id, "failed", "no", "-1;;", fields=FAILURE, attempts=1)


def call(queue: Queue, script: str, *args: str | int) -> list[Any]:
    return list(text(queue.run(script, *args))[1:])


# -- the ways back


def retry_at_once(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "retry", fields=FAILURE)
    return {**FAILED, "atm": "1"}


def retry_delayed(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "delayed", "500", fields=FAILURE)
    assert queue.get(job_id)["delay"] == "500"
    return {**FAILED, "atm": "1"}


def retry_later(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "delayed", "500", skip=True)
    return {}


def rate_limited(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "wait", "5")
    queue.command("DEL", "~limiter")
    return {}


def given_back(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "back")
    return {}


def given_back_uncalled(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "back", "1")
    return {"ats": "1"}


def stalled(queue: Queue, job_id: str) -> Changes:
    queue.command("DEL", f"~{job_id}:lock", "~stalled-check")
    queue.sweep()
    queue.command("DEL", "~stalled-check")
    assert queue.sweep()[3:] == [job_id]
    return {"stc": "1"}


def stalled_too_often(queue: Queue, job_id: str) -> Changes:
    queue.command("DEL", f"~{job_id}:lock", "~stalled-check")
    queue.sweep()
    queue.command("DEL", "~stalled-check")
    assert queue.sweep(most=0)[3:] == [job_id]
    return {"stc": "1", "defa": "job stalled more than allowable limit"}


def backed_off_after_crash(queue: Queue, job_id: str) -> Changes:
    queue.command("DEL", f"~{job_id}:lock", "~stalled-check")
    queue.sweep()
    queue.command("DEL", "~stalled-check")
    assert queue.sweep(most=0, crash={"type": "fixed", "delay": 100, "longest": 100})[3:] == [job_id]
    return {"stc": "1"}


def promoted(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "delayed", "90000", skip=True)
    assert call(queue, "promote-9", job_id) == [0, ""]
    return {}


def promoted_with_all(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "delayed", "90000", skip=True)
    assert call(queue, "moveJobsToWait-11", "delayed", "")[0] == 1
    return {}


def due_in(queue: Queue, job_id: str, delay: int) -> Changes:
    """From when on a job has the time within which it must be started, if there is one."""
    assert queue.clock is not None
    return {"due": str(queue.clock + delay)} if "expireIn" in queue.get(job_id)["opts"] else {}


def given_another_delay(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "delayed", "90000", skip=True)
    assert call(queue, "changeDelay-5", job_id, 200, "") == [0, ""]
    return due_in(queue, job_id, 200)


def given_another_priority(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "back")
    assert call(queue, "changePriority-8", job_id, 5, "") == [0, ""]
    return {"priority": "5"}


def given_no_priority(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "back")
    assert call(queue, "changePriority-8", job_id, 0, "1") == [0, ""]
    return {"priority": "0"}


def failed_and_retried(queue: Queue, job_id: str) -> Changes:
    fail(queue, job_id)
    assert call(queue, "reprocessJob-10", job_id, "") == [0, ""]
    return {"stacktrace": FAILED["stacktrace"], "atm": "1"}


def failed_and_retried_from_the_start(queue: Queue, job_id: str) -> Changes:
    fail(queue, job_id)
    assert call(queue, "reprocessJob-10", job_id, "1") == [0, ""]
    return {"stacktrace": FAILED["stacktrace"], "ats": "1", **due_in(queue, job_id, 0)}


def failed_and_retried_with_all(queue: Queue, job_id: str) -> Changes:
    fail(queue, job_id)
    assert call(queue, "moveJobsToWait-11", "failed", "")[0] == 1
    return {"stacktrace": FAILED["stacktrace"], "atm": "1"}


def completed_and_retried(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "completed", "null", "-1;;", fields=["resultError", "too large"])
    assert call(queue, "reprocessJob-10", job_id, "") == [0, ""]
    return {"atm": "1"}


def skipped_and_retried_with_all(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "completed", "null", "-1;;", fields=["skipped", "late"], said=["skipped", "late", "5"])
    assert call(queue, "moveJobsToWait-11", "completed", "")[0] == 1
    return {"atm": "1"}


def paused_by_version_5(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "back")
    queue.command("HSET", "~meta", "paused", 1)
    if queue.get("wait"):
        queue.command("RENAME", "~wait", "~paused")
    queue.resume()
    assert queue.get("paused") is None
    return {}


def healed(queue: Queue, job_id: str) -> Changes:
    finish(queue, job_id, "back")
    queue.command("LREM", "~wait", 0, job_id)
    queue.command("ZREM", "~prioritized", job_id)
    found = text(queue.run("lookForLost-9", "look", job_id))
    assert found[0] == job_id
    assert call(queue, "healJobs-12", *found)[0] == job_id
    return {"healed": "1"}


WAYS = [
    retry_at_once, retry_delayed, retry_later, rate_limited, given_back, given_back_uncalled, stalled, stalled_too_often,
    backed_off_after_crash, promoted, promoted_with_all, given_another_delay, given_another_priority, given_no_priority,
    failed_and_retried, failed_and_retried_from_the_start, failed_and_retried_with_all, completed_and_retried,
    skipped_and_retried_with_all, paused_by_version_5, healed,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_job_comes_back_as_it_was(queue: Queue, given: Given, way: Callable[[Queue, str], Changes]) -> None:
    job_id = add(queue, given)
    before = start(queue, job_id)
    assert before["data"] == DATA
    changes = way(queue, job_id)
    priority = int(queue.get(job_id)["priority"])
    assert priority == int(changes.get("priority") or given.add.get("priority", 0))
    if queue.state(job_id) == "delayed":
        assert queue.clock is not None
        queue.clock += 1000
        assert queue.fetch(0).ids == []  # promotes
    where = dict(queue.get("prioritized") or [])
    assert [int(where[job_id] // CLASS)] == [priority] if priority else queue.get("wait") == [job_id]
    after = start(queue, job_id)
    changed = {"ats": "2", "processedOn": str(queue.clock), "delay": "0", **changes}
    assert after == {name: value for name, value in {**before, **changed}.items() if value is not None}
    if "parentKey" in given.fields:
        assert queue.get("P:dependencies") == {queue.base + job_id}, "its parent waits for it"


def test_a_run_that_is_taken_again_changes_nothing(queue: Queue, given: Given) -> None:
    job_id = add(queue, given)
    before = start(queue, job_id)
    token, ats = queue.token, int(before["ats"])
    queue.command("DEL", f"~{job_id}:lock")
    assert queue.extend((job_id, token, ats)) == []
    assert queue.get(job_id) == before
    queue.command("DEL", f"~{job_id}:lock")
    replay = queue.fetch(number=int(token.rpartition(":")[2]), resent=True)
    assert replay.jobs == {job_id: before}, "nor does a fetch whose answer was lost"
    assert queue.get(job_id) == before


# -- ways that make a new job of it


def test_a_job_that_was_kept_is_what_it_would_have_been(queue: Queue, given: Given) -> None:
    latest = {"id": "K", "keepLastIfActive": True}
    owner = queue.add(de=latest)
    start(queue, owner)
    options = {name: value for name, value in given.add.items() if name not in ("de", "timestamp")}
    job_args_of_it = job_args("job", DATA, opts={**given.opts, **options}, de=latest, **options)
    added = list(text(queue.run("addJobs-11", 1, "", *job_args_of_it))[1:])
    assert added == [owner, 2]
    finish(queue, owner, "completed", "null", "-1;;")
    job_id = str(queue.get("de:K"))
    stored = queue.get(job_id)
    assert stored == {
        "name": "job", "data": DATA, "opts": job_args_of_it[2], "timestamp": str(queue.clock),
        "delay": str(options.get("delay", 0)), "priority": str(options.get("priority", 0)), "deid": "K",
    }  # fmt: skip
    start(queue, job_id)


def test_a_dead_letter_goes_back_with_all_that_the_job_was_given(queue: Queue, given: Given) -> None:
    job_id = add(queue, given)
    before = start(queue, job_id)
    dead = Queue(queue.client)
    dead.keys = dead.keys.dead_letters
    dead.base, dead.clock = dead.keys.base, queue.clock
    flat = queue.client.execute_command("HGETALL", queue.base + job_id)
    opts = dead_letter_opts(StoredJob.from_reply(job_id.encode(), flat), "no")
    more = {"fields": FAILURE, "attempts": 1, "letter": [dead.base, opts.decode()]}
    finish(queue, job_id, "failed", "no", "0;;", **more)
    assert queue.get(job_id) is None
    [letter_id] = dead.get("wait")
    letter = dead.get(letter_id)
    assert (letter["name"], letter["data"], letter["failedReason"]) == ("job", DATA, "no")
    assert text(dead.run("requeue-5", queue.base, "", 100))[5:] == [job_id]
    stored = queue.get(job_id)
    priority = given.add.get("priority", 0)
    said = {name: value for name, value in json.loads(before["opts"]).items() if name not in OF_ONE_LIFE}
    assert json.loads(stored.pop("opts")) == {**said, "priority": priority}
    assert stored == {
        "name": "job", "data": DATA, "timestamp": str(queue.clock), "delay": "0", "priority": str(priority),
    }  # fmt: skip
    assert queue.state(job_id) == ("prioritized" if priority else "waiting")


OF_ONE_LIFE = ["jobId", "timestamp", "delay", "parent", "idof", "de"]
"""What was said of the job that failed, and not of the one that is made of its letter."""

TEMPLATES = {
    "nothing": JobSpec("tick", {"a": 1}),
    "priority": JobSpec("tick", {"a": 1}, priority=7),
    "lifo": JobSpec("tick", {"a": 1}, lifo=True),
    "attempts": JobSpec("tick", {"a": 1}, attempts=5, backoff=Backoff.exponential(3, jitter=0.5)),
    "retention": JobSpec("tick", {"a": 1}, remove_on_complete=Keep(count=5), remove_on_fail=Keep.NONE),
    "stack_trace_limit": JobSpec("tick", {"a": 1}, stack_trace_limit=2),
    "expire_in": JobSpec("tick", {"a": 1}, expire_in=600),
}


@pytest.mark.parametrize("template", list(TEMPLATES))
@pytest.mark.parametrize("way", [given_back, retry_at_once, stalled])
def test_each_run_of_a_schedule_is_given_what_its_template_has(
    queue: Queue, template: str, way: Callable[[Queue, str], Changes]
) -> None:
    schedules = Schedules(queue)
    schedules.upsert("s", Every(60), TEMPLATES[template])
    first_id = f"repeat:s:{T}"
    opts = json.loads(queue.get(first_id)["opts"])
    queue.command("HSET", f"~{first_id}", "opts", json.dumps({**opts, **FOREIGN, "tm": "x"}, ensure_ascii=False))
    before = start(queue, first_id)
    schedules.advance(first_id)
    way(queue, first_id)  # and its iteration that follows is not made twice
    assert queue.get("repeat") == [("s", T + 60_000)]
    after = queue.get(f"repeat:s:{T + 60_000}")
    first, second = json.loads(before["opts"]), json.loads(after["opts"])
    own = ("jobId", "delay", "timestamp", "repeat")
    assert second["repeat"] == {**first["repeat"], "count": 2}
    kept = {name: value for name, value in first.items() if name not in own}
    assert {name: value for name, value in second.items() if name not in own} == {"attempts": 0, **kept}
    assert (after["name"], after["data"], after["priority"], after["rjk"]) == (
        before["name"], before["data"], before["priority"], "s",
    )  # fmt: skip
    assert queue.get(first_id)["opts"] == before["opts"]
