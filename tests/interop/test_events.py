"""Events between Node and us: each side hears what the other does; results that are too large for the log end no listener."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from echomq import Event, QueueEvents
from echomq.events import Completed, Failed, Progress
from tests.interop.conftest import Pair
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
