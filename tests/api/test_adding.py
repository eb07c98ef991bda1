"""Unique jobs, jobs that expire, and queues that may be full, as a program meets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from echomq import (
    BrokenKey,
    BulkAddError,
    Deduplication,
    EchoMQ,
    InvalidOption,
    Job,
    JobSpec,
    Queue,
    QueueFull,
    Worker,
)
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    async with Queue("reports", connection=url) as queue:
        yield queue


# -- which add adds --------------------------------------------------------------------------------------------------------


async def test_the_second_add_of_an_id_gives_the_job_that_holds_it(queue: Queue) -> None:
    first = await queue.add("report", {"n": 1}, deduplication="daily", priority=3)
    second = await queue.add("report", {"n": 2}, deduplication="daily")
    assert (first.deduplicated, first.duplicate, first.deduplication_id) == (False, False, "daily")
    assert (second.deduplicated, second.duplicate, second.deduplication_id) == (True, False, "daily")
    assert (second.id, second.data, second.state, second.priority) == (first.id, {"n": 1}, "prioritized", 3)
    assert await queue.counts("waiting", "prioritized") == {"waiting": 0, "prioritized": 1}


async def test_the_id_is_free_when_the_job_has_ended(queue: Queue) -> None:
    first = await queue.add("report", deduplication="daily")
    await Worker(queue, lambda job: None).run_until_drained()
    second = await queue.add("report", deduplication="daily")
    assert not second.deduplicated
    assert second.id != first.id


async def test_the_id_is_free_when_the_job_was_removed(queue: Queue) -> None:
    await (await queue.add("report", deduplication="daily")).remove()
    assert not (await queue.add("report", deduplication="daily")).deduplicated


async def test_throttle_holds_the_id_for_its_time_whatever_becomes_of_the_job(queue: Queue) -> None:
    policy = Deduplication.throttle("daily", 0.3)
    await queue.add("report", deduplication=policy)
    await Worker(queue, lambda job: None).run_until_drained()
    assert (await queue.add("report", deduplication=policy)).deduplicated

    async def is_free() -> bool:
        return not (await queue.add("report", deduplication=policy)).deduplicated

    await wait_until(is_free)


async def test_debounce_runs_the_last_one_when_none_has_come_for_a_while(queue: Queue) -> None:
    ran: list[Any] = []
    for number in range(5):
        job = await queue.add("report", {"n": number}, deduplication=Deduplication.debounce("daily", 0.2))
        assert (job.state, job.delay, job.deduplicated) == ("delayed", 0.2, False)
    assert await queue.counts("delayed") == {"delayed": 1}
    async with Worker(queue, lambda job: ran.append(job.data["n"])):
        await wait_until(lambda: ran)
    assert ran == [4]


async def test_debounce_may_have_a_delay_of_its_own(queue: Queue) -> None:
    policy = Deduplication.debounce("daily", 60)
    assert (await queue.add("report", deduplication=policy, delay=5)).delay == 5
    at = datetime.now(UTC) + timedelta(seconds=30)
    assert 20 < (await queue.add("report", deduplication=policy, at=at)).delay <= 30


async def test_reschedule_moves_the_job_that_is_there(queue: Queue) -> None:
    policy = Deduplication("daily", reschedule=True)
    first = await queue.add("report", {"n": 1}, deduplication=policy, delay=600)
    moved = await queue.add("report", {"n": 2}, deduplication=policy, delay=0.1)
    assert (moved.id, moved.deduplicated, moved.delay, moved.data) == (first.id, True, 0.1, {"n": 1})


async def test_the_same_arguments_are_the_same_job(queue: Queue) -> None:
    def add(name: str = "enroll", **data: Any) -> Any:
        return queue.add(name, data, unique_by=["learner", "course"])

    first = await add(learner=7, course="redis", note="a")
    assert (await add(note="b", course="redis", learner=7)).id == first.id
    others = [
        await add(learner=8, course="redis"),
        await add(learner=7, course="lua"),
        await add("leave", learner=7, course="redis"),
    ]
    assert not any(job.deduplicated for job in others)
    assert (first.deduplication_id or "").startswith("enroll:")


async def test_unique_by_looks_at_what_is_written_whatever_made_it(queue: Queue) -> None:
    @dataclass
    class Enrolment:
        learner: int
        since: datetime
        tags: dict[str, int]

    now = datetime.now(UTC)
    first = await queue.add("enroll", Enrolment(7, now, {"a": 1, "b": 2}), unique_by=("since", "tags"))
    again = await queue.add("enroll", {"tags": {"b": 2, "a": 1}, "since": now}, unique_by=("tags", "since"))
    assert again.id == first.id


async def test_unique_by_with_a_kind(queue: Queue) -> None:
    policy = Deduplication.debounce(None, 60)
    for number in range(3):
        job = await queue.add("index", {"page": 1, "n": number}, unique_by=["page"], deduplication=policy)
        assert not job.deduplicated
    assert await queue.counts("delayed") == {"delayed": 1}
    assert job.opts.deduplication == Deduplication(job.deduplication_id, 60, extend=True, replace=True)


async def test_many_at_once_are_as_if_they_came_one_by_one(queue: Queue) -> None:
    jobs = await queue.add_bulk(JobSpec("report", {"n": n}, deduplication=f"r{n % 10}") for n in range(600))
    assert [job.deduplicated for job in jobs] == [False] * 10 + [True] * 590
    assert [job.data["n"] for job in jobs] == [n % 10 for n in range(600)]
    assert await queue.counts("waiting") == {"waiting": 10}


async def test_fifty_callers_at_once_add_one_job(queue: Queue) -> None:
    jobs = await asyncio.gather(*(queue.add("report", {"n": n}, deduplication="daily") for n in range(50)))
    assert len({job.id for job in jobs}) == 1
    assert sum(not job.deduplicated for job in jobs) == 1


async def test_the_options_come_back(queue: Queue) -> None:
    policy = Deduplication("daily", timedelta(minutes=1), extend=True)
    job = await queue.add("report", deduplication=policy, expire_in=30)
    read = await queue.get_job(job.id)
    assert read is not None
    for one in (job, read):
        assert one.opts.deduplication == policy == Deduplication("daily", 60.0, extend=True)
        assert one.opts.expire_in == 30.0
        assert one.opts.others == {}
        assert one.deduplication_id == "daily"


# -- run once more with the latest (faults 68) -----------------------------------------------------------------------------


async def test_what_is_added_while_the_job_runs_is_seen_by_a_run(queue: Queue) -> None:
    """At whatever stage the last add comes, a run that begins after it sees what it brought."""
    ran: list[int] = []
    last = 0
    gate = asyncio.Event()

    async def index(job: Job[Any]) -> None:
        ran.append(job.data["n"])
        await gate.wait()

    async def add() -> Job[Any]:
        nonlocal last
        last += 1
        return await queue.add("index", {"n": last}, deduplication=Deduplication.latest("page-1"))

    async with Worker(queue, index, concurrency=4):
        for _ in range(5):
            gate.clear()
            first = await add()
            await wait_until(lambda: last in ran)
            kept = [await add() for _ in range(3)]
            assert all(job.id == first.id and job.deduplicated for job in kept)
            gate.set()
            await wait_until(lambda: last in ran)
            await wait_until(lambda: queue_is_empty(queue))
    assert ran == [n for group in range(5) for n in (4 * group + 1, 4 * group + 4)]


async def queue_is_empty(queue: Queue) -> bool:
    counts = await queue.counts("waiting", "active", "delayed")
    return not any(counts.values())


# -- ids that are held by nobody (faults 70, 71) ---------------------------------------------------------------------------


async def test_an_id_whose_job_is_gone_is_free(queue: Queue, server: Server) -> None:
    job = await queue.add("report", deduplication="daily")
    server.cli("DEL", f"emq:{{reports}}:{job.id}")  # as the eviction of a key does
    again = await queue.add("report", deduplication="daily")
    assert not again.deduplicated
    server.cli("LREM", "emq:{reports}:wait", 0, job.id)
    with server.client() as client:
        assert audit(client, "emq", "reports") == []


async def test_an_id_can_be_freed(queue: Queue) -> None:
    first = await queue.add("report", deduplication=Deduplication.throttle("daily", 3600))
    assert await queue.remove_deduplication("daily")
    assert not await queue.remove_deduplication("daily")
    second = await queue.add("report", deduplication=Deduplication.throttle("daily", 3600))
    assert not await first.remove_deduplication()  # it is no longer the holder
    assert await second.remove_deduplication()
    assert not await (await queue.add("plain")).remove_deduplication()
    assert await queue.counts("waiting") == {"waiting": 3}


async def test_a_broken_key_refuses_its_own_add_and_can_be_mended(queue: Queue, server: Server) -> None:
    server.cli("RPUSH", "emq:{reports}:de:daily", "x")
    adds = [queue.add("report", deduplication="daily"), queue.add("plain"), queue.add("report", deduplication="other")]
    broken, plain, other = await asyncio.gather(*adds, return_exceptions=True)
    assert isinstance(broken, BrokenKey)
    assert "emq:{reports}:de:daily must be a string" in str(broken)
    assert isinstance(plain, Job)
    assert isinstance(other, Job)
    assert await queue.counts("waiting") == {"waiting": 2}
    with pytest.raises(BulkAddError) as caught:
        await queue.add_bulk([JobSpec("a"), JobSpec("b", deduplication="daily")])
    assert caught.value.not_added == [0, 1]
    assert await queue.remove_deduplication("daily")
    assert not (await queue.add("report", deduplication="daily")).deduplicated


# -- tasks -----------------------------------------------------------------------------------------------------------------


async def test_tasks_take_the_same_options(url: str) -> None:
    app = EchoMQ(url)

    @app.task(queue="school", unique_by=["learner", "course"], expire_in=60)
    def enroll(learner: int, course: str = "redis", note: str = "") -> str:
        return f"{learner} in {course}"

    @app.task(queue="school", deduplication="tidy")
    def tidy() -> None: ...

    async with app:
        first = await enroll.enqueue(7)
        again = await enroll.enqueue(7, course="redis", note="left out is the default")
        assert (again.id, again.deduplicated, first.deduplicated) == (first.id, True, False)
        assert first.opts.expire_in == 60
        assert not (await enroll.enqueue(7, "lua")).deduplicated
        assert (await tidy.enqueue()).id == (await tidy.enqueue()).id
        other = await tidy.options(deduplication=Deduplication.throttle("else", 5)).enqueue()
        assert not other.deduplicated
        async with app.worker("school"):
            assert await again.result(timeout=10) == "7 in redis"


def test_a_task_that_names_what_it_does_not_take_is_refused_where_it_is_written() -> None:
    app = EchoMQ("redis://localhost")
    with pytest.raises(
        InvalidOption, match="task 'enroll': unique_by names 'pupil', which is no argument of its function"
    ):

        @app.task(unique_by=["pupil"])
        def enroll(learner: int) -> None: ...


# -- a queue that may be full ----------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses(url: str) -> None:
    async with Queue("reports", connection=url, max_size=2) as queue:
        await queue.add("a")
        await queue.add("b", delay=60)
        with pytest.raises(
            QueueFull, match="queue 'reports' is full: 2 jobs wait in it, and max_size is 2; not added"
        ) as caught:
            await queue.add("c")
        assert (caught.value.size, caught.value.max_size) == (2, 2)
        await Worker(queue, lambda job: None).run_until_drained()
        await queue.add("c")
        assert await queue.counts("waiting", "delayed") == {"waiting": 1, "delayed": 1}


async def test_a_bulk_add_stops_where_the_queue_is_full(url: str) -> None:
    async with Queue("reports", connection=url, max_size=300) as queue:
        with pytest.raises(BulkAddError, match=r"300 of 600 jobs were added, then: queue 'reports' is full") as caught:
            await queue.add_bulk(JobSpec("a") for _ in range(600))
        assert len(caught.value.added) == 300
        assert caught.value.not_added == list(range(300, 600))
        assert caught.value.unknown == []
        assert isinstance(caught.value.__cause__, QueueFull)
        assert await queue.counts("waiting") == {"waiting": 300}


async def test_an_app_bounds_its_queues(url: str) -> None:
    app = EchoMQ(url)

    @app.task(queue="school")
    def enroll(learner: int) -> None: ...

    async with app:
        await enroll.enqueue(1)
        queue = app.queue("school", max_size=2)
        assert app.queue("school") is queue is app.queue("school", max_size=2)
        with pytest.raises(InvalidOption, match=r"max_size=3: queue 'school' of this app has max_size=2"):
            app.queue("school", max_size=3)
        with pytest.raises(InvalidOption, match=r"max_size=True: must be a whole number of at least 1"):
            app.queue("school", max_size=True)
        await enroll.enqueue(2)
        with pytest.raises(QueueFull):
            await enroll.enqueue(3)
        await app.close()
        with pytest.raises(QueueFull):  # what was said holds when the app is used again
            await enroll.enqueue(3)


async def test_exactly_so_many_whoever_adds(url: str) -> None:
    queues = [Queue("reports", connection=url, max_size=40) for _ in range(5)]

    async def add(number: int) -> bool:
        try:
            await queues[number % 5].add("a", delay=number % 3, priority=number % 2)
        except QueueFull:
            return False
        return True

    taken = await asyncio.gather(*(add(number) for number in range(50)))
    assert sum(taken) == 40
    counts = await queues[0].counts("waiting", "prioritized", "delayed")
    assert sum(counts.values()) == 40
    for queue in queues:
        await queue.close()


# -- what is refused -------------------------------------------------------------------------------------------------------


kind: Any = Deduplication  # what no type checker would let through
spec: Any = JobSpec


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Deduplication(""), "deduplication id '': must be a text that is not empty"),
        (lambda: Deduplication("x" * 1001), "has 1001 characters, and at most 1000 are allowed; use a shorter one"),
        (lambda: Deduplication("\ud800"), r"deduplication id '\ud800': holds a lone surrogate"),
        (lambda: kind(7), "deduplication id 7: must be a text"),
        (lambda: Deduplication.throttle("a", 0), "deduplication ttl=0: must be from 0.001"),
        (lambda: Deduplication.throttle("a", float("nan")), "deduplication ttl=nan: is not finite"),
        (lambda: Deduplication("a", extend=True), "extend=True: means that each add begins ttl anew; give ttl too"),
        (lambda: kind("a", extend=1), "deduplication extend=1: must be True or False"),
        (lambda: Deduplication("a", 5, keep_last_if_active=True), "so a ttl would mean nothing; leave one of them out"),
        (lambda: Deduplication("a", extend=True, keep_last_if_active=True), "there is no ttl to extend; leave extend out"),
        (lambda: Deduplication("a", replace=True, reschedule=True), "cannot be moved too; give one of them"),
        (lambda: JobSpec("a", deduplication=""), "deduplication id ''"),
        (lambda: spec("a", deduplication=5), "deduplication=5: must be an id, or a Deduplication"),
        (lambda: spec("a", deduplication={"id": "x"}), "must be an id, or a Deduplication"),
        (lambda: JobSpec("a", deduplication=Deduplication()), "has no id: give it one, or say with unique_by"),
        (lambda: JobSpec("a", deduplication="x", unique_by=["a"]), "give one of them; with unique_by a Deduplication has no id"),
        (lambda: JobSpec("a", unique_by="learner"), "unique_by='learner': must be a list of names of keys of data"),
        (lambda: JobSpec("a", unique_by=[]), "unique_by=[]: must be a list of names"),
        (lambda: spec("a", unique_by=[1]), "unique_by=[1]: must be a list of names"),
        (lambda: JobSpec("a", at=datetime(2030, 1, 1, tzinfo=UTC), deduplication=Deduplication.latest("x")),
         "cannot keep a moment"),
        (lambda: JobSpec("a", expire_in=0), "expire_in=0: must be from 0.001"),
        (lambda: spec("a", expire_in="5"), "expire_in='5': must be seconds"),
        (lambda: Queue("q", connection="redis://localhost", max_size=0), "max_size=0: must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        make()
    assert any(part in str(caught.value) for part in says.replace(r"\[", "[").replace(r"\]", "]").split("|")), (
        caught.value
    )


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"course": 1}, "unique_by=['learner']: data has no key 'learner' (it has: 'course'); add it"),
        ({}, "data has no key 'learner' (it has: none)"),
        ([7], "names keys of data, and data is [7]; make it an object"),
        (None, "names keys of data, and data is None; make it an object"),
    ],
)
async def test_data_that_lack_what_makes_them_unique(queue: Queue, data: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        await queue.add("enroll", data, unique_by=["learner"])
    assert says in str(caught.value)
    with pytest.raises(InvalidOption):
        await queue.add_bulk([JobSpec("fine"), JobSpec("enroll", data, unique_by=["learner"])])
    assert await queue.counts("waiting") == {"waiting": 0}


@pytest.mark.parametrize("beside", [{"data": {}}, {"delay": 50}, {"priority": 5, "job_id": "me"}, {"lifo": True}])
async def test_a_spec_has_nothing_beside_it(queue: Queue, beside: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="a JobSpec has its data and its options already"):
        await queue.add(JobSpec("enroll"), **beside)
    assert await queue.counts("waiting", "delayed") == {"waiting": 0, "delayed": 0}


async def test_a_deduplication_with_an_id_of_ones_own(queue: Queue) -> None:
    job = await queue.add("report", job_id="report-7", deduplication="daily")
    again = await queue.add("report", job_id="report-8", deduplication="daily")
    assert (again.id, again.deduplicated, again.duplicate) == (job.id, True, False)
    twin = await queue.add("report", job_id="report-7", deduplication="weekly")
    assert (twin.deduplicated, twin.duplicate) == (False, True)


async def test_what_other_programs_wrote_is_shown_as_far_as_it_has_a_form(queue: Queue, server: Server) -> None:
    job = await queue.add("report")
    for stored, policy in [
        ('{"de":{"id":"D","ttl":1500,"replace":true}}', Deduplication("D", 1.5, replace=True)),
        ('{"de":{"id":"D","ttl":5,"keepLastIfActive":true}}', None),
        ('{"de":{"id":7}}', None),
        ('{"de":5}', None),
    ]:
        server.cli("HSET", f"emq:{{reports}}:{job.id}", "opts", stored)
        read = await job.refresh()
        assert read is not None
        assert read.opts.deduplication == policy
        assert ("de" in read.opts.others) == (policy is None)


async def test_options_that_were_read_are_the_readers_own(queue: Queue, server: Server) -> None:
    job = await queue.add("report")
    server.cli("HSET", f"emq:{{reports}}:{job.id}", "opts", '{"attempts":0,"repeat":{"every":1000}}')
    for _ in range(2):
        read = await job.refresh()
        assert read is not None
        repeat: Any = read.opts.others["repeat"]
        assert repeat == {"every": 1000}
        repeat["every"] = 5
