"""FastAPI and Starlette: a lifespan that closes an app in order and may run its workers, and dependencies.

It needs Starlette alone: ``pip install "echomq[fastapi]"``, or a Starlette that is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from echomq._log import logger
from echomq.app import EchoMQ
from echomq.errors import InvalidOption
from echomq.options import shown
from echomq.queue import Queue

try:
    from starlette.requests import HTTPConnection  # noqa: TC002  # FastAPI reads the annotations of dependencies
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        'Starlette is not installed: pip install "echomq[fastapi]"', name=_missing.name
    ) from _missing

__all__ = ["get_app", "get_queue", "lifespan"]

_APPS = "echomq_apps"


def lifespan(
    app: EchoMQ,
    *,
    work: bool | Sequence[str] = False,
    around: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
    **options: Any,
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """The lifespan of a web application that uses an app: its connections are closed when the web server stops.

    Nothing connects at the start: a web server starts also while the queue's server is away.

    Args:
        app: the app.
        work: whether to run the app's workers in this process, in the event loop of the web server: True for the queues of all
            its tasks, or the names of queues. When the web server stops, they stop as any worker does, and the web server waits
            for that. What holds up the event loop holds up requests: ``async def`` tasks must not compute for long.
        around: another lifespan, which begins before and ends after this one: your own, or that of another app. What it yields
            is passed on.
        options: of ``EchoMQ.work``, such as ``concurrency``.

    Raises:
        InvalidOption: an argument breaks a rule.

    Example:
        >>> jobs = EchoMQ("redis://localhost:6379/0")
        >>> api = FastAPI(lifespan=lifespan(jobs))
        >>> api = FastAPI(lifespan=lifespan(jobs, work=True, concurrency=5, around=lifespan(reports, around=database)))
    """
    given: object = app
    if not isinstance(given, EchoMQ):
        raise InvalidOption(f"lifespan({shown(given)}): must be an EchoMQ app")
    if isinstance(work, str):
        raise InvalidOption(
            f"work={shown(work)}: must be True, False or a list of names of queues; write work=[{work!r}]"
        )
    if options and not work:
        raise InvalidOption(f"{', '.join(options)}: of workers, and without work=True there are none; leave it out")

    @asynccontextmanager
    async def entered(web: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            state = None if around is None else await stack.enter_async_context(around(web))
            stack.push_async_callback(app.close)
            setattr(web.state, _APPS, [*getattr(web.state, _APPS, []), app])
            stack.callback(_forget, web, app)
            if work:
                queues = () if work is True else tuple(work)
                await stack.enter_async_context(_working(app, queues, options))
            yield state

    return entered


async def get_app(connection: HTTPConnection) -> EchoMQ:
    """A dependency: the app whose ``lifespan`` the web application has.

    Raises:
        InvalidOption: it has none, or several.

    Example:
        >>> @api.post("/enrollments")
        ... async def enroll(learner: int, jobs: Annotated[EchoMQ, Depends(get_app)]) -> str: ...
    """
    known: list[EchoMQ] = getattr(connection.app.state, _APPS, [])
    if len(known) == 1:
        return known[0]
    if known:
        raise InvalidOption(
            f"the web application has {len(known)} apps; say which one is meant: get_queue('…', app=reports)"
        )
    raise InvalidOption(
        "the web application has no app: give it one with FastAPI(lifespan=lifespan(app)), or, in a mounted application, which "
        "has no lifespan of its own, write get_queue('…', app=app)"
    )


def get_queue(name: str, *, app: EchoMQ | None = None) -> Callable[[HTTPConnection], Awaitable[Queue]]:
    """Makes a dependency: a queue of the app.

    Args:
        name: of the queue.
        app: whose; left out, that of the web application's ``lifespan``.

    Example:
        >>> Letters = Annotated[Queue, Depends(get_queue("letters"))]
        >>> @api.post("/letters")
        ... async def send(to: str, letters: Letters) -> str:
        ...     return (await letters.add("print", {"to": to})).id
    """

    async def queue(connection: HTTPConnection) -> Queue:
        return (await get_app(connection) if app is None else app).queue(name)

    return queue


def _forget(web: Any, app: EchoMQ) -> None:
    setattr(web.state, _APPS, [known for known in getattr(web.state, _APPS, []) if known is not app])


@asynccontextmanager
async def _working(app: EchoMQ, queues: Sequence[str], options: dict[str, Any]) -> AsyncIterator[None]:
    async with app.running():  # what cannot be started there ends the start of the web server
        work = asyncio.create_task(app.work(*queues, **options), name="echomq workers of the web server")
        await asyncio.sleep(0)
        if work.done():  # an option that breaks a rule
            work.result()
        work.add_done_callback(_tell)
        try:
            yield
        finally:
            work.cancel()
            await asyncio.wait([work])


def _tell(work: asyncio.Task[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        logger.error("the workers of the web server have ended: %s", error, exc_info=error)
