"""We add, Node works: every kind of job that our ``add`` makes runs there, and ``result()`` brings back how it ended."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import Backoff, Job, JobFailed, JobRemoved, JobSpec, Keep, ResultTimeout
from tests.interop.conftest import Pair


async def test_standard_delayed_prioritized_lifo_custom_and_bulk_jobs(pair: Pair) -> None:
    ours, now = pair.ours, datetime.now(UTC)
    jobs = [
        await ours.add("echo", {"kind": "standard"}),
        await ours.add("echo", {"kind": "delayed"}, delay=0.3),
        await ours.add("echo", {"kind": "at"}, at=now + timedelta(seconds=0.4)),
        await ours.add("echo", {"kind": "prioritized"}, priority=3),
        await ours.add("echo", {"kind": "lifo"}, lifo=True),
        await ours.add("echo", {"kind": "custom"}, job_id="order-17"),
        await ours.add("echo", {"kind": "backdated"}, timestamp=now - timedelta(days=1)),
    ]
    jobs += await ours.add_bulk(JobSpec("echo", {"kind": f"bulk {n}"}, priority=n % 2) for n in range(600))
    added = time.monotonic()
    await pair.theirs.work(concurrency=20)
    for job in jobs:
        assert await job.result(timeout=15) == job.data
    assert time.monotonic() - added >= 0.25
    assert await pair.theirs.counts() == {"completed": len(jobs)}
    finished = await _ours(pair, "order-17")
    assert finished.state == "completed"
    assert (finished.attempts_made, finished.attempts_started, finished.stalled_count) == (1, 1, 0)
    assert finished.return_value == {"kind": "custom"}
    assert finished.finished_on is not None
    delayed = await _ours(pair, jobs[1].id)
    assert delayed.timestamp is not None
    assert delayed.processed_on is not None
    assert delayed.processed_on >= delayed.timestamp + timedelta(seconds=0.3)
    at = await _ours(pair, jobs[2].id)
    assert at.processed_on is not None
    assert at.processed_on >= now + timedelta(seconds=0.399)


async def _ours(pair: Pair, job_id: str) -> Job[Any]:
    job = await pair.ours.get_job(job_id)
    assert job is not None
    return job


async def test_node_runs_our_jobs_in_order(pair: Pair) -> None:
    ours = pair.ours
    await ours.pause()
    third, fourth = await ours.add("nothing"), await ours.add("nothing")
    seventh = await ours.add("nothing", priority=9)
    fifth, sixth = await ours.add("nothing", priority=2), await ours.add("nothing", priority=2)
    second = await ours.add("nothing", lifo=True)
    first = await ours.add("nothing", lifo=True)
    jobs = [first, second, third, fourth, fifth, sixth, seventh]
    await pair.theirs.work()
    await ours.resume()
    for job in jobs:
        await job.result(timeout=10)
    assert [news["id"] for news in await pair.node.tells("start", times=7)] == [job.id for job in jobs]


VALUES: list[Any] = [
    None, 0, -1.5, True, "", "text", "ünïcödé 😀 课程", "a\ud800b", "\x00", [], {}, [1, [2, {"a": None}]],
    {"": "", "😀": "\udfff"}, 2**53 - 1, 1e300, "x" * 200_000,
]  # fmt: skip


async def test_data_and_results_of_every_shape(pair: Pair) -> None:
    jobs = await pair.ours.add_bulk(JobSpec("value", {"value": value}) for value in VALUES)
    await pair.theirs.work(concurrency=10)
    for job, value in zip(jobs, VALUES, strict=True):
        assert await job.result(timeout=10) == value
        finished = await job.refresh()
        assert finished is not None
        assert finished.data == {"value": value}
        assert finished.return_value == value
    seen = {news["id"]: news["data"]["value"] for news in await pair.node.tells("start", times=len(jobs))}
    assert seen == {job.id: value for job, value in zip(jobs, VALUES, strict=True)}


AS_NODE_WRITES_IT = 9223372036854776000


async def test_a_whole_number_beyond_what_node_can_hold(bull: Pair) -> None:
    """It is stored with every digit, and comes whole to our own workers; JavaScript has a float for it."""
    big = 2**63 + 1
    await bull.theirs.listen()
    kept = await bull.ours.add("value", {"value": big})
    async with bull.worker():
        assert await kept.result(timeout=10) == big
        assert bull.runs.seen[0].data == {"value": big}
    assert (await bull.theirs.job(kept.id))["returnvalue"] == AS_NODE_WRITES_IT
    await bull.node.tells("event", event="completed")  # the listener has lived through it
    rounded = await bull.ours.add("value", {"value": big})
    await bull.theirs.work()
    assert await rounded.result(timeout=10) == AS_NODE_WRITES_IT
    finished = await rounded.refresh()
    assert finished is not None
    assert finished.data == {"value": big}


async def test_jobs_without_data_and_results_without_value(pair: Pair) -> None:
    nothing, null = await pair.ours.add("nothing"), await pair.ours.add("echo", None)
    await pair.theirs.work()
    assert await nothing.result(timeout=10) is None
    assert await null.result(timeout=10) is None
    assert [news["data"] for news in await pair.node.tells("start", times=2)] == [{}, None]


async def test_failures_come_back_with_their_reason(pair: Pair) -> None:
    failing = await pair.ours.add("fail", {"reason": "no seat: ünïcödé 😀\nsecond line"})
    final = await pair.ours.add("unrecoverable", {"reason": "course gone"}, attempts=5)
    unknown = await pair.ours.add("a task that nobody has")
    await pair.theirs.work()
    with pytest.raises(JobFailed) as raised:
        await failing.result(timeout=10)
    assert raised.value.reason == "no seat: ünïcödé 😀\nsecond line"
    with pytest.raises(JobFailed, match="course gone"):
        await final.result(timeout=10)
    with pytest.raises(JobFailed, match="no handler"):
        await unknown.result(timeout=10)
    job = await failing.refresh()
    assert job is not None
    assert job.state == "failed"
    assert job.failed_reason == raised.value.reason
    assert len(job.stacktrace) == 1
    assert job.stacktrace[0].startswith("Error: no seat")


@pytest.mark.parametrize(
    ("backoff", "least"),
    [
        (None, 0.0),
        (0.1, 0.2),
        (timedelta(milliseconds=100), 0.2),
        (Backoff.fixed(0.1), 0.2),
        (Backoff.exponential(0.1), 0.3),
        (Backoff.exponential(0.1, jitter=0.5), 0.15),
    ],
)
async def test_node_retries_as_our_backoff_says(bull: Pair, backoff: Any, least: float) -> None:
    job = await bull.ours.add("fail", {"times": 2}, attempts=3, backoff=backoff)
    start = time.monotonic()
    await bull.theirs.work()
    assert await job.result(timeout=10) == "at last"
    assert time.monotonic() - start >= least
    finished = await job.refresh()
    assert finished is not None
    assert (finished.attempts_made, finished.attempts_started) == (3, 3)
    assert len(finished.stacktrace) == 2


async def test_stack_trace_limit(bull: Pair) -> None:
    job = await bull.ours.add("fail", {}, attempts=4, stack_trace_limit=2)
    await bull.theirs.work()
    with pytest.raises(JobFailed):
        await job.result(timeout=10)
    finished = await job.refresh()
    assert finished is not None
    assert len(finished.stacktrace) == 2


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (None, 5),
        (Keep.NONE, 0),
        (Keep.ALL, 5),
        (Keep.DEFAULT, 5),
        (Keep(count=2), 2),
        (Keep(age=3600), 5),
        (Keep(count=1, age=timedelta(hours=1)), 1),
    ],
)
@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_node_keeps_what_we_asked_it_to_keep(bull: Pair, keep: Keep | None, left: int, outcome: str) -> None:
    option: dict[str, Any] = {"remove_on_complete" if outcome == "completed" else "remove_on_fail": keep}
    name = "nothing" if outcome == "completed" else "fail"
    await bull.theirs.listen()
    await bull.ours.add_bulk(JobSpec(name, {}, **option) for _ in range(5))
    await bull.theirs.work()
    await bull.node.tells("event", event=outcome, times=5)
    assert await bull.theirs.counts() == ({outcome: left} if left else {})


async def test_result_of_a_job_that_node_removes_as_it_ends(pair: Pair) -> None:
    """The event carries the outcome, so those who wait get it; those who come later learn that it is gone."""
    job = await pair.ours.add("slow", {"seconds": 0.2}, remove_on_complete=Keep.NONE)
    failing = await pair.ours.add("fail", {"reason": "no"}, delay=0.2, remove_on_fail=Keep.NONE)
    results = asyncio.gather(job.result(timeout=10), failing.result(timeout=10), return_exceptions=True)
    await asyncio.sleep(0)
    await pair.theirs.work()
    slept, failed = await results
    assert slept == "slept"
    assert isinstance(failed, JobFailed)
    assert failed.reason == "no"
    for gone in (job, failing):
        with pytest.raises(JobRemoved):
            await gone.result(timeout=5)
        assert await gone.refresh() is None


async def test_result_of_a_job_that_node_removes_while_we_wait(pair: Pair) -> None:
    job = await pair.ours.add("nothing", delay=60)
    with pytest.raises(ResultTimeout):
        await job.result(timeout=0.05)
    waiting = asyncio.create_task(job.result(timeout=10))
    await asyncio.sleep(0)
    await pair.theirs.remove(job.id)
    with pytest.raises(JobRemoved):
        await waiting


async def test_the_same_id_is_one_job_on_both_sides(pair: Pair) -> None:
    first = await pair.ours.add("echo", {"by": "ours"}, job_id="order-1")
    assert await pair.theirs.add("echo", {"by": "node"}, jobId="order-1") == "order-1"
    assert await pair.theirs.add("echo", {"by": "node"}, jobId="order-2") == "order-2"
    second = await pair.ours.add("echo", {"by": "ours"}, job_id="order-2")
    await pair.theirs.work()
    assert await first.result(timeout=10) == {"by": "ours"}
    assert await second.result(timeout=10) == {"by": "node"}
    assert await pair.theirs.counts() == {"completed": 2}


async def test_node_reads_our_options_as_its_own(bull: Pair) -> None:
    job = await bull.ours.add(
        "echo",
        {"a": "é/"},
        attempts=3,
        backoff=Backoff.exponential(1.5, jitter=0.25),
        priority=7,
        remove_on_complete=Keep(count=10, age=timedelta(hours=1)),
        remove_on_fail=Keep.ALL,
        stack_trace_limit=2,
        delay=60,
    )
    seen = await bull.theirs.job(job.id)
    assert seen["opts"] == {
        "attempts": 3,
        "backoff": {"type": "exponential", "delay": 1500, "jitter": 0.25},
        "delay": 60_000,
        "priority": 7,
        "removeOnComplete": {"age": 3600, "count": 10},
        "removeOnFail": False,
        "stackTraceLimit": 2,
    }
    assert (seen["priority"], seen["delay"], seen["state"]) == (7, 60_000, "delayed")
    assert job.timestamp is not None
    assert seen["timestamp"] == round(job.timestamp.timestamp() * 1000)


async def test_a_result_can_be_waited_for_by_many_and_late(pair: Pair) -> None:
    job = await pair.ours.add("slow", {"seconds": 0.2})
    waiting = asyncio.gather(*(job.result(timeout=10) for _ in range(20)))
    await pair.theirs.work()
    assert await waiting == ["slept"] * 20
    assert await job.result(timeout=1) == "slept"
