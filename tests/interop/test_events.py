"""Events between Node and us: each side hears what the other does; results that are too large for the log end no listener."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from echomq import Event, JobFailed, QueueEvents
from echomq.event_types import KINDS
from echomq.events import Completed, Custom, Deduplicated, Failed, Progress, Removed, Waiting, WaitingChildren
from tests.interop.conftest import Pair
from tests.interop.test_flows import child, parent
from tests.support.server import Server
from tests.support.wait import wait_until

LARGE = "x" * 100_000


async def until(events: QueueEvents, kind: str, number: int = 1) -> list[Event]:
    """All events up to the so many-th of a kind."""
    found: list[Event] = []
    async with asyncio.timeout(20):
        while sum(event.kind == kind for event in found) < number:
            found.append(await anext(events))
    return found


def scripts_run(server: Server) -> int:
    """How many scripts the server has run."""
    lines = server.cli("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_eval"))


async def test_we_hear_what_node_does(pair: Pair) -> None:
    async with QueueEvents(pair.ours) as events:
        done = await pair.theirs.add("value", {"value": {"seat": 17}})
        bad = await pair.theirs.add("fail", {"reason": "no seat"}, attempts=2)
        late = await pair.theirs.add("echo", {}, delay=100_000)
        await pair.theirs.call_job(late, "updateProgress", {"done": 1})
        await pair.theirs.pause()
        await pair.theirs.resume()
        await pair.theirs.remove(late)
        await pair.theirs.work()
        found = await until(events, "retries-exhausted")
        while not any(isinstance(event, Completed) for event in found):
            found += await until(events, "completed")
    kinds = Counter(event.kind for event in found)
    assert kinds["added"] == 3
    assert kinds["active"] == 3
    assert {"delayed", "paused", "resumed", "removed", "waiting", "progress"} <= set(kinds)
    assert "unreadable" not in kinds
    assert "custom" not in kinds
    [completed] = [event for event in found if isinstance(event, Completed)]
    assert (completed.job_id, completed.return_value, completed.previous) == (done, {"seat": 17}, "active")
    [failed] = [event for event in found if isinstance(event, Failed)]
    assert (failed.job_id, failed.reason) == (bad, "no seat")
    [progress] = [event for event in found if isinstance(event, Progress)]
    assert (progress.job_id, progress.progress) == (late, {"done": 1})


async def test_node_hears_what_we_do(pair: Pair) -> None:
    await pair.theirs.listen()
    job = await pair.ours.add("echo", {"seat": 17})
    await pair.ours.publish("course-closed", course="redis")
    waiting = asyncio.create_task(pair.theirs.wait(job.id))
    async with pair.worker():
        assert await waiting == {"seat": 17}
        [told] = await pair.node.tells("event", queue=pair.theirs.name, event="completed")
        assert told["args"]["returnvalue"] == {"seat": 17}


def abandon(pair: Pair, server: Server, job_id: str) -> None:
    """Leaves a waiting job as a worker that has died leaves it."""
    assert server.cli("LREM", pair.key("wait"), "1", job_id) == 1
    server.cli("LPUSH", pair.key("active"), job_id)


async def test_node_hears_every_kind_that_we_write(pair: Pair, server: Server) -> None:
    ours, node = pair.ours, pair.node
    await pair.theirs.listen("course-closed")
    await ours.pause()
    await ours.add("echo", {"n": 1}, job_id="own")
    await ours.add("echo", {"n": 2}, job_id="own")
    unique = await ours.add("echo", {"n": 3}, deduplication="D")
    await ours.add("echo", {"n": 4}, deduplication="D")
    late = await ours.add("echo", {"n": 5}, delay=60)
    sooner = await ours.add("echo", {"n": 6}, delay=60)
    lost = await ours.add("echo", {"n": 7})
    bad = await ours.add("fail", {"reason": "no seat"}, attempts=2)
    await unique.update_progress({"done": 3})
    await late.remove()
    await sooner.promote()
    await ours.publish("course-closed", course="redis")
    await ours.resume()
    abandon(pair, server, lost.id)
    async with pair.worker(stalled_interval=0.2):
        for job in (unique, sooner, lost):
            assert await job.result(timeout=10) == job.data
        with pytest.raises(JobFailed):
            await bad.result(timeout=10)
        await bad.retry()
        await node.tells("event", event="failed", times=2)
    assert len(await ours.admin.clean("completed", 0)) == 4
    await node.tells("event", event="cleaned")

    told: dict[str, list[Any]] = {}
    for news in node.told("event", queue=pair.theirs.name):
        told.setdefault(news["event"], []).append(news["args"])
    # All that Node knows, but for those that only it writes.
    assert set(told) == {
        "added", "waiting", "active", "completed", "failed", "delayed", "progress", "stalled", "removed", "drained", "paused",
        "resumed", "duplicated", "deduplicated", "retries-exhausted", "cleaned", "course-closed",
    }  # fmt: skip
    assert told["added"][0] == {"jobId": "own", "name": "echo"}
    assert told["duplicated"] == [{"jobId": "own"}]
    [deduplicated] = told["deduplicated"]
    assert (deduplicated["jobId"], deduplicated["deduplicationId"]) == (unique.id, "D")
    assert told["progress"] == [{"jobId": unique.id, "data": {"done": 3}}]
    assert told["removed"] == [{"jobId": late.id, "prev": "delayed"}]
    assert {(args["jobId"], args.get("prev")) for args in told["waiting"]} >= {
        (unique.id, None), (sooner.id, "delayed"), (lost.id, "active"), (bad.id, "active"), (bad.id, "failed"),
    }  # fmt: skip
    assert all(isinstance(args["delay"], int) for args in told["delayed"])
    assert {"jobId": bad.id, "prev": "waiting"} in told["active"]
    assert told["stalled"] == [{"jobId": lost.id}]
    assert {"jobId": unique.id, "returnvalue": {"n": 3}, "prev": "active"} in told["completed"]
    assert told["failed"][0] == {"jobId": bad.id, "failedReason": "RuntimeError: no seat", "prev": "active"}
    assert told["retries-exhausted"][0] == {"jobId": bad.id, "attemptsMade": "2"}
    assert sum(int(args["count"]) for args in told["cleaned"]) == 4
    assert told["course-closed"] == [{"course": "redis"}]
    assert not node.told("error")


async def test_we_hear_every_kind_that_node_writes(pair: Pair, server: Server) -> None:
    theirs = pair.theirs
    async with QueueEvents(pair.ours) as events:
        await theirs.pause()
        await theirs.resume()
        await theirs.add("echo", {"n": 1}, jobId="own")
        await theirs.add("echo", {"n": 2}, jobId="own")
        unique = await theirs.add("echo", {"n": 3}, deduplication={"id": "D"})
        await theirs.add("echo", {"n": 4}, deduplication={"id": "D"})
        late = await theirs.add("echo", {"n": 5}, delay=60_000)
        await theirs.call_job(unique, "updateProgress", 0.5)
        await theirs.remove(late)
        await theirs.publish("course-closed", course="redis")
        lost = await theirs.add("echo", {"n": 6})
        abandon(pair, server, lost)
        ids = await theirs.flow(parent(pair, child(pair, "echo", {"n": 7})))
        bad = await theirs.add("fail", {"reason": "no seat"}, attempts=2)
        await theirs.work(stalledInterval=100)
        found = await until(events, "completed", 5)
        if not any(isinstance(event, Failed) for event in found):
            found += await until(events, "failed")
        if not any(event.kind == "drained" for event in found):
            found += await until(events, "drained")
        await theirs.call("clean", 0, 0, "completed")
        found += await until(events, "cleaned")
    kinds = {event.kind for event in found}
    # Ours alone are skipped, expired and cancelled; version 6 has no debounced any more.
    others = {"skipped", "expired", "cancelled", *([] if pair.node.version == "bullmq5" else ["debounced"])}
    assert kinds == (set(KINDS) | {"custom"}) - others
    [deduplicated] = [event for event in found if isinstance(event, Deduplicated)]
    assert (deduplicated.job_id, deduplicated.deduplication_id) == (unique, "D")
    assert [event.previous for event in found if isinstance(event, Removed)] == ["delayed"]
    [custom] = [event for event in found if isinstance(event, Custom)]
    assert (custom.name, custom.fields) == ("course-closed", {"course": "redis"})
    assert [event.job_id for event in found if isinstance(event, WaitingChildren)] == [ids["id"]]
    assert {(event.job_id, event.previous) for event in found if isinstance(event, Waiting)} >= {
        (unique, None), (lost, "active"), (bad, "active"), (ids["id"], "waiting_children"),
    }  # fmt: skip


async def test_a_result_that_is_too_large_for_the_log(pair: Pair, server: Server) -> None:
    """A Node listener goes on; who waits there gets null, and finds the result in the job."""
    await pair.theirs.listen()
    large = await pair.ours.add("echo", LARGE)
    before = scripts_run(server)
    theirs = asyncio.create_task(pair.theirs.wait(large.id))
    await wait_until(lambda: scripts_run(server) > before)  # it has asked whether the job has ended, and listens
    ours = asyncio.create_task(large.result(timeout=20))
    async with QueueEvents(pair.ours) as events, pair.worker():
        assert await ours == LARGE
        assert await theirs is None
        assert (await pair.theirs.job(large.id))["returnvalue"] == LARGE
        assert await pair.theirs.wait(large.id) == LARGE  # it asks the job first
        [told] = await pair.node.tells("event", queue=pair.theirs.name, event="completed", times=1)
        assert told["args"]["returnvalue"] is None
        assert told["args"]["resultBytes"] == str(len(LARGE) + 2)
        *_, completed = await until(events, "completed")
        assert isinstance(completed, Completed)
        assert (completed.return_value, completed.left_out) == (None, len(LARGE) + 2)
        small = await pair.ours.add("echo", 5)
        assert await pair.theirs.wait(small.id) == 5
        await wait_until(lambda: len(pair.node.told("event", queue=pair.theirs.name, event="completed")) == 2)


@pytest.mark.parametrize("value", [{"done": 3}, LARGE])
async def test_node_hears_of_progress(pair: Pair, value: Any) -> None:
    await pair.theirs.listen()
    job = await pair.ours.add("echo", 1)
    await job.update_progress(value)
    [told] = await pair.node.tells("event", queue=pair.theirs.name, event="progress")
    assert told["args"]["data"] == (None if value is LARGE else value)
    await job.update_progress(7)  # its loop goes on
    told = (await pair.node.tells("event", queue=pair.theirs.name, event="progress", times=2))[1]
    assert told["args"]["data"] == 7
