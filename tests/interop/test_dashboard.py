"""bull-board, through the API that its pages use, on queues of ours: it shows them right, and its buttons work."""

from __future__ import annotations

import time
from typing import Any

import pytest

from echomq import Every, JobFailed, JobScheduler, JobSpec
from tests.interop.conftest import Pair
from tests.support.server import Server
from tests.support.wait import wait_until

PAGE = {"page": "1", "jobsPerPage": "10"}


class Board:
    """The dashboard's view of a queue."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._queue = {"queueName": pair.theirs.name}

    async def overview(self, status: str = "latest") -> dict[str, Any]:
        """The queue with its counts, and the jobs of a tab."""
        query = {"activeQueue": self._pair.theirs.name, "status": status, **PAGE}
        [queue] = (await self._pair.theirs.board("/api/queues", query=query))["queues"]
        return dict(queue)

    async def counts(self) -> dict[str, int]:
        """The counts on the queue's card, zeros left out."""
        return {state: count for state, count in (await self.overview())["counts"].items() if count}

    async def tab(self, status: str) -> list[dict[str, Any]]:
        """The jobs of a tab."""
        return list((await self.overview(status))["jobs"])

    async def get(self, what: str, **params: str) -> Any:
        """Something below the queue."""
        return await self._pair.theirs.board(
            f"/api/queues/:queueName/{what}", params={**self._queue, **params}, query={}
        )

    async def press(self, what: str, method: str = "put", body: Any = None, **params: str) -> None:
        """A button of the queue's."""
        await self.press_above(f":queueName/{what}", method, body, **self._queue, **params)

    async def press_above(self, what: str, method: str = "put", body: Any = None, **params: str) -> None:
        """A button for all queues."""
        queue, route = self._pair.theirs, f"/api/queues/{what}"
        answer = await queue.node(
            "board",
            queue=queue.name,
            prefix=queue.prefix,
            route=route,
            method=method,
            params=params,
            body=body or {},
        )
        assert answer["status"] in (200, 204), answer


@pytest.fixture
def board(pair: Pair) -> Board:
    return Board(pair)


async def test_it_shows_counts_jobs_details_workers_and_server(pair: Pair, board: Board) -> None:
    ours = pair.ours
    good = await ours.add("echo", {"learner": 7, "course": "課程 😀"})
    bad = await ours.add("fail", {"reason": "no seat"}, attempts=2)
    held = await ours.add("hang")
    async with pair.worker(name="desk-1", concurrency=3, metrics_points=60):
        await good.result(timeout=10)
        with pytest.raises(JobFailed):
            await bad.result(timeout=10)
        await wait_until(lambda: pair.runs.of(held.id))
        later = await ours.add("echo", {}, delay=60)
        await ours.pause()
        waiting = await ours.add("echo", {})
        urgent = await ours.add("echo", {}, priority=2)

        overview = await board.overview()
        assert overview["name"] == pair.theirs.name
        assert overview["isPaused"] is True
        assert overview["hasWorkers"] is True
        expected = {"active": 1, "waiting": 1, "prioritized": 1, "delayed": 1, "completed": 1, "failed": 1}
        assert await board.counts() == expected
        for status, job in {
            "active": held, "waiting": waiting, "prioritized": urgent, "delayed": later, "completed": good, "failed": bad,
        }.items():  # fmt: skip
            assert [shown["id"] for shown in await board.tab(status)] == [job.id], status

        [shown] = await board.tab("completed")
        assert shown["name"] == "echo"
        assert shown["data"] == shown["returnValue"] == {"learner": 7, "course": "課程 😀"}
        assert (shown["attempts"], shown["processedBy"], shown["isFailed"]) == (1, "desk-1", False)
        assert shown["timestamp"] <= shown["processedOn"] <= shown["finishedOn"]
        detail = await board.get(":jobId", jobId=bad.id)
        assert detail["status"] == "failed"
        assert detail["job"]["attempts"] == 2
        assert "no seat" in detail["job"]["failedReason"]
        assert len(detail["job"]["stacktrace"]) == 2
        assert "do_fail" in detail["job"]["stacktrace"][0]
        assert await board.get(":jobId/logs", jobId=bad.id) == []

        [worker] = (await board.get("workers"))["workers"]
        assert worker["name"] == "desk-1"
        stats = await pair.theirs.board("/api/redis/stats")
        assert stats["clients"]["connected"] > 0
        metrics = await board.get("metrics")
        assert (metrics["completed"]["meta"]["count"], metrics["failed"]["meta"]["count"]) == (1, 1)
        await ours.resume()
        pair.runs.gates[held.id].set()
        await held.result(timeout=10)
    await wait_until(lambda: _has_no_workers(board))


async def _has_no_workers(board: Board) -> bool:
    return not (await board.overview())["hasWorkers"]


async def test_its_buttons_work(pair: Pair, board: Board) -> None:
    ours = pair.ours
    failing = await ours.add("fail", {"times": 1})
    later = await ours.add("echo", {"n": 1}, delay=60)
    edited = await ours.add("echo", {"n": 2}, delay=60)
    async with pair.worker():
        with pytest.raises(JobFailed):
            await failing.result(timeout=10)
        await board.press(":jobId/retry", jobId=failing.id, queueStatus="failed")
        assert await pair.theirs.wait(failing.id) == "at last"
        await board.press(":jobId/promote", jobId=later.id)
        assert await later.result(timeout=10) == {"n": 1}
        await board.press(":jobId/update-data", "patch", jobId=edited.id, body={"jobData": {"n": 3}})
        await board.press("promote")
        assert await edited.result(timeout=10) == {"n": 3}
        await board.press("pause")
        assert await ours.is_paused()
        await board.press("add", "post", body={"name": "echo", "data": {"from": "the board"}, "options": {}})
        assert await ours.counts("waiting") == {"waiting": 1}
        await board.press("resume")
        await wait_until(lambda: any(run.data == {"from": "the board"} for run in pair.runs.seen))
        await wait_until(lambda: _are(board, {"completed": 4}))
    gone = await ours.add("echo")
    await board.press(":jobId/clean", jobId=gone.id)
    assert await gone.refresh() is None


async def test_its_buttons_for_all_jobs_of_a_tab_work(pair: Pair, board: Board, server: Server) -> None:
    ours = pair.ours
    failing = [await ours.add("fail", {"times": 1, "n": n}) for n in range(3)]
    async with pair.worker():
        for job in failing:
            with pytest.raises(JobFailed):
                await job.result(timeout=10)
        await board.press("retry/:queueStatus", queueStatus="failed")
        await wait_until(lambda: _are(board, {"completed": 3}))
    for job in failing:  # it cleans what has ended more than five seconds ago
        server.cli("ZADD", pair.key("completed"), "1000", job.id)
    await board.press("clean/:queueStatus", queueStatus="completed")
    assert await board.counts() == {}
    assert [await job.refresh() for job in failing] == [None] * 3

    job = await ours.add("echo", {}, delay=60)
    await pair.theirs.call_job(job.id, "log", "from afar")
    await job.log("from us: ü")
    await job.update_progress({"done": 3})
    assert await board.get(":jobId/logs", jobId=job.id) == ["from afar", "from us: ü"]
    assert (await board.get(":jobId", jobId=job.id))["job"]["progress"] == {"done": 3}
    await board.press(":jobId/delay", "patch", jobId=job.id, body={"runAt": (time.time() + 3600) * 1000})
    await board.press(":jobId/priority", "patch", jobId=job.id, body={"priority": 4})
    changed = await job.refresh()
    assert changed is not None
    assert 3500 < changed.delay <= 3600
    assert changed.priority == 4
    await board.press("concurrency", body={"concurrency": 3})
    assert await ours.concurrency() == 3
    await ours.add("echo")
    await board.press("empty")
    assert await ours.counts("waiting", "delayed") == {"waiting": 0, "delayed": 1}
    await job.remove()
    assert await board.counts() == {}


async def test_its_buttons_for_all_queues_and_schedules_work(pair: Pair, board: Board) -> None:
    await board.overview()
    await board.press_above("pause")
    assert await pair.ours.is_paused()
    await board.press_above("resume")
    assert not await pair.ours.is_paused()
    async with JobScheduler(pair.ours) as schedules:
        await schedules.upsert("tick", Every(3600, offset=1), JobSpec("echo", {"tick": True}))
        await board.press("job-schedulers/:schedulerId/run", schedulerId="tick")
        async with pair.worker():
            await wait_until(lambda: any(run.data == {"tick": True} for run in pair.runs.seen))
        await board.press("job-schedulers/:schedulerId/remove", schedulerId="tick")
        assert await schedules.list() == []


async def _are(board: Board, counts: dict[str, int]) -> bool:
    return await board.counts() == counts


async def test_it_removes_a_queue_of_ours_whole(pair: Pair, board: Board) -> None:
    async with pair.worker():
        for n in range(3):
            await (await pair.ours.add("echo", {"n": n})).result(timeout=10)
    await pair.ours.add("echo", {}, delay=60)
    await pair.ours.add("echo", {}, priority=3)
    await board.press("pause")
    await board.press("obliterate")
    assert await pair.ours.counts() == dict.fromkeys(await pair.ours.counts(), 0)
    # and the queue can be used again
    job = await pair.ours.add("echo", {"again": True})
    async with pair.worker():
        assert await job.result(timeout=10) == {"again": True}


async def test_it_shows_a_flow_that_we_work(bull: Pair) -> None:
    board = Board(bull)
    tree: dict[str, Any] = {
        "name": "echo",
        "queueName": bull.theirs.name,
        "prefix": "bull",
        "children": [{"name": "value", "queueName": bull.theirs.name, "prefix": "bull", "data": {"value": 1}}],
    }
    ids = await bull.theirs.flow(tree)
    assert await board.counts() == {"waiting": 1, "waiting-children": 1}
    assert [shown["id"] for shown in await board.tab("waiting-children")] == [ids["id"]]
    async with bull.worker():
        await bull.theirs.wait(ids["id"])
    flow = await board.get(":jobId/flow", jobId=ids["id"])
    assert flow["isFlowNode"] is True
    assert flow["flowRoot"]["state"] == "completed"
    assert [child["state"] for child in flow["flowRoot"]["children"]] == ["completed"]
