"""What cancelling a job leaves on the server, key by key: in every state, with all that stands around the job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis

from tests.store.scripts import KEEP_ALL, Outcome, Queue, T, completed, failed, job_args, pairs, retried, text
from tests.support.audit import audit

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

WHY = "the learner has left"
PARENT = "bull:P:pp"


def cancel(queue: Queue, job_id: str, *, advanced: str = "", **call: Any) -> int:
    return int(queue.run("cancelJob-16", job_id, WHY, advanced, **call)[1])


def told(queue: Queue) -> list[list[str]]:
    """What the stream of requests says."""
    entries = queue.client.execute_command("XRANGE", queue.keys.resolve("cancels"), "-", "+")
    return [text(fields) for _, fields in entries]


def ended(queue: Queue, job_id: str) -> dict[str, str]:
    """The hash of a job that has ended as cancelled."""
    job: dict[str, str] = queue.get(job_id)
    assert (job["failedReason"], job["failureKind"], job["finishedOn"], job["stacktrace"]) == (
        WHY, "cancelled", str(queue.clock), "[]",
    )  # fmt: skip
    assert queue.state(job_id) == "failed"
    assert queue.is_finished(job_id) == [[2, WHY, "cancelled"]]
    return job


def place(queue: Queue, state: str) -> None:
    """A job ``1`` in this state, between two others of it."""
    options = {"delayed": {"delay": 5000}, "prioritized": {"priority": 3}}.get(state, {})
    queue.add_many([job_args(job_id=one, **options) for one in ("0", "1", "2")])  # type: ignore[arg-type]
    if state == "waiting-children":
        queue.command("LREM", "~wait", 0, "1")
        queue.command("ZADD", "~waiting-children", T, "1")
        queue.command("SADD", "~1:dependencies", "bull:q:2")
    elif state == "paused":
        queue.command("HSET", "~meta", "paused", 1)
        queue.command("RENAME", "~wait", "~paused")
    queue.new_events()


STATES = {"waiting": "wait", "paused": "paused", "delayed": "delayed", "prioritized": "prioritized",
          "waiting-children": "waiting-children"}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_one_that_waits_fails_at_once(queue: Queue, state: str) -> None:
    place(queue, state)
    before = queue.get(STATES[state])
    queue.clock = T + 1
    assert cancel(queue, "1") == 1
    ended(queue, "1")
    left = queue.get(STATES[state]) or []
    assert left == [one for one in before if one not in ("1", ("1", float(T))) and one[0] != "1"]
    assert queue.get("failed") == [("1", T + 1.0)]
    previous = "waiting" if state == "paused" else state
    assert queue.new_events() == [
        ["cancelled", "jobId", "1", "reason", WHY],
        ["failed", "jobId", "1", "failedReason", WHY, "prev", previous, "failureKind", "cancelled"],
    ]
    assert told(queue) == []
    assert "cancelRequested" not in queue.get("1")
    assert cancel(queue, "1") == 0
    assert queue.new_events() == []
    assert audit(queue.client, "bull", "q") == []


def test_one_that_is_being_run_is_asked_to_stop(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    before = queue.dump()
    assert cancel(queue, "1") == 2
    after = queue.dump()
    assert after["bull:q:1"] == {**before["bull:q:1"], "cancelRequested": WHY}
    assert {key: one for key, one in after.items() if key != "bull:q:1"} == {
        key: one for key, one in before.items() if key != "bull:q:1"
    }
    assert told(queue) == [["jobId", "1"]]
    assert 0 < queue.client.execute_command("TTL", queue.keys.resolve("cancels")) <= 3600
    # A second request keeps the first one's reason.
    assert int(queue.run("cancelJob-16", "1", "another", "")[1]) == 2
    assert queue.get("1")["cancelRequested"] == WHY
    queue.new_events()
    assert queue.finish(as_cancelled("1", token)).codes == [0]
    job = ended(queue, "1")
    assert (job["atm"], "cancelRequested" in job, queue.get("1:lock")) == ("1", False, None)
    assert queue.new_events() == [
        ["cancelled", "jobId", "1", "reason", WHY],
        ["failed", "jobId", "1", "failedReason", WHY, "prev", "active", "failureKind", "cancelled"],
        ["drained"],
    ]


def as_cancelled(job_id: str, token: str, rule: str = KEEP_ALL) -> Outcome:
    fields = ["failedReason", WHY, "stacktrace", "[]", "failureKind", "cancelled"]
    return Outcome("failed", job_id, token, WHY, rule, {"fields": fields, "said": ["cancelled", "reason", WHY]})


OTHER_ENDS = {
    "completed": lambda token: completed("1", token, "7"),
    "failed": lambda token: failed("1", token, "bad"),
    "retry": lambda token: retried("1", token, "bad"),
    "delayed": lambda token: retried("1", token, "bad", 500),
    "put off": lambda token: Outcome("delayed", "1", token, "500", "", {"skip": True}),
    "rate limited": lambda token: Outcome("wait", "1", token, "5000"),
}


@pytest.mark.parametrize("end", OTHER_ENDS)
def test_another_end_is_refused_and_changes_nothing(queue: Queue, end: str) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    cancel(queue, "1")
    before = queue.dump()
    assert queue.finish(OTHER_ENDS[end](token)).codes == ["CANCEL " + WHY]
    assert queue.dump() == before
    assert queue.finish(as_cancelled("1", token)).codes == [0]
    ended(queue, "1")


def test_it_may_go_back_and_keeps_the_request(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    cancel(queue, "1")
    assert queue.finish(Outcome("back", "1", queue.token.replace(":3", ":2"), "")).codes == [0]
    assert queue.state("1") == "waiting"
    assert queue.fetch().jobs["1"]["cancelRequested"] == WHY


def test_a_stall_keeps_the_request(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    cancel(queue, "1")
    queue.command("DEL", "~1:lock")
    queue.sweep()
    queue.clock = T + 30_000
    queue.command("DEL", "~stalled-check")
    assert queue.sweep()[3:] == ["1"]
    assert queue.get("1")["cancelRequested"] == WHY
    assert cancel(queue, "1") == 1  # it waits now
    assert "cancelRequested" not in ended(queue, "1")


def test_one_that_stands_nowhere_is_asked_for_the_day_when_it_is_put_back(queue: Queue) -> None:
    queue.add()
    queue.command("LREM", "~wait", 0, "1")
    assert cancel(queue, "1") == 2
    assert queue.get("1")["cancelRequested"] == WHY


def test_what_is_gone_or_has_ended(queue: Queue) -> None:
    assert cancel(queue, "1") == -1
    queue.add_many([job_args()] * 2)
    queue.fetch(2)
    queue.finish(completed("1", queue.token), failed("2", queue.token, "bad"))
    before = queue.dump()
    assert [cancel(queue, "1"), cancel(queue, "2"), cancel(queue, "3")] == [0, 0, -1]
    assert queue.dump() == before
    assert told(queue) == []


def test_running_again_forgets_it(queue: Queue) -> None:
    queue.add()
    cancel(queue, "1")
    queue.run("reprocessJob-10", "1", "")
    assert not {"cancelRequested", "failedReason", "failureKind", "finishedOn"} & set(queue.get("1"))
    queue.fetch()
    cancel(queue, "1")
    queue.command("LREM", "~active", 0, "1")  # another runtime has completed it, whatever was asked
    queue.command("ZADD", "~completed", T, "1")
    queue.run("reprocessJob-10", "1", "")
    assert "cancelRequested" not in queue.get("1")


# -- retention


@pytest.mark.parametrize(
    ("option", "kept"),
    [
        (None, ["8", "9", "1"]), (True, ["8", "9"]), (False, ["8", "9", "1"]), (2, ["9", "1"]), (0, ["8", "9"]),
        ({"count": 1}, ["1"]), ({"age": 10}, ["9", "1"]), ({"age": -1}, ["8", "9", "1"]), ("rubbish", ["8", "9", "1"]),
        (-1, ["8", "9", "1"]), (1e300, ["8", "9", "1"]), ({"count": 0.5}, ["8", "9"]), ({}, ["8", "9", "1"]),
    ],
)  # fmt: skip
def test_its_own_retention_rule_holds(queue: Queue, option: Any, kept: list[str]) -> None:
    queue.command("HSET", "~8", "name", "x", "timestamp", T - 20_000)
    queue.command("HSET", "~9", "name", "x", "timestamp", T - 5_000)
    queue.command("ZADD", "~failed", T - 20_000, "8", T - 5_000, "9")
    queue.add(opts={} if option is None else {"removeOnFail": option}, job_id="1")
    queue.new_events()
    assert cancel(queue, "1") == 1
    assert [job_id for job_id, _ in queue.get("failed")] == kept
    assert [one for one in ("8", "9", "1") if queue.get(one) is not None] == kept
    assert [event[0] for event in queue.new_events()] == ["cancelled", "failed"]


def test_else_that_by_which_the_last_job_failed(queue: Queue) -> None:
    rules = queue.keys.resolve("rules")
    queue.command("HSET", rules, "failed", f"{T - 1000}:1;;", "completed", f"{T - 1000}:5;;")
    queue.command("HSET", "~9", "name", "x", "timestamp", T)
    queue.command("ZADD", "~failed", T - 5_000, "9")
    queue.add(job_id="1")
    cancel(queue, "1")
    assert queue.get("failed") == [("1", float(T))]
    assert pairs(queue.command("HGETALL", rules)) == {"failed": f"{T}:1;;", "completed": f"{T - 1000}:5;;"}


def test_a_rule_that_cannot_be_read_keeps_all(queue: Queue) -> None:
    rules = queue.keys.resolve("rules")
    queue.command("HSET", rules, "failed", "rubbish")
    queue.add(job_id="1")
    cancel(queue, "1")
    ended(queue, "1")
    assert pairs(queue.command("HGETALL", rules)) == {"failed": "rubbish"}


# -- what stands around it


def test_its_deduplication_id_is_free(queue: Queue) -> None:
    queue.add(de={"id": "D"})
    queue.add(de={"id": "E", "ttl": 60_000}, delay=100)
    assert queue.get("de:D") == "1"
    cancel(queue, "1")
    cancel(queue, "2")
    assert queue.get("de:D") is None
    assert queue.get("de:E") == "2"  # it has a time of its own
    assert queue.command("PTTL", "~de:E") > 0


def test_what_was_to_run_after_it_is_added(queue: Queue) -> None:
    """It ran once, a job was kept to run after it, and it waits for its next attempt."""
    queue.add(de={"id": "D", "keepLastIfActive": True})
    queue.fetch()
    token = queue.token
    queue.add("next", de={"id": "D", "keepLastIfActive": True}, job_id="n")
    queue.finish(retried("1", token, "bad", 5000))
    queue.command("DEL", "~marker")
    assert cancel(queue, "1") == 1
    assert queue.get("wait") == ["n"]
    assert queue.get("de:D") == "n"
    assert queue.get("dn:D") is None
    assert ("0", 0.0) in queue.get("marker")


def child(queue: Queue, **flags: Any) -> Queue:
    """A job ``1``, child of ``pp`` of the queue ``P``, which waits for it alone."""
    parents = Queue(queue.client, "P")
    parents.add(job_id="pp")
    parents.command("LREM", "~wait", 0, "pp")
    parents.command("ZADD", "~waiting-children", T, "pp")
    parents.command("SADD", "~pp:dependencies", "bull:q:1")
    queue.add()
    parent = msgspec.json.encode({"id": "pp", "queueKey": "bull:P", **flags}).decode()
    queue.command("HSET", "~1", "parentKey", PARENT, "parent", parent)
    return parents


@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
@pytest.mark.parametrize("policy", ["fpof", "cpof", "idof", "rdof", None])
def test_its_parent_is_treated_as_by_a_child_that_failed(queue: Queue, policy: str | None, running: bool) -> None:
    """A second queue has the same job fail by itself: the parents end up alike."""

    def run(by: str) -> dict[str, Any]:
        queue.client.execute_command("FLUSHALL")
        parents = child(queue, **({policy: True} if policy else {}))
        if by == "cancel" and not running:
            assert cancel(queue, "1") == 1
        else:
            queue.fetch()
            token = queue.token
            if by == "cancel":
                assert cancel(queue, "1") == 2
                assert queue.finish(as_cancelled("1", token)).codes == [0]
            else:
                assert queue.finish(failed("1", token, WHY)).codes == [0]
        found = {key: one for key, one in parents.dump().items() if key.startswith("bull:P:")}
        found["state"] = parents.state("pp")
        return found

    assert run("cancel") == run("failure")


def test_a_parent_that_is_broken(queue: Queue) -> None:
    """Of a job that waits the cancel is refused, and nothing has changed."""
    child(queue, fpof=True)
    queue.command("SET", "bull:P:marker", "rubbish")
    before = queue.dump()
    with pytest.raises(redis.ResponseError, match="BROKEN bull:P:marker must be a sorted set"):
        cancel(queue, "1")
    assert queue.dump() == before


def test_a_parent_that_waits_for_its_children(queue: Queue) -> None:
    """It has failed; its children go on, and their ends bring it back nowhere."""
    place(queue, "waiting-children")
    queue.command("HSET", "~2", "parentKey", "bull:q:1", "parent", '{"id":"1","queueKey":"bull:q"}')
    cancel(queue, "1")
    queue.fetch(2)
    assert queue.finish(completed("2", queue.token, "7")).codes == [0]
    ended(queue, "1")
    assert queue.get("wait") is None
    assert queue.get("1:processed") == {"bull:q:2": "7"}


# -- schedules


def test_the_next_run_of_a_schedule_is_refused_until_its_successor_was_made(queue: Queue) -> None:
    job_id = f"repeat:sch:{T + 1000}"
    queue.add(job_id=job_id, delay=1000)
    queue.command("HSET", "~" + job_id, "rjk", "sch")
    queue.command("HSET", "~repeat:sch", "name", "tick", "every", 1000, "ic", 1)
    queue.command("ZADD", "~repeat", T + 1000, "sch")
    before = queue.dump()
    assert cancel(queue, job_id) == -8
    assert queue.dump() == before
    opts = '{"repeat":{"every":1000,"count":2},"repeatJobKey":"sch"}'
    queue.run("advanceScheduler-15", "sch", job_id, "", "1000", 0, opts, "", "", "", "")
    assert cancel(queue, job_id) == 1
    ended(queue, job_id)
    assert [one for one, _ in queue.get("delayed")] == [f"repeat:sch:{T + 2000}"]
    last = f"repeat:sch:{T + 2000}"
    assert cancel(queue, last, advanced="1") == 1  # a schedule that has no further run
    ended(queue, last)


# -- a full memory, long lists, the same call again


def test_the_same_call_again_is_answered_and_not_done(queue: Queue) -> None:
    queue.add()
    assert cancel(queue, "1", lane="own", number=1) == 1
    before = queue.dump()
    assert cancel(queue, "1", lane="own", number=1, resent=True) == 1
    assert queue.dump() == before


def test_where_it_stands_in_a_long_line_does_not_matter(queue: Queue) -> None:
    for first in range(0, 1000, 250):
        queue.add_many([job_args(job_id=f"j{first + n}") for n in range(250)])
    for job_id in ("j0", "j1", "j499", "j500", "j998", "j999"):
        assert cancel(queue, job_id) == 1
    assert queue.command("LLEN", "~wait") == 994
    assert queue.command("ZCARD", "~failed") == 6
    assert audit(queue.client, "bull", "q") == []
