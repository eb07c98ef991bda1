"""What becomes of a call that advances a schedule when the run that made it is cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from echomq._store.call import Lane, Patience
from echomq._store.codec import StoredJob
from echomq._store.schedule import Schedules
from echomq.errors import ServerUnavailable

RUN = [
    b"rjk", b"s", b"name", b"tick", b"processedOn", b"1764400000000", b"opts",
    b'{"repeat":{"every":1000,"count":1},"prevMillis":1764400000000}',
]  # fmt: skip


class SilentLane:
    """Each call waits, and fails when the test says so."""

    def __init__(self) -> None:
        self.called, self.fails, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def call(self, name: str, args: Any, patience: Patience) -> Any:
        self.called.set()
        try:
            await self.fails.wait()
            raise ServerUnavailable("the link was closed")
        finally:
            self.ended.set()


async def started(lane: SilentLane) -> asyncio.Task[float | None]:
    job = StoredJob.from_reply(b"repeat:s:1764400000000", RUN)
    run = asyncio.create_task(Schedules(cast(Lane, lane)).advance(job, Patience(1)))
    await lane.called.wait()
    return run


async def test_a_call_that_fails_after_its_run_was_cancelled_is_no_error_of_the_loop() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    lane = SilentLane()
    run = await started(lane)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not lane.ended.is_set(), "the call goes on"
    lane.fails.set()
    await lane.ended.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    del run
    gc.collect()
    assert said == []


async def test_a_run_that_waits_for_it_hears_why_it_failed() -> None:
    lane = SilentLane()
    run = await started(lane)
    lane.fails.set()
    with pytest.raises(ServerUnavailable, match="the link was closed"):
        await run
