"""Retention while nothing ends: the sweep removes what the rules of the last jobs to end do not keep, and nothing else."""

from __future__ import annotations

import pytest
import redis

from tests.store.scripts import Queue, T, completed, content, failed

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

RULES = "emqx:{q}:rules"
REMOVE = -3
HOUR = 3_600_000


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return Queue(client, prefix="emq")


def end(queue: Queue, count: int, target: str = "completed", rule: str = "-1;3600;") -> str:
    """So many jobs end now by this rule. Gives what a worker says of that to the sweep."""
    make = completed if target == "completed" else failed
    for start in range(0, count, 50):
        some = min(50, count - start)
        queue.add_many([["n", "{}", "{}", "", "0", "", "0", "", ""]] * some)
        ids = queue.fetch(some).ids
        assert queue.finish(*(make(job_id, queue.token, "7", rule) for job_id in ids)).codes == [0] * some
    return f"{queue.clock}:{rule}"


def swept(queue: Queue, *last: str) -> int:
    """A whole sweep, and how many steps it took."""
    queue.command("DEL", "~stalled-check")
    step, steps = 0, 0
    while True:
        step = queue.sweep(step=step, last=(*last, "", "")[:2])[2]
        if step == 0:
            return steps
        steps += 1


def ids(queue: Queue, target: str = "completed") -> list[str]:
    return [job_id for job_id, _ in queue.get(target) or []]


@both_servers
def test_what_is_too_old_goes_while_nothing_ends(queue: Queue) -> None:
    last = end(queue, 2)
    queue.clock = T + HOUR - 1
    assert swept(queue, last) == 0
    assert ids(queue) == ["1", "2"]
    assert content(queue.client, RULES) == {"completed": last}
    queue.new_events()
    queue.clock = T + HOUR
    assert swept(queue) == 1  # whoever sweeps, also a worker that has run nothing yet
    assert ids(queue) == []
    assert queue.get("1") is None
    assert queue.new_events() == []  # retention is silent, as it is at a finish
    assert swept(queue) == 0
    assert queue.client.exists(RULES) == 0  # of a set that is empty there is nothing to say


def test_both_sets_each_by_its_own_rule(queue: Queue) -> None:
    completed_by, failed_by = end(queue, 2), end(queue, 2, "failed", "-1;7200;")
    queue.clock = T + HOUR
    swept(queue, completed_by, failed_by)
    assert (ids(queue), ids(queue, "failed")) == ([], ["3", "4"])
    queue.clock = T + 2 * HOUR
    swept(queue)
    assert ids(queue, "failed") == []


def test_many_go_in_bounded_steps(queue: Queue) -> None:
    last = end(queue, 400)
    queue.clock = T + HOUR
    queue.command("DEL", "~stalled-check")
    step, left = queue.sweep(last=(last, ""))[2], [400]
    while step:
        assert step == REMOVE
        step = queue.sweep(step=step)[2]
        left.append(len(ids(queue)))
    assert left == [400, 250, 100, 0]


def test_a_count_holds_too(queue: Queue) -> None:
    end(queue, 200, rule="-1;;")
    last = end(queue, 1, rule="100;;")
    assert len(ids(queue)) > 100  # a finish removes a few at once
    swept(queue, last)
    assert len(ids(queue)) == 100


def test_keep_all_alone_loses_nothing(queue: Queue) -> None:
    last = end(queue, 3, rule="-1;;")
    queue.clock = T + 1000 * HOUR
    assert swept(queue, last) == 0
    assert len(ids(queue)) == 3


def test_the_last_rule_counts_and_not_the_last_that_was_told(queue: Queue) -> None:
    first = end(queue, 1)
    queue.clock = T + 5
    last = end(queue, 1, rule="-1;;")
    queue.clock = T + 10 * HOUR
    swept(queue, last)
    swept(queue, first)
    assert len(ids(queue)) == 2
    assert content(queue.client, RULES) == {"completed": last}


def test_a_worker_whose_turn_it_is_not_says_its_rules_all_the_same(queue: Queue) -> None:
    last = end(queue, 1)
    swept(queue)
    assert queue.sweep(last=(last, ""))[0] == ""
    assert content(queue.client, RULES) == {"completed": last}


def test_what_ended_by_another_hand_since_then_stays(queue: Queue) -> None:
    last = end(queue, 2)
    queue.clock = T + 1
    end(queue, 2, rule="-1;;")  # a worker of another program, which tells nobody its rule
    queue.clock = T + 10 * HOUR
    swept(queue, last)
    assert ids(queue) == ["3", "4"]
    by_count = f"{T}:1;;"
    swept(queue, by_count)
    assert ids(queue) == ["3", "4"]


def test_beside_jobs_that_run_and_stall(queue: Queue) -> None:
    last = end(queue, 2)
    queue.add(job_id="mine")
    queue.fetch()
    queue.clock = T + HOUR
    queue.command("DEL", "~mine:lock")
    swept(queue, last)
    assert ids(queue) == []
    swept(queue)
    assert queue.get("wait") == ["mine"]


@pytest.mark.parametrize(
    "rubbish", ["", "x", "1", "x:-1;1;", f"{T}:", f"{T}:1", f"{T}:-1;x;", "99999999999999999999999:-1;1;"]
)
def test_a_rule_that_cannot_be_read_removes_nothing_and_the_next_takes_its_place(queue: Queue, rubbish: str) -> None:
    last = end(queue, 1, rule="-1;;")
    queue.client.hset(RULES, "completed", rubbish)
    queue.clock = T + 10
    swept(queue)
    assert ids(queue) == ["1"] or rubbish.startswith("9999")
    if not rubbish.startswith("9999"):
        swept(queue, last)
        assert content(queue.client, RULES) == {"completed": last}


@pytest.mark.parametrize("rule", ["-1;3600;0", "0;3600;", "0;;"])
def test_a_rule_that_removes_nothing_does_not_go_on_for_ever(queue: Queue, rule: str) -> None:
    end(queue, 1, rule="-1;;")
    queue.client.hset(RULES, "completed", f"{T}:{rule}")
    queue.clock = T + 10 * HOUR
    assert swept(queue) <= 1


def test_sets_of_a_wrong_type_keep_no_job_from_being_recovered(queue: Queue) -> None:
    last = end(queue, 1)
    queue.command("DEL", "~completed")
    queue.command("SET", "~completed", "x")
    queue.add(job_id="mine")
    queue.fetch()
    queue.command("DEL", "~mine:lock")
    queue.clock = T + 10 * HOUR
    swept(queue, last)
    swept(queue)
    assert queue.get("wait") == ["mine"]


@both_servers
def test_a_full_memory_keeps_nothing_from_being_removed(queue: Queue) -> None:
    last = end(queue, 200)
    queue.clock = T + HOUR
    try:
        queue.client.config_set("maxmemory", "1")
        swept(queue, last)
    finally:
        queue.client.config_set("maxmemory", "0")
    assert ids(queue) == []
