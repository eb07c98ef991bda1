"""Every form of the public surface as its users write it; mypy --strict and pyright take all of it, with these very types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from echomq import (
    AsyncTask,
    Backoff,
    CallNext,
    Connection,
    Cron,
    Deduplication,
    EchoMQ,
    Event,
    Every,
    Inject,
    Job,
    JobScheduler,
    JobSpec,
    JobState,
    Keep,
    Limiter,
    Middleware,
    PlainTask,
    ProcessPool,
    Queue,
    QueueEvents,
    RetryPolicy,
    RunEvent,
    RunOutcome,
    ScheduleInfo,
    SyncJob,
    SyncQueue,
    Tasks,
    Unrecoverable,
    Worker,
    current_job,
    job_logger,
)
from echomq.events import Completed
from echomq.idempotency import RedisOnce
from echomq.payloads import Compressed, Encrypted
from echomq.testing import Inline, Kit, inline, on_server

app = EchoMQ("redis://localhost:6379/0")
tasks = Tasks(queue="mail", attempts=5, backoff=Backoff.fixed(10))
app.include(tasks, name_prefix="mail.")


@dataclass
class Seat:
    row: int


@app.task
async def enroll(learner: int, course: str = "redis") -> Seat:
    return Seat(learner)


@app.task
def count(words: list[str]) -> int:
    return len(words)


@app.task()
async def bare() -> None: ...


@app.task(
    name="all", queue="q", attempts=5, backoff=Backoff.exponential(1, jitter=0.5), timeout=timedelta(seconds=30), priority=2,
    delay=1.5, remove_on_complete=Keep(count=10), remove_on_fail=Keep.ALL, unique_by=["learner"], expire_in=60, keep_logs=10,
    retry_policy=RetryPolicy.ALWAYS, results_queue="results", stack_trace_limit=3,
)  # fmt: skip
async def with_options(learner: int) -> str:
    return "x"


@app.task(pass_job=True)
async def with_job(job: Job[Any], learner: int) -> float:
    await job.update_progress({"done": 1})
    await job.log("line")
    return 1.0


@app.task(pass_job=True, queue="q", deduplication=Deduplication("a", ttl=60))
def plain_with_job(job: Job[Any], learner: int) -> bytes:
    job.update_progress(0.5)
    return b""


@tasks.task
async def welcome(learner: int) -> None: ...


@tasks.task(queue="other", attempts=1)
def receipt(learner: int, *, at: datetime | None = None) -> str:
    raise Unrecoverable("no")


@app.task(process=True, timeout=5)
def heavy(number: int) -> float:
    return number / 2


class Database:
    async def seats(self, learner: int) -> list[Seat]:
        return [Seat(learner)]


@app.provide(scope="process")
async def connected() -> AsyncIterator[Database]:
    yield Database()


@app.provide
def of_the_job(database: Database = Inject()) -> list[Database]:
    return [database]


@app.task
async def seats(learner: int, database: Database = Inject()) -> list[Seat]:
    return await database.seats(learner)


class Timing(Middleware):
    def on_enqueue(self, spec: JobSpec) -> JobSpec:
        return spec

    async def around(self, job: Job[Any], call_next: CallNext) -> Any:
        return await call_next()

    async def before(self, job: Job[Any]) -> None: ...

    async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
        assert_type(outcome.error, BaseException | None)


surrounded = EchoMQ(middleware=[Timing()], codec=[Compressed(above=100), Encrypted(["key"])], max_bytes=None)


@app.on("completed", "failed")
async def told(event: RunEvent) -> None:
    assert_type(event.job, Job[Any])


@app.on("started")
def told_at_once(event: RunEvent) -> None: ...


@app.task(queue="calls", limiter=Limiter(max=100, duration=60))
async def call() -> None:
    job_logger.info("called")


@app.lifespan
async def database(app: EchoMQ) -> AsyncIterator[None]:
    yield


async def of_tasks() -> None:
    assert_type(await enroll.enqueue(7), Job[Seat])
    assert_type(await enroll.enqueue(7, course="lua"), Job[Seat])
    assert_type(await (await enroll.enqueue(7, "lua")).result(timeout=timedelta(seconds=5)), Seat)
    assert_type(await (await count.enqueue(["a"])).result(), int)
    assert_type(await (await with_job.enqueue(7)).result(), float)
    assert_type(await (await plain_with_job.enqueue(learner=7)).result(timeout=1), bytes)
    assert_type(await (await welcome.enqueue(7)).result(), None)
    assert_type(await receipt.enqueue(7, at=datetime.now(UTC)), Job[str])
    assert_type(await (await bare.enqueue()).result(), None)
    assert_type(await enroll(7), Seat)
    assert_type(count(["a"]), int)
    assert_type(await with_options.options(delay=60, priority=2, job_id="a", attempts=None).enqueue(7), Job[str])
    assert_type(await enroll.options(at=datetime.now(UTC), lifo=True, backoff=5, unique_by=None).enqueue(7), Job[Seat])
    assert_type(await enroll.options(queue="urgent").enqueue(7), Job[Seat])
    assert_type(await (await seats.enqueue(7)).result(), list[Seat])
    assert_type(enroll.spec(7, course="lua"), JobSpec)
    assert_type(await enroll.map([1, 2], ["a", "b"]), list[Job[Seat]])
    assert_type(await app.enqueue_all([enroll.spec(7), count.spec(["a"])]), list[Job[Any]])
    assert_type(await app.queue(enroll.queue).add_bulk(enroll.spec(learner) for learner in range(3)), list[Job[Any]])
    takes_any(enroll)
    assert_type(await seats.enqueue(7), Job[list[Seat]])
    assert_type(await (await heavy.enqueue(7)).result(), float)
    assert_type(await (await heavy.enqueue(7)).cancel("never mind"), bool)
    assert_type(await app.queue("q").cancel("7"), bool)
    job = current_job()
    assert_type(job, Job[Any] | None)


def takes_any(task: AsyncTask[..., Any] | PlainTask[..., Any]) -> str:
    return task.name


async def of_queues() -> None:
    connection = Connection("redis://localhost:6379/0", wait=10)
    async with Queue("q", connection=connection, max_size=10) as queue:
        job = await queue.add("enroll", {"learner": 7}, delay=5, attempts=3, backoff=Backoff.fixed(1), priority=1)
        assert_type(job, Job[Any])
        assert_type(await job.refresh(), Job[Any] | None)
        assert_type(job.returning(Seat), Job[Seat])
        assert_type(job.state, JobState | None)
        assert_type(job.finished_on, datetime | None)
        assert_type(await queue.counts("waiting", "failed"), dict[JobState, int])
        assert_type(await queue.get_job("7"), Job[Any] | None)
        async for one in queue.jobs("failed", newest_first=True):
            assert_type(one, Job[Any])
        await queue.set_rate_limit(10, duration=timedelta(minutes=1))
        await queue.admin.drain()
        await queue.pause()


async def process(job: Job[Any]) -> str:
    return job.id


def process_plainly(job: Job[Any]) -> None:
    if job.cancelled.is_set():
        return


async def of_workers() -> None:
    async with Worker("q", process, concurrency=10, limiter=Limiter(max=10, duration=1)) as worker:
        await worker.ready()
        await worker.run()
    await Worker(
        Queue("q"), process_plainly, remove_on_complete=Keep.NONE, on_crash_limit="dead_letter"
    ).run_until_drained()
    await app.worker("q", concurrency=2, processes=ProcessPool(max_jobs=100)).run()
    await app.work("q", "mail", concurrency=2)


async def of_schedules_and_events() -> None:
    async with JobScheduler("q") as scheduler:
        found = await scheduler.upsert(
            "daily", Cron("30 9 * * *", tz="Europe/Vienna"), enroll.spec(7), missed="skip", grace=10
        )
        assert_type(found, ScheduleInfo)
        await scheduler.upsert("often", Every(timedelta(minutes=1)), welcome.spec(7))
    async with QueueEvents("q") as events:
        async for event in events:
            told: Event = event
            if isinstance(told, Completed):
                assert_type(told.job_id, str)


async def of_effects() -> None:
    async with RedisOnce("redis://localhost") as once, once("charge:7") as effect:
        if not effect.done:
            effect.result = "paid"


def of_plain_programs() -> None:
    assert_type(enroll.sync.enqueue(7, course="lua"), SyncJob[Seat])
    assert_type(enroll.sync.enqueue(7).result(timeout=5), Seat)
    assert_type(count.options(delay=1).sync.enqueue(["a"]), SyncJob[int])
    with SyncQueue("q") as queue:
        assert_type(queue.add("enroll", {"learner": 7}, delay=5), SyncJob[Any])
        assert_type(queue.counts(), dict[JobState, int])


async def of_tests() -> None:
    async with on_server(app) as kit:
        assert_type(kit, Kit)
        assert_type(kit.enqueued(enroll, {"learner": 7}), list[Job[Seat]])
        assert_type(kit.assert_enqueued("enroll", count=1), list[Job[Any]])
        assert_type(await kit.run_until_drained(seed=1), list[Job[Any]])
        assert_type(await kit.advance(hours=3), list[Job[Any]])
        assert_type(kit.wait(enroll.enqueue(7)), Job[Seat])
    with inline(app) as jobs:
        assert_type(jobs, Inline)
