"""Why a job is where it is: one call, in words, for each place and each cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import (
    Cron,
    Deduplication,
    Every,
    Explanation,
    InvalidOption,
    Job,
    JobScheduler,
    JobSpec,
    Keep,
    Limiter,
    Queue,
    Unrecoverable,
    Worker,
)
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("q", connection=url) as made:
        yield made


def texts(explained: Explanation) -> dict[str, str]:
    return {reason.kind: reason.text for reason in explained.reasons}


async def counted(queue: Queue, **wanted: int) -> None:
    """Waits until so many jobs are in these states."""

    async def there() -> bool:
        found = await queue.counts()
        return all(found[state] == count for state, count in wanted.items())  # type: ignore[index]

    await wait_until(there)


async def fail(job: Job[Any]) -> None:
    raise ValueError("no paper")


async def test_a_job_that_nobody_fetches(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("print")] * 3)
    first, last = await queue.explain("1"), await queue.explain("3")
    assert first.state == last.state == "waiting"
    assert texts(first) == {
        "no_worker": "no worker of this queue is connected to the server, nor was one seen in the last day",
        "next": "it is the next in the line: the first worker with a free slot takes it",
    }
    assert texts(last)["behind"] == "2 jobs are before it in the line"
    assert [reason.count for reason in last.reasons] == [None, 2]
    assert abs(first.at - datetime.now(UTC)) < timedelta(minutes=1)
    assert str(last) == (
        "job '3' of queue 'q' is waiting\n"
        "  - no worker of this queue is connected to the server, nor was one seen in the last day\n"
        "  - 2 jobs are before it in the line"
    )


async def test_a_job_whose_workers_have_left(queue: Queue, url: str) -> None:
    await Worker("q", fail, connection=url).run_until_drained()
    await queue.add("print")
    found = texts(await queue.explain("1"))["no_worker"]
    assert found.startswith("no worker of this queue is connected to the server; the last one was seen ")
    assert found.endswith(" s ago")


async def test_a_job_with_a_priority_behind_others(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("print"), JobSpec("print", priority=1), JobSpec("print", priority=1)])
    job = await queue.add("print", priority=1)
    explained = await job.explain()
    assert explained.state == "prioritized"
    assert texts(explained)["behind"] == "3 jobs are before it in the line"


async def test_a_paused_queue(queue: Queue) -> None:
    await queue.add("print")
    await queue.pause()
    [first, *_] = (await queue.explain("1")).reasons
    assert (first.kind, first.text) == (
        "paused", "the queue is paused: no worker takes a job from it before queue.resume()",
    )  # fmt: skip


async def test_limits(queue: Queue, url: str) -> None:
    hold = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        await hold.wait()

    await queue.set_concurrency(1)
    await queue.add_bulk([JobSpec("print")] * 2)
    async with Worker("q", process, connection=url, concurrency=2) as worker:
        await counted(queue, active=1)
        found = texts(await queue.explain("2"))
        assert found["concurrency"] == (
            "the one slot of the queue (set_concurrency) is taken: 1 job runs, and has to end first"
        )
        assert "no_worker" not in found
        assert found["next"].endswith("takes it (of the queue 1 job runs now)")
        running = await queue.explain("1")
        assert running.state == "active"
        assert texts(running)["running"].startswith(f"worker {worker.name!r} has been running it for ")
        hold.set()
        await counted(queue, completed=2)


async def test_a_rate_limit(queue: Queue, url: str) -> None:
    await queue.set_rate_limit(1, 600)
    await queue.add_bulk([JobSpec("print")] * 2)

    async def process(job: Job[Any]) -> None:
        pass

    async with Worker("q", process, connection=url):
        await counted(queue, completed=1)
        explained = await queue.explain("2")
    [limited] = [reason for reason in explained.reasons if reason.kind == "rate_limited"]
    assert limited.text == "nothing of the queue starts for another 10 minutes: its rate limit of 1 is used up"
    assert limited.at is not None
    assert timedelta(minutes=9) < limited.at - explained.at <= timedelta(minutes=10)


async def test_a_limit_of_the_workers_own(queue: Queue, url: str) -> None:
    async def process(job: Job[Any]) -> None:
        pass

    await queue.add_bulk([JobSpec("print")] * 3)
    async with Worker("q", process, connection=url, limiter=Limiter(2, 600)):
        await counted(queue, completed=2)
        found = texts(await queue.explain("3"))
    assert found["rate_limited"] == (
        "workers with a rate limit of their own have started 2 jobs in a time that ends in 10 minutes; if that is all they may, "
        "they start nothing before"
    )


async def test_a_limit_by_hand(queue: Queue) -> None:
    await queue.add("print")
    await queue.rate_limit(60)
    found = texts(await queue.explain("1"))
    assert found["rate_limited"] == (
        "nothing of the queue starts for another 60 s: a worker, or somebody, has limited it (rate_limit)"
    )


async def test_a_delayed_job(queue: Queue, server: Server) -> None:
    await queue.add("print", delay=3600)
    explained = await queue.explain("1")
    [delayed] = explained.reasons
    assert delayed.text.startswith("it waits for its time, 20")
    assert delayed.text.endswith("UTC: in 60 minutes")
    assert delayed.at is not None
    assert timedelta(minutes=59) < delayed.at - explained.at <= timedelta(minutes=60)
    now = int(explained.at.timestamp() * 1000)
    with server.client() as client:
        client.zadd("emq:{q}:delayed", {"1": (now - 42_000) * 4096})
    found = texts(await queue.explain("1"))
    assert found["due"].startswith("its time came 42 s ago, ")
    assert "no_worker" in found


async def test_a_job_between_two_attempts(queue: Queue, url: str) -> None:
    job = await queue.add("print", attempts=3, backoff=60)
    await Worker("q", fail, connection=url).run_until_drained()
    found = texts(await job.explain())
    assert found["retry"] == (
        "it waits for its next attempt; the last run failed (1 of 3 attempts used): ValueError: no paper"
    )
    assert "delayed" in found


async def test_a_job_that_expires(queue: Queue, server: Server) -> None:
    await queue.add("print", expire_in=60)
    [*_, expires] = (await queue.explain("1")).reasons
    assert expires.text.startswith("if no worker has started it by 20")
    with server.client() as client:
        client.hincrby("emq:{q}:1", "timestamp", -120_000)
    [*_, expires] = (await queue.explain("1")).reasons
    assert expires.text.startswith("it is too late for it (expire_in): it fails when a worker takes it")


async def test_a_job_whose_worker_has_died(queue: Queue, url: str, server: Server) -> None:
    hold = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        await hold.wait()

    await queue.add("print")
    async with Worker("q", process, connection=url, lock_duration=60, name="w1", concurrency=2):
        await counted(queue, active=1)
        with server.client() as client:
            client.delete("emq:{q}:1:lock")
        explained = await queue.explain("1")
        hold.set()
    [lost] = explained.reasons
    assert lost.kind == "lock_lost"
    assert lost.text.startswith("worker 'w1' has started it for ")
    assert "a sweep of the workers puts it back into the line within " in lost.text
    assert lost.at is not None
    assert lost.at - explained.at <= timedelta(seconds=32)


async def test_a_parent_that_waits_for_its_children(queue: Queue, server: Server) -> None:
    await queue.add("bind", job_id="parent")
    with server.client() as client:
        client.lrem("emq:{q}:wait", 0, "parent")
        client.zadd("emq:{q}:waiting-children", {"parent": 1})
        client.sadd("emq:{q}:parent:dependencies", *(f"emq:{{q}}:c{number}" for number in range(5)))
        client.hset("emq:{q}:parent:processed", "emq:{q}:c7", "1")
        client.zadd("emq:{q}:parent:unsuccessful", {"emq:{q}:c8": 1})
    explained = await queue.explain("parent")
    assert explained.state == "waiting_children"
    assert str(explained).startswith("job 'parent' of queue 'q' is waiting for children\n")
    children, failed = explained.reasons
    assert children.text.startswith("it waits for 5 children (emq:{q}:c")
    assert children.text.endswith(", …); 1 have completed")
    assert len(children.jobs) == 3
    assert (failed.text, failed.jobs) == ("1 child has failed: emq:{q}:c8", ["emq:{q}:c8"])
    with server.client() as client:
        client.delete("emq:{q}:parent:dependencies")
    assert "none is left to wait for" in texts(await queue.explain("parent"))["no_children_left"]


async def test_a_job_that_will_fail(queue: Queue, server: Server) -> None:
    await queue.add("print")
    with server.client() as client:
        client.hset("emq:{q}:1", "defa", "child emq:{q}:7 failed")
    [first, *_] = (await queue.explain("1")).reasons
    assert first.text == "it fails as soon as a worker takes it: child emq:{q}:7 failed"


async def test_jobs_that_have_ended(queue: Queue, url: str) -> None:
    async def process(job: Job[Any]) -> None:
        if job.name == "bad":
            raise Unrecoverable("no paper")

    await queue.add("good", remove_on_complete=Keep(10, 3600))
    await queue.add("good")
    await queue.add("bad", attempts=3)
    await Worker("q", process, connection=url, name="w1").run_until_drained()
    explained = await queue.explain("1")
    completed, retained = explained.reasons
    assert completed.text.startswith("it completed 20")
    assert completed.text.endswith(" ago, by worker 'w1'")
    assert retained.text.startswith(
        "its own remove_on_complete keeps what ended within 60 minutes, and the last 10: until 20"
    )
    assert completed.at is not None
    assert retained.at == completed.at + timedelta(hours=1)
    assert texts(await queue.explain("2"))["retained"] == (
        "it stays as long as the workers' remove_on_complete says; by default what ended within 24 hours, and the last 100,000"
    )
    failed = await queue.explain("3")
    assert failed.state == "failed"
    assert texts(failed)["failed"].startswith("it failed for good 20")
    assert texts(failed)["failed"].endswith(" (kind of failure: unrecoverable): no paper")


async def test_a_job_that_holds_a_deduplication_id(queue: Queue) -> None:
    await queue.add("print", deduplication="d7")
    await queue.add("print", deduplication=Deduplication("d8", ttl=600))
    assert texts(await queue.explain("1"))["deduplication"] == (
        "it holds the deduplication id 'd7' until it has ended: an add with this id adds nothing meanwhile"
    )
    assert "'d8' for another 10 minutes" in texts(await queue.explain("2"))["deduplication"]


async def test_runs_of_a_schedule(queue: Queue) -> None:
    scheduler = JobScheduler(queue)
    await scheduler.upsert("yearly", Cron("0 0 1 1 *"), JobSpec("report"))
    [job] = [job async for job in queue.jobs("delayed")]
    assert texts(await job.explain())["schedule"].startswith("it is the next run of schedule 'yearly'")
    await scheduler.pause("yearly")
    gone = await queue.explain(job.id)
    assert gone.state is None
    assert texts(gone)["schedule_paused"].startswith("schedule 'yearly' is paused, and its next run was taken out")
    await scheduler.upsert("often", Every(3600), JobSpec("report"))
    [now] = [job async for job in queue.jobs("waiting", "delayed") if "often" in job.id]
    assert "schedule" in texts(await now.explain())


async def test_jobs_that_are_gone_lost_or_broken(queue: Queue, server: Server) -> None:
    gone = await queue.explain("nope")
    assert gone.state is None
    assert str(gone) == (
        "job 'nope' of queue 'q' is not there\n"
        "  - there is no job of this id: it was never added, or was removed, or its retention removed it after its end"
    )
    await queue.add_bulk([JobSpec("print")] * 3)
    with server.client() as client:
        client.lrem("emq:{q}:wait", 0, "1")
        client.delete("emq:{q}:2")
        client.delete("emq:{q}:3")
        client.set("emq:{q}:3", "no job")
    assert "queue.admin.heal() puts it back" in texts(await queue.explain("1"))["in_no_state"]
    assert texts(await queue.explain("2"))["gone"].startswith("its id stands in waiting, but the job itself is gone")
    assert texts(await queue.explain("3"))["broken"].startswith("what stands under its key is no whole job")


async def test_what_is_asked_for_must_be_an_id(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match=r"job_id=7: must be a text"):
        await queue.explain(7)  # type: ignore[arg-type]


async def test_a_server_that_does_not_list_its_clients(queue: Queue, server: Server) -> None:
    await queue.add("print")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-client|list")
        try:
            assert "no_worker" not in texts(await queue.explain("1"))
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+client|list")
