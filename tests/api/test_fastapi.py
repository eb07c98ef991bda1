"""FastAPI and Starlette: the lifespan and the dependencies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from echomq import Connection, EchoMQ, InvalidOption, LifespanFailed, Queue, ServerUnavailable
from echomq.integrations.fastapi import get_app, get_queue, lifespan
from tests.support.server import Server
from tests.support.wait import wait_until


@asynccontextmanager
async def serving(web: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """The web application between its start and its end, as a server holds it."""
    async with (
        web.router.lifespan_context(web) as state,
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://here") as client,
    ):
        web.state.given = state
        yield client


async def test_views_enqueue_and_the_app_is_closed_at_the_end(url: str) -> None:
    jobs = EchoMQ(url)

    @jobs.task(queue="enrollments")
    async def enroll(learner: int) -> int:
        raise NotImplementedError

    web = FastAPI(lifespan=lifespan(jobs))

    @web.post("/async")
    async def with_await(learner: int) -> str:
        return (await enroll.enqueue(learner)).id

    @web.post("/plain")
    def plain(learner: int) -> str:  # FastAPI runs it in a thread
        return enroll.sync.enqueue(learner).id

    @web.get("/count")
    async def count(queue: Annotated[Queue, Depends(get_queue("enrollments"))]) -> int:
        return await queue.count()

    @web.get("/app")
    async def name(app: Annotated[EchoMQ, Depends(get_app)]) -> bool:
        return app is jobs

    for ids in (["1", "2"], ["3", "4"]):  # a web application may start again
        async with serving(web) as client:
            assert (await client.post("/async?learner=7")).json() == ids[0]
            assert (await client.post("/plain?learner=8")).json() == ids[1]
            assert (await client.get("/count")).json() == int(ids[1])
            assert (await client.get("/app")).json() is True
        await wait_until(lambda: not jobs.connection._hubs)
    jobs.connection.portal.end()


async def test_workers_run_inside_and_stop_in_order(url: str) -> None:
    jobs = EchoMQ(url)
    steps: list[str] = []
    begun = asyncio.Event()

    @jobs.task(queue="slow")
    async def slow() -> None:
        begun.set()
        await asyncio.sleep(0.1)
        steps.append("job")

    @jobs.task(queue="others")
    async def other() -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def database(web: FastAPI) -> AsyncIterator[dict[str, str]]:
        steps.append("open")
        yield {"database": "here"}  # it comes to request.state
        steps.append("closed")

    web = FastAPI(lifespan=lifespan(jobs, work=["slow"], concurrency=3, around=database))

    async with serving(web):
        await slow.enqueue()
        left = await other.enqueue()
        await begun.wait()
        assert web.state.given == {"database": "here"}
    assert steps == ["open", "job", "closed"]
    async with jobs:
        found = await jobs.queue("others").get_job(left.id)
        assert found is not None
        assert found.state == "waiting"


async def test_several_apps(url: str) -> None:
    jobs, reports = EchoMQ(url), EchoMQ(url, prefix="rep")
    web = FastAPI(lifespan=lifespan(jobs, around=lifespan(reports)))

    in_a, in_b = Depends(get_queue("a", app=jobs)), Depends(get_queue("b", app=reports))

    @web.get("/")
    async def add(a: Queue = in_a, b: Queue = in_b) -> list[str]:
        return [(await queue.add("x")).queue_name for queue in (a, b)]

    @web.get("/any")
    async def some(app: Annotated[EchoMQ, Depends(get_app)]) -> None: ...

    async with serving(web) as client:
        assert (await client.get("/")).json() == ["a", "b"]
        with pytest.raises(InvalidOption, match="has 2 apps"):
            await client.get("/any")
    assert await Queue.names(url, prefix="rep") == ["b"]


async def test_starlette_alone(url: str) -> None:
    jobs = EchoMQ(url)

    async def add(request: Any) -> JSONResponse:
        app = await get_app(request)
        return JSONResponse((await app.queue("letters").add("x")).id)

    async with serving(Starlette(routes=[Route("/", add)], lifespan=lifespan(jobs))) as client:
        assert (await client.get("/")).json() == "1"
    with pytest.raises(InvalidOption, match="has no app"):
        async with serving(Starlette(routes=[Route("/", add)])) as client:
            await client.get("/")


async def test_it_starts_while_the_server_is_away(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.kill()
    jobs = EchoMQ(Connection(server.url, wait=0))

    @jobs.task
    async def noted(n: int) -> int:
        return n

    web = FastAPI(lifespan=lifespan(jobs, work=True))

    @web.get("/")
    async def add() -> int:
        return await (await noted.enqueue(3)).result(timeout=10)

    async with serving(web) as client:
        with pytest.raises(ServerUnavailable, match="not added"):
            await client.get("/")
        server.start()
        assert (await client.get("/")).json() == 3


async def test_what_cannot_start_ends_the_start_of_the_web_server(url: str) -> None:
    jobs = EchoMQ(url)

    @jobs.task
    async def noted() -> None:
        raise NotImplementedError

    @jobs.lifespan
    async def broken(app: EchoMQ) -> AsyncIterator[None]:
        if app is jobs:
            raise ValueError("no database")
        yield

    with pytest.raises(LifespanFailed, match="no database"):
        async with serving(FastAPI(lifespan=lifespan(jobs, work=True))):
            pass
    with pytest.raises(InvalidOption, match="concurrency=0"):
        async with serving(FastAPI(lifespan=lifespan(EchoMQ(url), work=["default"], concurrency=0))):
            pass


def test_wrong_arguments_are_refused_where_they_are_written(url: str) -> None:
    app = EchoMQ(url)
    with pytest.raises(InvalidOption, match="must be an EchoMQ"):
        lifespan("redis://localhost")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"write work=\['mail'\]"):
        lifespan(app, work="mail")
    with pytest.raises(InvalidOption, match="without work=True"):
        lifespan(app, concurrency=3)
