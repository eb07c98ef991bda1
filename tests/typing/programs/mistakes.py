"""Mistakes, one a line: what a type checker must refuse stands in a line that ends in ``# E``, and in no other."""

from __future__ import annotations

from typing import Any

from echomq import (
    Backoff,
    Cron,
    Deduplication,
    EchoMQ,
    Every,
    Inject,
    Job,
    JobScheduler,
    JobSpec,
    Keep,
    Limiter,
    Middleware,
    ProcessPool,
    Queue,
    QueueEvents,
    RetryPolicy,
    RunEvent,
    SyncQueue,
    Tasks,
    Worker,
    current_job,
)
from echomq.testing import on_server

app = EchoMQ("redis://localhost:6379/0")
tasks = Tasks(queue=7)  # E
tasks = Tasks(cue="mail")  # E


@app.task
async def enroll(learner: int, course: str = "redis") -> str:
    return course


@app.task(queue="q")
def count(words: list[str]) -> int:
    return len(words)


@app.task(pass_job=True)
async def with_job(job: Job[Any], learner: int) -> float:
    return 1.0


@app.task(pass_job=True)  # E
async def without_job(learner: int) -> None: ...


@app.task(attempts="three")  # E
async def wrong_attempts() -> None: ...


@app.task(retries=3)  # E
async def wrong_option() -> None: ...


@app.task(backoff="1s")  # E
async def wrong_backoff() -> None: ...


@app.task(retry_policy=ValueError)  # E
async def wrong_policy() -> None: ...


@app.task(process="yes")  # E
def wrong_process() -> None: ...


class Backwards(Middleware):
    async def around(self, call_next: Any) -> Any:  # E
        return await call_next()


class Silent(Middleware):
    def on_enqueue(self, spec: JobSpec) -> None: ...  # E


@app.provide(scope="forever")  # E
def store() -> dict[str, str]:
    return {}


@app.task
async def seats(learner: int, rows: dict[str, str] = Inject()) -> None: ...


@app.on("done")  # E
def told(event: RunEvent) -> None: ...


@app.on("completed")  # E
def told_of_a_number(event: int) -> None: ...


@app.task(limiter=7)  # E
async def limited() -> None: ...


app.task("queue")  # E
enroll.options(queue=7)  # E
EchoMQ(middleware=Silent())  # E
EchoMQ(codec="zlib")  # E
ProcessPool(size="4")  # E
app.include([enroll])  # E


async def of_arguments() -> None:
    await enroll.enqueue()  # E
    await enroll.enqueue("7")  # E
    await enroll.enqueue(7, 8)  # E
    await enroll.enqueue(7, "redis", 9)  # E
    await enroll.enqueue(7, curse="redis")  # E
    await enroll.enqueue(7, delay=5)  # E
    await enroll.enqueue(learner=None)  # E
    await with_job.enqueue(7, 8)  # E
    await with_job.enqueue("7")  # E
    await count.enqueue("words")  # E
    enroll.spec("7")  # E
    enroll.spec()  # E
    await enroll("7")  # E
    count([7])  # E
    await enroll.options(delay=5).enqueue("7")  # E


async def of_options() -> None:
    enroll.options(delay="soon")  # E
    enroll.options(until=5)  # E
    enroll.options(priority=1.5)  # E
    enroll.options(at="tomorrow")  # E
    enroll.options(5)  # E
    enroll.options(deduplication=7)  # E
    Backoff.exponential("1")  # E
    Backoff.quadratic(1)  # E
    Keep(count="ten")  # E
    Deduplication(id=7)  # E
    RetryPolicy.SOMETIMES  # E
    Limiter(max=10)  # E


async def of_results() -> None:
    length: str = await (await count.enqueue(["a"])).result()  # E
    course: int = await (await enroll.enqueue(7)).result()  # E
    job: Job[int] = await enroll.enqueue(7)  # E
    (await enroll.enqueue(7)).outcome()  # E
    await (await enroll.enqueue(7)).cancel(7)  # E
    await seats.enqueue("7")  # E
    await (await enroll.enqueue(7)).result(timeout="5")  # E
    (await count.map([["a"]]))[0].name = "x"  # E
    current_job().id  # E
    del length, course, job


async def of_queues(queue: Queue) -> None:
    Queue(7)  # E
    Queue("q", max_size="10")  # E
    await queue.add(7)  # E
    await queue.add("enroll", {"learner": 7}, dellay=5)  # E
    await queue.add("enroll", {"learner": 7}, attempts="3")  # E
    await queue.add_bulk([enroll.enqueue(7)])  # E
    await queue.counts("executing")  # E
    JobSpec(name="a", attempts="3")  # E
    (await queue.get_job("7")).id  # E
    for job in queue.jobs():  # E
        del job


def no_argument() -> None: ...


async def of_workers(worker: Worker) -> None:
    Worker("q", no_argument)  # E
    Worker("q", processor=7)  # E
    Worker("q", print, concurrency="10")  # E
    Worker("q", print, on_crash_limit="retry")  # E
    worker.concurrency  # E
    await worker.close(forced=True)  # E


async def of_schedules(scheduler: JobScheduler) -> None:
    await scheduler.upsert("a", 60, enroll.spec(7))  # E
    await scheduler.upsert("a", Every("1m"), enroll.spec(7))  # E
    await scheduler.upsert("a", Cron("@daily"), enroll)  # E
    await scheduler.upsert("a", Cron("@daily"), enroll.spec(7), missed="never")  # E
    async for event in QueueEvents("q"):
        event.job_idd  # E


def of_plain_programs() -> None:
    enroll.sync.enqueue("7")  # E
    enroll.sync.enqueue()  # E
    enroll.sync.enqueue(7, curse="redis")  # E
    SyncQueue("q").add("enroll", priority="high")  # E
    for job in SyncQueue("q").jobs("waited"):  # E
        print(job.id)
    length: str = count.sync.enqueue(["a"]).result()  # E
    del length


async def of_tests() -> None:
    async with on_server(app) as kit:
        kit.assert_enqueued(enroll, count="1")  # E
        kit.assert_enqueued(enroll, 7)  # E
        await kit.advance("3 hours")  # E
        await kit.advance(hour=3)  # E
