"""Changes of jobs by Node's BullMQ and by our scripts, with the same clock, leave the same keys and the same events.

As test_vectors_side_by_side.py has it. Where we differ, or version 5 does, the test says in what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.store.node_peer import NodeError, NodePeer, Version
from tests.store.scripts import Queue, T, text
from tests.store.test_vectors_side_by_side import ByNode, ByScripts, code_of, comparable, differences
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


class Node(ByNode):
    """Node makes the changes."""

    def change(self, script: str, job_id: str, *args: Any) -> int:
        method, given = {
            "promote": ("promote", []),
            "changeDelay": ("changeDelay", list(args)),
            "changePriority": ("changePriority", [{"priority": args[0], "lifo": args[1]}] if len(args) == 2 else []),
            "retry": (
                "retry",
                [args[1], {"resetAttemptsMade": args[0], "resetAttemptsStarted": args[0]}] if len(args) == 2 else [],
            ),
        }[script]
        try:
            self.peer("callJob", id=job_id, method=method, args=given)
        except NodeError as error:
            if "is not in the" in str(error):
                return -3
            return code_of(error)
        return 0

    def many(self, method: str, *args: Any) -> Any:
        return self.peer("call", method=method, args=list(args))


class Scripts(ByScripts):
    """Our scripts make them."""

    def change(self, script: str, job_id: str, *args: Any) -> int:
        name, given = {
            "promote": ("promote-9", ()),
            "changeDelay": ("changeDelay-5", (*args, "")),
            "changePriority": ("changePriority-8", (args[0], "1" if args[1] else "") if len(args) == 2 else ()),
            "retry": ("reprocessJob-10", ("1" if args[0] else "",) if args else ()),
        }[script]
        return int(self.queue.run(name, job_id, *given)[1])

    def many(self, method: str, *args: Any) -> Any:
        queue = self.queue
        match method:
            case "clean":
                grace, limit, place = args
                return sorted(text(queue.run("cleanJobs-12", place, 0, "", grace, limit or "")[1]))
            case "drain":
                for place in ("wait", "prioritized", *(("delayed",) if args and args[0] else ())):
                    queue.run("drain-9", place, 0, "", "")
            case "promoteJobs":
                queue.run("moveJobsToWait-11", "delayed", "")
            case "retryJobs":
                queue.run("moveJobsToWait-11", args[0]["state"], "")
            case "setGlobalRateLimit":
                queue.run("setLimits-7", "max", args[0], "duration", args[1])
            case "removeGlobalRateLimit":
                queue.run("setLimits-7", "max", "", "duration", "")
            case "setGlobalConcurrency":
                queue.run("setLimits-7", "concurrency", args[0])
            case "removeGlobalConcurrency":
                queue.run("setLimits-7", "concurrency", "")
            case "rateLimit":
                queue.run("rateLimit-8", args[0])
        return None


@pytest.fixture(scope="module", params=["bullmq6", "bullmq5"])
def peer(request: pytest.FixtureRequest) -> Iterator[NodePeer]:
    version: Version = request.param
    with NodePeer(version) as node:
        yield node


@pytest.fixture
def both(peer: NodePeer, server: Server) -> Iterator[Callable[..., None]]:
    """Runs a scenario by Node and by us, and compares the keys but for what is named, and the answers."""
    with server.client() as client:

        def run(scenario: Callable[[Any], Any], *, but: tuple[str, ...] = ()) -> None:
            answers, dumps = [], []
            for make in (make_node, make_scripts):
                client.flushall()
                answers.append(scenario(make(peer, server, client)))
                peer("close")
                dumps.append(comparable(Queue(client).dump()))
            theirs, ours = dumps
            lines = (
                [line for line in differences(ours, theirs) if not line.startswith(but)]
                if but
                else differences(ours, theirs)
            )
            assert lines == []
            assert answers[1] == answers[0]

        yield run
        peer("close")


def make_node(peer: NodePeer, server: Server, _: redis.Redis) -> Node:
    return Node(peer, server)


def make_scripts(peer: NodePeer, server: Server, client: redis.Redis) -> Scripts:
    return Scripts(peer, server, client)


Both = Callable[..., None]


def test_promote(both: Both) -> None:
    def scenario(by: Any) -> Any:
        by.add("a", delay=1000)
        by.add("b", delay=1000, priority=4)
        by.add("c", delay=1000)
        return [by.change("promote", "1"), by.change("promote", "2"), by.change("promote", "1")]

    both(scenario)


def test_change_delay(both: Both) -> None:
    def scenario(by: Any) -> Any:
        by.add("a", delay=1000)
        by.add("b", delay=5000)
        by.add("c")
        by.clock(T + 500)
        return [
            by.change("changeDelay", "1", 9000),
            by.change("changeDelay", "2", 100),
            by.change("changeDelay", "3", 1),
        ]

    both(scenario)


def test_change_priority(both: Both) -> None:
    def scenario(by: Any) -> Any:
        for priority in (3, 3, 9, 0, 0):
            by.add("a", priority=priority)
        by.add("later", delay=1000)
        answers = [by.change("changePriority", "3", 3, False), by.change("changePriority", "4", 3, True)]
        answers += [by.change("changePriority", "3", 0, True), by.change("changePriority", "5", 7, False)]
        return [*answers, by.change("changePriority", "6", 2, False), by.change("changePriority", "1", 0, False)]

    both(scenario)


@pytest.mark.parametrize("reset", [False, True])
def test_retry(both: Both, reset: bool) -> None:
    def scenario(by: Any) -> Any:
        by.add("a")
        by.add("b")
        by.fetch(1)
        by.fetch(2)
        by.fail("1", "bad", 1)
        by.complete("2", {"ok": True}, 2)
        by.add("c")
        return [
            by.change("retry", "1", reset, "failed"), by.change("retry", "2", reset, "completed"),
            by.change("retry", "3", reset, "failed"),
        ]  # fmt: skip

    both(scenario)


def test_retry_of_one_with_a_priority(both: Both, peer: NodePeer) -> None:
    """Version 6.7 puts it into its class, as we do; version 5 into `wait`."""

    def scenario(by: Any) -> Any:
        by.add("a", priority=5)
        by.add("b", priority=5)
        by.fetch(1)
        by.fail("1", "bad", 1)
        return by.change("retry", "1", False, "failed")

    both(scenario, but=("bull:q:wait", "bull:q:prioritized", "bull:q:pc") if peer.version == "bullmq5" else ())


def test_a_child_that_is_retried(both: Both) -> None:
    def scenario(by: Any) -> Any:
        tree = {
            "name": "parent", "queueName": "q", "opts": {"jobId": "parent"},
            "children": [{"name": "child", "queueName": "q", "opts": {"jobId": "child", "ignoreDependencyOnFailure": True}},
                         {"name": "other", "queueName": "q", "opts": {"jobId": "other", "delay": 5000}}],
        }  # fmt: skip
        by.node("flow", tree=tree)
        by.fetch(1)
        by.fail("child", "bad", 1)
        by.change("retry", "child", False, "failed")
        by.fetch(2)
        return by.complete("child", 7, 2)

    both(scenario)


def test_retrying_many(both: Both) -> None:
    """Without priorities, which the protocol forgets here."""

    def scenario(by: Any) -> Any:
        for number in range(1, 5):
            by.add("a")
            by.clock(T + number)
            by.fetch(number)
            by.fail(str(number), "bad", number)
        by.add("b")
        return by.many("retryJobs", {"state": "failed"})

    both(scenario)


def test_33_promoting_many(both: Both) -> None:
    """Deviation: the protocol puts all into `wait`, and leaves their delay as it was."""

    def scenario(by: Any) -> Any:
        by.add("a", delay=99_999, priority=4)
        by.add("b", delay=50_000)
        by.add("c", delay=10_000)
        return by.many("promoteJobs")

    both(
        scenario,
        but=("bull:q:1 delay", "bull:q:2 delay", "bull:q:3 delay", "bull:q:wait", "bull:q:prioritized", "bull:q:pc"),
    )


@pytest.mark.parametrize("place", ["wait", "prioritized", "delayed", "completed", "failed", "active"])
def test_clean(both: Both, place: str) -> None:
    def scenario(by: Any) -> Any:
        for number in range(1, 7):
            by.clock(T + number * 1000)
            by.add("a", priority=1 if place == "prioritized" else 0, delay=90_000 if place == "delayed" else 0)
            if place in ("completed", "failed", "active"):
                by.fetch(number)
            if place == "completed":
                by.complete(str(number), 1, number)
            elif place == "failed":
                by.fail(str(number), "bad", number)
        by.clock(T + 7000)
        first = by.many("clean", 4000, 2, place)
        return [sorted(first), sorted(by.many("clean", 2000, 0, place))]

    both(scenario)


@pytest.mark.parametrize("delayed", [False, True])
def test_drain(both: Both, delayed: bool) -> None:
    def scenario(by: Any) -> Any:
        for options in ({}, {}, {"priority": 1}, {"delay": 5000}, {}):
            by.add("a", **options)
        by.fetch(1)
        return by.many("drain", delayed)

    both(scenario)


def test_limits(both: Both) -> None:
    """Beside the fields of `meta`, we set a marker where jobs may be fetched."""

    def scenario(by: Any) -> Any:
        by.add("a")
        by.many("setGlobalConcurrency", 3)
        by.many("setGlobalRateLimit", 5, 1000)
        by.many("removeGlobalConcurrency")
        by.many("rateLimit", 5000)

    both(scenario, but=("bull:q:meta limitedUntil",))
