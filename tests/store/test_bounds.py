"""What is large is done in steps that say what is left, batches are fair, and a full memory refuses new work alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import redis

from tests.store.scripts import Outcome, Queue, T, completed, dump, failed, job_args, retried, text
from tests.support.audit import audit
from tests.support.server import Kind, Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

MORE_DUE = 8


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    with server.client() as client:
        yield Queue(client, prefix="emq")


# -- steps


def test_due_jobs_are_promoted_in_steps(queue: Queue) -> None:
    for first in range(0, 600, 200):
        queue.add_many([job_args(job_id=f"j{first + n}", delay=10) for n in range(200)])
    queue.clock = T + 100
    left, flags = [], []
    for _ in range(3):
        flags.append(queue.fetch().flags)
        left.append(queue.command("ZCARD", "~delayed"))
    assert left == [350, 100, 0]
    assert flags == [MORE_DUE, MORE_DUE, 0]
    assert queue.get("active") == ["j2", "j1", "j0"]
    assert queue.get("wait")[::-1] == [f"j{n}" for n in range(3, 600)]
    assert audit(queue.client, "emq", "q") == []


def test_due_jobs_are_promoted_in_steps_by_a_retry_too(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token = queue.token
    for first in range(0, 400, 200):
        queue.add_many([job_args(job_id=f"j{first + n}", delay=10) for n in range(200)])
    queue.clock = T + 100
    queue.finish(retried("1", token, "bad"))
    assert queue.command("ZCARD", "~delayed") == 150
    assert queue.command("LLEN", "~wait") == 251


def test_retention_works_off_a_backlog_in_steps(queue: Queue) -> None:
    for _ in range(4):
        queue.add_many([job_args()] * 250)
    for _ in range(10):
        queue.fetch(100)
        token = queue.token
        queue.finish(*(completed(job_id, token) for job_id in queue.get("active")))
    assert queue.command("ZCARD", "~completed") == 1000
    left = []
    for later in range(20):
        queue.clock = T + later + 1
        job_id = queue.add()
        queue.fetch()
        queue.finish(completed(job_id, queue.token, rule="5;;"))
        left.append(queue.command("ZCARD", "~completed"))
    assert left[:3] == [1001 - 52, 1002 - 104, 1003 - 156]
    assert left[-1] == 5
    assert [job_id for job_id, _ in queue.get("completed")] == [str(n) for n in range(1016, 1021)]
    assert audit(queue.client, "emq", "q") == []


def test_retention_by_age_works_off_a_backlog_in_steps(queue: Queue) -> None:
    for _ in range(2):
        queue.add_many([job_args()] * 100)
        queue.fetch(100)
        token = queue.token
        queue.finish(*(failed(job_id, token, "bad") for job_id in queue.get("active")))
    queue.clock = T + 100_000
    left = []
    for _ in range(5):
        job_id = queue.add()
        queue.fetch()
        queue.finish(failed(job_id, queue.token, "bad", rule="-1;10;"))
        left.append(queue.command("ZCARD", "~failed"))
    assert left == [149, 98, 47, 4, 5]
    assert audit(queue.client, "emq", "q") == []


def test_children_are_removed_in_steps_and_the_parent_last(queue: Queue) -> None:
    queue.add(job_id="parent")
    queue.command("LREM", "~wait", 0, "parent")
    queue.command("ZADD", "~waiting-children", T, "parent")
    for first in range(0, 2250, 250):
        queue.add_many([job_args(job_id=f"c{first + n}") for n in range(250)])
    children = [f"c{n}" for n in range(2250)]
    queue.command("SADD", "~parent:dependencies", *(f"emq:{{q}}:{child}" for child in children))
    for child in children:
        queue.command("HSET", "~" + child, "parentKey", "emq:{q}:parent")
    codes: list[int] = []
    while not codes or codes[-1] == 2:
        assert queue.state("parent") == "waiting-children"
        codes.append(queue.remove("parent"))
        assert audit(queue.client, "emq", "q") == []
    assert set(codes[:-1]) == {2}
    assert codes[-1] == 1
    assert 15 <= len(codes) <= 45
    assert sorted(queue.command("KEYS", "~*")) == [f"emq:{{q}}:{name}" for name in ("events", "id", "marker", "meta")]


@pytest.mark.parametrize("knows_its_parent", [True, False])
def test_a_deep_tree_is_removed_from_below(queue: Queue, knows_its_parent: bool) -> None:
    names = [f"level{n}" for n in range(1500)]
    for first in range(0, 1500, 250):
        queue.add_many([job_args(job_id=name) for name in names[first : first + 250]])
    for name, child in pairwise(names):
        queue.command("SADD", f"~{name}:dependencies", f"emq:{{q}}:{child}")
        if knows_its_parent:
            queue.command("HSET", f"~{child}", "parentKey", f"emq:{{q}}:{name}")
    trail, left = [""], [1500]
    while trail:
        _, code, deeper = text(queue.run("remove-5", "level0", "1", trail[-1]))
        if code == 1:
            trail.pop()
        else:
            assert (code, deeper) == (3, f"emq:{{q}}:level{149 * len(trail)}")
            trail.append(deeper)
        left.append(queue.command("LLEN", "~wait"))
    assert max(before - after for before, after in pairwise(left)) <= 150  # of 1,500 levels as of 1,500 children
    assert left[-1] == 0
    assert sorted(queue.command("KEYS", "~*")) == [f"emq:{{q}}:{name}" for name in ("events", "id", "marker", "meta")]


def test_nothing_of_a_deep_tree_is_removed_above_a_job_that_runs(queue: Queue) -> None:
    for n in range(200):
        queue.command("SADD", f"~level{n}:dependencies", f"emq:{{q}}:level{n + 1}")
        queue.command("HSET", f"~level{n}", "name", "level")
    queue.command("SET", "~level180:lock", "token")
    _, code, deeper = text(queue.run("remove-5", "level0", "1", ""))
    assert (code, deeper) == (3, "emq:{q}:level149")
    before = dump(queue.client)
    assert text(queue.run("remove-5", "level0", "1", deeper))[1:] == [0, ""]
    after = dump(queue.client)
    assert {key: after[key] for key in before if "level" in key} == {
        key: before[key] for key in before if "level" in key
    }


def test_a_parent_that_is_gone_goes_with_however_many_children(queue: Queue) -> None:
    queue.command("SADD", "~parent:dependencies", *(f"emq:{{q}}:c{n}" for n in range(400)))
    codes = [queue.remove("parent")]
    while codes[-1] == 2 and len(codes) < 10:
        codes.append(queue.remove("parent"))
    assert codes == [2, 2, 1]
    assert queue.command("EXISTS", "~parent:dependencies") == 0


def test_a_tree_with_a_cycle_ends(queue: Queue) -> None:
    queue.add(job_id="a")
    queue.add(job_id="b")
    queue.command("SADD", "~a:dependencies", "emq:{q}:b")
    queue.command("SADD", "~b:dependencies", "emq:{q}:a")
    assert queue.remove("a") == 1
    assert queue.counts("waiting") == [0]


def test_the_event_log_keeps_to_its_length(queue: Queue) -> None:
    queue.command("HSET", "~meta", "opts.maxLenEvents", 200)
    for _ in range(10):
        queue.add_many([job_args()] * 100)
    for _ in range(10):
        queue.fetch(100)
        token = queue.token
        queue.finish(*(completed(job_id, token) for job_id in queue.get("active")))
    assert queue.command("XLEN", "~events") < 200 + 100 + 201


# -- batches


def test_two_outcomes_of_one_job_the_first_counts(queue: Queue) -> None:
    for _ in range(2):
        queue.add()
    queue.fetch(2)
    token = queue.token
    taken = queue.finish(completed("1", token), completed("1", token), failed("1", token, "bad"), retried("2", token, "x"),
                         completed("2", token))  # fmt: skip
    assert taken.codes == [0, -2, -2, 0, -2]
    assert queue.state("1") == "completed"
    assert queue.state("2") == "waiting"
    assert audit(queue.client, "emq", "q") == []


def test_a_batch_of_every_kind_of_end(queue: Queue) -> None:
    for _ in range(8):
        queue.add()
    queue.fetch(8)
    token = queue.token
    taken = queue.finish(
        completed("1", token, rule="0;;"), completed("2", token), failed("3", token, "bad", rule="0;;"),
        retried("4", token, "bad"), retried("5", token, "bad", 100), Outcome("wait", "6", token, "5000"),
        Outcome("back", "7", token, "1"), completed("8", "not mine"), completed("nope", token), count=2,
    )  # fmt: skip
    assert taken.codes[:5] == [0] * 5
    assert 4000 < taken.codes[5] <= 5000
    assert taken.codes[6:] == [0, -6, -1]
    assert taken.ids == [], "job 6 has set a limit"
    assert taken.limited_ms > 0
    queue.run("rateLimit-8", 0)
    assert queue.fetch(2).ids == ["7", "6"]
    assert [queue.state(str(n)) for n in range(1, 9)] == [
        "unknown", "completed", "unknown", "waiting", "delayed", "active", "active", "active",
    ]  # fmt: skip
    assert audit(queue.client, "emq", "q") == []


def test_a_fetch_stops_at_a_mebibyte(queue: Queue) -> None:
    for _ in range(3):
        queue.add(data='"' + "x" * 700_000 + '"')
        queue.add(data='"' + "x" * 700_000 + '"', priority=1)
    assert len(queue.fetch(6).ids) == 2
    assert len(queue.fetch(6).ids) == 2
    # Its class is not empty yet: the next of the class must come after what is there.
    assert queue.get("pc") == "3"
    queue.add(priority=1)
    assert [job_id for job_id, _ in queue.get("prioritized")] == ["4", "6", "7"]


def test_drained_comes_once_and_only_when_nothing_is_left(queue: Queue) -> None:
    for _ in range(4):
        queue.add()
    queue.fetch(2)
    first = queue.token
    queue.fetch(2)
    second = queue.token
    queue.finish(completed("1", first), completed("2", first), count=5)
    assert ["drained"] not in queue.events()
    queue.finish(completed("3", second), completed("4", second), count=5)
    assert queue.events().count(["drained"]) == 1


def test_a_slot_that_comes_free_wakes_another_worker(queue: Queue) -> None:
    queue.command("HSET", "~meta", "concurrency", 1)
    for _ in range(2):
        queue.add()
    queue.fetch()
    token = queue.token
    queue.command("DEL", "~marker")
    queue.finish(completed("1", token))
    assert queue.get("marker") == [("0", 0)]


def test_long_gaps_in_the_metrics_are_filled(queue: Queue) -> None:
    for minute in (0, 1, 5001):
        queue.clock = T + minute * 60_000
        job_id = queue.add()
        queue.fetch()
        queue.finish(completed(job_id, queue.token), points=10_080)
    data = queue.get("metrics:completed:data")
    assert data == ["0"] * 4999 + ["1", "1"]


def test_no_outcomes_is_a_plain_fetch(queue: Queue) -> None:
    queue.add()
    assert queue.finish(count=1).ids == ["1"]


# -- a full memory


@pytest.fixture
def full(request: pytest.FixtureRequest, server: Server, make_server: Callable[..., Server]) -> Iterator[Queue]:
    """A queue with running jobs on a server whose memory is full."""
    kind: Kind = server.kind
    with make_server(kind).client() as client:
        queue = Queue(client, prefix="emq")
        for _ in range(2):
            queue.add_many([job_args() for _ in range(20)])
        queue.add_many([job_args(delay=10), job_args(priority=1)])
        queue.fetch(8)
        queue.command("CONFIG", "SET", "maxmemory", "1")
        yield queue


def test_full_memory_refuses_new_jobs_whole(full: Queue) -> None:
    before = dump(full.client)
    full.clock = T + 100
    with pytest.raises(redis.OutOfMemoryError):
        full.add()
    with pytest.raises(redis.OutOfMemoryError):
        full.add_many([job_args(delay=5), job_args(priority=3), job_args(job_id="1")])
    assert dump(full.client) == before


@pytest.mark.parametrize("later", [0, 100])
@pytest.mark.parametrize("count", [1, 100])
def test_full_memory_refuses_a_fetch_whole(full: Queue, later: int, count: int) -> None:
    full.clock = T + later
    before = dump(full.client)
    with pytest.raises(redis.OutOfMemoryError):
        full.fetch(count)
    assert dump(full.client) == before


def test_full_memory_lets_running_jobs_end(full: Queue) -> None:
    token = "lane:4"
    full.clock = T + 5
    assert full.extend(*((str(n), token, 1) for n in range(1, 9))) == []
    taken = full.finish(
        completed("1", token), failed("2", token, "bad"), retried("3", token, "bad"), retried("4", token, "bad", 500),
        Outcome("wait", "5", token, "100"), Outcome("back", "6", token, "1"), completed("7", token, rule="0;;"), points=5,
    )  # fmt: skip
    assert [code if code <= 0 else 0 for code in taken.codes] == [0] * 7
    assert full.remove("1") == 1
    assert full.run("cancelJob-16", "9", "why", "")[1] == 1
    assert full.run("cancelJob-16", "8", "why", "")[1] == 2
    assert audit(full.client, "emq", "q") == []


def test_full_memory_lets_a_queue_be_paused(full: Queue) -> None:
    full.pause()
    assert full.command("HGET", "~meta", "paused") == "1"
    full.resume()
    assert audit(full.client, "emq", "q") == []


def test_full_memory_lets_jobs_be_changed_and_cleared_and_limits_be_set(full: Queue) -> None:
    full.finish(failed("1", "lane:4", "bad"), failed("2", "lane:4", "bad"), completed("3", "lane:4"))
    assert full.run("changeDelay-5", "41", 500, "")[1] == 0
    assert full.run("promote-9", "41")[1] == 0
    assert full.run("cancelJob-16", "4", "why", "")[1] == 2
    assert full.run("changePriority-8", "30", 3, "")[1] == 0
    assert full.run("reprocessJob-10", "1", "")[1] == 0
    assert full.run("moveJobsToWait-11", "failed", "")[1] == 1
    full.run("setLimits-7", "concurrency", 9, "max", 5, "duration", 1000)
    full.run("rateLimit-8", 5000)
    assert full.get("limiter") == "9007199254740991"
    assert len(full.run("cleanJobs-12", "completed", 0, "", 0, "")[1]) == 1
    assert full.run("drain-9", "wait", 0, "", "")[1] == 34
    with pytest.raises(redis.OutOfMemoryError):
        full.run("publishEvent-3", "mine")
    assert audit(full.client, "emq", "q") == []


@pytest.mark.parametrize(
    ("script", "args", "answer"),
    [
        ("cancelJob-16", ["none", "why", ""], -1),
        ("cancelJob-16", ["1", "why", ""], 0),
        ("promote-9", ["none"], -1),
        ("promote-9", ["1"], -3),
        ("changeDelay-5", ["none", 500, ""], -1),
        ("changeDelay-5", ["1", 500, ""], -3),
        ("changePriority-8", ["none", 3, ""], -1),
        ("reprocessJob-10", ["none", ""], -1),
        ("reprocessJob-10", ["9", ""], -3),
        ("remove-5", ["none", "", ""], 1),
        ("removeDeduplicationKey-1", ["none", ""], 0),
        ("removeScheduler-6", ["none"], 0),
    ],
)
def test_full_memory_changes_no_answer_where_nothing_is_to_be_done(
    full: Queue, script: str, args: list[str | int], answer: int
) -> None:
    full.finish(completed("1", "lane:4"))
    assert full.run(script, *args)[1] == answer


def test_full_memory_lets_the_next_run_of_a_schedule_be_cancelled(full: Queue) -> None:
    full.command("CONFIG", "SET", "maxmemory", "0")
    job_id = f"repeat:sch:{T + 1000}"
    full.add(job_id=job_id, delay=1000)
    full.command("HSET", "~" + job_id, "rjk", "sch")
    full.command("HSET", "~repeat:sch", "name", "tick", "every", 1000, "ic", 1)
    full.command("ZADD", "~repeat", T + 1000, "sch")
    full.command("CONFIG", "SET", "maxmemory", "1")
    assert full.run("cancelJob-16", job_id, "why", "")[1] == -8
    assert full.run("cancelJob-16", job_id, "why", "1")[1] == 1


def test_a_counter_that_went_back_behind_many_jobs_costs_a_few_looks(queue: Queue) -> None:
    """With a restored snapshot, or a key that somebody deleted: thousands of jobs have the next numbers already."""
    many = 20_000
    for first in range(1, many, 2000):
        queue.command("EVAL", "for n = ARGV[1], ARGV[2] do redis.call('HSET', KEYS[1] .. n, 'name', 'old') end", "1", "~",
                      str(first), str(first + 1999))  # fmt: skip
    for deduplication in (None, {"id": "D"}):
        queue.command("DEL", "~id")
        queue.command("CONFIG", "RESETSTAT")
        [_, job_id, code, second, code_of_second] = queue.add_many([job_args(de=deduplication), job_args()])
        assert (code, code_of_second) == (1, 1)
        assert many < int(job_id) < int(second)
        assert looks_at_jobs(queue) < 50


@pytest.mark.parametrize("end", ["completed", "cancelled"])
@pytest.mark.parametrize("kept_id", [None, "7"])
def test_so_does_the_job_that_deduplication_has_kept(queue: Queue, end: str, kept_id: str | None) -> None:
    """Version 5.72 of BullMQ keeps it without an id; and somebody may have added a job of that which was kept."""
    unique = {"id": "K", "keepLastIfActive": True}
    queue.add_many([job_args(job_id="first", de=unique)])
    if end == "completed":
        queue.fetch()
    many = 20_000
    for first in range(1, many, 2000):
        queue.command("EVAL", "for n = ARGV[1], ARGV[2] do redis.call('HSET', KEYS[1] .. n, 'name', 'old') end", "1", "~",
                      str(first), str(first + 1999))  # fmt: skip
    queue.command("HSET", "~dn:K", "name", "kept", "data", "{}", "opts", "{}", *(["jid", kept_id] if kept_id else []))
    queue.command("DEL", "~id")
    queue.command("CONFIG", "RESETSTAT")
    if end == "completed":
        assert queue.finish(completed("first", queue.token)).codes == [0]
    else:
        assert queue.run("cancelJob-16", "first", "why", "")[1] == 1
    job_id = queue.get("de:K")
    assert int(job_id) > many
    assert (queue.get(job_id)["name"], queue.get("wait"), queue.get("id")) == ("kept", [job_id], job_id)
    assert looks_at_jobs(queue) < 50


def looks_at_jobs(queue: Queue) -> int:
    """How often a key was asked whether it is there."""
    found = re.findall(r"cmdstat_(?:exists|hlen):calls=(\d+)", queue.command("INFO", "commandstats"))
    return sum(map(int, found))
