"""Dead letters, key for key: what a job that fails for good leaves, whatever stands around it, and how it goes back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import redis

from echomq._store.keys import QueueKeys
from echomq.options import _QUEUE_KEYS
from tests.api.test_retries import table
from tests.store.scripts import KEEP_ALL, Outcome, Queue, T, completed, text
from tests.support.server import Server

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

DEAD = "emq:{q}-dead:"


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return Queue(client, prefix="emq")


@pytest.fixture
def dead(client: redis.Redis) -> Queue:
    """The queue of dead letters, with a lane of its own."""
    made = Queue(client, prefix="emq")
    made.keys = made.keys.dead_letters
    made.base = made.keys.base
    assert made.base == DEAD
    return made


def dying(
    queue: Queue,
    job_id: str,
    reason: str = "it failed",
    rule: str = KEEP_ALL,
    *,
    options: str = "{",
    said: bool = False,
) -> Outcome:
    """A last failure that leaves a letter; ``options`` is what stands before ours."""
    fields = ["failedReason", reason, "stacktrace", '["trace"]', "failureKind", "unknown"]
    letter = {"id": job_id, "reason": reason, "attemptsMade": 1}
    opts = f'{options}"deadLetter":{json.dumps(letter, separators=(",", ":"))[:-1]},"failedOn":'
    more: dict[str, Any] = {"fields": fields, "attempts": 1, "letter": [DEAD, opts]}
    if said:
        more["said"] = ["expired"]
    return Outcome("failed", job_id, queue.token, reason, rule, more)


@both_servers
def test_a_job_that_fails_for_good_leaves_a_job_that_waits(queue: Queue, dead: Queue) -> None:
    queue.add("enroll", '{"learner":7}', opts={"attempts": 1})
    queue.fetch()
    queue.clock = T + 50
    queue.new_events()
    assert queue.finish(dying(queue, "1", options='{"attempts":1,', said=True)).codes == [0]
    assert queue.get("failed") == [("1", float(T + 50))]
    assert queue.new_events() == [
        ["expired", "jobId", "1"],
        ["failed", "jobId", "1", "failedReason", "it failed", "prev", "active"],
        ["retries-exhausted", "jobId", "1", "attemptsMade", "1"],
        ["drained"],
    ]
    assert {key: value for key, value in queue.dump().items() if key.startswith(DEAD)} == {
        DEAD + "1": {
            "name": "enroll", "data": '{"learner":7}', "timestamp": str(T + 50), "delay": "0", "priority": "0",
            "opts": '{"attempts":1,"deadLetter":{"id":"1","reason":"it failed","attemptsMade":1,"failedOn":'
            f"{T + 50}}}}}",
            "failedReason": "it failed", "stacktrace": '["trace"]', "failureKind": "unknown",
        },
        DEAD + "events": [["event", "added", "jobId", "1", "name", "enroll"], ["event", "waiting", "jobId", "1"]],
        DEAD + "id": "1",
        DEAD + "marker": [("0", 0.0)],
        DEAD + "meta": {"opts.maxLenEvents": "10000"},
        DEAD + "wait": ["1"],
    }  # fmt: skip


@both_servers
def test_a_job_that_is_not_kept_leaves_its_letter_too(queue: Queue, dead: Queue) -> None:
    queue.add("enroll", '{"learner":7}')
    queue.fetch()
    queue.finish(dying(queue, "1", rule="0;;"))
    assert queue.get("1") is None
    assert dead.get("1")["data"] == '{"learner":7}'


def test_many_in_one_call_each_with_an_id_of_its_own(queue: Queue, dead: Queue) -> None:
    for number in range(5):
        queue.add(f"job {number}")
    dead.command("SET", "~id", 1)
    dead.command("HSET", "~2", "name", "was there")
    taken = queue.fetch(5)
    codes = queue.finish(
        *(
            dying(queue, job_id) if number != 2 else completed(job_id, queue.token)
            for number, job_id in enumerate(taken.ids)
        )
    ).codes
    assert codes == [0, 0, 0, 0, 0]
    assert dead.get("wait") == ["6", "5", "4", "3"]
    assert [dead.get(job_id)["name"] for job_id in ("3", "4", "5", "6")] == ["job 0", "job 1", "job 3", "job 4"]
    assert dead.get("id") == "6"


def test_a_paused_queue_of_dead_letters_takes_them_and_wakes_nobody(queue: Queue, dead: Queue) -> None:
    dead.pause()
    queue.add()
    queue.fetch()
    assert queue.finish(dying(queue, "1")).codes == [0]
    assert dead.get("wait") == ["1"]
    assert dead.get("marker") is None


BROKEN = [
    ("wait", "list"), ("marker", "sorted set"), ("events", "stream"), ("id", "string"), ("meta", "hash"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "kind"), BROKEN)
def test_broken_keys_of_the_dead_letters_keep_no_job_from_its_end(
    queue: Queue, dead: Queue, suffix: str, kind: str
) -> None:
    wrong = ("SADD", "~" + suffix, "x")
    dead.command(*wrong)
    queue.add()
    queue.add()
    queue.fetch(2)
    codes = queue.finish(dying(queue, "1"), completed("2", queue.token)).codes
    assert codes == [f"STORED, but its dead letter was not written: {DEAD}{suffix} must be a {kind}", 0]
    assert queue.get("failed") == [("1", float(T))]
    assert queue.get("1")["failureKind"] == "unknown"
    assert queue.get("active") is None
    assert queue.get("1:lock") is None
    assert {key for key in queue.dump() if key.startswith(DEAD)} == {DEAD + suffix}


@pytest.mark.parametrize("counter", ["abc", "9" * 18, "1.5"])
def test_a_counter_that_cannot_be_counted_on(queue: Queue, dead: Queue, counter: str) -> None:
    dead.command("SET", "~id", counter)
    queue.add()
    queue.fetch()
    [code] = queue.finish(dying(queue, "1")).codes
    assert code.startswith(f"STORED, but its dead letter was not written: {DEAD}id must be a")
    assert queue.get("failed") == [("1", float(T))]
    assert dead.get("id") == counter


@pytest.mark.parametrize("rule", ["0;;", "1;;", "-1;0;"])
def test_a_job_whose_letter_is_refused_is_kept_whatever_its_rule(queue: Queue, dead: Queue, rule: str) -> None:
    dead.command("SADD", "~wait", "x")
    queue.add("enroll", '{"learner":7}')
    queue.add("enroll", '{"learner":8}')
    queue.fetch(2)
    codes = queue.finish(dying(queue, "1", rule=rule), dying(queue, "2", rule=rule)).codes
    assert codes == [f"STORED, but its dead letter was not written: {DEAD}wait must be a list"] * 2
    assert queue.get("failed") == [("1", float(T)), ("2", float(T))]
    assert queue.get("1")["data"] == '{"learner":7}'
    assert queue.get("1")["failedReason"] == "it failed"


def test_past_any_number_of_letters_when_the_counter_went_back(queue: Queue, dead: Queue) -> None:
    for number in range(1, 2_001):
        dead.command("HSET", f"~{number}", "name", "was there")
    queue.add("precious")
    queue.add("precious")
    queue.fetch(2)
    assert queue.finish(dying(queue, "1", rule="0;;"), dying(queue, "2", rule="0;;")).codes == [0, 0]
    letters = dead.get("wait")
    assert [dead.get(job_id)["name"] for job_id in letters] == ["precious", "precious"]
    assert dead.get("id") == letters[0]


def test_a_finish_that_is_sent_again_leaves_one_letter(queue: Queue, dead: Queue) -> None:
    queue.add()
    queue.fetch()
    outcome = dying(queue, "1")
    queue.finish(outcome)
    before = queue.dump()
    again = queue.finish(outcome, number=queue.number, resent=True)
    assert again.codes == [0]
    assert queue.dump() == before
    assert queue.finish(outcome).codes == [-2]
    assert dead.get("wait") == ["1"]


# -- back ---------------------------------------------------------------------------------------------------------------------


def die(queue: Queue, job_id: str, **more: Any) -> None:
    queue.fetch()
    assert queue.finish(dying(queue, job_id, **more)).codes == [0]


def requeue(dead: Queue, job_id: str = "", most: int = 100, **call: Any) -> list[Any]:
    """Code, state, how many left, how many are left, then the ids."""
    return list(text(dead.run("requeue-5", "emq:{q}:", job_id, most, **call)))[1:]


@both_servers
def test_back_as_a_new_job_under_its_old_id(queue: Queue, dead: Queue) -> None:
    queue.add("enroll", '{"learner":7}', job_id="order-7")
    die(queue, "order-7", rule="0;;", options='{"attempts":3,"big":12345678901234567890,"none":[],')
    queue.new_events()
    dead.new_events()
    dead.clock = T + 99
    assert requeue(dead) == [0, "", 1, 0, "order-7"]
    assert queue.get("order-7") == {
        "name": "enroll", "data": '{"learner":7}', "opts": '{"attempts":3,"big":12345678901234567890,"none":[]}',
        "timestamp": str(T + 99), "delay": "0", "priority": "0",
    }  # fmt: skip
    assert queue.get("wait") == ["order-7"]
    assert queue.get("marker") == [("0", 0.0)]
    assert queue.new_events() == [["added", "jobId", "order-7", "name", "enroll"], ["waiting", "jobId", "order-7"]]
    assert dead.events() == [["removed", "jobId", "1", "prev", "wait"]]
    left = {key for key in queue.dump() if key.startswith(DEAD)}
    assert left == {DEAD + name for name in ("events", "id", "marker", "meta")}


def test_where_its_old_id_is_taken_it_gets_a_new_one(queue: Queue, dead: Queue) -> None:
    queue.add()
    die(queue, "1")
    queue.command("HSET", "~2", "name", "was there")
    assert requeue(dead, "1") == [0, "waiting", 1, 0, "3"]
    assert queue.get("failed") == [("1", float(T))]
    assert queue.get("wait") == ["3"]


@pytest.mark.parametrize(
    "former",
    [*sorted(_QUEUE_KEYS), "de:x", "repeat:x:1", "metrics:completed:data", "7:lock", "a:b:c:d", "0:1", "0:1:2", ""],
)
def test_an_id_that_no_job_may_have_is_not_given_back(queue: Queue, dead: Queue, former: str) -> None:
    dead.add("enroll", opts={"deadLetter": {"id": former}})
    assert requeue(dead) == [0, "", 1, 0, "1"]
    assert queue.get("wait") == ["1"]
    assert queue.get("1")["name"] == "enroll"


def test_priority_and_lifo_hold_again(queue: Queue, dead: Queue) -> None:
    for options in ('{"priority":5,', '{"lifo":true,', "{"):
        job_id = queue.add()
        die(queue, job_id, rule="0;;", options=options)
    queue.add(job_id="other")
    assert requeue(dead) == [0, "", 3, 0, "1", "2", "3"]
    assert queue.get("prioritized") == [("1", 5 * 2**32 + 1)]
    assert queue.get("1")["priority"] == "5"
    assert queue.get("wait") == ["3", "other", "2"]


def test_in_bounded_steps_the_oldest_first(queue: Queue, dead: Queue) -> None:
    for number in range(230):
        dead.add(f"letter {number}", opts={"deadLetter": {"id": f"old-{number}"}})
    assert requeue(dead)[:4] == [0, "", 100, 130]
    assert requeue(dead, most=20)[:4] == [0, "", 20, 110]
    assert requeue(dead)[:5] == [0, "", 100, 10, "old-120"]
    for _ in range(3):
        dead.add("large", json.dumps("x" * 600_000))
    assert requeue(dead)[:4] == [0, "", 12, 1]  # the 10, and as many as make a mebibyte


def test_what_else_stands_there_goes_along_and_ids_without_a_job_go(queue: Queue, dead: Queue) -> None:
    dead.add("by hand", '{"a":1}', opts={"attempts": 2})
    dead.command("RPUSH", "~wait", "ghost")
    dead.command("SET", "~odd", "no hash")
    dead.command("RPUSH", "~wait", "odd")
    dead.command("HSET", "~broken", "name", "opts", "opts", "{")
    dead.command("RPUSH", "~wait", "broken")
    assert requeue(dead) == [0, "", 4, 0, "1", "2"]
    assert queue.get("1")["opts"] == "{}"
    assert queue.get("2")["opts"] == '{"attempts":2}'


MARKED = [
    '{"a":"\\"deadLetter\\":{",%s}',
    '{"nested":{"deadLetter":{"id":"no"}},%s}',
    '{ "a" : 1 , %s}',
    "{%s}",
]


@pytest.mark.parametrize("options", MARKED)
def test_only_our_own_part_of_the_options_is_taken_off(queue: Queue, dead: Queue, options: str) -> None:
    ours = '"deadLetter":{"id":"x","reason":"\\"deadLetter\\":{","attemptsMade":1,"failedOn":7}'
    dead.command("HSET", "~1", "name", "n", "opts", options % ours)
    dead.command("LPUSH", "~wait", "1")
    assert requeue(dead)[4] == "x"
    expected = json.loads(options % '"deadLetter":0')
    del expected["deadLetter"]
    assert json.loads(queue.get("x")["opts"]) == expected


@pytest.mark.parametrize("opts", ['{"deadLetter":{"id":"x"},"attempts":3}', '{"attempts":3,"deadLetter" : {"id":"x"}}'])
def test_options_that_another_program_has_written_anew(queue: Queue, dead: Queue, opts: str) -> None:
    dead.command("HSET", "~1", "name", "n", "opts", opts)
    dead.command("LPUSH", "~wait", "1")
    assert requeue(dead)[4] == "x"
    assert queue.get("x")["opts"] == '{"attempts":3}'


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_options_with_a_number_that_cannot_be_written_again_stay_as_they_are(
    queue: Queue, dead: Queue, number: str
) -> None:
    """Every JSON reader here takes them, and no writer: it goes back with all of its options, and keeps nobody in the line."""
    opts = f'{{"deadLetter":{{"id":"x"}},"attempts":{number}}}'
    for job_id in ("1", "2", "3"):
        dead.command("HSET", "~" + job_id, "name", "n", "opts", opts if job_id == "2" else "{}")
        dead.command("LPUSH", "~wait", job_id)
    assert requeue(dead) == [0, "", 3, 0, "1", "x", "2"]
    assert queue.get("x")["opts"] == opts


def test_one_that_does_not_wait_stays(queue: Queue, dead: Queue) -> None:
    dead.add()
    dead.fetch()
    before = dead.dump()
    assert requeue(dead, "1") == [-3, "active", 0, 0]
    assert requeue(dead, "2") == [-1, "unknown", 0, 0]
    assert dead.dump() == before


def test_sent_again_it_moves_nothing_more(queue: Queue, dead: Queue) -> None:
    for _ in range(3):
        dead.add(opts={"deadLetter": {"id": "x"}})
    first = requeue(dead, most=2)
    before = queue.dump()
    assert requeue(dead, most=2, number=dead.number, resent=True) == first
    assert queue.dump() == before


def test_from_and_to_queues_that_version_5_paused(queue: Queue, dead: Queue) -> None:
    for one in (queue, dead):
        one.command("HSET", "~meta", "paused", 1)
    queue.command("LPUSH", "~paused", "older")
    queue.command("HSET", "~older", "name", "n")
    dead.command("LPUSH", "~paused", "7", "8")
    for job_id in ("7", "8"):
        dead.command("HSET", "~" + job_id, "name", job_id, "opts", f'{{"deadLetter":{{"id":"o{job_id}"}}}}')
    assert requeue(dead, "8") == [0, "waiting", 1, 1, "o8"]
    assert requeue(dead) == [0, "", 1, 0, "o7"]
    assert queue.get("wait") == ["o7", "o8", "older"]
    assert queue.get("marker") is None


@pytest.mark.parametrize("suffix", ["wait", "prioritized", "events", "id", "pc", "meta", "active", "marker"])
def test_broken_keys_of_the_origin_refuse_it_whole(queue: Queue, dead: Queue, suffix: str) -> None:
    dead.add(opts={"deadLetter": {"id": "x"}})
    queue.command("SADD", "~" + suffix, "x")
    before = queue.dump()
    with pytest.raises(redis.ResponseError, match=re.escape(f"BROKEN emq:{{q}}:{suffix} must be")):
        requeue(dead)
    assert queue.dump() == before


@both_servers
def test_with_a_full_memory_letters_are_written_and_go_back(server: Server, queue: Queue, dead: Queue) -> None:
    queue.add(job_id="x")
    queue.fetch()
    queue.command("CONFIG", "SET", "maxmemory", 1)
    try:
        assert queue.finish(dying(queue, "x", rule="0;;")).codes == [0]
        assert requeue(dead) == [0, "", 1, 0, "x"]
    finally:
        queue.command("CONFIG", "SET", "maxmemory", 0)


# -- jobs that take their workers with them -----------------------------------------------------------------------------------


def crash(queue: Queue, policy: dict[str, Any] | None) -> None:
    """The job is fetched, and its worker dies."""
    assert queue.fetch().ids == ["1"]
    queue.command("DEL", "~1:lock", "~stalled-check")
    queue.sweep(crash=policy)
    queue.command("DEL", "~stalled-check")
    assert queue.sweep(crash=policy)[3:] == ["1"]
    queue.command("DEL", "~stalled-check")


PAUSES = [
    ({"type": "exponential", "delay": 60_000, "longest": 3_600_000}, [60, 120, 240, 480, 960, 1920, 3600, 3600]),
    ({"type": "linear", "delay": 60_000, "longest": 150_000}, [60, 120, 150, 150]),
    ({"type": "fixed", "delay": 60_000, "longest": 3_600_000}, [60, 60, 60]),
]


@pytest.mark.parametrize(("policy", "pauses"), PAUSES, ids=["exponential", "linear", "fixed"])
@pytest.mark.parametrize("priority", [0, 3])
def test_beyond_the_limit_it_waits_longer_each_time_and_never_fails(
    queue: Queue, policy: dict[str, Any], pauses: list[int], priority: int
) -> None:
    queue.add(priority=priority)
    assert queue.clock is not None
    crash(queue, policy)
    assert queue.get("1")["stc"] == "1"
    assert queue.state("1") == ("prioritized" if priority else "waiting")
    for stalls, pause in enumerate(pauses, start=2):
        queue.new_events()
        crash(queue, policy)
        due = queue.clock + pause * 1000
        job = queue.get("1")
        assert (job["stc"], job["delay"], "defa" in job) == (str(stalls), str(pause * 1000), False)
        assert queue.get("delayed") == [("1", float(due * 4096))]
        assert queue.new_events()[-2:] == [["delayed", "jobId", "1", "delay", str(due)], ["stalled", "jobId", "1"]]
        assert ("1", float(due)) in queue.get("marker")
        assert queue.get("wait") is None
        assert queue.get("prioritized") is None
        assert queue.fetch().ids == []
        queue.clock = due


def test_jitter_shortens_the_pauses_each_by_its_own_share(queue: Queue) -> None:
    queue.add_many([[*("n", "{}", "{}", "", "0", "", "0", "", f"j{number}")] for number in range(20)])
    queue.fetch(20)
    for number in range(20):
        queue.command("HSET", f"~j{number}", "stc", 5)
        queue.command("DEL", f"~j{number}:lock")
    policy = {"type": "fixed", "delay": 10_000, "jitter": 0.5, "longest": 3_600_000}
    queue.sweep(crash=policy)
    queue.command("DEL", "~stalled-check")
    queue.sweep(crash=policy)
    delays = [int(queue.get(f"j{number}")["delay"]) for number in range(20)]
    assert all(5_000 <= delay <= 10_000 for delay in delays)
    assert len(set(delays)) > 15


def test_without_a_policy_the_next_fetch_fails_it(queue: Queue) -> None:
    queue.add()
    crash(queue, None)
    crash(queue, None)
    assert queue.get("1")["defa"] == "job stalled more than allowable limit"
    assert queue.get("delayed") is None


def test_a_broken_key_refuses_the_sweep_whole(queue: Queue) -> None:
    queue.command("SADD", "~delayed", "x")
    queue.add()
    queue.command("LPUSH", "~active", "y")
    with pytest.raises(redis.ResponseError, match=r"BROKEN emq:\{q\}:delayed must be a sorted set"):
        queue.sweep(crash=PAUSES[0][0])
    assert queue.get("stalled-check") is None


def test_the_row_of_docs_retries_about_handlers_that_were_never_called(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    queue.finish(Outcome("back", "1", queue.token, "1"))
    job = queue.get("1")
    counters = tuple(int(job.get(field, 0)) for field in ("ats", "atm", "stc"))
    assert counters == table()["given back, its handler was never called"]


def test_the_keys_of_dead_letters() -> None:
    ours, bull = QueueKeys.of("q").dead_letters, QueueKeys.of("q", prefix="bull").dead_letters
    assert (ours.queue, ours.base, ours.own_base, ours.protocol_name) == ("q-dead", DEAD, "emqx:{q}-dead:", "{q}-dead")
    assert (bull.queue, bull.base, bull.own_base, bull.protocol_name) == (
        "q-dead",
        "bull:q-dead:",
        "bullx:q-dead:",
        "q-dead",
    )
