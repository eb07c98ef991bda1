"""Every call that changes something may be sent again: it is answered from its record, and done once (design section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from echomq._lua.loader import scripts
from tests.store.scripts import Outcome, Queue, T, completed, failed, job_args, retried, text
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    with server.client() as client:
        yield Queue(client)


def everything(queue: Queue) -> dict[str, Any]:
    """All keys, the lanes and the real expiries of the locks left out."""
    return queue.dump()


OPTS = '{"repeat":{"every":1000,"count":2},"repeatJobKey":"sch"}'


def finish(queue: Queue, **call: Any) -> Any:
    token = "prepare:1"
    outcomes = [completed("1", token), failed("2", token, "bad"), retried("3", token, "bad"), retried("4", token, "x", 9),
                Outcome("wait", "5", token), Outcome("back", "6", token, "1"), completed("7", "wrong")]  # fmt: skip
    flat = [one for outcome in outcomes for one in outcome.args]
    return queue.run("moveToFinished-14", 2, 30_000, "w", "", "", "", 10, len(outcomes), *flat, **call)


CALLS: dict[str, Callable[..., Any]] = {
    "addJobs-11": lambda queue, **call: queue.run("addJobs-11", 2, "", *job_args(), *job_args(job_id="mine"), **call),
    "moveToActive-11": lambda queue, **call: queue.run("moveToActive-11", 2, 30_000, "", "", "", **call),
    "moveToFinished-14": finish,
    "moveStalledJobsToWait-14": lambda queue, **call: queue.run("moveStalledJobsToWait-14", 30_000, 1, 0, 0, **call),
    "takeFromDead-10": lambda queue, **call: queue.run("takeFromDead-10", "prepare", 1, "", 0, **call),
    "pause-6": lambda queue, **call: queue.run("pause-6", **call),
    "resume-8": lambda queue, **call: queue.run("resume-8", **call),
    "removeDeduplicationKey-1": lambda queue, **call: queue.run("removeDeduplicationKey-1", "D", "", **call),
    "remove-5": lambda queue, **call: queue.run("remove-5", "10", "1", "", **call),
    "promote-9": lambda queue, **call: queue.run("promote-9", "later", **call),
    "changeDelay-5": lambda queue, **call: queue.run("changeDelay-5", "later", 5, "", **call),
    "changePriority-8": lambda queue, **call: queue.run("changePriority-8", "10", 3, "", **call),
    "requeue-5": lambda queue, **call: queue.run("requeue-5", "bull:origin:", "", 100, **call),
    "reprocessJob-10": lambda queue, **call: queue.run("reprocessJob-10", "ended", "", **call),
    "moveJobsToWait-11": lambda queue, **call: queue.run("moveJobsToWait-11", "failed", "", **call),
    "drain-9": lambda queue, **call: queue.run("drain-9", "wait", 0, "", "", **call),
    "cleanJobs-12": lambda queue, **call: queue.run("cleanJobs-12", "wait", 0, "", 0, "", **call),
    "healJobs-12": lambda queue, **call: queue.run("healJobs-12", "lost", f"{T}:::::", **call),
    "setLimits-7": lambda queue, **call: queue.run("setLimits-7", "concurrency", 5, **call),
    "rateLimit-8": lambda queue, **call: queue.run("rateLimit-8", 5000, **call),
    "cancelJob-16": lambda queue, **call: queue.run("cancelJob-16", "later", "why", "", **call),
    "publishEvent-3": lambda queue, **call: queue.run("publishEvent-3", "mine", "a", 1, **call),
    "advanceScheduler-15": lambda queue, **call: queue.run(
        "advanceScheduler-15", "sch", f"repeat:sch:{T}", "", "", 0, OPTS, "", "", "", "", **call
    ),
    "upsertScheduler-16": lambda queue, **call: queue.run(
        "upsertScheduler-16", "new", "", "", "", "", 0, '{"every":1000}', "", "name", "tick", "every", 1000, **call
    ),
    "pauseScheduler-13": lambda queue, **call: queue.run("pauseScheduler-13", "sch", **call),
    "removeScheduler-6": lambda queue, **call: queue.run("removeScheduler-6", "sch", **call),
    "updateJobs-4": lambda queue, **call: queue.run("updateJobs-4", "log", "10", "a line", 100, "", "", **call),
    "clearLogs-1": lambda queue, **call: queue.run("clearLogs-1", "11", 0, **call),
    "limitEvents-2": lambda queue, **call: queue.run("limitEvents-2", "opts.maxLenEvents", 500, **call),
    "trimEvents-2": lambda queue, **call: queue.run("trimEvents-2", 0, **call),
    "obliterate-12": lambda queue, **call: queue.run("obliterate-12", "1", "1", **call),
    "removeOrphans-8": lambda queue, **call: queue.run("removeOrphans-8", "gone", "gone", **call),
}


def prepare(queue: Queue) -> None:
    for _ in range(12):
        queue.add()
    queue.add(job_id="later", delay=1000)
    queue.add(job_id="ended", delay=1000)
    queue.command("ZREM", "~delayed", "ended")
    queue.command("ZADD", "~failed", T, "ended")
    queue.command("HSET", "~lost", "name", "job", "data", "{}", "opts", "{}", "timestamp", T, "delay", 0, "priority", 0)
    queue.add(job_id=f"repeat:sch:{T}", lifo=True)
    queue.command("HSET", "~repeat:sch", "name", "tick", "every", 1000, "ic", 1)
    queue.command("ZADD", "~repeat", T, "sch")
    queue.run("moveToActive-11", 9, 30_000, "", "", "", lane="prepare", number=1)
    queue.command("DEL", "~8:lock")
    queue.command("SADD", "~stalled", "8")
    queue.command("SET", "~de:D", "8")
    queue.command("RPUSH", "~11:logs", "a line")
    queue.command("RPUSH", "~gone:logs", "a line")


def test_every_lane_script_is_tried_here() -> None:
    assert set(CALLS) == {name for name, found in scripts().items() if found.lane}


@pytest.fixture(autouse=True)
def prepared(queue: Queue, request: pytest.FixtureRequest) -> None:
    prepare(queue)
    if "obliterate-12" in request.node.name:  # only a paused queue may be
        queue.command("HSET", "~meta", "paused", "1")


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_again_is_answered_and_not_done(queue: Queue, name: str) -> None:
    before = everything(queue)
    first = CALLS[name](queue, lane="l", number=7)
    after = everything(queue)
    assert after != before
    for resent in (True, False):
        assert CALLS[name](queue, lane="l", number=7, resent=resent) == replayed(name, first)
        assert everything(queue) == after
    # The clock and the arguments of the copy do not matter: its number does.
    queue.clock = T + 99_000
    assert CALLS[name](queue, lane="l", number=7) == replayed(name, first)
    assert everything(queue) == after


def replayed(name: str, reply: list[Any]) -> list[Any]:
    """What a repetition answers: the same, but a fetched job as its hash is then, so without a field twice."""
    if name not in ("moveToActive-11", "moveToFinished-14"):
        return reply
    jobs: list[Any] = []
    for at in range(6, len(reply), 2):
        job = dict(zip(reply[at + 1][::2], reply[at + 1][1::2], strict=True))
        if name == "moveToFinished-14":
            job[b"pb"] = b"w"
        jobs += [reply[at], Hash(job)]
    return [*reply[:6], *jobs]


class Hash(list[Any]):
    """A flat hash that is equal to any other order of the same fields."""

    def __init__(self, job: dict[bytes, bytes]) -> None:
        super().__init__(one for pair in job.items() for one in pair)
        self.job = job

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and dict(zip(other[::2], other[1::2], strict=True)) == self.job

    __hash__ = None


@pytest.mark.parametrize("name", CALLS)
def test_an_older_call_is_refused(queue: Queue, name: str) -> None:
    queue.run("pause-6", lane="l", number=7)
    queue.run("resume-8", lane="l", number=8)
    before = queue.client.execute_command("DUMP", queue.keys.resolve("calls")), everything(queue)
    with pytest.raises(redis.ResponseError, match=r"^STALE call 7 of a lane that is at 8"):
        CALLS[name](queue, lane="l", number=7, resent=True)
    assert (queue.client.execute_command("DUMP", queue.keys.resolve("calls")), everything(queue)) == before


@pytest.mark.parametrize("name", CALLS)
def test_a_repetition_whose_first_copy_never_arrived_is_done(queue: Queue, name: str) -> None:
    before = everything(queue)
    CALLS[name](queue, lane="l", number=7, resent=True)
    assert everything(queue) != before


def test_lanes_know_nothing_of_each_other(queue: Queue) -> None:
    queue.run("addJobs-11", 1, "", *job_args(), lane="a", number=5)
    queue.run("addJobs-11", 1, "", *job_args(), lane="b", number=1)
    assert queue.get("id") == "17"


def test_a_repeated_fetch_gives_what_is_still_locked_by_it(queue: Queue) -> None:
    queue.run("moveToActive-11", 3, 30_000, "", "", "", lane="l", number=1)
    queue.finish(completed("9", "l:1"))
    queue.command("SET", "~10:lock", "another:1", "PX", 1000)
    again = text(queue.run("moveToActive-11", 3, 30_000, "", "", "", lane="l", number=1, resent=True))
    assert again[6::2] == ["11"]
    # Its lock has expired, and nobody has started it since: its worker was away, and takes it again.
    queue.command("DEL", "~11:lock")
    again = text(queue.run("moveToActive-11", 3, 30_000, "", "", "", lane="l", number=1, resent=True))
    assert again[6::2] == ["11"]
    assert queue.get("11:lock") == "l:1"
    assert queue.command("PTTL", "~11:lock") > 0
    # Somebody has started it since, and lost its lock in turn.
    queue.finish(Outcome("back", "11", "l:1"))
    queue.clock = T + 1
    queue.fetch()
    assert "11" in queue.get("active")
    queue.command("DEL", "~11:lock")
    again = text(queue.run("moveToActive-11", 3, 30_000, "", "", "", lane="l", number=1, resent=True))
    assert again[6:] == []


def test_a_repeated_finish_gives_its_codes_and_jobs_again(queue: Queue) -> None:
    first = text(finish(queue, lane="l", number=1))
    again = text(finish(queue, lane="l", number=1, resent=True))
    assert again[1] == first[1] == [0, 0, 0, 0, 0, 0, -6]
    assert again[6::2] == first[6::2]
    assert len(first[6::2]) == 2


def test_the_look_of_an_idle_worker_leaves_no_record_but_a_repeated_one_does(queue: Queue, server: Server) -> None:
    server.flush()
    queue.run("moveToActive-11", 1, 30_000, "", "", "", lane="l", number=1)
    assert queue.client.execute_command("DBSIZE") == 0
    queue.run("moveToActive-11", 1, 30_000, "", "", "", lane="l", number=1, resent=True)
    queue.add()
    # The first copy comes late, long after its caller got the answer of the second: it must not take a job.
    assert text(queue.run("moveToActive-11", 1, 30_000, "", "", "", lane="l", number=1))[6:] == []
    assert queue.get("wait") == ["1"]


def test_the_record_lives_for_an_hour_after_the_last_call(queue: Queue) -> None:
    calls = queue.keys.resolve("calls")

    def left_after(clock: int) -> int:
        """Seconds of expiry after a call at this time, having had 100 before it."""
        queue.client.execute_command("EXPIRE", calls, 100)
        queue.clock = clock
        queue.add()
        return int(queue.client.execute_command("TTL", calls))

    queue.add()
    assert queue.client.execute_command("TTL", calls) > 3600
    # A lane that calls every half minute renews it once in a while, not never.
    found = [left_after(T + seconds * 1000) > 3600 for seconds in range(30, 330, 30)]
    assert found == [False, False, True, False, False, True, False, False, True, False]


def test_the_sweep_forgets_lanes_that_have_been_silent_for_an_hour(queue: Queue) -> None:
    queue.run("addJobs-11", 1, "", *job_args(), lane="silent", number=5)
    queue.clock = T + 3_500_000
    queue.run("addJobs-11", 1, "", *job_args(), lane="fresh", number=5)
    queue.clock = T + 3_700_000
    queue.sweep(lane="sweeper", number=1)
    lanes = {text(name) for name in queue.client.execute_command("HKEYS", queue.keys.resolve("calls"))}
    assert lanes == {"fresh", "sweeper"}


def test_without_a_worker_new_lanes_push_out_the_silent_ones(queue: Queue) -> None:
    """A program that is started for each job, on a queue that no worker sweeps for months."""
    sizes = []
    for day in range(2):
        for minute in range(600):
            queue.clock = T + day * 86_400_000 + minute * 60_000
            queue.run("addJobs-11", 1, "", *job_args(), lane=f"{day}-{minute}", number=1)
        sizes.append(int(queue.client.execute_command("HLEN", queue.keys.resolve("calls"))))
    assert max(sizes) < 150  # some 60 are of the last hour


def test_however_many_lanes_have_fallen_silent_the_sweeps_get_rid_of_them(queue: Queue) -> None:
    """Each event loop of a producer is a lane: programs that start one for every job leave very many."""
    calls = queue.keys.resolve("calls")
    old, live = T - 2 * 3_600_000, T - 1000

    def records(name: str, count: int, used: int) -> dict[Any, Any]:
        return {f"{name}{at}": f"7:{used}:\x90" for at in range(count)}

    def left() -> int:
        return int(queue.client.execute_command("HLEN", calls))

    queue.client.execute_command("DEL", calls)
    with queue.client.pipeline(transaction=False) as pipe:
        for some in range(100):
            pipe.hset(calls, mapping=records(f"old{some}.", 1000, old))
        pipe.hset(calls, mapping=records("live", 200, live))
        pipe.execute()
    sweeps = 0
    while left() > 201:  # the live ones, and the sweeper's
        queue.command("DEL", "~stalled-check")
        before = left()
        queue.sweep(lane="sweeper")
        assert before - left() <= 1008  # a step is bounded (8 are what a new lane looks at)
        sweeps += 1
        assert sweeps <= 200  # some 130
    assert {text(name) for name in queue.client.execute_command("HKEYS", calls)} == {
        *records("live", 200, live),
        "sweeper",
    }


def test_a_broken_record_is_named(queue: Queue) -> None:
    calls = queue.keys.resolve("calls")
    queue.client.execute_command("HSET", calls, "l", "rubbish")
    with pytest.raises(redis.ResponseError, match=f"^STALE call 1 of a lane whose record in {calls} is none of ours"):
        queue.run("pause-6", lane="l", number=1)
