"""Every damage that the doctor names is done by hand, found, repaired, and nothing besides is changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis

from echomq import BrokenKey, InvalidOption, JobLocked, ServerError
from echomq._store import keys
from echomq._store.examining import growth
from echomq.doctor import KINDS, Doctor, Finding, Report
from tests.api.test_doctor import OF_SERVERS
from tests.store.doctor_damage import CASES, ONLY_TOLD, Case, healthy
from tests.store.scripts import Dump, Queue
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server


@pytest.fixture
def queue(client: redis.Redis) -> Queue:
    return healthy(client)


@pytest.fixture
def doctor(server: Server) -> Doctor:
    return Doctor(server.url)


def of_queues(report: Report) -> list[Finding]:
    assert report.not_looked_at == []
    return [found for found in report.findings if found.queue]


def kinds(report: Report) -> list[tuple[str, str]]:
    return [(found.kind, found.subject) for found in of_queues(report)]


def changed(before: Dump, after: Dump) -> set[str]:
    """The names of the keys that are not the same."""
    names = {key.removesuffix(" expires") for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return {name.removeprefix("emq:{q}:") for name in names}


def covered(name: str, patterns: frozenset[str]) -> bool:
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) for pattern in patterns)


Saved = dict[bytes, tuple[bytes, int]]


def save(client: redis.Redis) -> Saved:
    keys = client.execute_command("KEYS", "*")
    return {key: (client.execute_command("DUMP", key), client.execute_command("PTTL", key)) for key in keys}


def restore(client: redis.Redis, saved: Saved) -> None:
    client.execute_command("FLUSHALL")
    for key, (content, lasts) in saved.items():
        client.execute_command("RESTORE", key, max(lasts, 0), content)


async def test_a_healthy_queue_has_no_finding(queue: Queue, doctor: Doctor) -> None:
    before = queue.dump()
    report = await doctor.examine()
    assert kinds(report) == []
    assert queue.dump() == before
    [facts] = report.queues
    assert facts.queue == "q"
    assert facts.counts["completed"] == 2
    assert facts.memory is not None
    assert facts.memory > 1000


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.damage.__name__}")
async def test_a_damage_is_found_and_repaired_and_nothing_else_is_changed(
    case: Case, queue: Queue, doctor: Doctor
) -> None:
    case.damage(queue)
    damaged = queue.dump()
    report = await doctor.examine("q")
    assert kinds(report) == [(case.kind, case.subject)]
    assert queue.dump() == damaged, "an examination changes nothing"
    [found] = of_queues(report)
    assert found.fixable
    assert KINDS[found.kind].severity == found.severity
    assert await doctor.fix(found) > 0
    assert kinds(await doctor.examine("q")) == []
    others = {name for name in changed(damaged, queue.dump()) if not covered(name, case.touches)}
    assert others == set()
    assert await doctor.fix(found) == 0, "a second time there is nothing to repair"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.damage.__name__}")
async def test_a_damage_that_is_gone_by_then_is_left_alone(case: Case, queue: Queue, doctor: Doctor) -> None:
    whole = save(queue.client)
    case.damage(queue)
    [found] = of_queues(await doctor.examine("q"))
    restore(queue.client, whole)
    before = queue.dump()
    assert await doctor.fix(found) == 0
    assert queue.dump() == before


WRONG = (
    "wait",
    "active",
    "completed",
    "failed",
    "delayed",
    "prioritized",
    "waiting-children",
    "marker",
    "events",
    "meta",
    "paused",
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.damage.__name__}")
async def test_beside_a_key_that_cannot_be_read_a_repair_is_whole_or_none(
    case: Case, queue: Queue, doctor: Doctor
) -> None:
    case.damage(queue)
    [found] = of_queues(await doctor.examine("q"))
    damaged = save(queue.client)
    for name in WRONG:
        restore(queue.client, damaged)
        queue.command("DEL", f"~{name}")
        queue.command("SET", f"~{name}", "rubbish")
        before = queue.dump()
        try:
            await doctor.fix(found)
        except BrokenKey:
            assert queue.dump() == before
        else:
            assert queue.get(name) == "rubbish"
            report = await doctor.examine("q")
            wrong = [one for one in report.findings if one.kind == "key-of-wrong-type"]
            assert [one.subject for one in wrong] == [f"emq:{{q}}:{name}"]


async def test_a_key_of_ours_that_lost_its_expiry_gets_one(queue: Queue, doctor: Doctor) -> None:
    calls = queue.keys.resolve("calls")
    queue.command("PERSIST", calls)
    before = queue.dump()
    [found] = of_queues(await doctor.examine("q"))
    assert (found.kind, found.subject) == ("own-key-without-expiry", "calls")
    assert await doctor.fix(found) == 1
    assert queue.command("TTL", calls) > 3000
    assert queue.dump() == before
    assert kinds(await doctor.examine("q")) == []
    assert await doctor.fix(found) == 0


@pytest.mark.parametrize("names", [(), ("gone",)])
async def test_what_a_queue_that_is_no_more_has_left_is_removed(
    names: tuple[str, ...], queue: Queue, doctor: Doctor
) -> None:
    queue.command("HSET", "emqx:{gone}:paused-schedulers", "daily", "{}")
    queue.command("SET", "emqx:{gone}:v5", "1", "EX", "100")  # goes by itself
    queue.command("SET", "emqx:{gone}:notes", "of another program")
    before = queue.dump()
    [found] = of_queues(await doctor.examine(*names))
    assert (found.kind, found.queue, found.subject) == ("leftover-own-key", "gone", "paused-schedulers")
    assert await doctor.fix(found) == 1
    assert changed(before, queue.dump()) == {"emqx:{gone}:paused-schedulers"}
    assert kinds(await doctor.examine()) == []


async def test_outcomes_that_are_still_to_be_forwarded_are_never_removed(queue: Queue, doctor: Doctor) -> None:
    queue.command("XADD", "emqx:{gone}:outbox", "1-1", "id", "1")
    queue.command("XADD", "emqx:{q}:outbox", "*", "id", "1")
    queue.command("HSET", "emqx:{q}:rules", "completed", "1")
    before = queue.dump()
    [found] = of_queues(await doctor.examine())
    assert (found.kind, found.queue, found.fixable) == ("outcomes-not-forwarded", "gone", False)
    assert queue.dump() == before
    for kind in ("own-key-without-expiry", "leftover-own-key"):  # as of an older doctor
        for name in ("gone", "q"):
            forged = Finding(kind, "warning", name, "outbox", "", "", True)
            assert await doctor.fix(forged) == 0
    assert queue.command("TTL", "emqx:{gone}:outbox") == -1


async def test_a_queue_that_has_come_back_keeps_its_paused_schedules(queue: Queue, doctor: Doctor) -> None:
    queue.command("HSET", "emqx:{gone}:paused-schedulers", "daily", "{}")
    [found] = of_queues(await doctor.examine("gone"))
    queue.command("SET", "emq:{gone}:id", "1")
    assert await doctor.fix(found) == 0
    assert queue.command("EXISTS", "emqx:{gone}:paused-schedulers") == 1


async def test_keys_of_other_programs_are_left_alone(queue: Queue, doctor: Doctor) -> None:
    for key in (
        "emq",
        "emq:",
        "emq:{q}",
        "emq:plain",
        "emq:plain:17",
        "emqx",
        "emqx:",
        "emqx:{q}:notes",
        "emqa:{q}:wait",
    ):
        queue.command("SET", key, "1")
    for key in ("emq:other:1", "emq:{notes}:17", "emq:{notes}:17:logs"):
        queue.command("RPUSH", key, "1")
    queue.command("SET", "emqx::effect:mail", "1")
    assert kinds(await doctor.examine()) == []


@pytest.mark.parametrize("case", ONLY_TOLD, ids=lambda case: case.kind)
async def test_what_only_people_can_judge_is_told_and_left_and_gone_once_they_have_seen_to_it(
    case: Case, queue: Queue, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_KEPT", 1000)
    whole = save(queue.client)
    case.damage(queue)
    [found] = of_queues(await doctor.examine("q", oldest_waiting=600))
    assert (found.kind, found.subject, found.fixable) == (case.kind, case.subject, False)
    before = queue.dump()
    with pytest.raises(InvalidOption, match=case.kind):
        await doctor.fix(found)
    assert queue.dump() == before
    restore(queue.client, whole)
    assert kinds(await doctor.examine("q", oldest_waiting=600)) == []


async def test_many_jobs_that_a_rule_keeps_are_wanted(
    queue: Queue, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_KEPT", 1)
    rules = queue.keys.resolve("rules")
    for rule in ("1:-1;;", "1:", "rubbish", "1:-1"):
        queue.command("HSET", rules, "completed", rule, "failed", rule)
        assert [kind for kind, _ in kinds(await doctor.examine("q"))] == ["no-retention"], rule
    for rule in ("1:500000;;", "1:-1;86400;"):
        queue.command("HSET", rules, "completed", rule, "failed", rule)
        assert kinds(await doctor.examine("q")) == [], rule


NEEDS_ROOM = frozenset({"job-in-no-state", "schedule-without-slot", "schedule-without-next-run"})
"""Kinds whose repair adds something; the others remove, or move what is there."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.damage.__name__}")
async def test_with_a_full_memory_a_repair_is_whole_or_none(
    case: Case, queue: Queue, doctor: Doctor, server: Server
) -> None:
    case.damage(queue)
    [found] = of_queues(await doctor.examine("q"))
    damaged = queue.dump()
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        if case.kind in NEEDS_ROOM:
            with pytest.raises(ServerError) as refused:
                await doctor.fix(found)
            assert refused.value.code == "OOM"
        else:
            assert await doctor.fix(found) > 0
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")
    if case.kind in NEEDS_ROOM:
        assert queue.dump() == damaged
        assert await doctor.fix(found) > 0
    assert kinds(await doctor.examine("q")) == []


async def test_a_counter_that_counts_no_more_is_told(client: redis.Redis, doctor: Doctor) -> None:
    queue = Queue(client, prefix="emq")
    queue.add(job_id="w0")
    for name, text in (("id", "7.5"), ("pc", "many")):
        queue.command("SET", f"~{name}", text)
    assert kinds(await doctor.examine()) == [
        ("key-of-wrong-type", queue.base + "id"),
        ("key-of-wrong-type", queue.base + "pc"),
    ]


@pytest.mark.parametrize("score", ["-inf", "inf", "1e300", "-1e300"])
async def test_a_time_that_is_none_keeps_nothing_from_being_looked_at(score: str, queue: Queue, doctor: Doctor) -> None:
    queue.command("ZADD", "~delayed", score, "w2")
    queue.command("LREM", "~wait", "0", "w2")
    found = of_queues(await doctor.examine())
    assert {one.kind for one in found} <= {"overdue-jobs"}
    for one in found:
        await doctor.fix(one)
    assert kinds(await doctor.examine()) == []


async def test_jobs_that_wait_too_long_are_told_where_a_bound_is_given(queue: Queue, doctor: Doctor) -> None:
    queue.command("HSET", "~w0", "timestamp", int(queue.command("TIME")[0]) * 1000 - 3_600_000)
    assert kinds(await doctor.examine("q")) == []
    report = await doctor.examine("q", oldest_waiting=600)
    assert kinds(report) == [("old-waiting-job", "w0")]
    assert report.queues[0].oldest_waiting == "w0"
    assert 3590 < (report.queues[0].oldest_waiting_age or 0) < 3700


async def test_a_job_that_was_delayed_has_not_waited_since_it_was_added(queue: Queue, doctor: Doctor) -> None:
    now = int(queue.command("TIME")[0]) * 1000
    queue.command("HSET", "~w0", "timestamp", now - 3_600_000, "opts", '{"delay":3590000}')
    assert kinds(await doctor.examine("q", oldest_waiting=600)) == []
    queue.command("HSET", "~w0", "opts", "[" * 100_000)
    assert kinds(await doctor.examine("q", oldest_waiting=600)) == [("old-waiting-job", "w0")]


async def test_dead_letters_are_looked_at_with_their_queue(queue: Queue, doctor: Doctor) -> None:
    dead = Queue(queue.client, prefix="emq")
    dead.keys = queue.keys.dead_letters
    dead.base, dead.clock = dead.keys.base, None
    dead.add(job_id="letter")
    dead.command("LPUSH", "~wait", "nobody")
    before = queue.dump()
    [found] = of_queues(await doctor.examine("q"))
    assert (found.kind, found.queue, found.subject, found.dead_letters) == ("ghost-id", "q", "nobody", True)
    assert await doctor.fix(found) == 1
    assert changed(before, queue.dump()) == {"emq:{q}-dead:wait"}
    assert kinds(await doctor.examine()) == []


# -- what has moved by then


async def test_an_id_whose_job_was_added_by_then_stays_in_line(queue: Queue, doctor: Doctor) -> None:
    queue.command("LPUSH", "~wait", "nobody")
    [found] = of_queues(await doctor.examine("q"))
    queue.command("LREM", "~wait", "0", "nobody")
    queue.add(job_id="nobody")
    before = queue.dump()
    assert await doctor.fix(found) == 0
    assert queue.dump() == before


async def test_a_job_that_is_being_run_again_by_then_is_left_to_its_worker(queue: Queue, doctor: Doctor) -> None:
    queue.command("RPUSH", "~active", "done")
    [found] = of_queues(await doctor.examine("q"))
    queue.command("SET", "~done:lock", "token", "PX", "30000")
    before = queue.dump()
    with pytest.raises(JobLocked):
        await doctor.fix(found)
    assert queue.dump() == before


@pytest.mark.parametrize("flag", [1, "true", 0, None, False])
async def test_a_child_that_failed_tells_its_parent_by_a_flag_that_the_finish_would_heed(
    queue: Queue, doctor: Doctor, flag: object
) -> None:
    queue.command("HSET", "~broken", "parent", json.dumps({"id": "q", "queueKey": "emq:{q}", "idof": flag}))
    assert kinds(await doctor.examine("q")) == []


async def test_a_run_whose_lock_was_renewed_by_then_goes_on(queue: Queue, doctor: Doctor) -> None:
    queue.command("DEL", "~runs:lock")
    queue.command("HSET", "~runs", "processedOn", "1")
    [found] = of_queues(await doctor.examine("q"))
    assert found.kind == "run-without-lock"
    queue.command("SET", "~runs:lock", "token", "PX", "30000")
    before = queue.dump()
    assert await doctor.fix(found) == 0
    assert queue.dump() == before


async def test_a_deduplication_id_that_another_holds_by_then_stays(queue: Queue, doctor: Doctor) -> None:
    queue.command("SET", "~de:E", "vanished")
    [found] = of_queues(await doctor.examine("q"))
    queue.command("DEL", "~de:E")
    queue.add(job_id="new", de={"id": "E"})
    before = queue.dump()
    assert await doctor.fix(found) == 0
    assert queue.dump() == before


async def test_a_lost_job_that_was_added_anew_by_then_is_not_doubled(queue: Queue, doctor: Doctor) -> None:
    queue.command("LREM", "~wait", "0", "w1")
    [found] = of_queues(await doctor.examine("q"))
    queue.command("DEL", "~w1")
    queue.add(job_id="w1")
    before = queue.dump()
    assert await doctor.fix(found) == 0
    assert queue.dump() == before


async def test_a_schedule_that_was_removed_by_then_does_not_come_back(queue: Queue, doctor: Doctor) -> None:
    queue.command("ZREM", "~repeat", "hourly")
    [found] = of_queues(await doctor.examine("q"))
    queue.command("DEL", "~repeat:hourly")
    before = queue.dump()
    assert await doctor.fix(found) == 0
    assert queue.dump() == before


async def test_a_schedule_that_was_put_away_by_a_doctor_who_died_goes_on(queue: Queue, doctor: Doctor) -> None:
    queue.command("ZREM", "~repeat", "hourly")
    [found] = of_queues(await doctor.examine("q"))
    queue.run("shelveSchedule-15", "hourly", "2")
    assert queue.get("repeat:hourly") is None
    [again] = of_queues(await doctor.examine("q"))
    assert (again.kind, again.subject) == ("schedule-without-slot", "hourly")
    assert await doctor.fix(found) == 1
    assert queue.get("repeat:hourly")["every"] == "3600000"
    assert kinds(await doctor.examine("q")) == []
    assert queue.command("EXISTS", queue.keys.resolve("paused_schedulers")) == 0


@pytest.mark.parametrize("end", [("limit", "1"), ("endDate", "1")])
async def test_a_schedule_that_has_come_to_its_end_is_no_finding(
    end: tuple[str, str], queue: Queue, doctor: Doctor
) -> None:
    [run] = [key for key in queue.dump() if key.startswith("emq:{q}:repeat:hourly:")]
    queue.command("HSET", "~repeat:hourly", *end)
    queue.command("ZREM", "~delayed", run.removeprefix(queue.base))
    queue.command("DEL", run)
    assert kinds(await doctor.examine("q")) == []


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.damage.__name__}")
async def test_calls_of_a_repair_that_are_lost_change_nothing_else(
    case: Case, loss: Loss, queue: Queue, doctor: Doctor, server: Server
) -> None:
    case.damage(queue)
    [found] = of_queues(await doctor.examine("q"))
    damaged = queue.dump()
    async with Proxy(server) as proxy:
        proxy.lose(loss, b"EVALSHA", times=2)
        await Doctor(proxy.url).fix(found)
        assert proxy.lost == 2
    others = {name for name in changed(damaged, queue.dump()) if not covered(name, case.touches)}
    assert others == set()
    assert kinds(await doctor.examine("q")) == []


async def test_a_lost_reply_of_a_schedule_that_is_put_away(queue: Queue, server: Server) -> None:
    queue.command("ZREM", "~repeat", "hourly")
    async with Proxy(server) as proxy:
        proxied = Doctor(proxy.url)
        [found] = of_queues(await proxied.examine("q"))
        proxy.lose("reply", b"hourly\r\n$1\r\n2\r\n")
        assert await proxied.fix(found) == 1
        assert proxy.lost == 1
        assert kinds(await proxied.examine("q")) == []


async def test_a_lost_reply_of_a_repair_repairs_once(queue: Queue, server: Server) -> None:
    async with Proxy(server) as proxy:
        proxied = Doctor(proxy.url)
        queue.command("HSET", "~dn:E", "name", "n", "data", "{}", "opts", '{"de":{"id":"E"}}', "jid", "77")
        [found] = of_queues(await proxied.examine("q"))
        proxy.lose("reply", needle("freeDeduplication-11"))
        await proxied.fix(found)
        assert queue.command("LRANGE", "~wait", 0, -1).count("77") == 1
        assert kinds(await proxied.examine("q")) == []


def test_every_kind_has_a_damage_that_is_done_found_and_undone() -> None:
    repaired = {case.kind for case in CASES} | {"own-key-without-expiry", "leftover-own-key"}
    assert repaired == {name for name, kind in KINDS.items() if kind.fixable}
    assert {case.kind for case in ONLY_TOLD} | set(OF_SERVERS) == set(KINDS) - repaired


def test_every_kind_stands_in_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text("utf-8")
    assert [name for name in KINDS if f"`{name}`" not in page] == []


def test_every_key_of_ours_is_known_to_expire_or_to_last() -> None:
    assert set(keys._OURS.values()) - keys.EXPIRING == {"paused-schedulers", "rules", "outbox"}


def test_every_key_of_ours_stands_in_the_architecture() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
    assert [key for key in keys._OURS.values() if f"| `{{prefix}}x:{{queue}}:{key}" not in page] == []
