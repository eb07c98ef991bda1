"""Healing, script and search: each kind of damage goes back to where it belongs, and what stands somewhere is not touched."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.store.scripts import Queue, T, completed, failed, job_args, text
from tests.support.audit import audit
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

CLASS = 4294967296


def look(queue: Queue, *ids: str) -> dict[str, str]:
    """Those that stand nowhere, each with its mark."""
    reply = list(text(queue.run("lookForLost-9", "look", *ids)))
    marks = dict(zip(reply[::2], reply[1::2], strict=True))
    for kind in ("active", "wait", "paused"):
        copy = queue.keys.resolve("standing") + ":look:" + kind
        assert queue.command("TTL", copy) != -1
        for job_id in queue.command("LRANGE", copy, 0, -1):
            marks.pop(job_id, None)
        queue.command("DEL", copy)
    return marks


def put_back(queue: Queue, marks: dict[str, str], **call: Any) -> dict[str, str]:
    """What the script put back, by its state."""
    reply = list(text(queue.run("healJobs-12", *(part for pair in marks.items() for part in pair), **call)))[1:]
    return dict(zip(reply[::2], reply[1::2], strict=True))


def heal(queue: Queue, *ids: str) -> dict[str, str]:
    """Both, one after the other."""
    return put_back(queue, look(queue, *ids))


def test_from_wait_to_the_front_of_the_line_the_last_named_first(queue: Queue) -> None:
    queue.add_many([job_args(job_id=name) for name in ("a", "b", "c")])
    queue.command("DEL", "~wait", "~marker")
    queue.add(job_id="d")
    queue.command("DEL", "~marker")
    queue.new_events()
    assert heal(queue, "c", "b", "a", "d") == {"c": "waiting", "b": "waiting", "a": "waiting"}
    assert queue.get("wait") == ["d", "c", "b", "a"]
    assert queue.get("marker") == [("0", 0)]
    assert queue.new_events() == [["waiting", "jobId", name, "prev", "unknown"] for name in ("c", "b", "a")]
    assert queue.fetch(4).ids == ["a", "b", "c", "d"]


def test_a_priority_to_the_front_of_its_class(queue: Queue) -> None:
    queue.add_many([job_args(job_id=name, priority=5) for name in ("a", "b")])
    queue.command("ZREM", "~prioritized", "a")
    assert heal(queue, "a") == {"a": "prioritized"}
    assert queue.get("prioritized") == [("a", 5 * CLASS + 1), ("b", 5 * CLASS + 2)]


def test_a_job_whose_time_is_to_come_is_delayed_and_one_whose_time_has_come_waits(queue: Queue) -> None:
    queue.add(job_id="a", delay=5000)
    queue.command("DEL", "~delayed", "~marker")
    queue.new_events()
    assert heal(queue, "a") == {"a": "delayed"}
    assert queue.get("delayed") == [("a", (T + 5000) * 4096)]
    assert queue.get("marker")[-1] == ("1", T + 5000)
    assert queue.new_events() == [["delayed", "jobId", "a", "delay", str(T + 5000)]]
    queue.command("DEL", "~delayed")
    queue.clock = T + 5000
    assert heal(queue, "a") == {"a": "waiting"}


def test_a_back_off_counts_from_the_last_start(queue: Queue) -> None:
    queue.add(job_id="a")
    queue.clock = T + 60_000
    queue.fetch()
    queue.command("HSET", "~a", "delay", 1000)
    queue.command("DEL", "~active", "~a:lock")
    assert heal(queue, "a") == {"a": "delayed"}
    assert queue.get("delayed") == [("a", (T + 61_000) * 4096)]


def test_from_active_once_its_lock_has_gone(queue: Queue) -> None:
    queue.add(job_id="a")
    queue.fetch()
    queue.command("DEL", "~active")
    before = queue.dump()
    assert heal(queue, "a") == {}
    assert queue.dump() == before
    queue.command("DEL", "~a:lock")
    assert heal(queue, "a") == {"a": "waiting"}


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_what_had_ended_has_ended_as_it_did(queue: Queue, state: str) -> None:
    queue.add(job_id="a")
    queue.fetch()
    end = completed("a", queue.token, "1") if state == "completed" else failed("a", queue.token, "bad", attempts=1)
    queue.finish(end)
    before = queue.dump()
    queue.command("DEL", "~" + state)
    assert heal(queue, "a") == {"a": state}
    assert queue.command("HDEL", "~a", "healed") == 1
    assert queue.dump() == before  # no event either: its end was told of


def test_an_end_without_an_outcome_is_none(queue: Queue) -> None:
    queue.add(job_id="a")
    queue.command("HSET", "~a", "finishedOn", T)
    queue.command("DEL", "~wait")
    assert heal(queue, "a") == {"a": "waiting"}
    assert "finishedOn" not in queue.get("a")


def test_a_parent_waits_for_its_children_unless_it_is_to_fail(queue: Queue) -> None:
    queue.add_many([job_args(job_id=name) for name in ("a", "b")])
    for name in ("a", "b"):
        queue.command("SADD", f"~{name}:dependencies", "bull:q:child")
    queue.command("HSET", "~b", "defa", "child failed")
    queue.command("DEL", "~wait")
    queue.new_events()
    assert heal(queue, "a", "b") == {"a": "waiting-children", "b": "waiting"}
    assert queue.get("waiting-children") == [("a", T)]
    assert queue.new_events()[0] == ["waiting-children", "jobId", "a", "prev", "unknown"]


def test_what_stands_somewhere_is_not_touched(queue: Queue) -> None:
    queue.add_many([job_args(job_id=f"w{n}") for n in range(2500)])
    queue.add_many([job_args(job_id=f"a{n}", lifo=True) for n in range(30)])
    queue.fetch(30)
    queue.command("DEL", *(f"~a{n}:lock" for n in range(30)))
    queue.add_many([job_args(job_id=f"d{n}", delay=1000) for n in range(30)])
    queue.add_many([job_args(job_id=f"p{n}", priority=1) for n in range(30)])
    queue.command("RPUSH", "~paused", *(f"v{n}" for n in range(30)))
    for n in range(30):
        queue.command("HSET", f"~v{n}", "name", "x", "data", "{}", "opts", "{}", "timestamp", T)
    before = queue.dump()
    for kind in "wadpv":
        assert heal(queue, *(f"{kind}{n}" for n in range(30)), "none") == {}
    assert queue.dump() == before
    queue.command("LREM", "~wait", 0, "w2400")
    queue.command("LREM", "~wait", 0, "w7")
    found = heal(queue, "w7", "w2400", *(f"w{n}" for n in range(100, 130)), "w7")
    assert found == {"w7": "waiting", "w2400": "waiting"}
    assert queue.get("wait")[-2:] == ["w7", "w2400"]
    assert len(queue.get("wait")) == 2500


def test_what_happened_to_a_job_since_the_look_counts(queue: Queue) -> None:
    """Healed by another, run by another, removed and added anew, held by a worker that was thought dead."""
    names = ("healed", "run", "anew", "held")
    queue.add_many([job_args(job_id=name) for name in names])
    queue.command("DEL", "~wait")
    marks = look(queue, *names)
    assert list(marks) == list(names)
    assert heal(queue, "healed") == {"healed": "waiting"}
    queue.command("HINCRBY", "~run", "ats", 1)
    queue.remove("anew")
    queue.add(job_id="anew", timestamp=T + 1)
    queue.command("SET", "~held:lock", "x")
    assert put_back(queue, marks) == {}
    assert queue.get("wait") == ["anew", "healed"]
    assert queue.get("healed")["healed"] == "1"
    queue.command("DEL", "~wait")
    assert heal(queue, "healed") == {"healed": "waiting"}
    assert queue.get("healed")["healed"] == "2"


def test_while_the_queue_is_paused_no_marker_and_the_list_of_version_5_is_taken_over(queue: Queue) -> None:
    queue.add_many([job_args(job_id=name) for name in ("a", "b", "c")])
    queue.command("HSET", "~meta", "paused", 1)
    queue.command("DEL", "~marker", "~wait")
    queue.command("RPUSH", "~paused", "b")
    queue.command("RPUSH", "~wait", "c")
    assert heal(queue, "a", "b") == {"a": "waiting"}
    assert queue.get("wait") == ["c", "b", "a"]
    assert queue.get("marker") is None
    assert queue.command("GET", "bullx:q:v5") == "1"
    assert 86_000 < queue.command("TTL", "bullx:q:v5") <= 86_400


@pytest.mark.parametrize("prefix", ["emq", "my:app"])
def test_the_note_of_a_version_5_stands_with_our_own_keys(client: redis.Redis, prefix: str) -> None:
    queue = Queue(client, prefix=prefix)
    queue.add(job_id="a")
    queue.command("RENAME", "~wait", "~paused")
    queue.command("HSET", "~meta", "paused", 1)
    queue.resume()
    assert queue.command("EXISTS", queue.keys.resolve("version_5")) == 1
    assert queue.get("wait") == ["a"]


def test_broken_ones_are_named_and_left(queue: Queue) -> None:
    queue.command("HSET", "~ghost", "processedOn", T, "ats", 1)
    queue.command("HSET", "~half", "name", "x")
    queue.command("HSET", "~repeat:a:1", "name", "x", "ic", 1)  # a schedule with such a name
    queue.command("HSET", "~1:processed", "bull:q:2", "null")
    queue.command("SET", "~text", "x")
    before = queue.dump()
    named = ["ghost", "half", "repeat:a:1", "1:processed", "text", "none"]
    assert look(queue, *named) == {"ghost": "", "half": "", "repeat:a:1": ""}
    assert heal(queue, *named) == {}
    assert queue.dump() == before


def test_the_same_call_again_puts_nothing_back_twice(queue: Queue) -> None:
    queue.add(job_id="a")
    queue.command("DEL", "~wait")
    marks = look(queue, "a")
    assert put_back(queue, marks, number=50) == {"a": "waiting"}
    assert put_back(queue, marks, number=50, resent=True) == {"a": "waiting"}
    assert put_back(queue, marks, number=51) == {}
    assert queue.get("wait") == ["a"]
    assert audit(queue.client, "bull", "q") == []


def test_a_full_memory_refuses_the_look_whole_and_lets_a_job_be_put_back(queue: Queue, server: Server) -> None:
    queue.add_many([job_args(job_id=name) for name in ("a", "b")])
    queue.command("LREM", "~wait", 0, "a")
    marks = look(queue, "a")
    before = queue.dump()
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(redis.ResponseError, match=r"OOM|used memory"):
            look(queue, "a")
        assert queue.dump() == before
        assert server.cli("KEYS", queue.keys.resolve("standing") + "*") == []
        assert put_back(queue, marks) == {"a": "waiting"}
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")
    assert queue.get("wait") == ["b", "a"]
