"""What a ``Queue`` does, one idea a test."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
import redis

from echomq import (
    Backoff,
    BulkAddError,
    Connection,
    EncodingError,
    InvalidOption,
    Job,
    JobFailed,
    JobLocked,
    JobSpec,
    Keep,
    Queue,
    ServerError,
    ServerUnavailable,
    Worker,
)
from echomq._redis.embedded import stop
from echomq._store.line import MOST_JOBS
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("enrollments", connection=url) as queue:
        yield queue


# -- adding --------------------------------------------------------------------------------------------------------------


async def test_an_added_job_is_in_the_queue(queue: Queue) -> None:
    job = await queue.add("enroll", {"learner": 7, "course": "redis"})
    assert (job.id, job.name, job.state) == ("1", "enroll", "waiting")
    assert job.data == {"learner": 7, "course": "redis"}
    assert await queue.counts("waiting") == {"waiting": 1}


async def test_a_job_that_was_read_says_the_same(queue: Queue) -> None:
    added = await queue.add("enroll", {"learner": 7}, attempts=3, priority=5)
    read = await queue.get_job(added.id)
    assert read is not None
    for attribute in "id name data opts state timestamp delay priority attempts_made parent progress".split():
        assert getattr(read, attribute) == getattr(added, attribute), attribute


async def test_data_left_out_is_an_empty_object_and_none_is_none(queue: Queue) -> None:
    assert (await queue.add("enroll")).data == {}
    assert (await queue.add("enroll", None)).data is None


async def test_a_delayed_job_waits_for_its_time(queue: Queue) -> None:
    job = await queue.add("enroll", delay=timedelta(minutes=1))
    assert (job.state, job.delay) == ("delayed", 60.0)
    assert await queue.counts("delayed", "waiting") == {"delayed": 1, "waiting": 0}


async def test_a_job_may_be_due_at_a_moment(queue: Queue) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    job = await queue.add("enroll", at=due)
    assert job.state == "delayed"
    assert job.timestamp is not None
    assert abs((job.timestamp + timedelta(seconds=job.delay) - due).total_seconds()) < 0.002


async def test_a_moment_that_has_passed_is_now(queue: Queue) -> None:
    job = await queue.add("enroll", at=datetime.now(UTC) - timedelta(hours=1))
    assert (job.state, job.delay) == ("waiting", 0)


async def test_a_job_with_a_priority_stands_apart(queue: Queue) -> None:
    job = await queue.add("enroll", priority=3)
    assert (job.state, job.priority) == ("prioritized", 3)


async def test_jobs_run_in_the_order_in_which_they_came_except_lifo_and_priority(queue: Queue) -> None:
    await queue.add("low", priority=9)
    await queue.add("first")
    await queue.add("second")
    await queue.add("high", priority=1)
    await queue.add("front", lifo=True)
    ran = []
    worker = Worker(queue, lambda job: ran.append(job.name))
    await worker.run_until_drained()
    assert ran == ["front", "first", "second", "high", "low"]


async def test_options_come_back_as_they_were_given(queue: Queue) -> None:
    job = await queue.add(
        "enroll",
        attempts=5,
        backoff=Backoff.exponential(1, jitter=0.5),
        remove_on_complete=Keep(count=10, age=timedelta(days=1)),
        remove_on_fail=Keep.ALL,
        stack_trace_limit=3,
    )
    assert job.opts.attempts == 5
    assert job.opts.backoff == Backoff("exponential", 1.0, 0.5)
    assert job.opts.remove_on_complete == Keep(count=10, age=86_400.0)
    assert job.opts.remove_on_fail == Keep.ALL
    assert job.opts.stack_trace_limit == 3


async def test_an_id_of_ones_own_adds_once(queue: Queue) -> None:
    first = await queue.add("enroll", {"learner": 7}, job_id="learner-7")
    again = await queue.add("enroll", {"learner": 8}, job_id="learner-7")
    assert first.id == again.id == "learner-7"
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.state, again.data) == ("waiting", {"learner": 7})
    bulk = await queue.add_bulk([JobSpec("enroll", {"learner": 9}, job_id="learner-7"), JobSpec("enroll")])
    assert [(job.duplicate, job.data) for job in bulk] == [(True, {"learner": 7}), (False, {})]
    await bulk[1].remove()
    assert await queue.counts("waiting") == {"waiting": 1}


@pytest.mark.parametrize("name", ["with spaces", "école", "队列", "🙂", "a.b-c_d"])
async def test_a_queue_may_have_almost_any_name(url: str, name: str) -> None:
    async with Queue(name, connection=url) as queue:
        job = await queue.add("enroll")
        assert await queue.get_job(job.id) is not None


async def test_a_wrong_option_is_refused_before_anything_is_sent(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match=r"priority=2097152: must be a whole number from 0 to 2097151"):
        await queue.add("enroll", priority=2_097_152)
    with pytest.raises(EncodingError, match=r"data\.items\[3\]\.price is nan"):
        await queue.add("enroll", {"items": [1, 2, 3, {"price": float("nan")}]})
    assert await queue.counts("waiting") == {"waiting": 0}


# -- in bulk -------------------------------------------------------------------------------------------------------------


async def test_a_bulk_keeps_its_order(queue: Queue) -> None:
    jobs = await queue.add_bulk(JobSpec("enroll", {"learner": number}) for number in range(1_000))
    assert [job.id for job in jobs] == [str(number) for number in range(1, 1_001)]
    assert await queue.counts("waiting") == {"waiting": 1_000}
    seen = []
    await Worker(queue, lambda job: seen.append(job.data["learner"])).run_until_drained()
    assert seen == list(range(1_000))


async def test_an_empty_bulk_is_nothing(queue: Queue) -> None:
    assert await queue.add_bulk([]) == []


async def test_large_jobs_travel_alone(queue: Queue) -> None:
    jobs = await queue.add_bulk([JobSpec("small"), JobSpec("large", "x" * 3_000_000), JobSpec("small")])
    assert [job.name for job in jobs] == ["small", "large", "small"]
    large = await queue.get_job(jobs[1].id)
    assert large is not None
    assert len(large.data) == 3_000_000


async def test_one_bad_job_and_nothing_of_a_bulk_is_added(queue: Queue) -> None:
    with pytest.raises(EncodingError, match=r"jobs\[1\]: data\.when is of type object") as caught:
        await queue.add_bulk([JobSpec("good"), JobSpec("bad", {"when": object()})])
    assert caught.value.path == "jobs[1].data.when"
    with pytest.raises(InvalidOption, match=r"jobs\[0\] is a dict: must be a JobSpec"):
        await queue.add_bulk([{"name": "enroll"}])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match=r"jobs=JobSpec\(.*: must be a list of JobSpecs"):
        await queue.add_bulk(JobSpec("enroll"))  # type: ignore[arg-type]
    assert await queue.counts("waiting") == {"waiting": 0}


async def test_a_bulk_that_stops_half_way_says_what_became_of_each_job(server: Server) -> None:
    async with (
        Proxy(server) as proxy,
        Queue("enrollments", connection=Connection(proxy.url, wait=0, call_timeout=2)) as queue,
    ):
        await queue.add("first")

        async def cut_the_second_part() -> None:
            await wait_until(lambda: server.cli("LLEN", "emq:{enrollments}:wait") > MOST_JOBS)
            proxy.lose("reply", needle("addJobs-11"))

        proxy.delay = 0.02
        cutting = asyncio.create_task(cut_the_second_part())
        with pytest.raises(BulkAddError) as caught:
            await queue.add_bulk(JobSpec("enroll", {"learner": number}) for number in range(1_000))
        await cutting
        error = caught.value
        done = len(error.added)
        assert done in (MOST_JOBS, 2 * MOST_JOBS, 3 * MOST_JOBS)
        assert error.added == [str(number) for number in range(2, done + 2)]
        assert error.unknown == list(range(done, done + MOST_JOBS))
        assert error.not_added == list(range(done + MOST_JOBS, 1_000))
        assert f"{done} of 1000 jobs were added, then: queue 'enrollments': outcome unknown" in str(error)


# -- reading ---------------------------------------------------------------------------------------------------------------


async def test_there_may_be_no_such_job(queue: Queue) -> None:
    assert await queue.get_job("nobody") is None
    with pytest.raises(InvalidOption, match="job_id='': must be a text that is not empty"):
        await queue.get_job("")
    for ask in (queue.get_job, queue.explain, queue.dead_letter.requeue):
        with pytest.raises(InvalidOption, match=r"id '\\ud800': holds a lone surrogate"):
            await ask("\ud800")


async def test_counts_of_all_states(queue: Queue) -> None:
    await queue.add("enroll")
    await queue.add("enroll", delay=60)
    assert await queue.counts() == {
        "waiting": 1, "active": 0, "delayed": 1, "prioritized": 0, "waiting_children": 0, "completed": 0, "failed": 0,
    }  # fmt: skip
    with pytest.raises(InvalidOption, match="state 'done': must be one of waiting, active"):
        await queue.counts("done")  # type: ignore[arg-type]


async def test_a_record_stays_and_refresh_gives_a_newer_one(queue: Queue) -> None:
    added = await queue.add("enroll", {"learner": 7})
    await Worker(queue, lambda job: job.data["learner"] + 1, name="w-1").run_until_drained()
    assert added.state == "waiting"
    ended = await added.refresh()
    assert ended is not None
    assert (ended.state, ended.return_value, ended.processed_by) == ("completed", 8, "w-1")
    assert (ended.attempts_started, ended.attempts_made) == (1, 1)
    assert ended.timestamp is not None
    assert ended.processed_on is not None
    assert ended.finished_on is not None
    assert ended.timestamp <= ended.processed_on <= ended.finished_on


async def test_a_failed_job_says_why(queue: Queue) -> None:
    def fail(job: Job[object]) -> None:
        raise ValueError("no seat left")

    added = await queue.add("enroll")
    await Worker(queue, fail).run_until_drained()
    ended = await added.refresh()
    assert ended is not None
    assert ended.state == "failed"
    assert ended.failed_reason is not None
    assert "no seat left" in ended.failed_reason
    assert "no seat left" in ended.stacktrace[0]
    with pytest.raises(JobFailed, match="no seat left"):
        await added.result()


# -- removing --------------------------------------------------------------------------------------------------------------


async def test_a_removed_job_is_gone(queue: Queue) -> None:
    job = await queue.add("enroll")
    await job.remove()
    assert await job.refresh() is None
    await job.remove()  # and nothing happens


async def test_a_running_job_is_not_removed(queue: Queue) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()

    async def process(job: Job[object]) -> None:
        running.set()
        await go_on.wait()

    job = await queue.add("enroll")
    async with Worker(queue, process):
        await running.wait()
        with pytest.raises(JobLocked, match="job '1' of queue 'enrollments' is not removed"):
            await job.remove()
        go_on.set()
        await job.result(timeout=5)


# -- pausing ---------------------------------------------------------------------------------------------------------------


async def test_a_paused_queue_takes_jobs_and_runs_none(queue: Queue) -> None:
    await queue.pause()
    assert await queue.is_paused()
    job = await queue.add("enroll")
    async with Worker(queue, lambda job: "ran") as worker:
        await worker.ready()
        assert await queue.counts("waiting") == {"waiting": 1}
        await queue.resume()
        assert not await queue.is_paused()
        assert await job.result(timeout=5) == "ran"


# -- connections -----------------------------------------------------------------------------------------------------------


async def test_making_a_queue_connects_to_nothing(server: Server) -> None:
    Queue("enrollments", connection=server.url)
    assert server.clients() == []


async def test_a_queue_works_without_a_with_block(server: Server) -> None:
    queue = Queue("enrollments", connection=server.url)
    await queue.add("enroll")
    await queue.close()
    await queue.close()
    with pytest.raises(RuntimeError, match="queue 'enrollments' is closed"):
        await queue.add("enroll")


async def test_a_close_that_is_cancelled_has_closed_the_queue(server: Server) -> None:
    queue = Queue("enrollments", connection=server.url)
    await queue.add("enroll")
    await queue.dead_letter.counts("waiting")
    server.pause()
    adding = asyncio.create_task(queue.dead_letter.add("enroll"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    with pytest.raises(RuntimeError, match="is closed"):
        await queue.add("enroll")
    server.resume()
    await asyncio.gather(adding, return_exceptions=True)


async def test_many_queues_share_one_connection(server: Server) -> None:
    async with Connection(server.url) as connection:
        queues = [Queue(f"q{number}", connection=connection) for number in range(500)]
        await asyncio.gather(*(queue.add("enroll") for queue in queues))
        assert len(server.clients()) == 1
        await asyncio.gather(*(queue.close() for queue in queues))
        await wait_until(lambda: server.clients() == [], what="the connection closes with its last user")


async def test_a_closed_connection_is_of_no_use(url: str) -> None:
    connection = Connection(url)
    queue = Queue("enrollments", connection=connection)
    await queue.add("enroll")
    await connection.close()
    with pytest.raises(RuntimeError, match="closed"):
        await queue.add("enroll")
    with pytest.raises(RuntimeError, match="closed"):
        await Queue("enrollments", connection=connection).add("enroll")
    await queue.close()


async def _add_to(queue: Queue) -> str:
    return (await queue.add("enroll")).id


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_queue_serves_one_event_loop_after_the_other(url: str) -> None:
    queue = Queue("enrollments", connection=url)
    assert [asyncio.run(_add_to(queue)) for _ in range(3)] == ["1", "2", "3"]
    del queue
    gc.collect()  # nobody closed it, so the sockets are those of loops that have ended


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("then", ["the connection is closed", "another loop uses it"])
def test_sockets_of_event_loops_that_have_ended_are_closed(url: str, server: Server, then: str) -> None:
    connection = Connection(url)
    queue = Queue("enrollments", connection=connection)
    threads = [threading.Thread(target=lambda: asyncio.run(_add_to(queue))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def go_on() -> None:
        if then == "another loop uses it":
            await _add_to(queue)
            gc.collect()
            assert len(server.clients()) == 1  # its own
        await queue.close()
        await connection.close()

    asyncio.run(go_on())
    gc.collect()
    assert server.clients() == []


async def test_a_queue_serves_several_event_loops_at_once(url: str, server: Server) -> None:
    may_end = threading.Event()

    async def add_and_stay(queue: Queue) -> str:
        job_id = await _add_to(queue)
        await asyncio.to_thread(may_end.wait)
        return job_id

    async with Queue("enrollments", connection=url) as queue:
        await queue.add("enroll")
        others = [asyncio.create_task(asyncio.to_thread(asyncio.run, add_and_stay(queue))) for _ in range(3)]
        await wait_until(lambda: server.cli("LLEN", "emq:{enrollments}:wait") == 4)
        await queue.add("enroll")
    await wait_until(lambda: server.clients() == [], what="every loop has closed what was its own")
    may_end.set()
    assert sorted(await asyncio.gather(*others)) == ["2", "3", "4"]


async def test_the_settings_of_a_redis_client_can_be_used(server: Server) -> None:
    with redis.Redis.from_url(server.unix_url_for(db=3), decode_responses=True) as client:
        connection = Connection.from_client(client)
        async with Queue("enrollments", connection=connection) as queue:
            await queue.add("enroll")
        assert client.llen("emq:{enrollments}:wait") == 1


async def test_the_environment_may_name_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOMQ_URL", server.url)
    async with Queue("enrollments") as queue:
        await queue.add("enroll")
    assert server.cli("LLEN", "emq:{enrollments}:wait") == 1


def test_without_a_server_named_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHOMQ_URL", raising=False)
    with pytest.raises(InvalidOption, match=r"pass a URL .* or set ECHOMQ_URL; 'embedded://name'"):
        Queue("enrollments")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:6379", "redis://"),
        ("embedded://a/b", "write embedded://name"),
        ("embedded://a?fsync=never", "fsync must be everysec or always"),
        ("embedded://..", "embedded server name"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Connection(url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait": -1}, "wait=-1"),
        ({"call_timeout": 0}, "call_timeout=0"),
        ({"connect_timeout": "5"}, "connect_timeout="),
    ],
)
def test_times_of_a_connection_are_checked(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Connection("redis://localhost", **options)


async def test_an_embedded_server_is_joined_at_the_first_use_and_left_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path))
    queue = Queue("enrollments", connection="embedded://portal")
    assert list(tmp_path.iterdir()) == []
    async with queue:
        await queue.add("enroll")
        async with Queue("enrollments", connection="embedded://portal") as other:
            assert await other.counts("waiting") == {"waiting": 1}
    await wait_until(lambda: not _servers_in(tmp_path), what="the server has been left by its last user, and ends")
    async with Queue("enrollments", connection="embedded://portal") as queue:
        assert await queue.counts("waiting") == {"waiting": 1}  # its data stay
    await wait_until(lambda: not _servers_in(tmp_path))


async def test_an_embedded_server_that_is_away_is_named_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path))
    async with Queue("enrollments", connection=Connection("embedded://portal", wait=0)) as queue:
        await queue.add("enroll")
        assert await asyncio.to_thread(stop, "portal", force=True) == "stopped"
        said = "embedded://portal: cannot connect: it does not run now; it is started again"
        with pytest.raises(ServerUnavailable, match=said):
            await queue.add("enroll")
        async with Queue("enrollments", connection="embedded://portal") as other:
            assert await other.counts("waiting") == {"waiting": 1}
    await wait_until(lambda: not _servers_in(tmp_path))


def _servers_in(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]


async def test_a_server_in_memory_is_shared_within_the_process() -> None:
    async with Queue("in-memory", connection="embedded://memory") as queue:
        job = await queue.add("enroll")
        async with Queue("in-memory", connection="embedded://memory") as other:
            assert await other.get_job(job.id) is not None


# -- a server that is away -------------------------------------------------------------------------------------------------


async def test_without_a_server_an_add_fails_soon_and_says_that_nothing_was_added(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    server.stop()
    async with Queue("enrollments", connection=Connection(server.url, wait=0.1)) as queue:
        with pytest.raises(ServerUnavailable, match="queue 'enrollments': not added"):
            await queue.add("enroll")
        server.start()
        assert (await queue.add("enroll")).id == "1"


async def test_a_restart_in_between_goes_unnoticed(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    async with Queue("enrollments", connection=Connection(server.url, wait=20)) as queue:
        await queue.add("enroll")
        restarting = asyncio.create_task(asyncio.to_thread(server.restart))
        for number in range(2, 100):
            assert (await queue.add("enroll")).id == str(number)
        await restarting
        assert await queue.counts("waiting") == {"waiting": 99}


async def test_a_wrong_password_is_said_at_once(make_server: Callable[..., Server]) -> None:
    server = make_server(password="secret")
    async with Queue("enrollments", connection=server.tcp_url_for(password="wrong")) as queue:
        with pytest.raises(ServerError, match="WRONGPASS"):
            await queue.add("enroll")


async def test_what_a_job_is_called_can_be_printed_whatever_its_name(server: Server, url: str) -> None:
    async with Queue("q", connection=url) as queue:
        job = await queue.add("pack\x1b[31m")
        assert repr(job) == "<Job '1' 'pack\\x1b[31m' of 'q'>"
        with server.client() as client:
            client.rename("emq:{q}:1", b"emq:{q}:\xff")
            client.lpush("emq:{q}:wait", b"\xff")
        page = await queue.page("waiting")
        assert r"<Job '\udcff' 'pack\x1b[31m' of 'q'>" in repr(page)
