"""The audit that the chaos tests end with finds what it is for, and nothing in a queue that is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
import redis

from tests.store.scripts import Outcome, Queue, T, completed, failed, job_args, retried
from tests.support.audit import audit
from tests.support.server import Server


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    with server.client() as client:
        yield Queue(client, prefix="emq")


def lived(queue: Queue) -> None:
    """A queue in which something of everything has happened."""
    for _ in range(8):
        queue.add()
    queue.add(delay=1000)
    queue.add(priority=3)
    queue.fetch(6, limit=(100, 60_000))
    token = queue.token
    queue.finish(
        completed("1", token), failed("2", token, "bad"), retried("3", token, "bad"), retried("4", token, "bad", 500),
        Outcome("back", "5", token), count=1, points=10,
    )  # fmt: skip
    queue.sweep()


def test_a_queue_that_is_whole_has_nothing_to_report(queue: Queue, server: Server) -> None:
    assert audit(queue.client, "emq", "q") == []
    lived(queue)
    assert audit(queue.client, "emq", "q") == []
    sent = job_args()
    sent[7] = msgspec.msgpack.encode({"once": {"id": "token", "ttl": 60_000}})
    queue.add_many([sent])
    assert queue.command("ZCARD", "emqx:{q}:sent") == 1
    assert audit(queue.client, "emq", "q") == []
    with redis.Redis.from_url(server.url, decode_responses=True) as other:
        assert audit(other, "emq", "q") == []


Damage = Callable[[Queue], object]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda queue: queue.command("LREM", "~wait", 0, "8"), "job 8 is in no state"),
        (lambda queue: queue.command("LPUSH", "~wait", "8"), "job 8 is in wait and wait"),
        (lambda queue: queue.command("ZADD", "~completed", T, "8"), "job 8 is in wait and completed"),
        (lambda queue: queue.command("DEL", "~8"), "8 is in wait but has no hash"),
        (lambda queue: queue.command("HDEL", "~8", "opts", "delay"), "job 8 lacks opts, delay"),
        (lambda queue: queue.command("HSET", "~8", "data", "{"), "job 8 has a data that is no JSON"),
        (lambda queue: queue.command("HSET", "~8", "finishedOn", T), "job 8 is in wait and has finishedOn"),
        (lambda queue: queue.command("HSET", "~2", "defa", "x"), "still has a deferred failure"),
        (lambda queue: queue.command("HSET", "~1", "finishedOn", 5), "finishedOn 5"),
        (lambda queue: queue.command("SET", "~8:lock", "x", "PX", 1000), "lock of a job that is not in active"),
        (lambda queue: queue.command("PERSIST", "~6:lock"), "emq:{q}:6:lock has no expiry"),
        (lambda queue: queue.command("PERSIST", "emqx:{q}:calls"), "emqx:{q}:calls has no expiry"),
        (lambda queue: queue.command("SET", "~limiter", 5), "limiter has no expiry"),
        (lambda queue: queue.command("SET", "~de:D", "nope"), "held for ever by job nope"),
        (lambda queue: queue.command("HSET", "~dn:D", "name", "x"), "waits for job None"),
        (lambda queue: queue.command("HSET", "~8", "parentKey", "emq:{P}:gone"), "parent emq:{P}:gone, which is not there"),
        (lambda queue: queue.command("SADD", "~8:dependencies", "emq:{q}:gone"), "its child emq:{q}:gone, which is not there"),
        (lambda queue: queue.command("SADD", "~8:dependencies", "emq:{q}:1"), "which has completed"),
        (lambda queue: queue.command("SET", "~whatever", "x"), "is no key of the protocol"),
        (lambda queue: queue.command("SET", "emqx:{q}:whatever", "x"), "is no key of the protocol"),
        (lambda queue: queue.command("RPUSH", "~77:logs", "x"), "is no key of the protocol"),
        (lambda queue: queue.command("SET", "~stalled", "x"), "is a string, must be a set"),
        (lambda queue: queue.command("ZADD", "~marker", 1, "x"), "has the member 'x'"),
        (lambda queue: queue.command("ZADD", "~repeat", 1, "sch"), "scheduler sch has no definition"),
        (lambda queue: queue.command("HSET", "~meta", "opts.maxLenEvents", "-2000"), "must keep to -2000"),
    ],
)  # fmt: skip
def test_finds(queue: Queue, damage: Damage, says: str) -> None:
    lived(queue)
    damage(queue)
    assert any(says in line for line in audit(queue.client, "emq", "q")), audit(queue.client, "emq", "q")


def test_finds_a_parent_that_nobody_will_release(queue: Queue) -> None:
    queue.add()
    queue.command("LREM", "~wait", 0, "1")
    queue.command("ZADD", "~waiting-children", T, "1")
    assert audit(queue.client, "emq", "q") == ["job 1 is in waiting-children and waits for no child"]
