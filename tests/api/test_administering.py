"""A queue as a whole: it is obliterated, orphans are removed, its event log is kept short; and every verb tells how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from echomq import (
    Deduplication,
    Every,
    InvalidOption,
    Job,
    JobLocked,
    JobScheduler,
    JobSpec,
    Queue,
    StateError,
    Worker,
)
from tests.support.server import Server
from tests.support.wait import wait_until

BASE = "emq:{enrollments}:"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("enrollments", connection=url) as queue:
        yield queue


def names(server: Server, pattern: str = "*") -> set[str]:
    return {name.decode() for name in server.cli("KEYS", pattern)}


async def fail(queue: Queue, *jobs: JobSpec, dead_letter: bool = False) -> None:
    """Adds jobs and runs what waits; all of it fails."""

    async def handler(job: Job[Any]) -> None:
        raise ValueError("no seat")

    await queue.add_bulk(jobs)
    async with Worker(queue, handler, dead_letter=dead_letter) as worker:
        await worker.run_until_drained()


async def fill(queue: Queue, url: str, server: Server) -> int:
    """Something of everything that a queue can have; gives how many jobs that is."""
    await fail(queue, JobSpec("bad"), dead_letter=True)
    done = await queue.add("good")
    async with Worker(queue, lambda _: "seat", metrics_points=10):
        await done.result(timeout=10)
    server.cli("RPUSH", f"{BASE}{done.id}:logs", "a line")
    await queue.add_bulk(
        [
            JobSpec("plain"), JobSpec("urgent", priority=2), JobSpec("later", delay=60), JobSpec("own", job_id="own"),
            JobSpec("unique", deduplication=Deduplication("u")), JobSpec("for a time", deduplication=Deduplication("t", ttl=60)),
        ]
    )  # fmt: skip
    async with JobScheduler(queue) as schedules:
        await schedules.upsert("tick", Every(3600), JobSpec("tick"))
        await schedules.upsert("tock", Every(3600), JobSpec("tock"))
        await schedules.pause("tock")
    await queue.set_rate_limit(100, 60)
    await queue.rate_limit(60)
    return sum((await queue.counts()).values())


async def test_nothing_of_a_queue_is_left_and_all_of_the_others(queue: Queue, url: str, server: Server) -> None:
    async with Queue("other", connection=url) as other, Queue("enrollments", connection=url, prefix="bull") as bull:
        await other.add("stays", deduplication="d")
        await bull.add("stays", deduplication="d")
        before = names(server)
        jobs = await fill(queue, url, server)
        for left in ("de:long gone", "77:lock", "78:logs", "79:failed", "repeat:gone", "delay", "priority"):
            server.cli("SET", BASE + left, "x")
        server.cli("RPUSH", "emqx:{enrollments}:standing:look:wait", "1")
        seen: list[int] = []
        assert await queue.admin.obliterate(on_progress=seen.append) == jobs
        assert seen == sorted(seen)
        assert seen[-1] == jobs
        letters = names(server, "emq*:{enrollments}-dead:*")
        assert "emq:{enrollments}-dead:wait" in letters
        assert names(server) == before | letters
        assert await queue.dead_letter.admin.obliterate() == 1
        assert names(server) == before


async def test_it_can_be_used_anew(queue: Queue, url: str, server: Server) -> None:
    await fill(queue, url, server)
    async with Worker(queue, lambda _: "seat") as worker:
        await worker.ready()
        await queue.admin.obliterate(force=True)
        assert not await queue.is_paused()
        job = await queue.add("anew", deduplication="u")
        assert (job.id, await job.result(timeout=10)) == ("1", "seat")


async def test_one_that_is_not_there(queue: Queue, server: Server) -> None:
    assert await queue.admin.obliterate() == 0
    assert names(server) == set()


async def test_while_jobs_run_it_is_refused_and_the_queue_paused(queue: Queue) -> None:
    go_on = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        await go_on.wait()

    job, waits = await queue.add("enroll"), await queue.add("enroll")
    async with Worker(queue, handler):
        await wait_until(lambda: _is(queue, job, "active"))
        with pytest.raises(JobLocked, match=r"queue 'enrollments' is not obliterated: workers are running jobs of it"):
            await queue.admin.obliterate()
        assert await queue.is_paused()
        assert await _is(queue, waits, "waiting")
        go_on.set()
        await job.result(timeout=10)
        assert await queue.admin.obliterate() == 2


async def test_while_outcomes_are_on_their_way_it_is_refused(queue: Queue, server: Server) -> None:
    await queue.add("enroll")
    server.cli("XADD", "emqx:{enrollments}:outbox", "*", "id", "7")
    with pytest.raises(StateError, match="outcomes of its jobs are still on their way to a results queue"):
        await queue.admin.obliterate()
    assert await queue.is_paused()
    assert await queue.admin.obliterate(force=True) == 1
    assert names(server) == set()


async def _is(queue: Queue, job: Job[Any], state: str) -> bool:
    found = await queue.get_job(job.id)
    return found is not None and found.state == state


async def test_what_a_worker_still_runs_has_no_end_and_brings_nothing_back(queue: Queue, server: Server) -> None:
    """One handler is cancelled and one does not hear of it; neither end finds its job."""
    began: set[str] = set()
    ended: list[str] = []
    go_on = asyncio.Event()

    async def handler(job: Job[Any]) -> str:
        began.add(job.name)
        try:
            if job.name == "deaf":
                await asyncio.shield(go_on.wait())
            else:
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            if job.name != "deaf":
                raise
            await go_on.wait()
        finally:
            ended.append(job.name)
        return "seat"

    await queue.add_bulk([JobSpec("deaf", attempts=3), JobSpec("hears"), JobSpec("waits")])
    async with Worker(queue, handler, concurrency=2, lock_duration=1, stalled_interval=0.5) as worker:
        await wait_until(lambda: began == {"deaf", "hears"})
        assert await queue.admin.obliterate(force=True) == 3
        await wait_until(lambda: ended == ["hears"])
        go_on.set()
        await wait_until(lambda: len(ended) == 2)
        await worker.close()
    assert names(server, BASE + "*") <= {BASE + "stalled-check"}  # which expires
    assert await queue.counts() == dict.fromkeys(await queue.counts(), 0)


async def test_cut_short_it_leaves_a_paused_queue_and_goes_on_when_called_again(queue: Queue, server: Server) -> None:
    await queue.add_bulk(JobSpec("enroll") for _ in range(2000))

    class Enough(Exception):
        pass

    def stop(done: int) -> None:
        if done >= 500:
            raise Enough

    with pytest.raises(Enough):
        await queue.admin.obliterate(on_progress=stop)
    assert await queue.is_paused()
    assert await queue.counts("waiting") == {"waiting": 1500}

    reached: list[int] = []
    call = asyncio.create_task(queue.admin.obliterate(on_progress=reached.append))
    await wait_until(lambda: reached)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    left = (await queue.counts("waiting"))["waiting"]
    assert left <= 1500 - reached[-1]
    assert await queue.admin.obliterate() == left
    assert names(server) == set()


async def test_what_is_added_meanwhile_goes_too(queue: Queue, url: str, server: Server) -> None:
    await queue.add_bulk(JobSpec("enroll") for _ in range(2000))
    stop = asyncio.Event()
    async with Queue("enrollments", connection=url) as theirs:

        async def produce() -> int:
            added = 0
            while not stop.is_set():
                await asyncio.gather(*(theirs.add("enroll", deduplication=f"d{added + n}") for n in range(20)))
                added += 20
            return added

        producer = asyncio.create_task(produce())
        gone = await queue.admin.obliterate()
        stop.set()
        added = await producer
    left = (await queue.counts("waiting"))["waiting"]
    assert gone + left == 2000 + added  # those that came after the last step
    jobs = {f"{BASE}{job.id}" async for job in queue.jobs("waiting")}
    assert len(jobs) == left
    assert {name for name in names(server, BASE + "*") if name.removeprefix(BASE).isdigit()} == jobs
    assert len(names(server, BASE + "de:*")) == left


async def test_two_at_once(queue: Queue, url: str, server: Server) -> None:
    await queue.add_bulk(JobSpec("enroll") for _ in range(2000))
    async with Queue("enrollments", connection=url) as other:
        assert sum(await asyncio.gather(queue.admin.obliterate(), other.admin.obliterate())) == 2000
    assert names(server) <= {"emqx:{enrollments}:calls"}  # the slower one's last step


async def test_whoever_resumes_meanwhile_keeps_the_rest(queue: Queue) -> None:
    await queue.add_bulk(JobSpec("enroll") for _ in range(2000))
    resumed: list[asyncio.Task[None]] = []

    def resume(done: int) -> None:
        if not resumed:
            resumed.append(asyncio.get_running_loop().create_task(queue.resume()))

    with pytest.raises(
        StateError, match=r"somebody has resumed it meanwhile, or uses it anew; \d+ of its jobs are gone"
    ):
        await queue.admin.obliterate(on_progress=resume)
    await asyncio.gather(*resumed)
    assert (await queue.counts("waiting"))["waiting"] >= 1000


# -- orphans -------------------------------------------------------------------------------------------------------------


async def test_orphans_are_removed_and_nothing_else(queue: Queue, url: str, server: Server) -> None:
    await fill(queue, url, server)
    kept = names(server)
    server.cli("SET", BASE + "held:lock", "token", "PX", "60000")
    server.cli("RPUSH", BASE + "held:logs", "somebody holds its lock")
    kept |= {BASE + "held:lock", BASE + "held:logs"}
    for n in range(300):
        server.cli("RPUSH", f"{BASE}gone{n}:logs", "x")
        server.cli("SADD", f"{BASE}gone{n}:dependencies", "x")
    server.cli("SET", BASE + "gone1:lock", "no expiry")
    server.cli("HSET", BASE + "repeat:daily:17:processed", "x", "y")
    seen: list[int] = []
    assert await queue.admin.remove_orphans(on_progress=seen.append) == 301
    assert seen == sorted(seen)
    assert seen[-1] == 301
    assert names(server) == kept


async def test_jobs_in_no_state_stay_for_healing_unless_it_is_asked_for_them(queue: Queue, server: Server) -> None:
    lost = [await queue.add("lost", {"n": n}) for n in range(3)]
    other = await queue.add("unique", deduplication="u")
    server.cli("DEL", BASE + "wait")
    server.cli("HSET", BASE + "broken", "name", "no more than that")
    assert await queue.admin.remove_orphans() == 0
    assert (await queue.admin.heal()).put_back == {"waiting": [other.id, *(job.id for job in reversed(lost))]}

    stays = await queue.add("enroll")
    server.cli("LREM", BASE + "wait", 0, lost[0].id)
    server.cli("LREM", BASE + "wait", 0, other.id)
    assert await queue.admin.remove_orphans(jobs=True) == 3
    assert await lost[0].refresh() is None
    assert not (await queue.add("unique", deduplication="u")).deduplicated
    assert await _is(queue, stays, "waiting")
    assert await _is(queue, lost[1], "waiting")
    assert names(server, BASE + "broken") == set()


async def test_a_schedule_whose_name_looks_like_what_belongs_to_a_run_stays(queue: Queue, server: Server) -> None:
    for schedule in ("a:17:failed", "b:17"):  # as only other programs have them
        server.cli("HSET", f"{BASE}repeat:{schedule}", "name", "tick", "every", "1000", "ic", "1")
        server.cli("ZADD", BASE + "repeat", "17", schedule)
    before = names(server)
    assert await queue.admin.remove_orphans(jobs=True) == 0
    assert names(server, BASE + "*") == before


async def test_queues_whose_prefix_begins_like_ours_are_not_ours(url: str, server: Server) -> None:
    async with (
        Queue("q", connection=url, prefix="bull") as ours,
        Queue("theirs", connection=url, prefix="bull:q", hash_tag=False) as theirs,
    ):
        await ours.add("enroll")
        job = await theirs.add("enroll", deduplication="d")
        server.cli("RPUSH", f"bull:q:theirs:{job.id}:logs", "x")
        server.cli("SET", f"bull:q:theirs:{job.id}:lock", "x")
        server.cli("RPUSH", "bull:q:theirs:gone:logs", "theirs to remove")
        before = names(server, "bull:q*:theirs:*")
        assert await ours.admin.remove_orphans(jobs=True) == 0
        assert await ours.admin.obliterate() == 1
        assert names(server) == before


# -- events --------------------------------------------------------------------------------------------------------------


async def test_the_event_log_is_cut_once(queue: Queue, server: Server) -> None:
    await queue.add_bulk(JobSpec("enroll") for _ in range(3000))
    assert server.cli("XLEN", BASE + "events") == 6000
    seen: list[int] = []
    removed = await queue.admin.trim_events(500, on_progress=seen.append)
    assert 500 <= server.cli("XLEN", BASE + "events") == 6000 - removed < 700
    assert len(seen) > 5
    assert await queue.admin.trim_events(0) == 6000 - removed


async def test_the_event_log_is_bounded(queue: Queue, server: Server) -> None:
    await queue.admin.limit_events(count=300, bytes=1_000_000)
    assert server.cli("HMGET", BASE + "meta", "opts.maxLenEvents", "maxEventBytes") == [b"300", b"1000000"]
    await queue.add_bulk(JobSpec("enroll") for _ in range(1000))
    assert server.cli("XLEN", BASE + "events") < 300 + 200
    await queue.admin.limit_events(bytes=0)
    assert server.cli("HMGET", BASE + "meta", "opts.maxLenEvents", "maxEventBytes") == [b"300", None]
    await queue.admin.limit_events(count=0)
    assert server.cli("HGET", BASE + "meta", "opts.maxLenEvents") is None


# -- progress ------------------------------------------------------------------------------------------------------------


async def test_every_verb_in_steps_tells_how_far_it_is(queue: Queue) -> None:
    seen: list[int] = []

    def told() -> tuple[bool, int, int]:
        """Whether the numbers only grew, how many calls there were, and the last number."""
        found = (seen == sorted(seen), len(seen), seen[-1])
        seen.clear()
        return found

    await fail(queue, *(JobSpec("enroll") for _ in range(600)), dead_letter=True)
    assert await queue.dead_letter.admin.clean("waiting", 0, limit=100, on_progress=seen.append)
    assert told() == (True, 1, 100)
    assert len(await queue.dead_letter.requeue(on_progress=seen.append)) == 500
    assert told() == (True, 5, 500)
    assert await queue.admin.drain(on_progress=seen.append) == 500
    assert told()[::2] == (True, 500)
    assert await queue.admin.retry_all(on_progress=seen.append) == 600
    assert told() == (True, 3, 600)
    assert await queue.admin.drain(on_progress=seen.append) == 600
    assert told()[::2] == (True, 600)
    await queue.add_bulk(JobSpec("enroll", delay=60) for _ in range(600))
    assert await queue.admin.promote_all(on_progress=seen.append) == 600
    assert told() == (True, 3, 600)
    assert (await queue.admin.heal(on_progress=seen.append)).looked_at == 600
    assert told()[::2] == (True, 600)
    assert len(await queue.admin.clean("waiting", 0, on_progress=seen.append)) == 600
    assert told()[::2] == (True, 600)


async def test_what_it_raises_ends_the_verb_after_that_step(queue: Queue) -> None:
    await queue.add_bulk(JobSpec("enroll", delay=60) for _ in range(600))

    def stop(done: int) -> None:
        raise RuntimeError(f"{done} are enough")

    with pytest.raises(RuntimeError, match="250 are enough"):
        await queue.admin.promote_all(on_progress=stop)
    assert await queue.counts("waiting", "delayed") == {"waiting": 250, "delayed": 350}


async def _in_vain(done: int) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda admin: admin.obliterate(force=1), r"force=1: must be True or False"),
        (lambda admin: admin.obliterate(on_progress=3), r"on_progress=3: must be a plain function"),
        (
            lambda admin: admin.drain(on_progress=_in_vain),
            r"on_progress=<function _in_vain.*: must be a plain function",
        ),
        (lambda admin: admin.remove_orphans(jobs="all"), r"jobs='all': must be True or False"),
        (lambda admin: admin.trim_events(-1), r"max_len=-1: must be a whole number of at least 0"),
        (lambda admin: admin.limit_events(), r"limit_events\(\) without a limit: give count, or bytes, or both"),
        (lambda admin: admin.limit_events(count=2.5), r"count=2.5: must be a whole number"),
        (lambda admin: admin.limit_events(bytes=-1), r"bytes=-1: must be a whole number"),
        (
            lambda admin: admin.clean("waiting-children", 0),
            r"state 'waiting-children': must be one of completed, failed",
        ),
    ],
)
async def test_an_argument_that_breaks_a_rule_is_named_with_its_value(
    queue: Queue, server: Server, call: Any, says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        await call(queue.admin)
    assert names(server) == set()
