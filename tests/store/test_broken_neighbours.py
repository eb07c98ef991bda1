"""A key of a wrong type or with unreadable content never tears a job: a script refuses, naming it, before it changes anything.

Every script is run on a queue in which something of everything exists, once for each key and each thing that may stand there
in its place. In a batch the job beside the broken key gets a text as its code, and the others are whole. What stands around a
job that ends does not keep it from ending: it ends whole, and its text says what was left undone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from echomq._lua.loader import scripts
from tests.store.scripts import KEEP_ALL, Outcome, Queue, T, completed, dump, failed, job_args, retried, text
from tests.support.server import Server

DEFAULT_KIND: Any = os.environ.get("ECHOMQ_TEST_SERVER", "valkey")

PARENT = "emq:{P}:pp"
CALLS = "emqx:{q}:calls"
OUTBOX = "emqx:{q}:outbox"

LOST: dict[str, tuple[str | int, ...]] = {
    "l1": (), "l2": ("priority", 3), "l3": ("delay", 5000), "l4": ("finishedOn", T, "returnvalue", "1"), "l5": (),
}  # fmt: skip
"""Jobs that stand in no state."""

Snapshot = dict[str, tuple[bytes, bool]]


@pytest.fixture(scope="module")
def world(shared_server: Callable[[Any], Server]) -> Iterator[World]:
    """One queue in which something of everything exists, put back before each step."""
    server = shared_server(DEFAULT_KIND)
    server.flush()
    with server.client() as client:
        yield World(client)
    server.flush()


# Each in one call, because they are done thousands of times.
SNAPSHOT = """
local found = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
  found[#found + 1] = key
  found[#found + 1] = redis.call("DUMP", key)
  found[#found + 1] = redis.call("PTTL", key) ~= -1 and 1 or 0
end
return found
"""
RESTORE = """
redis.call("FLUSHALL")
for at = 1, #ARGV, 3 do
  redis.call("RESTORE", ARGV[at], ARGV[at + 2] == "1" and "100000" or "0", ARGV[at + 1])
end
"""
PLACES = """
local jobs = {}
for _, key in ipairs(redis.call("KEYS", "*")) do
  if string.sub(key, 1, #ARGV[1]) == ARGV[1] and redis.pcall("HEXISTS", key, "timestamp") == 1 then
    jobs[#jobs + 1] = key
  end
end
local found = { jobs }
for _, name in ipairs({ "wait", "paused", "active" }) do
  local ids = redis.pcall("LRANGE", ARGV[1] .. name, "0", "-1")
  found[#found + 1] = ids.err and {} or ids
end
for _, name in ipairs({ "prioritized", "delayed", "waiting-children", "completed", "failed" }) do
  local ids = redis.pcall("ZRANGE", ARGV[1] .. name, "0", "-1")
  found[#found + 1] = ids.err and {} or ids
end
return found
"""


class World:
    """The queue ``q`` with a parent in the queue ``P``, as it was at first, and what is done to it."""

    def __init__(self, client: redis.Redis) -> None:
        self.queue = Queue(client, prefix="emq")
        self.client = client
        self.token = ""
        self._build()
        self.first = self.snapshot()

    def _build(self) -> None:
        queue = self.queue
        queue.add_many([job_args(job_id=f"a{n}", priority=3 if n == 4 else 0) for n in range(1, 10)])
        queue.add_many([job_args(job_id="repeat:sch:1764400000000")])
        queue.fetch(20)
        self.token = queue.token
        queue.add_many(
            [
                *(job_args(job_id=f"old{n}") for n in range(4)),
                *(job_args(job_id=f"w{n}") for n in range(3)),
                job_args(job_id="p1", priority=3),
                job_args(job_id="p2", priority=3),
                job_args(job_id="due", delay=10),
                job_args(job_id="due ranked", delay=10, priority=2),
                job_args(job_id="later", delay=100_000),
            ]
        )
        old = queue.fetch(4)
        queue.finish(*(completed(job_id, queue.token) for job_id in old.ids[:2]),
                     *(failed(job_id, queue.token, "bad") for job_id in old.ids[2:]), points=10)  # fmt: skip
        # Two fetches whose answers are asked for once more: a lock of each has gone since.
        queue.add_many([job_args(job_id=f"r{n}", lifo=True) for n in range(4)])
        queue.fetch(2, lane="again", number=1)
        queue.finish(count=2, lane="again too", number=1)
        queue.command("DEL", "~r2:lock", "~r1:lock")
        queue.clock = T + 1000
        command = queue.command
        # a2: deduplicated, with a last one kept; later: deduplicated, and delayed; a3: a child of pp in P; a5: without a lock,
        # marked as stalled; the iteration of a scheduler; f1, c1: ended children of wc, which waits for a child w2.
        command("HSET", "~a2", "deid", "D")
        command("SET", "~de:D", "a2")
        command("HSET", "~dn:D", "name", "next", "data", "{}", "opts", '{"priority":2}', "jid", "n1", "pk", PARENT, "pd", "{}",
                "pdk", PARENT + ":dependencies")  # fmt: skip
        command("HSET", "~later", "deid", "L")
        command("SET", "~de:L", "later")
        command("HSET", "~a3", "parentKey", PARENT, "parent", '{"id":"pp","queueKey":"emq:{P}","fpof":true}')
        command("DEL", "~a5:lock")
        command("SADD", "~stalled", "a5", "a6")
        command("SET", "~limiter", 2, "PX", 100_000)
        command("HSET", "~meta", "max", 1000, "duration", 60_000, "concurrency", 1000)
        command("HSET", "~repeat:sch", "name", "tick", "every", 1000, "ic", 1, "data", "{}")
        command("ZADD", "~repeat", T, "sch")
        command("HSET", "~repeat:sch:1764400000000", "rjk", "sch")
        # Two more: the next iteration of one is delayed, one is paused.
        self.queue.run("upsertScheduler-16", "other", "", "", "", "", 0, '{"every":1000}', "", "name", "tick", "every", 1000,
                       "startDate", T + 50_000)  # fmt: skip
        command("HSET", self.queue.keys.resolve("paused_schedulers"), "rest", RESTING)
        for job_id in ("wc", "k1", "k2", "k3"):
            command(
                "HSET",
                "~" + job_id,
                "name",
                job_id,
                "data",
                "{}",
                "opts",
                "{}",
                "timestamp",
                T,
                "delay",
                0,
                "priority",
                0,
            )
        for job_id in ("k1", "k2", "k3"):
            command("HSET", "~" + job_id, "parentKey", "emq:{q}:wc")
        command("HSET", "~k1", "deid", "K")
        command("SET", "~de:K", "k1")
        command("HSET", "~dn:K", "name", "x")
        command("ZADD", "~waiting-children", T, "wc")
        command("SADD", "~wc:dependencies", "emq:{q}:k1")
        command("HSET", "~wc:processed", "emq:{q}:k2", "1")
        command("HSET", "~wc:failed", "emq:{q}:k3", "bad")
        command("ZADD", "~wc:unsuccessful", T, "emq:{q}:k3")
        command("LPUSH", "~wait", "k1")
        for job_id, state in (("k2", "completed"), ("k3", "failed")):
            command("ZADD", "~" + state, T, job_id)
            command("HSET", "~" + job_id, "finishedOn", T)
        for job_id, fields in LOST.items():
            command("HSET", "~" + job_id, "name", "x", "data", "{}", "opts", "{}", "timestamp", T, *fields)
        command("SADD", "~l5:dependencies", "emq:{q}:w1")
        parents = Queue(self.client, "P", prefix="emq")
        parents.add_many(
            [job_args(job_id="pp"), job_args(), job_args(priority=1), job_args(delay=10), job_args(), job_args()]
        )
        parents.command("LREM", "~wait", 0, "pp")
        parents.command("ZADD", "~waiting-children", T, "pp")
        parents.command("SADD", "~pp:dependencies", "emq:{q}:a3", "emq:{q}:else")
        parents.command("HSET", "~pp:processed", "emq:{q}:done", "1")
        parents.command("HSET", "~pp:failed", "emq:{q}:done", "1")
        parents.command("ZADD", "~pp:unsuccessful", T, "emq:{q}:done")
        parents.fetch()
        parents.finish(failed("2", parents.token, "bad"))
        parents.fetch()

    def dying(self, job_id: str) -> Outcome:
        """A job that fails for good and leaves a dead letter, in the queue ``P``."""
        more = {
            "fields": ["failedReason", "bad", "stacktrace", "[]"],
            "letter": ["emq:{P}:", '{"deadLetter":{"id":"x","failedOn":'],
        }
        return Outcome("failed", job_id, self.token, "bad", KEEP_ALL, more)

    def cancelled(self, job_id: str) -> Outcome:
        """A job whose worker ends it because somebody has cancelled it."""
        more = {
            "fields": ["failedReason", "why", "stacktrace", "[]", "failureKind", "cancelled"],
            "said": ["cancelled", "reason", "why"],
        }
        return Outcome("failed", job_id, self.token, "why", KEEP_ALL, more)

    def told(self, job_id: str, **way: str) -> Outcome:
        """A job that completes, and whose outcome is forwarded to the queue ``P``: at once, or by way of the outbox."""
        return completed(job_id, self.token, "7", forward={"head": '{"result":', **way})

    def snapshot(self) -> Snapshot:
        """Every key as the server keeps it, and whether it has an expiry."""
        flat = self.client.execute_command("EVAL", SNAPSHOT, 0)
        return {text(key): (content, expires == 1) for key, content, expires in zip(*[iter(flat)] * 3, strict=True)}

    def restore(self) -> None:
        flat = [one for key, (content, expires) in self.first.items() for one in (key, content, int(expires))]
        self.client.execute_command("EVAL", RESTORE, 0, *flat)
        self.queue.lane, self.queue.number = "step", 0

    def places(self) -> dict[str, int]:
        """In how many states of the queue each id stands that has a hash, or stands somewhere."""
        jobs, *members = text(self.client.execute_command("EVAL", PLACES, 0, self.queue.base))
        found: dict[str, int] = {key.removeprefix(self.queue.base): 0 for key in jobs}
        for ids in members:
            for job_id in ids:
                found[job_id] = found.get(job_id, 0) + 1
        return found


Step = Callable[[World], Any]


def finish_all(world: World) -> list[Any]:
    token = world.token
    return world.queue.finish(
        completed("a1", token, rule="2;;"),
        completed("a2", token),
        failed("a3", token, "bad", rule="-1;1;", attempts=1),
        retried("a4", token, "bad"),
        retried("a6", token, "bad", 500),
        Outcome("wait", "a7", token, "5000"),
        Outcome("back", "a8", token, "1"),
        completed("a9", token, rule="0;;"),
        count=4,
        points=10,
    ).codes


def obliterate(world: World) -> Any:
    """Of a paused queue, if it can be paused."""
    pause = "return redis.pcall('HSETNX', KEYS[1], 'paused', '1') == 1 and 1 or 0"
    paused_here = world.client.execute_command("EVAL", pause, 1, "emq:{q}:meta")
    try:
        return world.queue.run("obliterate-12", "1", "1")
    except redis.ResponseError:
        if paused_here:
            world.queue.command("HDEL", "~meta", "paused")
        raise


OPTS = '{"attempts":0,"repeat":{"every":1000,"count":2},"repeatJobKey":"sch"}'

EVERY = ("", "", "", "", 0, '{"every":1000}')
TICK = ("name", "tick", "every", 1000)
RESTING = '{"fields":{"name":"tick","every":"1000","offset":"0","ic":"1"},"slot":"1764400000000","begun":false}'

WHY = "the learner has left"

STEPS: dict[str, Step] = {
    "addJobs": lambda world: world.queue.add_many(
        [
            job_args(),
            job_args(delay=100),
            job_args(priority=3),
            job_args(lifo=True),
            job_args(job_id="w1"),
            job_args(job_id="x"),
        ]
    ),
    "addJobs, one by one": lambda world: world.queue.add_many(
        [
            job_args(de={"id": "D", "keepLastIfActive": True}),
            job_args(de={"id": "K"}),
            job_args(de={"id": "L", "replace": True}, delay=100),
            job_args(de={"id": "L", "reschedule": True}, delay=200),
            job_args(de={"id": "new"}, priority=3),
            job_args(),
        ],
        max_size=1000,
    ),
    "moveToActive": lambda world: world.queue.fetch(10),
    "moveToFinished": finish_all,
    "moveToFinished, dead letters": lambda world: world.queue.finish(*map(world.dying, ("a1", "a3", "a9"))).codes,
    "moveToFinished, forwarded": lambda world: (
        world.queue.finish(*(world.told(job_id, base="emq:{P}:", opts="{}") for job_id in ("a1", "a3", "a9"))).codes
    ),
    "moveToFinished, by way of the outbox": lambda world: (
        world.queue.finish(
            *(world.told(job_id, outbox=OUTBOX, to="emq:{P}:", at="") for job_id in ("a1", "a3", "a9"))
        ).codes
    ),
    "takeOutcomes": lambda world: world.queue.run("takeOutcomes-2", "me", 10_000, "", 0, 0, 0),
    "requeue": lambda world: world.queue.run("requeue-5", "emq:{P}:", "", 100),
    "requeue, one": lambda world: world.queue.run("requeue-5", "emq:{P}:", "w1", 1),
    "moveToActive, again": lambda world: world.queue.fetch(2, lane="again", number=1, resent=True),
    "moveToFinished, again": lambda world: world.queue.finish(count=2, lane="again too", number=1, resent=True),
    "moveStalledJobsToWait": lambda world: world.queue.sweep(worker=("a worker", "{}", 45_000)),
    "moveStalledJobsToWait, confirm": lambda world: world.queue.sweep(confirm=10),
    "takeFromDead": lambda world: world.queue.run("takeFromDead-10", world.token.partition(":")[0], 0, "", 0),
    "extendLocks": lambda world: world.queue.extend(*((f"a{n}", world.token, f"1:{T}:{T}") for n in range(1, 10))),
    "releaseLock": lambda world: world.queue.run("releaseLock-1", world.token, keys={"lock": "emq:{q}:a1:lock"}),
    "passMarkerOn": lambda world: world.queue.run("passMarkerOn-6"),
    "pause": lambda world: world.queue.pause(),
    "resume": lambda world: world.queue.resume(),
    "remove": lambda world: world.queue.remove("wc"),
    "remove, alone": lambda world: world.queue.remove("k1", children=False),
    "removeDeduplicationKey": lambda world: world.queue.run("removeDeduplicationKey-1", "D", "a2"),
    "advanceScheduler": lambda world: world.queue.run(
        "advanceScheduler-15", "sch", "repeat:sch:1764400000000", "", "1000", 0, OPTS, "", "", "", ""
    ),
    "upsertScheduler": lambda world: world.queue.run("upsertScheduler-16", "sch", *EVERY, "", *TICK),
    "upsertScheduler, delayed": lambda world: world.queue.run("upsertScheduler-16", "other", *EVERY, "", *TICK),
    "upsertScheduler, resumed": lambda world: world.queue.run("upsertScheduler-16", "rest", *EVERY, RESTING, *TICK),
    "upsertScheduler, paused": lambda world: world.queue.run("upsertScheduler-16", "rest", *EVERY, "", *TICK),
    "pauseScheduler": lambda world: world.queue.run("pauseScheduler-13", "other"),
    "removeScheduler": lambda world: world.queue.run("removeScheduler-6", "other"),
    "getSchedulers": lambda world: world.queue.run("getSchedulers-2", "sch", "other", "rest"),
    "cancelJob": lambda world: world.queue.run("cancelJob-16", "k1", WHY, ""),
    "cancelJob, delayed": lambda world: world.queue.run("cancelJob-16", "later", WHY, ""),
    "cancelJob, prioritized": lambda world: world.queue.run("cancelJob-16", "p1", WHY, ""),
    "cancelJob, a parent": lambda world: world.queue.run("cancelJob-16", "wc", WHY, ""),
    "cancelJob, being run": lambda world: world.queue.run("cancelJob-16", "a1", WHY, ""),
    "moveToFinished, cancelled": lambda world: world.queue.finish(*map(world.cancelled, ("a1", "a2", "a3"))).codes,
    "promote": lambda world: world.queue.run("promote-9", "later"),
    "changeDelay": lambda world: world.queue.run("changeDelay-5", "later", 500, ""),
    "changePriority": lambda world: world.queue.run("changePriority-8", "w1", 5, ""),
    "reprocessJob": lambda world: world.queue.run("reprocessJob-10", "k3", "1"),
    "moveJobsToWait": lambda world: world.queue.run("moveJobsToWait-11", "failed", ""),
    "moveJobsToWait, delayed": lambda world: world.queue.run("moveJobsToWait-11", "delayed", ""),
    "drain": lambda world: world.queue.run("drain-9", "wait", 0, "", ""),
    "cleanJobs": lambda world: world.queue.run("cleanJobs-12", "wait", 0, "", 0, ""),
    "cleanJobs, active": lambda world: world.queue.run("cleanJobs-12", "active", 0, "", 0, ""),
    "lookForLost": lambda world: world.queue.run("lookForLost-9", "look", *LOST, "w1", "a1"),
    "healJobs": lambda world: world.queue.run(
        "healJobs-12", *(part for job_id in LOST for part in (job_id, f"{T}:::::"))
    ),
    "setLimits": lambda world: world.queue.run("setLimits-7", "concurrency", 2000),
    "rateLimit": lambda world: world.queue.run("rateLimit-8", 1000),
    "publishEvent": lambda world: world.queue.run("publishEvent-3", "custom", "n", 1),
    "updateJobs": lambda world: text(
        world.queue.run(
            "updateJobs-4",
            *("progress", "a1", "1", "", world.token, f"1:{T}:{T}"),
            *("log", "w1", "line", 2, "", ""),
            *("data", "wc", "{}", "", "", ""),
            *("log", "wc", "line", 2, "", ""),
        )
    ),
    "limitEvents": lambda world: world.queue.run("limitEvents-2", "opts.maxLenEvents", 500, "opts.maxBytes", ""),
    "trimEvents": lambda world: world.queue.run("trimEvents-2", 0),
    "obliterate": lambda world: obliterate(world),
    "forgetQueue": lambda world: world.queue.run("forgetQueue-10", "emq:{q}:id", "emq:{q}:meta"),
    "removeOrphans": lambda world: world.queue.run(
        "removeOrphans-8", "l1", f"{T}:::::", "w1", f"{T}:::::", "a1", "gone", "nobody", "gone"
    ),
    "clearLogs": lambda world: world.queue.run("clearLogs-1", "wc", 0),
    "getLogs": lambda world: world.queue.run("getLogs-1", "wc", 0, 10, ""),
    "getPage": lambda world: [
        world.queue.run("getPage-8", "wait", 100, "", 2, 1, "", "w1"),
        world.queue.run("getPage-8", "completed", 100, "1", 0, 0, T, "old1"),
    ],
    "getCountsPerPriority": lambda world: world.queue.run("getCountsPerPriority-3"),
    "explainJob": lambda world: [
        world.queue.run("explainJob-15", job_id)
        for job_id in ("w1", "a1", "wc", "p1", "later", "k1", "k3", "l1", "old1", "repeat:sch:1764400000000", "nope")
    ],
    "getMetrics": lambda world: world.queue.run("getMetrics-2", "completed", 0, 10),
    "getRateLimitTtl": lambda world: world.queue.run("getRateLimitTtl-2", ""),
    "getState": lambda world: world.queue.state("nope"),
    "getJob": lambda world: world.queue.run("getJob-8", "w1"),
    "getCounts": lambda world: world.queue.counts(
        "waiting", "active", "delayed", "prioritized", "completed", "failed", "waiting-children"
    ),
    "getGauges": lambda world: world.queue.run("getGauges-10"),
    "isFinished": lambda world: world.queue.is_finished("w1", "old0", "old2", "a1"),
    "getRunning": lambda world: world.queue.run("getRunning-1", 0, 100),
}

REPLAYS = ("moveToActive, again", "moveToFinished, again")
"""They pass over a job whose keys are broken, as over any that is theirs no more."""

ERASES = ("obliterate",)
"""It takes away whatever stands under the queue's names."""

OTHERS = {"claimEffect", "finishEffect", "releaseEffect", "takeEvents", "keepEvents", "leaveEvents"}
"""They know one key, which is no queue's, or the event log alone: ``tests/api/test_event_groups.py``."""

READS = {
    "getSchedulers", "getState", "getJob", "getCounts", "getGauges", "isFinished", "getPage", "getRateLimitTtl",
    "getLogs", "getCountsPerPriority", "getMetrics", "getRunning", "explainJob",
}  # fmt: skip

MAKE: dict[str, tuple[str | int, ...]] = {
    "string": ("SET", "{}", "rubbish"),
    "list": ("RPUSH", "{}", "rubbish"),
    "set": ("SADD", "{}", "rubbish"),
    "hash": ("HSET", "{}", "rubbish", "1"),
    "zset": ("ZADD", "{}", 1, "rubbish"),
    "stream": ("XADD", "{}", "*", "rubbish", "1"),
}

ABSENT = {
    "emq:{q}:paused": "list",
    "emq:{q}:wc:logs": "list",
    "emq:{q}:stalled-check": "string",
    "emqx:{q}:suspects": "set",
    "emqx:{q}:workers": "hash",
    "emqx:{q}:limits": "stream",
    "emqx:{q}:cancels": "stream",
    "emqx:{q}:rules": "hash",
    "emqx:{q}:outbox": "stream",
    "emqx:{q}:forwarding": "string",
}
"""Keys that the first state has not, which a script may meet, and their types."""

OVERWRITTEN = (":lock", ":pc", ":logs", ":dn:K")
"""Keys that a transition replaces or deletes whatever stands there."""


def is_job(key: str) -> bool:
    suffix = key.rpartition("}:")[2]
    return suffix in WITHOUT_PART or suffix.startswith("repeat:sch:")


WITHOUT_PART = {
    *(f"a{n}" for n in range(1, 10)), *(f"{kind}{n}" for kind in ("r", "w", "old") for n in range(4)),
    "p1", "p2", "due", "due ranked", "later", "wc", "k1", "k2", "k3", "pp", *LOST,
}  # fmt: skip


def check_step(
    world: World, step: Step, what: str, *, broken: str, reads: bool = False, wrong_type: bool = False
) -> str:
    """Runs a step on the broken world and judges what it left. Says how it ended, for the counts."""
    before, places = world.snapshot(), world.places()
    try:
        answer = step(world)
    except redis.ResponseError as error:
        message = str(error)
        assert message.startswith(("BROKEN ", "STALE ")), f"{what}: {message}"
        assert broken in message, f"{what}: {message}"
        after = world.snapshot()
        changed = [key for key in {*before, *after} if before.get(key) != after.get(key)]
        assert changed == [], f"{what}: refused, but changed {changed}"
        return "refused"
    after = world.snapshot()
    if reads:
        assert after == before, what
        return "read"
    texts = (
        [code for code in answer if isinstance(code, str) and code.startswith(("BROKEN ", "STORED, but "))]
        if isinstance(answer, list)
        else []
    )
    assert all(broken in code for code in texts), f"{what}: {texts}"
    later = world.places()
    for job_id, count in places.items():
        if job_id in later and count == 1:
            assert later[job_id] == 1, f"{what}: {job_id} stood in 1 state, now in {later[job_id]}"
        assert later.get(job_id, 0) <= max(count, 1), f"{what}: {job_id} stands in {later.get(job_id)} states"
    for job_id, count in later.items():
        if job_id not in places:
            assert count == 1, f"{what}: the new job {job_id} stands in {count} states"
    if wrong_type and not broken.endswith(OVERWRITTEN) and not is_job(broken):
        assert broken in after, f"{what}: it deleted what it could not read"
    return "text" if texts else "done"


def begin(world: World, *, paused: bool = False) -> None:
    """Puts the world back; ``paused``: with a list of version 5 beside ``wait``."""
    world.restore()
    if paused:
        world.queue.command("HSET", "~meta", "paused", 1)
        world.queue.command("RPOPLPUSH", "~wait", "~paused")


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("name", STEPS)
def test_every_key_of_every_other_type(world: World, name: str, paused: bool) -> None:
    world.restore()
    ends: dict[str, int] = {}
    kinds = ["zset"] if paused else list(MAKE)
    for key in [*world.first, *ABSENT]:
        begin(world, paused=paused)
        proper = ABSENT.get(key) or text(world.client.execute_command("TYPE", key))
        for kind in kinds:
            if kind == proper:
                continue
            begin(world, paused=paused)
            world.client.execute_command("DEL", key)
            world.client.execute_command(*(key if one == "{}" else one for one in MAKE[kind]))
            what = f"{name} beside {key} as a {kind}"
            end = check_step(world, STEPS[name], what, broken=key, reads=name in READS, wrong_type=name not in ERASES)
            ends[end] = ends.get(end, 0) + 1
    assert ends.get("refused", 0) + ends.get("text", 0) > 0 or name in ("isFinished", *REPLAYS), ends


FULL = "18446744073709551615-18446744073709551615"
EVENTS = ("emq:{q}:events", "emq:{P}:events", "emqx:{q}:limits", "emqx:{q}:cancels")


@pytest.mark.parametrize("name", [one for one in STEPS if one not in ("publishEvent", *READS)])
def test_event_logs_that_take_no_more_hold_nothing_up(world: World, name: str) -> None:
    """A stream whose last id is the highest that there is: nothing tells it from others before an XADD fails."""

    def outcome(full: bool) -> tuple[object, dict[str, object]]:
        begin(world)
        for key in EVENTS:
            world.client.execute_command("XADD", key, FULL if full else "*", "event", "x")
        answer = STEPS[name](world)
        return answer, {key: content for key, content in dump(world.client).items() if key not in EVENTS}

    assert outcome(full=True) == outcome(full=False)


@pytest.mark.parametrize("name", [one for one in STEPS if one not in READS])
@pytest.mark.parametrize("content", ["rubbish", "1.5", "07", " 7", "", "99999999999999999999"])
def test_counters_that_cannot_be_counted_on(world: World, name: str, content: str) -> None:
    for key in ("emq:{q}:id", "emq:{q}:pc", "emq:{q}:limiter", "emq:{P}:pc", "emq:{P}:id"):
        begin(world)
        world.client.execute_command("SET", key, content)
        check_step(world, STEPS[name], f"{name} with {key} = {content!r}", broken=key)


FIELDS = [
    ("emq:{q}:meta", "concurrency"),
    ("emq:{q}:meta", "max"),
    ("emq:{q}:meta", "duration"),
    ("emq:{q}:meta", "opts.maxLenEvents"),
    ("emq:{P}:meta", "concurrency"),
    ("emq:{P}:meta", "opts.maxLenEvents"),
    ("emq:{q}:metrics:completed", "count"),
    ("emq:{q}:metrics:completed", "prevTS"),
    ("emq:{q}:metrics:failed", "prevCount"),
    ("emq:{q}:a3", "parent"),
    ("emq:{q}:a3", "parentKey"),
    ("emq:{q}:a1", "atm"),
    ("emq:{q}:a4", "priority"),
    ("emq:{q}:a5", "stc"),
    ("emq:{q}:a5", "priority"),
    ("emq:{q}:due", "priority"),
    ("emq:{q}:w0", "ats"),
    ("emq:{q}:w0", "opts"),
    ("emq:{q}:l1", "finishedOn"),
    ("emq:{q}:l2", "priority"),
    ("emq:{q}:l3", "delay"),
    ("emq:{q}:l3", "timestamp"),
    ("emq:{q}:l4", "finishedOn"),
    ("emq:{q}:dn:D", "opts"),
    ("emq:{q}:repeat:sch", "ic"),
    ("emq:{q}:repeat:sch", "every"),
    ("emq:{q}:repeat:sch", "offset"),
    ("emq:{P}:pp", "priority"),
    ("emq:{P}:pp", "delay"),
    (CALLS, "step"),
]


@pytest.mark.parametrize("name", [one for one in STEPS if one not in READS])
def test_fields_that_cannot_be_read(world: World, name: str) -> None:
    for key, field in FIELDS:
        for content in (
            "rubbish",
            "{",
            "nan",
            "inf",
            "-inf",
            "-1",
            "1.5",
            "",
            "1e300",
            '{"priority":NaN,"delay":"x"}',
            "5:6",
        ):
            begin(world)
            world.client.execute_command("HSET", key, field, content)
            check_step(world, STEPS[name], f"{name} with {key} {field} = {content!r}", broken=key)


def test_every_script_is_tried_here() -> None:
    tried = {name.partition(",")[0] for name in STEPS}
    ours = {name for name, found in scripts().items() if not found.origin[-1][0].startswith("scripts/doctor/")}
    assert tried | OTHERS == {name.rpartition("-")[0] for name in ours}  # the doctor's: test_doctor


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("name", STEPS)
def test_whole_it_is_done(world: World, name: str, paused: bool) -> None:
    begin(world, paused=paused)
    assert check_step(world, STEPS[name], name, broken="nothing", reads=name in READS) in ("done", "read")


AROUND = {
    "emq:{P}:pp": ("a3", "its parent emq:{P}:pp was not told: emq:{P}:pp must be a hash"),
    "emq:{P}:pp:dependencies": ("a3", "its parent emq:{P}:pp was not told: emq:{P}:pp:dependencies must be a set"),
    "emq:{P}:pp:processed": ("a3", "its parent emq:{P}:pp was not told: emq:{P}:pp:processed must be a hash"),
    "emq:{P}:pp:failed": ("a3", "its parent emq:{P}:pp was not told: emq:{P}:pp:failed must be a hash"),
    "emq:{P}:pp:unsuccessful": ("a3", "its parent emq:{P}:pp was not told: emq:{P}:pp:unsuccessful must be a sorted set"),
    "emq:{P}:marker": ("a3", "its parent emq:{P}:pp was not told: emq:{P}:marker must be a sorted set"),
    "emq:{P}:waiting-children": (
        "a3",
        "its parent emq:{P}:pp was not told: emq:{P}:waiting-children must be a sorted set",
    ),
    "emq:{q}:de:D": ("a2", "deduplication id D was not freed: emq:{q}:de:D must be a string"),
    "emq:{q}:dn:D": ("a2", "the next job of deduplication id D was not added: emq:{q}:dn:D must be a hash"),
    "emq:{q}:a1:dependencies": ("a1", "its children were not asked: emq:{q}:a1:dependencies must be a set"),
    "emq:{q}:a1:unsuccessful": ("a1", "its failed children were not asked: emq:{q}:a1:unsuccessful must be a sorted set"),
}  # fmt: skip
"""Keys around a job that ends, the job, and what is said of it."""


@pytest.mark.parametrize("ends", ["completed", "failed"])
@pytest.mark.parametrize("key", AROUND)
def test_a_job_ends_whole_whatever_stands_around_it(world: World, key: str, ends: str) -> None:
    job_id, said = AROUND[key]
    world.restore()
    queue = world.queue
    make = "stream" if key == "emq:{q}:de:D" else "string"
    world.client.execute_command("DEL", key)
    world.client.execute_command(*(key if one == "{}" else one for one in MAKE[make]))
    queue.new_events()
    before = world.snapshot()
    if ends == "completed":
        outcome, field, value = completed(job_id, world.token, "7"), "returnvalue", "7"
    else:
        outcome, field, value = failed(job_id, world.token, "bad"), "failedReason", "bad"
    [code] = queue.finish(outcome).codes
    if ends == "failed" and job_id == "a1":
        assert code == 0  # a job that has failed has no need to ask its children
    else:
        assert code == "STORED, but " + said
    after = world.snapshot()
    job = queue.get(job_id)
    assert queue.state(job_id) == ends
    assert world.places()[job_id] == 1
    assert (job[field], job["finishedOn"], job["atm"]) == (value, str(queue.clock), "1")
    assert queue.get(job_id + ":lock") is None
    assert [ends, "jobId", job_id, field, value, "prev", "active"] in queue.new_events()
    if job_id == "a3":
        assert {one: was for one, was in before.items() if "{P}" in one} == {
            one: now for one, now in after.items() if "{P}" in one
        }
    assert after[key] == before[key]
    assert queue.finish(outcome, number=queue.number, resent=True).codes == [code]
    assert queue.finish(outcome).codes == [-2]


def test_where_the_next_job_cannot_be_added_the_id_is_free_and_the_next_job_kept(world: World) -> None:
    world.restore()
    queue = world.queue
    queue.command("SET", "~id", "rubbish")
    [code] = queue.finish(completed("a2", world.token)).codes
    assert code == "STORED, but the next job of deduplication id D was not added: emq:{q}:id must be a whole number"
    assert queue.get("de:D") is None
    assert queue.get("dn:D")["jid"] == "n1"


def test_what_can_be_read_of_the_children_still_counts(world: World) -> None:
    world.restore()
    queue = world.queue
    queue.command("SADD", "~a1:dependencies", "emq:{q}:w0")
    queue.command("SET", "~a1:unsuccessful", "rubbish")
    queue.command("SET", "~a3:dependencies", "rubbish")
    queue.command("ZADD", "~a3:unsuccessful", T, "emq:{q}:w1")
    assert queue.finish(completed("a1", world.token), completed("a3", world.token)).codes == [-4, -9]
    assert queue.state("a1") == queue.state("a3") == "active"
    assert queue.get("a1:lock") == queue.get("a3:lock") == world.token


def test_a_broken_parent_spoils_no_other_job_of_the_batch(world: World) -> None:
    world.restore()
    world.client.execute_command("DEL", "emq:{P}:marker")
    world.client.execute_command("SET", "emq:{P}:marker", "x")
    codes = finish_all(world)
    assert codes[2].startswith("STORED, but its parent emq:{P}:pp was not told: emq:{P}:marker must be a sorted set")
    assert codes[:2] + codes[3:5] + codes[6:] == [0] * 6
    assert world.queue.get("a3:lock") is None
    assert world.queue.state("a3") == "failed"


def test_what_stands_in_place_of_a_waiting_job_is_put_into_failed(world: World) -> None:
    world.restore()
    world.queue.command("SET", "~w0", "no job")
    taken = world.queue.fetch(10)
    assert "w0" in taken.dropped
    assert "w0" not in taken.ids
    assert world.queue.state("w0") == "failed"
    assert world.queue.is_finished("w0") == [[2, "the key of this job is not a hash"]]


def test_an_id_without_a_job_is_dropped(world: World) -> None:
    world.restore()
    world.queue.command("DEL", "~w0", "~p1", "~due")
    taken = world.queue.fetch(20)
    assert sorted(taken.dropped) == ["p1", "w0"]
    assert not {"w0", "p1", "due"} & {*taken.ids, *world.queue.get("active")}
    assert [world.queue.state(job_id) for job_id in ("w0", "p1", "due")] == ["unknown"] * 3
