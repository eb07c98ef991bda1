"""Reading a queue: pages, counts, metrics, names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from echomq import Connection, InvalidOption, Job, JobSpec, JobState, Queue, Worker


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("q", connection=url) as made:
        yield made


async def ids(queue: Queue, state: JobState, **options: Any) -> list[list[str]]:
    """The ids of each page."""
    pages = []
    page = await queue.page(state, **options)
    while True:
        pages.append([job.id for job in page.jobs])
        if page.cursor is None:
            return pages
        page = await queue.page(state, cursor=page.cursor, **options)


async def nothing(job: Job[Any]) -> None:
    pass


async def test_pages_in_both_orders(queue: Queue) -> None:
    assert await ids(queue, "waiting") == [[]]
    await queue.add_bulk([JobSpec("work")] * 5)
    assert await ids(queue, "waiting") == [["1", "2", "3", "4", "5"]]
    assert await ids(queue, "waiting", limit=2) == [["1", "2"], ["3", "4"], ["5"]]
    assert await ids(queue, "waiting", limit=2, newest_first=True) == [["5", "4"], ["3", "2"], ["1"]]


async def test_a_page_may_have_a_thousand_jobs(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("work")] * 1100)
    assert [len(page) for page in await ids(queue, "waiting", limit=1000)] == [1000, 100]
    await queue.add_bulk([JobSpec("work", {"text": "x" * 300_000}, priority=1)] * 9)
    assert [len(page) for page in await ids(queue, "prioritized", limit=1000)] == [4, 4, 1]


async def test_pages_of_every_state(queue: Queue, url: str) -> None:
    async def process(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError("bad")

    await queue.add_bulk([JobSpec("work"), JobSpec("bad"), JobSpec("work"), JobSpec("bad")])
    await Worker("q", process, connection=url, metrics_points=10).run_until_drained()
    await queue.add_bulk([JobSpec("work", priority=9), JobSpec("work", priority=1), JobSpec("work", delay=60)])
    assert await ids(queue, "completed", limit=1) == [["1"], ["3"]]
    assert await ids(queue, "failed", limit=1, newest_first=True) == [["4"], ["2"]]
    assert await ids(queue, "prioritized", limit=1) == [["6"], ["5"]]
    assert await ids(queue, "delayed", limit=5) == [["7"]]
    assert await ids(queue, "active") == [[]]
    [page] = [await queue.page("failed", limit=1)]
    assert (page.jobs[0].state, page.jobs[0].failed_reason) == ("failed", "ValueError: bad")


async def test_a_cursor_stays_where_it_is_while_jobs_come_and_go(queue: Queue, url: str) -> None:
    await queue.add_bulk([JobSpec("work")] * 40)
    page = await queue.page("waiting", limit=10)
    await queue.add_bulk([JobSpec("work")] * 15)
    for job_id in ("3", "9", "12"):
        job = await queue.get_job(job_id)
        assert job is not None
        await job.remove()
    following = await queue.page("waiting", cursor=page.cursor, limit=10)
    assert [job.id for job in following.jobs] == ["11", *map(str, range(13, 22))]
    newest = await queue.page("waiting", limit=10, newest_first=True)
    await queue.add_bulk([JobSpec("work")] * 15)
    following = await queue.page("waiting", cursor=newest.cursor, limit=3, newest_first=True)
    assert [job.id for job in following.jobs] == ["45", "44", "43"]


async def test_jobs_of_a_list_that_bullmq_5_paused_with_are_on_the_pages(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("work")] * 4)
    line = queue._home.line
    for _ in range(2):
        await line.ask("RPOPLPUSH", line.keys.key("wait"), line.keys.key("paused"))
    assert await ids(queue, "waiting", limit=3) == [["1", "2", "3"], ["4"]]
    assert await ids(queue, "waiting", limit=2, newest_first=True) == [["4", "3"], ["2", "1"]]
    assert [job.id async for job in queue.jobs("waiting", newest_first=True)] == ["4", "3", "2", "1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "wait"}, "state 'wait': must be one of"),
        ({"state": "waiting", "limit": 0}, "limit=0: must be a whole number from 1 to 1000"),
        ({"state": "waiting", "cursor": "rubbish"}, "cursor='rubbish': must be what the page before gave"),
        ({"state": "waiting", "cursor": 7}, "cursor=7: must be what the page before gave"),
        ({"state": "waiting", "newest_first": 1}, "newest_first=1"),
    ],
)
async def test_a_page_that_cannot_be_asked_for(queue: Queue, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        await queue.page(**options)


async def test_jobs_in_no_order_that_there_is(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match="newest_first='yes'"):
        _ = [job async for job in queue.jobs("waiting", newest_first="yes")]  # type: ignore[arg-type]


async def test_a_cursor_is_of_one_state_and_order(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("work")] * 4)
    cursor = (await queue.page("waiting", limit=1)).cursor
    for state, newest in (("failed", False), ("waiting", True)):
        with pytest.raises(InvalidOption, match="is that of a page with state='waiting', newest_first=False"):
            await queue.page(state, cursor=cursor, newest_first=newest)  # type: ignore[arg-type]


async def test_counts_per_priority_and_in_all(queue: Queue) -> None:
    await queue.add_bulk([JobSpec("work", priority=number) for number in (0, 0, 3, 3, 3, 7)])
    await queue.add("work", delay=60)
    assert await queue.counts_per_priority() == {0: 2, 3: 3, 7: 1}
    assert await queue.counts_per_priority(3, 4) == {3: 3, 4: 0}
    assert await queue.count() == 7
    with pytest.raises(InvalidOption, match=r"priority=-1: must be a whole number from 0 to 2097151"):
        await queue.counts_per_priority(-1)
    with pytest.raises(InvalidOption, match=r"1001 priorities: at most 1000"):
        await queue.counts_per_priority(*range(1001))


async def test_metrics_by_the_minute(queue: Queue, url: str) -> None:
    assert (await queue.metrics("completed")).latest is None
    await queue.add_bulk([JobSpec("work")] * 3)
    await Worker("q", nothing, connection=url, metrics_points=2000).run_until_drained()
    line = queue._home.line
    found = await queue.metrics("completed")
    assert found.latest is not None
    assert (found.count, found.latest.count, found.points) == (3, 3, [])
    assert found.latest.at.second == 0
    # As a worker would have left it after more than a day.
    await line.ask("RPUSH", line.keys.key("metrics:completed:data"), *map(str, range(1500)))
    found = await queue.metrics("completed")
    assert [point.count for point in found.points] == list(range(1500))
    assert found.latest is not None
    assert found.points[0].at == found.latest.at - timedelta(minutes=1)
    assert found.points[-1].at == found.latest.at - timedelta(minutes=1500)
    assert [point.count for point in (await queue.metrics("completed", minutes=2)).points] == [0, 1]
    assert (await queue.metrics("failed")).count == 0
    with pytest.raises(InvalidOption, match="state='active': must be completed or failed"):
        await queue.metrics("active")  # type: ignore[arg-type]


async def test_names_of_queues(url: str) -> None:
    async with Connection(url) as connection:
        assert await Queue.names(connection) == []
        for name, options in (("b", {}), ("a", {}), ("c", {"prefix": "bull"}), ("d e*", {}), ("f", {"prefix": "em[q"})):
            async with Queue(name, connection=connection, **options) as queue:  # type: ignore[arg-type]
                await queue.add("work")
        async with Queue("a", connection=connection) as queue:
            await queue.dead_letter.add("work")
        assert await Queue.names(connection) == ["a", "b", "d e*"]
        assert await Queue.names(connection, prefix="bull") == ["c"]
        assert await Queue.names(connection, prefix="em[q") == ["f"]
        assert await Queue.names(connection, hash_tag=False) == ["{a}", "{a}-dead", "{b}", "{d e*}"], (
            "as Node calls them"
        )
    assert await Queue.names(url) == ["a", "b", "d e*"]
