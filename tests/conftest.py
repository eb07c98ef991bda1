"""Fixtures for every folder: real servers, flushed before each test, and checks for what a test leaves behind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any, get_args

import pytest
from pytest_asyncio import is_async_test

from tests.support.leaks import assert_no_clients, assert_no_tasks
from tests.support.processes import assert_no_processes, assert_no_server_children
from tests.support.proxy import Proxy
from tests.support.server import Kind, Server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged may hold lone surrogates, which cannot be sent from a process of pytest-xdist to the first."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def no_server_outlives_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails a run that leaves a server behind: an embedded one in a folder of the run's, or a child of its own.

    It comes first of the session's fixtures, so the others have been closed by then.
    """
    yield
    assert_no_processes(tmp_path_factory.getbasetemp())
    assert_no_server_children()


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Callable[[Kind], Server]]:
    """Gives the session's server of a kind, started when first asked for."""
    servers: dict[Kind, Server] = {}
    with ExitStack() as stack:

        def get(kind: Kind) -> Server:
            if kind not in servers:
                servers[kind] = stack.enter_context(Server(kind))
            return servers[kind]

        yield get


def lend(server: Server) -> Iterator[Server]:
    """Lend the session's server to one test: as new, and back without a connection of the test."""
    server.flush()
    yield server
    assert server.is_running, "the test ended the session's server; ask for one of your own with make_server"
    server.resume()
    assert_no_clients(server)


@pytest.fixture
def valkey(shared_server: Callable[[Kind], Server]) -> Iterator[Server]:
    """The session's Valkey, empty."""
    yield from lend(shared_server("valkey"))


@pytest.fixture
def redis_server(shared_server: Callable[[Kind], Server]) -> Iterator[Server]:
    """The session's Redis, empty."""
    yield from lend(shared_server("redis"))


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The session's server, empty: Valkey, or the kind that ECHOMQ_TEST_SERVER names.

    A test that runs on both kinds: ``@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)``.
    """
    kind = getattr(request, "param", os.environ.get("ECHOMQ_TEST_SERVER", "valkey"))
    if kind not in get_args(Kind):
        raise pytest.UsageError(f"ECHOMQ_TEST_SERVER is {kind!r}; it must be one of {', '.join(get_args(Kind))}")
    lent: Server = request.getfixturevalue("valkey" if kind == "valkey" else "redis_server")
    return lent


@pytest.fixture
def url(server: Server) -> str:
    """The URL of the session's server, which is empty."""
    return server.url


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    """A proxy before the session's server."""
    async with Proxy(server) as proxy:
        yield proxy


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own, to be killed, paused or set up: ``make_server("redis", appendonly=True)``.

    They are removed at the end of the test. Without a kind: as the fixture ``server``.
    """
    with ExitStack() as stack:

        def make(kind: Kind | None = None, **options: Any) -> Server:
            chosen = kind or os.environ.get("ECHOMQ_TEST_SERVER", "valkey")
            return stack.enter_context(Server(chosen, **options))  # type: ignore[arg-type]

        yield make


@pytest.fixture
async def no_tasks_left() -> AsyncIterator[None]:
    """Fails an async test that leaves a task behind."""
    yield
    await assert_no_tasks()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> None:
    """Checks every async test for tasks. It comes first, so the test's other fixtures have been closed by then."""
    if is_async_test(request.node):
        request.getfixturevalue("no_tasks_left")
