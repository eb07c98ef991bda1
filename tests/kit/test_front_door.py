"""What an app has around its tasks holds in tests as in production: middleware, injection, codecs, cancelling, processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from echomq import CallNext, EchoMQ, Inject, Job, JobCancelled, JobSpec, Middleware, RunOutcome
from echomq.payloads import Encrypted
from echomq.testing import Inline, Kit, Server, inline, on_server

heard: list[str] = []


class Store:
    """Something that a task wants."""


class Hearing(Middleware):
    def on_enqueue(self, spec: JobSpec) -> JobSpec:
        heard.append("enqueue")
        return msgspec.structs.replace(spec, priority=5)

    async def around(self, job: Job[Any], call_next: CallNext) -> Any:
        heard.append("around")
        return await call_next()

    async def after(self, job: Job[Any], outcome: RunOutcome) -> None:
        heard.append("after")


app = EchoMQ("redis://127.0.0.1:1", middleware=[Hearing()], codec=Encrypted([Encrypted.generate_key()]))


@app.lifespan
async def database(app: EchoMQ) -> AsyncIterator[None]:
    heard.append("open")
    yield
    heard.append("close")


@app.provide
def store() -> Iterator[Store]:
    yield Store()
    heard.append("taken back")


@app.task
async def keep(secret: str, store: Store = Inject()) -> str:
    heard.append(type(store).__name__)
    return secret.upper()


@app.task(process=True)
def elsewhere(number: int) -> int:
    return number * number


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


def blocks(server: Server) -> dict[str, AbstractAsyncContextManager[Kit | Inline]]:
    return {"by hand": on_server(app, server), "inline": inline(app, server)}


@pytest.mark.parametrize("way", ["by hand", "inline"])
async def test_what_stands_around_a_task(throw_away: Server, way: str) -> None:
    async with blocks(throw_away)[way] as kit:
        job = await keep.enqueue("a secret")
        if way == "by hand":
            [job] = await kit.run_until_drained()
        assert await job.result() == "A SECRET"
        [found] = kit.assert_enqueued(keep, {"secret": "a secret"}, priority=5)
        assert b"secret" not in found._stored.fields[b"data"]
    assert heard == ["enqueue", "open", "around", "Store", "taken back", "after", "close"]


async def test_a_process_of_its_own(throw_away: Server) -> None:
    async with inline(app, throw_away) as jobs:
        assert (await elsewhere.enqueue(4)).return_value == 16
        assert jobs.left() == []


async def test_cancelling(throw_away: Server) -> None:
    async with on_server(app, throw_away) as kit:
        job = await keep.options(delay=60).enqueue("x")
        assert await job.cancel("changed my mind")
        assert await kit.advance(minutes=2) == []
        with pytest.raises(JobCancelled, match="changed my mind"):
            await asyncio.wait_for(job.result(), 5)
        [found] = kit.enqueued(keep, state="failed")
        assert found.failure_kind == "cancelled"
