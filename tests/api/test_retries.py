"""Retries: which runs a job gets, what is shown of those that failed, and what becomes of a job that fails for good."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echomq import (
    Backoff,
    DeadLetterQueue,
    Deduplication,
    EchoMQ,
    InvalidOption,
    Job,
    JobNotFound,
    Keep,
    Queue,
    RateLimited,
    RetryLater,
    RetryPolicy,
    StateError,
    Unrecoverable,
    Worker,
)
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("jobs", connection=url) as queue:
        yield queue


async def again(queue: Queue, job_id: str) -> Job[Any]:
    job = await queue.get_job(job_id)
    assert job is not None
    return job


async def ended(queue: Queue, job_id: str) -> Job[Any]:
    """The job once it has completed or failed."""

    async def has_ended() -> bool:
        return (await again(queue, job_id)).state in ("completed", "failed")

    await wait_until(has_ended)
    return await again(queue, job_id)


def raising(error: BaseException) -> Callable[[Job[Any]], Awaitable[None]]:
    async def process(job: Job[Any]) -> None:
        raise error

    return process


# -- runs ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempts", "runs"), [(0, 1), (1, 1), (2, 2), (5, 5)])
async def test_attempts_are_all_the_runs_that_a_job_gets(queue: Queue, attempts: int, runs: int) -> None:
    seen: list[int] = []

    async def process(job: Job[Any]) -> None:
        seen.append(job.attempts_made)
        raise ValueError(f"run {len(seen)}")

    job = await queue.add("job", attempts=attempts)
    async with Worker(queue, process) as worker:
        failed = await ended(queue, job.id)
        await worker.close()
    assert seen == list(range(runs))
    assert (failed.attempts_made, failed.attempts_started) == (runs, runs)
    assert failed.failed_reason == f"ValueError: run {runs}"
    assert [re.findall("run .", trace)[-1] for trace in failed.stacktrace] == [f"run {n}" for n in range(1, runs + 1)]


async def test_the_latest_traces_are_kept_up_to_the_limit_of_the_job(queue: Queue) -> None:
    runs = 0

    async def process(job: Job[Any]) -> None:
        nonlocal runs
        runs += 1
        raise ValueError(f"run {runs}")

    job = await queue.add("job", attempts=4, stack_trace_limit=2)
    async with Worker(queue, process):
        failed = await ended(queue, job.id)
    assert [re.findall("run .", trace)[-1] for trace in failed.stacktrace] == ["run 3", "run 4"]


async def test_linear_backoff_waits_longer_by_the_same(queue: Queue) -> None:
    async def process(job: Job[Any]) -> None:
        if job.attempts_made < 3:
            raise ValueError

    job = await queue.add("job", attempts=4, backoff=Backoff.linear(0.02))
    waits: list[float] = []

    async def delayed() -> bool:
        found = await again(queue, job.id)
        if found.state == "delayed" and found.delay not in waits:
            waits.append(found.delay)
        return found.state == "completed"

    async with Worker(queue, process):
        await wait_until(delayed)
    assert job.opts.backoff == Backoff("linear", 0.02)
    assert set(waits) <= {0.02, 0.04, 0.06}


# -- policies -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "runs"),
    [
        (ConnectionError("away"), "transient", 3),
        (ValueError("no"), "unknown", 3),
        (msgspec.ValidationError("no"), "permanent", 1),
        (Unrecoverable("no"), "unrecoverable", 1),
        (ExceptionGroup("both", [msgspec.ValidationError("no"), TimeoutError()]), "transient", 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
async def test_the_default_policy(queue: Queue, error: BaseException, kind: str, runs: int) -> None:
    job = await queue.add("job", attempts=3)
    async with Worker(queue, raising(error)):
        failed = await ended(queue, job.id)
    assert (failed.failure_kind, failed.attempts_made) == (kind, runs)


async def test_a_policy_of_the_workers(queue: Queue) -> None:
    job = await queue.add("job", attempts=3)
    async with Worker(queue, raising(KeyError("course")), retry_policy=RetryPolicy(permanent=(LookupError,))):
        failed = await ended(queue, job.id)
    assert (failed.failure_kind, failed.attempts_made) == ("permanent", 1)


async def test_a_policy_of_a_task_goes_before_that_of_its_worker(url: str) -> None:
    app = EchoMQ(url)

    @app.task(attempts=2, retry_policy=RetryPolicy(permanent=(KeyError,)))
    async def strict() -> None:
        raise KeyError("x")

    @app.task(attempts=2)
    def lenient() -> None:
        raise KeyError("x")

    async with app, app.worker(retry_policy=RetryPolicy.ALWAYS):
        queue = app.queue("default")
        first, second = await strict.options(attempts=4).enqueue(), await lenient.enqueue()
        assert (await ended(queue, first.id)).attempts_made == 1
        assert (await ended(queue, second.id)).attempts_made == 2
        assert (await again(queue, second.id)).failure_kind == "unknown"


async def test_a_kind_is_shown_between_two_runs_and_gone_when_the_job_is_run_again(queue: Queue) -> None:
    job = await queue.add("job", attempts=2, backoff=60)
    assert job.failure_kind is None
    async with Worker(queue, raising(TimeoutError())):

        async def is_delayed() -> bool:
            return (await again(queue, job.id)).state == "delayed"

        await wait_until(is_delayed)
        assert (await again(queue, job.id)).failure_kind == "transient"
        await (await again(queue, job.id)).promote()
        await ended(queue, job.id)
    await (await again(queue, job.id)).retry()
    assert (await again(queue, job.id)).failure_kind is None


# -- in time, or not at all ---------------------------------------------------------------------------------------------------


async def add_with(url: str, opts: str, *, made: datetime) -> str:
    """A job with stored options of any kind, as another program leaves it. Gives its id."""
    import redis

    with redis.Redis.from_url(url) as client:
        fields = {
            "name": "job",
            "data": "{}",
            "opts": opts,
            "timestamp": round(made.timestamp() * 1000),
            "delay": 0,
            "priority": 0,
        }
        client.hset("emq:{jobs}:late", mapping=fields)
        client.lpush("emq:{jobs}:wait", "late")
    return "late"


async def test_a_job_that_is_not_started_in_time_is_not_run(queue: Queue, url: str) -> None:
    job_id = await add_with(url, '{"attempts":5,"expireIn":1500}', made=datetime.now(UTC) - timedelta(seconds=10))
    async with Worker(queue, raising(AssertionError("it is not run"))):
        failed = await ended(queue, job_id)
    assert failed.failure_kind == "expired"
    assert failed.failed_reason == "not started within 1.5 s"
    assert (failed.attempts_made, failed.attempts_started, failed.stacktrace) == (1, 1, [])


async def test_a_job_with_a_moment_has_its_time_from_then_on(queue: Queue) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    job = await queue.add("job", at=soon, expire_in=0.25, attempts=1)
    ran: list[str] = []

    async def process(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Worker(queue, process):
        assert (await ended(queue, job.id)).state == "completed"
    assert ran == [job.id]


@pytest.mark.parametrize("by", ["change_delay", "reschedule"])
async def test_one_that_was_put_off_has_its_time_from_then_on(queue: Queue, by: str, server: Server) -> None:
    once = Deduplication("once", reschedule=True)
    job = await queue.add("job", delay=60, expire_in=30, deduplication=once)
    plain = await queue.add("job", delay=60)
    if by == "change_delay":
        await plain.change_delay(3600)
        await job.change_delay(3600)
    else:
        assert (await queue.add("job", delay=3600, expire_in=30, deduplication=once)).deduplicated
    with server.client() as client:
        key = f"emq:{{jobs}}:{job.id}"
        due = int(client.zscore("emq:{jobs}:delayed", job.id) or 0) // 4096
        assert client.hget(key, "due") == str(due).encode()
        assert client.hget(f"emq:{{jobs}}:{plain.id}", "due") is None
        told = await job.explain()
        assert [one.at for one in told.reasons if one.kind == "expires"] == [
            datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=due + 30_000)
        ]
        made = int(client.hget(key, "timestamp") or 0)  # and the hour passes
        client.hset(key, mapping={"timestamp": made - 3_600_000, "due": due - 3_600_000})
        client.zadd("emq:{jobs}:delayed", {job.id: (due - 3_600_000) * 4096})
    assert [one.text for one in (await job.explain()).reasons if "fails (expire_in)" in one.text]
    ran: list[str] = []

    async def process(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Worker(queue, process):
        await wait_until(lambda: job.id in ran)


async def test_one_that_expired_can_be_run_all_the_same(queue: Queue, url: str) -> None:
    job_id = await add_with(url, '{"expireIn":1500}', made=datetime.now(UTC) - timedelta(seconds=10))
    ran: list[str] = []

    async def process(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Worker(queue, process):
        expired = await ended(queue, job_id)
        await expired.retry(reset_attempts=True)
        await wait_until(lambda: ran == [job_id])


async def test_one_that_completed_and_is_run_from_the_start_has_its_time_anew(queue: Queue, server: Server) -> None:
    job = await queue.add("job", expire_in=30)
    ran: list[str] = []

    async def process(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Worker(queue, process):
        await job.result(timeout=10)
        with server.client() as client:
            client.hincrby(f"emq:{{jobs}}:{job.id}", "timestamp", -3_600_000)
        await job.retry(reset_attempts=True)
        await job.result(timeout=10)
    assert ran == [job.id] * 2


# -- dead letters -------------------------------------------------------------------------------------------------------------


async def test_what_fails_for_good_leaves_a_dead_letter(queue: Queue) -> None:
    async def process(job: Job[Any]) -> None:
        if job.name != "good":
            raise ValueError("no seat")

    jobs = [await queue.add("enroll", {"learner": 7}, attempts=2, priority=4), await queue.add("good")]
    async with Worker(queue, process, dead_letter=True):
        for job in jobs:
            await ended(queue, job.id)
    assert isinstance(queue.dead_letter, DeadLetterQueue)
    [letter] = [job async for job in queue.dead_letter.jobs("waiting")]
    assert (letter.name, letter.data, letter.opts.attempts) == ("enroll", {"learner": 7}, 2)
    assert (letter.failed_reason, letter.failure_kind, len(letter.stacktrace)) == ("ValueError: no seat", "unknown", 2)
    told = letter.dead_letter
    assert told is not None
    failed = await again(queue, jobs[0].id)
    assert (told.job_id, told.reason, told.attempts_made) == (jobs[0].id, "ValueError: no seat", 2)
    assert told.failed_on == failed.finished_on
    assert failed.dead_letter is None


async def test_without_being_told_workers_leave_none(queue: Queue) -> None:
    job = await queue.add("job")
    async with Worker(queue, raising(ValueError())):
        await ended(queue, job.id)
    assert sum((await queue.dead_letter.counts()).values()) == 0


async def test_dead_letters_go_back_and_their_attempts_begin_anew(queue: Queue) -> None:
    jobs = [await queue.add("job", {"n": n}, attempts=2, remove_on_fail=Keep.NONE) for n in range(3)]

    async def all_dead() -> bool:
        return (await queue.dead_letter.counts("waiting"))["waiting"] == 3

    async with Worker(queue, raising(ValueError()), dead_letter=True):
        await wait_until(all_dead)
    [first, *_] = [job async for job in queue.dead_letter.jobs("waiting")]
    assert await queue.dead_letter.requeue(first.id) == [jobs[0].id]
    assert await queue.dead_letter.requeue() == [job.id for job in jobs[1:]]
    assert await queue.dead_letter.requeue() == []
    done: list[int] = []

    async def process(job: Job[Any]) -> None:
        assert (job.attempts_made, job.attempts_started, job.opts.attempts) == (0, 1, 2)
        done.append(job.data["n"])

    async with Worker(queue, process) as worker:
        await worker.run_until_drained()
    assert done == [0, 1, 2]


async def test_many_dead_letters_go_back_in_steps(queue: Queue) -> None:
    jobs = [await queue.add("job") for _ in range(250)]
    async with Worker(queue, raising(ValueError()), concurrency=50, dead_letter=True) as worker:
        await worker.run_until_drained()
    moved = await queue.dead_letter.requeue()
    assert len(set(moved)) == 250
    assert not set(moved) & {job.id for job in jobs}  # those stand in failed
    assert (await queue.counts("waiting", "failed")) == {"waiting": 250, "failed": 250}


async def test_a_worker_may_work_the_dead_letters(queue: Queue) -> None:
    await queue.add("job", {"n": 1})
    async with Worker(queue, raising(ValueError()), dead_letter=True) as worker:
        await worker.run_until_drained()
    seen: list[Any] = []

    async def process(job: Job[Any]) -> None:
        assert job.dead_letter is not None
        seen.append((job.data, job.dead_letter.reason))
        with pytest.raises(StateError, match="is not requeued: it is active, and must be waiting"):
            await queue.dead_letter.requeue(job.id)

    async with Worker(queue.dead_letter, process) as worker:
        await worker.run_until_drained()
    assert seen == [({"n": 1}, "ValueError")]
    with pytest.raises(JobNotFound, match="is not requeued: there is no such job"):
        await queue.dead_letter.requeue("no")
    with pytest.raises(InvalidOption):
        await queue.dead_letter.requeue("")


async def test_a_failed_child_leaves_a_letter_that_has_no_parent(queue: Queue, url: str) -> None:
    job_id = await add_with(
        url, '{"attempts":1,"parent":{"id":"p","queue":"emq:{jobs}"},"fpof":true}', made=datetime.now(UTC)
    )
    async with Worker(queue, raising(ValueError()), dead_letter=True):
        await ended(queue, job_id)
    [letter] = [job async for job in queue.dead_letter.jobs("waiting")]
    assert letter.opts.others == {"deadLetter": letter.opts.others["deadLetter"]}


# -- the options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"retry_policy": KeyError},
            "retry_policy=<class 'KeyError'>: must be a RetryPolicy, such as RetryPolicy.ALWAYS",
        ),
        ({"dead_letter": "yes"}, "dead_letter='yes': must be True or False"),
        ({"on_crash_limit": "retry"}, "on_crash_limit='retry': must be one of fail, backoff, dead_letter"),
        ({"crash_backoff": Backoff.fixed(1)}, r"crash_backoff=Backoff\(.*\): goes with on_crash_limit='backoff' only"),
        (
            {"on_crash_limit": "backoff", "crash_backoff": 5},
            "crash_backoff=5: must be a fixed, linear or exponential Backoff",
        ),
        (
            {"on_crash_limit": "backoff", "crash_backoff": Backoff.custom("x", 5)},
            "must be a fixed, linear or exponential Backoff",
        ),
        ({"on_crash_limit": "backoff", "crash_backoff": Backoff.fixed(0)}, "of more than 0 seconds"),
    ],
)
def test_wrong_options_are_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Worker("jobs", raising(ValueError()), connection=url, **options)


def test_wrong_options_of_a_task_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="retry_policy='always': must be a RetryPolicy"):
        EchoMQ(url).task(retry_policy="always")(len)  # type: ignore[call-overload]

    with pytest.raises(InvalidOption, match=r"'linear': is a name of EchoMQ's own; use Backoff.linear"):
        Backoff.custom("linear")


# -- the table of docs/retries.md ---------------------------------------------------------------------------------------------

Counted = tuple[int, int, int]


async def one_run(queue: Queue, error: BaseException | None, *, attempts: int) -> Counted:
    done = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        done.set()
        if error is not None:
            raise error

    job = await queue.add("job", attempts=attempts, backoff=60)
    async with Worker(queue, process):
        await done.wait()
    return await counted(queue, job.id)


async def counted(queue: Queue, job_id: str) -> Counted:
    job = await again(queue, job_id)
    return job.attempts_started, job.attempts_made, job.stalled_count


async def given_back(queue: Queue) -> Counted:
    begun = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        begun.set()
        await asyncio.sleep(60)

    job = await queue.add("job")
    async with Worker(queue, process) as worker:
        await begun.wait()
        await worker.close(force=True)
    return await counted(queue, job.id)


def table() -> dict[str, Counted]:
    """The rows of the page: what happens → by how much each counter moves."""
    page = (Path(__file__).parents[2] / "docs" / "retries.md").read_text("utf-8")
    part = page.partition("## What counts as an attempt")[2].partition("\n## ")[0]
    found: dict[str, Counted] = {}
    for row in part.splitlines():
        if row.startswith("| ") and "`attempts_started`" not in row:
            what, *cells = (cell.strip() for cell in row.strip("|").split("|"))
            started, made, stalled = (int(cell.replace("+", "").split()[0]) if cell else 0 for cell in cells[:3])
            found[what] = (started, made, stalled)
    return found


async def test_the_table_is_true(queue: Queue) -> None:
    """The rows about dead workers: tests/chaos/test_dead_letters.py and tests/api/test_counters.py."""
    rows = table()
    assert await one_run(queue, None, attempts=3) == rows["returned"]
    assert await one_run(queue, ValueError(), attempts=3) == rows["raised, also for the last time"]
    assert await one_run(queue, ValueError(), attempts=1) == rows["raised, also for the last time"]
    assert await one_run(queue, Unrecoverable(), attempts=3) == rows["raised `Unrecoverable`, or what is permanent"]
    assert (
        await one_run(queue, msgspec.ValidationError(), attempts=3)
        == rows["raised `Unrecoverable`, or what is permanent"]
    )
    assert await one_run(queue, RetryLater(60), attempts=3) == rows["raised `RetryLater` or `RateLimited`"]
    assert await one_run(queue, RateLimited(60), attempts=3) == rows["raised `RetryLater` or `RateLimited`"]


async def test_the_table_is_true_for_jobs_that_are_given_back_or_come_too_late(queue: Queue, url: str) -> None:
    rows = table()
    assert await given_back(queue) == rows["given back, its handler had begun"]
    async with Worker(queue, raising(ValueError())) as worker:
        await worker.run_until_drained()
    late = await add_with(url, '{"expireIn":1}', made=datetime.now(UTC) - timedelta(seconds=10))
    async with Worker(queue, raising(AssertionError())):
        await ended(queue, late)
    assert await counted(queue, late) == rows["not started in time (`expire_in`)"]
