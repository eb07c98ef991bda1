"""What ``Job.result()`` gives, and that it never hangs on a job that has ended."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from echomq import (
    BrokenKey,
    Connection,
    ConnectionLost,
    InvalidOption,
    Job,
    JobFailed,
    JobRemoved,
    Keep,
    Queue,
    ResultTimeout,
    ResultUnavailable,
    ServerUnavailable,
    Worker,
)
from echomq.payloads import Codec
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.wait import wait_until

EVENTS = "emq:{enrollments}:events"


async def process(job: Job[Any]) -> Any:
    if job.name == "fail":
        raise ValueError(job.data)
    if job.name == "odd":
        return {"handle": object()}
    return job.data


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("enrollments", connection=url) as queue:
        yield queue


def worker(url: str, queue: str = "enrollments", **options: Any) -> Worker:
    return Worker(queue, process, connection=url, **options)


async def waiting_for(job: Job[Any]) -> asyncio.Task[Any]:
    """A task that waits for the job's result, and has begun to."""
    task = asyncio.create_task(job.result())
    await asyncio.wait([task], timeout=0.1)
    assert not task.done()
    return task


def reads(server: Server) -> list[str]:
    """The connections that read events."""
    return [client for client in server.clients() if "cmd=xread" in client]


# -- how a job ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"seat": 17}, [1, 2.5, None], "text", "", 0, 2**70, True, None, {}])
async def test_the_result_is_what_the_handler_returned(queue: Queue, url: str, value: Any) -> None:
    job = await queue.add("echo", value)
    waiting = await waiting_for(job)
    async with worker(url):
        assert await waiting == value


async def test_a_job_that_has_ended_long_ago_still_has_its_result(queue: Queue, url: str) -> None:
    job = await queue.add("echo", {"seat": 17})
    await worker(url).run_until_drained()
    assert await job.result() == {"seat": 17}
    with pytest.raises(InvalidOption, match="kind=17: must be a type"):
        job.returning(17)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [False, True])
async def test_a_failed_job_raises_its_reason(queue: Queue, url: str, before: bool) -> None:
    job = await queue.add("fail", "no seat left")
    waiting = await waiting_for(job) if before else None
    await worker(url).run_until_drained()
    with pytest.raises(JobFailed, match="no seat left") as caught:
        await (waiting or job.result())
    assert caught.value.job_id == job.id
    assert "no seat left" in caught.value.reason


async def test_a_failed_attempt_is_not_the_end(queue: Queue, url: str) -> None:
    runs = []

    async def second_time_lucky(job: Job[Any]) -> str:
        runs.append(job.attempts_started)
        if len(runs) == 1:
            raise ValueError("not yet")
        return "done"

    job = await queue.add("try", attempts=2)
    async with Worker("enrollments", second_time_lucky, connection=url):
        assert await job.result(timeout=5) == "done"


@pytest.mark.parametrize("before", [False, True])
async def test_a_result_that_could_not_be_stored_says_why(queue: Queue, url: str, before: bool) -> None:
    job = await queue.add("odd")
    waiting = await waiting_for(job) if before else None
    await worker(url).run_until_drained()
    with pytest.raises(ResultUnavailable, match=r"result\.handle is of type object"):
        await (waiting or job.result())


async def test_a_job_removed_as_it_completes_still_gives_its_result_to_those_who_wait(queue: Queue, url: str) -> None:
    jobs = [await queue.add("echo", number, remove_on_complete=Keep.NONE) for number in range(20)]
    waiting = [await waiting_for(jobs[0]), *(asyncio.create_task(job.result()) for job in jobs[1:])]
    async with worker(url):
        assert await asyncio.gather(*waiting) == list(range(20))
    with pytest.raises(JobRemoved, match="job '1' is gone"):
        await jobs[0].result()


async def test_a_job_removed_meanwhile_raises(queue: Queue) -> None:
    job = await queue.add("echo")
    waiting = await waiting_for(job)
    await job.remove()
    with pytest.raises(JobRemoved):
        await waiting


async def test_a_new_job_of_an_old_id_has_its_own_result(queue: Queue, url: str) -> None:
    for turn in range(10):
        job = await queue.add("echo", turn, job_id="seat-17", remove_on_complete=Keep.NONE)
        waiting = asyncio.create_task(job.result())
        await asyncio.sleep(0)
        await worker(url).run_until_drained()
        assert await waiting == turn


# -- how long one waits ------------------------------------------------------------------------------------------------------


async def test_a_time_out_leaves_the_job_alone(queue: Queue, url: str) -> None:
    job = await queue.add("echo", "late")
    with pytest.raises(ResultTimeout, match=r"job '1' of queue 'enrollments' has not ended within 0\.05 s") as caught:
        await job.result(timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    async with worker(url):
        assert await job.result(timeout=5) == "late"


async def test_a_result_that_is_there_needs_no_time(queue: Queue, url: str) -> None:
    job = await queue.add("echo", "early")
    await worker(url).run_until_drained()
    assert await job.result(timeout=1) == "early"


@pytest.mark.parametrize("timeout", [0, 0.000001])
async def test_a_job_is_asked_about_before_the_time_is_up(queue: Queue, url: str, timeout: float) -> None:
    job, removed = await queue.add("echo", "early"), await queue.add("echo")
    failed, waits = await queue.add("fail", "no seat"), await queue.add("echo", delay=60)
    await worker(url).run_until_drained()
    await removed.remove()
    assert await job.result(timeout=timeout) == "early"
    with pytest.raises(JobFailed, match="no seat"):
        await failed.result(timeout=timeout)
    with pytest.raises(JobRemoved):
        await removed.result(timeout=timeout)
    with pytest.raises(ResultTimeout, match="it is delayed"):
        await waits.result(timeout=timeout)


async def test_a_result_that_its_store_gives_too_late_is_not_waited_for(url: str) -> None:
    given = threading.Event()

    class Slow(Codec):
        name = "slow"

        def encode(self, body: bytes) -> tuple[bytes, dict[str, Any]]:
            return body, {}

        def decode(self, body: bytes, step: Mapping[str, Any]) -> bytes:
            if body == b'"late"':
                given.wait(30)
            return body

        def waits_for(self, step: Mapping[str, Any]) -> bool:
            return True

    async with Queue("enrollments", connection=url, codec=Slow()) as queue:
        job = await queue.add("echo", 1)

        async def late(job: Job[Any]) -> str:
            return "late"

        await Worker("enrollments", late, connection=url, codec=Slow()).run_until_drained()
        with pytest.raises(ResultTimeout, match=r"has ended, but what came of it could not be read within 0\.1 s"):
            await job.result(timeout=0.1)
        given.set()
        assert await job.result(timeout=10) == "late"


async def test_giving_up_disturbs_nobody_else(queue: Queue, url: str) -> None:
    job = await queue.add("echo", "for all")
    waiting = [await waiting_for(job) for _ in range(4)]
    for task in waiting[::2]:
        task.cancel()
    async with worker(url):
        assert await asyncio.gather(*waiting[1::2]) == ["for all"] * 2
    assert all(task.cancelled() for task in waiting[::2])


# -- one read for all ----------------------------------------------------------------------------------------------------------


async def test_all_who_wait_share_one_read(server: Server) -> None:
    async with Connection(server.url) as connection:
        queues = [Queue(f"q{number}", connection=connection) for number in range(20)]
        jobs = [await queue.add("echo", number) for number in range(50) for queue in queues]
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        await wait_until(lambda: len(reads(server)) == 1)
        assert len(server.clients()) == 2
        assert "name=emq:" in reads(server)[0]
        workers = [worker(server.url, queue.name, concurrency=10) for queue in queues]
        await asyncio.gather(*(one.run_until_drained() for one in workers))
        assert await asyncio.gather(*waiting) == [number for number in range(50) for _ in queues]


async def test_nobody_polls(queue: Queue, server: Server) -> None:
    def calls() -> int:
        stats = server.cli("INFO", "commandstats").decode()
        lines = [line for line in stats.splitlines() if line.startswith(("cmdstat_evalsha:", "cmdstat_xread:"))]
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)

    job = await queue.add("echo")
    waiting = await waiting_for(job)
    before = calls()
    await asyncio.sleep(1)
    assert calls() == before
    waiting.cancel()


async def test_a_queue_that_joins_later_is_read_too(server: Server) -> None:
    async with Connection(server.url) as connection:
        jobs = [await Queue(f"q{number}", connection=connection).add("echo", number) for number in range(5)]
        waiting = [await waiting_for(job) for job in jobs]
        assert len(reads(server)) == 1
        for number in reversed(range(5)):
            await worker(server.url, f"q{number}").run_until_drained()
            assert await asyncio.wait_for(waiting[number], 5) == number


async def test_the_read_ends_when_nobody_waits(queue: Queue, server: Server) -> None:
    job = await queue.add("echo", 1)
    waiting = await waiting_for(job)
    async with worker(server.url):
        assert await waiting == 1
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "echomq events"]


async def test_thousands_may_wait(queue: Queue, url: str) -> None:
    jobs = [await queue.add("echo", number) for number in range(3_000)]
    waiting = [asyncio.create_task(job.result()) for job in jobs]
    async with worker(url, concurrency=100):
        assert await asyncio.gather(*waiting) == list(range(3_000))


# -- trouble -------------------------------------------------------------------------------------------------------------------


async def test_without_a_server_one_does_not_wait_for_ever(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    async with Queue("enrollments", connection=server.url) as queue:
        job = await queue.add("echo")
    server.stop()
    async with Queue("enrollments", connection=Connection(server.url, wait=0.1)) as queue:
        with pytest.raises(ServerUnavailable, match="queue 'enrollments'"):
            await queue.get_job(job.id)


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_of_the_server_is_waited_out(make_server: Callable[..., Server], kill: bool) -> None:
    server = make_server(appendonly=True)
    async with Queue("enrollments", connection=Connection(server.url, wait=20)) as queue:
        jobs = [await queue.add("echo", number, remove_on_complete=Keep.NONE) for number in range(20)]
        waiting = [await waiting_for(jobs[0]), *(asyncio.create_task(job.result()) for job in jobs[1:])]
        await asyncio.to_thread(server.restart, kill=kill)
        async with worker(server.url):
            assert await asyncio.wait_for(asyncio.gather(*waiting), 20) == list(range(20))


async def test_what_happened_while_the_connection_was_lost_is_found(server: Server, proxy: Proxy) -> None:
    async with Queue("enrollments", connection=proxy.url) as queue:
        jobs = [await queue.add("echo", number) for number in range(3)]
        waiting = [await waiting_for(job) for job in jobs]
        await proxy.stop_listening()
        await worker(server.url).run_until_drained()
        await proxy.listen()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [0, 1, 2]


async def test_events_that_were_trimmed_before_they_were_read_are_made_up_for(server: Server, proxy: Proxy) -> None:
    async with Queue("enrollments", connection=proxy.url) as queue:
        jobs = [await queue.add("echo", number) for number in range(3)]
        waiting = [await waiting_for(job) for job in jobs]
        proxy.black_hole = True
        server.cli("XADD", EVENTS, "*", "event", "noticed")
        await worker(server.url).run_until_drained()
        server.cli("XTRIM", EVENTS, "MAXLEN", "0")
        server.cli("XADD", EVENTS, "*", "event", "noticed")
        proxy.black_hole = False
        started = time.monotonic()
        assert await asyncio.gather(*waiting) == [0, 1, 2]
        assert time.monotonic() - started < 5


async def test_a_stream_that_was_deleted_is_read_on(queue: Queue, server: Server) -> None:
    job = await queue.add("echo", "still")
    waiting = await waiting_for(job)
    server.cli("DEL", EVENTS)
    async with worker(server.url):
        assert await asyncio.wait_for(waiting, 5) == "still"


async def test_what_others_write_into_the_stream_does_no_harm(queue: Queue, server: Server) -> None:
    job = await queue.add("echo", "fine")
    waiting = await waiting_for(job)
    for fields in (
        ("x", "y"),
        ("event", "completed"),
        ("event", "completed", "jobId", "777"),
        ("event", "failed", "jobId", b"\xff\xfe", "failedReason", b"\xff"),
        ("event", "completed", "returnvalue", "notjson"),
        ("event", "completed", "jobId", job.id),
        ("event", "removed", "jobId", job.id),
    ):
        server.cli("XADD", EVENTS, "*", *fields)
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()  # the last two were asked about, and the job has not ended
    async with worker(server.url):
        assert await waiting == "fine"


async def test_a_key_that_is_no_stream_is_named(queue: Queue, server: Server) -> None:
    job = await queue.add("echo")
    server.cli("DEL", EVENTS)
    server.cli("SET", EVENTS, "no stream")
    with pytest.raises(BrokenKey, match=r"emq:\{enrollments\}:events must be a stream"):
        await job.result(timeout=5)


async def test_closing_the_connection_ends_the_waiting(url: str) -> None:
    connection = Connection(url)
    queue = Queue("enrollments", connection=connection)
    waiting = await waiting_for(await queue.add("echo"))
    await connection.close()
    with pytest.raises(ConnectionLost, match="the connection was closed"):
        await waiting
    await queue.close()
    gc.collect()
