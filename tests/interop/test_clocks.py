"""Node's clock is minutes away from the server's: what is late or early by that is Node's own; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from echomq import Connection, JobSpec
from tests.interop.conftest import EMQ, Pair
from tests.support.node_peer import NodePeer, Version
from tests.support.server import Server
from tests.support.wait import wait_until

MINUTES = 300


@pytest.fixture
def ahead(version: Version, server: Server) -> Iterator[NodePeer]:
    """Node, its clock five minutes ahead."""
    with NodePeer(version, server.socket_path, clock_ahead=MINUTES) as peer:
        yield peer


async def done(pair: Pair, count: int) -> None:
    async def all_done() -> bool:
        return await pair.ours.counts() == {**dict.fromkeys(await pair.ours.counts(), 0), "completed": count}

    await wait_until(all_done, 20, f"{count} jobs have completed")


async def started_once(pair: Pair, peer: NodePeer, count: int) -> None:
    ids = [run.id for run in pair.runs.seen] + [news["id"] for news in peer.told("start")]
    assert sorted(ids, key=int) == [str(number) for number in range(1, count + 1)]


async def test_a_node_worker_that_is_ahead_loses_nothing_and_is_early_by_itself(
    ahead: NodePeer, server: Server
) -> None:
    async with Connection(server.url) as connection:
        pair = Pair("clocks", EMQ, ahead, connection)
        await pair.theirs.work(concurrency=5)
        async with pair.ours, pair.worker(concurrency=5):
            await pair.ours.add_bulk([JobSpec("echo", {"n": n}, delay=0.3 + 0.02 * n) for n in range(20)])
            await pair.ours.add_bulk([JobSpec("echo", {"n": n}, delay=60) for n in range(5)])
            await done(pair, 25)  # those of the next minute too: by its own clock Node promotes them at once
            await started_once(pair, ahead, 25)
        await ahead("reset")


async def test_what_a_node_producer_that_is_ahead_delays_comes_later_by_that(ahead: NodePeer, server: Server) -> None:
    """Its moments are in our future. Nothing is early, and nothing is lost."""
    async with Connection(server.url) as connection:
        pair = Pair("clocks", EMQ, ahead, connection)
        async with pair.ours, pair.worker(concurrency=5):
            at_once = await pair.theirs.add("echo", {"n": 1})
            later = await pair.theirs.add("echo", {"n": 2}, delay=200)
            await wait_until(lambda: pair.runs.of(at_once))
            job = await pair.ours.get_job(later)
            assert job is not None
            assert job.state == "delayed"
            due = server.cli("ZSCORE", pair.key("delayed"), later)
            seconds, _ = server.cli("TIME")
            assert float(due) / 4096 / 1000 - int(seconds) == pytest.approx(MINUTES, abs=5)
            await job.promote()
            await job.result(timeout=10)
        await ahead("reset")


async def test_retries_of_both_sides_while_clocks_differ(ahead: NodePeer, server: Server) -> None:
    async with Connection(server.url) as connection:
        pair = Pair("clocks", EMQ, ahead, connection)
        await pair.theirs.work(concurrency=3)
        async with pair.ours, pair.worker(concurrency=3):
            jobs: list[Any] = [await pair.ours.add("fail", {"times": 1}, attempts=3, backoff=0.2) for _ in range(10)]
            # What Node delays by its own clock, our workers start five minutes later; Node's start it in time.
            results = await asyncio.gather(*(job.result(timeout=20) for job in jobs))
            assert results == ["at last"] * 10
        await ahead("reset")
