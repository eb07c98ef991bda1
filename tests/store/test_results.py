"""Waiting for results, where the stream alone does not tell: removals without an event, odd events, many jobs, lost reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from echomq._store import streams
from echomq._store.codec import encode_spec
from echomq._store.keys import QueueKeys
from echomq._store.line import Line
from echomq._store.results import Ending, Results, result_of
from echomq.connection import Connection
from echomq.errors import ServerError
from echomq.options import JobSpec
from tests.support.proxy import Proxy, needle
from tests.support.server import Server
from tests.support.wait import wait_until

KEYS = QueueKeys.of("q")
EVENTS = KEYS.key("events")


@pytest.fixture
async def line(proxy: Proxy) -> AsyncIterator[Line]:
    line = Line(Connection(proxy.url, call_timeout=0.5).acquire(), KEYS)
    yield line
    await line.close()


async def waiting(line: Line, number: int = 1) -> list[asyncio.Task[Ending]]:
    """Tasks that wait for so many new jobs, and whose question has been answered."""
    added = await line.add([encode_spec(JobSpec("paint"))] * number)
    tasks = [asyncio.create_task(result_of(line, one.job_id)) for one in added]
    await wait_until(lambda: _checked(line) == number)
    return tasks


def _checked(line: Line) -> int:
    results: Results | None = line.hub._parts.get("results")
    if results is None:
        return 0
    return sum(
        waiter.checked is not None
        for queue in results._queues.values()
        for waiters in queue.waiters.values()
        for waiter in waiters
    )


def complete(server: Server, job_id: str, value: str, *, event: bool = True, **fields: str) -> None:
    """Completes a job as some other program may do it."""
    server.cli("LREM", KEYS.key("wait"), 1, job_id)
    server.cli("HSET", KEYS.job(job_id), "returnvalue", value, *[part for pair in fields.items() for part in pair])
    server.cli("ZADD", KEYS.key("completed"), 1, job_id)
    if event:
        server.cli("XADD", EVENTS, "*", "event", "completed", "jobId", job_id, "returnvalue", value)


async def test_the_event_itself_brings_the_result(server: Server, line: Line) -> None:
    [task] = await waiting(line)
    server.cli("XADD", EVENTS, "*", "event", "completed", "jobId", "1", "returnvalue", "17")  # the job says nothing yet
    assert await task == Ending("completed", b"17")


async def test_an_event_without_a_result_leads_to_the_job(server: Server, line: Line) -> None:
    [task] = await waiting(line)
    complete(server, "1", "17", event=False)
    server.cli("XADD", EVENTS, "*", "event", "completed", "jobId", "1")
    assert await task == Ending("completed", b"17")


async def test_an_event_whose_result_was_too_large_leads_to_the_job(server: Server, line: Line) -> None:
    [task] = await waiting(line)
    complete(server, "1", "17", event=False)
    fields = ("jobId", "1", "returnvalue", "null", "prev", "active", "resultBytes", "70000")
    server.cli("XADD", EVENTS, "*", "event", "completed", *fields)
    assert await task == Ending("completed", b"17")


async def test_the_event_says_why_a_result_could_not_be_stored(server: Server, line: Line) -> None:
    [task] = await waiting(line)
    complete(server, "1", "null", event=False)
    server.cli(
        "XADD",
        EVENTS,
        "*",
        "event",
        "completed",
        "jobId",
        "1",
        "returnvalue",
        "null",
        "prev",
        "active",
        "resultError",
        "why",
    )
    assert await task == Ending("completed", b"null", "why")


@pytest.mark.parametrize("how", ["drain", "flush"])
async def test_a_job_that_vanished_without_an_event_is_missed(
    server: Server, proxy: Proxy, line: Line, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(streams, "_LOOK_ROUND", 0.2)
    monkeypatch.setattr(streams, "_BLOCK", 0.1)
    [task] = await waiting(line)
    if how == "drain":
        server.cli("DEL", KEYS.job("1"), KEYS.key("wait"))
    else:
        server.cli("FLUSHALL")
    assert await asyncio.wait_for(task, 5) == Ending("removed")


async def test_a_cleaning_makes_everybody_ask(server: Server, line: Line) -> None:
    tasks = await waiting(line, 3)
    server.cli("DEL", KEYS.job("2"))
    server.cli("XADD", EVENTS, "*", "event", "cleaned", "count", "1")
    assert await tasks[1] == Ending("removed")
    assert not tasks[0].done()
    assert not tasks[2].done()
    for task in tasks:
        task.cancel()


async def test_more_jobs_than_one_question_may_name(server: Server, line: Line) -> None:
    tasks = [task for _ in range(10) for task in await _more(line, 250)]
    server.cli("DEL", *[KEYS.job(str(number)) for number in range(1, 2_501)])
    server.cli("XADD", EVENTS, "*", "event", "cleaned", "count", "2500")
    assert await asyncio.gather(*tasks) == [Ending("removed")] * 2_500


async def _more(line: Line, number: int) -> list[asyncio.Task[Ending]]:
    added = await line.add([encode_spec(JobSpec("paint"))] * number)
    return [asyncio.create_task(result_of(line, one.job_id)) for one in added]


async def test_a_backlog_longer_than_one_read(server: Server, line: Line) -> None:
    tasks = await waiting(line, 50)
    with server.client() as client, client.pipeline(transaction=False) as pipeline:
        for number in range(5_000):
            pipeline.xadd(EVENTS, {"event": "noticed", "number": str(number)})
            if number % 100 == 0:
                job = str(number // 100 + 1)
                pipeline.xadd(EVENTS, {"event": "failed", "jobId": job, "failedReason": f"no {job}"})
        pipeline.execute()
    assert await asyncio.gather(*tasks) == [Ending("failed", f"no {number}".encode()) for number in range(1, 51)]


@pytest.mark.parametrize("piece", [b"XREAD", b"XINFO", b"XRANGE", b"UNBLOCK", needle("isFinished-2")])
async def test_whatever_reply_is_lost_the_end_is_found(server: Server, proxy: Proxy, line: Line, piece: bytes) -> None:
    tasks = await waiting(line, 3)
    proxy.lose("reply", piece, times=2)
    complete(server, "1", "1")
    await tasks[0]
    again = asyncio.create_task(result_of(line, "2"))
    complete(server, "2", "2")
    server.cli("DEL", KEYS.job("3"))
    server.cli("XADD", EVENTS, "*", "event", "removed", "jobId", "3")
    ends = await asyncio.wait_for(asyncio.gather(*tasks, again), 10)
    assert ends == [Ending("completed", b"1"), Ending("completed", b"2"), Ending("removed"), Ending("completed", b"2")]


async def test_an_event_older_than_the_job_is_not_its_end(server: Server, proxy: Proxy, line: Line) -> None:
    [other] = await waiting(line)
    proxy.black_hole = True  # the reader lags behind …
    server.cli("XADD", EVENTS, "*", "event", "completed", "jobId", "7", "returnvalue", '"of the old job"')
    server.cli("HSET", KEYS.job("7"), "name", "paint")
    task = asyncio.create_task(result_of(line, "7"))  # … when somebody begins to wait for the new one
    await asyncio.wait([task], timeout=0.05)
    proxy.black_hole = False
    await wait_until(lambda: _checked(line) == 2)
    complete(server, "7", '"of the new job"')
    assert await task == Ending("completed", b'"of the new job"')
    other.cancel()


async def test_a_job_that_is_gone_may_have_left_its_end_in_what_is_not_read_yet(
    server: Server, proxy: Proxy, line: Line
) -> None:
    [other] = await waiting(line)
    proxy.lose("silence", b"XREAD")
    server.cli("XADD", EVENTS, "*", "event", "noticed")
    await wait_until(lambda: proxy.seen == 1)  # from here on the reader lags behind
    server.cli("XADD", EVENTS, "*", "event", "completed", "jobId", "7", "returnvalue", "17")
    assert await asyncio.wait_for(result_of(line, "7"), 5) == Ending("completed", b"17")
    proxy.release()
    other.cancel()


async def test_an_end_that_is_read_before_the_answer_that_it_goes_on_counts(
    server: Server, proxy: Proxy, line: Line
) -> None:
    [other] = await waiting(line)
    [added] = await line.add([encode_spec(JobSpec("paint"))])
    proxy.lose("silence", needle("isFinished-2"))
    task = asyncio.create_task(result_of(line, added.job_id))
    await wait_until(lambda: proxy.holds == 1)  # the server has said that it goes on
    server.cli("XADD", EVENTS, "*", "event", "completed", "jobId", added.job_id, "returnvalue", "17")
    server.cli("DEL", KEYS.job(added.job_id))  # removed as it completed
    results: Results = line.hub._parts["results"]
    await wait_until(lambda: any(one.early for one in results._queues[KEYS.base].waiters[added.job_id.encode()]))
    proxy.release()
    assert await asyncio.wait_for(task, 5) == Ending("completed", b"17")
    other.cancel()


async def test_a_stream_that_begins_anew_with_lower_ids_is_read(server: Server, proxy: Proxy, line: Line) -> None:
    server.cli("XADD", EVENTS, "9999999999999-0", "event", "of a clock that went back")
    [task] = await waiting(line)
    server.cli("DEL", EVENTS)
    server.cli("XADD", EVENTS, "1-1", "event", "noticed")
    proxy.cut()
    await wait_until(lambda: proxy.connections == 2)
    complete(server, "1", "17")
    assert await asyncio.wait_for(task, 5) == Ending("completed", b"17")


@pytest.fixture
async def guarded(make_server: Callable[..., Server]) -> AsyncIterator[tuple[Server, Proxy, Line]]:
    """A server that wants a password, a proxy before it, and a line through that."""
    server = make_server(acl=["user ada on >secret ~* &* +@all"])
    async with Proxy(server) as proxy:
        line = Line(Connection(proxy.url.replace("//", "//ada:secret@"), call_timeout=0.5).acquire(), KEYS)
        yield server, proxy, line
        await line.close()


async def test_a_password_that_differs_for_a_moment_ends_no_waiting(guarded: tuple[Server, Proxy, Line]) -> None:
    server, proxy, line = guarded
    [task] = await waiting(line)
    server.cli("ACL", "SETUSER", "ada", "resetpass", ">another")
    proxy.cut()
    await asyncio.wait([task], timeout=1)
    assert not task.done()
    server.cli("ACL", "SETUSER", "ada", "resetpass", ">secret")
    complete(server, "1", "17")
    assert await asyncio.wait_for(task, 10) == Ending("completed", b"17")


@pytest.mark.parametrize("refused", ["password", "XREAD"])
async def test_a_refusal_that_lasts_is_told_to_all_who_wait(
    guarded: tuple[Server, Proxy, Line], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr(streams, "REFUSED_FOR", 0.3)
    server, proxy, line = guarded
    tasks = await waiting(line, 3)
    if refused == "password":
        server.cli("ACL", "SETUSER", "ada", "resetpass", ">another")
    else:
        server.cli("ACL", "SETUSER", "ada", "-xread")
    proxy.cut()
    errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [error.code for error in errors if isinstance(error, ServerError)] == [
        "WRONGPASS" if refused == "password" else "NOPERM"
    ] * 3
