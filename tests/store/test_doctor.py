"""Every damage that the doctor names is done by hand, found, repaired, and nothing besides is changed."""

from __future__ import annotations

import re

import pytest
import redis

from echomq import BrokenKey
from echomq.doctor import KINDS, Doctor, Finding, Report
from tests.store.doctor_damage import CASES, Case, healthy
from tests.store.scripts import Dump, Queue
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


def test_every_kind_that_can_be_repaired_has_a_damage_here() -> None:
    here = {case.kind for case in CASES} | {"own-key-without-expiry", "leftover-own-key"}
    assert here == {name for name, kind in KINDS.items() if kind.fixable}
