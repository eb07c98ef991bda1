"""What other programs, or people, may have written: it harms its own job at most, and every job ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import redis

from echomq import InvalidOption, Job, Queue, Unrecoverable, Worker
from echomq.idempotency import job_key
from tests.support.server import Server
from tests.support.wait import wait_until

BASE = "emq:{foreign}:"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("foreign", connection=url) as made:
        yield made


def put(client: redis.Redis, opts: str = "{}", *, score: float | None = None, name: str = "bad", **fields: str) -> None:
    """A job as somebody else writes it."""
    values: Mapping[Any, Any] = {"name": name, "data": "{}", "opts": opts, "timestamp": "1700000000000", **fields}
    client.hset(f"{BASE}j", mapping=values)
    if score is None:
        client.lpush(f"{BASE}wait", "j")
    else:
        client.zadd(f"{BASE}delayed", {"j": score})
    client.zadd(f"{BASE}marker", {"0": 0})


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    "opts",
    [
        '{"attempts":1.7976931348623157e308}',
        f'{{"attempts":{HUGE}}}',
        '{"attempts":3,"backoff":{"type":"fixed","delay":1.7976931348623157e308}}',
        f'{{"backoff":{HUGE}}}',
        '{"a":NaN,"b":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"removeOnComplete":{"age":-1},"removeOnFail":{"age":-1}}',
        '{"removeOnComplete":{"age":60,"limit":-1},"removeOnFail":{"age":60,"limit":-1}}',
        '{"removeOnComplete":-7,"removeOnFail":-7}',
        '{"stackTraceLimit":-3,"priority":"high","delay":[1]}',
        "[1]",
        "no JSON",
    ],
    ids=lambda opts: opts[:40],
)
@pytest.mark.parametrize("fails", [False, True])
async def test_any_options_leave_the_worker_and_other_jobs_alone(
    server: Server, queue: Queue, opts: str, fails: bool
) -> None:
    runs = []

    async def process(job: Job[Any]) -> int:
        runs.append(job.id)
        if job.name == "bad" and fails:
            raise ValueError("no") if "backoff" in opts else Unrecoverable("no")
        return 1

    with server.client() as client:
        put(client, opts)
        async with Worker(queue, process, concurrency=2, lock_duration=1, stalled_interval=0.5):
            await wait_until(lambda: client.llen(f"{BASE}wait") == 0 and client.llen(f"{BASE}active") == 0)
            assert await (await queue.add("good")).result(timeout=10) == 1
        assert runs.count("j") <= 3
        assert not client.hget(f"{BASE}j", "stc")


async def test_options_that_are_nested_too_deep_are_told_to_a_results_queue(server: Server, queue: Queue) -> None:
    async def process(job: Job[Any]) -> None: ...

    deep = '{"tm":"\\ud800","x":' + "[" * 100_000 + "]" * 100_000 + "}"
    with server.client() as client:
        put(client, deep)
        async with Worker(queue, process, results_queue="results"):
            await wait_until(lambda: client.zscore(f"{BASE}failed", "j"))
            await wait_until(lambda: client.llen("emq:{results}:wait") == 1)
        assert b"nested too deep" in (client.hget(f"{BASE}j", "failedReason") or b"")


@pytest.mark.parametrize("score", [float("inf"), float("-inf"), -5000, 0])
async def test_any_score_among_the_delayed_does(server: Server, queue: Queue, score: float) -> None:
    async def process(job: Job[Any]) -> int:
        return 1

    with server.client() as client:
        put(client, score=score)
        async with Worker(queue, process, concurrency=2):
            assert await (await queue.add("good")).result(timeout=10) == 1
            if score < float("inf"):
                await wait_until(lambda: client.zscore(f"{BASE}completed", "j"))
            before = client.info("stats")["total_commands_processed"]
            assert await (await queue.add("good", delay=0.5)).result(timeout=10) == 1
            assert client.info("stats")["total_commands_processed"] - before < 500, "the worker spins"


async def test_attempts_that_an_older_writer_counted_count(server: Server, queue: Queue) -> None:
    runs = 0

    async def process(job: Job[Any]) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("no")

    with server.client() as client:
        put(client, '{"attempts":3}', attemptsMade="1")
        async with Worker(queue, process):
            await wait_until(lambda: client.zscore(f"{BASE}failed", "j"))
    assert runs == 2


NINES = "9" * 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("atm", "nan"),
        ("atm", "inf"),
        ("atm", NINES),
        ("atm", "-99999999999999999999"),
        ("atm", "-1"),
        ("attemptsMade", "1e400"),
        ("ats", "nan"),
        ("ats", f"-{NINES}"),
        ("stc", "inf"),
    ],
)
async def test_any_counter_lets_the_job_end(server: Server, queue: Queue, field: str, value: str) -> None:
    runs = 0

    async def process(job: Job[Any]) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("no")

    with server.client() as client:
        put(client, '{"attempts":3}')
        client.hset(f"{BASE}j", field, value)
        async with Worker(queue, process):
            await wait_until(lambda: client.zscore(f"{BASE}failed", "j"))
        assert runs == 3
        assert client.hget(f"{BASE}j", "atm") == b"3"
        assert client.hget(f"{BASE}j", "ats") == b"3"


@pytest.mark.parametrize("field", ["timestamp", "processedOn", "finishedOn"])
@pytest.mark.parametrize("value", ["8640000000000001", "253402300800000", "1e300", NINES, "-1", "nan"])
async def test_a_moment_that_python_does_not_have_is_none(server: Server, queue: Queue, field: str, value: str) -> None:
    with server.client() as client:
        put(client)
        client.hset(f"{BASE}j", field, value)
    job = await queue.get_job("j")
    assert job is not None
    assert {"timestamp": job.timestamp, "processedOn": job.processed_on, "finishedOn": job.finished_on}[field] is None
    assert job_key(job)
    assert (job.attempts_made, job.attempts_started, job.stalled_count) == (0, 0, 0)


async def test_a_family_that_cannot_be_read_lets_the_job_end(server: Server, queue: Queue) -> None:
    async def process(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError("no")

    with server.client() as client:
        client.hset(f"{BASE}par", mapping={"name": "p", "data": "{}", "opts": "{}"})
        client.zadd(f"{BASE}waiting-children", {"par": 1})
        put(client, parentKey=f"{BASE}par", parent="garbage")
        async with Worker(queue, process):
            await wait_until(lambda: client.zscore(f"{BASE}failed", "j"))
        client.flushdb()
        client.set(f"{BASE}de:d", "j")
        client.hset(f"{BASE}dn:d", mapping={"name": "next", "data": "{}", "opts": "[["})
        put(client, name="first", deid="d")
        async with Worker(queue, process):
            await wait_until(lambda: client.zcard(f"{BASE}completed") == 2)


async def test_an_id_that_stands_twice_in_the_line_runs_once(server: Server, queue: Queue) -> None:
    runs = []

    async def process(job: Job[Any]) -> None:
        runs.append(job.id)

    with server.client() as client:
        await queue.add("first", job_id="first", delay=0)
        put(client)
        client.lpush(f"{BASE}wait", "j", "other")
        client.rpush(f"{BASE}wait", "j")
        client.hset(f"{BASE}other", mapping={"name": "n", "data": "{}", "opts": "{}", "timestamp": "1"})
        worker = Worker(queue, process, concurrency=100)
        await worker.run_until_drained()
    assert "other" in runs


async def test_a_length_of_the_event_log_that_is_no_number_does_no_harm(server: Server, queue: Queue) -> None:
    async def process(job: Job[Any]) -> int:
        return 1

    with server.client() as client:
        client.hset(f"{BASE}meta", "opts.maxLenEvents", "010000")
        async with Worker(queue, process):
            assert await (await queue.add("good")).result(timeout=10) == 1


async def test_a_handler_may_close_its_own_worker(queue: Queue) -> None:
    await queue.add("one")
    worker: Worker

    async def process(job: Job[Any]) -> None:
        await worker.close()

    worker = Worker(queue, process)
    await worker.run()
    assert await queue.counts("completed", "waiting") == {"completed": 1, "waiting": 0}


def test_a_name_without_a_utf8_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="lone surrogate"):
        Worker("foreign", lambda job: None, connection=url, name="w\udcff")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_job_beside_a_broken_parent_ends_at_once_and_the_log_says_what_was_left_undone(
    server: Server, queue: Queue, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []

    async def process(job: Job[Any]) -> int:
        runs.append(job.id)
        if fails:
            raise Unrecoverable("no")
        return 7

    with server.client() as client:
        client.hset(f"{BASE}parent", mapping={"name": "p", "data": "{}", "opts": "{}"})
        client.set(f"{BASE}parent:dependencies", "rubbish")
        put(client, parentKey=f"{BASE}parent", parent='{"id":"parent","queueKey":"emq:{foreign}","fpof":true}')
        async with Worker(queue, process):
            await wait_until(lambda: client.zcard(f"{BASE}{'failed' if fails else 'completed'}") == 1)
            await wait_until(lambda: "j (bad) has ended" in caplog.text)
        assert runs == ["j"]
        assert client.exists(f"{BASE}j:lock") == 0
        assert client.get(f"{BASE}parent:dependencies") == b"rubbish"
    [warning] = [one for one in caplog.records if one.levelname == "WARNING"]
    said = f"its parent {BASE}parent was not told: {BASE}parent:dependencies must be a set"
    assert warning.getMessage().endswith(said)


async def test_an_id_that_stands_twice_runs_once_whichever_calls_fetch_it(server: Server, queue: Queue) -> None:
    runs = []
    second = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        runs.append(job.id)
        if job.id == "j":
            with server.client() as client:
                client.lpush(f"{BASE}wait", "j")  # while it runs
            await queue.add("second")
            await second.wait()
        else:
            second.set()

    with server.client() as client:
        put(client)
        async with Worker(queue, process, concurrency=4):
            await wait_until(lambda: client.zcard(f"{BASE}completed") == 2)
            client.lpush(f"{BASE}wait", "j")  # once it has ended
            await queue.add("third")
            await wait_until(lambda: client.zcard(f"{BASE}completed") == 3)
        assert runs.count("j") == 1
        assert client.llen(f"{BASE}active") == client.llen(f"{BASE}wait") == 0
