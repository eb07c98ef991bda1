"""Retries beside Node: its back-offs run here as there, what is ours is invisible to it, and no option of anybody's stops us."""

from __future__ import annotations

import json
from typing import Any

import pytest

from echomq import Backoff, RetryPolicy
from tests.interop.conftest import Pair
from tests.support.node_peer import NodeError
from tests.support.server import Server
from tests.support.wait import wait_until


async def fails(pair: Pair, job_id: str) -> dict[str, Any]:
    with pytest.raises(NodeError):
        await pair.theirs.wait(job_id)
    return await pair.theirs.job(job_id)


async def delays(pair: Pair, job_id: str, since: int = 0) -> list[int]:
    """The waits that the event log tells of: from each end of a run to the time that was set."""
    events = await pair.ours._home.line.ask("XRANGE", pair.key("events"), "-", "+")
    found = []
    for entry_id, flat in events:  # type: ignore[union-attr, misc]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))  # type: ignore[index]
        if fields[b"event"] == b"delayed" and fields[b"jobId"] == job_id.encode():
            found.append(int(fields[b"delay"]) - int(entry_id.split(b"-")[0]))  # type: ignore[union-attr]
    return found


BACKOFFS: list[tuple[Any, Backoff | int, list[tuple[int, int]]]] = [
    (30, Backoff.fixed(0.03), [(30, 30)] * 3),
    ({"type": "fixed", "delay": 30}, Backoff.fixed(0.03), [(30, 30)] * 3),
    ({"type": "exponential", "delay": 20}, Backoff.exponential(0.02), [(20, 20), (40, 40), (80, 80)]),
    ({"type": "fixed", "delay": 40, "jitter": 0.5}, Backoff.fixed(0.04, jitter=0.5), [(20, 40)] * 3),
    (
        {"type": "exponential", "delay": 20, "jitter": 1},
        Backoff.exponential(0.02, jitter=1),
        [(0, 20), (0, 40), (0, 80)],
    ),
]
CLOCKS = 15
"""Milliseconds between a script's time and that of its stream entry, or between the times of two machines' programs."""


@pytest.mark.parametrize(
    ("theirs", "ours", "waits"), BACKOFFS, ids=lambda value: str(value) if isinstance(value, (dict, int)) else ""
)
@pytest.mark.parametrize("way", ["node adds", "we add"])
async def test_back_offs_mean_the_same_on_both_sides(
    bull: Pair, way: str, theirs: Any, ours: Backoff, waits: list[tuple[int, int]]
) -> None:
    if way == "node adds":
        job_id = await bull.theirs.add("fail", {}, attempts=4, backoff=theirs)
        async with bull.worker():
            job = await fails(bull, job_id)
    else:
        job_id = (await bull.ours.add("fail", {}, attempts=4, backoff=ours)).id
        handle = await bull.theirs.work()
        job = await fails(bull, job_id)
        await bull.theirs.stop(handle)
    assert (job["attemptsMade"], job["attemptsStarted"], len(job["stacktrace"])) == (4, 4, 4)
    found = await delays(bull, job_id)
    # A wait that comes to nothing is a retry at once, and says nothing of a delay.
    assert len(found) == 3 or (waits[0][0] == 0 and len(found) < 3)
    if len(found) == 3:
        for wait, (least, most) in zip(found, waits, strict=True):
            assert least - CLOCKS <= wait <= most + CLOCKS


async def test_linear_runs_here_and_is_kept_by_node(bull: Pair) -> None:
    job = await bull.ours.add("fail", {}, attempts=3, backoff=Backoff.linear(0.03))
    assert (await bull.theirs.job(job.id))["opts"]["backoff"] == {"type": "linear", "delay": 30}
    async with bull.worker():
        await fails(bull, job.id)
    first, second = await delays(bull, job.id)
    assert 30 <= first + CLOCKS
    assert 60 <= second + CLOCKS


async def test_the_kind_of_a_failure_is_invisible_to_node(pair: Pair) -> None:
    job = await pair.ours.add("fail", {"reason": "no"}, attempts=2, backoff=60)
    async with pair.worker():

        async def is_delayed() -> bool:
            return await pair.theirs.state(job.id) == "delayed"

        await wait_until(is_delayed)
    ours = await pair.ours.get_job(job.id)
    assert ours is not None
    assert ours.failure_kind == "unknown"
    seen = await pair.theirs.job(job.id)
    assert "unknown" not in json.dumps({key: value for key, value in seen.items() if key != "stacktrace"})
    assert (seen["failedReason"], seen["attemptsMade"]) == ("RuntimeError: no", 1)


async def test_node_ends_what_we_retried_and_we_what_node_retried(bull: Pair) -> None:
    mine = await bull.ours.add("fail", {}, attempts=2, backoff=60)
    async with bull.worker():
        await wait_until(lambda: len(bull.runs.seen) == 1)
    await mine.promote()
    handle = await bull.theirs.work()
    job = await fails(bull, mine.id)
    assert (job["attemptsMade"], job["attemptsStarted"]) == (2, 2)
    assert [trace.split("\n")[0].split(":")[0] for trace in job["stacktrace"]] == [
        "Traceback (most recent call last)",
        "Error",
    ]
    theirs = await bull.theirs.add("fail", {}, attempts=2, backoff=60_000)

    async def is_delayed() -> bool:
        return await bull.theirs.state(theirs) == "delayed"

    await wait_until(is_delayed)
    await bull.theirs.stop(handle)
    found = await bull.ours.get_job(theirs)
    assert found is not None
    await found.promote()
    async with bull.worker(retry_policy=RetryPolicy.ALWAYS):
        job = await fails(bull, theirs)
    assert (job["attemptsMade"], job["attemptsStarted"], len(job["stacktrace"])) == (2, 2, 2)


async def test_dead_letters_as_node_and_its_dashboard_see_them(pair: Pair) -> None:
    job_id = await pair.theirs.add("fail", {"reason": "no seat", "n": 1}, attempts=2, priority=3)
    async with pair.worker(dead_letter=True):
        await fails(pair, job_id)
    [letter] = [job async for job in pair.ours.dead_letter.jobs("waiting")]
    dead = pair.node.queue(f"{pair.theirs.name}-dead", prefix=pair.place.prefix)
    [seen] = await dead.jobs("waiting")
    assert (seen["id"], seen["name"], seen["data"]) == (letter.id, "fail", {"reason": "no seat", "n": 1})
    assert (seen["failedReason"], len(seen["stacktrace"]), seen["state"]) == ("RuntimeError: no seat", 2, "waiting")
    assert seen["opts"]["deadLetter"]["id"] == job_id
    query = {"activeQueue": dead.name, "status": "waiting", "page": "1", "jobsPerPage": "10"}
    [shown] = (await dead.board("/api/queues", query=query))["queues"]
    assert shown["counts"]["waiting"] == 1
    [row] = shown["jobs"]
    assert (row["id"], row["name"], row["failedReason"]) == (letter.id, "fail", "RuntimeError: no seat")
    [back] = await pair.ours.dead_letter.requeue()
    job = await pair.theirs.job(back)
    assert (job["state"], job["attemptsMade"], job["opts"]["priority"]) == ("prioritized", 0, 3)
    assert "deadLetter" not in job["opts"]


async def test_node_works_dead_letters_as_jobs(bull: Pair) -> None:
    await bull.ours.add("echo", {"reason": "x"})
    await bull.ours.add("fail", {"times": 1}, attempts=1)
    async with bull.worker(dead_letter=True):
        await wait_until(lambda: len(bull.runs.seen) == 2)
    dead = bull.node.queue(f"{bull.theirs.name}-dead", prefix="bull")
    [letter] = [job async for job in bull.ours.dead_letter.jobs("waiting")]
    handle = await dead.work()
    with pytest.raises(NodeError, match="as planned"):
        await dead.wait(letter.id)
    await dead.stop(handle)


# -- whatever stands there ----------------------------------------------------------------------------------------------------

NODE_OPTIONS: list[dict[str, Any]] = [
    {"attempts": 2, "backoff": -5},
    {"attempts": 2, "backoff": 0},
    {"attempts": 2.5, "backoff": 1.5},
    {"attempts": "2", "backoff": "5"},
    {"attempts": -1},
    {"attempts": 2, "backoff": {"type": "fixed"}},
    {"attempts": 2, "backoff": {"type": "exponential", "delay": "20"}},
    {"attempts": 2, "backoff": {"delay": 5}},
    {"attempts": 2, "backoff": {"type": "fixed", "delay": 5, "jitter": 7}},
    {"attempts": 2, "stackTraceLimit": -1},
    {"attempts": 2, "removeOnFail": {"age": -1}},
    {"attempts": 2, "backoff": []},
    {"attempts": 2, "backoff": True},
    {"attempts": 2, "stackTraceLimit": "x", "lifo": "yes"},
]
BY_HAND: list[str] = [
    '{"attempts":2,"backoff":{"type":7,"delay":5}}',
    '{"attempts":2,"backoff":{"type":"linear","delay":-1e308}}',
    '{"attempts":2,"backoff":{"type":"exponential","delay":null,"jitter":"x"}}',
    '{"attempts":[2],"backoff":{}}',
    '{"attempts":{"a":1}}',
    '{"attempts":null,"stackTraceLimit":1e400}',
    '{"attempts":NaN}',
    '{"attempts":2,"backoff":null,"removeOnFail":"often","expireIn":[],"deadLetter":{"deadLetter":{}}}',
    '{"attempts":1,"expireIn":-5}',
    '{"parent":7,"de":"x","priority":"high"}',
    "{",
    "[]",
    "null",
    "",
]


async def test_whatever_stands_in_the_options_every_job_ends(bull: Pair, server: Server) -> None:
    ids = []
    for options in NODE_OPTIONS:
        try:
            ids.append(await bull.theirs.add("fail", {}, **options))
        except NodeError:
            continue  # its own checks
    assert len(ids) > len(NODE_OPTIONS) // 2
    line = bull.ours._home.line
    with server.client() as client:
        for number, opts in enumerate(BY_HAND):
            client.hset(bull.key(f"hand-{number}"), mapping={
                "name": "fail", "data": "{}", "opts": opts, "timestamp": 1, "delay": 0, "priority": 0,
                "atm": ["", "x", "-3", "1e400"][number % 4],
            })  # fmt: skip
            client.lpush(bull.key("wait"), f"hand-{number}")
            ids.append(f"hand-{number}")
    async with bull.worker(dead_letter=True, concurrency=4):

        async def all_ended() -> bool:
            counts = await bull.ours.counts()
            return counts["failed"] == len(ids)

        try:
            await wait_until(all_ended, 10)
        except AssertionError:
            left = [(job.id, job.state, job._stored.fields) async for job in bull.ours.jobs() if job.state != "failed"]
            raise AssertionError(left) from None
    assert len([job async for job in bull.ours.dead_letter.jobs("waiting")]) == len(ids)
    assert await line.ask("LLEN", bull.key("active")) == 0
    assert len(await bull.ours.dead_letter.requeue()) == len(ids)


async def test_a_node_worker_that_does_not_know_linear(bull: Pair) -> None:
    """It stores nothing of the failed run, so the job stalls, until that is too often."""
    job = await bull.ours.add("fail", {}, attempts=2, backoff=Backoff.linear(0.03))
    handle = await bull.theirs.work(lockDuration=500, stalledInterval=300)
    await bull.theirs.node.tells("start", id=job.id)
    seen = await fails(bull, job.id)
    assert (seen["failedReason"], seen["stalledCounter"]) == ("job stalled more than allowable limit", 2)
    assert (seen["attemptsMade"], seen["attemptsStarted"]) == (1, 3)
    [error, *_] = bull.node.told("error")
    assert error["message"].startswith("Unknown backoff strategy linear")
    await bull.theirs.stop(handle)
