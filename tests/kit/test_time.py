"""Time that a test moves: all that the server has of it moves together, and comes out as if it had been waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from echomq import (
    Backoff,
    Cron,
    Deduplication,
    EchoMQ,
    Every,
    InvalidOption,
    Job,
    JobScheduler,
    Keep,
    Queue,
    QueueEvents,
    Worker,
)
from echomq._store.call import Lane, Patience
from echomq._store.fetch import Want, take
from echomq.idempotency import RedisOnce
from echomq.testing import Kit, NotSettled, Server, on_server
from tests.support.wait import wait_until

app = EchoMQ("redis://127.0.0.1:1")
SLACK = 2.0  # seconds of real time that a test may take between two looks at the clock


@app.task(attempts=4, backoff=Backoff.exponential(60))
async def flaky() -> None:
    raise ConnectionError


@app.task
async def note(number: int) -> int:
    return number


@pytest.fixture
async def kit(throw_away: Server) -> AsyncIterator[Kit]:
    async with on_server(app, throw_away, patience=10) as kit:
        yield kit


def near(one: datetime | None, other: datetime) -> bool:
    return one is not None and abs((one - other).total_seconds()) < SLACK


async def test_the_clock_moves_by_what_was_asked_for(kit: Kit) -> None:
    assert near(kit.now, datetime.now(UTC))
    before = kit.now
    await kit.advance(days=1, hours=2, minutes=3, seconds=4)
    await kit.advance(timedelta(milliseconds=5))
    assert near(kit.now, before + timedelta(days=1, hours=2, minutes=3, seconds=4))
    job = await note.enqueue(1)
    assert near(job.timestamp, kit.now)
    wrongs: list[dict[str, Any]] = [
        {}, {"seconds": -1}, {"by": timedelta(1), "hours": 1}, {"by": 3}, {"by": timedelta.max}, {"days": 4000},
        {"seconds": math.nan}, {"hours": math.inf}, {"minutes": 10**400}, {"days": 10**12}, {"days": "2"},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(InvalidOption, match="advance"):
            await kit.advance(**wrong)
    with pytest.raises(InvalidOption, match=r"^advance by -3600 s: must be a time of more than 0"):
        await kit.advance(hours=-1)


async def test_a_delay_ends_at_its_moment(kit: Kit) -> None:
    job = await note.options(delay=3600).enqueue(1)
    at = await note.options(at=kit.now + timedelta(hours=2)).enqueue(2)
    assert await kit.advance(minutes=59) == []
    [first] = await kit.advance(minutes=1)
    assert first.id == job.id
    assert first.processed_on is not None
    assert first.timestamp is not None
    assert 3600 <= (first.processed_on - first.timestamp).total_seconds() < 3600 + SLACK
    [second] = await kit.advance(hours=1)
    assert second.id == at.id


async def test_retries_run_on_the_way_each_at_its_time(kit: Kit) -> None:
    await flaky.enqueue()
    runs = await kit.advance(minutes=10)
    assert [job.state for job in runs] == ["delayed", "delayed", "delayed", "failed"]
    began = [job.processed_on for job in runs if job.processed_on is not None]
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(began)]
    assert [round(wait / 60) for wait in waits] == [1, 2, 4]
    assert all(wait % 60 < SLACK for wait in waits)


async def test_every_run_of_a_schedule_on_the_way(kit: Kit) -> None:
    async with JobScheduler("default", connection=kit.connection) as scheduler:
        await scheduler.upsert("often", Every(600), note.spec(1))
        await scheduler.upsert("nine", Cron("0 9 * * *", tz="Europe/Vienna"), note.spec(2))
        runs = await kit.advance(days=1, seconds=1)
    often = [job.scheduled_for for job in runs if job.data == {"number": 1}]
    assert len(often) == 24 * 6 + 1
    assert all(later - earlier == timedelta(minutes=10) for earlier, later in pairwise(often) if later and earlier)
    for job in runs:
        assert job.processed_on is not None
        assert job.scheduled_for is not None
        assert 0 <= (job.processed_on - job.scheduled_for).total_seconds() < SLACK
    [nine] = [job.scheduled_for for job in runs if job.data == {"number": 2}]
    assert nine is not None
    assert (nine.minute, nine.second) == (0, 0)
    assert kit.left() == []


@pytest.mark.parametrize(("missed", "made_up_for"), [("skip", 0), ("once", 1), ("catch_up", 6)])
async def test_what_an_outage_misses_is_for_the_schedule_to_say(kit: Kit, missed: Any, made_up_for: int) -> None:
    async with JobScheduler("default", connection=kit.connection) as scheduler:
        await scheduler.upsert("often", Every(600), note.spec(1), missed=missed)
        await kit.run_until_drained()
        assert await kit.advance(minutes=61, work=False) == []
        runs = await kit.run_until_drained()
    assert len([job for job in runs if not job.skipped]) == made_up_for


async def test_expiry_before_the_start(kit: Kit) -> None:
    job = await note.options(expire_in=60).enqueue(1)
    await kit.advance(minutes=2, work=False)
    assert await kit.run_until_drained() == []
    found = await job.refresh()
    assert found is not None
    assert (found.state, found.failure_kind) == ("failed", "expired")


async def test_deduplication_for_a_time(kit: Kit) -> None:
    once = note.options(deduplication=Deduplication("a", ttl=3600))
    first = await once.enqueue(1)
    assert (await once.enqueue(2)).deduplicated
    await kit.advance(minutes=59)
    assert (await once.enqueue(3)).id == first.id
    await kit.advance(minutes=1)
    assert (await once.enqueue(4)).id != first.id


async def test_rate_windows(kit: Kit) -> None:
    await app.queue("default").set_rate_limit(2, 60)
    for number in range(5):
        await note.enqueue(number)
    assert len(await kit.run_until_drained()) == 2
    assert await kit.advance(seconds=50) == []
    assert len(await kit.advance(seconds=10)) == 2
    assert len(await kit.advance(seconds=60)) == 1
    for number in range(5):
        await note.enqueue(number)
    assert len(await kit.run_until_drained(delayed=True)) == 5
    await kit.advance(seconds=60)
    await app.queue("default").rate_limit(30)
    await note.enqueue(6)
    assert await kit.advance(seconds=20) == []
    assert len(await kit.advance(seconds=10)) == 1


async def test_retention(kit: Kit) -> None:
    day = await note.enqueue(1)
    hour = await note.options(remove_on_complete=Keep(age=3600)).enqueue(2)
    await kit.advance(minutes=30)
    assert {job.id for job in kit.enqueued()} == {day.id, hour.id}
    await kit.advance(hours=25)
    assert kit.enqueued() == []


async def test_a_job_whose_worker_died_comes_back_when_its_lock_has_expired(kit: Kit) -> None:
    job = await note.enqueue(1)
    home = app.queue("default")._home
    link = await home.line.hub.link(hash_tag=True)
    turn = await take(Lane(link, home.keys), Want(30, "dead").args, 1, Patience(1))
    assert [taken.id for taken in turn.jobs] == [job.id]
    assert await kit.advance(seconds=25) == []
    [run] = await kit.advance(seconds=10)
    assert (run.id, run.state, run.stalled_count) == (job.id, "completed", 1)


async def test_a_job_whose_worker_lives_keeps_its_lock(kit: Kit) -> None:
    release = asyncio.Event()

    async def hang(job: Job[Any]) -> str:
        await release.wait()
        return "done"

    async with (
        Queue("held", connection=kit.connection) as queue,
        Worker("held", hang, connection=kit.connection, name="it", shutdown_timeout=0) as worker,
    ):
        await worker.ready()
        job = await queue.add("long", {})
        await wait_until(lambda: worker.stats.running == 1)
        await kit.advance(hours=1, work=False)
        patient, kit._patience = kit._patience, 0.2
        with pytest.raises(NotSettled, match="job '1' of queue 'held' is run by worker 'it'"):
            await kit.advance(hours=1)
        kit._patience = patient
        release.set()
        assert await job.result(timeout=5) == "done"
    found = next(found for found in kit.enqueued() if found.queue_name == "held")
    assert (found.stalled_count, found.attempts_started) == (0, 1)


async def test_events_and_keys_of_other_uses_move_too(kit: Kit) -> None:
    async with RedisOnce(kit.connection, expire=3600) as once:
        async with once("charge") as effect:
            assert not effect.done
            effect.result = 1
        async with once("charge") as effect:
            assert effect.done
        await kit.advance(hours=1)
        async with once("charge") as effect:
            assert not effect.done
    before = kit.now
    await note.enqueue(1)
    async with QueueEvents("default", connection=kit.connection, since=f"{int(before.timestamp() * 1000)}-0") as events:
        async for event in events:
            assert near(event.at, kit.now)
            break


# -- beside really waiting -----------------------------------------------------------------------------------------------------

Pass = Callable[[float], Awaitable[object]]


async def delays(app: EchoMQ, passes: Pass) -> object:
    @app.task(queue="delays")
    async def noted(number: int) -> None: ...

    jobs = [await noted.options(delay=delay).enqueue(number) for number, delay in enumerate((0.6, 0.3, 0, 5.0))]
    await passes(1.5)
    found = [await job.refresh() for job in jobs]
    began = sorted((job.processed_on, job.id) for job in found if job is not None and job.processed_on is not None)
    return [job.state for job in found if job is not None], [job_id for _, job_id in began]


async def retries(app: EchoMQ, passes: Pass) -> object:
    @app.task(queue="retries", attempts=3, backoff=Backoff.fixed(0.3))
    async def failing() -> None:
        raise ValueError

    job = await failing.enqueue()
    await passes(2.5)
    found = await job.refresh()
    assert found is not None
    assert found.finished_on is not None
    assert found.timestamp is not None
    return found.state, found.attempts_made, (found.finished_on - found.timestamp).total_seconds() >= 0.6


async def duplicates(app: EchoMQ, passes: Pass) -> object:
    @app.task(queue="duplicates")
    async def unique(number: int) -> None: ...

    once = unique.options(deduplication=Deduplication("a", ttl=1.5))
    first, second = await once.enqueue(1), await once.enqueue(2)
    await passes(2)
    third = await once.enqueue(3)
    return first.deduplicated, second.deduplicated, third.deduplicated


async def windows(app: EchoMQ, passes: Pass) -> object:
    @app.task(queue="windows")
    async def limited(number: int) -> None: ...

    await app.queue("windows").set_rate_limit(2, 0.5)
    jobs = await app.queue("windows").add_bulk(limited.spec(number) for number in range(5))
    await passes(3)
    began = []
    for job in jobs:
        found = await job.refresh()
        assert found is not None
        assert found.processed_on is not None
        began.append(found.processed_on.timestamp())
    return [later - earlier >= 0.4 for earlier, later in pairwise(began)]


async def ages(app: EchoMQ, passes: Pass) -> object:
    @app.task(queue="ages", remove_on_complete=Keep(age=1))
    async def short() -> None: ...

    job = await short.enqueue()
    await passes(3)
    return await job.refresh()


async def schedules(app: EchoMQ, passes: Pass) -> object:
    @app.task(queue="schedules")
    async def again() -> None: ...

    async with JobScheduler(app.queue("schedules")) as scheduler:
        await scheduler.upsert("s", Every(0.5), again.spec(), limit=4)
        await passes(3)
        info = await scheduler.get("s")
    counts = await app.queue("schedules").counts("completed", "delayed")
    return counts, info is None


SCENARIOS = (delays, retries, duplicates, windows, ages, schedules)


async def test_moved_time_is_like_time_that_was_waited_for(throw_away: Server) -> None:
    waited_for, moved = EchoMQ("redis://127.0.0.1:1"), EchoMQ("redis://127.0.0.1:1")
    async with on_server(waited_for, throw_away) as kit:

        async def passes(seconds: float) -> None:
            await asyncio.sleep(seconds)

        every = [asyncio.create_task(scenario(waited_for, passes)) for scenario in SCENARIOS]
        working = asyncio.create_task(waited_for.work(*(one.__name__ for one in SCENARIOS), stalled_interval=0.5))
        really = await asyncio.gather(*every)
        working.cancel()
        await asyncio.wait([working])
    async with on_server(moved, throw_away) as kit:
        quickly = [await scenario(moved, lambda seconds: kit.advance(seconds=seconds)) for scenario in SCENARIOS]
    assert quickly == really
