"""The vectors of protocol.md section 14 about changed jobs and limits, by their numbers: 26 to 28, 31 to 37, and more.

Where Node does the same beside us, see test_vectors_side_by_side.py. Deviations (docs/architecture.md) are marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from tests.store.scripts import Outcome, Queue, T, completed, failed, job_args, text

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

CLASS = 4294967296
MANUAL = "9007199254740991"


def change(queue: Queue, script: str, *args: str | int) -> list[Any]:
    """What a script answers, without the time."""
    return list(text(queue.run(script, *args))[1:])


def fail(queue: Queue, *job_ids: str) -> None:
    """Runs these jobs, which stand in the line in this order, and has them fail for good."""
    assert queue.fetch(len(job_ids)).ids == list(job_ids)
    queue.finish(*(failed(job_id, queue.token, "bad", attempts=1) for job_id in job_ids))
    queue.command("DEL", "~marker")
    queue.new_events()


def read_page(
    queue: Queue, place: str, count: int, newest: str = "", after: Sequence[Any] = (-1, 0, "")
) -> tuple[list[tuple[str, bool]], list[Any]]:
    """Ids of a page, each with whether there is a job of it; and what the next page is asked for with."""
    seen, passed, left, *entries = text(queue.run("getPage-8", place, count, newest, *after))
    ids, hashes, scores = entries[::3], entries[1::3], entries[2::3]
    assert seen == len(ids)
    return [(one, bool(flat)) for one, flat in zip(ids, hashes, strict=True)], [passed, left, *scores[-1:], *ids[::-1]]


def page(queue: Queue, place: str, start: int, count: int, newest: str = "") -> list[str]:
    """The ids of so many jobs of a state, after so many others."""
    after = read_page(queue, place, start, newest)[1] if start else (-1, 0, "")
    return [job_id for job_id, is_there in read_page(queue, place, count, newest, after)[0] if is_there]


# -- limits


def test_26_a_rate_limit_of_the_queue(queue: Queue) -> None:
    queue.run("setLimits-7", "max", 2, "duration", 1000)
    assert queue.get("meta") == {"max": "2", "duration": "1000"}
    queue.add_many([job_args()] * 4)
    assert queue.fetch().ids == ["1"]
    assert queue.fetch().ids == ["2"]
    taken = queue.fetch()
    assert taken.ids == []
    assert 900 < taken.limited_ms <= 1000
    assert queue.get("limiter") == "2"
    assert 900 < queue.run("getRateLimitTtl-2", "") <= 1000
    assert queue.run("getRateLimitTtl-2", 5) == 0
    queue.command("DEL", "~marker")
    queue.run("setLimits-7", "max", "", "duration", "")
    assert queue.get("meta") == {"opts.maxLenEvents": "10000"}
    assert queue.get("marker") == [("0", 0.0)], "workers that wait look again"
    assert queue.fetch().ids == ["3"]


def test_27_a_limit_by_hand(queue: Queue) -> None:
    queue.add_many([job_args()] * 2)
    queue.run("rateLimit-8", 5000)
    assert queue.get("limiter") == MANUAL
    assert 4900 < queue.command("PTTL", "~limiter") <= 5000
    # Deviation: without any maximum the protocol's workers fetch all the same; ours look at `limitedUntil` in meta.
    taken = queue.fetch()
    assert taken.ids == []
    assert 4900 < taken.limited_ms <= 5000
    assert queue.get("meta")["limitedUntil"] == str(T + 5000)
    assert queue.fetch(limit=(10, 1000)).ids == [], "nor a worker with a limit of its own"
    assert 4900 < queue.run("getRateLimitTtl-2", "") <= 5000
    queue.command("HSET", "~meta", "max", 10)
    assert 4900 < queue.fetch().limited_ms <= 5000
    assert queue.get("limiter") == MANUAL, "no look counts"


def test_27_a_limit_by_hand_ends_with_its_time_or_when_somebody_lifts_it(queue: Queue) -> None:
    queue.add_many([job_args()] * 3)
    queue.run("rateLimit-8", 5000)
    queue.command("DEL", "~limiter")  # Node's removeRateLimitKey
    assert queue.fetch().ids == ["1"]
    queue.run("rateLimit-8", 5000)
    queue.command("DEL", "~marker")
    queue.run("rateLimit-8", 0)
    assert queue.get("limiter") is None
    assert "limitedUntil" not in queue.get("meta")
    assert queue.get("marker") == [("0", 0.0)]
    assert queue.fetch().ids == ["2"]
    queue.run("rateLimit-8", 5000)
    assert queue.clock is not None
    queue.clock += 5000
    assert queue.fetch().ids == ["3"]


def test_27_lifting_a_limit_by_hand_leaves_the_count_of_a_window(queue: Queue) -> None:
    queue.run("setLimits-7", "max", 2, "duration", 1000)
    queue.add_many([job_args()] * 3)
    queue.fetch(2)
    queue.run("rateLimit-8", 0)
    assert queue.get("limiter") == "2"
    assert queue.fetch().ids == []


def test_28_a_global_concurrency(queue: Queue) -> None:
    queue.run("setLimits-7", "concurrency", 1)
    assert queue.get("meta") == {"concurrency": "1"}
    queue.add()
    queue.fetch()
    queue.command("DEL", "~marker")
    queue.add()
    assert queue.get("marker") is None
    assert queue.fetch().ids == []


@pytest.mark.parametrize("value", ["2", ""])
def test_28_a_higher_concurrency_or_none_has_waiting_workers_look(queue: Queue, value: str) -> None:
    queue.run("setLimits-7", "concurrency", 1)
    queue.add_many([job_args()] * 3)
    queue.fetch()
    queue.command("DEL", "~marker")
    queue.run("setLimits-7", "concurrency", 1)
    assert queue.get("marker") is None, "nothing to be had"
    queue.run("setLimits-7", "concurrency", value)
    assert queue.get("marker") == [("0", 0.0)]
    assert queue.fetch(3).ids == (["2"] if value else ["2", "3"])


# -- reading


def test_31_pages(queue: Queue) -> None:
    queue.add_many([job_args()] * 5)
    queue.command("LREM", "~wait", 0, "2")
    assert queue.get("wait") == ["5", "4", "3", "1"]
    assert page(queue, "wait", 0, 10) == ["1", "3", "4", "5"]
    assert page(queue, "wait", 0, 10, "1") == ["5", "4", "3", "1"]
    assert page(queue, "wait", 1, 2) == ["3", "4"]
    assert page(queue, "wait", 1, 2, "1") == ["4", "3"]


def test_31_pages_of_sets_pass_over_ids_without_a_job(queue: Queue) -> None:
    queue.add_many([job_args(priority=n) for n in range(1, 5)])
    queue.command("DEL", "~2")
    queue.command("DEL", "~3")
    queue.command("SET", "~3", "no job")
    assert page(queue, "prioritized", 0, 3) == ["1"]
    assert len(read_page(queue, "prioritized", 3)[0]) == 3, "so many ids were passed"
    assert page(queue, "prioritized", 3, 3) == ["4"]
    assert page(queue, "prioritized", 0, 9, "1") == ["4", "1"]
    assert page(queue, "prioritized", 4, 9) == []


def test_31_a_page_ends_after_a_mebibyte(queue: Queue) -> None:
    queue.add_many([job_args(data=f'"{"x" * 400_000}"')] * 5)
    assert page(queue, "wait", 0, 100) == ["1", "2", "3"]
    assert page(queue, "wait", 3, 100) == ["4", "5"]


# -- priority


def test_32_another_priority(queue: Queue) -> None:
    for _ in range(5):
        queue.add()
    queue.command("DEL", "~wait")
    queue.add_many([job_args(priority=3, opts={"priority": 3})] * 2 + [job_args(priority=9, opts={"priority": 9})])
    queue.new_events()
    assert change(queue, "changePriority-8", "8", 3, "") == [0, ""]
    assert [job_id for job_id, _ in queue.get("prioritized")] == ["6", "7", "8"]
    assert queue.get("8")["priority"] == "3"
    queue.command("DEL", "~marker")
    change(queue, "changePriority-8", "8", 3, "1")
    assert queue.get("prioritized")[0] == ("8", 12884901888)
    assert queue.get("marker") is None
    change(queue, "changePriority-8", "8", 0, "")
    assert queue.get("wait") == ["8"]
    assert queue.get("marker") == [("0", 0.0)]
    assert queue.get("8")["priority"] == "0"
    assert '"priority":9' in queue.get("8")["opts"]
    assert queue.events() == []


def test_32_to_the_front_of_a_class_again_and_again(queue: Queue) -> None:
    """The last comes first, whatever stands there already; the ids do not decide."""
    queue.add_many([job_args(priority=3)] * 4)
    for job_id in ("2", "4", "1"):
        change(queue, "changePriority-8", job_id, 3, "1")
    assert queue.get("prioritized") == [
        ("1", 3 * CLASS - 2),
        ("4", 3 * CLASS - 1),
        ("2", 3 * CLASS),
        ("3", 3 * CLASS + 3),
    ]


def test_32_from_wait_and_back(queue: Queue) -> None:
    queue.add_many([job_args()] * 3)
    change(queue, "changePriority-8", "2", 7, "")
    assert queue.get("wait") == ["3", "1"]
    assert queue.get("prioritized") == [("2", 7 * CLASS + 1)]
    change(queue, "changePriority-8", "2", 0, "1")
    assert queue.get("wait") == ["3", "1", "2"]
    change(queue, "changePriority-8", "3", 0, "")
    assert queue.get("wait") == ["3", "1", "2"]


# -- delay


def test_promote(queue: Queue) -> None:
    queue.add(delay=1000)
    queue.add(delay=1000, priority=4)
    queue.new_events()
    assert change(queue, "promote-9", "1") == [0, ""]
    assert change(queue, "promote-9", "2") == [0, ""]
    assert queue.get("delayed") is None
    assert queue.get("wait") == ["1"]
    assert queue.get("prioritized") == [("2", 4 * CLASS + 1)]
    assert queue.get("1")["delay"] == queue.get("2")["delay"] == "0"
    assert ("0", 0.0) in queue.get("marker")
    assert queue.events() == [["waiting", "jobId", job_id, "prev", "delayed"] for job_id in "12"]
    assert change(queue, "promote-9", "1") == [-3, "waiting"]
    assert change(queue, "promote-9", "9") == [-1, ""]


def test_another_delay(queue: Queue) -> None:
    queue.add(delay=1000)
    queue.add(delay=5000)
    queue.clock = T + 500
    queue.new_events()
    assert change(queue, "changeDelay-5", "1", 9000, "") == [0, ""]
    assert queue.get("delayed") == [("2", (T + 5000) * 4096), ("1", (T + 9500) * 4096)]
    assert queue.get("1")["delay"] == "9000"
    assert queue.events() == [["delayed", "jobId", "1", "delay", str(T + 9500)]]
    assert queue.get("marker") == [("1", T + 5000)]
    change(queue, "changeDelay-5", "1", "", T + 700)
    assert queue.get("1")["delay"] == "200"
    assert queue.get("marker") == [("1", T + 700)]
    change(queue, "changeDelay-5", "1", "", T - 10)
    assert queue.get("1")["delay"] == "0"
    assert queue.fetch().ids == ["1"], "what has passed is now"
    assert change(queue, "changeDelay-5", "1", 5, "") == [-3, "active"]
    assert change(queue, "changeDelay-5", "9", 5, "") == [-1, ""]
    queue.add(delay=5000, opts={"attempts": 0, "expireIn": 7})
    change(queue, "changeDelay-5", "3", "", T + 900)
    assert (queue.get("3")["delay"], queue.get("3")["due"]) == ("400", str(T + 900))


def test_33_promote_all(queue: Queue) -> None:
    queue.add(delay=99_999, priority=4)
    queue.add(delay=5)
    queue.new_events()
    assert change(queue, "moveJobsToWait-11", "delayed", "") == [2, 0, f"-inf 0 {(T + 99_999) * 4096} {T} 2"]
    # Deviation: the protocol puts it into `wait`, and leaves the delay of the hash.
    assert queue.get("prioritized") == [("1", 4 * CLASS + 1)]
    assert queue.get("wait") == ["2"]
    assert queue.get("1")["delay"] == "0"
    assert queue.events() == [["waiting", "jobId", job_id, "prev", "delayed"] for job_id in "21"]
    assert ("0", 0.0) in queue.get("marker")


def promote_all(queue: Queue) -> Iterator[int]:
    """The steps of one call, and how many each moved."""
    cut, left = "", 1
    while left > 0:
        moved, left, cut = change(queue, "moveJobsToWait-11", "delayed", cut)
        yield moved


@pytest.mark.parametrize("again", [3_600_000, 100_000_000, 200_000_000])
def test_33_each_is_promoted_once_whatever_becomes_of_it_meanwhile(queue: Queue, again: int) -> None:
    for _ in range(3):
        queue.add_many([job_args(delay=86_400_000)] * 200)
    queue.add("last", delay=150_000_000, job_id="last")
    steps = promote_all(queue)
    moved = next(steps)
    while queue.get("wait"):  # they run, and wait for their next attempts
        queue.clock = (queue.clock or 0) + 1
        taken = queue.fetch(50)
        queue.finish(*(Outcome("delayed", job_id, queue.token, str(again)) for job_id in taken.ids))
    queue.add("new", delay=again)
    queue.add("new", delay=again, job_id="new")
    assert (moved, sum(steps)) == (250, 351)
    assert len(queue.get("wait")) == 351
    assert len(queue.get("delayed")) == 252
    assert sum(promote_all(queue)) == 252, "the next call takes them"


def test_33_a_producer_whose_clock_is_ahead_is_not_passed_over(queue: Queue) -> None:
    queue.add(delay=5000, timestamp=T + 60_000)
    assert list(promote_all(queue)) == [1]


# -- removing many


def test_34_clean(queue: Queue) -> None:
    queue.add_many([job_args()] * 3)
    queue.new_events()
    assert change(queue, "cleanJobs-12", "wait", 0, "", 0, 2)[0] == ["1", "2"], "the oldest"
    assert queue.get("wait") == ["3"]
    assert queue.get("1") is None
    assert queue.events() == [["cleaned", "count", "2"]]


def test_34_drain(queue: Queue) -> None:
    queue.add_many([job_args(), job_args(priority=1), job_args(delay=100), job_args()])
    queue.fetch()
    queue.new_events()
    for place in ("wait", "prioritized", "delayed"):
        assert change(queue, "drain-9", place, 0, "", "")[:3] == [1, 0, 0]
    assert [queue.get(key) for key in ("wait", "prioritized", "delayed", "2", "3", "4")] == [None] * 6
    assert queue.get("active") == ["1"]
    assert queue.events() == []


def test_35_remove(queue: Queue) -> None:
    queue.add_many([job_args()] * 2)
    queue.fetch()
    queue.new_events()
    before = queue.dump()
    assert queue.remove("nobody") == 1
    assert queue.remove("1") == 0, "its lock is there"
    after = queue.dump()
    assert {key: value for key, value in after.items() if "calls" not in key} == {
        key: value for key, value in before.items() if "calls" not in key
    }
    queue.command("DEL", "~1:lock")
    assert queue.remove("1") == 1
    assert queue.events() == [["removed", "jobId", "1", "prev", "active"]]
    assert queue.get("1") is queue.get("active") is None


def test_35_and_34_the_run_that_a_schedule_waits_for_stays(queue: Queue) -> None:
    for job_id in ("repeat:s:5", "repeat:s:6"):
        queue.add(job_id=job_id)
        queue.command("HSET", f"~{job_id}", "rjk", "s")
    queue.add_many([job_args()] * 2)
    queue.command("ZADD", "~repeat", 5, "s")
    assert change(queue, "cleanJobs-12", "wait", 0, "", 0, "")[0] == ["repeat:s:6", "3", "4"]
    queue.add_many([job_args()] * 2)
    assert change(queue, "drain-9", "wait", 0, "", "")[:3] == [2, 1, 0]
    assert queue.get("wait") == ["repeat:s:5"]
    assert queue.remove("repeat:s:5") == -8


def test_34_a_deduplication_id_is_free_again(queue: Queue) -> None:
    queue.add_many([job_args()] * 2)
    for job_id, owner in (("1", "1"), ("2", "other")):
        queue.command("HSET", f"~{job_id}", "deid", f"D{job_id}")
        queue.command("SET", f"~de:D{job_id}", owner)
        queue.command("HSET", f"~dn:D{job_id}", "name", "next")
    assert change(queue, "drain-9", "wait", 0, "", "")[0] == 2
    assert queue.get("de:D1") is queue.get("dn:D1") is None
    assert queue.get("de:D2") == "other"


def test_52_a_parent_of_the_same_queue_goes_with_its_last_child(queue: Queue, client: redis.Redis) -> None:
    others = Queue(client, "P")
    queue.add_many([job_args(job_id=job_id) for job_id in ("grand", "parent", "child", "other's")])
    others.add(job_id="far")
    for here, parent, child in ((queue, "grand", "parent"), (queue, "parent", "child"), (others, "far", "other's")):
        here.command("LREM", "~wait", 0, parent)
        here.command("ZADD", "~waiting-children", T, parent)
        here.command("SADD", f"~{parent}:dependencies", f"bull:q:{child}")
        queue.command("HSET", f"~{child}", "parentKey", f"{here.base}{parent}")
    queue.new_events()
    others.new_events()
    assert change(queue, "cleanJobs-12", "wait", 0, "", 0, "")[0] == ["child", "other's"]
    assert [queue.get(key) for key in ("grand", "parent", "child", "waiting-children", "wait")] == [None] * 5
    assert queue.events() == [["cleaned", "count", "2"]]
    assert others.get("wait") == ["far"]
    assert others.events() == []


# -- running again


def test_36_retry(queue: Queue) -> None:
    queue.add(opts={"attempts": 1})
    fail(queue, "1")
    assert change(queue, "reprocessJob-10", "1", "1") == [0, ""]
    job = queue.get("1")
    assert not {"finishedOn", "processedOn", "failedReason", "atm", "ats"} & set(job)
    assert job["stacktrace"] == '["Error: bad"]'
    assert queue.events() == [["waiting", "jobId", "1", "prev", "failed"]]
    assert queue.get("failed") is None
    assert queue.get("wait") == ["1"]
    assert queue.get("marker") == [("0", 0.0)]
    assert change(queue, "reprocessJob-10", "1", "") == [-3, "waiting"]
    assert change(queue, "reprocessJob-10", "9", "") == [-1, ""]


def test_36_attempts_are_counted_on(queue: Queue) -> None:
    queue.add()
    fail(queue, "1")
    change(queue, "reprocessJob-10", "1", "")
    assert (queue.get("1")["atm"], queue.get("1")["ats"]) == ("1", "1")


def test_36_a_completed_one(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    queue.finish(completed("1", queue.token, "7"))
    queue.new_events()
    change(queue, "reprocessJob-10", "1", "")
    assert not {"finishedOn", "processedOn", "returnvalue"} & set(queue.get("1"))
    assert queue.events() == [["waiting", "jobId", "1", "prev", "completed"]]


def test_36_with_priority_or_lifo(queue: Queue) -> None:
    queue.add_many([job_args(), job_args(opts={"lifo": True}), job_args(priority=2)])
    fail(queue, "1", "2", "3")
    queue.add()
    for job_id in "123":
        change(queue, "reprocessJob-10", job_id, "")
    assert queue.get("wait") == ["1", "4", "2"]
    assert queue.get("prioritized")[0][0] == "3"


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("place", [":unsuccessful", ":failed", ":processed"])
def test_36_its_parent_waits_for_it_again(queue: Queue, place: str, many: bool) -> None:
    queue.add_many([job_args(job_id="parent"), job_args(job_id="child")])
    queue.command("LREM", "~wait", 0, "parent")
    queue.command("ZADD", "~waiting-children", T, "parent")
    queue.command("HSET", "~child", "parentKey", "bull:q:parent")
    fail(queue, "child")
    origin = "failed"
    if place == ":processed":
        origin = "completed"
        queue.command("ZREM", "~failed", "child")
        queue.command("ZADD", "~completed", T, "child")
    add = ("ZADD", T) if place == ":unsuccessful" else ("HSET",)
    queue.command(add[0], f"~parent{place}", *add[1:], "bull:q:child", *(() if place == ":unsuccessful" else ("bad",)))
    if many:
        assert change(queue, "moveJobsToWait-11", origin, "")[:2] == [1, 0]
    else:
        assert change(queue, "reprocessJob-10", "child", "") == [0, ""]
    assert queue.get("parent:dependencies") == {"bull:q:child"}
    assert queue.get(f"parent{place}") is None


def test_14_retry_all_keeps_the_order_and_takes_nothing_that_fails_meanwhile(queue: Queue) -> None:
    queue.add_many([job_args()] * 3 + [job_args(priority=2)] * 2)
    fail(queue, "1", "2", "3", "4", "5")
    moved, left, cut = change(queue, "moveJobsToWait-11", "failed", "")
    assert (moved, left, cut) == (5, 0, str(T))
    assert queue.get("wait") == ["3", "2", "1"]
    assert [job_id for job_id, _ in queue.get("prioritized")] == ["4", "5"]
    assert queue.events() == [["waiting", "jobId", job_id, "prev", "failed"] for job_id in "12345"]
    assert queue.get("1").keys().isdisjoint({"finishedOn", "processedOn", "failedReason"})
    assert queue.get("1")["atm"] == "1"
    queue.clock = T + 1
    fail(queue, "1")
    assert change(queue, "moveJobsToWait-11", "failed", cut) == [0, 0, cut]


def test_37_an_event_of_ones_own(queue: Queue) -> None:
    queue.run("publishEvent-3", "custom", "a", 1, "n", 2)
    assert queue.get("events") == [["event", "custom", "a", "1", "n", "2"]]


# -- what holds for all of them

CHANGES: dict[str, tuple[str | int, ...]] = {
    "promote-9": ("ID",), "changeDelay-5": ("ID", 5, ""), "changePriority-8": ("ID", 3, ""), "reprocessJob-10": ("ID", ""),
}  # fmt: skip
NEEDED = {"promote-9": {"delayed"}, "changeDelay-5": {"delayed"}, "reprocessJob-10": {"completed", "failed"}}
PLACES = ("wait", "prioritized", "delayed", "active", "waiting-children", "completed", "failed")
STATES = ("waiting", "prioritized", "delayed", "active", "waiting-children", "completed", "failed")


@pytest.mark.parametrize("script", CHANGES)
@pytest.mark.parametrize("state", STATES)
def test_every_change_in_every_state(queue: Queue, script: str, state: str) -> None:
    queue.add(delay=100 if state == "delayed" else 0, priority=2 if state == "prioritized" else 0)
    if state in ("active", "completed", "failed"):
        queue.fetch()
    if state == "completed":
        queue.finish(completed("1", queue.token))
    elif state == "failed":
        queue.finish(failed("1", queue.token, "bad"))
    elif state == "waiting-children":
        queue.command("LREM", "~wait", 0, "1")
        queue.command("ZADD", "~waiting-children", T, "1")
    assert queue.state("1") == state
    before = queue.dump()
    [code, found] = change(queue, script, *("1" if arg == "ID" else arg for arg in CHANGES[script]))
    if state in NEEDED.get(script, STATES):
        assert (code, found) == (0, "")
        assert queue.state("1") != "unknown"
    else:
        assert (code, found) == (-3, state)
        assert queue.dump() == before
    ids = [queue.get(place) or [] for place in PLACES]
    assert sum("1" in str(held) for held in ids) == 1, "it stands in one state"


@pytest.mark.parametrize("script", [*CHANGES, "moveJobsToWait-11", "drain-9", "cleanJobs-12", "publishEvent-3"])
def test_a_call_that_is_sent_again_acts_once(queue: Queue, script: str) -> None:
    queue.add_many([job_args()] * 6 + [job_args(delay=5)])
    fail(queue, "1", "2", "3")
    args = {
        "promote-9": ("7",), "changeDelay-5": ("7", 5, ""), "changePriority-8": ("4", 3, ""), "reprocessJob-10": ("1", ""),
        "moveJobsToWait-11": ("failed", ""), "drain-9": ("wait", 0, "", ""), "cleanJobs-12": ("failed", 0, "", 0, 1),
        "publishEvent-3": ("custom",),
    }[script]  # fmt: skip
    first = queue.run(script, *args, number=99)
    after = queue.dump()
    assert text(queue.run(script, *args, number=99, resent=True)) == text(first)
    assert queue.dump() == after


def test_while_paused_nothing_is_woken_and_a_list_of_version_5_is_taken_over(queue: Queue) -> None:
    queue.add_many([job_args(delay=5)] + [job_args()] * 2)
    fail(queue, "2", "3")
    queue.pause()
    queue.command("RPUSH", "~paused", "5", "4")
    for job_id in "45":
        queue.command("HSET", f"~{job_id}", "name", "x", "priority", 0)
    change(queue, "promote-9", "1")
    change(queue, "reprocessJob-10", "2", "")
    change(queue, "moveJobsToWait-11", "failed", "")
    change(queue, "changePriority-8", "5", 0, "1")
    queue.run("setLimits-7", "concurrency", 3)
    assert queue.get("marker") is None
    assert queue.get("paused") is None
    assert queue.get("wait") == ["3", "2", "1", "4", "5"]


def test_ids_without_a_job_are_only_taken_out(queue: Queue) -> None:
    queue.add_many([job_args()] * 3 + [job_args(delay=5)])
    fail(queue, "1", "2")
    queue.command("DEL", "~1", "~3", "~4")
    assert change(queue, "moveJobsToWait-11", "failed", "")[:2] == [1, 0]
    assert change(queue, "moveJobsToWait-11", "delayed", "")[:2] == [0, 0]
    assert change(queue, "promote-9", "4") == [-1, ""]
    assert queue.get("wait") == ["2", "3"]
    assert change(queue, "cleanJobs-12", "wait", 0, "", 0, "")[0] == ["3", "2"]
    assert queue.get("wait") is None


# -- which jobs are old enough


def test_the_age_of_a_job(queue: Queue) -> None:
    for age in (5000, 3000, 1000):
        queue.add(timestamp=T - age)
        queue.add(timestamp=T - age, priority=1)
        queue.add(timestamp=T - age, delay=9000)
    assert change(queue, "cleanJobs-12", "wait", 0, "", 2000, "")[0] == ["1", "4"]
    assert change(queue, "cleanJobs-12", "prioritized", 0, "", 2000, "")[0] == ["2", "5"]
    assert change(queue, "cleanJobs-12", "delayed", 0, "", 3000, "")[0] == ["3", "6"]
    assert [queue.get(key) for key in ("wait",)] == [["7"]]


@pytest.mark.parametrize("place", ["completed", "failed"])
def test_the_age_of_one_that_has_ended_counts_from_its_end(queue: Queue, place: str) -> None:
    queue.add_many([job_args(timestamp=5)] * 4)
    for n in "1234":
        queue.clock = T + int(n) * 1000
        queue.fetch()
        queue.finish(completed(n, queue.token) if place == "completed" else failed(n, queue.token, "bad"))
    queue.clock = T + 5000
    ids, skip, more, cut = change(queue, "cleanJobs-12", place, 0, "", 2000, 2)
    assert (ids, skip, more, cut) == (["1", "2"], 0, 1, str(T + 3000))
    assert change(queue, "cleanJobs-12", place, skip, cut, 2000, 2)[0] == ["3"]


def test_an_active_job_is_cleaned_when_its_lock_has_gone(queue: Queue) -> None:
    queue.run("setLimits-7", "concurrency", 2)
    queue.add_many([job_args()] * 3)
    queue.fetch(2)
    queue.command("DEL", "~2:lock", "~marker")
    queue.clock = T + 10
    assert change(queue, "cleanJobs-12", "active", 0, "", 5, "")[0] == ["2"]
    assert queue.get("active") == ["1"]
    assert queue.get("marker") == [("0", 0.0)], "a slot is free"


# -- steps


def test_many_go_in_steps(queue: Queue) -> None:
    queue.add_many([job_args()] * 300)
    queue.add_many([job_args()] * 250)
    queue.clock = T + 1
    ids = [str(n) for n in range(1, 551)]
    for job_id in ids:
        queue.command("LREM", "~wait", 0, job_id)
        queue.command("ZADD", "~failed", T, job_id)
    steps, cut, left = [], "", 1
    while left:
        moved, left, cut = change(queue, "moveJobsToWait-11", "failed", cut)
        steps.append(moved)
    assert steps == [250, 250, 50]
    assert sorted(queue.get("wait")) == sorted(ids)
    steps, skip, more, since, counted = [], 0, 1, "", ""
    while more:
        removed, skip, more, since, counted = change(queue, "drain-9", "wait", skip, since, counted)
        steps.append(removed)
    assert sum(steps) == 550
    assert max(steps) <= 150
    assert sorted(queue.command("KEYS", "bull:q:*")) == sorted(queue.command("KEYS", "bull:q:[a-z]*"))


def test_draining_leaves_what_is_added_meanwhile(queue: Queue) -> None:
    queue.add_many([job_args()] * 200)
    removed, skip, more, since, counted = change(queue, "drain-9", "wait", 0, "", "")
    assert (more, since, counted) == (1, str(T), "200")
    queue.add_many([job_args(lifo=True), job_args(), job_args(job_id="same moment"), job_args(timestamp=5)])
    queue.clock = T + 1
    queue.add_many([job_args(job_id="mine"), job_args(job_id="first", lifo=True)])
    while more:
        more_removed, skip, more, since, counted = change(queue, "drain-9", "wait", skip, since, counted)
        removed += more_removed
    assert queue.get("wait") == ["mine", "204", "202", "201", "first"]
    assert removed == 201, "an id of one's own that was added in the very millisecond counts as there before"
