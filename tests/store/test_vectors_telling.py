"""Protocol 3.21: what is told of jobs, and by whom it may be told. Deviations (docs/architecture.md) are marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.store.scripts import Queue, T, completed, text
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

Told = tuple[str, str, str, str, str, str]


def told(what: str, job_id: str, value: str, keep: int | str = "", token: str = "", run: str = "") -> Told:
    return (what, job_id, value, str(keep), token, run)


def tell(queue: Queue, *tellings: Told, **call: Any) -> list[Any]:
    """What the script answers for each."""
    return list(text(queue.run("updateJobs-4", *[part for one in tellings for part in one], **call))[1:])


def logs(queue: Queue, job_id: str, start: int = 0, count: int = 1000, newest: str = "") -> list[Any]:
    return list(text(queue.run("getLogs-1", job_id, start, count, newest)))


def test_progress_is_written_and_heard_of(queue: Queue) -> None:
    queue.add()
    queue.new_events()
    assert tell(queue, told("progress", "1", '{"done":3}')) == [0]
    assert queue.get("1")["progress"] == '{"done":3}'
    assert queue.new_events() == [["progress", "jobId", "1", "data", '{"done":3}']]


def test_data_is_written_without_an_event(queue: Queue) -> None:
    queue.add()
    queue.new_events()
    assert tell(queue, told("data", "1", '{"a":2}')) == [0]
    assert queue.get("1")["data"] == '{"a":2}'
    assert queue.new_events() == []


def test_lines_are_added_and_the_last_ones_kept(queue: Queue) -> None:
    queue.add()
    assert [tell(queue, told("log", "1", f"line {n}", 3))[0] for n in range(5)] == [1, 2, 3, 3, 3]
    assert queue.get("1:logs") == ["line 2", "line 3", "line 4"]
    assert logs(queue, "1") == [3, "line 2", "line 3", "line 4"]
    assert logs(queue, "1", newest="1") == [3, "line 4", "line 3", "line 2"]
    assert logs(queue, "1", 1, 1) == [3, "line 3"]
    assert logs(queue, "1", 0, 2, "1") == [3, "line 4", "line 3"]
    assert logs(queue, "1", 3) == [3]


def test_a_log_that_grew_elsewhere_is_cut_in_steps(queue: Queue) -> None:
    queue.add()
    queue.command("RPUSH", "~1:logs", *map(str, range(2500)))
    assert [tell(queue, told("log", "1", "x", 100))[0] for _ in range(4)] == [1501, 502, 100, 100]
    assert queue.get("1:logs")[:2] == ["2404", "2405"]


def test_a_log_is_read_in_parts_of_a_thousand_lines_or_a_mebibyte(queue: Queue) -> None:
    queue.add()
    queue.command("RPUSH", "~1:logs", *map(str, range(2500)))
    assert logs(queue, "1", 0, 2500) == [2500, *map(str, range(1000))]
    queue.command("DEL", "~1:logs")
    queue.command("RPUSH", "~1:logs", *["x" * 100_000] * 30)
    assert 10 < len(logs(queue, "1")) <= 21


def test_what_is_told_of_a_job_that_is_gone_is_not_written(queue: Queue) -> None:
    before = queue.dump()
    assert tell(queue, told("progress", "7", "1"), told("log", "7", "x", 10), told("data", "7", "1")) == [-1, -1, -1]
    assert queue.dump() == before
    assert logs(queue, "7") == [-1]
    assert text(queue.run("clearLogs-1", "7", 0))[1] == -1


def test_many_go_together_and_each_has_its_own_answer(queue: Queue) -> None:
    for _ in range(3):
        queue.add()
    queue.command("SET", "~3:logs", "no list")
    queue.command("SET", "~4", "no hash")
    answers = tell(
        queue, told("log", "1", "a", 10), told("progress", "nope", "1"), told("log", "3", "x", 10), told("data", "4", "1"),
        told("log", "1", "b", 10), told("progress", "2", "0.5"),
    )  # fmt: skip
    assert answers == [1, -1, "BROKEN bull:q:3:logs must be a list", "BROKEN bull:q:4 must be a hash", 2, 0]
    assert queue.get("1:logs") == ["a", "b"]
    assert queue.get("3:logs") == "no list"


@pytest.mark.parametrize("key", ["events", "meta", "active"])
def test_a_broken_key_of_the_queue_refuses_all(queue: Queue, key: str) -> None:
    queue.add()
    queue.command("DEL", f"~{key}")
    queue.command("SADD", f"~{key}", "x")
    before = queue.dump()
    with pytest.raises(redis.ResponseError, match=f"BROKEN bull:q:{key}"):
        tell(queue, told("progress", "1", "1"))
    assert queue.dump() == before


def test_a_line_that_is_sent_again_is_not_written_twice(queue: Queue) -> None:
    queue.add()
    assert tell(queue, told("log", "1", "once", 10), number=9) == [1]
    assert tell(queue, told("log", "1", "once", 10), number=9, resent=True) == [1]
    assert queue.get("1:logs") == ["once"]


# -- who may tell


def test_a_run_tells_as_long_as_its_lock_is_there(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token, run = queue.token, queue.run_of("1")
    assert tell(queue, told("progress", "1", "1", token=token, run=run)) == [0]
    assert tell(queue, told("progress", "1", "2", token="other", run=run)) == [-6]
    assert queue.get("1")["progress"] == "1"


def test_a_run_whose_lock_has_expired_tells_until_somebody_else_starts_the_job(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token, run = queue.token, queue.run_of("1")
    queue.command("DEL", "~1:lock")
    assert tell(queue, told("log", "1", "after an outage", 10, token, run)) == [1]
    assert queue.command("LREM", "~active", 1, "1") == 1
    queue.command("LPUSH", "~wait", "1")  # the sweep took it away
    assert tell(queue, told("log", "1", "late", 10, token, run)) == [-6]
    queue.clock = T + 1
    queue.fetch()
    queue.command("DEL", "~1:lock")
    assert tell(queue, told("log", "1", "late", 10, token, run)) == [-6]
    assert queue.get("1:logs") == ["after an outage"]


def test_a_run_that_has_ended_tells_nothing_more(queue: Queue) -> None:
    queue.add()
    queue.fetch()
    token, run = queue.token, queue.run_of("1")
    queue.finish(completed("1", token))
    assert tell(queue, told("progress", "1", "1", token=token, run=run)) == [-6]
    assert tell(queue, told("progress", "1", "1")) == [0], "whoever looks after the queue may"


# -- clearing


def test_a_log_is_cleared_at_once_or_but_for_its_last_lines(queue: Queue) -> None:
    queue.add()
    queue.command("RPUSH", "~1:logs", *map(str, range(2500)))
    assert [text(queue.run("clearLogs-1", "1", 10))[1] for _ in range(3)] == [1490, 490, 0]
    assert queue.get("1:logs") == [str(n) for n in range(2490, 2500)]
    assert text(queue.run("clearLogs-1", "1", 20))[1] == 0
    assert text(queue.run("clearLogs-1", "1", 0))[1] == 0
    assert queue.get("1:logs") is None


def test_full_memory_lets_a_running_job_tell_how_far_it_is(server: Server, make_server: Callable[..., Server]) -> None:
    with make_server(server.kind).client() as client:
        queue = Queue(client)
        queue.add()
        queue.fetch()
        by = (queue.token, queue.run_of("1"))
        queue.command("CONFIG", "SET", "maxmemory", "1")
        assert tell(queue, told("progress", "1", "1", "", *by), told("log", "1", "x", 9, *by)) == [0, 1]
        assert text(queue.run("clearLogs-1", "1", 0))[1] == 0
