"""Tasks are jobs like any other: Node calls them by name, and works what they enqueue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from echomq import EchoMQ, Job
from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.wait import wait_until


@dataclass
class Seat:
    course: str
    learner: int
    since: datetime


def school(pair: Pair) -> EchoMQ:
    """An app with its tasks on the pair's queue."""
    app = EchoMQ(pair.connection, prefix=pair.place.prefix)

    @app.task(queue=pair.name, extra="forbid")
    async def enroll(learner: int, course: str = "redis", *, since: datetime | None = None) -> Seat:
        return Seat(course, learner, since or datetime(2026, 1, 1, tzinfo=UTC))

    @app.task(queue=pair.name, name="grüße 😀")
    def greet(name: str) -> str:
        return f"Hello {name}"

    @app.task(queue=pair.name, pass_job=True, timeout=0.2)
    async def stubborn(job: Job[Any]) -> None:
        await pair.runs.do_hang(job)

    return app


async def test_node_calls_tasks_by_name_with_named_arguments(pair: Pair) -> None:
    node = pair.theirs
    async with school(pair) as app, app.worker(pair.name, concurrency=3):
        seat = await node.add("enroll", {"learner": 7, "course": "課程"})
        assert await node.wait(seat) == {"course": "課程", "learner": 7, "since": "2026-01-01T00:00:00Z"}
        assert (await node.wait(await node.add("enroll", {"learner": 8})))["course"] == "redis"
        dated = await node.add("enroll", {"learner": 9, "since": "2026-02-03T04:05:06Z"})
        assert (await node.wait(dated))["since"] == "2026-02-03T04:05:06Z"
        assert await node.wait(await node.add("grüße 😀", {"name": "Ada"})) == "Hello Ada"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "learner"),
        ({"learner": "seven"}, "learner"),
        ({"learner": 7, "room": 1}, "room"),
        ([7], "object of named arguments"),
        (None, "object of named arguments"),
    ],
)
async def test_data_that_does_not_fit_fails_at_once_and_says_why(bull: Pair, data: Any, reason: str) -> None:
    async with school(bull) as app, app.worker(bull.name):
        job_id = await bull.theirs.add("enroll", data, attempts=5)
        with pytest.raises(NodeError, match=reason):
            await bull.theirs.wait(job_id)
    assert (await bull.theirs.job(job_id))["attemptsMade"] == 1


async def test_a_run_that_takes_too_long_fails(bull: Pair) -> None:
    async with school(bull) as app, app.worker(bull.name):
        job_id = await bull.theirs.add("stubborn", {})
        with pytest.raises(NodeError, match=r"timeout of 0\.2 s"):
            await bull.theirs.wait(job_id)


async def test_an_unknown_task_waits_for_a_worker_that_knows_it(bull: Pair) -> None:
    """It uses no attempt; a Node worker that knows it may run it."""
    job_id = await bull.theirs.add("echo", {"n": 1})
    async with school(bull) as app, app.worker(bull.name):
        await wait_until(lambda: _is(bull, job_id, "delayed"))
    job = await bull.theirs.job(job_id)
    assert (job["attemptsMade"], job["attemptsStarted"], job["delay"]) == (0, 1, 30_000)
    await bull.theirs.call("promoteJobs")
    await bull.theirs.work()
    assert await bull.theirs.wait(job_id) == {"n": 1}


async def _is(pair: Pair, job_id: str, state: str) -> bool:
    return await pair.theirs.state(job_id) == state


async def test_node_works_what_a_task_enqueues(pair: Pair) -> None:
    app = EchoMQ(pair.connection, prefix=pair.place.prefix)

    @app.task(queue=pair.name, name="echo", attempts=2)
    async def echo(course: str, since: datetime) -> dict[str, Any]:
        raise NotImplementedError("Node has it")

    moment = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    await pair.theirs.work()
    async with app:
        job = await echo.options(priority=3).enqueue("redis", since=moment)
        assert await job.result(timeout=10) == {"course": "redis", "since": "2026-02-03T04:05:06Z"}
    seen = await pair.theirs.job(job.id)
    assert seen["opts"] == {"attempts": 2, "priority": 3}
