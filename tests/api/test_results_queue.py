"""A queue of results: how each job ended becomes a job of another queue, in the step in which it ends, or through the outbox."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import Connection, EchoMQ, InvalidOption, Job, JobSpec, Keep, Queue, StateError, Unrecoverable, Worker
from tests.support.server import Server
from tests.support.wait import wait_until

FAST: dict[str, Any] = {"lock_duration": 0.5, "stalled_interval": 0.2}


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    async with Connection(url) as connection:
        yield connection


@pytest.fixture
async def queue(connection: Connection) -> AsyncIterator[Queue]:
    async with Queue("jobs", connection=connection) as queue:
        yield queue


@pytest.fixture
async def results(connection: Connection) -> AsyncIterator[Queue]:
    async with Queue("results", connection=connection) as queue:
        yield queue


async def process(job: Job[Any]) -> Any:
    match job.name:
        case "fails":
            raise Unrecoverable("no seat")
        case "odd":
            return object()
        case _:
            return {"seat": job.data}


async def told(results: Queue) -> list[dict[str, Any]]:
    """What the results queue was told, in order."""
    return [job.data async for job in results.jobs("waiting")]


def moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    assert found.utcoffset() == timedelta(0)
    return found


async def test_each_end_becomes_a_job_whatever_is_kept(queue: Queue, results: Queue) -> None:
    jobs = [await queue.add(name, 7) for name in ("fits", "fails", "odd")]
    before = datetime.now(UTC)
    worker = Worker(
        queue, process, name="host:1", results_queue="results", remove_on_complete=Keep.NONE, remove_on_fail=Keep.NONE
    )
    await worker.run_until_drained()
    assert await queue.counts("completed", "failed") == {"completed": 0, "failed": 0}
    fits, fails, odd = await told(results)
    times = [moment(fits.pop(field)) for field in ("added_at", "started_at", "finished_at")]
    assert times == sorted(times)
    assert abs(times[2] - before) < timedelta(seconds=10)
    assert fits == {
        "job_id": jobs[0].id, "queue": "jobs", "name": "fits", "status": "completed", "result": {"seat": 7}, "reason": None,
        "result_error": None, "attempt": 1, "worker": "host:1",
    }  # fmt: skip
    assert (fails["status"], fails["result"], fails["reason"]) == ("failed", None, "no seat")
    assert (odd["status"], odd["result"]) == ("completed", None)
    assert "has no JSON form" in odd["result_error"]
    assert [set(one) for one in (fails, odd)] == [{*fits, "added_at", "started_at", "finished_at"}] * 2


async def test_only_the_last_attempt_counts(queue: Queue, results: Queue) -> None:
    async def fails_twice(job: Job[Any]) -> str:
        if job.attempts_made < 2:
            raise ConnectionError("not yet")
        return "now"

    await queue.add("job", attempts=3)
    await Worker(queue, fails_twice, results_queue=results).run_until_drained()
    [one] = await told(results)
    assert (one["status"], one["result"], one["attempt"]) == ("completed", "now", 3)


async def test_a_job_that_ends_again_is_told_again(queue: Queue, results: Queue) -> None:
    job = await queue.add("fails")
    for _ in range(2):
        await Worker(queue, process, results_queue=results).run_until_drained()
        found = await queue.get_job(job.id)
        if found is not None and found.state == "failed":
            await found.retry()
    assert [one["attempt"] for one in await told(results)] == [1, 2]


async def test_an_app_works_what_it_is_told(url: str) -> None:
    heard: list[tuple[Any, ...]] = []
    async with EchoMQ(url) as app:

        @app.task(queue="jobs", results_queue="results", remove_on_complete=Keep.NONE)
        async def seat(learner: int) -> int:
            return learner + 1

        @app.task(queue="jobs")
        async def quiet() -> None: ...

        @app.task(name="outcome", queue="results")
        async def outcome(
            job_id: str, queue: str, name: str, status: str, result: Any, finished_at: datetime, **others: Any
        ) -> None:
            heard.append((job_id, queue, name, status, result, finished_at.tzinfo is not None, others["attempt"]))

        await quiet.enqueue()
        job = await seat.enqueue(7)
        working = asyncio.create_task(app.work())
        await wait_until(lambda: heard)
        working.cancel()
        await asyncio.wait([working])
        assert heard == [(job.id, "jobs", "seat", "completed", 8, True, 1)]
        assert await app.queue("results").counts("completed", "waiting") == {"completed": 1, "waiting": 0}


async def test_the_tasks_queue_wins_also_where_its_function_is_never_called(url: str) -> None:
    async with EchoMQ(url) as app:

        @app.task(queue="jobs", results_queue="mine", expire_in=0.001)
        async def own(n: int) -> int:
            return n

        @app.task(queue="jobs")
        async def other() -> int:
            return 2

        await own.enqueue(1)
        await own.options(expire_in=None).enqueue(1)
        await app.queue("jobs").add("own", "what does not fit")
        await other.enqueue()
        await asyncio.sleep(0.01)
        await app.worker("jobs", results_queue="all").run_until_drained()
        mine, every = await told(app.queue("mine")), await told(app.queue("all"))
        assert [(one["status"], one["reason"] is None) for one in mine] == [
            ("failed", False), ("completed", True), ("failed", False)
        ]  # fmt: skip
        assert [(one["name"], one["result"]) for one in every] == [("other", 2)]


async def test_of_outcomes_nobody_is_told_so_nothing_goes_round(queue: Queue, results: Queue) -> None:
    await queue.add("fits")
    await queue.add("outcome")  # a job of that name, and no outcome
    for _ in range(3):
        await Worker(queue, process, results_queue=results).run_until_drained()
        await Worker(results, process, results_queue=queue).run_until_drained()
    assert await queue.counts("completed", "waiting") == {"completed": 2, "waiting": 0}
    assert await results.counts("completed", "waiting") == {"completed": 2, "waiting": 0}


def test_what_would_be_told_of_itself_is_refused(url: str, make_server: Callable[..., Server]) -> None:
    for name in ("jobs", Queue("jobs", connection=url)):
        with pytest.raises(InvalidOption, match=r"is the queue that this worker works"):
            Worker("jobs", process, connection=url, results_queue=name)
    Worker("jobs", process, connection=url, results_queue=Queue("jobs", connection=make_server().url))
    Worker("jobs", process, connection=url, results_queue=Queue("jobs", connection=url, prefix="bull"))
    app = EchoMQ(url)
    for name in ("jobs", Queue("jobs", connection=url)):
        with pytest.raises(InvalidOption, match=r"is the queue that the task's own jobs go to"):
            app.task(queue="jobs", results_queue=name)(process)
    for wrong in (7, "", "a:b", True, ["x"]):
        with pytest.raises(InvalidOption):
            Worker("jobs", process, connection=url, results_queue=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption):
            app.task(queue="jobs", results_queue=wrong)(process)  # type: ignore[arg-type]


async def test_a_broken_queue_of_results_holds_nothing_up(
    queue: Queue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.cli("SET", "emq:{results}:wait", "x")
    job = await queue.add("fits", 3)
    with caplog.at_level(logging.WARNING, "echomq"):
        await Worker(queue, process, results_queue="results", remove_on_complete=Keep.NONE).run_until_drained()
    assert await job.result(timeout=5) == {"seat": 3}  # it is kept, whatever its rule says
    assert "its outcome was not forwarded: emq:{results}:wait must be a list" in caplog.text


# -- through the outbox --------------------------------------------------------------------------------------------------


@pytest.fixture
def other(make_server: Callable[..., Server]) -> Server:
    return make_server(appendonly=True)


async def test_to_another_server_and_in_order(queue: Queue, other: Server) -> None:
    await queue.add_bulk([JobSpec("fits", n) for n in range(120)])
    async with Queue("results", connection=other.url) as results:
        await Worker(queue, process, results_queue=results).run_until_drained()
        assert await queue.outbox_size() == 0
        assert [one["result"]["seat"] for one in await told(results)] == list(range(120))
        [first, *_] = [job async for job in results.jobs("waiting")]
        assert first.id.startswith("outcome-")
        assert (first.name, first.opts.attempts) == ("outcome", 10)


async def test_what_waits_for_a_server_that_is_away_is_seen_and_goes_when_it_is_back(
    queue: Queue, other: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Queue("results", connection=Connection(other.url, wait=0)) as results:
        other.kill()
        await queue.add_bulk([JobSpec("fits", n) for n in range(10)])
        with caplog.at_level(logging.WARNING, "echomq"):
            async with Worker(queue, process, results_queue=results):
                await wait_until(lambda: "wait in the outbox, and are tried again" in caplog.text)

                async def waiting(count: int) -> bool:
                    return await queue.outbox_size() == count

                await wait_until(lambda: waiting(10))
                other.restart()
                await wait_until(lambda: waiting(0))
        assert len(await told(results)) == 10


async def test_what_a_dead_worker_left_is_forwarded_by_the_next_that_sweeps(
    queue: Queue, url: str, server: Server
) -> None:
    data = json.dumps({"job_id": "1", "status": "completed"})
    server.cli("XADD", "emqx:{jobs}:outbox", "*", "id", "outcome-x", "to", "emq:{results}:", "at", "", "data", data)
    async with Worker(queue, process, **FAST), Queue("results", connection=url) as results:

        async def told_of_it() -> bool:
            return await told(results) == [{"job_id": "1", "status": "completed"}]

        await wait_until(told_of_it)
        await wait_until(lambda: server.cli("XLEN", "emqx:{jobs}:outbox") == 0)


async def test_what_is_for_an_unknown_server_stays_and_is_told(
    queue: Queue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.cli("XADD", "emqx:{jobs}:outbox", "*", "id", "x", "to", "emq:{results}:", "at", "gone:1/0", "data", "{}")
    with caplog.at_level(logging.WARNING, "echomq"):
        async with Worker(queue, process, **FAST):
            await wait_until(
                lambda: "outcomes wait in the outbox for servers that this worker does not know" in caplog.text
            )
    assert await queue.outbox_size() == 1
    with pytest.raises(StateError, match="still on their way to a results queue"):
        await queue.admin.obliterate()
    await queue.admin.obliterate(force=True)
    assert await queue.outbox_size() == 0


async def test_another_connection_that_its_user_has_closed_ends_no_worker(
    queue: Queue, other: Server, caplog: pytest.LogCaptureFixture
) -> None:
    closed = Connection(other.url)
    results = Queue("results", connection=closed)
    await closed.close()
    job = await queue.add("fits", 1)
    async with Worker(queue, process, results_queue=results) as worker:
        await job.result(timeout=5)
        await wait_until(lambda: "is closed" in caplog.text)
        assert worker.is_running
    assert await queue.outbox_size() == 1


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_a_cluster_of_one_node(make_server: Callable[..., Server], kind: str) -> None:
    """Two queues in two slots, and one in the same: this one at once, the other through the outbox."""
    node = make_server(kind, config={"cluster-enabled": "yes"})
    node.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    await wait_until(lambda: b"cluster_state:ok" in node.cli("CLUSTER", "INFO"))
    async with Connection(node.url) as connection, Queue("jobs", connection=connection) as queue:
        await queue.add_bulk([JobSpec("fits", n) for n in range(30)])
        await Worker(queue, process, results_queue="results", concurrency=10).run_until_drained()
        async with Queue("results", connection=connection) as results:
            there = [job async for job in results.jobs("waiting")]
            assert sorted(job.data["result"]["seat"] for job in there) == list(range(30))
            assert all(job.id.startswith("outcome-") for job in there)
        await queue.add("fits", 1)
        await Worker(queue, process, results_queue=queue.dead_letter).run_until_drained()
        [same] = [job async for job in queue.dead_letter.jobs("waiting")]
        assert same.id == "1"
        assert await queue.outbox_size() == 0
