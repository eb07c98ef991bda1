"""An id that stands in the line twice, by somebody's mistake, is one job: it runs once, whichever calls meet it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.scripts import Queue, completed, failed, job_args, retried
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    with server.client() as client:
        queue = Queue(client, prefix="emq")
        queue.add(job_id="j")
        queue.command("LPUSH", "~wait", "j")
        yield queue


def test_while_it_is_being_run_another_call_takes_it_out(queue: Queue) -> None:
    queue.add(job_id="next")
    first = queue.fetch(lane="a", number=1)
    assert first.ids == ["j"]
    queue.new_events()
    second = queue.fetch(2, lane="b", number=1)
    assert (second.ids, second.dropped) == (["next"], ["j"])
    assert queue.get("active") == ["next", "j"]
    assert queue.get("wait") is None
    assert queue.get("j:lock") == "a:1"
    assert queue.get("j")["ats"] == "1"
    assert queue.new_events() == [["active", "jobId", "next", "prev", "waiting"]]
    # Both calls are answered again as they were.
    assert queue.fetch(lane="a", number=1, resent=True).ids == ["j"]
    again = queue.fetch(2, lane="b", number=1, resent=True)
    assert (again.ids, again.dropped) == (["next"], ["j"])
    assert queue.finish(completed("j", "a:1", "7")).codes == [0]
    assert queue.state("j") == "completed"
    assert queue.get("active") == ["next"]


def test_it_takes_no_place_in_a_rate_window_nor_a_slot(queue: Queue) -> None:
    queue.command("HSET", "~meta", "max", 10, "duration", 60_000, "concurrency", 2)
    queue.fetch(lane="a", number=1)
    assert queue.fetch(lane="b", number=1).dropped == ["j"]
    assert queue.get("limiter") == "1"
    queue.add(job_id="next")
    assert queue.fetch(lane="b", number=2).ids == ["next"]


@pytest.mark.parametrize("ends", ["completed", "failed"])
def test_once_it_has_ended_it_is_taken_out(queue: Queue, ends: str) -> None:
    queue.add(job_id="next")
    queue.fetch(lane="a", number=1)
    outcome = completed("j", "a:1", "7") if ends == "completed" else failed("j", "a:1", "bad")
    taken = queue.finish(outcome, count=2, lane="a", number=2)
    assert (taken.codes, taken.ids, taken.dropped) == ([0], ["next"], ["j"])
    before = queue.get("j")
    assert before["atm"] == before["ats"] == "1"
    assert queue.state("j") == ends
    assert queue.get("active") == ["next"]
    assert queue.get("wait") is None
    # And so in a later call.
    queue.command("LPUSH", "~wait", "j")
    queue.new_events()
    later = queue.fetch()
    assert (later.ids, later.dropped) == ([], ["j"])
    assert (queue.get("j"), queue.new_events(), queue.get("wait"), queue.get("j:lock")) == (before, [], None, None)


def test_among_the_prioritized_too(queue: Queue) -> None:
    queue.command("ZADD", "~prioritized", 1 << 32, "j")
    queue.fetch(lane="a", number=1)
    queue.fetch(lane="b", number=1)
    assert queue.fetch(lane="b", number=2).dropped == ["j"]
    assert queue.get("prioritized") is None
    assert queue.get("active") == ["j"]


def test_a_removed_set_of_the_ended_does_not_hide_a_job(queue: Queue) -> None:
    """``finishedOn`` alone says nothing: who puts an ended job back to the line may leave it."""
    queue.fetch(lane="a", number=1)
    queue.finish(completed("j", "a:1", "7"))
    queue.command("DEL", "~completed", "~wait")
    queue.command("LPUSH", "~wait", "j")
    assert queue.fetch(lane="b", number=1).ids == ["j"]


@pytest.mark.parametrize("make", [("SET", "~j:lock", "old:7"), ("RPUSH", "~j:lock", "rubbish")])
def test_an_old_lock_does_not_keep_a_job_from_running(queue: Queue, make: tuple[str, ...]) -> None:
    queue.command("LPOP", "~wait")
    queue.command(*make)
    taken = queue.fetch(lane="a", number=1)
    assert (taken.ids, taken.dropped) == (["j"], [])
    assert queue.get("j:lock") == "a:1"
    assert queue.command("PTTL", "~j:lock") > 0


def test_where_the_lock_has_expired_the_other_place_goes_with_the_end(queue: Queue) -> None:
    queue.fetch(lane="a", number=1)
    queue.command("DEL", "~j:lock")
    assert queue.fetch(lane="b", number=1).ids == ["j"]  # as if the sweep had come first
    assert queue.fetch(lane="a", number=1, resent=True).ids == []
    assert queue.finish(completed("j", "a:1", "1"), completed("j", "b:1", "7")).codes == [-6, 0]
    assert queue.get("active") == ["j"]
    queue.sweep()
    queue.clock = (queue.clock or 0) + 30_000
    queue.command("DEL", "~stalled-check")
    queue.sweep()
    assert queue.fetch(lane="c", number=1).dropped == ["j"]
    assert queue.state("j") == "completed"
    assert queue.get("j")["returnvalue"] == "7"
    assert (queue.get("active"), queue.get("wait")) == (None, None)


def test_a_retry_meets_no_lock_of_its_own(queue: Queue) -> None:
    queue.command("LPOP", "~wait")
    queue.fetch(lane="a", number=1)
    taken = queue.finish(retried("j", "a:1", "bad"), count=1, lane="a", number=2)
    assert (taken.codes, taken.ids) == ([0], ["j"])
    assert queue.get("j:lock") == "a:2"


def test_what_has_ended_does_not_end_the_look_for_more(queue: Queue) -> None:
    """Its bytes count for nothing: a worker must not think the line empty because of them."""
    queue.command("DEL", "~wait")
    queue.add_many([job_args(job_id="large", data="x" * 1_100_000), job_args(job_id="next")])
    queue.fetch(lane="a", number=1)
    queue.finish(completed("large", "a:1"))
    queue.command("RPUSH", "~wait", "large")
    taken = queue.fetch(2)
    assert (taken.ids, taken.dropped) == (["next"], ["large"])
