"""Progress, logs, data, pages, counts and metrics: what one side writes the other reads."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import JobSpec, JobState, QueueEvents
from echomq.events import Progress
from tests.interop.conftest import Pair
from tests.interop.test_flows import child, parent
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until

STATES: dict[JobState, str] = {
    "waiting": "waiting", "prioritized": "prioritized", "delayed": "delayed", "active": "active",
    "waiting_children": "waiting-children", "completed": "completed", "failed": "failed",
}  # fmt: skip
"""What we call the states, and what Node calls them."""


async def test_node_reads_what_we_tell_of_a_job(pair: Pair) -> None:
    await pair.theirs.listen()
    job = await pair.ours.add("echo", {"n": 1}, keep_logs=2)
    for line in ("first", "zweite: ü", "third"):
        await job.log(line)
    await job.update_progress({"done": 3, "of": 8})
    await job.update_data({"n": 2})
    assert await pair.theirs.call("getJobLogs", job.id) == {"logs": ["zweite: ü", "third"], "count": 2}
    assert await pair.theirs.call("getJobLogs", job.id, 0, 0, False) == {"logs": ["third"], "count": 2}
    seen = await pair.theirs.job(job.id)
    assert (seen["progress"], seen["data"]) == ({"done": 3, "of": 8}, {"n": 2})
    [told] = await pair.node.tells("event", event="progress")
    assert told["args"] == {"jobId": job.id, "data": {"done": 3, "of": 8}}
    await pair.theirs.call_job(job.id, "log", "theirs")
    assert await pair.theirs.call("getJobLogs", job.id) == {"logs": ["third", "theirs"], "count": 2}, "by our option"
    await job.clear_logs()
    assert await pair.theirs.call("getJobLogs", job.id) == {"logs": [], "count": 0}


async def test_our_worker_and_listeners_heed_what_node_tells_of_our_job(pair: Pair) -> None:
    job = await pair.ours.add("echo", {"n": 1})
    async with QueueEvents(pair.ours) as events:
        await pair.theirs.call_job(job.id, "updateData", {"n": 2})
        await pair.theirs.call_job(job.id, "updateProgress", {"done": 0.5})
        await pair.theirs.call("addJobLog", job.id, "from afar")
        async with asyncio.timeout(10):
            progress = await anext(events)
        assert isinstance(progress, Progress)
        assert (progress.job_id, progress.progress) == (job.id, {"done": 0.5})
        async with pair.worker():
            assert await job.result(timeout=10) == {"n": 2}
    assert (await job.logs()).lines == ["from afar"]
    ended = await job.refresh()
    assert ended is not None
    assert (ended.data, ended.progress) == ({"n": 2}, {"done": 0.5})


async def test_we_read_what_node_tells_of_a_job(pair: Pair) -> None:
    job_id = await pair.theirs.add("echo", {"n": 1}, keepLogs=3)
    for number in range(5):
        await pair.theirs.call_job(job_id, "log", f"line {number}")
    await pair.theirs.call_job(job_id, "updateProgress", 42)
    await pair.theirs.call_job(job_id, "updateData", {"n": "ü"})
    job = await pair.ours.get_job(job_id)
    assert job is not None
    assert (job.progress, job.data, job.opts.keep_logs) == (42, {"n": "ü"}, 3)
    assert (await job.logs()).lines == ["line 2", "line 3", "line 4"]
    assert await job.log("ours") == 3, "as its own option says"
    await pair.theirs.call_job(job_id, "clearLogs", 1)
    assert (await job.logs()).lines == ["ours"]


async def test_node_finds_our_jobs_in_each_state_with_its_getters(pair: Pair) -> None:
    """Counts, pages in both orders and from the middle, the state of one, the getters that are named after states."""
    ours, node = pair.ours, pair.theirs
    ended = [await ours.add(name, {"value": n}) for n in range(3) for name in ("value", "fail")]
    async with pair.worker():
        await asyncio.gather(*(job.result(timeout=10) for job in ended), return_exceptions=True)
    held = [await ours.add("hang") for _ in range(3)]
    async with pair.worker(concurrency=3):
        await wait_until(lambda: len(pair.runs.seen) == len(ended) + len(held))  # from here on no slot is free
        await ours.add_bulk([JobSpec("echo", priority=n % 3, delay=60 * (n // 6)) for n in range(9)])
        for n in range(3):
            await node.flow(parent(pair, child(pair, "echo", {"n": n}, delay=100_000 + n)))
        counts = dict(zip(STATES.values(), (2, 4, 6, 3, 3, 3, 3), strict=True))
        assert await node.counts() == counts == {
            STATES[state]: count for state, count in (await ours.counts()).items()
        }  # fmt: skip
        for state, name in STATES.items():
            oldest = [job.id for job in (await ours.page(state)).jobs]
            newest = [job.id for job in (await ours.page(state, newest_first=True)).jobs]
            assert newest == oldest[::-1]
            assert len(oldest) == counts[name]
            for ids, asc in ((oldest, True), (newest, False)):
                assert [job["id"] for job in await node.jobs(name, asc=asc)] == ids, name
                some = await node.call("getJobs", [name], 1, 2, asc)
                assert [job["id"] for job in some] == ids[1:3], name
            getter = "get" + "".join(part.capitalize() for part in name.split("-"))
            in_its_order = newest if state in ("completed", "failed") else oldest
            assert [job["id"] for job in await node.call(getter)] == in_its_order
            assert await node.call(f"{getter}Count") == counts[name]
            for job_id in oldest:
                assert await node.call("getJobState", job_id) == name
        assert await node.call("count") == await ours.count() == 15
        assert await node.call("getCountsPerPriority", [0, 1, 2]) == {"0": 2, "1": 2, "2": 2}
        assert await node.call("getWorkersCount") == 1
        for gate in pair.runs.gates.values():
            gate.set()


async def test_we_say_why_a_job_of_nodes_is_where_it_is(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs

    async def why(job_id: str) -> tuple[str | None, dict[str, str]]:
        explained = await ours.explain(job_id)
        assert abs(explained.at - datetime.now(UTC)) < timedelta(minutes=1)
        return explained.state, {reason.kind: reason.text for reason in explained.reasons}

    bad, held = await node.add("fail", {"reason": "no seat"}), await node.add("hang")
    state, reasons = await why(bad)
    assert (state, set(reasons)) == ("waiting", {"no_worker", "next"})
    await node.work(name="nodes", concurrency=2)
    with pytest.raises(NodeError):
        await node.wait(bad)
    await pair.node.tells("start", id=held)
    state, reasons = await why(held)
    assert state == "active"
    assert reasons["running"].startswith("worker 'nodes' has been running it for ")
    state, reasons = await why(bad)
    assert state == "failed"
    assert "no seat" in str(reasons)
    await node.call("setGlobalConcurrency", 1)
    waits = await node.add("echo", {"n": 1})
    assert "concurrency" in (await why(waits))[1]
    await node.call("setGlobalRateLimit", 100, 60_000)
    await node.call("rateLimit", 60_000)
    assert "rate_limited" in (await why(waits))[1]
    await node.pause()
    assert "paused" in (await why(waits))[1]
    urgent = await node.add("echo", {"n": 2}, priority=3)
    state, reasons = await why(urgent)
    assert (state, reasons["behind"]) == ("prioritized", "1 job is before it in the line")
    ids = await node.flow(parent(pair, child(pair, "echo", {}, delay=60_000)))
    state, reasons = await why(ids["id"])
    assert (state, list(reasons)) == ("waiting_children", ["children"])
    assert reasons["children"].startswith("it waits for 1 child (")
    state, reasons = await why(ids["children"][0]["id"])
    assert state == "delayed"
    assert reasons["delayed"].startswith("it waits for its time, ")
    await pair.node("release", id=held, value=1)


async def test_both_read_the_same_of_a_queue(pair: Pair) -> None:
    ours, theirs = pair.ours, pair.theirs
    await ours.add_bulk([JobSpec("value", {"value": number}) for number in range(4)])
    await theirs.add_bulk([{"name": "fail", "data": {}} for _ in range(3)])
    async with pair.worker(metrics_points=10):

        async def all_have_ended() -> bool:
            return sum((await ours.counts("completed", "failed")).values()) == 7

        await wait_until(all_have_ended)
    await ours.add_bulk([JobSpec("echo", priority=number) for number in (0, 0, 5, 5, 7)])
    await theirs.add("echo", {}, priority=5)
    await theirs.add("echo", {}, delay=60_000)
    for state, name, newest in (
        ("completed", "completed", True), ("failed", "failed", True), ("delayed", "delayed", False),
        ("waiting", "waiting", False), ("waiting", "waiting", True), ("prioritized", "prioritized", False),
        ("completed", "completed", False),
    ):  # fmt: skip
        page = await ours.page(state, newest_first=newest)  # type: ignore[arg-type]
        assert [job.id for job in page.jobs] == [job["id"] for job in await theirs.jobs(name, asc=not newest)], state
    counts = await ours.counts_per_priority(0, 5, 6, 7)
    assert counts == {0: 2, 5: 3, 6: 0, 7: 1}
    assert {int(key): n for key, n in (await theirs.call("getCountsPerPriority", [0, 5, 6, 7])).items()} == counts
    assert await theirs.call("count") == await ours.count() == 7
    for state in ("completed", "failed"):
        series = await ours.metrics(state)  # type: ignore[arg-type]
        told: dict[str, Any] = await theirs.call("getMetrics", state)
        assert told["meta"]["count"] == series.count == (4 if state == "completed" else 3)
        assert told["data"] == [point.count for point in series.points]
        assert series.latest is not None
        assert told["meta"]["prevTS"] // 60_000 == series.latest.at.timestamp() // 60


async def test_metrics_that_node_counted(pair: Pair) -> None:
    await pair.theirs.add_bulk([{"name": "nothing", "data": {}} for _ in range(3)])
    worker = await pair.theirs.work(metrics={"maxDataPoints": 60})
    await wait_until(lambda: len(pair.node.told("return", worker=worker)) == 3)
    await pair.theirs.stop(worker)
    series = await pair.ours.metrics("completed")
    assert series.count == 3
    assert (await pair.theirs.call("getMetrics", "completed"))["data"] == [point.count for point in series.points]
