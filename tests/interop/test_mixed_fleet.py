"""BullMQ 5 and 6 for Node, BullMQ for Python and we on one queue, which all of them pause and resume.

A pause and a resume of version 5 rename one list over another; what stood there is left with a hash alone (protocol 3.16).
Whatever the others do, what is in our hands loses nothing; and what version 5 has dropped, our workers find and put back.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import echomq._worker.heal
from tests.interop.conftest import Pair
from tests.support.audit import audit
from tests.support.node_peer import NodePeer, NodeQueue, PythonPeer, Version
from tests.support.server import Server
from tests.support.wait import wait_until

STEPS, PRODUCERS = 200, 4

pytestmark = pytest.mark.parametrize("version", ["bullmq5"], indirect=True)


@pytest.fixture
def python(server: Server) -> Iterator[PythonPeer]:
    """BullMQ for Python."""
    with PythonPeer(server.tcp_url) as peer:
        yield peer


class Fleet:
    """The four kinds, each with its view of one queue; what was added and acknowledged."""

    def __init__(self, pair: Pair, six: NodePeer, python: PythonPeer, seed: int) -> None:
        self.pair = pair
        self.chance = random.Random(seed)
        self.peers = {
            "v5": pair.theirs,
            "v6": six.queue(pair.theirs.name),
            "python": NodeQueue(python, pair.theirs.name, "bull"),
        }
        self.kinds = ["ours", *self.peers]
        self.added: dict[str, str] = {}
        self.names = itertools.count(1)

    async def add(self, kind: str) -> None:
        """One job, of some kind; noted once it is acknowledged."""
        which = self.chance.random()
        priority = self.chance.randint(1, 3) if which < 0.2 else 0
        delay = self.chance.randint(1, 200) if which > 0.8 else 0
        data = {"n": next(self.names), "seconds": self.chance.uniform(0, 0.03)}  # so that there is a line
        if kind == "ours":
            job = await self.pair.ours.add("slow", data, priority=priority, delay=delay / 1000)
            self.added[job.id] = kind
        else:
            opts = {**({"priority": priority} if priority else {}), **({"delay": delay} if delay else {})}
            self.added[await self.peers[kind].add("slow", data, **opts)] = kind

    async def pause(self, kind: str) -> None:
        await (self.pair.ours.pause() if kind == "ours" else self.peers[kind].pause())

    async def resume(self, kind: str) -> None:
        await (self.pair.ours.resume() if kind == "ours" else self.peers[kind].resume())

    async def produce(self, steps: int, switchers: list[str]) -> None:
        """Random steps; only these kinds pause and resume."""
        for _ in range(steps):
            what = self.chance.choices(["add", "pause", "resume"], [60, 20, 20])[0]
            if what == "add":
                await asyncio.gather(*map(self.add, self.chance.choices(self.kinds, k=self.chance.randint(1, 8))))
            elif what == "pause":
                await self.pause(self.chance.choice(switchers))
            else:
                await self.resume(self.chance.choice(switchers))
            await asyncio.sleep(self.chance.uniform(0, 0.02))  # the arrivals are the scenario


@pytest.mark.parametrize("switchers", [["ours", "v6", "python"], ["ours", "v5", "v6", "python"]], ids=["no-v5", "all"])
@pytest.mark.timeout(120)
async def test_random_pauses_resumes_and_adds(
    switchers: list[str],
    make_pair: Callable[..., Pair],
    server: Server,
    session_node: Callable[[Version, Server], NodePeer],
    python: PythonPeer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(echomq._worker.heal, "EVERY", 0.5)
    monkeypatch.setattr(echomq._worker.heal, "_SHARE", 1)
    seed = random.getrandbits(32)  # repeated by pytest's --randomly-seed
    print(f"seed {seed}")  # noqa: T201
    pair, six = make_pair(), session_node("bullmq6", server)
    six.news.clear()
    fleet = Fleet(pair, six, python, seed)
    try:
        await asyncio.gather(*(peer.work(concurrency=2) for peer in fleet.peers.values()))
        async with pair.worker(concurrency=2):
            await asyncio.gather(*(fleet.produce(STEPS // PRODUCERS, switchers) for _ in range(PRODUCERS)))
            await pair.ours.resume()
            await wait_until(
                lambda: server.cli("ZCARD", pair.key("completed")) == len(fleet.added), 30, "all have ended"
            )
        ran = {kind: [news["id"] for news in peer.node.told("start")] for kind, peer in fleet.peers.items()}
        ran["ours"] = [run.id for run in pair.runs.seen]
    finally:
        await asyncio.gather(six("reset"), python("reset"), pair.node("reset"))
        six.news.clear()

    assert all(ran.values()), {kind: len(ids) for kind, ids in ran.items()}
    assert Counter(itertools.chain(*ran.values())) == dict.fromkeys(fleet.added, 1)
    events = [
        dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in server.cli("XRANGE", pair.key("events"), "-", "+")
    ]
    ends = Counter(event[b"jobId"].decode() for event in events if event[b"event"] in (b"completed", b"failed"))
    assert ends == dict.fromkeys(fleet.added, 1)
    healed = [job_id for record in caplog.records for job_id in getattr(record, "job_ids", ())]
    print(f"{len(fleet.added)} jobs, {len(healed)} healed: {Counter(fleet.added[one] for one in healed)}")  # noqa: T201
    if "v5" not in switchers:
        assert healed == []
    with server.client() as client:
        assert audit(client, "bull", pair.name) == []


@pytest.mark.parametrize("dropped_by", ["resume", "pause"])
async def test_what_version_5_has_dropped_comes_back(
    make_pair: Callable[..., Pair],
    server: Server,
    session_node: Callable[[Version, Server], NodePeer],
    dropped_by: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Vector 25 of the protocol, and the other way round; no call of ours comes between to save the list."""
    monkeypatch.setattr(echomq._worker.heal, "EVERY", 0.3)
    monkeypatch.setattr(echomq._worker.heal, "_SHARE", 1)
    pair, six = make_pair(), session_node("bullmq6", server)
    theirs = six.queue(pair.theirs.name)
    expected: dict[str, Any] = {}

    async def add(queue: NodeQueue, *numbers: int) -> None:
        for n in numbers:
            expected[await queue.add("echo", {"n": n})] = {"n": n}

    await add(theirs, 1, 2, 3)
    if dropped_by == "resume":
        await theirs.pause()
        await add(pair.theirs, 4)
        await pair.theirs.resume()
        left = {b"4"}
    else:
        await pair.theirs.pause()
        await add(theirs, 4)
        await pair.theirs.pause()
        await pair.theirs.resume()
        left = {b"4"}
    assert set(server.cli("LRANGE", pair.key("wait"), 0, -1)) == left
    async with pair.worker():
        for job_id, value in expected.items():
            assert await pair.theirs.wait(job_id) == value
    [told] = [record for record in caplog.records if hasattr(record, "job_ids")]
    assert sorted(told.job_ids) == ["1", "2", "3"]
    await six("reset")
    with server.client() as client:
        assert audit(client, "bull", pair.name) == []
