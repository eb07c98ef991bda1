"""What a job tells while it runs: progress, lines of its log, other data; and who reads it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from echomq import (
    Connection,
    EchoMQ,
    EncodingError,
    InvalidOption,
    Job,
    JobNotFound,
    JobSpec,
    LockLost,
    Logs,
    Queue,
    ServerUnavailable,
    Worker,
)
from tests.support.proxy import Loss, Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("q", connection=url) as made:
        yield made


async def found(queue: Queue, job_id: str = "1") -> Job[Any]:
    job = await queue.get_job(job_id)
    assert job is not None
    return job


async def test_progress_log_and_data_from_outside(queue: Queue) -> None:
    job = await queue.add("print", {"pages": 8})
    await job.update_progress({"done": 3, "of": 8})
    assert await job.log("page 3 is printed") == 1
    assert await job.log("Seite 4 wird gedruckt: ü") == 2
    await job.update_data({"pages": 9})
    assert job.data == {"pages": 8}, "a record is of its moment"
    now = await found(queue)
    assert now.progress == {"done": 3, "of": 8}
    assert now.data == {"pages": 9}
    assert await now.logs() == Logs(["page 3 is printed", "Seite 4 wird gedruckt: ü"], 2)


async def test_lines_in_both_orders_and_by_position(queue: Queue) -> None:
    job = await queue.add("print")
    for number in range(5):
        await job.log(str(number))
    assert (await job.logs(1, 2)).lines == ["1", "2"]
    assert (await job.logs(3)).lines == ["3", "4"]
    assert (await job.logs(0, 1, newest_first=True)).lines == ["4", "3"]
    assert (await job.logs(newest_first=True)).lines == ["4", "3", "2", "1", "0"]
    assert await job.logs(7) == Logs([], 5)
    await job.clear_logs(keep=2)
    assert await job.logs() == Logs(["3", "4"], 2)
    await job.clear_logs()
    assert await job.logs() == Logs([], 0)


async def test_a_long_log_is_read_in_whole(queue: Queue) -> None:
    job = await queue.add("print", keep_logs=5000)
    await asyncio.gather(*(job.log(f"{number:05}") for number in range(2300)))
    assert (await job.logs()).lines == [f"{number:05}" for number in range(2300)]
    assert (await job.logs(newest_first=True)).lines == [f"{number:05}" for number in reversed(range(2300))]
    assert (await job.logs(500, 1700)).lines == [f"{number:05}" for number in range(500, 1701)]


async def test_a_log_keeps_its_last_lines(queue: Queue) -> None:
    job = await queue.add("print")
    await asyncio.gather(*(job.log(str(number)) for number in range(1100)))
    assert (await job.logs()).count == 1000
    few = await queue.add(JobSpec("print", keep_logs=2))
    assert few.opts.keep_logs == 2
    assert [await few.log("a"), await few.log("b"), await few.log("c")] == [1, 2, 2]
    assert await few.log("d", keep=10) == 3
    assert (await few.logs()).lines == ["b", "c", "d"]


async def test_a_long_line_is_cut_and_says_so(queue: Queue) -> None:
    job = await queue.add("print")
    await job.log("ü" * 10_000)
    [line] = (await job.logs()).lines
    assert line.endswith(" ... (cut; it had 20000 bytes)")
    assert 16_370 < len(line.encode()) <= 16_384


async def test_what_is_told_at_once_keeps_its_order(queue: Queue) -> None:
    jobs = [await queue.add("print") for _ in range(3)]
    await asyncio.gather(*(job.log(str(number)) for number in range(200) for job in jobs))
    for job in jobs:
        assert (await job.logs()).lines == list(map(str, range(200)))


async def test_what_breaks_a_rule_is_refused_and_named(queue: Queue) -> None:
    job = await queue.add("print")
    with pytest.raises(InvalidOption, match=r"line=7: must be a text; write str"):
        await job.log(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"keep=0: must be a whole number from 1 to 100000"):
        await job.log("x", keep=0)
    with pytest.raises(InvalidOption, match=r"keep=-1"):
        await job.clear_logs(keep=-1)
    with pytest.raises(InvalidOption, match=r"start=-1"):
        await job.logs(-1)
    with pytest.raises(InvalidOption, match=r"keep_logs=0: must be a whole number from 1 to 100000"):
        await queue.add("print", keep_logs=0)
    with pytest.raises(EncodingError, match=r"progress\.share is nan"):
        await job.update_progress({"share": float("nan")})
    with pytest.raises(EncodingError, match=r"data is of type object"):
        await job.update_data(object())
    assert (await job.logs()).count == 0


async def test_of_a_job_that_is_gone_nothing_is_written(queue: Queue) -> None:
    job = await queue.add("print")
    await job.remove()
    for call in (job.update_progress(1), job.update_data({}), job.log("x")):
        with pytest.raises(JobNotFound, match=r"job '1' of queue 'q': its \w+ is not written: there is no such job"):
            await call
    with pytest.raises(JobNotFound, match="has no log"):
        await job.logs()
    with pytest.raises(JobNotFound, match="its log is not cleared"):
        await job.clear_logs()


# -- from the handler


async def test_an_async_handler_tells_of_its_job(queue: Queue, url: str) -> None:
    async def process(job: Job[Any]) -> None:
        await job.update_progress(0.5)
        await job.log("half")
        await job.update_data({"left": 1})
        newer = await job.refresh()
        assert newer is not None
        assert newer.progress == 0.5
        await newer.update_progress(1)

    job = await queue.add("print")
    await Worker("q", process, connection=url).run_until_drained()
    now = await found(queue, job.id)
    assert now.state == "completed"
    assert (now.progress, now.data) == (1, {"left": 1})
    assert (await now.logs()).lines == ["half"]


async def test_a_plain_handler_tells_of_its_job_without_await(queue: Queue, url: str) -> None:
    counted: list[Any] = []

    def process(job: Job[Any]) -> None:
        job.update_progress(0.5)
        counted.append(job.log("half"))
        counted.append(job.log("whole"))
        job.update_data({"left": 0})

    job = await queue.add("print")
    await Worker("q", process, connection=url).run_until_drained()
    now = await found(queue, job.id)
    assert now.state == "completed", now.failed_reason
    assert counted == [1, 2]
    assert (now.progress, now.data) == (0.5, {"left": 0})


async def test_a_plain_handler_hears_what_is_refused(queue: Queue, url: str) -> None:
    def process(job: Job[Any]) -> None:
        job.log(7)  # type: ignore[arg-type]

    job = await queue.add("print")
    await Worker("q", process, connection=url).run_until_drained()
    assert "line=7: must be a text" in ((await found(queue, job.id)).failed_reason or "")


async def test_a_task_tells_of_its_job(url: str) -> None:
    app = EchoMQ(url)

    @app.task(queue="q", pass_job=True, keep_logs=1)
    def crawl(job: Job[Any], pages: int) -> int:
        for number in range(pages):
            job.log(f"page {number}")
        return pages

    async with app:
        job = await crawl.enqueue(3)
        assert job.opts.keep_logs == 1
        await app.worker("q").run_until_drained()
        assert (await job.logs()).lines == ["page 2"]


async def test_a_run_that_has_lost_its_job_writes_nothing(queue: Queue, url: str, server: Server) -> None:
    told: list[BaseException] = []
    begun, taken = asyncio.Event(), asyncio.Event()

    async def process(job: Job[Any]) -> None:
        begun.set()
        await taken.wait()
        for call in (job.update_progress("mine"), job.log("mine"), job.update_data("mine")):
            try:
                await call
            except LockLost as error:
                told.append(error)

    job = await queue.add("print")
    async with Worker("q", process, connection=url, lock_duration=60):
        await begun.wait()
        with server.client() as client:
            client.set("emq:{q}:1:lock", "another worker's", px=60_000)
        taken.set()
        await wait_until(lambda: len(told) == 3)
    assert len(told) == 3
    assert "its progress is not written: this run of it is over, or another worker has the job by now" in str(told[0])
    now = await found(queue, job.id)
    assert (now.progress, now.data) == (None, {})
    assert (await now.logs()).count == 0


async def test_the_next_run_gets_the_data_that_the_last_one_left(queue: Queue, url: str) -> None:
    seen: list[Any] = []

    async def process(job: Job[Any]) -> None:
        seen.append(job.data)
        if job.attempts_made == 0:
            await job.update_data({"from": 3})
            raise ConnectionError

    await queue.add("print", {"from": 1}, attempts=2)
    await Worker("q", process, connection=url).run_until_drained()
    assert seen == [{"from": 1}, {"from": 3}]


@pytest.mark.parametrize("loss", ["request", "reply"])
async def test_what_is_lost_on_its_way_is_written_once(queue: Queue, server: Server, loss: Loss) -> None:
    def process(job: Job[Any]) -> None:
        for number in range(3):
            job.log(f"line {number}")
            job.update_progress(number)

    job = await queue.add("print")
    async with Proxy(server) as proxy:
        proxy.lose(loss, needle("updateJobs-4"))
        await Worker("q", process, connection=proxy.url).run_until_drained()
        assert proxy.seen >= 1
    now = await found(queue, job.id)
    assert (now.state, now.progress) == ("completed", 2), now.failed_reason
    assert (await now.logs()).lines == ["line 0", "line 1", "line 2"]


async def test_a_handler_whose_server_is_away_hears_that_nothing_was_written(
    queue: Queue, make_server: Callable[..., Server]
) -> None:
    errors: list[Exception] = []
    server = make_server()
    begun, stopped = threading.Event(), threading.Event()

    def process(job: Job[Any]) -> None:
        begun.set()
        stopped.wait(10)
        try:
            job.log("nobody is there")
        except ServerUnavailable as error:
            errors.append(error)

    async with Connection(server.url, wait=0.1) as connection, Queue("q", connection=connection) as own:
        job = await own.add("print")
        async with Worker("q", process, connection=connection):
            await wait_until(begun.is_set)
            await asyncio.to_thread(server.kill)
            stopped.set()
            await wait_until(lambda: errors)
            await asyncio.to_thread(server.start)
    assert "not carried out" in str(errors[0])
    assert job.id == "1"


async def test_a_run_that_is_over_writes_nothing_more(queue: Queue, url: str) -> None:
    kept: list[Job[Any]] = []

    async def process(job: Job[Any]) -> None:
        kept.append(job)

    await queue.add("print")
    async with Connection(url) as connection, Worker("q", process, connection=connection) as worker:
        await (await found(queue)).result(timeout=5)
        with pytest.raises(LockLost):
            await kept[0].log("late")
        assert worker.is_running
