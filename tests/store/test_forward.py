"""Outcomes that are forwarded, key for key: at once into another queue, or by way of the outbox."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from echomq._store.codec import OUTCOME_OPTS
from echomq._store.keys import QueueKeys
from tests.store.scripts import KEEP_ALL, Outcome, Queue, T, completed, text

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

THERE = "emq:{results}:"
OUTBOX = "emqx:{q}:outbox"
FORWARDING = "emqx:{q}:forwarding"
ENDED = "2025-11-29T07:06:40.050Z"
"""T + 50."""


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return Queue(client, prefix="emq")


@pytest.fixture
def results(client: redis.Redis) -> Queue:
    made = Queue(client, "results", prefix="emq")
    made.lane = "results"
    return made


def straight(**head: Any) -> dict[str, str]:
    """To the other queue in the same step."""
    return {
        "base": THERE,
        "opts": OUTCOME_OPTS,
        "head": json.dumps(head)[:-1] + (', "result":' if head else '"result":'),
    }


def boxed(at: str = "", to: str = THERE, **head: Any) -> dict[str, str]:
    """By way of the outbox."""
    return {"outbox": OUTBOX, "to": to, "at": at, "head": json.dumps({"n": 1, **head})[:-1] + ',"result":'}


def done(
    queue: Queue, job_id: str, forward: dict[str, str], value: str = '{"seat":7}', rule: str = KEEP_ALL
) -> Outcome:
    return completed(job_id, queue.token, value, rule, forward=forward)


@both_servers
def test_an_outcome_is_a_job_of_the_other_queue_in_the_same_step(queue: Queue, results: Queue) -> None:
    queue.add("enroll", '{"learner":7}')
    queue.fetch()
    queue.clock = T + 50
    assert queue.finish(done(queue, "1", straight(job_id="1"), rule="0;;")).codes == [0]
    assert queue.get("1") is None
    found = {key: value for key, value in queue.dump().items() if key.startswith(THERE)}
    job = found.pop(THERE + "1")
    assert json.loads(job.pop("data")) == {"job_id": "1", "result": {"seat": 7}, "finished_at": ENDED}
    assert job == {
        "name": "outcome", "opts": OUTCOME_OPTS, "timestamp": str(T + 50), "delay": "0", "priority": "0",
    }  # fmt: skip
    assert found == {
        THERE + "events": [["event", "added", "jobId", "1", "name", "outcome"], ["event", "waiting", "jobId", "1"]],
        THERE + "id": "1",
        THERE + "marker": [("0", 0.0)],
        THERE + "meta": {"opts.maxLenEvents": "10000"},
        THERE + "wait": ["1"],
    }
    assert results.fetch().ids == ["1"]


def test_a_failure_is_forwarded_with_its_dead_letter_into_one_queue(queue: Queue, results: Queue) -> None:
    queue.add()
    queue.fetch()
    letter = [THERE, '{"deadLetter":{"id":"1","failedOn":']
    more = {"fields": ["failedReason", "no"], "attempts": 1, "letter": letter, "forward": straight(reason="no")}
    assert queue.finish(Outcome("failed", "1", queue.token, "no", KEEP_ALL, more)).codes == [0]
    assert results.get("wait") == ["2", "1"]
    assert [results.get(job_id)["name"] for job_id in ("1", "2")] == ["job", "outcome"]
    told = json.loads(results.get("2")["data"])
    assert (told["reason"], told["result"]) == ("no", None)


def test_many_in_one_call_and_taken_ids_are_stepped_over(queue: Queue, results: Queue) -> None:
    results.command("HSET", "~2", "name", "was there")
    queue.add_many([["n", "{}", "{}", "", "0", "", "0", "", ""]] * 5)
    ids = queue.fetch(5).ids
    assert queue.finish(*(done(queue, one, straight(job_id=one)) for one in ids)).codes == [0] * 5
    waiting = results.get("wait")
    assert waiting == ["6", "5", "4", "3", "1"]
    assert [json.loads(results.get(one)["data"])["job_id"] for one in reversed(waiting)] == ids


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [("wait", "list"), ("marker", "sorted set"), ("events", "stream"), ("id", "string"), ("meta", "hash")],
)
@pytest.mark.parametrize("rule", [KEEP_ALL, "0;;", "1;;"])
def test_broken_keys_there_keep_no_job_from_its_end_and_the_job_is_kept(
    queue: Queue, results: Queue, suffix: str, kind: str, rule: str
) -> None:
    results.command("SADD", "~" + suffix, "x")
    queue.add()
    queue.add()
    queue.fetch(2)
    codes = queue.finish(done(queue, "1", straight(), rule=rule), completed("2", queue.token)).codes
    assert codes == [f"STORED, but its outcome was not forwarded: {THERE}{suffix} must be a {kind}", 0]
    assert queue.get("completed") == [("1", float(T)), ("2", float(T))]
    assert queue.get("1")["returnvalue"] == '{"seat":7}'
    assert queue.get("active") is None
    assert {key for key in queue.dump() if key.startswith(THERE)} == {THERE + suffix}


def test_a_paused_or_full_queue_takes_them_and_wakes_nobody(queue: Queue, results: Queue) -> None:
    results.pause()
    queue.add()
    queue.fetch()
    queue.finish(done(queue, "1", straight()))
    assert results.get("wait") == ["1"]
    assert results.get("marker") is None


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 250 * 366 * 86_400_000))
def test_the_moment_is_written_as_iso_8601_has_it(shared_server: Any, ms: int) -> None:
    server = shared_server("valkey")
    server.flush()
    with server.client() as client:
        queue = Queue(client, prefix="emq", at=ms)
        queue.add(timestamp=1)
        queue.fetch()
        queue.finish(done(queue, "1", straight()))
        data = json.loads(Queue(client, "results", prefix="emq").get("1")["data"])
    server.flush()
    wanted = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert data["finished_at"] == wanted.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert datetime.fromisoformat(data["finished_at"]) == wanted


# -- the outbox ----------------------------------------------------------------------------------------------------------


def fill(queue: Queue, *ways: dict[str, str]) -> None:
    """A job for each way, ended."""
    queue.add_many([["n", "{}", "{}", "", "0", "", "0", "", ""]] * len(ways))
    ids = queue.fetch(len(ways)).ids
    assert queue.finish(*(done(queue, one, way, "7") for one, way in zip(ids, ways, strict=True))).codes == [0] * len(
        ways
    )


class Look:
    """What takeOutcomes answered."""

    def __init__(self, reply: list[Any]) -> None:
        self.held_for, self.last, self.passed, *values = text(reply)
        self.entries = [values[at : at + 5] for at in range(0, len(values), 5)]

    @property
    def ids(self) -> list[str]:
        return [entry[0] for entry in self.entries]


def look(
    queue: Queue,
    who: str = "me",
    *,
    after: str = "",
    done: list[str] | None = None,
    known: tuple[str, ...] = (),
    avoided: tuple[str, ...] = (),
) -> Look:
    gone = done or []
    counts = (len(gone), len(known), len(avoided))
    return Look(queue.run("takeOutcomes-2", who, 10_000, after, *counts, *gone, *known, *avoided))


@both_servers
def test_the_outbox_gives_all_in_order_and_the_same_until_they_are_done(queue: Queue) -> None:
    fill(queue, *(boxed(n=n) for n in range(3)))
    assert {key for key in queue.dump() if key.startswith(THERE)} == set()
    first = look(queue)
    ids = [f"outcome-lane-3-{n}" for n in (1, 2, 3)]
    assert [(entry[1], entry[2], entry[3]) for entry in first.entries] == [(one, "", THERE) for one in ids]
    assert [json.loads(entry[4]) for entry in first.entries] == [
        {"n": n, "result": 7, "finished_at": "2025-11-29T07:06:40.000Z"} for n in range(3)
    ]
    assert look(queue).entries == first.entries
    rest = look(queue, done=first.ids[:2])
    assert (rest.ids, rest.last, rest.passed) == (first.ids[2:], "", 0)
    assert look(queue, done=rest.ids).entries == []
    assert queue.client.exists(FORWARDING) == 0
    assert look(queue, done=rest.ids).entries == []


def test_one_forwards_at_a_time_until_its_lease_ends(queue: Queue) -> None:
    fill(queue, boxed())
    [entry] = look(queue).ids
    other = look(queue, "other")
    assert (other.entries, 5_000 < other.held_for <= 10_000) == ([], True)
    queue.client.delete(FORWARDING)  # the lease has ended
    assert look(queue, "other").ids == [entry]
    assert look(queue, done=[entry]).entries == []  # what the first has done all the same counts
    assert look(queue, "other").entries == []
    queue.client.set(FORWARDING, "a hand's")  # no lease at all
    assert look(queue).held_for == 0


def test_what_goes_elsewhere_is_for_those_who_know_the_way(queue: Queue) -> None:
    fill(queue, boxed("host:1/0"), boxed(), boxed("host:2/0"))
    assert [entry[2] for entry in look(queue).entries] == [""]
    assert look(queue).passed == 2
    known = (f"host:2/0 {THERE}",)
    assert [entry[2] for entry in look(queue, known=known).entries] == ["", "host:2/0"]
    found = look(queue, known=known, avoided=(f" {THERE}",))
    assert ([entry[2] for entry in found.entries], found.passed) == (["host:2/0"], 1)


def test_a_look_is_bounded(queue: Queue) -> None:
    for _ in range(5):
        fill(queue, *[boxed()] * 50)
    first = look(queue)
    assert len(first.entries) == 100
    second = look(queue, after=first.last)
    assert len(second.entries) == 100
    third = look(queue, after=second.last, done=first.ids + second.ids)
    assert (len(third.entries), third.last) == (50, "")
    avoided = (f" {THERE}",)
    for _ in range(17):
        fill(queue, *[boxed()] * 50)
    none = look(queue, avoided=avoided, after=third.ids[-1])
    assert (none.entries, none.last) == ([], "")
    for _ in range(4):
        fill(queue, *[boxed()] * 50)
    some = look(queue, avoided=avoided)
    assert some.entries == []
    assert some.last != ""
    assert look(queue, avoided=avoided, after=some.last).last == ""


def test_large_ones_come_a_few_at_a_time(queue: Queue) -> None:
    fill(queue, *(boxed(big="x" * 400_000) for _ in range(4)), boxed(big="x" * 2_000_000))
    sizes, after = [], ""
    while True:
        found = look(queue, after=after)
        sizes.append(len(found.entries))
        after = found.last
        if not after:
            break
    assert sizes == [2, 2, 1]


def test_a_broken_outbox_keeps_no_job_from_its_end(queue: Queue) -> None:
    queue.client.set(OUTBOX, "x")
    queue.add()
    queue.fetch()
    [code] = queue.finish(done(queue, "1", boxed(), rule="0;;")).codes
    assert code == f"STORED, but its outcome was not forwarded: {OUTBOX} must be a stream"
    assert queue.get("1")["returnvalue"] == '{"seat":7}'
    queue.client.delete(OUTBOX)
    queue.client.xadd(OUTBOX, {"x": 1}, id="18446744073709551615-18446744073709551615")
    queue.add()
    queue.fetch()
    [code] = queue.finish(done(queue, "2", boxed(), rule="0;;")).codes
    assert code == f"STORED, but its outcome was not forwarded: {OUTBOX} must be a stream that takes more entries"


def test_the_sweep_says_what_waits_and_removes_an_empty_outbox_later(queue: Queue) -> None:
    fill(queue, boxed(), boxed())
    queue.clock = None
    queue.sweep()
    assert queue.waiting == 2
    assert queue.sweep()[0] == ""  # not its turn; but it is told all the same
    assert queue.waiting == 2
    ids = look(queue).ids
    assert look(queue, done=ids).entries == []
    for later, there in ((0, 1), (3_600_000, 1), (3_700_000, 0)):
        queue.command("DEL", "~stalled-check")
        queue.clock = int(ids[0].partition("-")[0]) + later
        queue.sweep()
        assert queue.waiting == 0
        assert queue.client.exists(OUTBOX) == there


@pytest.mark.parametrize(("queue", "slot"), [("q", 11958), ("foo", 12182), ("123456789", 12739)])
def test_slots_are_those_of_a_cluster(queue: str, slot: int) -> None:
    keys = QueueKeys.of(queue)
    assert keys.slot == slot == keys.dead_letters.slot
    assert QueueKeys.of(queue, hash_tag=False).slot is None
    assert QueueKeys.at(keys.base).own_base == keys.own_base
    assert QueueKeys.at(keys.base).base == keys.base
