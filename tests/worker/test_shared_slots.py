"""Slots that several queues share: by weight, by strict order; and what one queue does to another, which is nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from echomq import EchoMQ, InvalidOption, Job, JobSpec, Limiter, Queue, SharedSlots, Worker
from echomq._worker.slots import Pool, Share
from tests.support.server import Server
from tests.support.wait import wait_until


class Desk:
    """Handlers of several queues: which jobs have started, in which order."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.running = Counter[str]()
        self.most = 0

    async def __call__(self, job: Job[Any]) -> None:
        self.started.append(job.queue_name)
        self.running[job.queue_name] += 1
        self.most = max(self.most, self.running.total())
        try:
            await asyncio.sleep(job.data["seconds"])
        finally:
            self.running[job.queue_name] -= 1


class Rig:
    def __init__(self, url: str) -> None:
        self.url = url
        self.desk = Desk()
        self.stack = AsyncExitStack()
        self.queues: dict[str, Queue] = {}

    async def queue(self, name: str) -> Queue:
        if name not in self.queues:
            self.queues[name] = await self.stack.enter_async_context(Queue(name, connection=self.url))
        return self.queues[name]

    async def add(self, name: str, jobs: int, seconds: float) -> None:
        queue = await self.queue(name)
        await queue.add_bulk([JobSpec("work", {"seconds": seconds}) for _ in range(jobs)])

    async def work(self, slots: SharedSlots, *names: str, **options: Any) -> list[Worker]:
        workers = [Worker(name, self.desk, connection=self.url, slots=slots, **options) for name in names]
        for worker in workers:
            await self.stack.enter_async_context(worker)
        return workers

    def count(self, upto: int | None = None) -> Counter[str]:
        return Counter(self.desk.started[:upto])


@pytest.fixture
async def rig(server: Server) -> AsyncIterator[Rig]:
    made = Rig(server.url)
    async with made.stack:
        yield made


@pytest.mark.parametrize("size", [1, 4])
async def test_by_weight_each_has_its_share(rig: Rig, size: int) -> None:
    for name in ("high", "low"):
        await rig.add(name, 200, 0.004)
    await rig.work(SharedSlots(size, weights={"high": 3}), "high", "low")
    await wait_until(lambda: len(rig.desk.started) >= 160)
    found = rig.count(160)
    assert 100 <= found["high"] <= 140, found
    assert rig.desk.most <= size


async def test_it_is_the_time_that_is_shared(rig: Rig) -> None:
    await rig.add("short", 400, 0.005)
    await rig.add("long", 100, 0.05)
    await rig.work(SharedSlots(4), "short", "long")
    await wait_until(lambda: rig.count()["long"] >= 20)
    found = rig.count()
    assert found["short"] > 3 * found["long"], found


async def test_what_one_does_not_need_the_others_use(rig: Rig) -> None:
    await rig.add("low", 60, 0.01)
    await rig.work(SharedSlots(5, weights={"high": 100}), "high", "low")
    await wait_until(lambda: rig.desk.most == 5)
    await wait_until(lambda: len(rig.desk.started) == 60)


async def test_in_strict_order_the_first_comes_first(rig: Rig) -> None:
    for name in ("first", "second", "third"):
        await rig.add(name, 30, 0.003)
    await rig.work(SharedSlots(3, strict=("first", "second", "third")), "third", "second", "first")
    await wait_until(lambda: len(rig.desk.started) == 90)
    # Which worker connects first is chance; from then on the order holds.
    late = rig.desk.started[6:]
    assert late.index("third") > max(at for at, name in enumerate(late) if name == "first"), late
    assert rig.desk.most <= 3


async def test_the_first_gets_the_next_slot_though_all_were_taken_when_its_job_came(rig: Rig) -> None:
    await rig.add("second", 40, 0.05)
    await rig.work(SharedSlots(2, strict=("first", "second")), "first", "second")
    await wait_until(lambda: rig.desk.running["second"] == 2)
    for _ in range(5):
        seen = len(rig.desk.started)
        await rig.add("first", 1, 0)
        await wait_until(lambda: "first" in rig.desk.started[seen:])  # noqa: B023
        assert rig.desk.started[seen:].index("first") <= 4  # the marker, and a call that was under way
    assert rig.desk.most <= 2


async def test_another_worker_is_woken_where_all_slots_of_this_pool_are_taken(rig: Rig) -> None:
    await rig.add("second", 2, 30)
    await rig.work(SharedSlots(2, strict=("first", "second")), "first", "second", shutdown_timeout=0)
    await wait_until(lambda: rig.desk.running["second"] == 2)
    other = Desk()
    async with Worker("first", other, connection=rig.url) as idle:
        await idle.ready()
        for number in range(1, 5):
            await rig.add("first", 1, 0)
            await wait_until(lambda: len(other.started) == number, 2)  # noqa: B023


@pytest.mark.parametrize("how", ["paused", "worker paused", "limited", "empty"])
async def test_one_that_takes_nothing_keeps_nobody_waiting(rig: Rig, how: str) -> None:
    if how != "empty":
        await rig.add("first", 20, 0)
    if how == "paused":
        await (await rig.queue("first")).pause()
    limiter = {"limiter": Limiter(max=1, duration=60)} if how == "limited" else {}
    slots = SharedSlots(2, strict=("first", "second"))
    [first] = await rig.work(slots, "first", **limiter)
    if how == "worker paused":
        await first.pause()
    await rig.work(slots, "second")
    await rig.add("second", 40, 0.002)
    before = time.monotonic()
    await wait_until(lambda: rig.count()["second"] == 40)
    assert time.monotonic() - before < 3
    if how == "paused":
        await (await rig.queue("first")).resume()
        await wait_until(lambda: rig.count()["first"] == 20)


async def test_a_worker_that_stops_leaves_its_slots_to_the_others(rig: Rig) -> None:
    await rig.add("first", 2, 30)
    slots = SharedSlots(2, strict=("first", "second"))
    [first, _] = await rig.work(slots, "first", "second", shutdown_timeout=0)
    await wait_until(lambda: rig.desk.running["first"] == 2)
    await rig.add("second", 4, 0)
    await first.close()
    await wait_until(lambda: rig.count()["second"] == 4)


async def test_jobs_that_have_ended_keep_no_slots_while_their_server_is_away(
    rig: Rig, make_server: Callable[..., Server]
) -> None:
    elsewhere, slots = make_server(), SharedSlots(10)
    async with Queue("away", connection=elsewhere.url) as queue:
        await queue.add_bulk([JobSpec("work", {"seconds": 1 + number / 10}) for number in range(10)])
        worker = Worker("away", rig.desk, connection=elsewhere.url, slots=slots)
        async with worker:
            await wait_until(lambda: rig.desk.running["away"] == 10)
            await rig.work(slots, "here", shutdown_timeout=0)
            elsewhere.pause()
            await wait_until(lambda: rig.desk.running["away"] == 0)
            await rig.add("here", 10, 30)
            # A fetch of one or two is under way there, and may bring jobs.
            await wait_until(lambda: rig.desk.running["here"] >= 6, 3)
            assert rig.desk.most <= 10
            elsewhere.resume()
            await wait_until(lambda: rig.desk.running["here"] == 10)


async def test_each_of_them_ends_when_its_queue_is_drained(rig: Rig, server: Server) -> None:
    for name in ("first", "second"):
        await rig.add(name, 20, 0.001)
    slots = SharedSlots(2, strict=("first", "second"))
    workers = [Worker(name, rig.desk, connection=server.url, slots=slots) for name in ("first", "second")]
    async with asyncio.timeout(10):
        await asyncio.gather(*(worker.run_until_drained() for worker in workers))
    assert rig.count() == {"first": 20, "second": 20}


async def test_an_app_shares_its_slots(rig: Rig, server: Server) -> None:
    app = EchoMQ(server.url)
    seen: list[str] = []

    @app.task(queue="high")
    async def quick(number: int) -> None:
        seen.append("high")

    @app.task(queue="low")
    async def slow(number: int) -> None:
        seen.append("low")

    for number in range(10):
        await quick.enqueue(number)
        await slow.enqueue(number)
    working = asyncio.create_task(app.work("high", "low", concurrency=1, strict=True))
    await wait_until(lambda: len(seen) == 20)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert seen[2:10] == ["high"] * 8
    await app.close()


async def test_work_refuses_what_makes_no_sense(server: Server) -> None:
    app = EchoMQ(server.url)

    @app.task(queue="high")
    async def quick() -> None: ...

    for options, said in (
        ({"weights": {"hgih": 3}}, "'hgih' is none of the queues: 'high'"),
        ({"strict": True}, "name the queues"),
        ({"weights": {"high": 0}}, "weight of 'high'"),
    ):
        with pytest.raises(InvalidOption, match=said):
            await app.work(**options)
    with pytest.raises(InvalidOption, match=r"^weights=\{'high': 1\}, strict=True: give one of them"):
        await app.work("high", weights={"high": 1}, strict=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SharedSlots(0), "size"),
        (lambda: SharedSlots(5, weights=["high"]), "must be a mapping"),  # type: ignore[arg-type]
        (lambda: SharedSlots(5, weights={"high": 1.5}), "weight of 'high'"),  # type: ignore[dict-item]
        (lambda: SharedSlots(5, strict="high"), "must be the names"),
        (lambda: SharedSlots(5, strict=["high", "high"]), "name each queue once"),
        (lambda: Worker("q", print, slots=SharedSlots(5, strict=["high"])), "has no place for the queue 'q'"),
        (lambda: Worker("q", print, slots=SharedSlots(5), concurrency=3), "leave it out with slots"),
        (lambda: Worker("q", print, slots=5), "must be SharedSlots"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options(make: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOMQ_URL", "redis://nowhere")
    with pytest.raises(InvalidOption, match=said):
        make()


class Member:
    def __init__(self, pool: Pool, queue: str) -> None:
        self.held = 0
        self.hungry = True
        self.since: float | None = None
        self.woken = 0
        self.share: Share = pool.join(queue, lambda: self.held, lambda: self.hungry, lambda: self.since, self.wake)

    def wake(self) -> None:
        self.woken += 1

    def take(self, wanted: int) -> int:
        granted = self.share.grant(wanted)
        self.held += granted
        return granted


async def test_free_slots_are_dealt_by_weight_and_kept_for_who_wants_them() -> None:
    pool = Pool(8, {"high": 3}, None)
    high, low = Member(pool, "high"), Member(pool, "low")
    assert low.take(8) == 2
    assert high.take(8) == 6
    assert low.take(1) == 0
    high.held = 0
    high.hungry = False
    assert low.take(8) == 6


async def test_who_does_not_answer_is_not_waited_for() -> None:
    pool = Pool(2, {}, ("first", "second"))
    first, second = Member(pool, "first"), Member(pool, "second")
    first.since = pool.now()
    assert second.take(1) == 0
    await wait_until(lambda: second.woken > 0)
    assert second.take(1) == 1


async def test_nobody_is_paid_back_for_a_time_without_work() -> None:
    pool = Pool(4, {}, None)
    busy, idle = Member(pool, "busy"), Member(pool, "idle")
    busy.share.served = 1000.0
    idle.hungry = False
    busy.take(2)
    idle.hungry = True
    busy.held = idle.held = 0
    taken = Counter[str]()
    for _ in range(40):
        for name, one in (("busy", busy), ("idle", idle)):
            one.held = 0
            taken[name] += one.take(2)
            one.held = 0
    assert taken["busy"] > 20
