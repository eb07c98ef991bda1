"""What a process had in hand that somebody saw die goes back at once, and nothing else does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis

from tests.store.scripts import Queue, completed, text
from tests.support.audit import audit


def take(queue: Queue, owner: str = "dead.", *, most: int = 1, crash: dict[str, Any] | None = None) -> list[str]:
    """The ids that went back, in as many steps as it takes."""
    pauses = b"" if crash is None else msgspec.msgpack.encode(crash)
    found: list[str] = []
    start = 0
    while start >= 0:
        reply = text(queue.run("takeFromDead-10", owner, most, pauses, start))
        start = int(reply[1])
        found += reply[2:]
    return found


def waiting(queue: Queue) -> list[str]:
    """In the order in which they would run."""
    return list(reversed(text(queue.client.execute_command("LRANGE", queue.base + "wait", 0, -1))))


def field(queue: Queue, job_id: str, name: str) -> str | None:
    found = text(queue.client.execute_command("HGET", queue.base + job_id, name))
    return None if found is None else str(found)


def test_only_what_its_own_locks_hold_goes_back_in_order_and_is_counted(queue: Queue) -> None:
    for _ in range(6):
        queue.add()
    queue.fetch(2, lane="dead.one", number=1)
    queue.fetch(1, lane="live", number=1)
    queue.fetch(1, lane="dead", number=1)  # no other id begins so
    queue.fetch(1, lane="dead.two", number=1)
    assert take(queue) == ["5", "2", "1"]
    assert waiting(queue) == ["1", "2", "5", "6"]
    assert [field(queue, job_id, "stc") for job_id in "12345"] == ["1", "1", None, None, "1"]
    for job_id, locked in zip("12345", (0, 0, 1, 1, 0), strict=True):
        assert queue.client.execute_command("EXISTS", queue.base + job_id + ":lock") == locked
    assert take(queue) == []
    assert audit(queue.client, "bull", "q") == []


def test_a_late_end_of_the_dead_process_changes_nothing(queue: Queue) -> None:
    queue.add()
    queue.fetch(1, lane="dead.one", number=1)
    take(queue)
    before = queue.dump()
    assert queue.finish(completed("1", "dead.one:1"), lane="dead.one", number=2).codes == [-2]
    assert waiting(queue) == ["1"]
    assert before[queue.base + "1"] == queue.dump()[queue.base + "1"]


def test_a_job_that_another_has_taken_meanwhile_stays_its_own(queue: Queue) -> None:
    queue.add()
    queue.fetch(1, lane="dead.one", number=1)
    queue.client.execute_command("DEL", queue.base + "1:lock")
    queue.sweep()
    queue.client.execute_command("DEL", queue.base + "stalled-check")
    queue.sweep()
    assert queue.fetch(1, lane="live", number=1).ids == ["1"]
    assert take(queue) == []
    assert queue.state("1") == "active"


def test_one_whose_lock_has_expired_is_left_to_the_sweep(queue: Queue) -> None:
    queue.add()
    queue.fetch(1, lane="dead.one", number=1)
    queue.client.execute_command("DEL", queue.base + "1:lock")
    assert take(queue) == []
    assert queue.state("1") == "active"


def test_priorities_and_the_limit_of_stalls(queue: Queue) -> None:
    queue.add(priority=3)
    queue.fetch(1, lane="dead.one", number=1)
    assert take(queue, most=0) == ["1"]
    assert queue.state("1") in ("prioritized", "waiting")
    assert field(queue, "1", "defa") == "job stalled more than allowable limit"


def test_with_a_crash_backoff_it_waits(queue: Queue) -> None:
    queue.add()
    queue.fetch(1, lane="dead.one", number=1)
    crash = {"type": "exponential", "delay": 60_000, "longest": 3_600_000}
    assert take(queue, most=0, crash=crash) == ["1"]
    assert queue.state("1") == "delayed"
    assert field(queue, "1", "delay") == "60000"


def test_it_wakes_a_worker_unless_the_queue_is_paused(queue: Queue) -> None:
    queue.add()
    queue.fetch(1, lane="dead.one", number=1)
    queue.client.execute_command("DEL", queue.base + "marker")
    take(queue)
    assert queue.client.execute_command("ZSCORE", queue.base + "marker", "0") is not None


def test_many_go_back_in_steps(queue: Queue) -> None:
    for _ in range(250):
        queue.add()
    queue.fetch(50, lane="live", number=1)
    for number in range(1, 5):
        queue.fetch(50, lane="dead.one", number=number)
    assert len(take(queue)) == 200
    assert queue.client.execute_command("LLEN", queue.base + "active") == 50
    assert queue.client.execute_command("LLEN", queue.base + "wait") == 200


def test_nobody_is_no_owner(queue: Queue) -> None:
    queue.add()
    queue.fetch(1, lane="live", number=1)
    with pytest.raises(redis.ResponseError, match="REFUSED"):
        take(queue, "")
    assert queue.state("1") == "active"
