"""Changing jobs that are in the queue already, one by one and many at once, and the limits of a queue; one idea a test."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis

from echomq import (
    BrokenKey,
    Cron,
    InvalidOption,
    Job,
    JobFailed,
    JobNotFound,
    JobScheduler,
    JobSpec,
    Limiter,
    Queue,
    StateError,
    Worker,
)
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("enrollments", connection=url) as queue:
        yield queue


async def ids(queue: Queue, *states: Any, newest_first: bool = False) -> list[str]:
    return [job.id async for job in queue.jobs(*states, newest_first=newest_first)]


async def now(job: Job[Any]) -> Job[Any]:
    found = await job.refresh()
    assert found is not None
    return found


async def run(queue: Queue, *, fail: bool = False) -> list[str]:
    """Runs what is in the line; gives the ids in the order in which they ran."""
    ran: list[str] = []

    async def handler(job: Job[Any]) -> str:
        ran.append(job.id)
        if fail:
            raise ValueError("no seat")
        return "seat"

    async with Worker(queue, handler) as worker:
        await worker.run_until_drained()
    return ran


# -- one job -------------------------------------------------------------------------------------------------------------


async def test_a_delayed_job_is_promoted(queue: Queue) -> None:
    job = await queue.add("enroll", delay=60)
    await job.promote()
    assert ((await now(job)).state, (await now(job)).delay) == ("waiting", 0.0)
    assert await run(queue) == [job.id]


async def test_a_promoted_job_keeps_its_priority(queue: Queue) -> None:
    job = await queue.add("enroll", delay=60, priority=5)
    await job.promote()
    assert (await now(job)).state == "prioritized"


async def test_a_delayed_job_gets_another_time(queue: Queue) -> None:
    job = await queue.add("enroll", delay=60)
    await job.change_delay(timedelta(hours=1))
    assert (await now(job)).delay == 3600
    await job.change_delay(at=datetime.now(UTC) + timedelta(minutes=10))
    assert 590 < (await now(job)).delay <= 600
    await job.change_delay(at=datetime(2020, 1, 1, tzinfo=UTC))
    async with Worker(queue, lambda _: "seat"):
        assert await job.result(timeout=10) == "seat"


async def test_a_worker_that_sleeps_notices_the_new_time(queue: Queue) -> None:
    job = await queue.add("enroll", delay=60)
    async with Worker(queue, lambda _: "seat") as worker:
        await worker.ready()
        await job.change_delay(0.05)
        assert await job.result(timeout=2) == "seat"


@pytest.mark.parametrize(
    "given",
    [{}, {"delay": 1, "at": datetime.now(UTC)}, {"delay": -1}, {"delay": "1"}, {"at": datetime(2030, 1, 1)}],  # noqa: DTZ001
)
async def test_a_time_that_is_none_changes_nothing(queue: Queue, given: dict[str, Any]) -> None:
    job = await queue.add("enroll", delay=60)
    with pytest.raises(InvalidOption):
        await job.change_delay(**given)
    assert (await now(job)).delay == 60


async def test_another_priority_moves_a_job_in_the_line(queue: Queue) -> None:
    first, second, third = [await queue.add("enroll", priority=priority) for priority in (3, 3, 9)]
    plain = await queue.add("enroll")
    await third.change_priority(3)
    assert await ids(queue, "prioritized") == [first.id, second.id, third.id]
    await third.change_priority(3, lifo=True)
    assert await ids(queue, "prioritized") == [third.id, first.id, second.id]
    await second.change_priority(0, lifo=True)
    assert ((await now(second)).priority, (await now(second)).state) == (0, "waiting")
    assert await run(queue) == [second.id, plain.id, third.id, first.id]


async def test_a_priority_outlives_a_delay(queue: Queue) -> None:
    job = await queue.add("enroll", delay=60)
    await job.change_priority(7)
    await job.promote()
    assert (await now(job)).state == "prioritized"


@pytest.mark.parametrize("priority", [-1, 2_097_152, 1.5, True, "1"])
async def test_a_priority_that_is_none_changes_nothing(queue: Queue, priority: Any) -> None:
    job = await queue.add("enroll")
    with pytest.raises(InvalidOption, match="priority"):
        await job.change_priority(priority)
    assert (await now(job)).priority == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda job, queue: job.change_priority(4, lifo="x"), "lifo='x': must be True or False"),
        (lambda job, queue: job.retry(reset_attempts="x"), "reset_attempts='x': must be True or False"),
        (lambda job, queue: job.remove(children=0), "children=0: must be True or False"),
        (lambda job, queue: queue.admin.drain(delayed="no"), "delayed='no': must be True or False"),
        (lambda job, queue: queue.set_concurrency(0), "most=0: must be a whole number"),
        (lambda job, queue: queue.get_job(7), "job_id=7: must be a text that is not empty; write '7'"),
        (lambda job, queue: queue.dead_letter.requeue(7), "job_id=7: must be a text that is not empty; write '7'"),
        (lambda job, queue: queue.publish("mine", event=1), "event=1: a field cannot be called 'event'"),
        (
            lambda job, queue: queue.publish("mine", **{f"f{n}": n for n in range(101)}),
            "has 101 fields, and at most 100",
        ),
        (lambda job, queue: queue.publish("\ud800"), "event '\\ud800': holds a lone surrogate"),
        (lambda job, queue: queue.publish("mine", course="\ud800"), "course='\\ud800': holds a lone surrogate"),
        (lambda job, queue: queue.publish("mine", **{"\ud800": 1}), "field '\\ud800': holds a lone surrogate"),
        (lambda job, queue: queue.publish("mine", share=float("nan")), "share=nan: must be a finite number"),
    ],
)
async def test_an_argument_that_breaks_a_rule_is_named_with_its_value(queue: Queue, call: Any, says: str) -> None:
    job = await queue.add("enroll")
    with pytest.raises(InvalidOption) as caught:
        await call(job, queue)
    assert says in str(caught.value)
    assert (await now(job)).state == "waiting"


async def test_a_failed_job_runs_again(queue: Queue) -> None:
    job = await queue.add("enroll")
    await run(queue, fail=True)
    assert (await now(job)).failed_reason == "ValueError: no seat"
    await job.retry()
    again = await now(job)
    assert (again.state, again.failed_reason, again.finished_on, again.attempts_made) == ("waiting", None, None, 1)
    assert len(again.stacktrace) == 1
    await run(queue)
    assert await job.result(timeout=5) == "seat"
    assert (await now(job)).attempts_made == 2


async def test_with_its_attempts_used_up_a_retried_job_has_one_more(queue: Queue) -> None:
    job = await queue.add("enroll", attempts=2)
    assert len(await run(queue, fail=True)) == 2
    await job.retry()
    assert len(await run(queue, fail=True)) == 1
    await job.retry(reset_attempts=True)
    assert (await now(job)).attempts_made == 0
    assert len(await run(queue, fail=True)) == 2


async def test_a_completed_job_runs_again_too(queue: Queue) -> None:
    job = await queue.add("enroll")
    await run(queue)
    await job.retry()
    assert (await now(job)).return_value is None
    assert await run(queue) == [job.id]


async def test_a_job_that_is_elsewhere_is_named_with_where_it_is(queue: Queue) -> None:
    job = await queue.add("enroll")
    for change, needed in ((job.promote(), "delayed"), (job.change_delay(1), "delayed"), (job.retry(), "failed")):
        with pytest.raises(
            StateError, match=rf"job '1' of queue 'enrollments' .* it is waiting, and must be {needed}"
        ) as told:
            await change
        assert told.value.found == "waiting"
    assert await ids(queue, "waiting") == [job.id]


async def test_a_job_that_is_gone_says_so(queue: Queue) -> None:
    job = await queue.add("enroll", delay=60)
    await job.remove()
    for change in (job.promote(), job.change_delay(1), job.change_priority(1), job.retry()):
        with pytest.raises(JobNotFound, match="there is no such job"):
            await change


async def test_a_deep_tree_is_removed_whole(server: Server) -> None:
    async with Queue("steps", connection=server.url) as queue, Queue("other", connection=server.url) as other:
        jobs = [await (queue if n % 7 else other).add("step", job_id=f"s{n}") for n in range(700)]
        with server.client() as client:
            keys = [f"emq:{{{job.queue_name}}}:{job.id}" for job in jobs]
            link(client, [*keys, keys[0]])
            with pytest.raises(BrokenKey, match=r"in a circle, (emq:\{\w+\}:s\d+) for one; remove that one") as told:
                await asyncio.wait_for(jobs[0].remove(), 30)
            assert await queue.counts("waiting") == {"waiting": 600}
            circular = keys.index(str(told.value).partition("circle, ")[2].partition(" ")[0])
            await jobs[circular].remove(children=False)
            await jobs[circular + 1].remove()  # the top of 699, the way round
            assert await queue.counts("waiting") == await other.counts("waiting") == {"waiting": 0}
            assert client.keys("emq:*:s*") == []


def link(client: redis.Redis, keys: list[str]) -> None:
    """Makes each of these jobs the parent of the next."""
    pipeline = client.pipeline(transaction=False)
    for parent, child in pairwise(keys):
        pipeline.sadd(f"{parent}:dependencies", child)
        pipeline.hset(child, "parentKey", parent)
    pipeline.execute()


# -- many jobs -----------------------------------------------------------------------------------------------------------


async def test_all_failed_jobs_run_again_the_oldest_first(queue: Queue) -> None:
    await queue.add_bulk(JobSpec("enroll") for _ in range(5))
    await queue.add("enroll", priority=1)
    order = await run(queue, fail=True)
    assert await queue.admin.retry_all() == 6
    assert await queue.counts("failed", "waiting", "prioritized") == {"failed": 0, "waiting": 5, "prioritized": 1}
    assert await run(queue) == order
    assert await queue.admin.retry_all("completed") == 6
    assert await queue.admin.retry_all() == 0


async def test_all_delayed_jobs_run_now_in_the_order_of_their_times(queue: Queue) -> None:
    later, sooner = await queue.add("enroll", delay=120), await queue.add("enroll", delay=60)
    urgent = await queue.add("enroll", delay=60, priority=1)
    assert await queue.admin.promote_all() == 3
    assert (await now(later)).delay == 0
    assert await run(queue) == [sooner.id, later.id, urgent.id]


async def test_next_runs_of_schedules_stay_where_they_are(queue: Queue, url: str, server: Server) -> None:
    async with JobScheduler("enrollments", connection=url) as scheduler:
        nights = [await scheduler.upsert(f"night-{n}", Cron("0 3 * * *"), JobSpec("tidy")) for n in range(300)]
        delayed = [await queue.add("enroll", delay=delay) for delay in (60, 900_000)]
        assert await queue.admin.promote_all() == 2
        assert await run(queue) == [job.id for job in delayed]
        assert await queue.counts("delayed") == {"delayed": 300}
        assert [await scheduler.get(night.id) for night in nights] == nights
        assert await queue.admin.promote_all() == 0
        with server.client() as client:  # more of one due time than a score tells apart, and more than a step
            key = "emq:{enrollments}:delayed"
            for job_id in await ids(queue, "delayed"):
                client.zadd(key, {job_id: 2**52})
        behind = await queue.add("enroll", delay=9 * 365 * 86_400)
        with server.client() as client:
            client.zadd(key, {behind.id: 2**52 + 1})
        assert await queue.admin.promote_all() == 1
        assert await queue.counts("delayed", "waiting") == {"delayed": 300, "waiting": 1}


async def test_draining_takes_what_waits_and_nothing_else(queue: Queue) -> None:
    failed = await queue.add("enroll")
    await run(queue, fail=True)
    delayed = await queue.add("enroll", delay=60)
    await queue.add("enroll")
    await queue.add("enroll", priority=1)
    assert await queue.admin.drain() == 2
    assert await ids(queue) == [delayed.id, failed.id]
    assert await queue.admin.drain(delayed=True) == 1
    assert await ids(queue) == [failed.id]


async def test_cleaning_takes_what_is_old_enough(queue: Queue) -> None:
    old = [await queue.add("enroll", timestamp=datetime.now(UTC) - timedelta(days=days)) for days in (9, 8, 7)]
    fresh = await queue.add("enroll")
    assert await queue.admin.clean("waiting", timedelta(days=1), limit=1) == [old[0].id]
    assert await queue.admin.clean("waiting", timedelta(days=1)) == [old[1].id, old[2].id]
    assert await ids(queue) == [fresh.id]
    await run(queue)
    assert await queue.admin.clean("completed", 60) == []
    assert await queue.admin.clean("completed", 0) == [fresh.id]
    assert await queue.admin.clean("failed", 0) == []


@pytest.mark.parametrize(
    "call", ["clean('unknown', 1)", "clean('failed', -1)", "clean('failed', 1, 0)", "retry_all('waiting')"]
)
async def test_what_cannot_be_cleaned_or_retried(queue: Queue, call: str) -> None:
    with pytest.raises(InvalidOption):
        await eval(f"admin.{call}", {"admin": queue.admin})


async def test_thousands_go_in_steps_that_hold_up_nobody(queue: Queue, server: Server) -> None:
    """A call retries at most 250 and removes at most 150 jobs, so there must have been as many calls."""
    await queue.add_bulk(JobSpec("enroll", priority=number % 2) for number in range(20_000))
    with server.client() as client:

        def calls() -> int:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

        move_to_failed(client, "emq:{enrollments}:")
        start = calls()
        assert await queue.admin.retry_all() == 20_000
        assert calls() - start >= 20_000 // 250
        assert await queue.counts("failed", "waiting", "prioritized") == {
            "failed": 0, "waiting": 10_000, "prioritized": 10_000,
        }  # fmt: skip
        assert await ids(queue, "waiting") == [str(n) for n in range(1, 20_001, 2)]
        assert await queue.admin.clean("prioritized", 0, limit=777) == [str(n) for n in range(2, 2 * 778, 2)]
        start = calls()
        assert await queue.admin.drain() == 20_000 - 777
        assert calls() - start >= 20_000 // 150 - 5
        left = {key.rpartition(b":")[2] for key in client.execute_command("KEYS", "emq:{enrollments}:*")}
        assert left <= {b"id", b"pc", b"meta", b"events", b"marker"}


def move_to_failed(client: redis.Redis, key: str) -> None:
    """As if all had failed, in the order of their ids."""
    everything = [f"{number}" for number in range(1, 20_001)]
    client.execute_command("DEL", key + "wait", key + "prioritized")
    for start in range(0, 20_000, 1000):
        pairs = [one for job_id in everything[start : start + 1000] for one in (job_id, job_id)]
        client.execute_command("ZADD", key + "failed", *pairs)


async def test_what_is_added_meanwhile_stays(queue: Queue) -> None:
    """Drained, cleaned and retried while others add, and while a worker works."""
    await queue.add_bulk(JobSpec("enroll", {"old": True}) for _ in range(3000))
    ran: set[str] = set()
    added: set[str] = set()
    stop = asyncio.Event()

    async def keep_adding() -> None:
        rng = random.Random(7)
        while not stop.is_set():
            job = await queue.add("enroll", {"old": False}, lifo=rng.random() < 0.3, priority=rng.choice((0, 0, 2)))
            added.add(job.id)

    async def handler(job: Job[Any]) -> None:
        ran.add(job.id)
        if job.attempts_made == 0:
            raise ValueError("the first time")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_adding())
        await wait_until(lambda: len(added) > 20)
        before = set(added)
        removed = await queue.admin.drain()
        assert removed >= 3000
        async with Worker(queue, handler, concurrency=5):
            await wait_until(lambda: len(ran) > 50)
            await queue.admin.retry_all()
            await queue.admin.clean("completed", 60)
            seen = len(ran)
            await wait_until(lambda: len(ran) > seen + 10)
            stop.set()
    since = added - before
    async with Worker(queue, handler, concurrency=5) as worker:
        await worker.run_until_drained()
        await queue.admin.retry_all()
        await worker.run_until_drained()
    gone = since - ran
    assert len(gone) <= 1, "but the one that was on its way when draining began"


# -- looking -------------------------------------------------------------------------------------------------------------


async def test_jobs_come_state_by_state(queue: Queue) -> None:
    waiting = [(await queue.add("enroll")).id for _ in range(3)]
    urgent = (await queue.add("enroll", priority=1)).id
    delayed = (await queue.add("enroll", delay=60)).id
    assert await ids(queue, "waiting") == waiting
    assert await ids(queue, "waiting", newest_first=True) == waiting[::-1]
    assert await ids(queue, "delayed", "waiting") == [delayed, *waiting]
    assert set(await ids(queue)) == {*waiting, urgent, delayed}
    states = {job.id: job.state async for job in queue.jobs()}
    assert (states[urgent], states[delayed]) == ("prioritized", "delayed")


async def test_jobs_come_in_pages_and_none_twice(queue: Queue) -> None:
    await queue.add_bulk(JobSpec("enroll", {"n": n}) for n in range(350))
    seen = [job.data["n"] async for job in queue.jobs("waiting", "waiting")]
    assert seen == list(range(350))


async def test_a_state_that_is_none(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match="must be one of"):
        await ids(queue, "wait")


# -- limits --------------------------------------------------------------------------------------------------------------


async def test_a_global_concurrency_holds_over_all_workers(queue: Queue) -> None:
    running, most = 0, 0

    async def handler(_: Job[Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    assert await queue.concurrency() is None
    await queue.set_concurrency(2)
    assert await queue.concurrency() == 2
    await queue.add_bulk(JobSpec("enroll") for _ in range(40))
    async with Worker(queue, handler, concurrency=5) as first, Worker(queue, handler, concurrency=5):
        await first.run_until_drained()
        await wait_until(lambda: running == 0)
    assert most == 2
    assert (await queue.counts("completed"))["completed"] == 40


@pytest.mark.parametrize("then", [3, None])
async def test_workers_that_wait_for_a_slot_notice_a_higher_concurrency_at_once(queue: Queue, then: int | None) -> None:
    release = asyncio.Event()
    started: list[str] = []

    async def handler(job: Job[Any]) -> None:
        started.append(job.id)
        await release.wait()

    await queue.set_concurrency(1)
    await queue.add_bulk(JobSpec("enroll") for _ in range(3))
    async with Worker(queue, handler, concurrency=3) as worker:
        await wait_until(lambda: started)
        await worker.ready()
        await queue.set_concurrency(then)
        await wait_until(lambda: len(started) == 3, 2)
        release.set()


async def test_a_rate_limit_of_the_queue(queue: Queue) -> None:
    assert await queue.limiter() is None
    await queue.set_rate_limit(5, timedelta(minutes=1))
    assert await queue.limiter() == Limiter(5, 60)
    await queue.add_bulk(JobSpec("enroll") for _ in range(8))
    async with Worker(queue, lambda _: None, concurrency=3):
        await wait_until(lambda: counted(queue, "completed", 5))
        assert 50 < await queue.rate_limit_ttl() <= 60
        assert await queue.rate_limit_ttl(max=100) == 0
        await queue.remove_rate_limit()
        await wait_until(lambda: counted(queue, "completed", 8), 2, "workers that wait for the window notice at once")
    assert await queue.limiter() is None
    assert await queue.rate_limit_ttl() == 0


async def counted(queue: Queue, state: Any, count: int) -> bool:
    return (await queue.counts(state))[state] == count


async def test_a_limit_by_hand_holds_back_all_workers_until_it_is_lifted(queue: Queue) -> None:
    await queue.rate_limit(60)
    assert 59 < await queue.rate_limit_ttl() <= 60
    job = await queue.add("enroll")
    async with Worker(queue, lambda _: "seat") as one, Worker(queue, lambda _: "seat"):
        await one.ready()
        assert (await now(job)).state == "waiting"
        await queue.rate_limit(0)
        assert await job.result(timeout=2) == "seat"
    assert await queue.rate_limit_ttl() == 0


async def test_a_limit_by_hand_ends_by_itself(queue: Queue) -> None:
    job = await queue.add("enroll")
    await queue.rate_limit(0.3)
    began = asyncio.get_running_loop().time()
    async with Worker(queue, lambda _: "seat"):
        await job.result(timeout=5)
    assert asyncio.get_running_loop().time() - began > 0.25


@pytest.mark.parametrize(
    "call",
    ["set_concurrency(0)", "set_concurrency(1.5)", "set_rate_limit(0, 1)", "set_rate_limit(1, 0)", "rate_limit(-1)",
     "rate_limit_ttl(0)"],
)  # fmt: skip
async def test_a_limit_that_is_none_changes_nothing(queue: Queue, call: str, server: Server) -> None:
    with pytest.raises(InvalidOption):
        await eval(f"queue.{call}", {"queue": queue})
    with server.client() as client:
        assert client.keys("*") == []


async def test_pausing_and_resuming_in_any_order(queue: Queue) -> None:
    """Each may be asked for twice, and the last one counts."""
    rng = random.Random(79)
    for _ in range(30):
        steps = [rng.random() < 0.5 for _ in range(rng.randrange(1, 5))]
        for pause in steps:
            await (queue.pause() if pause else queue.resume())
        assert await queue.is_paused() == steps[-1]
    await queue.pause()
    job = await queue.add("enroll")
    async with Worker(queue, lambda _: "seat") as worker:
        await worker.ready()
        await queue.resume()
        await queue.resume()
        assert await job.result(timeout=2) == "seat"


# -- events of one's own -------------------------------------------------------------------------------------------------


async def test_an_event_of_ones_own(queue: Queue, server: Server) -> None:
    await queue.publish("course-closed", course="redis", learners=30, full=True, share=0.5, name="x")
    with server.client() as client:
        client.response_callbacks.clear()
        [(_, fields)] = client.execute_command("XRANGE", "emq:{enrollments}:events", "-", "+")
    assert [text.decode() for text in fields] == [
        "event", "course-closed", "course", "redis", "learners", "30", "full", "true", "share", "0.5", "name", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields"),
    [("completed", {}), ("error", {}), ("", {}), (7, {}), ("mine", {"event": "x"}), ("mine", {"data": {}}),
     ("mine", {"none": None})],
)  # fmt: skip
async def test_an_event_that_may_not_be_written(
    queue: Queue, name: Any, fields: dict[str, Any], server: Server
) -> None:
    with pytest.raises(InvalidOption):
        await queue.publish(name, **fields)
    with server.client() as client:
        assert client.keys("*") == []


async def test_who_waits_for_a_job_that_is_retried_hears_of_its_next_end(queue: Queue) -> None:
    job = await queue.add("enroll")
    await run(queue, fail=True)
    with pytest.raises(JobFailed):
        await job.result(timeout=5)
    await job.retry()
    waiter = asyncio.create_task(job.result(timeout=10))
    await run(queue)
    assert await waiter == "seat"
