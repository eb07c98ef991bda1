"""Node adds, we work: every kind of job that a Node program can leave in a queue ends as Node expects."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until


async def test_standard_delayed_prioritized_lifo_custom_and_bulk_jobs(pair: Pair) -> None:
    node = pair.theirs
    expected = {
        await node.add("echo", {"kind": "standard"}): "standard",
        await node.add("echo", {"kind": "delayed"}, delay=300): "delayed",
        await node.add("echo", {"kind": "prioritized"}, priority=3): "prioritized",
        await node.add("echo", {"kind": "lifo"}, lifo=True): "lifo",
        await node.add("echo", {"kind": "custom"}, jobId="order-17"): "custom",
        await node.add("echo", {"kind": "delayed, prioritized"}, delay=200, priority=7): "delayed, prioritized",
    }
    bulk = await node.add_bulk([{"name": "echo", "data": {"kind": f"bulk {n}"}} for n in range(20)])
    expected |= {job_id: f"bulk {n}" for n, job_id in enumerate(bulk)}
    added = time.monotonic()
    async with pair.worker(concurrency=5):
        for job_id, kind in expected.items():
            assert await node.wait(job_id) == {"kind": kind}
    assert time.monotonic() - added >= 0.2
    assert "order-17" in expected
    assert await node.counts() == {"completed": len(expected)}
    completed = await node.completed()
    assert {job["id"] for job in completed} == set(expected)
    for job in completed:
        assert job["attemptsMade"] == job["attemptsStarted"] == 1
        assert job["stalledCounter"] == 0
        assert job["delay"] == 0
        assert job["timestamp"] <= job["processedOn"] <= job["finishedOn"]
        assert await node.state(job["id"]) == "completed"


async def test_jobs_run_in_nodes_order(pair: Pair) -> None:
    node = pair.theirs
    await node.pause()
    third = await node.add("nothing")
    fourth = await node.add("nothing")
    seventh = await node.add("nothing", priority=9)
    fifth = await node.add("nothing", priority=2)
    sixth = await node.add("nothing", priority=2)
    second = await node.add("nothing", lifo=True)
    first = await node.add("nothing", lifo=True)
    async with pair.worker(concurrency=1):
        await node.resume()
        for job_id in (first, second, third, fourth, fifth, sixth, seventh):
            await node.wait(job_id)
    assert [run.id for run in pair.runs.seen] == [first, second, third, fourth, fifth, sixth, seventh]


VALUES: list[Any] = [
    None, 0, -1.5, True, "", "text", "ünïcödé 😀 课程", "a\ud800b", "\x00", [], {}, [1, [2, {"a": None}]],
    {"": "", "😀": "\udfff"}, 9007199254740991, -9007199254740991, 1e300, "x" * 200_000,
]  # fmt: skip


async def test_data_and_results_of_every_shape(pair: Pair) -> None:
    node = pair.theirs
    ids = await node.add_bulk([{"name": "value", "data": {"value": value}} for value in VALUES])
    async with pair.worker(concurrency=10):
        for job_id, value in zip(ids, VALUES, strict=True):
            assert await node.wait(job_id) == value
            job = await node.job(job_id)
            assert job["data"] == {"value": value}
            assert job["returnvalue"] == value
    assert {run.id: run.data["value"] for run in pair.runs.seen} == dict(zip(ids, VALUES, strict=True))


async def test_jobs_without_data_and_results_without_value(pair: Pair) -> None:
    node = pair.theirs
    nothing = await node.add("nothing")
    null = await node.add("echo", None)
    async with pair.worker():
        assert await node.wait(nothing) is None
        assert await node.wait(null) is None
    assert [run.data for run in pair.runs.seen] == [{}, None]


async def test_failures_reach_node_with_reason_and_stack(pair: Pair) -> None:
    node = pair.theirs
    failing = await node.add("fail", {"reason": "no seat: ünïcödé 😀"})
    final = await node.add("unrecoverable", {"reason": "course gone"}, attempts=5)
    async with pair.worker():
        with pytest.raises(NodeError, match="no seat: ünïcödé 😀"):
            await node.wait(failing)
        with pytest.raises(NodeError, match=r"^course gone$"):
            await node.wait(final)
    assert await node.counts() == {"failed": 2}
    failed = {job["id"]: job for job in await node.failed()}
    assert "no seat" in failed[failing]["failedReason"]
    assert len(failed[failing]["stacktrace"]) == 1
    assert "do_fail" in failed[failing]["stacktrace"][0]
    assert failed[final]["attemptsMade"] == 1
    assert failed[failing].get("returnvalue") is None


@pytest.mark.parametrize(
    ("backoff", "least"),
    [
        (None, 0.0),
        (100, 0.2),
        ({"type": "fixed", "delay": 100}, 0.2),
        ({"type": "exponential", "delay": 100}, 0.3),
        ({"type": "exponential", "delay": 100, "jitter": 0.5}, 0.15),
    ],
)
async def test_retries_wait_as_their_backoff_says(bull: Pair, backoff: Any, least: float) -> None:
    node = bull.theirs
    opts = {} if backoff is None else {"backoff": backoff}
    job_id = await node.add("fail", {"times": 2}, attempts=3, **opts)
    start = time.monotonic()
    async with bull.worker():
        assert await node.wait(job_id) == "at last"
    assert time.monotonic() - start >= least
    job = await node.job(job_id)
    assert (job["attemptsMade"], job["attemptsStarted"]) == (3, 3)
    assert len(job["stacktrace"]) == 2


async def test_failed_jobs_can_be_retried_by_node(pair: Pair) -> None:
    node = pair.theirs
    job_id = await node.add("fail", {"times": 1})
    async with pair.worker():
        with pytest.raises(NodeError):
            await node.wait(job_id)
        await node.retry(job_id)
        assert await node.wait(job_id) == "at last"
    assert await node.counts() == {"completed": 1}


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (True, 0),
        (False, 5),
        (0, 0),
        (2, 2),
        ({"count": 3}, 3),
        ({"count": 0}, 0),
        ({"age": 3600}, 5),
        ({"age": 3600, "count": 1}, 1),
        ({"age": 3600, "limit": 10}, 5),
    ],
)
@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_retention_of_each_form(bull: Pair, keep: Any, left: int, outcome: str) -> None:
    node = bull.theirs
    option = "removeOnComplete" if outcome == "completed" else "removeOnFail"
    await node.listen()
    name = "nothing" if outcome == "completed" else "fail"
    ids = await node.add_bulk([{"name": name, "data": {"n": n}, "opts": {option: keep}} for n in range(5)])
    async with bull.worker(concurrency=1):
        await bull.node.tells("event", event=outcome, times=5)
    assert await node.counts() == ({outcome: left} if left else {})
    assert [job["id"] for job in await node.jobs(outcome)] == ids[::-1][:left]
    for job_id in ids[: 5 - left]:
        assert not await node.has(job_id)


async def test_simple_deduplication_ends_with_the_job(pair: Pair) -> None:
    node = pair.theirs
    first = await node.add("echo", {"n": 1}, deduplication={"id": "once"})
    assert await node.add("echo", {"n": 2}, deduplication={"id": "once"}) == first
    async with pair.worker():
        assert await node.wait(first) == {"n": 1}
        again = await node.add("echo", {"n": 3}, deduplication={"id": "once"})
        assert again != first
        assert await node.wait(again) == {"n": 3}
    assert [run.data["n"] for run in pair.runs.seen] == [1, 3]


async def test_deduplication_with_ttl_outlives_the_job(pair: Pair) -> None:
    node = pair.theirs
    deduplication = {"id": "slowly", "ttl": 60_000}
    async with pair.worker():
        first = await node.add("nothing", deduplication=deduplication)
        await node.wait(first)
        assert await node.add("nothing", deduplication=deduplication) == first
    assert len(pair.runs.seen) == 1


async def test_deduplication_that_keeps_the_last_while_active(pair: Pair) -> None:
    node = pair.theirs
    deduplication = {"id": "latest", "keepLastIfActive": True}
    await node.listen()
    async with pair.worker():
        first = await node.add("hang", {"n": 1}, deduplication=deduplication)
        await wait_until(lambda: pair.runs.seen)
        for n in (2, 3):
            assert await node.add("echo", {"n": n}, deduplication=deduplication) == first
        pair.runs.gates[first].set()
        await wait_until(lambda: len(pair.runs.seen) == 2)
        later = pair.runs.seen[1].id
        assert await node.wait(later) == {"n": 3}
    assert await node.counts() == {"completed": 2}
    events = [(told["event"], told["args"].get("jobId")) for told in pair.node.told("event")]
    assert events.index(("added", later)) < events.index(("completed", first))


async def test_scheduler_with_interval_makes_its_next_iterations(pair: Pair) -> None:
    node = pair.theirs
    await node.schedule(
        "tick", {"every": 200, "limit": 4}, {"name": "echo", "data": {"tick": 1}, "opts": {"attempts": 2}}
    )
    async with pair.worker():
        await wait_until(lambda: len(pair.runs.seen) >= 4)
        await wait_until(lambda: _counted(pair, {"completed": 4}))
    assert [run.data for run in pair.runs.seen] == [{"tick": 1}] * 4
    moments = [int(run.id.rsplit(":", 1)[1]) for run in pair.runs.seen]
    assert [later - sooner for sooner, later in itertools.pairwise(moments)] == [200] * 3
    [scheduler] = await node.schedulers()
    assert scheduler["iterationCount"] == 4


async def test_scheduler_goes_on_when_its_job_fails(pair: Pair) -> None:
    node = pair.theirs
    await node.schedule("tick", {"every": 100}, {"name": "fail", "data": {}})
    async with pair.worker():
        await wait_until(lambda: len(pair.runs.seen) >= 3)
    assert await node.unschedule("tick")


async def test_scheduler_with_cron_pattern_makes_its_next_iterations(pair: Pair) -> None:
    node = pair.theirs
    await node.schedule("each second", {"pattern": "* * * * * *", "tz": "Europe/Vienna"}, {"name": "nothing"})
    async with pair.worker():
        await wait_until(lambda: len(pair.runs.seen) >= 2)
        await wait_until(lambda: _counted(pair, {"completed": 2, "delayed": 1}))
    moments = [int(run.id.rsplit(":", 1)[1]) for run in pair.runs.seen]
    assert all(moment % 1000 == 0 for moment in moments)
    assert moments[1] - moments[0] == 1000
    # Node would make the same next one: nothing changes when it looks
    [scheduler] = await node.schedulers()
    assert scheduler["next"] == moments[-1] + 1000
    assert await node.unschedule("each second")


async def _counted(pair: Pair, expected: dict[str, int]) -> bool:
    return await pair.theirs.counts() == expected


async def test_what_node_stored_stays_as_node_stored_it(bull: Pair) -> None:
    """Finishing a job changes only the fields that the protocol says."""
    node = bull.theirs
    opts = {"attempts": 3, "backoff": {"type": "fixed", "delay": 5}, "keepLogs": 7, "priority": 4, "sizeLimit": 1000}
    job_id = await node.add("echo", {"a": "é/", "n": None, "list": []}, **opts)
    before = await node.job(job_id)
    async with bull.worker(name="tester"):
        await node.wait(job_id)
    after = await node.job(job_id)
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed == {
        "attemptsMade", "attemptsStarted", "finishedOn", "processedBy", "processedOn", "returnvalue", "state"
    }  # fmt: skip
    assert after["processedBy"] == "tester"
    assert json.dumps(after["data"]) == json.dumps(before["data"])
