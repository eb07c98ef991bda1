"""EchoMQ's pytest plugin: the fixtures ``echomq_server``, ``echomq_app``, ``echomq`` and ``echomq_inline`` (docs/testing.md).

It stands beside the package, so that a run of pytest that does not use it does not even import EchoMQ.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from echomq import EchoMQ
    from echomq.testing import Inline, Kit, Server

_LEFT: Final = "EchoMQ: jobs that the test left"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one setting."""
    parser.addini(
        "echomq_leftover_jobs",
        "what jobs mean that a test with the fixture echomq leaves: report (the default: said at the end), fail or ignore",
        default="report",
    )


@pytest.fixture(scope="session")
def echomq_server() -> Iterator[Server]:
    """A real server to throw away, one for this process's whole run; it starts when it is first needed."""
    from echomq.testing import Server

    with Server() as server:
        yield server


@pytest.fixture
def echomq_app(echomq_server: Server) -> EchoMQ:
    """The app under test. Override it in your conftest.py to give yours; otherwise a new one, without tasks."""
    from echomq import EchoMQ

    return EchoMQ(echomq_server.url)


@pytest.fixture
def echomq(echomq_app: EchoMQ, echomq_server: Server, request: pytest.FixtureRequest) -> Iterator[Kit]:
    """The app on an empty database of the server: an ``echomq.testing.Kit``. At the end it looks for jobs that are left."""
    from echomq.testing import on_server

    wanted = request.config.getini("echomq_leftover_jobs")
    if wanted not in ("report", "fail", "ignore"):
        raise pytest.UsageError(f"echomq_leftover_jobs = {wanted}: must be report, fail or ignore")
    with on_server(echomq_app, echomq_server) as kit:
        yield kit
        left = "" if wanted == "ignore" else kit.left_in_words()
    if left:
        request.node.add_report_section("teardown", _LEFT, left)
        if wanted == "fail":
            pytest.fail(f"jobs are left that nobody ran:\n{left}", pytrace=False)


@pytest.fixture
def echomq_inline(echomq_app: EchoMQ, echomq_server: Server) -> Iterator[Inline]:
    """The app whose jobs have run when they are enqueued: an ``echomq.testing.Inline``."""
    from echomq.testing import inline

    with inline(echomq_app, echomq_server) as jobs:
        yield jobs


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fails a test that forgot an await. What an async test has opened closes in its own event loop: only there it can."""
    used = getattr(item, "funcargs", {})
    kit = used.get("echomq") or used.get("echomq_inline")
    test = getattr(item, "obj", None)
    if kit is None:
        return (yield)
    if not inspect.iscoroutinefunction(test):
        return _checked((yield), kit)

    @functools.wraps(test)
    async def closing(*args: Any, **values: Any) -> Any:
        try:
            return await test(*args, **values)
        finally:
            await kit.rest()

    item.obj = closing  # type: ignore[attr-defined]
    try:
        return _checked((yield), kit)
    finally:
        item.obj = test  # type: ignore[attr-defined]


def _checked(result: Any, kit: Kit) -> Any:
    if forgotten := kit.forgotten_in_words():
        pytest.fail(forgotten, pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says which tests left jobs."""
    left = [
        (report.nodeid, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for title, text in report.sections
        if _LEFT in title
    ]
    if left:
        terminalreporter.section(_LEFT)
        for test, text in left:
            terminalreporter.write_line(test)
            for line in text.splitlines():
                terminalreporter.write_line(f"  {line}")
