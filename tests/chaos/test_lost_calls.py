"""Requests and replies are lost, and arrive late, for every script that workers and queues call; each job runs once."""

from __future__ import annotations

import asyncio
import json
import random
from importlib.resources import files
from typing import Any

import pytest

from echomq import Connection, Cron, Deduplication, Job, JobScheduler, JobSpec, Queue, StateError, Worker
from echomq._lua.loader import script, scripts
from echomq._store.keys import QueueKeys
from echomq.metrics import prometheus_text
from tests.chaos.rig import BASE, FAST, LOCK, QUEUE, Runs, assert_sound
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

CALLED = [
    "addJobs-11",
    "advanceScheduler-15",
    "cancelJob-16",
    "changeDelay-5",
    "changePriority-8",
    "cleanJobs-12",
    "clearLogs-1",
    "drain-9",
    "explainJob-15",
    "extendLocks-2",
    "forgetQueue-10",
    "getCounts-8",
    "getGauges-10",
    "getCountsPerPriority-3",
    "getJob-8",
    "getLogs-1",
    "getMetrics-2",
    "getPage-8",
    "getRateLimitTtl-2",
    "getRunning-1",
    "getSchedulers-2",
    "healJobs-12",
    "isFinished-2",
    "limitEvents-2",
    "lookForLost-9",
    "moveJobsToWait-11",
    "moveStalledJobsToWait-14",
    "moveToActive-11",
    "moveToFinished-14",
    "obliterate-12",
    "passMarkerOn-6",
    "pause-6",
    "pauseScheduler-13",
    "promote-9",
    "publishEvent-3",
    "rateLimit-8",
    "remove-5",
    "removeDeduplicationKey-1",
    "removeOrphans-8",
    "removeScheduler-6",
    "reprocessJob-10",
    "requeue-5",
    "resume-8",
    "setLimits-7",
    "trimEvents-2",
    "updateJobs-4",
    "upsertScheduler-16",
]
ELSEWHERE = {
    *("claimEffect-1", "finishEffect-1", "releaseEffect-1"),  # tests/api/test_idempotency.py
    "takeOutcomes-2",  # test_results_queue.py
    "takeFromDead-10",  # by a supervisor: test_supervisor.py
    *("takeEvents-1", "keepEvents-1", "leaveEvents-1"),  # tests/api/test_event_groups.py
    *(
        name for name, found in scripts().items() if found.origin[-1][0].startswith("scripts/doctor/")
    ),  # tests/store/test_doctor.py
}
NOT_CALLED = {"getState-8", "releaseLock-1"}  # by a worker or a queue, so far

DAY_MS = 86_400_000


def test_every_script_is_here() -> None:
    folder = files("echomq._lua") / "scripts"
    names = {entry.name.removesuffix(".lua") for word in folder.iterdir() for entry in word.iterdir()}
    assert names == {*CALLED, *ELSEWHERE, *NOT_CALLED}


def put_iteration(server: Server) -> str:
    """The running iteration of a daily schedule, as Node leaves it; gives its id."""
    now = int(server.cli("TIME")[0]) * 1000
    job_id = f"repeat:daily:{now}"
    repeat = {"every": DAY_MS, "count": 1}
    with server.client() as client:
        client.zadd(BASE + "repeat", {"daily": now})
        client.hset(BASE + "repeat:daily", mapping={"name": "tick", "every": DAY_MS, "ic": 1})
        fields: dict[Any, Any] = {
            "name": "tick", "data": "{}", "opts": json.dumps({"repeat": repeat, "repeatJobKey": "daily", "attempts": 0}),
            "timestamp": now, "delay": 0, "priority": 0, "rjk": "daily",
        }  # fmt: skip
        client.hset(BASE + job_id, mapping=fields)
        client.lpush(BASE + "wait", job_id)
        client.zadd(BASE + "marker", {"0": 0})
    return job_id


async def journey(queue: Queue, worker: Worker, runs: Runs) -> list[Job[Any]]:
    """All that queues and workers do, each at least once."""
    jobs = await queue.add_bulk([JobSpec("work", {"seconds": seconds}) for seconds in (0, 0.3 * LOCK, 0)])
    assert await jobs[1].result(timeout=15) == jobs[1].id
    await worker.pause()
    await worker.resume()
    await queue.pause()
    assert await queue.is_paused()
    await change(queue, jobs)
    last = await queue.add("work", {}, deduplication=Deduplication.latest("last"))
    assert (await queue.add("work", {}, deduplication="last")).id == last.id
    assert await last.remove_deduplication()
    doomed = await queue.add("never", {}, delay=3600)
    await doomed.remove()
    assert await queue.get_job(doomed.id) is None
    unwanted = await queue.add("never", {}, delay=3600)
    assert await unwanted.cancel()
    await unwanted.remove()
    assert (await queue.counts("waiting"))["waiting"] == 1
    scheduler = JobScheduler(queue)
    await scheduler.upsert("new year", Cron("0 0 1 1 *"), JobSpec("never"))
    await scheduler.pause("new year")
    assert (await scheduler.resume("new year")).iteration_count == 1
    assert await scheduler.remove("new year")
    await queue.resume()
    assert await last.result(timeout=15) == last.id
    return [*jobs, last]


async def change(queue: Queue, ended: list[Job[Any]]) -> None:
    """All changes of jobs and limits, while the queue is paused and these jobs have ended."""
    await asyncio.gather(*(job.result(timeout=15) for job in ended))
    await queue.publish("mine", number=1)
    assert await ended[0].log("it has ended") == 1
    assert (await ended[0].logs()).lines == ["it has ended"]
    await ended[0].clear_logs()
    assert (await ended[0].explain()).state == "completed"
    assert await queue.counts_per_priority(1) == {1: 0}
    assert (await queue.metrics("completed")).count == 0
    await queue.set_concurrency(50)
    await queue.set_concurrency(None)
    await queue.rate_limit(0)
    assert await queue.rate_limit_ttl() == 0
    assert "bullmq_job_count" in await prometheus_text(queue)
    assert isinstance(await queue.workers(), list)
    assert await queue.admin.retry_all() == 0
    await queue.dead_letter.add("never", {})
    assert await queue.dead_letter.admin.obliterate() == 1
    letter = await queue.dead_letter.add("never", {})
    assert len(await queue.dead_letter.requeue(letter.id)) == 1
    assert await queue.admin.drain() == 1
    first = await queue.add("never", {}, delay=3600)
    await first.change_delay(7200)
    await first.promote()
    await first.change_priority(3)
    with pytest.raises(StateError):
        await first.retry()
    assert first.id in [job.id async for job in queue.jobs("prioritized")]
    assert await queue.admin.clean("prioritized", 0) == [first.id]
    lost = await queue.add("never", {})
    await queue._home.line.ask("LREM", BASE + "wait", "0", lost.id)
    await queue._home.line.ask("RPUSH", BASE + "gone:logs", "a line")
    assert await queue.admin.remove_orphans() == 1
    assert (await queue.admin.heal()).put_back == {"waiting": [lost.id]}
    await queue.admin.limit_events(count=10_000)
    assert await queue.admin.trim_events(10_000) == 0
    assert await queue.admin.drain() == 1


@pytest.mark.parametrize("loss", ["request", "reply"])
@pytest.mark.parametrize("name", CALLED)
async def test_a_call_is_lost(name: str, loss: Loss, server: Server, proxy: Proxy) -> None:
    iteration, runs = put_iteration(server), Runs()
    async with Queue(QUEUE, connection=Connection(proxy.url, wait=20)) as queue:
        proxy.lose(loss, needle(name))
        async with Worker(QUEUE, runs, connection=proxy.url, concurrency=4, **FAST) as worker:
            jobs = await journey(queue, worker, runs)
            await wait_until(lambda: len(runs.ended) == 5)
    assert proxy.seen >= 1
    assert sorted(job_id for job_id, _, _ in runs.started) == sorted([iteration, *(job.id for job in jobs)])
    with server.client() as client:
        assert client.zcard(BASE + "delayed") == 1  # the schedule's next iteration, once
        assert client.zcard(BASE + "completed") == 5
    assert_sound(server, jobs=6, ended=[job.id for job in jobs])


def snapshot(server: Server, *but: str) -> dict[bytes, bytes | None]:
    """All keys but these, and but the guard of the sweep, which may expire at any moment."""
    with server.client() as client:
        keys = [key for key in client.scan_iter("*") if not key.decode().endswith((":stalled-check", *but))]
        return {key: client.dump(key) for key in sorted(keys)}


@pytest.mark.parametrize("name", CALLED)
async def test_an_old_call_arrives_late(name: str, server: Server, proxy: Proxy) -> None:
    """The client has given the call up, made it again and gone on; then the first one reaches the server."""
    put_iteration(server)
    runs = Runs()
    with server.client() as client:  # so that the call that is held is one that would act
        for called in CALLED:
            client.script_load(script(called).source)
    async with Queue(QUEUE, connection=Connection(proxy.url, wait=20)) as queue:
        proxy.lose("hold", needle(name))
        async with Worker(QUEUE, runs, connection=proxy.url, concurrency=4, **FAST) as worker:
            going = asyncio.create_task(journey(queue, worker, runs), name="journey")
            await wait_until(lambda: proxy.holds == 1)
            proxy.cut()
            await going
            await journey(queue, worker, runs)  # every lane goes on
            await wait_until(lambda: server.cli("ZCARD", BASE + "completed") == 9)
    await wait_until(lambda: len(server.clients()) == 1)  # the one of the call that is held
    ignored = {"passMarkerOn-6": ("marker",), "lookForLost-9": (":active", ":wait", ":paused")}.get(name, ())
    before, errors = snapshot(server, *ignored), errors_said(server)
    proxy.release()
    await wait_until(lambda: not server.clients())
    assert snapshot(server, *ignored) == before
    if not name.startswith(("get", "is", "explain", "extend", "pass", "advance", "look", "forget")):
        assert (
            errors_said(server) > errors
        )  # refused as stale (the others change nothing, or are answered from their record)
    assert len(runs.started) == len(set(runs.started)) == 9
    assert_sound(server, jobs=10)


def errors_said(server: Server) -> int:
    told: bytes = server.cli("INFO", "stats")
    [line] = [line for line in told.splitlines() if line.startswith(b"total_error_replies:")]
    return int(line.split(b":")[1])


async def test_a_hundred_callers_are_cancelled_at_random(server: Server, proxy: Proxy) -> None:
    """Whoever stays gets what is its own: of each call the reply belongs to its caller."""
    chance = random.Random(5)
    async with Queue(QUEUE, connection=Connection(proxy.url, wait=20)) as queue:
        proxy.delay = 0.002

        async def one(number: int) -> int:
            job = await queue.add("work", {"number": number})
            assert job.data == {"number": number}
            read = await queue.get_job(job.id)
            assert read is not None
            assert read.data == {"number": number}
            return number

        for _ in range(5):
            callers = [asyncio.create_task(one(number)) for number in range(100)]
            for caller in chance.sample(callers, 50):
                asyncio.get_running_loop().call_later(chance.random() * 0.04, caller.cancel)
            answers = await asyncio.gather(*callers, return_exceptions=True)
            assert all(
                answer == number or isinstance(answer, asyncio.CancelledError) for number, answer in enumerate(answers)
            )
        stored = await queue.counts("waiting")
    assert stored["waiting"] >= 250
    assert_sound(server, jobs=stored["waiting"], starts=0)


def test_keys_are_those_of_the_rig() -> None:
    assert QueueKeys.of(QUEUE).base == BASE
