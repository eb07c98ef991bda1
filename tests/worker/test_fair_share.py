"""Jobs of low priority are not passed over for ever when the worker was told so, and nothing changes when it was not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from echomq import Connection, InvalidOption, Job, JobSpec, Queue, Worker
from echomq._worker.pump import FairShare
from tests.store import scripts
from tests.store.scripts import T
from tests.support.server import Server

both_servers = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


@pytest.fixture
def queue(server: Server) -> Iterator[scripts.Queue]:
    with server.client() as client:
        yield scripts.Queue(client)


# -- the account -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 1 / 3, 0.5])
def test_the_share_is_exact_over_time_whatever_the_batches(share: float) -> None:
    account, dice = FairShare(share), random.Random(7)
    fetched = longest = 0
    under_way: list[tuple[int, int]] = []
    for _ in range(2000):
        wanted = dice.choice([1, 1, 2, 5, 50])
        under_way.append((wanted, account.of(wanted)))
        if len(under_way) == 2 or dice.random() < 0.5:  # two calls are under way at once
            wanted, due = under_way.pop(0)
            came = wanted if dice.random() < 0.8 else dice.randrange(wanted + 1)
            account.got(came, wanted, due)
            fetched += came
            longest += min(came, due)
    assert longest == pytest.approx(fetched * share, abs=50)


def test_one_by_one_it_is_each_tenth() -> None:
    account = FairShare(0.1)
    assert [number for number in range(1, 31) if account.of(1)] == [10, 20, 30]


# -- the choice ------------------------------------------------------------------------------------------------------------


@both_servers
def test_it_takes_those_that_have_waited_longest_and_then_the_usual_ones(queue: scripts.Queue) -> None:
    for age, priority in ((1, 0), (9, 3), (8, 3), (2, 1), (7, 2), (3, 0)):
        queue.add(timestamp=T - age, priority=priority, job_id=f"p{priority}-{age}")
    assert queue.fetch(3, share=2).ids == ["p3-9", "p3-8", "p0-1"]
    assert queue.fetch(3, share=1).ids == ["p2-7", "p0-3", "p1-2"]
    assert queue.get("pc") is None  # nothing prioritized is left
    assert queue.fetch(3, share=1).ids == []
    assert len(queue.get("active")) == 6


@both_servers
def test_a_job_of_the_line_may_be_the_one_that_has_waited_longest(queue: scripts.Queue) -> None:
    queue.add(timestamp=T - 9, job_id="line-9")
    queue.add(timestamp=T - 8, job_id="line-8")
    queue.add(timestamp=T - 7, priority=1, job_id="p1-7")
    queue.add(timestamp=T - 1, job_id="line-1")
    assert queue.fetch(1, share=1).ids == ["line-9"]
    assert queue.fetch(2, share=2).ids == ["p1-7", "line-8"]
    assert queue.fetch(9, share=4).ids == ["line-1"]
    assert queue.get("wait") is None
    assert queue.get("prioritized") is None


@both_servers
def test_a_share_of_more_than_there_is_takes_what_there_is(queue: scripts.Queue) -> None:
    for priority in (5, 6, 7):
        queue.add(timestamp=T - priority, priority=priority, job_id=str(priority))
    assert queue.fetch(50, share=25).ids == ["7", "6", "5"]
    assert queue.get("prioritized") is None


@both_servers
def test_classes_beyond_the_first_are_found_by_chance(queue: scripts.Queue) -> None:
    for priority in range(1, 41):
        for number in range(2):
            queue.add(timestamp=T - (1000 if priority == 40 else 1), priority=priority, job_id=f"{priority}-{number}")
    taken = [queue.fetch(1, share=1).ids[0] for _ in range(79)]
    assert "40-0" in taken[:79]
    assert taken.index("40-0") < taken.index("40-1")


@both_servers
def test_what_is_too_large_for_one_call_does_not_pass_them_over(queue: scripts.Queue) -> None:
    for number in range(4):
        queue.add(data='"' + "x" * 1_100_000 + '"', job_id=f"large-{number}")
    queue.add(timestamp=T - 9, priority=9, data='"' + "x" * 1_100_000 + '"', job_id="low")
    assert queue.fetch(4, share=1).ids == ["low"]
    assert queue.fetch(4, share=1).ids == ["large-0"]


@both_servers
def test_an_id_without_a_job_and_one_that_stands_there_twice_are_taken_out(queue: scripts.Queue) -> None:
    queue.add(timestamp=T - 9, priority=9, job_id="twice")
    queue.add(timestamp=T - 8, priority=9, job_id="whole")
    queue.command("ZADD", "~prioritized", 7 * 2**32, "ghost")
    queue.command("LPUSH", "~wait", "twice")
    fetched = queue.fetch(5, share=5)
    assert (sorted(fetched.ids), fetched.dropped) == (["twice", "whole"], ["ghost"])
    assert queue.get("wait") is None
    assert queue.get("prioritized") is None
    assert sorted(queue.get("active")) == ["twice", "whole"]


@both_servers
def test_limits_hold(queue: scripts.Queue) -> None:
    for number in range(9):
        queue.add(timestamp=T - number, priority=1 + number % 3)
    assert len(queue.fetch(5, share=2, limit=(3, 60_000)).ids) == 3
    assert len(queue.fetch(5, share=2, limit=(3, 60_000)).ids) == 0
    queue.command("DEL", "~limiter")
    queue.command("HSET", "~meta", "concurrency", 4)
    assert len(queue.fetch(5, share=2).ids) == 1


# -- the worker ------------------------------------------------------------------------------------------------------------


async def starved(url: str, fair_share: float, starts: int) -> dict[str, int]:
    """Works under a load of urgent jobs that never ends. Gives for each job of low priority at which start it came."""
    came: dict[str, int] = {}
    count = 0

    async with Connection(url) as connection, Queue("classes", connection=connection) as queue:
        low = [JobSpec("low", priority=priority) for priority in range(1, 11) for _ in range(3)]
        await queue.add_bulk(low)
        await queue.add_bulk([JobSpec("urgent")] * 40)

        async def process(job: Job[Any]) -> None:
            nonlocal count
            count += 1
            if job.name == "low":
                came[job.id] = count
            if count < starts:
                await queue.add("urgent")  # so that the line never ends

        worker = Worker(queue, process, concurrency=8, fair_share=fair_share)
        await worker.run_until_drained()
    return came


async def test_under_endless_urgent_load_each_class_waits_for_a_bounded_time(url: str) -> None:
    came = await starved(url, 0.2, 400)
    # Thirty jobs that have waited longest, each fifth start for one of them; the last calls bring a few more or less.
    assert len(came) == 30
    assert max(came.values()) <= 30 / 0.2 + 16


async def test_without_it_they_wait_until_the_urgent_ones_end(url: str) -> None:
    came = await starved(url, 0.0, 400)
    assert len(came) == 30
    assert min(came.values()) > 400


@pytest.mark.parametrize("share", [-0.1, 0.6, True, "0.1", float("nan"), None])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(InvalidOption, match=r"fair_share=.*from 0 to 0\.5"):
        Worker("q", lambda job: None, connection="redis://localhost", fair_share=share)
