"""``echomq events``: what the logs hold, and what happens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from echomq import Job, Queue, Worker
from tests.support.command import Ran, Terminal, echomq
from tests.support.server import Server


async def work(job: Job[Any]) -> Any:
    return {"seat": "\x1b[31m"}


def kinds(shown: Ran) -> list[tuple[str, str]]:
    assert shown.code == 0, shown.err
    return [(event["queue"], event["event"]) for event in map(json.loads, shown.out.splitlines())]


async def test_what_the_logs_hold(url: str) -> None:
    async with Queue("orders", connection=url) as orders, Queue("mails", connection=url) as mails:
        await orders.add("pack")
        await Worker(orders, work).run_until_drained()
        await mails.add("send")
        await mails.publish("course-closed", course="redis")
        shown = await echomq("events", "orders", "mails", "--json", url=url)
        told = kinds(shown)
        assert [kind for queue, kind in told if queue == "orders"] == [
            "added",
            "waiting",
            "active",
            "completed",
            "drained",
        ]
        assert [kind for queue, kind in told if queue == "mails"] == ["added", "waiting", "custom"]
        first = json.loads(shown.out.splitlines()[0])
        assert set(first) == {"event", "queue", "id", "at", "job_id", "name"}
        later = kinds(await echomq("events", "orders", "--since", first["id"], "--json", url=url))
        assert len(later) == (4 if first["queue"] == "orders" else 5)
        assert kinds(await echomq("events", "orders", "--since", "10m", "--json", url=url)) == [
            one for one in told if one[0] == "orders"
        ]
        assert kinds(await echomq("events", "orders", "--since", "2099-01-01T00:00", "--json", url=url)) == []
        assert kinds(await echomq("events", "orders", "--since", "now", "--json", url=url)) == []
        text = await echomq("events", "orders", url=url)
    assert "\x1b" not in text.out
    assert [line.split()[3] for line in text.out.splitlines()] == ["added", "waiting", "active", "completed", "drained"]
    assert "name: pack" in text.out.splitlines()[0]


async def test_following(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await queue.add("before")
        async with Terminal(["events", "orders", "--follow", "--since", "start"], url=url) as terminal:
            await terminal.says("name: before")
            await queue.add("while")
            await terminal.says("name: while")
            terminal.process.send_signal(2)
            assert await terminal.end() == 130
            assert "Traceback" not in terminal.text


async def test_following_a_queue_that_is_not_there_is_told(url: str) -> None:
    done = await echomq("events", "ordres", "--follow", "--timeout", "1", url=url)
    assert done.code == 4
    assert "ordres: there is no such queue yet; is that its name?" in done.err


async def test_following_for_a_time(url: str) -> None:
    shown = await echomq("events", "orders", "--follow", "--timeout", "0.3", url=url)
    assert (shown.code, shown.out) == (4, "")


async def test_a_log_that_was_cut_off(server: Server) -> None:
    async with Queue("orders", connection=server.url) as queue:
        await queue.add("gone")
        with server.client() as client:
            begin: Any = client.xrange("emq:{orders}:events", count=1)
            client.xtrim("emq:{orders}:events", maxlen=0, approximate=False)
        await queue.add("there")
        since = f"{int(begin[0][0].decode().split('-')[0]) - 1}-0"
        told = kinds(await echomq("events", "orders", "--since", since, "--json", url=server.url))
        assert told == [("orders", kind) for kind in ("gap", "added", "waiting")]
        [gap, *_] = (await echomq("events", "orders", "--since", since, url=server.url)).out.splitlines()
        assert "events may be missing here, until: " in gap
        with server.client() as client:
            client.xtrim("emq:{orders}:events", maxlen=0, approximate=False)
        async with asyncio.timeout(20):
            assert (await echomq("events", "orders", "--json", url=server.url)).code == 0


@pytest.mark.parametrize(
    ("words", "said"), [([], "QUEUE"), (["orders", "--since", "then"], "--since then: must be start, now")]
)
async def test_misuse(url: str, words: list[str], said: str) -> None:
    shown = await echomq("events", *words, url=url)
    assert (shown.code, shown.out) == (2, "")
    assert said in shown.err
