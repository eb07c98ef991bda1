"""Pausing from either side, with a v5 that moves waiting jobs to a list of their own and a v6 that does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.interop.conftest import BULL, EMQ, Pair, Place
from tests.support.node_peer import NodePeer, Version
from tests.support.server import Server
from tests.support.wait import wait_until


async def test_each_side_sees_and_lifts_the_pause_of_the_other(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    assert not await ours.is_paused()
    assert not await node.is_paused()
    await ours.pause()
    assert await node.is_paused()
    await node.resume()
    assert not await ours.is_paused()
    await node.pause()
    assert await ours.is_paused()
    await ours.resume()
    assert not await node.is_paused()


async def test_no_job_runs_while_node_has_paused_and_all_run_afterwards(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    async with pair.worker(concurrency=3):
        await node.wait(await node.add("nothing"))
        await node.pause()
        ids = [(await ours.add("echo", {"n": 1})).id, await node.add("echo", {"n": 2})]
        ids += [(await ours.add("echo", {"n": 3}, priority=1)).id, await node.add("echo", {"n": 4}, priority=1)]
        ids += [(await ours.add("echo", {"n": 5}, delay=0.05)).id, await node.add("echo", {"n": 6}, delay=50)]
        await asyncio.sleep(0.3)  # long enough for a mistake to show; not needed otherwise
        assert len(pair.runs.seen) == 1
        await node.resume()
        for n, job_id in enumerate(ids, 1):
            assert await node.wait(job_id) == {"n": n}
    assert await node.counts() == {"completed": 7}


async def test_no_job_runs_at_node_while_we_have_paused_and_all_run_afterwards(pair: Pair) -> None:
    ours, node = pair.ours, pair.theirs
    await node.work(concurrency=3)
    await node.wait(await node.add("nothing"))
    await ours.pause()
    jobs = [await ours.add("echo", {"n": 1}), await ours.add("echo", {"n": 2}, priority=1)]
    ids = [await node.add("echo", {"n": 3}), await node.add("echo", {"n": 4}, priority=1)]
    await asyncio.sleep(0.3)
    assert len(pair.node.told("start")) == 1
    await ours.resume()
    for n, job in enumerate(jobs, 1):
        assert await job.result(timeout=10) == {"n": n}
    for n, job_id in enumerate(ids, 3):
        assert await node.wait(job_id) == {"n": n}


@pytest.mark.parametrize("version", ["bullmq5"], indirect=True)
@pytest.mark.parametrize("resumed_by", ["ours", "theirs"])
async def test_jobs_in_the_paused_list_of_v5(pair: Pair, resumed_by: str) -> None:
    """A v5 that pauses renames the list, and one that resumes renames it back over what is there.

    While the queue is paused, every call of ours moves what v5 has put aside into ``wait`` first. So the resume of a v5
    finds nothing to rename after a call of ours, and no job is lost.
    """
    ours, node = pair.ours, pair.theirs
    first = [(await ours.add("echo", {"n": n})).id for n in range(3)]
    await node.pause()
    by_node = [await node.add("echo", {"n": n}) for n in range(3, 6)]
    by_us = [(await ours.add("echo", {"n": n})).id for n in range(6, 9)]
    counts = await ours.counts("waiting")
    assert counts == {"waiting": 9}
    expected = [*first, *by_node, *by_us]
    if resumed_by == "ours":
        await ours.resume()
    else:
        await node.resume()
    assert await node.counts() == {"waiting": 9}
    async with pair.worker(concurrency=1):
        for n, job_id in enumerate(expected):
            assert await node.wait(job_id) == {"n": n}
    assert [run.id for run in pair.runs.seen] == expected


@pytest.mark.parametrize("version", ["bullmq5"], indirect=True)
async def test_what_runs_while_v5_pauses_ends_well(bull: Pair) -> None:
    """Finishing, retrying and going back to the line while a v5 has paused."""
    ours, node = bull.ours, bull.theirs
    async with bull.worker(concurrency=3):
        held = await node.add("hang", {})
        failing = await node.add("fail", {"times": 1}, attempts=2)
        waiting = [await node.add("echo", {"n": n}, delay=100) for n in range(3)]
        await wait_until(lambda: bull.runs.of(held) and len(bull.runs.of(failing)) == 2)
        await node.pause()
        parked = [await node.add("echo", {"n": n}) for n in range(3)]
        bull.runs.gates[held].set()
        assert await node.wait(held) == "let go"
        await asyncio.sleep(0.2)  # the delayed ones are due by now
        assert await ours.counts("waiting", "delayed") in ({"waiting": 3, "delayed": 3}, {"waiting": 6, "delayed": 0})
        await node.resume()
        for n, job_id in enumerate(waiting):
            assert await node.wait(job_id) == {"n": n}
        for n, job_id in enumerate(parked):
            assert await node.wait(job_id) == {"n": n}
    assert await node.counts() == {"completed": 8}


@pytest.mark.parametrize("place", [BULL, EMQ], ids=["bull", "emq"])
async def test_pauses_and_resumes_of_both_at_random(
    make_pair: Callable[..., Pair], place: Place, version: Version
) -> None:
    """Both add and pause and resume at random, our worker and Node's work: every job runs once.

    Beside a v5 it is for us alone to pause and resume, as docs/coming-from-bullmq.md says: its resume renames the list
    of what was added meanwhile by v5 over the list that has all the rest.
    """
    pair = make_pair(place=place)
    rng = random.Random(f"{version} {place}")
    await pair.theirs.work(concurrency=2)
    v6 = version == "bullmq6"
    pauses: list[Callable[[], Awaitable[None]]] = [pair.ours.pause, *([pair.theirs.pause] if v6 else [])]
    resumes: list[Callable[[], Awaitable[None]]] = [pair.ours.resume, *([pair.theirs.resume] if v6 else [])]
    expected: dict[str, int] = {}
    async with pair.worker(concurrency=2):
        for n in range(60):
            if rng.random() < 0.5:
                expected[(await pair.ours.add("echo", {"n": n})).id] = n
            else:
                expected[await pair.theirs.add("echo", {"n": n})] = n
            if rng.random() < 0.3:
                await rng.choice(pauses)()
            if rng.random() < 0.4:
                await rng.choice(resumes)()
        await pair.ours.resume()
        for job_id, n in expected.items():
            assert await pair.theirs.wait(job_id) == {"n": n}
        starts = [run.id for run in pair.runs.seen]
        starts += [news["id"] for news in await pair.node.tells("start", times=60 - len(starts))]
    assert sorted(starts) == sorted(expected)


async def test_v5_and_v6_and_we_on_one_queue(
    server: Server, session_node: Callable[[Version, Server], NodePeer], make_pair: Callable[..., Pair]
) -> None:
    """Three kinds of producers, workers of all three, and a pause by v6 and by us."""
    pair = make_pair()
    others = session_node("bullmq5" if pair.node.version == "bullmq6" else "bullmq6", server)
    other = others.queue(pair.theirs.name)
    try:
        await pair.theirs.work()
        await other.work()
        async with pair.worker():
            ids: dict[str, int] = {}
            for n in range(0, 30, 3):
                ids[await pair.theirs.add("echo", {"n": n})] = n
                ids[await other.add("echo", {"n": n + 1})] = n + 1
                ids[(await pair.ours.add("echo", {"n": n + 2})).id] = n + 2
                if n == 12:
                    await pair.ours.pause()
            await pair.ours.resume()
            for job_id, n in ids.items():
                assert await pair.theirs.wait(job_id) == {"n": n}
        assert await other.counts() == {"completed": 30}
    finally:
        others.news.clear()
        await others("reset")
