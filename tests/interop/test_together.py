"""Node 5, Node 6 and we share one queue: all add, all work, workers are killed, the queue is paused, jobs are retried."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from echomq import JobSpec
from echomq.idempotency import SQLOnce
from tests.interop.conftest import Pair
from tests.interop.our_worker import apply, make_tables
from tests.interop.processes import OurProcess
from tests.support.node_peer import News, NodePeer, Version
from tests.support.server import Server
from tests.support.wait import wait_until

JOBS = 300
SLOTS = 4
KILLS = 10
LOCK, SWEEP, MOST_STALLS = 1.5, 0.5, 50

Member: TypeAlias = OurProcess | NodePeer


class Crew:
    """The workers of all kinds; a killed one is replaced at once by another of its kind.

    Attributes:
        alive: those that work.
        dead: those that were killed, and when.
    """

    def __init__(self, pair: Pair, server: Server, database: str, stack: ExitStack) -> None:
        self._pair = pair
        self._server = server
        self._database = database
        self._stack = stack
        self._mutex = threading.Lock()
        self.alive: list[Member] = []
        self.dead: dict[Member, float] = {}

    async def hire(self, kind: str) -> None:
        """Adds a worker of this kind."""
        member: Member
        if kind == "ours":
            member = self._stack.enter_context(
                OurProcess(
                    self._server.url,
                    self._pair.name,
                    self._pair.place.prefix,
                    self._database,
                    concurrency=SLOTS,
                    lock_duration=LOCK,
                    stalled_interval=SWEEP,
                    max_stalled_count=MOST_STALLS,
                )
            )
            self.alive.append(await member.ready())
        else:
            version: Version = "bullmq5" if kind == "bullmq5" else "bullmq6"
            member = self._stack.enter_context(NodePeer(version, self._server.socket_path, on_news=self._serve))
            queue = member.queue(self._pair.theirs.name, prefix=self._pair.place.prefix)
            await queue.work(
                concurrency=SLOTS,
                lockDuration=LOCK * 1000,
                stalledInterval=SWEEP * 1000,
                maxStalledCount=MOST_STALLS,
            )
            self.alive.append(member)

    def kill(self, member: Member) -> str:
        """Kills it; gives its kind."""
        self.alive.remove(member)
        self.dead[member] = time.monotonic()
        member.kill()
        return "ours" if isinstance(member, OurProcess) else member.version

    def _serve(self, peer: NodePeer, news: News) -> None:
        """Node asks for an effect: it is applied here, by its key, as a service with a database would do it."""
        if news["news"] == "effect":
            with self._mutex:
                apply(self._database, news["key"])
            peer.send("release", id=news["id"], value=None)


def specs(rng: random.Random) -> list[dict[str, Any]]:
    """The jobs, in Node's words."""
    made = []
    for n in range(JOBS):
        kind = rng.random()
        opts: dict[str, Any] = {"attempts": 3, "backoff": rng.choice([0, 20])}
        if kind < 0.2:
            opts["priority"] = rng.randint(1, 3)
        elif kind < 0.4:
            opts["delay"] = rng.randint(1, 500)
        elif kind < 0.45:
            opts["lifo"] = True
        fails = rng.choices([0, 1, 2, 3], [70, 15, 10, 5])[0]
        data = {"key": f"learner {n}", "seconds": rng.uniform(0.01, 0.12), "fails": fails}
        made.append({"name": "effect", "data": data, "opts": opts})
    return made


async def add_all(
    pair: Pair, other: NodePeer, jobs: list[dict[str, Any]], rng: random.Random
) -> dict[str, dict[str, Any]]:
    """Adds them in small parts over some seconds, each part from another side; gives them by id."""
    theirs = other.queue(pair.theirs.name, prefix=pair.place.prefix)
    added: dict[str, dict[str, Any]] = {}
    position = 0
    while position < len(jobs):
        part = jobs[position : position + rng.randint(1, 12)]
        position += len(part)
        match rng.randrange(3):
            case 0:
                ids = [job.id for job in await pair.ours.add_bulk(map(ours, part))]
            case 1:
                ids = await pair.theirs.add_bulk(part)
            case _:
                ids = await theirs.add_bulk(part)
        added |= zip(ids, part, strict=True)
        await asyncio.sleep(rng.uniform(0, 0.2))  # the arrivals are the scenario; nothing is waited for
    return added


def ours(job: dict[str, Any]) -> JobSpec:
    """Node's words as ours."""
    opts = dict(job["opts"])
    milliseconds = {name: opts.pop(name) / 1000 for name in ("backoff", "delay") if opts.get(name)}
    opts.pop("backoff", None)
    return JobSpec(job["name"], job["data"], **opts, **milliseconds)


async def trouble(crew: Crew, pair: Pair, rng: random.Random) -> None:
    """Kills workers and pauses the queue, until all kills are done; at the end it runs."""
    six = pair.theirs
    for number in range(KILLS):
        await asyncio.sleep(rng.uniform(0.2, 0.6))
        if number % 3 == 0:
            await rng.choice([pair.ours.pause, six.pause])()
            await asyncio.sleep(rng.uniform(0, 0.2))
            await rng.choice([pair.ours.resume, six.resume])()
        victims = [member for member in crew.alive if isinstance(member, OurProcess) == (number % 2 == 0)]
        await crew.hire(crew.kill(rng.choice(victims)))
    await pair.ours.resume()


@pytest.mark.parametrize("version", ["bullmq6"], indirect=True)
@pytest.mark.timeout(120)
async def test_one_queue_shared_by_all(
    pair: Pair,
    server: Server,
    tmp_path: Path,
    session_node: Callable[[Version, Server], NodePeer],
) -> None:
    rng = random.Random(20_26)
    database = str(tmp_path / "school.db")
    make_tables(database)
    five = session_node("bullmq5", server)
    with ExitStack() as stack:
        crew = Crew(pair, server, database, stack)
        for kind in ("ours", "ours", "bullmq5", "bullmq6"):
            await crew.hire(kind)
        jobs, _ = await asyncio.gather(add_all(pair, five, specs(rng), rng), trouble(crew, pair, rng))
        await wait_until(lambda: _all_ended(pair), 60, "every job has ended")
        members = [*crew.alive, *crew.dead]
        runs = runs_of(crew)
    await five("reset")

    # Each job ended, once, as it had to.
    must_fail = {job_id for job_id, job in jobs.items() if job["data"]["fails"] == 3}
    assert len(jobs) == JOBS
    events = [(event[b"event"].decode(), event.get(b"jobId", b"").decode()) for event in stream(server, pair)]
    ends = Counter((job_id, event) for event, job_id in events if event in ("completed", "failed"))
    assert ends == {(job_id, "failed" if job_id in must_fail else "completed"): 1 for job_id in jobs}
    assert await pair.theirs.counts() == {"completed": JOBS - len(must_fail), "failed": len(must_fail)}

    # Each start of a handler beyond the first has its reason.
    for job_id, job in jobs.items():
        began = runs[job_id]
        assert len({run["started"] for run in began}) == len(began), f"two runs of {job_id} under one number: {began}"
        for run, following in itertools.pairwise(began):
            killed = run["killed"] is not None and following["at"] >= run["killed"]
            assert run["end"] == "throw" or killed or run["lost"], f"unexplained run of {job_id}: {began}"
        threw = [run for run in began if run["end"] == "throw"]
        assert len(threw) >= job["data"]["fails"]
    assert len(crew.dead) == KILLS
    stalls = sum(event == "stalled" for event, _ in events)
    lost = sum(run["lost"] for began in runs.values() for run in began)
    assert 0 < stalls <= KILLS * SLOTS + lost

    # Each effect happened once, and none of a job that failed.
    with closing(sqlite3.connect(database)) as db:
        seats = Counter(learner for (learner,) in db.execute("SELECT learner FROM seats"))
        guarded = db.execute(f"SELECT count(*) FROM {SQLOnce().table}").fetchone()[0]
    assert seats == {job["data"]["key"]: 1 for job_id, job in jobs.items() if job_id not in must_fail}
    assert guarded == len(seats)

    # All took part, and nothing is left over.
    worked = {type(member).__name__ + getattr(member, "version", "") for member in members if member.told("return")}
    assert worked == {"OurProcess", "NodePeerbullmq5", "NodePeerbullmq6"}
    for suffix in ("wait", "active", "delayed", "prioritized", "paused"):
        assert not server.cli("EXISTS", pair.key(suffix)), suffix
    assert server.cli("KEYS", pair.key("*:lock")) == []


async def _all_ended(pair: Pair) -> bool:
    counts = await pair.ours.counts()
    return counts["completed"] + counts["failed"] == JOBS


def stream(server: Server, pair: Pair) -> list[dict[bytes, bytes]]:
    """Every event of the queue."""
    entries = server.cli("XRANGE", pair.key("events"), "-", "+")
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]


def runs_of(crew: Crew) -> dict[str, list[dict[str, Any]]]:
    """The runs of each job in the order of their starts, with how each ended and when its worker was killed."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for member in [*crew.alive, *crew.dead]:
        for start in member.told("start"):
            same = {"id": start["id"], "started": start["started"]}
            end = [news["news"] for kind in ("throw", "return") for news in member.told(kind, **same)]
            lost = member.told("lost", **same) or [
                told for told in member.told("lock lost") if start["id"] in told["ids"]
            ]
            runs.setdefault(start["id"], []).append(
                {
                    "started": start["started"],
                    "end": end[-1] if end else None,
                    "at": start["at"],
                    "killed": crew.dead.get(member),
                    "lost": bool(lost),
                    "by": getattr(member, "version", "ours"),
                }
            )
    for began in runs.values():
        began.sort(key=lambda run: int(run["started"]))
    return runs
