"""Ends of runs that travel in one call come to the same as one by one, although some of their writes are made together."""

from __future__ import annotations

from itertools import permutations

import pytest
import redis

from tests.store.scripts import Outcome, Queue, completed, failed, job_args, retried

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


def scene(client: redis.Redis) -> Queue:
    """Jobs in active: a parent and its child (which fails it), a deduplicated one with a successor, and plain ones."""
    client.execute_command("FLUSHALL")
    queue = Queue(client, prefix="emq")
    queue.add_many([job_args(job_id=name) for name in ("parent", "child", "unique", "a", "b", "c")])
    queue.fetch(6)
    parent = queue.base + "parent"
    queue.command("HSET", "~child", "parentKey", parent, "parent", '{"id":"parent","queueKey":"emq:{q}","fpof":true}')
    queue.command("SADD", "~parent:dependencies", queue.base + "child")
    queue.command("HSET", "~unique", "deid", "d")
    queue.command("SET", "~de:d", "unique")
    queue.command("HSET", "~dn:d", "name", "next", "data", "{}", "opts", "{}", "jid", "next")
    return queue


def ends(order: tuple[str, ...], token: str) -> list[Outcome]:
    made = {
        "parent": failed("parent", token, "bad", attempts=1),
        "child": failed("child", token, "bad", attempts=1),
        "unique": completed("unique", token),
        "a": completed("a", token, rule="2;;"),
        "b": retried("b", token, "bad"),
        "c": completed("c", token, rule="0;;"),
    }
    return [made[name] for name in order]


@pytest.mark.parametrize("order", list(permutations(("parent", "child", "unique", "a"))))
def test_together_as_one_by_one(client: redis.Redis, order: tuple[str, ...]) -> None:
    order = (*order, "b", "c", "a")  # the last: ended already
    queue = scene(client)
    token = queue.token
    codes = [queue.finish(outcome).codes[0] for outcome in ends(order, token)]
    one_by_one = queue.dump()
    queue = scene(client)
    assert queue.finish(*ends(order, token)).codes == codes
    assert codes[-1] == -2
    assert queue.dump() == one_by_one
    assert "defa" not in queue.get("parent") or order.index("child") < order.index("parent")


def test_what_ends_here_is_settled_before_the_same_call_fetches(client: redis.Redis) -> None:
    """A job that is retried at once is fetched again by the same call, under a lock of its own."""
    queue = Queue(client, prefix="emq")
    queue.add_many([job_args(job_id="a"), job_args(job_id="b")])
    queue.fetch(2)
    turn = queue.finish(retried("a", queue.token, "bad"), completed("b", queue.token), count=2)
    assert (turn.codes, turn.ids) == ([0, 0], ["a"])
    assert queue.get("a:lock") == queue.token
    assert queue.get("b:lock") is None
    assert [member for member, _ in queue.get("completed")] == ["b"]


def test_an_end_that_goes_wrong_half_way_harms_no_other(client: redis.Redis) -> None:
    """The log takes no event any more, which no look can see: each job is in its set all the same."""
    queue = Queue(client, prefix="emq")
    queue.add_many([job_args(job_id="a"), job_args(job_id="b")])
    queue.fetch(2)
    queue.command("XADD", "~events", "18446744073709551615-18446744073709551615", "event", "last")
    queue.finish(completed("a", queue.token), failed("b", queue.token, "bad"))
    assert [member for member, _ in queue.get("completed")] == ["a"]
    assert [member for member, _ in queue.get("failed")] == ["b"]
    assert queue.get("active") is None
    assert (queue.get("a:lock"), queue.get("b:lock")) == (None, None)
