"""``echomq doctor``: what it shows, what it repairs, what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from echomq import Queue
from tests.support.command import echomq
from tests.support.server import Server

BASE = "emq:{orders}:"


@pytest.fixture
def keeping(make_server: Callable[..., Server]) -> Server:
    """A server of which there is nothing to say."""
    return make_server(appendonly=True)


async def told(*words: str, url: str) -> Any:
    """The one object that it printed, healthy or not."""
    done = await echomq("doctor", "--json", *words, url=url)
    found = json.loads(done.out)
    assert done.code == (0 if found["healthy"] else 1)
    return found


async def damage(server: Server) -> None:
    async with Queue("orders", connection=server.url) as queue:
        await queue.add("x")
    server.cli("LPUSH", BASE + "wait", "nobody")
    server.cli("SET", BASE + "de:D", "nobody")
    server.cli("SET", BASE + "stalled", "rubbish")


async def test_a_healthy_server(keeping: Server) -> None:
    async with Queue("orders", connection=keeping.url) as queue:
        await queue.add("x")
    shown = await echomq("doctor", url=keeping.url)
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].startswith(("Valkey ", "Redis "))
    assert lines[1].startswith("orders: 1 waiting; 0 workers; the oldest waits for ")
    assert lines[2:] == ["nothing was found"]


async def test_findings_are_shown_with_what_they_mean(keeping: Server) -> None:
    await damage(keeping)
    shown = await echomq("doctor", "orders", url=keeping.url)
    assert shown.code == 1
    assert "warning   orders: 'nobody' stands in wait, and there is no such job" in shown.out
    assert "(--fix ghost-id)" in shown.out
    assert shown.out.splitlines()[-1] == "3 found"
    asked = await told("orders", url=keeping.url)
    assert [one["kind"] for one in asked["findings"]] == ["key-of-wrong-type", "ghost-id", "dead-deduplication-id"]
    assert (asked["healthy"], asked["repaired"]) == (False, [])
    assert [one["queue"] for one in asked["queues"]] == ["orders"]


async def test_only_what_is_named_is_repaired(keeping: Server) -> None:
    await damage(keeping)
    shown = await told("--fix", "ghost-id", url=keeping.url)
    assert [one["kind"] for one in shown["repaired"]] == ["ghost-id"]
    assert [one["kind"] for one in shown["findings"]] == ["key-of-wrong-type", "dead-deduplication-id"]
    assert keeping.cli("EXISTS", BASE + "de:D") == 1
    shown = await told("--fix-all", url=keeping.url)
    assert [one["kind"] for one in shown["findings"]] == ["key-of-wrong-type"]
    keeping.cli("DEL", BASE + "stalled")
    last = await echomq("doctor", "--fix-all", url=keeping.url)
    assert (last.code, last.out.splitlines()[-1]) == (0, "nothing was found")


async def test_a_bound_for_waiting(keeping: Server) -> None:
    async with Queue("orders", connection=keeping.url) as queue:
        job = await queue.add("x")
    keeping.cli("HSET", BASE + job.id, "timestamp", "1000000000000")
    shown = await echomq("doctor", "--oldest-waiting", "1h", url=keeping.url)
    assert shown.code == 1
    assert "old-waiting-job" in shown.out


@pytest.mark.parametrize("words", [["--fix", "everything"], ["--fix", "key-of-wrong-type"], ["a:b"]])
async def test_misuse(url: str, words: list[str]) -> None:
    done = await echomq("doctor", *words, url=url)
    assert (done.code, done.out) == (2, "")
    if "everything" in words:
        assert "what can be repaired: dead-deduplication-id, " in done.err


async def test_a_queue_that_is_not_there(keeping: Server) -> None:
    done = await echomq("doctor", "ordres", url=keeping.url)
    assert (done.code, done.out) == (3, "")
    assert "there is no queue 'ordres'" in done.err


async def test_a_server_that_is_away() -> None:
    done = await echomq("doctor", "--timeout", "5", url="redis://127.0.0.1:1/0")
    assert done.code == 1
    assert done.err.startswith("echomq doctor: ")
    assert "Traceback" not in done.err
