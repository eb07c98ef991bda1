"""A queue with something of everything in it, and the damages that a hand does to it: one for each kind that a doctor repairs.

Each damage changes the keys of a healthy queue, and names what the finding is about and which keys its repair may change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import redis

from tests.store.scripts import Queue, completed, failed

HOUR = 3_600_000
Damage = Callable[[Queue], None]


def healthy(client: redis.Redis) -> Queue:
    """Jobs in each state, a family, deduplicated jobs, a schedule, a log; by the server's own time."""
    queue = Queue(client, prefix="emq")
    queue.clock = None
    command = queue.command
    command("HSET", "~meta", "opts.maxLenEvents", "1000")
    for job_id in ("done", "broken", "again"):
        queue.add(job_id=job_id)
    taken = queue.fetch(3)
    for outcome in (
        completed("done", queue.token),
        failed("broken", queue.token, "no"),
        completed("again", queue.token),
    ):
        queue.finish(outcome)
    assert len(taken.ids) == 3
    queue.add(job_id="runs")
    queue.fetch(1)
    for number in range(3):
        queue.add(job_id=f"w{number}")
    queue.add(job_id="later", delay=HOUR)
    queue.add(job_id="first", priority=5)
    queue.add(job_id="held", de={"id": "D"})
    queue.add(job_id="logged", opts={"attempts": 0, "kl": 3})
    command("RPUSH", "~logged:logs", "a", "b", "c")
    # A family: the parent waits for one child that is pending and one that has failed without telling it, as it may.
    now = _now(queue)
    for parent in ("p", "q"):
        command(
            "HSET",
            f"~{parent}",
            "name",
            "n",
            "data",
            "{}",
            "opts",
            "{}",
            "timestamp",
            now,
            "delay",
            "0",
            "priority",
            "0",
        )
        command("ZADD", "~waiting-children", now, parent)
    queue.add(job_id="c1", priority=9)
    said = json.dumps({"id": "p", "queueKey": queue.base[:-1]})
    for child, parent in (("c1", "p"), ("broken", "q")):
        command("HSET", f"~{child}", "parentKey", queue.base + parent, "parent", said.replace('"p"', f'"{parent}"'))
        command("SADD", f"~{parent}:dependencies", queue.base + child)
    # A schedule, as its upsert leaves it.
    slot = (now // HOUR + 1) * HOUR
    command("HSET", "~repeat:hourly", "name", "n", "every", str(HOUR), "offset", "0", "ic", "1")
    command("ZADD", "~repeat", slot, "hourly")
    queue.add(job_id=f"repeat:hourly:{slot}", delay=slot - now)
    command("HSET", f"~repeat:hourly:{slot}", "rjk", "hourly")
    return queue


def _now(queue: Queue) -> int:
    seconds, micros = queue.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@dataclass(frozen=True)
class Case:
    """A damage: its kind, what it is about, how it is done, and the keys (without the base) that its repair may change."""

    kind: str
    subject: str
    damage: Damage
    touches: frozenset[str]


def case(kind: str, subject: str, *touches: str) -> Callable[[Damage], Damage]:
    def keep(damage: Damage) -> Damage:
        CASES.append(Case(kind, subject, damage, frozenset(touches)))
        return damage

    return keep


def told(kind: str, subject: str) -> Callable[[Damage], Damage]:
    def keep(damage: Damage) -> Damage:
        ONLY_TOLD.append(Case(kind, subject, damage, frozenset()))
        return damage

    return keep


CASES: list[Case] = []
"""Those that a doctor repairs."""
ONLY_TOLD: list[Case] = []
"""Those that only people can judge."""


@case("job-in-no-state", "w1", "w1", "wait", "marker", "events")
def out_of_the_list(queue: Queue) -> None:
    queue.command("LREM", "~wait", "0", "w1")


@case("job-in-no-state", "done", "done", "completed", "events")
def out_of_the_set(queue: Queue) -> None:
    queue.command("ZREM", "~completed", "done")


@case("job-in-two-states", "done", "wait", "marker")
def ended_and_waiting(queue: Queue) -> None:
    queue.command("LPUSH", "~wait", "done")


@case("job-in-two-states", "w1", "completed")
def completed_without_an_end(queue: Queue) -> None:
    queue.command("ZADD", "~completed", 1, "w1")


@case("job-in-two-states", "done", "failed")
def completed_and_failed(queue: Queue) -> None:
    queue.command("ZADD", "~failed", 1, "done")


@case("job-in-two-states", "w2", "wait")
def delayed_and_waiting(queue: Queue) -> None:
    queue.command("ZADD", "~delayed", _now(queue) * 4096 + HOUR * 4096, "w2")


@case("job-in-two-states", "runs", "wait", "marker")
def running_and_waiting(queue: Queue) -> None:
    queue.command("RPUSH", "~wait", "runs")


@case("job-in-two-states", "done", "active", "marker")
def ended_and_active(queue: Queue) -> None:
    queue.command("LPUSH", "~active", "done")


@case("job-in-two-states", "p", "delayed")
def parent_that_is_delayed_too(queue: Queue) -> None:
    queue.command("ZADD", "~delayed", _now(queue) * 4096 + HOUR * 4096, "p")


@case("id-twice-in-list", "w0", "wait")
def twice(queue: Queue) -> None:
    queue.command("LPUSH", "~wait", "w0")


@case("ghost-id", "nobody", "wait")
def ghost_in_line(queue: Queue) -> None:
    queue.command("LPUSH", "~wait", "nobody")


@case("ghost-id", "nobody", "completed")
def ghost_that_ended(queue: Queue) -> None:
    queue.command("ZADD", "~completed", 1, "nobody")


@case("ghost-id", "nobody", "active", "nobody:lock")
def ghost_that_runs(queue: Queue) -> None:
    queue.command("LPUSH", "~active", "nobody")
    queue.command("SET", "~nobody:lock", "token")


@case("unreadable-options", "w1", "w1")
def options_that_are_no_json(queue: Queue) -> None:
    queue.command("HSET", "~w1", "opts", "{rubbish")


@case("orphaned-part", "gone", "gone:dependencies")
def children_of_nobody(queue: Queue) -> None:
    queue.command("SADD", "~gone:dependencies", "emq:{q}:c9")


@case("orphaned-part", "gone", "gone:logs")
def log_of_nobody(queue: Queue) -> None:
    queue.command("RPUSH", "~gone:logs", "a line")


@case("stuck-parent", "p", "p", "p:dependencies", "wait", "waiting-children", "marker", "events")
def parent_of_none(queue: Queue) -> None:
    queue.command("DEL", "~p:dependencies")


@case("missing-child", "p", "p", "p:dependencies", "events")
def child_that_is_gone(queue: Queue) -> None:
    queue.command("SADD", "~p:dependencies", "emq:{q}:vanished")


@case("ended-child", "p", "p", "p:dependencies", "p:processed", "wait", "waiting-children", "marker", "events")
def child_that_did_not_tell(queue: Queue) -> None:
    queue.command("SREM", "~p:dependencies", "emq:{q}:c1")
    queue.command("SADD", "~p:dependencies", "emq:{q}:done")


@case("ended-child", "q", "q", "q:dependencies", "q:failed", "wait", "waiting-children", "marker", "events")
def child_that_failed_and_did_not_tell(queue: Queue) -> None:
    queue.command("HSET", "~broken", "parent", json.dumps({"id": "q", "queueKey": "emq:{q}", "idof": True}))


@case("dead-deduplication-id", "E", "de:E", "events")
def id_of_an_ended_job(queue: Queue) -> None:
    queue.command("SET", "~de:E", "done")


@case("dead-deduplication-id", "E", "de:E", "events")
def id_of_nobody(queue: Queue) -> None:
    queue.command("SET", "~de:E", "vanished")


@case("orphaned-next-job", "E", "dn:E", "de:E", "77", "wait", "id", "marker", "events")
def kept_for_nobody(queue: Queue) -> None:
    opts = json.dumps({"de": {"id": "E", "keepLastIfActive": True}})
    queue.command("HSET", "~dn:E", "name", "n", "data", "{}", "opts", opts, "jid", "77")


@case("lock-without-run", "w1", "w1:lock")
def locked_in_line(queue: Queue) -> None:
    queue.command("SET", "~w1:lock", "token")


@case("run-without-lock", "runs", "runs", "active", "wait", "marker", "events")
def abandoned(queue: Queue) -> None:
    queue.command("DEL", "~runs:lock")
    queue.command("HSET", "~runs", "processedOn", _now(queue) - HOUR)


@case("jobs-in-paused-list", "paused", "wait", "paused", "marker")
def left_in_the_paused_list(queue: Queue) -> None:
    queue.command("LMOVE", "~wait", "~paused", "RIGHT", "LEFT")


@case("two-waiting-lists", "paused", "wait", "paused")
def both_lists(queue: Queue) -> None:
    queue.command("HSET", "~meta", "paused", "1")
    queue.command("LMOVE", "~wait", "~paused", "LEFT", "RIGHT")


@case("missing-marker", "marker", "marker")
def no_marker(queue: Queue) -> None:
    queue.command("DEL", "~marker")


@case("overdue-jobs", "delayed", "later", "delayed", "wait", "marker", "events")
def long_due(queue: Queue) -> None:
    queue.command("ZADD", "~delayed", (_now(queue) - HOUR) * 4096, "later")


@case("slot-without-schedule", "gone", "repeat")
def slot_of_nothing(queue: Queue) -> None:
    queue.command("ZADD", "~repeat", _now(queue) + HOUR, "gone")


@case("events-too-long", "events", "events")
def too_many_events(queue: Queue) -> None:
    queue.client.execute_command(
        "EVAL", "for n = 1, 8000 do redis.call('XADD', KEYS[1], '*', 'event', 'drained') end", 1, queue.base + "events"
    )


@case("events-too-large", "events", "events")
def too_large_events(queue: Queue) -> None:
    queue.command("HSET", "~meta", "maxEventBytes", "50000")
    for _ in range(500):
        queue.command("XADD", "~events", "*", "event", "noticed", "text", "x" * 1000)


@case("silent-lanes", "calls", "emqx:{q}:calls")
def many_producers_that_are_gone(queue: Queue) -> None:
    calls, used = queue.keys.resolve("calls"), _now(queue) - 2 * HOUR
    queue.command("HSET", calls, *(part for at in range(12_000) for part in (f"gone{at}", f"7:{used}:\x90")))


@case("logs-too-long", "logged", "logged:logs")
def too_many_lines(queue: Queue) -> None:
    queue.command("RPUSH", "~logged:logs", *map(str, range(2500)))


def _scheduled(queue: Queue) -> str:
    [found] = [key for key in queue.dump() if key.startswith(f"{queue.base}repeat:hourly:")]
    return str(found)


SCHEDULE = ("repeat:hourly", "repeat", "delayed", "id", "marker", "events", "repeat:hourly:*")


@case("schedule-without-slot", "hourly", *SCHEDULE)
def definition_alone(queue: Queue) -> None:
    queue.command("ZREM", "~repeat", "hourly")


@case("schedule-without-next-run", "hourly", *SCHEDULE)
def next_run_gone(queue: Queue) -> None:
    run = _scheduled(queue)
    queue.command("ZREM", "~delayed", run.removeprefix(queue.base))
    queue.command("DEL", run)


@case("schedule-without-next-run", "hourly", *SCHEDULE)
def next_run_ended(queue: Queue) -> None:
    run = _scheduled(queue).removeprefix(queue.base)
    queue.command("ZREM", "~delayed", run)
    queue.command("ZADD", "~completed", _now(queue), run)
    queue.command("HSET", f"~{run}", "finishedOn", _now(queue), "returnvalue", "null")


@told("partial-job", "ruin")
def half_a_job(queue: Queue) -> None:
    queue.command("HSET", "~ruin", "processedOn", "1", "ats", "1")


@told("job-of-wrong-type", "w1")
def text_in_place_of_a_job(queue: Queue) -> None:
    queue.command("SET", "~w1", "rubbish")


@told("key-of-wrong-type", "emq:{q}:stalled")
def text_in_place_of_a_set(queue: Queue) -> None:
    queue.command("SET", "~stalled", "rubbish")


@told("old-waiting-job", "w0")
def waits_for_an_hour(queue: Queue) -> None:
    queue.command("HSET", "~w0", "timestamp", _now(queue) - HOUR)


@told("no-retention", "completed")
def many_that_nobody_removes(queue: Queue) -> None:
    """A thousand: the test makes that many."""
    jobs = """
      for n = 1, 1000 do
        redis.call('HSET', ARGV[1] .. 'many' .. n, 'name', 'n', 'data', '{}', 'opts', '{}', 'timestamp', '1', 'finishedOn', '1')
        redis.call('ZADD', ARGV[1] .. 'completed', '1', 'many' .. n)
      end"""
    queue.client.execute_command("EVAL", jobs, 0, queue.base)


@told("outcomes-not-forwarded", "outbox")
def outcomes_that_nobody_forwards(queue: Queue) -> None:
    queue.command("XADD", queue.keys.resolve("outbox"), "1-1", "id", "1")
