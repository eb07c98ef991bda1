"""What a task is given besides the arguments of its job."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest

from echomq import EchoMQ, EchoMQError, Inject, InvalidOption, Job, JobFailed, LifespanFailed, current_job
from tests.support.wait import wait_until


class Pool:
    """What all jobs share."""


class Session:
    """What each job has for itself."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool = pool
        self.number = number


class Plain(str): ...


class Needed(str): ...


class Asynchronous(str): ...


@pytest.fixture
async def app(url: str) -> AsyncIterator[EchoMQ]:
    async with EchoMQ(url) as made:
        yield made


@pytest.fixture
def events(app: EchoMQ) -> list[str]:
    """What happened; the app provides a pool for all jobs and a session for each."""
    seen: list[str] = []
    numbers = itertools.count(1)

    @app.lifespan
    async def lifespan(_: EchoMQ) -> AsyncIterator[None]:
        seen.append("startup")
        yield
        seen.append("shutdown")

    @app.provide(scope="process")
    async def pool() -> AsyncIterator[Pool]:
        seen.append("pool")
        yield Pool()
        seen.append("pool closed")

    @app.provide
    def session(pool: Pool = Inject()) -> Iterator[Session]:
        number = next(numbers)
        seen.append(f"session {number}")
        try:
            yield Session(pool, number)
        except BaseException as error:
            seen.append(f"session {number} rolled back: {error!r}")
            raise
        seen.append(f"session {number} committed")

    return seen


async def test_process_scope_is_one_for_all_jobs_and_job_scope_one_for_each(app: EchoMQ, events: list[str]) -> None:
    pools = set()

    @app.task(queue="seats")
    async def enroll(learner: int, session: Session = Inject(), *, pool: Pool = Inject()) -> int:
        assert session.pool is pool
        pools.add(pool)
        events.append(f"enroll {learner}")
        return session.number

    async with app.worker("seats"):
        assert [await (await enroll.enqueue(learner)).result(timeout=10) for learner in (7, 8)] == [1, 2]
    assert len(pools) == 1
    assert events == [
        *("startup", "pool"),
        *("session 1", "enroll 7", "session 1 committed"),
        *("session 2", "enroll 8", "session 2 committed"),
        *("pool closed", "shutdown"),
    ]


async def test_a_plain_function_has_its_plain_providers_in_its_own_thread(app: EchoMQ) -> None:
    threads: list[tuple[str, str]] = []

    def here(who: str) -> None:
        threads.append((who, "loop" if threading.current_thread() is threading.main_thread() else "thread"))

    @app.provide
    def plain() -> Iterator[Plain]:
        here("plain")
        yield Plain("plain")
        here("plain closed")

    @app.provide
    def needed() -> Needed:
        here("needed by an async one")
        return Needed("needed")

    @app.provide
    async def asynchronous(needed: Needed = Inject()) -> AsyncIterator[Asynchronous]:
        here("async")
        yield Asynchronous(f"async {needed}")
        here("async closed")

    @app.task(queue="threads")
    def work(number: int, plain: Plain = Inject(), asynchronous: Asynchronous = Inject(), n: Needed = Inject()) -> str:
        here("work")
        return f"{number} {plain} {asynchronous} {n}"

    async with app.worker("threads"):
        assert await (await work.enqueue(7)).result(timeout=10) == "7 plain async needed needed"
    assert threads == [
        *(("needed by an async one", "loop"), ("async", "loop"), ("plain", "thread"), ("work", "thread")),
        *(("plain closed", "thread"), ("async closed", "loop")),
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_run_that_fails_is_told_to_its_providers_and_they_cannot_hide_it(
    app: EchoMQ, events: list[str], kind: str
) -> None:
    @app.provide
    def swallows(session: Session = Inject()) -> Iterator[bytes]:
        try:
            yield b"swallows"
        except ValueError:
            events.append("swallowed")

    if kind == "async":

        @app.task(queue="seats")
        async def enroll(swallows: bytes = Inject()) -> None:
            raise ValueError("no such course")
    else:

        @app.task(queue="seats")
        def enroll(swallows: bytes = Inject()) -> None:
            raise ValueError("no such course")

    async with app.worker("seats"):
        with pytest.raises(JobFailed, match="ValueError: no such course"):
            await (await app.tasks["enroll"].enqueue()).result(timeout=10)
    assert events[3:5] == ["swallowed", "session 1 rolled back: ValueError('no such course')"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_provider_of_job_scope_that_fails_fails_the_job_and_the_others_are_left(
    app: EchoMQ, events: list[str], kind: str
) -> None:
    @app.provide
    def broken(session: Session = Inject()) -> bytes:
        raise ConnectionError("no cache")

    @app.provide
    def not_closed(session: Session = Inject()) -> Iterator[bytearray]:
        yield bytearray()
        raise OSError("cannot be committed")

    async def first(broken: bytes = Inject()) -> None: ...
    def first_plain(broken: bytes = Inject()) -> None: ...
    async def second(not_closed: bytearray = Inject()) -> None: ...
    def second_plain(not_closed: bytearray = Inject()) -> None: ...

    one = app.task(queue="seats", name="one")(first if kind == "async" else first_plain)
    two = app.task(queue="seats", name="two")(second if kind == "async" else second_plain)
    async with app.worker("seats"):
        with pytest.raises(JobFailed, match="ConnectionError: no cache"):
            await (await one.enqueue()).result(timeout=10)
        with pytest.raises(JobFailed, match="OSError: cannot be committed"):
            await (await two.enqueue()).result(timeout=10)
    assert events[2:6] == [
        *("session 1", "session 1 rolled back: ConnectionError('no cache')"),
        *("session 2", "session 2 rolled back: OSError('cannot be committed')"),
    ]


async def test_a_provider_of_process_scope_that_fails_keeps_the_workers_from_starting(
    app: EchoMQ, events: list[str]
) -> None:
    @app.provide(scope="process")
    async def cache(pool: Pool = Inject()) -> bytes:
        raise ConnectionError("no cache")

    @app.task(queue="seats")
    async def enroll(cache: bytes = Inject()) -> None: ...

    with pytest.raises(LifespanFailed, match=r"could not be started, at provider .*cache.: ConnectionError: no cache"):
        await app.work()
    assert events == ["startup", "pool", "pool closed", "shutdown"]


async def test_only_what_some_task_needs_is_made(app: EchoMQ, events: list[str]) -> None:
    @app.task(queue="seats")
    async def enroll() -> None: ...

    async with app.worker("seats"):
        await (await enroll.enqueue()).result(timeout=10)
    assert events == ["startup", "shutdown"]


async def test_a_job_that_is_cancelled_leaves_what_it_was_given(app: EchoMQ, events: list[str]) -> None:
    begun = asyncio.Event()

    @app.task(queue="seats")
    async def enroll(session: Session = Inject()) -> None:
        begun.set()
        await asyncio.sleep(3600)

    worker = app.worker("seats", shutdown_timeout=0)
    async with worker:
        job = await enroll.enqueue()
        await begun.wait()
    assert events[2] == "session 1"
    assert events[3].startswith("session 1 rolled back: CancelledError(")
    assert events[4:] == ["pool closed", "shutdown"]
    found = await job.refresh()
    assert found is not None
    assert found.state == "waiting"


async def test_providers_know_the_job_and_the_same_type_may_have_two_names(app: EchoMQ) -> None:
    @app.provide
    def job_id() -> Annotated[str, "job id"]:
        job = current_job()
        assert job is not None
        return job.id

    @app.provide(scope="process")
    def place() -> Annotated[str, "place"]:
        return "Vienna"

    @app.task(queue="seats", pass_job=True)
    async def where(
        job: Job[Any], learner: int, id: Annotated[str, "job id"] = Inject(), place: Annotated[str, "place"] = Inject()
    ) -> str:
        assert job.id == id
        return f"{id} {place} {learner}"

    async with app.worker("seats"):
        job = await where.enqueue(7)
        assert await job.result(timeout=10) == f"{job.id} Vienna 7"
    assert job.data == {"learner": 7}


async def test_injected_parameters_are_no_arguments_of_the_job(app: EchoMQ) -> None:
    @app.task(queue="seats")
    async def enroll(learner: int, pool: Pool = Inject(), **more: str) -> str:
        return f"{learner} {more}"

    assert enroll.spec(7, room="1").data == {"learner": 7, "room": "1"}
    with pytest.raises(TypeError, match="task 'enroll': pool is injected when a job runs; leave it out"):
        enroll.spec(7, pool=Pool())
    with pytest.raises(TypeError, match="too many positional arguments"):
        enroll.spec(7, Pool())
    with pytest.raises(InvalidOption, match="unique_by names 'pool', which is no argument"):
        app.task(name="other", unique_by=["pool"])(lambda pool=Inject(): None)
    with pytest.raises(InvalidOption, match="learner stands after a parameter that is injected"):
        app.task(name="wrong")(lambda pool=Inject(), learner=7: None)
    app.provide(scope="process")(make_pool)
    foreign = await app.queue("seats").add("enroll", {"learner": 7, "pool": "mine"})
    async with app.worker("seats"):
        with pytest.raises(JobFailed, match="does not fit task 'enroll': pool is injected, and no argument"):
            await foreign.result(timeout=10)


async def test_a_task_that_is_called_yourself_is_given_all_of_it(app: EchoMQ) -> None:
    @app.task
    async def enroll(learner: int, pool: Pool = Inject()) -> int:
        assert isinstance(pool, Pool)
        return learner

    @app.task
    def look(pool: Pool = Inject()) -> str:
        return type(pool).__name__

    assert await enroll(7, pool=Pool()) == 7
    assert look(Pool()) == "Pool"
    with pytest.raises(TypeError, match=r"pool is injected only when a job runs; .* give pool=…"):
        await enroll(7)
    with pytest.raises(TypeError, match="pool is injected only when a job runs"):
        look()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'learner'"):
        await enroll(pool=Pool())  # type: ignore[call-arg]


def make_pool() -> Pool:
    return Pool()


def make_session(pool: Pool = Inject()) -> Session:
    return Session(pool, 1)


def egg(hen: bytes = Inject()) -> str:
    return "egg"


def hen(egg: str = Inject()) -> bytes:
    return b"hen"


def wants_session(session: Session = Inject()) -> None: ...


def wants_hen(hen: bytes = Inject()) -> None: ...


async def test_what_cannot_be_injected_is_refused_when_workers_start(url: str) -> None:
    async def refused(task: Any, *providers: tuple[Any, Any]) -> str:
        async with EchoMQ(url) as app:
            app.task(name="task")(task)
            for function, scope in providers:
                app.provide(scope=scope)(function)
            with pytest.raises(InvalidOption) as refusal:
                await app.work()
            return str(refusal.value)

    missing = await refused(wants_session, (make_session, "job"))
    assert missing.startswith(
        "provider 'make_session': pool is injected, and nothing provides Pool; write @app.provide"
    )
    assert missing.endswith("There are providers of: Session")
    assert await refused(wants_hen, (hen, "job"), (egg, "job")) == (
        "providers need each other in a circle: hen -> egg -> hen"
    )
    narrow = await refused(wants_session, (make_session, "process"), (make_pool, "job"))
    assert "provider 'make_session' has scope 'process' and needs provider 'make_pool' of scope 'job'" in narrow
    two = await refused(wants_session, (make_session, "job"), (make_pool, "job"), (make_pool, "process"))
    assert two.startswith("Pool has two providers, 'make_pool' and 'make_pool'")
    unknown = await refused(lambda pool=Inject(): None)
    assert unknown == "task 'task': annotate pool"


def test_what_is_no_provider_is_refused(url: str) -> None:
    app = EchoMQ(url)
    with pytest.raises(InvalidOption, match="nobody gives it learner; write learner = Inject"):
        app.provide(lambda learner: None)
    with pytest.raises(InvalidOption, match="must be a function whose return annotation"):
        app.provide(Pool)
    with pytest.raises(InvalidOption, match="scope='thread'"):
        app.provide(scope="thread")(make_pool)  # type: ignore[call-overload]


@pytest.fixture
def injected_tasks(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("INJECTED_URL", url)
    monkeypatch.setenv("INJECTED_NOTES", str(tmp_path / "notes"))
    yield importlib.import_module("tests.api.injected_tasks")
    del sys.modules["tests.api.injected_tasks"]


async def test_in_processes_of_their_own_tasks_are_injected_there_and_middleware_stands_here(
    injected_tasks: Any, tmp_path: Path
) -> None:
    app = injected_tasks.app
    async with app, app.worker("computed"):
        first, second = [await (await injected_tasks.compute.enqueue(number)).result(timeout=30) for number in (1, 2)]
        with pytest.raises(JobFailed, match="ValueError: -1"):
            await (await injected_tasks.compute.enqueue(-1)).result(timeout=30)
        assert await (await injected_tasks.speak.enqueue("hello")).result(timeout=30) == "hello!"
    assert (first[0], second[0], first[1] == second[1] != os.getpid()) == (1, 2, True)

    def notes() -> list[str]:
        return (tmp_path / "notes").read_text("utf-8").splitlines()

    await wait_until(lambda: notes()[-1] == "model back")
    assert notes() == [
        "model",
        *("connection back", "scratch back") * 2,
        "scratch sees ValueError(-1)",
        "model back",
    ]
    here = os.getpid()
    assert injected_tasks.tells.events == [
        *(f"around compute in {here}", f"after compute: {first} None"),
        *(f"around compute in {here}", f"after compute: {second} None"),
        *(f"around compute in {here}", "after compute: None ValueError(-1)"),
        *(f"around speak in {here}", "after speak: hello! None"),
    ]


async def test_a_provider_of_process_scope_that_fails_in_a_process_keeps_the_worker_from_starting(
    injected_tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INJECTED_BROKEN", "1")
    with pytest.raises(EchoMQError, match="no such model"):
        await injected_tasks.app.worker("computed").run()


async def test_what_is_injected_in_a_process_needs_an_app_that_it_can_find(app: EchoMQ) -> None:
    app.provide(scope="process")(make_pool)
    app.task(queue="seats", process=True)(pool_name)
    with pytest.raises(InvalidOption, match="would not find the providers, since its app does not stand at the top"):
        await app.worker("seats").run()


def pool_name(pool: Pool = Inject()) -> str:
    return "pool"
