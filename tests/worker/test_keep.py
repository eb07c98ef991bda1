"""The table of what is held, and the heartbeat's beats; without its thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from echomq import Job, Queue, Worker
from echomq._store.keys import QueueKeys
from echomq._worker.held import Held, HeldTable, Hold
from echomq._worker.keep import Keeper
from echomq.errors import ConnectionLost, ServerError
from tests.support.server import Server
from tests.support.wait import wait_until
from tests.worker.pieces import held

LOCK = 10.0


class FakeLink:
    """Answers as the server would: with ids that are lost, or with an error."""

    def __init__(self) -> None:
        self.lost: list[bytes] = []
        self.error: Exception | None = None
        self.asked: list[list[Any]] = []
        self.closed = threading.Event()
        self.before_answer: Callable[[], None] = lambda: None

    def call(self, *args: Any, timeout: float) -> Any:
        self.asked.append(list(args))
        self.before_answer()
        if self.error is not None:
            raise self.error
        return self.lost

    def close(self) -> None:
        self.closed.set()


class Kept:
    def __init__(self, lock_duration: float = LOCK) -> None:
        self.link = FakeLink()
        self.table = HeldTable()
        self.told: list[tuple[str, bool]] = []
        self.keeper = Keeper(
            self.link,  # type: ignore[arg-type]
            QueueKeys.of("q"),
            self.table,
            lock_duration,
            lambda one, certain: self.told.append((one.job.id, certain)),
        )
        self.keeper._loop = asyncio.get_running_loop()

    async def beat(self) -> list[tuple[str, bool]]:
        """One beat in this thread; gives what the event loop is told."""
        self.told.clear()
        self.keeper.tick()
        await asyncio.sleep(0)
        return list(self.told)


@pytest.fixture
async def kept() -> Kept:
    return Kept()


def test_the_table_keeps_the_order_and_tells_of_former_runs() -> None:
    table = HeldTable()
    first, second, again = held("1"), held("2"), held("1", token="lane:2")
    assert table.add([first, second]) == []
    assert table.add([again]) == [first]
    assert table.all() == [second, again]
    table.drop(first)  # a former run's late end
    assert table.all() == [second, again]
    table.drop(again)
    table.drop(again)
    assert table.all() == [second]


@pytest.mark.parametrize(
    ("before", "told", "after"),
    [
        (Hold.RUNNING, Hold.STOPPED, Hold.STOPPED),
        (Hold.RUNNING, Hold.LOST, Hold.LOST),
        (Hold.STOPPED, Hold.LOST, Hold.LOST),
        (Hold.LOST, Hold.STOPPED, Hold.LOST),
    ],
)
def test_what_a_stop_makes_of_a_hold(before: Hold, told: Hold, after: Hold) -> None:
    one = held()
    one.hold, one.cancelled = before, threading.Event()
    one.stop("because", told)
    assert one.hold is after
    assert one.cancelled.is_set()


async def test_a_beat_renews_all_in_one_call(kept: Kept) -> None:
    old = [held(str(number), age=5) for number in range(3)]
    kept.table.add(old)
    before = old[0].renewed_at
    assert await kept.beat() == []
    assert len(kept.link.asked) == 1
    assert all(one.renewed_at > before for one in old)


async def test_an_empty_table_asks_nothing(kept: Kept) -> None:
    await kept.beat()
    assert not kept.link.asked


async def test_what_the_server_calls_lost_is_told(kept: Kept) -> None:
    kept.table.add([held("1"), held("2")])
    kept.link.lost = [b"2"]
    assert await kept.beat() == [("2", True)]


async def test_an_outcome_under_way_is_renewed_and_never_called_lost(kept: Kept) -> None:
    ended = held("1")
    ended.hold = Hold.ENDED
    kept.table.add([ended])
    kept.link.lost = [b"1"]
    assert await kept.beat() == []
    assert kept.link.asked


async def test_what_ends_while_the_call_is_under_way_is_not_called_lost(kept: Kept) -> None:
    one = held("1")
    kept.table.add([one])
    kept.link.lost = [b"1"]
    kept.link.before_answer = lambda: setattr(one, "hold", Hold.ENDED)
    assert await kept.beat() == []


async def test_what_is_lost_is_not_renewed(kept: Kept) -> None:
    lost = held("1")
    lost.hold = Hold.LOST
    kept.table.add([lost])
    await kept.beat()
    assert not kept.link.asked


async def test_an_error_alone_is_no_loss_before_the_lock_may_expire(kept: Kept) -> None:
    kept.table.add([held("young", age=LOCK / 2), held("old", age=LOCK)])
    kept.link.error = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        await kept.beat()
    kept.keeper._expire()
    await asyncio.sleep(0)
    assert kept.told == [("old", False)]


async def test_the_thread_outlives_trouble_and_stops_when_told() -> None:
    kept = Kept(lock_duration=0.2)
    kept.table.add([held("1")])
    kept.keeper.start()
    await wait_until(lambda: kept.link.asked)
    kept.link.error = ConnectionLost("cut")
    await wait_until(lambda: ("1", False) in kept.told)
    kept.link.error = RuntimeError("a fault of ours")
    asked = len(kept.link.asked)
    await wait_until(lambda: len(kept.link.asked) > asked + 2)
    kept.link.error = None
    one: Held = kept.table.all()[0]
    before = one.renewed_at
    await wait_until(lambda: one.renewed_at > before)
    await kept.keeper.stop()
    assert kept.link.closed.is_set()
    thread = kept.keeper._thread
    assert thread is not None
    await wait_until(lambda: not thread.is_alive())


@pytest.mark.parametrize("error", [ServerError("BROKEN", code="BROKEN"), ConnectionLost("cut")])
async def test_what_goes_on_for_long_is_said_once(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(lock_duration=0.2)
    kept.table.add([held("1")])
    kept.link.error = error
    with caplog.at_level(logging.WARNING, "echomq"):
        kept.keeper.start()
        await wait_until(lambda: len(kept.link.asked) > 5)
        await kept.keeper.stop()
    [said] = [record.message for record in caplog.records if "cannot be renewed" in record.message]
    assert said.startswith("locks of q cannot be renewed")
    assert str(error) in said


async def test_a_silent_loop_is_named_once_with_its_job_and_place(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(lock_duration=0.2)
    kept.table.add([held("7")])
    kept.keeper.start()
    with caplog.at_level(logging.ERROR, "echomq"):
        time.sleep(1.0)
        silent = kept.keeper.loop_silent_for
    assert silent > 0.5
    named = [record for record in caplog.records if "has not answered" in record.message]
    assert len(named) == 1
    assert "the first is 7 (work)" in named[0].message
    assert "time.sleep(1.0)" in named[0].message
    await wait_until(lambda: kept.keeper.loop_silent_for < 0.2)
    await kept.keeper.stop()


async def test_a_server_that_does_not_answer_is_not_blamed_on_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(lock_duration=1.0)
    kept.table.add([held("7")])
    kept.link.before_answer = lambda: time.sleep(1.5)  # in the heartbeat's own thread
    silent: list[float] = []

    async def look() -> bool:
        silent.append(kept.keeper.loop_silent_for)
        return len(kept.link.asked) == 3

    kept.keeper.start()
    with caplog.at_level(logging.WARNING, "echomq"):
        await wait_until(look)
        kept.link.before_answer = lambda: None
        await kept.keeper.stop()
    assert "has not answered" not in caplog.text
    assert max(silent) < 1.0


async def test_a_frozen_process_is_not_blamed_on_the_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(lock_duration=0.2)
    kept.keeper._look_at_loop()  # it cannot answer: this test does not let it

    def freeze(timeout: float) -> bool:
        time.sleep(0.5)
        return False

    monkeypatch.setattr(kept.keeper._stop, "wait", freeze)
    assert not kept.keeper._wait(0.05)
    [said] = caplog.records
    assert said.getMessage().startswith("this process has not run for ")


async def test_the_lag_of_the_loop_is_measured_while_it_lasts_and_remembered(kept: Kept) -> None:
    kept = Kept(lock_duration=0.2)
    kept.keeper.start()
    assert kept.keeper.loop_lag < 0.5
    time.sleep(0.7)
    assert kept.keeper.loop_lag > 0.5
    await wait_until(lambda: kept.keeper.loop_silent_for < 0.2)
    assert 0.5 < kept.keeper.loop_lag < 5
    for _ in range(60):
        kept.keeper._loop_answers()  # nothing was asked
    assert kept.keeper.loop_lag > 0.5
    for _ in range(60):
        kept.keeper._look_at_loop()
        await asyncio.sleep(0)
    assert kept.keeper.loop_lag < 0.5
    await kept.keeper.stop()


async def test_63_a_lock_is_renewed_in_each_quarter_of_its_time(url: str, server: Server) -> None:
    go_on = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        await go_on.wait()

    left: list[int] = []  # of the lock's time, milliseconds

    async def look() -> bool:
        left.append(server.cli("PTTL", "emq:{q}:1:lock"))
        return sum(later > sooner for sooner, later in pairwise(left)) >= 8

    async with Queue("q", connection=url) as queue, Worker("q", process, connection=url, lock_duration=0.4):
        await queue.add("paint")
        await wait_until(lambda: server.cli("EXISTS", "emq:{q}:1:lock") == 1)
        await wait_until(look)
        go_on.set()
    assert min(left) > 0
    assert 200 < median(sooner for sooner, later in pairwise(left) if later > sooner) < 400
