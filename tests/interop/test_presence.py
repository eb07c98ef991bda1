"""What Node shows of our workers and jobs while they are at it: workers, states, counts, events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import Job, Keep, Worker, WorkerInfo
from tests.interop.conftest import BULL, EMQ, Pair, Place
from tests.support.node_peer import NodePeer, NodeQueue, PythonPeer
from tests.support.server import Server
from tests.support.wait import wait_until

NAMES = ["enrollments", "two words", "課程 報名", "🎓", "ünï-cödé", "a.b/c?d"]


@pytest.mark.parametrize("place", [BULL, EMQ], ids=["bull", "emq"])
async def test_node_sees_each_of_our_workers_once(make_pair: Callable[..., Pair], place: Place) -> None:
    for name in NAMES:
        pair = make_pair(name, place)
        other = make_pair(f"{name}s", place)
        assert await pair.theirs.workers() == []
        async with pair.worker(name="one"), pair.worker(name="two", concurrency=50), other.worker(name="stranger"):
            for n in range(3):
                await pair.theirs.wait(await pair.theirs.add("echo", {"n": n}))
            seen = await pair.theirs.workers()
            assert {worker["name"] for worker in seen} == {pair.theirs.name}
            assert sorted(worker["rawname"].rpartition(":w:")[2] for worker in seen) == ["one", "two"]
            assert all("addr" in worker for worker in seen)
        await wait_until(lambda pair=pair: _no_workers(pair))
        assert await pair.theirs.counts() == {"completed": 3}


async def _no_workers(pair: Pair) -> bool:
    return await pair.theirs.workers() == []


async def test_a_name_that_the_server_would_refuse_does_not_hide_a_worker(bull: Pair) -> None:
    async with bull.worker(name="Wörker of Ada 😀"):
        [worker] = await bull.theirs.workers()
        assert worker["name"] == bull.name
        assert worker["rawname"].endswith(":w:W_rker_of_Ada__")
        job_id = await bull.theirs.add("nothing")
        await bull.theirs.wait(job_id)
        assert (await bull.theirs.job(job_id))["processedBy"] == "Wörker of Ada 😀"


async def test_a_worker_without_a_name_is_seen_with_one_that_is_its_own(bull: Pair) -> None:
    async with bull.worker() as first, bull.worker() as second:
        seen = [worker["rawname"].rpartition(":w:")[2] for worker in await bull.theirs.workers()]
        assert sorted(seen) == sorted([first.name, second.name])


async def test_a_worker_is_seen_also_while_it_is_busy_or_paused(bull: Pair) -> None:
    """It has nothing to block for then, but by the connection on which it blocks it is known."""
    job_id = await bull.theirs.add("hang")
    async with bull.worker(name="busy") as worker:
        await wait_until(lambda: bull.runs.of(job_id))

        async def seen() -> bool:
            return [one["rawname"].rpartition(":w:")[2] for one in await bull.theirs.workers()] == ["busy"]

        await wait_until(seen)
        bull.runs.gates[job_id].set()
        await bull.theirs.wait(job_id)
        await worker.pause()
        await wait_until(seen)


async def test_a_worker_is_seen_again_after_its_connections_were_killed(bull: Pair, server: Server) -> None:
    async with bull.worker(name="phoenix"):
        server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        async def back() -> bool:
            return [worker["rawname"].rpartition(":w:")[2] for worker in await bull.theirs.workers()] == ["phoenix"]

        await wait_until(back)
        assert await bull.theirs.wait(await bull.theirs.add("echo", {"n": 1})) == {"n": 1}


async def test_node_workers_and_ours_stand_side_by_side(pair: Pair) -> None:
    await pair.theirs.work(name="nodes")
    async with pair.worker(name="ours"):

        async def both() -> bool:
            names = sorted(worker["rawname"].rpartition(":w:")[2] for worker in await pair.theirs.workers())
            return names == ["nodes", "ours"]

        await wait_until(both)


async def test_62_the_names_of_connections(make_pair: Callable[..., Pair], server: Server) -> None:
    named, unnamed = make_pair("q"), make_pair("ünï")
    async with named.worker(name="w-1"):
        await unnamed.theirs.work()

        async def seen() -> bool:
            theirs = [*await named.theirs.workers(), *await unnamed.theirs.workers()]
            ours = [*await named.ours.workers(), *await unnamed.ours.workers()]
            return [one["rawname"] for one in theirs] == ["bull:cQ==:w:w-1", "bull:w7xuw68="] and [
                (one.queue, one.name, one.is_connected) for one in ours
            ] == [("q", "w-1", True), ("ünï", "", True)]

        await wait_until(seen)
        names = [field[5:] for client in server.clients() for field in client.split() if field.startswith("name=bull:")]
        # The first reads requests to cancel, along with whatever events this process follows.
        assert sorted(names) == ["bull:cQ==:qe", "bull:cQ==:w:w-1", "bull:w7xuw68="]


# -- and what we show of theirs ------------------------------------------------------------------------------------------


@pytest.fixture
def python(server: Server) -> Iterator[PythonPeer]:
    """BullMQ for Python."""
    with PythonPeer(server.tcp_url) as peer:
        yield peer


async def _ours_see(pair: Pair, *names: str) -> list[WorkerInfo]:
    """Waits until we see workers of these names, sorted, and those of ours have told what they are."""
    found: list[WorkerInfo] = []

    async def seen() -> bool:
        found[:] = await pair.ours.workers()
        return [one.name for one in found] == list(names)

    await wait_until(seen, what=f"we see {names}")
    return found


@pytest.mark.parametrize("place", [BULL, EMQ], ids=["bull", "emq"])
async def test_we_see_nodes_workers_and_their_jobs(make_pair: Callable[..., Pair], place: Place) -> None:
    for name in NAMES:
        pair = make_pair(name, place)
        other = make_pair(f"{name}s", place)
        assert await pair.ours.workers() == []
        unnamed = await pair.theirs.work(concurrency=2)
        named = await pair.theirs.work(name="w:a/b=c,d", concurrency=2)
        stranger = await other.theirs.work(name="stranger")
        found = await _ours_see(pair, "", "w:a/b=c,d")
        for one in found:
            assert one.queue == name
            assert one.is_connected
            assert one.address
            assert (one.host, one.pid, one.slots, one.paused, one.loop_lag, one.going_on) == (None,) * 6
            assert abs(one.last_seen - datetime.now(UTC)) < timedelta(minutes=1)
        await pair.theirs.stop(unnamed)
        job_id = await pair.theirs.add("hang", {})

        async def has_it(pair: Pair = pair, job_id: str = job_id) -> bool:
            held = [(job.id, job.name) for one in await pair.ours.workers() for job in one.jobs]
            return held == [(job_id, "hang")]

        await wait_until(has_it)
        await _ours_see(pair, "w:a/b=c,d")
        for queue, handle in ((pair.theirs, named), (other.theirs, stranger)):
            await queue.stop(handle, force=True)
        await _ours_see(pair)


async def test_we_see_both_kinds_side_by_side(pair: Pair) -> None:
    await pair.theirs.work(name="nodes")
    async with pair.worker(name="ours"):
        nodes, ours = await _ours_see(pair, "nodes", "ours")

        async def known() -> bool:
            return [one.pid is not None for one in await pair.ours.workers()] == [False, True]

        await wait_until(known)
        assert (nodes.slots, nodes.jobs, ours.is_connected) == (None, (), True)


async def test_a_killed_node_is_not_seen_any_more(pair: Pair, doomed: NodePeer) -> None:
    await doomed.queue(pair.theirs.name, prefix=pair.theirs.prefix).work(name="doomed")
    await _ours_see(pair, "doomed")
    doomed.kill()
    await _ours_see(pair)


@pytest.mark.parametrize("version", ["bullmq6"], indirect=True)
@pytest.mark.parametrize("name", ["enrollments", "a.b/c?d"])
async def test_we_see_the_workers_of_bullmq_for_python(
    make_pair: Callable[..., Pair], place: Place, name: str, python: PythonPeer
) -> None:
    """It does not write names in base64, names two connections a worker, and cannot work on a queue with a blank in its name."""
    pair = make_pair(name, place)
    theirs = NodeQueue(python, pair.theirs.name, place.prefix)
    await theirs.work()
    [found] = await _ours_see(pair, "")
    assert found.is_connected
    assert (found.host, found.slots) == (None, None)
    await theirs.work(name="desk")
    await _ours_see(pair, "", "desk")
    await pair.theirs.add("slow", {"seconds": 0.3})
    await python.tells("return")
    await _ours_see(pair, "", "desk")


async def test_plain_function_runs_in_a_thread(bull: Pair) -> None:
    threads: list[threading.Thread] = []

    def process(job: Job[Any]) -> Any:
        threads.append(threading.current_thread())
        return job.data["a"] + 1

    async with Worker(bull.ours, process):
        assert await bull.theirs.wait(await bull.theirs.add("plain", {"a": 1})) == 2
    assert threads[0] is not threading.main_thread()


async def test_states_and_counts_at_each_stage(pair: Pair) -> None:
    node = pair.theirs
    held = await node.add("hang", {})
    waiting = await node.add("nothing", {})
    urgent = await node.add("nothing", {}, priority=1)
    later = await node.add("nothing", {}, delay=60_000)
    async with pair.worker(concurrency=1):
        await wait_until(lambda: pair.runs.of(held))
        assert await node.counts() == {"active": 1, "waiting": 1, "prioritized": 1, "delayed": 1}
        states = {job_id: await node.state(job_id) for job_id in (held, waiting, urgent, later)}
        assert states == {held: "active", waiting: "waiting", urgent: "prioritized", later: "delayed"}
        [active] = await node.jobs("active")
        assert (active["id"], active["attemptsStarted"], active["attemptsMade"]) == (held, 1, 0)
        # and we see the same
        ours = {job_id: (await _ours(pair, job_id)).state for job_id in states}
        assert ours == states
        counts = await pair.ours.counts()
        assert {state: count for state, count in counts.items() if count} == await node.counts()
        pair.runs.gates[held].set()
        for job_id in (held, waiting, urgent):
            await node.wait(job_id)
    assert await node.counts() == {"completed": 3, "delayed": 1}


async def _ours(pair: Pair, job_id: str) -> Job[Any]:
    job = await pair.ours.get_job(job_id)
    assert job is not None
    return job


async def test_listeners_hear_our_events_and_live_on(pair: Pair) -> None:
    node = pair.theirs
    await node.listen()
    hostile: list[Any] = [None, "not json {", '"', "\ud800", "\x00\n", {"a": ["😀"]}, 1e300, 2**53 + 2, [], False, ""]
    ids = [await node.add("value", {"value": value}) for value in hostile]
    failing = await node.add("fail", {"reason": 'not "json {\n\x00 \udfff😀'}, attempts=2, backoff=10)
    async with pair.worker(concurrency=1):
        for job_id, value in zip(ids, hostile, strict=True):
            assert await node.wait(job_id) == value
        await pair.node.tells("event", event="failed")
        job = await pair.ours.add("nothing", remove_on_complete=Keep.NONE)
        await pair.node.tells("event", event="drained")
        await pair.ours.pause()
        await pair.ours.resume()
        await pair.node.tells("event", event="resumed")
        # the listener still resolves waiters
        assert await node.wait(await node.add("echo", {"last": True})) == {"last": True}
    told = [(news["event"], news["args"]) for news in pair.node.told("event")]
    of_job = {
        job_id: [event for event, args in told if args.get("jobId") == job_id] for job_id in [*ids, failing, job.id]
    }
    for job_id in ids:
        assert of_job[job_id] == ["added", "waiting", "active", "completed"]
    assert of_job[failing] == [
        "added",
        "waiting",
        "active",
        "delayed",
        "waiting",
        "active",
        "failed",
        "retries-exhausted",
    ]
    assert of_job[job.id] == ["added", "waiting", "active", "completed"]
    assert {"paused", "resumed", "drained"} <= {event for event, _ in told}
    results = {args["jobId"]: args["returnvalue"] for event, args in told if event == "completed"}
    assert [results[job_id] for job_id in ids] == hostile
    [reason] = [args["failedReason"] for event, args in told if event == "failed"]
    assert '"json {' in reason
    assert not pair.node.told("error")
