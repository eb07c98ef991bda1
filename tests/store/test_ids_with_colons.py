"""Ids, and prefixes, that hold colons: which queue a job belongs to is never guessed where it is known."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.store.scripts import KEEP_ALL, Queue, T, completed, job_args, text
from tests.support.audit import audit
from tests.support.server import Server

PREFIXES = ["emq", "bull", "a:b"]


@pytest.fixture(params=PREFIXES)
def queue(server: Server, request: pytest.FixtureRequest) -> Iterator[Queue]:
    with server.client() as client:
        yield Queue(client, prefix=request.param)


def family(child_of: Queue, parent_in: Queue, parent: str, *children: str, named: bool) -> None:
    """A parent that waits for its children, as a flow makes them."""
    parent_in.add(job_id=parent)
    parent_in.command("LREM", "~wait", 0, parent)
    parent_in.command("ZADD", "~waiting-children", T, parent)
    child_of.add_many([job_args(job_id=child) for child in children])
    for child in children:
        parent_in.command("SADD", f"~{parent}:dependencies", child_of.base + child)
        child_of.command("HSET", "~" + child, "parentKey", parent_in.base + parent)
        if named:
            whose = json.dumps({"id": parent, "queueKey": parent_in.base[:-1]})
            child_of.command("HSET", "~" + child, "parent", whose)


def keys_of(queue: Queue) -> set[str]:
    return {key.removeprefix(queue.base) for key in text(queue.client.execute_command("KEYS", "*"))}


def test_a_job_is_removed_whole(queue: Queue) -> None:
    queue.add(job_id="a:b:c")
    assert queue.remove("a:b:c") == 1
    assert queue.get("wait") is None
    assert not {key for key in keys_of(queue) if "a:b" in key.removeprefix(queue.keys.own_base)}
    assert queue.events()[-1] == ["removed", "jobId", "a:b:c", "prev", "wait"]
    queue.add(job_id="a:b:c")
    assert queue.get("wait") == ["a:b:c"]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("end", ["completed", "removed at its end", "removed"])
def test_a_parent_is_released(queue: Queue, end: str, named: bool, elsewhere: bool) -> None:
    other = Queue(queue.client, "P", prefix=queue.keys.prefix) if elsewhere else queue
    family(queue, other, "p:x:y", "kid", named=named)
    if end == "removed":
        assert queue.remove("kid") == 1
    else:
        queue.fetch()
        queue.finish(completed("kid", queue.token, rule=KEEP_ALL if end == "completed" else "0;;"))
    assert other.get("waiting-children") is None
    assert other.get("wait") == ["p:x:y"]
    assert other.get("p:x:y:dependencies") is None


def test_of_another_prefix_the_child_knows_it(queue: Queue) -> None:
    for prefix in ("emq", "a:b:c", "a"):
        other = Queue(queue.client, "P", prefix=prefix)
        family(queue, other, "p:x:y", prefix, named=True)
        queue.fetch()
        queue.finish(completed(prefix, queue.token))
        assert other.get("wait") == ["p:x:y"]


def test_a_name_that_does_not_fit_the_key_is_not_believed(queue: Queue) -> None:
    for number, wrong in enumerate(
        ("no JSON", "[]", '{"id":"y","queueKey":"elsewhere"}', '{"id":"","queueKey":"q"}', "1")
    ):
        family(queue, queue, f"p:{number}:y", "kid", named=False)
        queue.command("HSET", "~kid", "parent", wrong)
        queue.fetch()
        queue.finish(completed("kid", queue.token, rule="0;;"))
        assert queue.get("wait") == [f"p:{number}:y"]
        queue.command("DEL", "~wait")


def test_a_tree_is_removed_whole(queue: Queue) -> None:
    other = Queue(queue.client, "P", prefix=queue.keys.prefix)
    family(other, queue, "p:x:y", "k:1:a", "k:2:a", named=True)
    family(other, other, "k:3:a", "g:1:a", named=True)
    queue.command("SADD", "~p:x:y:dependencies", other.base + "k:3:a")
    assert queue.remove("p:x:y") == 1
    for one in (queue, other):
        assert [one.get(place) for place in ("wait", "waiting-children")] == [None, None]
        assert audit(one.client, one.keys.prefix, one.keys.queue) == []
    assert not {key for key in keys_of(queue) if ":y" in key or ":a" in key}
