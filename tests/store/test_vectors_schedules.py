"""Schedules key for key: vectors 53 to 60 of protocol.md, beside Node where it does the same; then what we do better."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from echomq import Backoff, BrokenKey, Cron, Every, InvalidOption, JobSpec, StateError
from tests.store.node_peer import NodePeer, Version
from tests.store.schedules import Schedules, at, ms
from tests.store.scripts import Dump, Queue, T, completed
from tests.store.test_vectors_side_by_side import ByNode, ByScripts, comparable, differences
from tests.support.server import Server

pytestmark = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)

MINUTE, DAY = 60_000, 86_400_000


@pytest.fixture
def schedules(queue: Queue) -> Schedules:
    return Schedules(queue)


@pytest.fixture(scope="module", params=["bullmq6", "bullmq5"])
def peer(request: pytest.FixtureRequest) -> Iterator[NodePeer]:
    version: Version = request.param
    with NodePeer(version) as node:
        yield node


# -- side by side


class NodeSchedules(ByNode):
    """Node carries it out."""

    def upsert(self, id: str, rhythm: Every | Cron, job: JobSpec, **options: Any) -> str:
        repeat: dict[str, Any] = {}
        if isinstance(rhythm, Every):
            assert isinstance(rhythm.interval, float)
            repeat["every"] = round(rhythm.interval * 1000)
            if rhythm.offset is not None:
                assert isinstance(rhythm.offset, float)
                repeat["offset"] = round(rhythm.offset * 1000)
        else:
            repeat |= {"pattern": rhythm.pattern, "tz": rhythm.tz}
        for name, theirs in (("start", "startDate"), ("end", "endDate")):
            if name in options:
                repeat[theirs] = ms(options.pop(name))
        template: dict[str, Any] = {"name": job.name, "opts": {}}
        if isinstance(job.data, dict):
            template["data"] = job.data
        if job.attempts:
            template["opts"]["attempts"] = job.attempts
        if isinstance(job.backoff, Backoff):
            assert isinstance(job.backoff.delay, float)
            template["opts"]["backoff"] = {"type": job.backoff.type, "delay": round(job.backoff.delay * 1000)}
        if job.priority:
            template["opts"]["priority"] = job.priority
        return str(self.node("upsert", id=id, repeat={**repeat, **options}, template=template))

    def unschedule(self, id: str) -> bool:
        return bool(self.node("unschedule", id=id))


class OurSchedules(ByScripts):
    """We carry it out."""

    def upsert(self, id: str, rhythm: Every | Cron, job: JobSpec, **options: Any) -> str:
        info = Schedules(self.queue).upsert(id, rhythm, job, **options)
        return f"repeat:{id}:{ms(info.next_run)}"

    def unschedule(self, id: str) -> bool:
        return Schedules(self.queue).remove(id)

    def _advance(self, job_id: str, job: dict[str, str]) -> None:
        Schedules(self.queue).advance(job_id)


Player = NodeSchedules | OurSchedules
Scenario = Callable[[Player], Any]
Both = Callable[..., Dump]


@pytest.fixture
def both(peer: NodePeer, server: Server, client: redis.Redis) -> Iterator[Both]:
    """Runs a scenario by Node and by us, and compares answers and keys; gives the keys.

    ``deviation`` changes what Node left to what we do instead.
    """

    def run(scenario: Scenario, deviation: Callable[[Dump], None] = lambda found: None) -> Dump:
        answers, dumps = [], []
        for player in (NodeSchedules, OurSchedules):
            client.flushall()
            made: Player = (
                NodeSchedules(peer, server) if player is NodeSchedules else OurSchedules(peer, server, client)
            )
            made.clock(T + 437)
            answers.append(scenario(made))
            peer("close")
            dumps.append(_with_opts(comparable(Queue(client).dump())))
        deviation(dumps[0])
        assert differences(dumps[1], dumps[0]) == []
        assert answers[1] == answers[0]
        return dumps[1]

    yield run
    peer("close")


def _with_opts(found: Dump) -> Dump:
    """Node spells empty templates in two ways; and the offset of a pattern means nothing."""
    for value in found.values():
        if isinstance(value, dict) and "ic" in value and value.get("opts") == {}:
            del value["opts"]
    return found


TICK = JobSpec("tick")
FULL = JobSpec("tick", {"z": 1}, attempts=3, backoff=Backoff.fixed(0.1), priority=7)
RHYTHMS: dict[str, tuple[Every | Cron, dict[str, Any]]] = {
    "every": (Every(1), {}),
    "offset": (Every(0.1, offset=0.03), {}),
    "limit": (Every(1), {"limit": 2}),
    "start": (Every(1), {"start": at(T + 5000)}),
    "pattern": (Cron("0 */5 * * * *", tz="Europe/Berlin"), {"limit": 5, "end": at(T + 1000 * DAY)}),
    "immediately": (Cron("*/5 * * * *"), {"immediately": True}),
    "pattern from a start on": (Cron("*/5 * * * *"), {"start": at(T + DAY)}),
}


@pytest.mark.parametrize("job", [TICK, FULL], ids=["plain", "full"])
@pytest.mark.parametrize("rhythm", RHYTHMS)
def test_53_54_55_57_58_a_schedule_and_its_iterations(both: Both, rhythm: str, job: JobSpec) -> None:
    when, options = RHYTHMS[rhythm]

    def scenario(player: Player) -> list[Any]:
        answers: list[Any] = [player.upsert("sch", when, job, **options)]
        moment = T + 437
        for number in range(1, 4):
            moment += 777_000
            player.clock(moment)
            answers.append(player.fetch(number))
            if answers[-1]:
                player.complete(answers[-1], None, number)
        return answers

    both(scenario)


def test_56_again_while_its_iteration_waits(both: Both) -> None:
    def scenario(player: Player) -> list[Any]:
        first = player.upsert("sch", Every(1), TICK)
        player.clock(T + 600)
        return [first, player.upsert("sch", Every(1), FULL), player.upsert("sch", Every(1), JobSpec("tock", {"n": 2}))]

    found = both(scenario)
    assert found["bull:q:repeat"] == [("sch", T + 437)]
    assert found[f"bull:q:repeat:sch:{T + 437}"]["name"] == "tock"


def test_56_again_while_its_iteration_is_delayed(both: Both) -> None:
    def scenario(player: Player) -> list[Any]:
        answers: list[Any] = [player.upsert("a", Cron("*/5 * * * *"), TICK), player.upsert("b", Every(60), TICK)]
        answers.append(player.fetch(1))
        player.clock(T + 9_999)
        answers += [player.upsert("a", Cron("*/5 * * * *"), FULL), player.upsert("b", Every(60), FULL)]
        return answers

    def counted_on(found: Dump) -> None:
        """Node begins to count anew, so that a limit holds until the next upsert only."""
        found[f"bull:q:repeat:b:{T + 60_437}"]["opts"]["repeat"]["count"] = 2

    both(scenario, counted_on)


def test_56_another_interval(both: Both) -> None:
    def scenario(player: Player) -> list[Any]:
        first = player.upsert("sch", Every(1), TICK)
        player.clock(T + 2000)
        return [first, player.upsert("sch", Every(0.7), TICK)]

    def in_step(found: Dump) -> None:
        """Node keeps the old interval's offset, which puts late iterations out of step with the first."""
        assert found["bull:q:repeat:sch"]["offset"] == "437"
        found["bull:q:repeat:sch"]["offset"] = str((T + 2000) % 700)

    found = both(scenario, in_step)
    assert found["bull:q:repeat:sch"]["ic"] == "1"
    assert found["bull:q:wait"] == [f"repeat:sch:{T + 2000}"]


def test_60_removed(both: Both) -> None:
    def scenario(player: Player) -> list[Any]:
        player.upsert("waits", Every(1), TICK)
        player.upsert("delayed", Cron("*/5 * * * *"), TICK)
        return [player.unschedule(id) for id in ("waits", "delayed", "waits", "nobody")]

    found = both(scenario)
    assert found["bull:q:wait"] == [f"repeat:waits:{T + 437}"]
    assert found["bull:q:events"][-1][1:3] == ["removed", "jobId"]
    assert "bull:q:repeat" not in found


# -- what we do and Node does not


def ids(queue: Queue) -> list[str]:
    """The iterations that wait, wherever they do, as far as their slots go."""
    found = [
        *(queue.get("wait") or []),
        *(id for name in ("delayed", "prioritized") for id, _ in queue.get(name) or []),
    ]
    return sorted(id for id in found if id.startswith("repeat:"))


def test_56_a_due_run_survives_an_upsert(queue: Queue, schedules: Schedules) -> None:
    """Node drops a cron run that is due when its process starts again (faults 58, 59)."""
    slot = ms(schedules.upsert("sch", Cron("*/5 * * * *")).next_run)
    queue.clock = slot + 90_000
    for _ in range(3):
        assert ms(schedules.upsert("sch", Cron("*/5 * * * *"), JobSpec("tock")).next_run) == slot
        assert ids(queue) == [f"repeat:sch:{slot}"]
    assert list(schedules.fetch().jobs) == [f"repeat:sch:{slot}"]
    assert ids(queue) == [f"repeat:sch:{slot + 5 * MINUTE}"]


def test_56_it_keeps_its_place_in_the_line(queue: Queue, schedules: Schedules) -> None:
    schedules.upsert("sch", Every(60))
    queue.add()
    queue.new_events()
    schedules.upsert("sch", Every(60), JobSpec("tock", {"n": 1}))
    assert queue.get("wait") == ["2", f"repeat:sch:{T}"]
    assert queue.events() == [
        ["added", "jobId", f"repeat:sch:{T}", "name", "tock"], ["waiting", "jobId", f"repeat:sch:{T}"],
    ]  # fmt: skip


@pytest.mark.parametrize("paused_by", ["us", "version 5"])
def test_56_in_a_paused_queue_both_lists_are_looked_at(queue: Queue, schedules: Schedules, paused_by: str) -> None:
    schedules.upsert("sch", Every(60))
    queue.pause()
    if paused_by == "version 5":
        queue.command("RENAME", "~wait", "~paused")
    queue.clock = T + 5
    schedules.upsert("sch", Every(60), JobSpec("tock"))
    assert queue.get("wait") == [f"repeat:sch:{T}"]
    assert queue.get("delayed") is None
    queue.resume()
    [(job_id, job)] = schedules.fetch().jobs.items()
    assert (job_id, job["name"]) == (f"repeat:sch:{T}", "tock")


def test_56_another_rhythm_replaces_the_run_that_waits(queue: Queue, schedules: Schedules) -> None:
    schedules.upsert("sch", Cron("*/5 * * * *"))
    assert ms(schedules.upsert("sch", Cron("*/5 * * * *", tz="Asia/Kathmandu")).next_run) == T + 200_000
    assert ms(schedules.upsert("sch", Cron("*/7 * * * *")).next_run) != T + 200_000
    assert len(ids(queue)) == 1
    schedules.upsert("sch", Every(60, offset=1))
    assert ids(queue) == [f"repeat:sch:{T // MINUTE * MINUTE + MINUTE + 1000}"]
    schedules.upsert("sch", Every(60, offset=2))
    assert ids(queue) == [f"repeat:sch:{T // MINUTE * MINUTE + MINUTE + 2000}"]
    assert queue.get("repeat:sch")["offset"] == "2000"


def test_56_a_run_that_was_started_is_not_replaced(queue: Queue, schedules: Schedules) -> None:
    """Its worker died before it made the next one; then comes an upsert, then the job again."""
    schedules.upsert("sch", Every(60), JobSpec("tick", attempts=3))
    queue.fetch()
    queue.command("DEL", f"~repeat:sch:{T}:lock")
    queue.clock = T + 40_000
    schedules.upsert("sch", Every(60), JobSpec("tick", attempts=3))
    assert ids(queue) == [f"repeat:sch:{T + MINUTE}"]
    assert queue.get("repeat:sch")["ic"] == "2"
    queue.command("LREM", "~active", 1, f"repeat:sch:{T}")  # the sweep has found it
    queue.command("RPUSH", "~wait", f"repeat:sch:{T}")
    assert schedules.fetch().ids == [f"repeat:sch:{T}"]
    assert len(queue.get("repeat")) == 1
    assert queue.get("repeat:sch")["ic"] == "2"


@pytest.mark.parametrize("rhythm", [Every(60), Cron("* * * * *")], ids=["every", "pattern"])
def test_57_a_limit_holds_over_upserts(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    seen = []
    for number in range(6):
        info = schedules.upsert("sch", rhythm, limit=3)
        assert queue.clock is not None
        queue.clock += 61_000
        taken = schedules.fetch(lane=f"l{number}", number=1)
        seen += taken.ids
        for job_id in taken.ids:
            queue.finish(completed(job_id, f"l{number}:1"))
    assert len(seen) == len(set(seen)) == 3
    assert info.next_run is None
    assert info.iteration_count == 3
    more = schedules.upsert("sch", rhythm, limit=4)
    assert more.next_run is not None
    assert more.iteration_count == 4


def test_59_an_id_that_is_taken_is_stepped_over(queue: Queue, schedules: Schedules) -> None:
    for slot in range(T, T + 2000, 1000):
        queue.command("HSET", f"~repeat:sch:{slot}", "name", "left over", "opts", "{}")
    assert ms(schedules.upsert("sch", Every(1)).next_run) == T + 2000
    assert [event[0] for event in queue.events()] == ["duplicated", "duplicated", "added", "delayed"]


def test_59_further_than_node_looks(queue: Queue, schedules: Schedules) -> None:
    for slot in range(100):
        queue.command("HSET", f"~repeat:sch:{T + slot * 1000}", "name", "left over")
        queue.command("ZADD", "~completed", T, f"repeat:sch:{T + slot * 1000}")
    assert ms(schedules.upsert("sch", Every(1)).next_run) == T + 100_000


def test_59_an_id_that_is_taken_in_a_pattern(queue: Queue, schedules: Schedules) -> None:
    queue.command("HSET", f"~repeat:sch:{T + 200_000}", "name", "left over")
    assert ms(schedules.upsert("sch", Cron("*/5 * * * *")).next_run) == T + 500_000


def test_59_when_all_are_taken_nothing_changes_and_the_error_says_so(queue: Queue, schedules: Schedules) -> None:
    for slot in range(40):
        queue.command("HSET", f"~repeat:sch:{T + 200_000 + slot * 300_000}", "name", "left over")
    before = queue.dump()
    with pytest.raises(StateError, match="not changed: the ids of its next slots are taken"):
        schedules.upsert("sch", Cron("*/5 * * * *"))
    assert queue.dump() == before


@pytest.mark.parametrize("rhythm", [Every(1), Cron("* * * * * *")], ids=["every", "pattern"])
def test_59_an_id_that_is_taken_does_not_stop_a_schedule(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron
) -> None:
    slot = ms(schedules.upsert("sch", rhythm).next_run)
    for number in range(1, 31):
        queue.command("HSET", f"~repeat:sch:{slot + number * 1000}", "name", "left over")
    queue.clock = slot
    assert schedules.fetch().ids == [f"repeat:sch:{slot}"]
    assert queue.get("repeat") == [("sch", slot + 31_000)]
    assert [id for id, _ in queue.get("delayed")] == [f"repeat:sch:{slot + 31_000}"]


def test_a_run_that_waits_under_the_id_becomes_the_schedules_own(queue: Queue, schedules: Schedules) -> None:
    schedules.upsert("sch", Every(60))
    assert schedules.remove("sch")
    assert queue.get("wait") == [f"repeat:sch:{T}"]
    schedules.upsert("sch", Every(60), JobSpec("tock"))
    assert queue.get("wait") == [f"repeat:sch:{T}"]
    assert queue.get(f"repeat:sch:{T}")["name"] == "tock"


def test_twenty_upserts_at_once_make_one(queue: Queue, schedules: Schedules) -> None:
    """Deploys, again and again: never a twin, and always in step (faults 58, 59, 61, 62)."""
    for rhythm in (Every(60), Cron("* * * * *")):
        name = "every" if isinstance(rhythm, Every) else "pattern"
        slots, queue.clock = [], T
        for number in range(40):
            for _ in range(20):
                queue.clock += 997
                schedules.upsert(name, rhythm, JobSpec("tick", {"deploy": number}))
            assert len(ids(queue)) == 1
            taken = schedules.fetch(lane=f"{name}{number}", number=1)
            for job_id in taken.ids:
                slots.append(int(job_id.rpartition(":")[2]))
                queue.finish(completed(job_id, f"{name}{number}:1"))
            assert len(ids(queue)) == 1
        assert slots == sorted(set(slots))
        assert {slot % MINUTE for slot in slots} == {slots[0] % MINUTE}
        assert len(slots) > 10
        schedules.remove(name)


@pytest.mark.parametrize("missed", ["once", "catch_up"])
@pytest.mark.parametrize("rhythm", [Every(60, offset=7), Cron("* * * * *")], ids=["every", "pattern"])
def test_no_drift_over_ten_thousand_iterations(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron, missed: str
) -> None:
    """1,250 of each kind on each server, each started late, by a little or by some slots."""
    slot = ms(schedules.upsert("sch", rhythm, missed=missed).next_run)
    phase = slot % MINUTE
    for number in range(1_250):
        queue.clock = slot + (number * 7919) % 59_000 + (150_000 if number % 97 == 96 else 0)
        schedules.advance(f"repeat:sch:{slot}", started=queue.clock)
        following = int(float(queue.command("ZSCORE", "~repeat", "sch")))
        assert following % MINUTE == phase
        if missed == "catch_up" or number % 97 != 96:
            assert following == slot + MINUTE
        else:
            assert following in (slot + 3 * MINUTE, slot + 4 * MINUTE)
        slot = following
    assert queue.get("repeat:sch")["ic"] == "1251"


# -- missed runs


def test_missed_once_is_what_node_does(queue: Queue, schedules: Schedules) -> None:
    slot = ms(schedules.upsert("sch", Cron("*/5 * * * *")).next_run)
    queue.clock = slot + 17 * MINUTE
    [job_id] = queue.fetch().ids
    assert schedules.advance(job_id) is None
    assert ids(queue) == [f"repeat:sch:{slot + 20 * MINUTE}"]


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_missed_skip(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    slot = ms(schedules.upsert("sch", rhythm, missed="skip", grace=60).next_run)
    assert queue.get("repeat:sch")["grace"] == "60000"
    queue.clock = slot + 60_000
    [job_id] = queue.fetch(lane="a", number=1).ids
    assert schedules.advance(job_id) is None
    queue.clock = slot + 5 * MINUTE + 60_001
    [job_id] = queue.fetch(lane="b", number=1).ids
    assert schedules.advance(job_id) == 60.001
    assert ids(queue) == [f"repeat:sch:{slot + 10 * MINUTE}"]


def test_a_further_start_is_never_too_late(queue: Queue, schedules: Schedules) -> None:
    slot = ms(schedules.upsert("sch", Every(300, offset=0), missed="skip", grace=1).next_run)
    queue.clock = slot
    [job_id] = schedules.fetch().ids
    queue.clock = slot + 100_000
    queue.command("HSET", f"~{job_id}", "ats", 2, "processedOn", queue.clock)
    assert schedules.advance(job_id) is None


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
@pytest.mark.parametrize("grace", [None, 1000], ids=["for ever", "1000 s"])
def test_missed_catch_up(queue: Queue, schedules: Schedules, rhythm: Every | Cron, grace: int | None) -> None:
    slot = ms(schedules.upsert("sch", rhythm, missed="catch_up", grace=grace).next_run)
    queue.clock = slot + 31 * MINUTE
    seen = []
    for number in range(10):
        taken = schedules.fetch(lane=f"w{number}", number=1).ids
        seen += [(int(job_id.rpartition(":")[2]) - slot) // MINUTE for job_id in taken]
    # 1,000 s before 31 minutes past is 14:20; the run that was made in time runs in any case
    assert seen == ([0, 5, 10, 15, 20, 25, 30] if grace is None else [0, 15, 20, 25, 30])
    assert ids(queue) == [f"repeat:sch:{slot + 35 * MINUTE}"]


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_catching_up_survives_an_upsert_at_each_step(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    slot = ms(schedules.upsert("sch", rhythm, missed="catch_up").next_run)
    queue.clock = slot + 31 * MINUTE
    seen = []
    for number in range(10):
        schedules.upsert("sch", rhythm, missed="catch_up")
        for job_id in queue.fetch(lane=f"w{number}", number=1).ids:
            seen.append((int(job_id.rpartition(":")[2]) - slot) // MINUTE)
            schedules.upsert("sch", rhythm, missed="catch_up")  # before its worker advances it
            schedules.advance(job_id)
            schedules.upsert("sch", rhythm, missed="catch_up")
    assert seen == [0, 5, 10, 15, 20, 25, 30]


# -- spread, end


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_spread_moves_the_due_time_and_nothing_else(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    slot = ms(schedules.upsert("sch", rhythm, spread=100).next_run)
    shares = []
    for number in range(50):
        [(job_id, score)] = queue.get("delayed")
        assert job_id == f"repeat:sch:{slot}"
        due = int(score // 4096)
        shares.append(due - slot)
        assert int(queue.get(job_id)["delay"]) + int(queue.get(job_id)["timestamp"]) == due
        schedules.upsert("sch", rhythm, spread=100)
        assert [int(score // 4096) for _, score in queue.get("delayed")] == [due]
        queue.clock = due
        assert schedules.fetch(lane="w", number=2 * number + 1).ids == [job_id]
        queue.finish(completed(job_id, f"w:{2 * number + 1}"), lane="w", number=2 * number + 2)
        slot += 5 * MINUTE
        assert queue.get("repeat") == [("sch", slot)]
    assert 0 <= min(shares) < 20_000
    assert 80_000 < max(shares) < 100_000


@pytest.mark.parametrize(
    ("rhythm", "options"),
    [
        (Every(300), {}),
        (Every(300), {"start": at(T - DAY)}),
        (Cron("*/5 * * * *"), {"immediately": True}),
    ],
    ids=["every", "start has been", "immediately"],
)
@pytest.mark.parametrize("priority", [0, 3])
def test_a_first_run_at_once_is_not_spread(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron, options: dict[str, Any], priority: int
) -> None:
    job = JobSpec("tick", priority=priority)
    for number in range(10):
        name = f"s{number}"
        for _ in range(2):
            assert ms(schedules.upsert(name, rhythm, job, spread=100, **options).next_run) == T
            assert queue.get("delayed") is None
    assert len(ids(queue)) == 10
    assert len(schedules.fetch(count=10).ids) == 10
    assert len({score // 4096 % (5 * MINUTE) for _, score in queue.get("delayed")}) > 5


def test_a_first_run_at_a_start_to_come_is_spread(queue: Queue, schedules: Schedules) -> None:
    for number in range(10):
        schedules.upsert(f"s{number}", Every(300), start=at(T + MINUTE), spread=100)
    assert len({score // 4096 for _, score in queue.get("delayed")}) > 5


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_a_run_that_was_due_stays_so_when_a_spread_is_given(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron
) -> None:
    slot = ms(schedules.upsert("sch", rhythm).next_run)
    queue.clock = slot
    queue.add()
    queue.fetch()  # lets it in
    assert queue.get("wait") == [f"repeat:sch:{slot}"]
    schedules.upsert("sch", rhythm, spread=200)
    assert queue.get("wait") == [f"repeat:sch:{slot}"]


def test_a_share_of_a_spread_makes_no_run_too_late(queue: Queue, schedules: Schedules) -> None:
    """Also not one that an upsert made anew while it was due."""
    options: dict[str, Any] = {"missed": "skip", "grace": 1, "spread": 200}
    slot = ms(schedules.upsert("sch", Every(300, offset=0), **options).next_run)
    [(job_id, score)] = queue.get("delayed")
    due = int(score // 4096)
    assert due > slot + 2000
    queue.clock = due + 500
    schedules.upsert("sch", Every(300, offset=0), **options)
    [taken] = queue.fetch().ids
    assert taken == job_id
    assert schedules.advance(job_id) is None


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_nothing_runs_after_the_end(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    slot = ms(schedules.upsert("sch", rhythm, end=at(T + 600_000)).next_run)
    for number in range(4):
        queue.clock = slot + number * 5 * MINUTE
        schedules.fetch(lane=f"w{number}", number=1)
    assert slot + 5 * MINUTE <= T + 600_000 < slot + 10 * MINUTE
    assert queue.get("repeat") == [("sch", slot + 5 * MINUTE)]
    assert ids(queue) == []
    info = schedules.get("sch")
    assert info is not None
    assert info.next_run is None


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
@pytest.mark.parametrize("upserts", [False, True], ids=["alone", "upserted meanwhile"])
def test_runs_before_the_end_are_caught_up_with_after_it(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron, upserts: bool
) -> None:
    end = at(T + 30 * MINUTE)
    slot = ms(schedules.upsert("sch", rhythm, missed="catch_up", end=end).next_run)
    queue.clock = T + 90 * MINUTE
    seen = []
    for number in range(10):
        if upserts:
            schedules.upsert("sch", rhythm, missed="catch_up", end=end)
        for job_id in queue.fetch(lane=f"w{number}", number=1).ids:
            seen.append((int(job_id.rpartition(":")[2]) - slot) // MINUTE)
            if upserts:
                schedules.upsert("sch", rhythm, missed="catch_up", end=end)
            schedules.advance(job_id)
    assert seen == [0, 5, 10, 15, 20, 25]
    info = schedules.get("sch")
    assert info is not None
    assert (info.next_run, info.iteration_count) == (None, 6)


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_the_same_upsert_after_the_end_changes_nothing(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron
) -> None:
    end = at(T + 400_000)
    slot = ms(schedules.upsert("sch", rhythm, end=end).next_run)
    queue.clock = T + DAY
    assert ms(schedules.upsert("sch", rhythm, end=end).next_run) == slot  # it waits since before the end
    assert ids(queue) == [f"repeat:sch:{slot}"]
    [job_id] = schedules.fetch().ids
    before = queue.get("repeat"), queue.get("repeat:sch")
    for _ in range(2):
        info = schedules.upsert("sch", rhythm, end=end)
        assert info == schedules.get("sch")
        assert (info.next_run, info.iteration_count, info.end) == (None, 1, end)
    assert (queue.get("repeat"), queue.get("repeat:sch")) == before
    queue.finish(completed(job_id, "l1:1"))
    assert schedules.upsert("sch", rhythm, end=end).next_run is None
    assert ids(queue) == []


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_a_new_end_that_has_passed_ends_a_schedule(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    schedules.upsert("sch", rhythm)
    info = schedules.upsert("sch", rhythm, end=at(T - 1))
    assert (info.next_run, info.paused) == (None, False)
    assert ids(queue) == []
    assert schedules.upsert("sch", rhythm).next_run is not None
    schedules.pause("sch")
    assert schedules.upsert("sch", rhythm, end=at(T - 1)).paused
    resumed = schedules.resume("sch")
    assert resumed is not None
    assert (resumed.next_run, resumed.paused) == (None, False)


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_an_end_that_leaves_no_run_is_refused(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    before = queue.dump()
    with pytest.raises(InvalidOption, match="names no time"):
        schedules.upsert("sch", rhythm, end=at(T + 1000))
    with pytest.raises(InvalidOption, match="is in the past"):
        schedules.upsert("sch", rhythm, end=at(T))
    assert queue.dump() == before


def test_58_a_start_that_is_a_slot_is_the_first(queue: Queue, schedules: Schedules) -> None:
    start = at(T + 500_000)
    assert schedules.upsert("a", Cron("*/5 * * * *"), start=start).next_run == start
    assert schedules.upsert("b", Every(60), start=start).next_run == start
    later = start + timedelta(days=1)
    assert schedules.upsert("b", Every(60), start=later).next_run == later
    assert len(ids(queue)) == 2
    assert ms(schedules.upsert("a", Cron("*/5 * * * *")).next_run) == T + 200_000
    assert ms(schedules.upsert("b", Every(60)).next_run) == T
    # One that has been waited for changes nothing any more.
    queue.clock = T + 1000
    assert ms(schedules.upsert("b", Every(60), start=at(T - 5000)).next_run) == T
    assert len(ids(queue)) == 2


# -- pause, resume


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_pause_and_resume(queue: Queue, schedules: Schedules, rhythm: Every | Cron) -> None:
    slot = ms(schedules.upsert("sch", rhythm, JobSpec("tick", {"n": "é"}, attempts=3), limit=9).next_run)
    first = schedules.get("sch")
    assert first is not None
    queue.new_events()
    assert schedules.pause("sch")
    assert schedules.pause("sch")
    assert queue.events() == [["removed", "jobId", f"repeat:sch:{slot}", "prev", "delayed"]]
    assert ids(queue) == []
    assert queue.get("repeat") is None
    assert queue.get("repeat:sch") is None
    info = schedules.get("sch")
    assert info is not None
    assert (info.paused, info.next_run) == (True, None)
    assert (info.data, info.options, info.limit) == (first.data, first.options, 9)
    queue.clock = slot + 17 * MINUTE
    resumed = schedules.resume("sch")
    assert resumed is not None
    assert ms(resumed.next_run) == slot + 20 * MINUTE
    assert ids(queue) == [f"repeat:sch:{slot + 20 * MINUTE}"]
    assert resumed == schedules.get("sch") == schedules.resume("sch")
    assert resumed.iteration_count == 1
    assert not schedules.pause("nobody")
    assert schedules.resume("nobody") is None


def test_pause_takes_a_due_run_out_and_leaves_one_that_runs(queue: Queue, schedules: Schedules) -> None:
    schedules.upsert("a", Every(60))
    schedules.upsert("b", Every(60))
    [a] = queue.fetch().ids
    assert a == f"repeat:a:{T}"
    assert schedules.pause("a")
    assert schedules.pause("b")
    assert queue.get("wait") is None
    schedules.advance(a)
    assert ids(queue) == []
    queue.clock = T + 130_000
    for name, count in (("a", 2), ("b", 1)):
        info = schedules.resume(name)
        assert info is not None
        assert (ms(info.next_run), info.iteration_count) == (T + 3 * MINUTE, count)


def test_an_upsert_leaves_a_paused_schedule_paused(queue: Queue, schedules: Schedules) -> None:
    schedules.upsert("sch", Every(60), JobSpec("tick"))
    schedules.pause("sch")
    queue.clock = T + 5000
    info = schedules.upsert("sch", Every(60), JobSpec("tock"))
    assert info.paused
    assert info.name == "tock"
    assert ids(queue) == []
    assert queue.get("repeat") is None
    resumed = schedules.resume("sch")
    assert resumed is not None
    assert ms(resumed.next_run) == T + MINUTE
    schedules.pause("sch")
    assert schedules.upsert("sch", Cron("*/5 * * * *")).paused
    resumed = schedules.resume("sch")
    assert resumed is not None
    assert ms(resumed.next_run) == T + 200_000


def test_a_paused_schedule_can_be_removed(queue: Queue, schedules: Schedules) -> None:
    schedules.upsert("sch", Every(60))
    schedules.pause("sch")
    assert schedules.remove("sch")
    assert schedules.get("sch") is None
    assert schedules.all() == []
    assert not schedules.remove("sch")


# -- reading


def test_all_in_the_order_of_their_next_runs(queue: Queue, schedules: Schedules) -> None:
    for number in range(250):
        schedules.upsert(f"s{number}", Every(60), start=at(T + 1000 * (250 - number)))
    schedules.pause("s7")
    found = schedules.all()
    assert [info.id for info in found[:3]] == ["s249", "s248", "s247"]
    assert [info.id for info in found[-1:]] == ["s7"]
    assert len(found) == 250


def test_repeatable_jobs_of_version_5_are_no_schedules(queue: Queue, schedules: Schedules) -> None:
    queue.command("ZADD", "~repeat", T, "name:::UTC:* * * * *")
    queue.command("HSET", "~repeat:name:::UTC:* * * * *", "name", "name", "pattern", "* * * * *")
    assert schedules.all() == []


@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
@pytest.mark.parametrize("upserts", [False, True], ids=["alone", "upserted meanwhile"])
def test_a_share_of_a_spread_reaches_no_further_than_the_end(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron, upserts: bool
) -> None:
    slot = ms(schedules.upsert("sch", rhythm).next_run)
    schedules.remove("sch")
    for number in range(20):
        id, end = f"sch-{number}", slot + 5 * MINUTE + 20_000
        queue.clock = T
        schedules.upsert(id, rhythm, end=at(end), spread=200)
        [(job_id, score)] = queue.get("delayed")
        assert job_id == f"repeat:{id}:{slot}"
        queue.clock = int(score // 4096)
        assert schedules.fetch(lane=id, number=1).ids == [job_id]
        queue.finish(completed(job_id, f"{id}:1"), lane=id, number=2)
        if upserts:
            schedules.upsert(id, rhythm, end=at(end), spread=200)
        [(job_id, score)] = queue.get("delayed")
        assert job_id == f"repeat:{id}:{slot + 5 * MINUTE}"
        assert slot + 5 * MINUTE <= score // 4096 <= end
        schedules.remove(id)


def test_an_end_at_a_time_itself_leaves_no_room_for_a_share(queue: Queue, schedules: Schedules) -> None:
    slot = ms(schedules.upsert("sch", Every(300, offset=0), end=at(T - T % 300_000 + 300_000), spread=200).next_run)
    assert [int(score // 4096) for _, score in queue.get("delayed")] == [slot]


# -- what a hand has written


GARBAGE = ["nan", "inf", "-inf", "0", "-1", "0.5", "1e308", "9007199254740993", "abc", ""]


UNREADABLE: list[Any] = [
    [],
    "x",
    None,
    {},
    {"pattern": 7},
    {"pattern": None, "every": "x"},
    {"pattern": {}, "every": 300_000},
    {"every": 0},
]


@pytest.mark.parametrize("repeat", UNREADABLE, ids=json.dumps)
@pytest.mark.parametrize("missed", ["once", "catch_up"])
@pytest.mark.parametrize("rhythm", [Every(300, offset=0), Cron("*/5 * * * *")], ids=["every", "pattern"])
def test_a_run_whose_own_rhythm_cannot_be_read_goes_by_the_schedules(
    queue: Queue, schedules: Schedules, rhythm: Every | Cron, missed: str, repeat: Any
) -> None:
    slot = ms(schedules.upsert("sch", rhythm, JobSpec("tick", attempts=4), limit=3, missed=missed).next_run)
    job_id = f"repeat:sch:{slot}"
    whole = json.loads(queue.get(job_id)["opts"])
    queue.command("HSET", f"~{job_id}", "opts", json.dumps({"attempts": 4, "repeat": repeat}))
    queue.clock = slot + 12 * MINUTE
    schedules.fetch()
    following = slot + (5 if missed == "catch_up" else 15) * MINUTE
    assert queue.get("repeat") == [("sch", following)]
    made = json.loads(queue.get(f"repeat:sch:{following}")["opts"])
    assert made["repeat"] == {**whole["repeat"], "count": 2}
    assert made["attempts"] == 4
    assert queue.get("repeat:sch")["ic"] == "2"


@pytest.mark.parametrize("repeat", [[], {"every": 0}, {"every": 1e15}])
@pytest.mark.parametrize("every", [None, "abc", "0", "1e15"])
def test_without_any_rhythm_a_run_says_so_if_it_is_the_current_one(
    queue: Queue, schedules: Schedules, repeat: Any, every: str | None
) -> None:
    slot = ms(schedules.upsert("sch", Every(300)).next_run)
    queue.command("HSET", f"~repeat:sch:{slot}", "opts", json.dumps({"repeat": repeat}))
    queue.command("HDEL", "~repeat:sch", "every")
    if every is not None:
        queue.command("HSET", "~repeat:sch", "every", every)
    before = queue.get("repeat:sch")
    queue.fetch()
    with pytest.raises(
        InvalidOption, match=r"neither the job's opts\.repeat nor the schedule itself has a pattern or an interval"
    ):
        schedules.advance(f"repeat:sch:{slot}")
    assert queue.get("repeat:sch") == before
    schedules.remove("sch")
    assert schedules.advance(f"repeat:sch:{slot}") is None


@pytest.mark.parametrize("every", GARBAGE)
def test_a_paused_schedule_with_an_interval_that_is_none_stays_as_it_is(
    queue: Queue, schedules: Schedules, every: str
) -> None:
    schedules.upsert("sch", Every(60))
    queue.command("HSET", "~repeat:sch", "every", every)
    schedules.pause("sch")
    before = queue.dump()
    with pytest.raises(redis.ResponseError, match=r"BROKEN .*paused-schedulers has a record of sch with every '"):
        schedules.resume("sch")
    assert queue.dump() == before
    assert [info.paused for info in schedules.all()] == [True]
    # An upsert gives it an interval again, and it goes on.
    schedules.upsert("sch", Every(60))
    found = schedules.resume("sch")
    assert found is not None
    assert (found.every, found.paused, ms(found.next_run)) == (60.0, False, T)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("offset", "nan"), ("offset", "abc"), ("startDate", "inf"), ("startDate", "9e14"), ("endDate", "nan"), ("limit", "inf"),
        ("spread", "nan"), ("spread", "inf"), ("opts", "[]"), ("opts", "rubbish"),
    ],
)  # fmt: skip
def test_a_paused_schedule_with_a_field_that_nobody_can_read_stays_as_it_is(
    queue: Queue, schedules: Schedules, field: str, text: str
) -> None:
    schedules.upsert("sch", Every(60))
    schedules.pause("sch")
    paused = queue.keys.resolve("paused_schedulers")
    record = json.loads(queue.command("HGET", paused, "sch"))
    record["fields"][field] = text
    record.pop("slot")
    queue.command("HSET", paused, "sch", json.dumps(record))
    before = queue.dump()
    with pytest.raises((redis.ResponseError, BrokenKey), match=field):
        schedules.resume("sch")
    assert queue.dump() == before
    assert [info.paused for info in schedules.all()] == [True]


def test_a_paused_schedule_with_a_number_that_cannot_be_written_again_can_be_changed(
    queue: Queue, schedules: Schedules
) -> None:
    schedules.upsert("sch", Every(60))
    schedules.pause("sch")
    paused = queue.keys.resolve("paused_schedulers")
    record = json.loads(queue.command("HGET", paused, "sch"))
    queue.command("HSET", paused, "sch", json.dumps({**record, "begun": float("inf")}))
    schedules.upsert("sch", Every(30))
    found = schedules.resume("sch")
    assert found is not None
    assert (found.every, found.paused) == (30.0, False)


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "-1e16", "-1", "9007199254740991"])
def test_a_schedule_whose_time_is_none_is_refused_until_it_is_removed(
    queue: Queue, schedules: Schedules, score: str
) -> None:
    schedules.upsert("other", Every(60, offset=1))
    schedules.upsert("sch", Every(60, offset=1))
    queue.command("ZADD", "~repeat", score, "sch")
    before = queue.dump()
    calls: list[Callable[[], Any]] = [
        lambda: schedules.upsert("sch", Every(60, offset=1)),
        lambda: schedules.pause("sch"),
        lambda: schedules.resume("sch"),
        lambda: schedules.get("sch"),
    ]
    for call in calls:
        with pytest.raises(redis.ResponseError, match=r"BROKEN .*:repeat has a score of sch that is no moment: .*"):
            call()
    assert queue.dump() == before
    assert schedules.remove("sch") is True
    assert [info.id for info in schedules.all()] == ["other"]
