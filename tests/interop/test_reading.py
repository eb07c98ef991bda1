"""Progress, logs, data, pages, counts and metrics: what one side writes the other reads."""

from __future__ import annotations

from typing import Any

from echomq import JobSpec
from tests.interop.conftest import Pair
from tests.support.wait import wait_until


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
