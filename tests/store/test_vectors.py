"""The vectors of protocol.md section 14 that the scripts decide, by their numbers, with the values that stand there.

Those in which Node does the same beside us are in test_vectors_side_by_side.py; vector 61 is test_metrics there too.
"""

from __future__ import annotations

import pytest

from tests.store.node_peer import NodePeer
from tests.store.scripts import Outcome, Queue, T, completed, failed, job_args, retried
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

CLASS = 4294967296


# -- add


def test_2_a_job_as_it_is_stored(queue: Queue) -> None:
    data = '{"a":1,"s":"é","n":null,"arr":[]}'
    assert queue.add("paint", data) == "1"
    assert queue.dump() == {
        "bull:q:1": {
            "name": "paint", "data": data, "opts": '{"attempts":0}', "timestamp": str(T), "delay": "0", "priority": "0",
        },
        "bull:q:id": "1",
        "bull:q:wait": ["1"],
        "bull:q:marker": [("0", 0.0)],
        "bull:q:meta": {"opts.maxLenEvents": "10000"},
        "bull:q:events": [
            ["event", "added", "jobId", "1", "name", "paint"],
            ["event", "waiting", "jobId", "1"],
        ],
    }  # fmt: skip


def test_3_lifo(queue: Queue) -> None:
    queue.add()
    queue.add(lifo=True)
    assert queue.get("wait") == ["1", "2"]
    assert queue.fetch().ids == ["2"]
    assert queue.fetch().ids == ["1"]


def test_4_delayed(queue: Queue) -> None:
    queue.add(delay=1000, timestamp=1_700_000_000_000)
    assert queue.get("delayed") == [("1", 6963200004096000)]
    assert queue.events()[1] == ["delayed", "jobId", "1", "delay", "1700000001000"]
    assert queue.get("marker") == [("1", 1700000001000)]
    assert queue.get("1")["delay"] == "1000"


def test_4_an_absolute_time_is_the_due_time(queue: Queue) -> None:
    queue.add(due=T + 1234)
    queue.add(due=T + 1234, timestamp=T - 1000)
    queue.add(due=T)
    queue.add(due=T - 5)
    assert [score // 4096 for _, score in queue.get("delayed")] == [T + 1234, T + 1234]
    assert [queue.get(job_id)["delay"] for job_id in "1234"] == ["1234", "2234", "0", "0"]
    assert queue.get("wait") == ["4", "3"]


def test_5_ties_keep_their_order(queue: Queue) -> None:
    queue.add_many([job_args(timestamp=1_900_000_000_000, delay=1000)] * 3)
    assert queue.get("delayed") == [(str(n), 7782400004096000 + n - 1) for n in (1, 2, 3)]


def test_5_only_so_many_fit_into_a_millisecond(queue: Queue) -> None:
    for _ in range(17):
        queue.add_many([job_args(timestamp=T, delay=1)] * 250)
    scores = [score for _, score in queue.get("delayed")]
    assert len(scores) == 4250
    assert scores[0] == (T + 1) * 4096
    assert scores[-1] == (T + 2) * 4096 - 1


def test_6_priority_scores(queue: Queue) -> None:
    for priority in (5, 5, 2_097_151):
        queue.add(priority=priority)
    assert queue.get("prioritized") == [("1", 21474836481), ("2", 21474836482), ("3", 9007194959773699)]
    assert queue.get("pc") == "3"
    assert [event[0] for event in queue.events()] == ["added", "waiting"] * 3


def test_8_an_id_of_ones_own(queue: Queue) -> None:
    assert queue.add("first", job_id="my-id") == "my-id"
    before = queue.get("my-id")
    queue.new_events()
    assert queue.add("second", '{"other":1}', job_id="my-id") == "my-id"
    assert queue.get("my-id") == before
    assert queue.get("id") == "2"
    assert queue.events() == [["duplicated", "jobId", "my-id"]]
    assert queue.get("wait") == ["my-id"]


def test_8_a_batch_says_of_each_whether_it_was_added(queue: Queue) -> None:
    reply = queue.add_many([job_args(job_id="a"), job_args(), job_args(job_id="a"), job_args()])
    assert reply == [str(T), "a", 1, "2", 1, "a", 0, "4", 1]
    assert queue.get("wait") == ["4", "2", "a"]


def test_8_a_counter_that_went_back_gives_no_id_twice(queue: Queue) -> None:
    for _ in range(3):
        queue.add()
    queue.command("SET", "~id", 1)
    assert queue.add() == "4"
    assert queue.get("wait") == ["4", "3", "2", "1"]


@pytest.mark.parametrize("data", ["null", '"s"', "5", "[1]", "true", "{}"])
def test_10_data_of_any_kind(queue: Queue, data: str) -> None:
    queue.add(data=data)
    assert queue.get("1")["data"] == data


def test_11_a_negative_delay_is_kept_but_is_none(queue: Queue) -> None:
    queue.add(delay=-5)
    assert queue.get("wait") == ["1"]
    assert queue.get("1")["delay"] == "-5"


# -- fetch and finish


def test_12_fetch(queue: Queue) -> None:
    queue.add()
    queue.client.delete("bull:q:marker")
    queue.new_events()
    queue.clock = T + 7
    taken = queue.fetch(worker="w1")
    assert taken.jobs["1"]["ats"] == "1"
    assert taken.jobs["1"]["processedOn"] == str(T + 7)
    assert queue.get("active") == ["1"]
    assert queue.get("1:lock") == queue.token
    assert 0 < queue.command("PTTL", "~1:lock") <= 30_000
    job = queue.get("1")
    assert (job["processedOn"], job["pb"], job["ats"]) == (str(T + 7), "w1", "1")
    assert queue.get("marker") == [("0", 0)]
    assert queue.get("wait") is None
    assert queue.events() == [["active", "jobId", "1", "prev", "waiting"]]


def test_13_complete_with_a_delayed_job_pending(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    queue.add(delay=5000)
    queue.new_events()
    taken = queue.finish(completed("1", token, '{"ok":true}'), count=1)
    assert (taken.codes, taken.jobs, taken.limited_ms, taken.next_due) == ([0], {}, 0, T + 5000)
    job = queue.get("1")
    assert (job["atm"], job["returnvalue"], job["finishedOn"]) == ("1", '{"ok":true}', str(T))
    assert queue.get("completed") == [("1", T)]
    assert queue.get("1:lock") is None
    assert queue.events() == [["completed", "jobId", "1", "returnvalue", '{"ok":true}', "prev", "active"]]


def test_13_without_a_next_fetch_it_is_drained(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    queue.add(delay=5000)
    queue.new_events()
    queue.finish(completed("1", token, '{"ok":true}'))
    assert [event[0] for event in queue.events()] == ["completed", "drained"]


def test_15_a_later_attempt(queue: Queue) -> None:
    queue.add()
    queue.add()
    queue.fetch()
    token = queue.token
    queue.new_events()
    taken = queue.finish(retried("1", token, "bad", 1000), count=1)
    assert taken.ids == ["2"]
    job = queue.get("1")
    assert (job["delay"], job["atm"], job["failedReason"], job["stacktrace"]) == ("1000", "1", "bad", '["Error: bad"]')
    assert queue.get("delayed") == [("1", (T + 1000) * 4096)]
    assert queue.events() == [
        ["delayed", "jobId", "1", "delay", str(T + 1000)],
        ["active", "jobId", "2", "prev", "waiting"],
    ]
    assert queue.get("marker") == [("0", 0)]


def test_16_an_attempt_at_once(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    queue.new_events()
    assert queue.finish(retried("1", token, "bad")).codes == [0]
    assert queue.get("wait") == ["1"]
    assert queue.get("1")["atm"] == "1"
    assert queue.events() == [["waiting", "jobId", "1", "prev", "active"]]


def test_17_the_last_attempt(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    queue.new_events()
    queue.finish(failed("1", token, "bad"))
    assert queue.events() == [
        ["failed", "jobId", "1", "failedReason", "bad", "prev", "active"],
        ["retries-exhausted", "jobId", "1", "attemptsMade", "1"],
        ["drained"],
    ]


def test_17_failed_with_attempts_left(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    queue.new_events()
    queue.finish(failed("1", token, "bad", attempts=3))
    assert [event[0] for event in queue.events()] == ["failed", "drained"]


def test_18_codes(queue: Queue) -> None:
    for _ in range(5):
        queue.add()
    queue.fetch(5)
    token = queue.token
    assert queue.finish(completed("1", "wrong")).codes == [-6]
    assert queue.finish(completed("1", token)).codes == [0]
    assert queue.finish(completed("1", token)).codes == [-2]
    queue.command("LREM", "~active", 0, "2")
    assert queue.finish(completed("2", token)).codes == [-3]
    assert queue.get("2:lock") is None
    queue.command("DEL", "~3")
    queue.command("SADD", "~4:dependencies", "bull:q:x")
    queue.command("ZADD", "~5:unsuccessful", 1, "bull:q:x")
    before = queue.dump()
    assert queue.finish(completed("3", token), completed("4", token), completed("5", token)).codes == [-1, -4, -9]
    assert queue.dump() == before


@pytest.mark.parametrize(
    "outcome", [retried("1", "wrong", "bad"), retried("1", "wrong", "bad", 5), Outcome("wait", "1", "wrong"),
                Outcome("back", "1", "wrong"), failed("1", "wrong", "bad")]
)  # fmt: skip
def test_18_every_outcome_needs_the_lock(queue: Queue, outcome: Outcome) -> None:
    queue.add()
    queue.fetch()
    before = queue.dump()
    assert queue.finish(outcome).codes == [-6]
    assert queue.dump() == before
    queue.command("DEL", "~1:lock")
    before = queue.dump()
    assert queue.finish(outcome).codes == [-2]
    assert queue.dump() == before


def test_19_retention_by_age_takes_the_newest_of_the_old(queue: Queue) -> None:
    for number in range(5):
        queue.clock = T + number
        queue.add()
        queue.fetch()
        queue.finish(completed(str(number + 1), queue.token))
    queue.clock = T + 100_000
    queue.add()
    queue.fetch()
    queue.finish(completed("6", queue.token, rule="-1;10;2"))
    assert [job_id for job_id, _ in queue.get("completed")] == ["1", "2", "3", "6"]
    assert queue.get("4") is None


def test_21_a_prioritized_job_comes_back(queue: Queue) -> None:
    queue.add(priority=2)
    queue.add(priority=2)
    queue.fetch()
    queue.finish(retried("1", queue.token, "bad"))
    assert dict(queue.get("prioritized")) == {"1": 2 * CLASS + 3, "2": 2 * CLASS + 2}
    queue.fetch()
    queue.finish(Outcome("wait", "2", queue.token))
    # Deviation from 3.9: the score before the first of its class, not the lowest of the class, where several would meet.
    assert dict(queue.get("prioritized"))["2"] == 8589934592 + 2


def test_22_due_jobs_in_order(queue: Queue) -> None:
    for job_id in ("x0", "x1", "x2"):
        queue.add(job_id=job_id, delay=10)
    queue.add(job_id="xp", delay=10, priority=1)
    queue.add(job_id="lifo", delay=10, lifo=True)
    queue.clock = T + 50
    assert queue.fetch().ids == ["x0"]
    assert queue.get("wait") == ["lifo", "x2", "x1"]
    assert queue.get("prioritized") == [("xp", 4294967297)]


def test_23_order_of_service(queue: Queue) -> None:
    queue.add("p", priority=1)
    queue.add("a")
    queue.add("b")
    assert queue.fetch(10).ids == ["2", "3", "1"]
    assert queue.fetch().ids == []
    assert queue.get("pc") is None


# -- pause, limits, stalled


def test_24_pause(queue: Queue) -> None:
    queue.add("a")
    queue.add("p", priority=1)
    queue.pause()
    queue.add("b")
    queue.add("d", delay=10_000)
    assert queue.get("wait") == ["3", "1"]
    assert queue.get("marker") == [("1", T + 10_000)]
    assert queue.counts("waiting", "prioritized", "delayed") == [2, 1, 1]
    taken = queue.fetch()
    assert (taken.ids, taken.flags) == ([], 1)
    assert queue.resume() == [str(T), 0]
    assert queue.get("marker") == [("0", 0), ("1", T + 10_000)]
    assert [event[0] for event in queue.events() if event[0] in ("paused", "resumed")] == ["paused", "resumed"]


def test_25_what_version_5_paused_with_is_merged(queue: Queue, server: Server) -> None:
    queue.command("HSET", "~meta", "paused", 1)
    for job_id in ("a", "b"):
        queue.command("HSET", "~" + job_id, "name", job_id, "data", "{}", "opts", "{}", "timestamp", T, "delay", 0,
                      "priority", 0)  # fmt: skip
        queue.command("LPUSH", "~paused", job_id)
    queue.command("LPUSH", "~wait", "c")
    assert queue.counts("waiting") == [3]
    assert queue.resume() == [str(T), 0]
    assert queue.get("wait") == ["c", "b", "a"]
    assert queue.get("paused") is None


def test_25_every_script_takes_over_before_it_adds(queue: Queue) -> None:
    queue.command("HSET", "~meta", "paused", 1)
    queue.command("RPUSH", "~paused", *[f"old{n}" for n in range(2500)])
    queue.add("new")
    assert (queue.command("LLEN", "~wait"), queue.command("LLEN", "~paused")) == (2501, 0)  # it was free: renamed
    queue.command("RPUSH", "~paused", *[f"more{n}" for n in range(2500)])
    queue.fetch()
    assert queue.command("LLEN", "~paused") == 1500
    assert queue.resume()[1] == 500
    assert queue.command("HEXISTS", "~meta", "paused") == 1
    assert queue.resume()[1] == 0
    assert queue.command("HEXISTS", "~meta", "paused") == 0
    assert queue.get("wait")[0] == "1"
    assert queue.get("wait")[1:] == [f"old{n}" for n in range(2500)] + [f"more{n}" for n in range(2500)]
    assert [event[0] for event in queue.events()].count("resumed") == 1


def test_25_node_5_pauses_and_we_take_over(queue: Queue, server: Server) -> None:
    with NodePeer("bullmq5") as node:
        node("open", path=str(server.socket_path), prefix="bull", queue="q")
        node("add", name="a", data={}, opts={})
        node("pause")
        node("add", name="b", data={}, opts={})
        assert queue.get("paused") == ["2", "1"]
        queue.add("c")
        assert queue.get("wait") == ["3", "2", "1"]
        assert queue.get("paused") is None
        assert queue.resume() == [str(T), 0]
        node("close")
    assert queue.fetch(3).ids == ["1", "2", "3"]


def test_26_global_rate_limit(queue: Queue) -> None:
    for _ in range(4):
        queue.add()
    queue.command("HSET", "~meta", "max", 2, "duration", 1000)
    assert [queue.fetch().ids for _ in range(2)] == [["1"], ["2"]]
    taken = queue.fetch()
    assert (taken.ids, taken.flags) == ([], 4)
    assert 900 < taken.limited_ms <= 1000
    assert queue.get("limiter") == "2"


def test_26_a_batch_takes_no_more_than_the_window_admits(queue: Queue) -> None:
    for _ in range(4):
        queue.add()
    taken = queue.fetch(4, limit=(3, 60_000))
    assert taken.ids == ["1", "2", "3"]
    assert queue.get("limiter") == "3"
    assert 59_000 < queue.command("PTTL", "~limiter") <= 60_000
    assert queue.fetch(4, limit=(3, 60_000)).flags == 4


def test_27_a_limit_by_hand_counts_only_with_a_maximum(queue: Queue) -> None:
    queue.add()
    queue.add()
    queue.command("SET", "~limiter", 9007199254740991, "PX", 5000)
    assert queue.fetch().ids == ["1"]
    queue.command("HSET", "~meta", "max", 10)
    taken = queue.fetch()
    assert taken.ids == []
    assert 4000 < taken.limited_ms <= 5000


def test_28_global_concurrency(queue: Queue) -> None:
    queue.command("HSET", "~meta", "concurrency", 1)
    queue.add()
    queue.fetch()
    token = queue.token
    queue.command("DEL", "~marker")
    queue.add()
    assert queue.get("marker") is None
    taken = queue.fetch()
    assert (taken.ids, taken.flags) == ([], 2)
    assert queue.finish(completed("1", token), count=5).ids == ["2"]


def test_28_a_batch_takes_no_more_than_the_free_slots(queue: Queue) -> None:
    queue.command("HSET", "~meta", "concurrency", 3)
    for _ in range(5):
        queue.add()
    assert queue.fetch(5).ids == ["1", "2", "3"]
    token = queue.token
    assert queue.finish(completed("1", token), completed("3", token), count=5).ids == ["4", "5"]


def test_29_stalled_jobs(queue: Queue) -> None:
    queue.add()
    queue.add(priority=7)
    queue.add()
    queue.add(priority=7)
    queue.fetch(3)
    queue.command("DEL", "~1:lock", "~2:lock", "~3:lock")
    now, left, step, *ids = queue.sweep()
    assert (now, step, ids) == (str(T), 0, [])
    assert 29_000 < left <= 30_000
    assert queue.get("stalled") == {"1", "2", "3"}
    assert queue.get("stalled-check") == str(T)
    before = queue.dump()
    guard, left, step = queue.sweep()
    assert (guard, step) == ("", 0)
    assert 29_000 < left <= 30_000
    assert queue.dump() == before

    queue.command("DEL", "~stalled-check")
    queue.new_events()
    _, _, step, *ids = queue.sweep()
    assert step == 0
    assert sorted(ids) == ["1", "2", "3"]
    assert queue.events() == [
        event
        for job_id in ids
        for event in (["waiting", "jobId", job_id, "prev", "active"], ["stalled", "jobId", job_id])
    ]
    assert [queue.get(job_id)["stc"] for job_id in ids] == ["1"] * 3
    # Deviation from 3.22: one with a priority goes to the front of its class, not before all others.
    in_wait = [job_id for job_id in ids if job_id != "2"]
    assert queue.get("wait") == in_wait
    assert [job_id for job_id, _ in queue.get("prioritized")] == ["2", "4"]
    assert queue.get("active") is None
    assert queue.get("stalled") is None


def test_29_too_often(queue: Queue) -> None:
    queue.add()
    for stalls in (1, 2):
        queue.fetch()
        queue.command("DEL", "~1:lock")
        for _ in range(2):
            queue.command("DEL", "~stalled-check")
            queue.sweep()
        assert queue.get("1")["stc"] == str(stalls)
    assert queue.get("1")["defa"] == "job stalled more than allowable limit"
    assert queue.get("wait") == ["1"]
    queue.fetch()
    queue.finish(failed("1", queue.token, "job stalled more than allowable limit"))
    assert "defa" not in queue.get("1")
    assert queue.get("1")["failedReason"] == "job stalled more than allowable limit"


def test_29_a_job_of_a_living_scheduler_may_stall_for_ever(queue: Queue) -> None:
    queue.add()
    queue.command("HSET", "~1", "rjk", "sch", "stc", 5)
    queue.command("ZADD", "~repeat", T, "sch")
    queue.fetch()
    queue.command("DEL", "~1:lock")
    for _ in range(2):
        queue.command("DEL", "~stalled-check")
        queue.sweep()
    assert queue.get("1")["stc"] == "6"
    assert "defa" not in queue.get("1")


def test_29_a_locked_job_is_left_alone(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    for _ in range(3):
        queue.command("DEL", "~stalled-check")
        assert queue.sweep()[3:] == []
    assert queue.get("active") == ["1"]
    assert queue.get("stalled") == {"1"}
    queue.finish(completed("1", queue.token.replace(str(queue.number), "2")))
    assert queue.get("stalled") is None


def test_29_with_confirmation_a_job_is_looked_at_twice(queue: Queue) -> None:
    queue.add()
    queue.add()
    queue.fetch(2)
    token = queue.token
    queue.command("DEL", "~1:lock", "~2:lock")
    queue.sweep(confirm=500)
    queue.command("DEL", "~stalled-check")
    _, _, step, *ids = queue.sweep(confirm=500)
    assert (step, ids) == (-2, [])
    assert queue.extend(("2", token, 1)) == []
    _, _, step, *ids = queue.sweep(confirm=500, step=-2)
    assert (step, ids) == (0, ["1"])
    assert queue.get("active") == ["2"]
    assert queue.get("1")["stc"] == "1"


def test_29_in_steps(queue: Queue) -> None:
    for _ in range(10):
        queue.add_many([job_args()] * 250)
    for _ in range(25):
        queue.fetch(100)
    queue.command("DEL", *[f"~{job_id}:lock" for job_id in range(1, 2501)])
    steps, step = 0, 0
    while True:
        step = queue.sweep(step=step)[2]
        steps += 1
        if step == 0:
            break
    assert steps == 3
    assert queue.command("SCARD", "~stalled") == 2500
    queue.command("DEL", "~stalled-check")
    found: list[str] = []
    while True:
        _, _, step, *ids = queue.sweep(step=step)
        assert len(ids) <= 100
        found += ids
        if step == 0:
            break
    assert len(set(found)) == 2500
    assert queue.command("LLEN", "~wait") == 2500


@pytest.mark.parametrize("guard", [str(T), "nan", "", "long ago", str(T + 60_000)])
def test_29_a_guard_for_long_keeps_nobody_from_sweeping_in_time(queue: Queue, guard: str) -> None:
    queue.add()
    queue.fetch()
    assert queue.clock is not None
    if guard == str(T):
        queue.sweep(interval=86_400_000)
        queue.clock += 100
        assert queue.sweep(interval=300) == ["", 200, 0]
        queue.clock += 200
    else:
        queue.command("SET", "~stalled-check", guard, "PX", 86_400_000)
    now, left, *_ = queue.sweep(interval=300)
    assert now == str(queue.clock)
    assert 0 < left <= 300
    assert queue.get("stalled") == {"1"}
    assert queue.get("stalled-check") == str(queue.clock)


def test_30_extend_locks(queue: Queue) -> None:
    queue.add()
    queue.fetch(lock=500)
    token = queue.token
    queue.command("SADD", "~stalled", "1", "other")
    assert queue.extend(("1", token, 1), ("nope", token, 1), ("1", "bad", 1)) == ["nope", "1"]
    assert queue.get("stalled") == {"other"}
    assert queue.command("PTTL", "~1:lock") > 20_000


def test_30_a_job_without_lock_is_taken_again_only_by_its_last_starter(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    old = queue.token
    queue.command("DEL", "~1:lock")
    assert queue.extend(("1", old, 2)) == ["1"]
    assert queue.extend(("1", old, 1)) == []
    assert queue.get("1:lock") == old
    queue.finish(Outcome("back", "1", old))
    assert queue.extend(("1", old, 1)) == ["1"]
    assert queue.get("1:lock") is None
    queue.fetch()
    assert queue.extend(("1", old, 1)) == ["1"]
    assert queue.get("1:lock") == queue.token


@pytest.mark.parametrize("later", [0, 1])
def test_30_a_job_added_anew_is_not_taken_by_a_run_of_the_former_one(queue: Queue, later: int) -> None:
    queue.add(job_id="x")
    queue.fetch()
    old, run = queue.token, queue.run_of("x")
    queue.command("DEL", "~x:lock")
    assert queue.run("remove-5", "x", "", "")[1] == 1
    assert queue.clock is not None
    queue.clock += later
    queue.add(job_id="x", timestamp=str(T + 1))
    queue.fetch()
    assert queue.get("x")["ats"] == "1"
    queue.command("DEL", "~x:lock")
    assert queue.extend(("x", old, run)) == ["x"]
    assert queue.extend(("x", queue.token, queue.run_of("x"))) == []


def test_30_a_start_that_was_taken_back_and_made_anew_is_another_run(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    old, run = queue.token, queue.run_of("1")
    queue.finish(Outcome("back", "1", old, "1"))
    assert queue.clock is not None
    queue.clock += 1
    queue.fetch()
    assert queue.get("1")["ats"] == "1"
    queue.command("DEL", "~1:lock")
    assert queue.extend(("1", old, run)) == ["1"]


def test_release_lock(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    lock = {"lock": "bull:q:1:lock"}
    assert queue.run("releaseLock-1", "other", keys=lock) == 0
    assert queue.run("releaseLock-1", token, keys=lock) == 1
    assert queue.run("releaseLock-1", token, keys=lock) == 0


# -- give-back (design section 6)


def test_given_back_jobs_keep_their_order(queue: Queue) -> None:
    for _ in range(3):
        queue.add()
    for _ in range(3):
        queue.add(priority=4)
    taken = queue.fetch(6)
    token = queue.token
    queue.add("later")
    queue.add("later", priority=4)
    queue.new_events()
    queue.finish(*(Outcome("back", job_id, token, "1") for job_id in reversed(taken.ids)))
    assert queue.get("wait") == ["7", "3", "2", "1"]
    assert [job_id for job_id, _ in queue.get("prioritized")] == ["4", "5", "6", "8"]
    assert queue.get("active") is None
    assert queue.get("marker") == [("0", 0)]
    assert [event for event in queue.events() if event[0] != "waiting"] == []
    assert all(queue.get(job_id)["ats"] == "0" and "atm" not in queue.get(job_id) for job_id in taken.ids)
    assert queue.fetch(8).ids == ["1", "2", "3", "7", "4", "5", "6", "8"]


def test_given_back_after_the_handler_was_called_the_start_counts(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    queue.finish(Outcome("back", "1", queue.token))
    assert queue.get("1")["ats"] == "1"


@pytest.mark.parametrize("priority", [1, 4, 2_097_151])
@pytest.mark.parametrize("kind", ["back", "wait"])
def test_given_back_before_one_that_began_its_class_anew(queue: Queue, kind: str, priority: int) -> None:
    """The class ran empty, so its counter began at 1 again: there is no room between its lower end and the one that came."""
    for _ in range(12):
        queue.add(priority=priority)
    taken, token = queue.fetch(12), queue.token
    assert queue.fetch().ids == []
    assert queue.get("pc") is None
    queue.add("late", priority=priority)
    for job_id in reversed(taken.ids):  # one by one: several workers
        queue.finish(Outcome(kind, job_id, token, "1" if kind == "back" else ""))
    if priority > 1:
        queue.add("urgent", priority=priority - 1)
        queue.add("late", priority=priority)
        order = ["14", *taken.ids, "13", "15"]
    else:
        order = [*taken.ids, "13"]
    assert [job_id for job_id, _ in queue.get("prioritized")] == order
    assert queue.fetch(20, share=3).jobs.keys() == set(order), "whoever has waited longest, in classes"


def test_given_back_into_an_empty_class_of_a_front(queue: Queue) -> None:
    queue.add(priority=2)
    queue.fetch()
    queue.finish(Outcome("back", "1", queue.token))
    [(job_id, score)] = queue.get("prioritized")
    assert job_id == "1"
    assert 2 * CLASS <= score < 3 * CLASS


# -- reading


def test_states_and_counts(queue: Queue) -> None:
    queue.add()
    queue.add()
    queue.add(delay=1000)
    queue.add(priority=1)
    queue.fetch()
    queue.fetch()
    queue.finish(completed("1", "lane:5"))
    queue.finish(failed("2", "lane:6", "bad"))
    queue.add()
    queue.add()
    queue.fetch()
    queue.command("ZADD", "~waiting-children", T, "x")
    expected = {"1": "completed", "2": "failed", "3": "delayed", "4": "prioritized", "5": "active", "6": "waiting",
                "x": "waiting-children", "nope": "unknown"}  # fmt: skip
    assert {job_id: queue.state(job_id) for job_id in expected} == expected
    states = ["completed", "failed", "delayed", "prioritized", "active", "waiting", "waiting-children"]
    assert queue.counts(*states) == [1] * 7
    assert queue.is_finished("1", "2", "3", "nope") == [[1, "null", None], [2, "bad"], [0], [-1]]
    state, flat = queue.run("getJob-8", "1")
    assert state == b"completed"
    assert dict(zip(flat[::2], flat[1::2], strict=True))[b"returnvalue"] == b"null"
    assert queue.run("getJob-8", "nope") == [b"unknown", []]


def test_old_markers_are_neither_counted_nor_removed(queue: Queue) -> None:
    queue.add()
    queue.command("RPUSH", "~wait", "0:123")
    before = queue.dump()
    assert queue.counts("waiting") == [1]
    assert queue.dump() == before
    assert queue.fetch(2).ids == ["1"]
    assert queue.get("wait") is None
    queue.command("RPUSH", "~wait", "0:0")
    assert queue.counts("waiting") == [0]


def test_why_a_result_is_not_there(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    queue.finish(completed("1", queue.token, "null", fields=["resultError", "no JSON"]))
    assert queue.is_finished("1") == [[1, "null", "no JSON"]]


# -- cross-implementation


def test_64_node_adds_and_we_work(queue: Queue, server: Server) -> None:
    queue.clock = None
    for version in ("bullmq6", "bullmq5"):
        server.flush()
        with NodePeer(version) as node:
            node("open", path=str(server.socket_path), prefix="bull", queue="q")
            ids = [node("add", name="a", data={}, opts=opts) for opts in ({}, {"delay": 50}, {"priority": 3})]
            for job_id in ids:
                node("listen", id=job_id)
            queue.lane, queue.number = version, 0
            done: set[str] = set()
            while done != set(ids):
                ids_now = queue.fetch(2, worker="foreign").ids
                token = queue.token
                for job_id in ids_now:
                    assert queue.finish(completed(job_id, token, f'{{"id":"{job_id}"}}')).codes == [0]
                    done.add(job_id)
            assert [node("ended", id=job_id) for job_id in ids] == [{"value": {"id": job_id}} for job_id in ids]
            found = node("finished", state="completed")
            assert {job["id"]: (job["by"], job["made"]) for job in found} == dict.fromkeys(ids, ("foreign", 1))
            counts = node("counts")
            assert {state: count for state, count in counts.items() if count} == {"completed": 3}
            node("close")


def test_64_a_failed_job_reaches_node(queue: Queue, server: Server) -> None:
    queue.clock = None
    with NodePeer("bullmq6") as node:
        node("open", path=str(server.socket_path), prefix="bull", queue="q")
        job_id = node("add", name="a", data={}, opts={})
        node("listen", id=job_id)
        queue.fetch()
        queue.finish(failed(job_id, queue.token, "schlecht: é\n2"))
        assert node("ended", id=job_id) == {"error": "schlecht: é\n2"}
        node("close")


def test_64_a_parent_reads_its_childrens_results(queue: Queue, server: Server) -> None:
    with NodePeer("bullmq6") as node:
        node("open", path=str(server.socket_path), prefix="bull", queue="q")
        children = [{"name": name, "queueName": "q", "opts": {"jobId": name}} for name in ("c1", "c2")]
        node("flow", tree={"name": "pp", "queueName": "P", "opts": {"jobId": "pp"}, "children": children})
        taken = queue.fetch(2)
        queue.finish(*(completed(job_id, queue.token, f'"{job_id} done"') for job_id in taken.ids))
        assert node("children", queue="P", id="pp") == {"bull:q:c1": "c1 done", "bull:q:c2": "c2 done"}
        parents = Queue(queue.client, "P")
        assert parents.fetch().ids == ["pp"]
        node("close")


def test_65_a_job_written_by_hand(queue: Queue) -> None:
    queue.command("HSET", "~x", "name", "x", "data", "{}", "opts", "{}", "timestamp", T, "delay", 0, "priority", 0)
    queue.command("LPUSH", "~wait", "x")
    queue.command("ZADD", "~marker", 0, "0")
    taken = queue.fetch()
    assert taken.jobs["x"]["ats"] == "1"
    assert "atm" not in taken.jobs["x"]
    queue.finish(completed("x", queue.token, "1"))
    job = queue.get("x")
    assert (job["atm"], job["returnvalue"], job["finishedOn"]) == ("1", "1", str(T))
