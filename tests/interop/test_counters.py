"""The counters of a job mean the same on both sides, run for run: attempts made, attempts started, stalls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import pytest

from echomq import Limiter
from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until

Side: TypeAlias = Literal["ours", "theirs"]
SIDES: list[Side] = ["ours", "theirs"]


@asynccontextmanager
async def working(pair: Pair, side: Side) -> AsyncIterator[None]:
    """A worker of this side."""
    if side == "ours":
        async with pair.worker(limiter=Limiter(max=1000, duration=1)):
            yield
    else:
        handle = await pair.theirs.work(limiter={"max": 1000, "duration": 1000})
        yield
        await pair.theirs.stop(handle)


async def starts(pair: Pair, side: Side, job_id: str) -> list[tuple[int, int]]:
    """(started, made) as the handler saw them in each run."""
    if side == "ours":
        return [(run.started, run.made) for run in pair.runs.of(job_id)]
    job = await pair.theirs.job(job_id)
    told = await pair.node.tells("start", id=job_id, times=job["attemptsStarted"])
    return [(news["started"], news["made"]) for news in told]


async def end(pair: Pair, job_id: str) -> None:
    """Waits until it completed or failed."""
    try:
        await pair.theirs.wait(job_id)
    except NodeError:
        assert await pair.theirs.state(job_id) == "failed"


# name, data, options → what each run saw, and the counters at the end
CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[tuple[int, int]], tuple[int, int, int]]] = [
    ("nothing", {}, {}, [(1, 0)], (1, 1, 0)),
    ("nothing", {}, {"attempts": 5}, [(1, 0)], (1, 1, 0)),
    ("fail", {}, {}, [(1, 0)], (1, 1, 0)),
    ("fail", {"times": 1}, {"attempts": 3}, [(1, 0), (2, 1)], (2, 2, 0)),
    ("fail", {"times": 1}, {"attempts": 3, "backoff": 50}, [(1, 0), (2, 1)], (2, 2, 0)),
    ("fail", {}, {"attempts": 3, "backoff": 20}, [(1, 0), (2, 1), (3, 2)], (3, 3, 0)),
    ("unrecoverable", {"reason": "no"}, {"attempts": 3}, [(1, 0)], (1, 1, 0)),
    ("later", {"seconds": 0.05}, {}, [(1, 0), (2, 0)], (1, 2, 0)),
    ("limited", {"seconds": 0.05}, {}, [(1, 0), (2, 0)], (1, 2, 0)),
    ("limited", {"seconds": 0.05}, {"priority": 3}, [(1, 0), (2, 0)], (1, 2, 0)),
    ("nothing", {}, {"delay": 50}, [(1, 0)], (1, 1, 0)),
]


@pytest.mark.parametrize("side", SIDES)
async def test_counters_at_every_run_and_at_the_end(bull: Pair, side: Side) -> None:
    ids = [await bull.theirs.add(name, data, **opts) for name, data, opts, _, _ in CASES]
    async with working(bull, side):
        for job_id in ids:
            await end(bull, job_id)
    for job_id, (name, data, opts, runs, counters) in zip(ids, CASES, strict=True):
        case = f"{name} {data} {opts} by {side}"
        assert await starts(bull, side, job_id) == runs, case
        job = await bull.theirs.job(job_id)
        assert (job["attemptsMade"], job["attemptsStarted"], job["stalledCounter"]) == counters, case
        ours = await bull.ours.get_job(job_id)
        assert ours is not None
        assert (ours.attempts_made, ours.attempts_started, ours.stalled_count) == counters, case


@pytest.mark.parametrize("side", SIDES)
async def test_counters_between_two_runs(bull: Pair, side: Side) -> None:
    job_id = await bull.theirs.add("fail", {}, attempts=2, backoff=60_000)
    async with working(bull, side):
        await wait_until(lambda: _is(bull, job_id, "delayed"))
        job = await bull.theirs.job(job_id)
        assert (job["attemptsMade"], job["attemptsStarted"], job["stalledCounter"]) == (1, 1, 0)
        assert job["delay"] == 60_000


async def _is(pair: Pair, job_id: str, state: str) -> bool:
    return await pair.theirs.state(job_id) == state


@pytest.mark.parametrize("adder", SIDES)
@pytest.mark.parametrize("side", SIDES)
async def test_number_of_runs_for_a_number_of_attempts(bull: Pair, side: Side, adder: Side) -> None:
    """``attempts`` counts all runs: 0, 1 and nothing mean one."""
    expected: dict[str, int] = {}
    for attempts, runs in ((None, 1), (0, 1), (1, 1), (2, 2), (5, 5)):
        given: dict[str, Any] = {} if attempts is None else {"attempts": attempts}
        if adder == "ours":
            expected[(await bull.ours.add("fail", {}, **given)).id] = runs
        else:
            expected[await bull.theirs.add("fail", {}, **given)] = runs
    async with working(bull, side):
        for job_id in expected:
            await end(bull, job_id)
    for job_id, runs in expected.items():
        assert len(await starts(bull, side, job_id)) == runs
        assert (await bull.theirs.job(job_id))["attemptsMade"] == runs
    assert await bull.theirs.counts() == {"failed": 5}


async def test_a_job_that_our_worker_gave_back_used_no_attempt(bull: Pair) -> None:
    job_id = await bull.theirs.add("hang", {}, attempts=1)
    async with bull.worker(shutdown_timeout=0) as worker:
        await wait_until(lambda: bull.runs.of(job_id))
        await worker.close(force=True)
    job = await bull.theirs.job(job_id)
    assert job["state"] == "waiting"
    assert (job["attemptsMade"], job["attemptsStarted"], job["stalledCounter"]) == (0, 1, 0)
    await bull.theirs.work()
    await bull.node.tells("start", id=job_id)
    await bull.node("release", id=job_id, value="let go")
    assert await bull.theirs.wait(job_id) == "let go"
    job = await bull.theirs.job(job_id)
    assert (job["attemptsMade"], job["attemptsStarted"], job["stalledCounter"]) == (1, 2, 0)


async def test_jobs_given_back_keep_their_order(bull: Pair) -> None:
    plain = [await bull.theirs.add("hang", {}) for _ in range(3)]
    urgent = [await bull.theirs.add("hang", {}, priority=2) for _ in range(3)]
    async with bull.worker(concurrency=6) as worker:
        await wait_until(lambda: len(bull.runs.seen) == 6)
        await worker.close(force=True)
    assert [job["id"] for job in await bull.theirs.jobs("waiting", asc=True)] == plain
    assert [job["id"] for job in await bull.theirs.jobs("prioritized", asc=True)] == urgent
