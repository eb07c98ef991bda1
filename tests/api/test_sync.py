"""Without an event loop: the same calls, without ``await``."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import redis

from echomq import (
    Connection,
    EchoMQ,
    EncodingError,
    Every,
    InvalidOption,
    Job,
    JobFailed,
    JobScheduler,
    JobSpec,
    Queue,
    ResultTimeout,
    ServerUnavailable,
    StateError,
    SyncJob,
    SyncJobScheduler,
    SyncQueue,
)
from echomq.queue import DeadLetterQueue
from echomq.queue_admin import QueueAdmin
from echomq.sync import SyncDeadLetterQueue, SyncQueueAdmin, SyncTask
from echomq.task import Task
from tests.support.server import Server
from tests.support.wait import wait_until


@dataclass
class Seat:
    row: int


def portals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "echomq portal"]


@pytest.fixture
def app(url: str) -> Iterator[EchoMQ]:
    made = EchoMQ(url)
    with made.sync:
        yield made
    assert portals() == []


@pytest.fixture
def queue(url: str) -> Iterator[SyncQueue]:
    with SyncQueue("letters", connection=url) as made:
        yield made
    assert portals() == []


class Working:
    """A worker of an app in a thread, as another process would be."""

    def __init__(self, app: EchoMQ, *queues: str) -> None:
        self._app = app
        self._queues = queues
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._work(),))

    async def _work(self) -> None:
        self._end = asyncio.Event()
        work = asyncio.create_task(self._app.work(*self._queues))
        self._ready.set()
        await self._end.wait()
        work.cancel()
        await asyncio.wait([work])
        await self._app.close()

    def __enter__(self) -> None:
        self._thread.start()
        self._ready.wait()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()


def test_a_script_enqueues_and_gets_the_result(app: EchoMQ, url: str) -> None:
    there = EchoMQ(url)

    @app.task(queue="sums")
    async def add(a: int, b: int) -> Seat:
        raise NotImplementedError

    @there.task(name="add", queue="sums")
    def adding(a: int, b: int) -> Seat:
        return Seat(a + b)

    with Working(there):
        job = add.sync.enqueue(2, b=3)
        assert (job.name, job.data, job.state) == ("add", {"a": 2, "b": 3}, "waiting")
        assert job.result(timeout=10) == Seat(5)
        later = add.options(delay=0.05, priority=2).sync.enqueue(3, b=4)
        assert (later.state, later.priority) == ("delayed", 2)
        assert later.result(timeout=10) == Seat(7)


def test_many_at_once(app: EchoMQ) -> None:
    @app.task(queue="sums")
    async def add(a: int, b: int) -> int:
        raise NotImplementedError

    assert [job.data for job in add.sync.map([1, 2], b=3)] == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert [job.queue_name for job in app.sync.enqueue_all(add.spec(n, 0) for n in range(3))] == ["sums"] * 3
    assert app.sync.queue("sums").count() == 5


def test_a_failed_job_says_why(app: EchoMQ, url: str) -> None:
    @app.task
    def broken() -> None:
        raise ValueError("no paper")

    with Working(app):
        job = broken.sync.enqueue()
        with pytest.raises(JobFailed, match="no paper"):
            job.result(timeout=10)


def test_every_verb_of_a_queue(queue: SyncQueue) -> None:
    first = queue.add("print", {"page": 1})
    second, third = queue.add_bulk([JobSpec("print", {"page": 2}), JobSpec("print", {"page": 3}, delay=60)])
    assert [job.id for job in (first, second, third)] == ["1", "2", "3"]
    assert queue.counts("waiting", "delayed") == {"waiting": 2, "delayed": 1}
    assert queue.count() == 3
    assert queue.counts_per_priority(0) == {0: 2}
    found = queue.get_job("2")
    assert isinstance(found, SyncJob)
    assert found.data == {"page": 2}
    assert queue.get_job("9") is None
    assert [job.id for job in queue.jobs("waiting", "delayed")] == ["1", "2", "3"]
    page = queue.page("waiting", limit=1)
    assert [job.id for job in page.jobs] == ["1"]
    assert [job.id for job in queue.page("waiting", cursor=page.cursor, limit=1).jobs] == ["2"]
    assert "waiting" in str(queue.explain("1"))
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    queue.set_concurrency(3)
    assert queue.concurrency() == 3
    queue.set_rate_limit(5, timedelta(seconds=1))
    limit = queue.limiter()
    assert limit is not None
    assert limit.max == 5
    queue.remove_rate_limit()
    queue.rate_limit(after=0)
    assert queue.rate_limit_ttl() == 0.0
    queue.publish("printed", pages=3)
    assert queue.metrics("completed").points == []
    assert queue.workers() == []
    assert queue.outbox_size() == 0
    assert not queue.remove_deduplication("none")
    assert queue.dead_letter.counts("waiting") == {"waiting": 0}
    assert queue.dead_letter.requeue() == []
    told: list[int] = []
    assert queue.admin.promote_all(on_progress=told.append) == 1
    assert told[-1] == 1
    assert queue.admin.drain() == 3
    assert queue.admin.obliterate() == 0


def test_many_jobs_come_one_after_the_other(queue: SyncQueue) -> None:
    queue.add_bulk(JobSpec("print", number) for number in range(250))
    jobs = queue.jobs("waiting")
    assert next(jobs).data == 0
    assert [job.data for job in jobs] == list(range(1, 250))
    assert next(queue.jobs("failed"), None) is None


def test_jobs_of_a_queue_that_is_closed_meanwhile_do_not_just_end(app: EchoMQ, queue: SyncQueue) -> None:
    for one, close in ((queue, queue.close), (app.sync.queue("letters"), app.sync.close)):
        one.add_bulk(JobSpec("print", number) for number in range(250))
        jobs = one.jobs("waiting")
        first = next(jobs)
        close()
        with pytest.raises(RuntimeError, match="is closed"):
            list(jobs)
        assert first.data == 0


def test_jobs_of_a_state_that_there_is_not_are_refused_before_anything_is_read(queue: SyncQueue) -> None:
    queue.add("print", 1)
    with pytest.raises(InvalidOption, match="nowhere"):
        next(queue.jobs("waiting", "nowhere"))  # type: ignore[arg-type]


def test_every_verb_of_a_job(queue: SyncQueue) -> None:
    job = queue.add("print", {"page": 1}, delay=60, deduplication="page-1")
    job.change_delay(30)
    job.change_priority(4)
    job.update_progress(0.5)
    job.update_data({"page": 7})
    assert job.log("half") == 1
    assert job.logs().lines == ["half"]
    job.clear_logs()
    assert job.remove_deduplication()
    job.promote()
    now = job.refresh()
    assert now is not None
    assert (now.state, now.data, now.progress, now.priority) == ("prioritized", {"page": 7}, 0.5, 4)
    assert "prioritized" in str(now.explain())
    assert not now.cancelled
    now.cancelled.set()
    assert now.cancelled
    with pytest.raises(StateError):
        now.retry()
    now.remove()
    assert now.refresh() is None
    assert repr(now) == "<SyncJob '1' 'print' of 'letters'>"


def test_every_verb_of_the_schedules(app: EchoMQ) -> None:
    scheduler = app.sync.scheduler("reports")
    made = scheduler.upsert("hourly", Every(3600), JobSpec("report"))
    assert scheduler.get("hourly") == made
    assert [schedule.id for schedule in scheduler.list()] == ["hourly"]
    scheduler.pause("hourly")
    assert scheduler.resume("hourly").paused is False
    assert scheduler.run_now("hourly").name == "report"
    assert scheduler.remove("hourly")
    assert scheduler.queue == "reports"


def test_schedules_of_a_queue_without_an_app(queue: SyncQueue, url: str) -> None:
    assert SyncJobScheduler(queue).list() == []
    with SyncJobScheduler("letters", connection=url) as scheduler:
        assert scheduler.get("none") is None


def test_the_names_of_the_queues(queue: SyncQueue, url: str) -> None:
    queue.add("print")
    assert SyncQueue.names(url) == ["letters"]


def test_errors_are_those_of_the_async_calls_and_lead_to_the_line_that_called(queue: SyncQueue) -> None:
    with pytest.raises(EncodingError, match=r"data\.at"):
        queue.add("print", {"at": object()})
    with pytest.raises(InvalidOption, match="attempts"):
        queue.add("print", attempts=-1)
    with pytest.raises(StateError) as raised:
        queue.add("print").promote()
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[0] == "test_errors_are_those_of_the_async_calls_and_lead_to_the_line_that_called"
    assert len(frames) < 12, frames
    assert "run_forever" not in frames


def test_a_queue_is_lent_or_its_own(url: str) -> None:
    with pytest.raises(InvalidOption, match="nothing else beside it"):
        SyncQueue(Queue("letters", connection=url), prefix="bull")
    with EchoMQ(url).sync as lent:
        with lent.queue("letters") as queue:
            queue.add("print")
        assert queue.count() == 1  # it is the app's, and so not closed
    own = SyncQueue("letters", connection=url)
    own.close()
    own.close()
    with pytest.raises(RuntimeError, match="closed: make a new Queue"):
        own.count()


def test_an_app_can_be_used_again_after_its_close(app: EchoMQ) -> None:
    for _ in range(3):
        app.sync.queue("letters").add("print")
        app.sync.close()
        assert portals() == []
    assert app.sync.queue("letters").count() == 3


def test_all_of_a_connection_share_one_portal(url: str) -> None:
    connection = Connection(url)
    with SyncQueue("a", connection=connection) as one, SyncQueue("b", connection=connection) as two:
        one.add("x")
        two.add("x")
        assert len(portals()) == 1
        one.close()
        assert two.count() == 1
    assert portals() == []


def test_very_many_calls_from_many_threads_are_each_carried_out_once(app: EchoMQ) -> None:
    @app.task
    def note(number: int) -> None: ...

    def some(first: int) -> list[str]:
        return [note.sync.enqueue(first + number).id for number in range(50)]

    with ThreadPoolExecutor(40) as threads:
        ids = [job_id for found in threads.map(some, range(0, 2000, 50)) for job_id in found]
    assert len(set(ids)) == 2000
    assert sorted(job.data["number"] for job in app.sync.queue("default").jobs("waiting")) == list(range(2000))
    assert len(portals()) == 1


def test_a_call_that_waits_does_not_hold_up_others(queue: SyncQueue) -> None:
    job = queue.add("print")
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(job.result, timeout=1) for _ in range(5)]
        for _ in range(20):
            queue.count()
        for one in waiting:
            with pytest.raises(ResultTimeout):
                one.result(timeout=30)


def test_a_wait_that_runs_out_leaves_everything_usable(queue: SyncQueue) -> None:
    job = queue.add("print")
    for _ in range(3):
        with pytest.raises(ResultTimeout, match="still waiting"):
            job.result(timeout=0.01)
    assert queue.count() == 1


def test_the_calls_of_a_context_are_made_in_it(url: str) -> None:
    where = contextvars.ContextVar("where", default="nowhere")
    told: list[str] = []
    with SyncQueue("letters", connection=url) as queue:
        queue.add("print", delay=60)
        where.set("in this test")
        queue.admin.promote_all(on_progress=lambda done: told.append(where.get()))
    assert set(told) == {"in this test"}


def test_a_call_from_inside_a_call_is_refused_and_does_not_hang(queue: SyncQueue) -> None:
    queue.add("print", delay=60)

    def count_too(done: int) -> None:
        queue.count()

    with pytest.raises(RuntimeError, match="would wait for itself"):
        queue.admin.promote_all(on_progress=count_too)
    assert queue.count() == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration("x"), ValueError("x")])
def test_what_a_called_function_raises_comes_out_of_the_call_alone(queue: SyncQueue, error: Any) -> None:
    queue.add("print", delay=60)

    def stop(done: int) -> None:
        raise error

    expected = (
        RuntimeError if isinstance(error, StopIteration) else type(error) if isinstance(error, Exception) else error
    )
    with pytest.raises(expected):
        queue.admin.promote_all(on_progress=stop)
    assert queue.count() == 1


async def test_it_works_where_an_event_loop_runs(url: str) -> None:
    """As in a notebook. The loop stands still meanwhile."""
    app = EchoMQ(url)
    with app.sync:
        assert app.sync.queue("letters").add("print").id == "1"
        assert await app.queue("letters").count() == 1  # and the async calls of the same objects go on beside it
        await app.queue("letters").add("print")
        assert app.sync.queue("letters").count() == 2
    await wait_until(lambda: not app.connection._hubs)  # what the other loop has open it closes itself


@pytest.mark.parametrize("kind", ["thread", "loop"])
async def test_handlers_may_use_it(url: str, kind: str) -> None:
    app = EchoMQ(url)

    @app.task(queue="children")
    async def child(n: int) -> int:
        return n + 1

    @app.task(pass_job=True)
    def parent(job: Job[Any], n: int) -> int:
        SyncJob(job).update_progress("asking")
        now = SyncJob(job).refresh()
        assert now is not None
        assert (now.state, now.progress) == ("active", "asking")
        return child.sync.enqueue(n).result(timeout=10)

    @app.task
    async def cautious(n: int) -> str:
        return child.sync.enqueue(n).id

    async with app, app.worker(), app.worker("children"):
        if kind == "thread":
            job = await parent.enqueue(4)
            assert await job.result(timeout=10) == 5
        else:
            assert await (await cautious.enqueue(4)).result(timeout=10) == "1"
    await wait_until(lambda: not app.connection._hubs)
    app.connection.portal.end()


def test_a_server_that_is_away_is_told_as_in_async_calls(make_server: Callable[..., Server]) -> None:
    server = make_server()
    with SyncQueue("letters", connection=Connection(server.url, wait=0)) as queue:
        queue.add("print")
        server.kill()
        with pytest.raises(ServerUnavailable, match="could not be read"):
            queue.count()
        with pytest.raises(ServerUnavailable, match="not added"):
            queue.add("print")
        server.start()
        assert queue.add("print").id


@pytest.mark.parametrize("decode", [False, True])
def test_a_client_of_the_program_s_own_says_where_the_server_is(url: str, decode: bool) -> None:
    """faults.md 109: what its flags are for is not for us."""
    client = redis.Redis.from_url(url, decode_responses=decode)
    with SyncQueue("letters", connection=Connection.from_client(client)) as queue:
        job = queue.add("print", {"text": "naïve ✓ \ud800"})
        found = queue.get_job(job.id)
        assert found is not None
        assert found.data == {"text": "naïve ✓ \ud800"}
    client.close()


@pytest.mark.parametrize(
    ("plain", "asynchronous"),
    [
        (SyncQueue, Queue),
        (SyncQueueAdmin, QueueAdmin),
        (SyncDeadLetterQueue, DeadLetterQueue),
        (SyncJob, Job),
        (SyncJobScheduler, JobScheduler),
    ],
)
def test_each_class_has_every_verb_of_its_async_one_with_the_same_arguments(plain: Any, asynchronous: Any) -> None:
    def verbs(of: Any) -> dict[str, Any]:
        return {
            name: value for name, value in inspect.getmembers(of) if not name.startswith("_") and name != "as_found"
        }

    ours, theirs = verbs(plain), verbs(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if not callable(value):
            assert type(ours[name]) is type(value), name
            continue
        wanted, found = inspect.signature(value), inspect.signature(ours[name])
        assert str(found.replace(return_annotation="")) == str(wanted.replace(return_annotation="")), name
        returned = str(wanted.return_annotation).replace("AsyncIterator", "Iterator").replace("builtins.", "")
        if returned.startswith("Awaitable["):
            returned = returned[len("Awaitable[") : -1]
        told = str(found.return_annotation).replace("Sync", "").replace("builtins.", "")
        assert told == returned, name
        assert (ours[name].__doc__ or "").strip(), name


def test_the_same_options_make_the_queue() -> None:
    ours, theirs = (inspect.signature(made.__init__).parameters for made in (SyncQueue, Queue))
    assert list(ours) == list(theirs)
    assert {name: of.default for name, of in ours.items()} == {name: of.default for name, of in theirs.items()}


def test_options_of_a_sync_task_are_those_of_the_task(url: str) -> None:
    wanted, found = inspect.signature(Task.options), inspect.signature(SyncTask.options)
    assert str(found.replace(return_annotation="")) == str(wanted.replace(return_annotation=""))
    app = EchoMQ(url)

    @app.task(queue="letters", attempts=3)
    async def send(to: str) -> None: ...

    with app.sync:
        job = send.sync.options(delay=60, priority=2).enqueue("ada")
        assert (job.delay, job.priority, job.opts.attempts) == (60, 2, 3)
