"""Obliterating a queue, and removing orphans, step by step: what one call does, and what it leaves (protocol 3.20, 3.28)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.store.scripts import Queue, T, dump, job_args, pairs, text
from tests.support.audit import audit
from tests.support.server import Kind, Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

PLACES = "waiting-children active repeat delayed completed failed prioritized wait paused".split()
NOT_PAUSED, RUNNING, TO_BE_FORWARDED = -1, -2, -4


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return Queue(client, prefix="emq")


def step(queue: Queue, *keys: str, force: str = "", searched: str = "") -> tuple[int, int, int]:
    """Code, how many jobs were removed, whether more is left."""
    _, code, removed, more = queue.run("obliterate-12", force, searched, *keys)
    return code, removed, more


def forget(queue: Queue) -> int:
    return int(queue.run("forgetQueue-10", *queue.keys.once))


def left(queue: Queue) -> set[str]:
    """All keys of the server but the record of calls."""
    return set(dump(queue.client)) - {queue.keys.resolve("calls"), queue.keys.resolve("calls") + " expires"}


def test_only_a_paused_queue_and_only_where_nothing_runs(queue: Queue) -> None:
    queue.add_many([job_args()] * 3)
    queue.fetch()
    before = left(queue)
    assert step(queue, force="1") == (NOT_PAUSED, 0, 0)
    assert forget(queue) == NOT_PAUSED
    queue.pause()
    assert step(queue) == (RUNNING, 0, 0)
    assert left(queue) == before - {"emq:{q}:marker"}
    assert forget(queue) == 0
    assert step(queue, force="1") == (0, 3, 0)
    assert left(queue) == {"emq:{q}:events", "emq:{q}:id", "emq:{q}:meta"}
    assert forget(queue) == 1
    assert dump(queue.client) == {}
    assert forget(queue) == 1
    queue.add()
    assert forget(queue) == NOT_PAUSED, "sent again, when the queue is used anew"


def test_not_while_outcomes_wait_to_be_forwarded(queue: Queue) -> None:
    outbox = queue.keys.resolve("outbox")
    queue.add()
    queue.pause()
    entry = queue.command("XADD", outbox, "*", "id", "7")
    assert step(queue) == (TO_BE_FORWARDED, 0, 0)
    queue.command("XDEL", outbox, entry)
    assert step(queue) == (0, 1, 0)
    queue.command("XADD", outbox, "*", "id", "7")
    assert step(queue, force="1") == (0, 0, 0)
    assert forget(queue) == 1
    assert dump(queue.client) == {}


def test_a_step_is_bounded_and_takes_the_oldest_first(queue: Queue) -> None:
    for _ in range(4):
        queue.add_many([job_args()] * 150)
    queue.add(delay=60_000)
    queue.add(priority=2)
    queue.pause()
    assert step(queue) == (0, 250, 1)
    assert queue.get("delayed") is queue.get("prioritized") is None
    assert queue.get("wait")[-1] == "249"
    assert audit(queue.client, "emq", "q") == []
    assert [step(queue), step(queue)] == [(0, 250, 1), (0, 102, 0)]


def test_what_belongs_to_a_job_goes_with_it_once_it_has_been_searched_for(queue: Queue) -> None:
    queue.add_many([job_args()] * 100)
    queue.fetch()
    queue.command("RPUSH", "~1:logs", "of the one that runs")
    queue.command("RPUSH", "~2:logs", "of one that waits")
    queue.pause()
    assert step(queue, force="1") == (0, 100, 0)
    assert {name for name in left(queue) if "logs" in name or "lock" in name} == {"emq:{q}:2:logs"}
    assert step(queue, "emq:{q}:2:logs") == (0, 0, 0)
    queue.add()
    queue.command("RPUSH", "~101:logs", "added, and run by one that did not look whether it is paused")
    assert step(queue, searched="1") == (0, 1, 0)
    assert left(queue) == {"emq:{q}:meta", "emq:{q}:events", "emq:{q}:id"}
    queue.add_many([job_args()] * 100)
    assert [step(queue, searched="1"), step(queue, searched="1")] == [(0, 84, 1), (0, 16, 0)]


def test_every_place_is_emptied_whatever_stands_there(queue: Queue) -> None:
    queue.pause()
    for place in PLACES:
        if place in ("active", "wait", "paused"):
            queue.command("RPUSH", "~" + place, f"in {place}", "0:0")
        else:
            queue.command("ZADD", "~" + place, 1, f"in {place}")
        for part in ("", ":logs", ":lock", ":dependencies", ":processed", ":failed", ":unsuccessful"):
            queue.command("SET", f"~in {place}{part}", "x")
    queue.command("HSET", "~repeat:in repeat", "name", "tick")
    queue.command("SET", "~in repeat:lock", "beside a schedule no part of it")
    code, _, more = step(queue, force="1", searched="1")
    assert (code, more) == (0, 0)
    assert {name for name in left(queue) if not name.startswith("emq:{q}:in repeat")} == {
        "emq:{q}:meta",
        "emq:{q}:events",
    }


def test_what_is_no_place_is_removed(queue: Queue) -> None:
    queue.add()
    queue.pause()
    for place in PLACES:
        queue.command("DEL", "~" + place)
        queue.command("SET", "~" + place, "x")
    assert step(queue, "emq:{q}:1", force="1") == (0, 0, 0)
    assert left(queue) == {"emq:{q}:meta", "emq:{q}:events", "emq:{q}:id"}


def test_named_keys_go_when_no_job_is_left(queue: Queue) -> None:
    """A name that was found may be that of a job by now, which must go as one: with its place, and its parent told."""
    for _ in range(2):
        queue.add_many([job_args()] * 150)
    queue.command("SET", "~de:x", "gone")
    queue.pause()
    assert step(queue, "emq:{q}:de:x") == (0, 250, 1)
    assert queue.get("de:x") == "gone"
    assert step(queue, "emq:{q}:de:x") == (0, 50, 0)
    assert queue.get("de:x") is None


def test_a_parent_of_another_queue_no_longer_waits(queue: Queue, client: redis.Redis) -> None:
    others = Queue(client, "P", prefix="emq")
    others.add_many([job_args(job_id=job_id) for job_id in ("far", "orphan's")])
    queue.add_many([job_args(job_id=job_id) for job_id in ("grand", "parent", "child", "first", "second", "lost")])
    for here, parent, child in (
        (queue, "grand", "parent"), (queue, "parent", "child"), (others, "far", "first"), (others, "far", "second"),
        (others, "orphan's", "lost"),
    ):  # fmt: skip
        here.command("LREM", "~wait", 0, parent)
        here.command("ZADD", "~waiting-children", T, parent)
        here.command("SADD", f"~{parent}:dependencies", f"{queue.base}{child}")
        queue.command("HSET", f"~{child}", "parentKey", f"{here.base}{parent}")
    queue.command("LREM", "~wait", 0, "lost")
    others.command("DEL", "~marker")
    queue.pause()
    others.new_events()
    assert step(queue) == (0, 5, 0)
    assert others.get("wait") == ["far"]
    assert others.get("waiting-children") == [("orphan's", float(T))]
    assert step(queue, "emq:{q}:lost") == (0, 0, 0)
    assert others.get("wait") == ["far", "orphan's"]
    assert others.get("marker") == [("0", 0.0)]
    assert others.events() == []
    assert audit(client, "emq", "P") == []
    assert left(queue) == {"emq:{q}:meta", "emq:{q}:events", "emq:{q}:id", *dump(client, "emq:{P}:*"), "emqx:{P}:calls",
                           "emqx:{P}:calls expires"}  # fmt: skip


def test_the_same_call_again_takes_nothing_more(queue: Queue) -> None:
    for _ in range(2):
        queue.add_many([job_args()] * 200)
    queue.pause()
    first = queue.run("obliterate-12", "", "", number=900)
    assert queue.run("obliterate-12", "", "", number=900, resent=True) == first
    assert queue.counts("waiting") == [150]


def test_a_full_memory_lets_it_go(queue: Queue, server: Server, make_server: Callable[..., Server]) -> None:
    kind: Kind = server.kind
    with make_server(kind).client() as client:
        full = Queue(client, prefix="emq")
        full.add_many([job_args()] * 20)
        full.fetch()
        full.command("CONFIG", "SET", "maxmemory", "1")
        full.pause()
        assert step(full, "emq:{q}:de:x", force="1") == (0, 20, 0)
        assert full.run("removeOrphans-8", "gone", "gone")[1] == 0
        assert full.run("trimEvents-2", 0)[1] > 0
        full.run("limitEvents-2", "opts.maxLenEvents", 100)
        assert forget(full) == 1
        assert dump(client) == {}


# -- orphans


def test_an_orphan_that_is_none_any_more_stays(queue: Queue) -> None:
    queue.add_many([job_args(job_id=job_id) for job_id in ("healed", "held", "changed", "lost", "stands")])
    queue.command("DEL", "~wait")
    marks = pairs(text(queue.run("lookForLost-9", "look", "healed", "held", "changed", "lost", "stands")))
    queue.run("healJobs-12", "healed", marks["healed"])
    queue.command("SET", "~held:lock", "token", "PX", 60_000)
    queue.command("HSET", "~changed", "ats", 1)
    queue.command("ZADD", "~completed", T, "stands")
    queue.command("RPUSH", "~added:logs", "x")
    queue.add(job_id="added")
    args = [one for pair in marks.items() for one in pair]
    assert queue.run("removeOrphans-8", *args, "added", "gone", "nothing", "gone")[1] == 1
    assert queue.get("lost") is None
    assert all(queue.get(name) for name in ("healed", "held", "changed", "stands", "added", "added:logs"))


def test_a_parent_does_not_wait_for_an_orphan(queue: Queue) -> None:
    queue.add_many([job_args(job_id="parent"), job_args(job_id="child", de={"id": "d"})])
    queue.command("DEL", "~wait")
    queue.command("ZADD", "~waiting-children", T, "parent")
    queue.command("SADD", "~parent:dependencies", "emq:{q}:child")
    queue.command("HSET", "~child", "parentKey", "emq:{q}:parent")
    queue.new_events()
    [child, mark] = text(queue.run("lookForLost-9", "look", "child"))
    assert queue.run("removeOrphans-8", child, mark)[1] == 1
    assert queue.get("wait") == ["parent"]
    assert queue.get("de:d") is None
    assert queue.events() == [["waiting", "jobId", "parent", "prev", "waiting-children"],
                              ["removed", "jobId", "child", "prev", "unknown"]]  # fmt: skip
    assert audit(queue.client, "emq", "q") == []
