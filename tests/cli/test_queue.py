"""``echomq queue``: what it shows, what it does, what it refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rich.cells import cell_len

from echomq import Job, JobSpec, Queue, Unrecoverable, Worker
from tests.support.command import Terminal, echomq
from tests.support.server import Server
from tests.support.wait import wait_until


async def work(job: Job[Any]) -> Any:
    if job.name == "fail":
        raise Unrecoverable("no seat left")
    return job.data


async def run(queue: Queue, *specs: JobSpec) -> list[Job[Any]]:
    jobs = await queue.add_bulk(specs)
    await Worker(queue, work).run_until_drained()
    return jobs


async def test_list(url: str) -> None:
    async with Queue("orders", connection=url) as orders, Queue("mails", connection=url) as mails:
        await orders.add("x")
        await orders.add("y", delay=60)
        await mails.add("z", priority=1)
        await mails.pause()
        shown = (await echomq("queue", "list", "--json", url=url)).json
        assert [one["queue"] for one in shown["queues"]] == ["mails", "orders"]
        assert [one["paused"] for one in shown["queues"]] == [True, False]
        assert shown["queues"][1]["counts"] == await orders.counts()
        shown = (await echomq("queue", "list", "o*", "--json", url=url)).json
        assert [one["queue"] for one in shown["queues"]] == ["orders"]
        text = await echomq("queue", "list", url=url)
    lines = [line.split() for line in text.out.splitlines()]
    assert lines[0] == ["QUEUE", "WAITING", "PRIORITY", "DELAYED", "ACTIVE", "CHILDREN", "COMPLETED", "FAILED"]
    assert lines[1:] == [["mails", *"0100000", "paused"], ["orders", *"1010000"]]


async def test_a_queue_that_somebody_broke_does_not_hide_the_others(server: Server) -> None:
    async with Queue("注文", connection=server.url) as queue:
        await queue.add("x")
        with server.client() as client:
            client.hset("emq:{broken}:meta", "opts.maxLenEvents", "10000")
            client.set("emq:{broken}:wait", "no list")
        shown = (await echomq("queue", "list", "--json", url=server.url)).json
        text = await echomq("queue", "list", url=server.url)
        alone = await echomq("queue", "show", "broken", url=server.url)
    assert (alone.code, alone.err.partition("; ")[0]) == (
        1,
        "echomq queue show: queue 'broken': could not be read: emq:{broken}:wait must be a list",
    )
    assert alone.err.endswith("; echomq doctor says what is damaged\n")
    broken, fine = shown["queues"]
    assert (broken["queue"], broken["counts"], fine["counts"]["waiting"]) == ("broken", None, 1)
    assert "emq:{broken}:wait" in broken["trouble"]
    assert text.code == 0
    head, broken, fine = text.out.splitlines()
    assert "emq:{broken}:wait" in broken
    assert cell_len(fine.partition("1")[0]) + 1 == len(head.partition("WAITING")[0] + "WAITING")


async def test_show(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await queue.set_concurrency(5)
        await queue.set_rate_limit(100, 60)
        await queue.rate_limit(50)
        await queue.pause()
        job = await queue.add("pack", {"order": 1})
        shown = (await echomq("queue", "show", "orders", "--json", url=url)).json
        text = await echomq("queue", "show", "orders", url=url)
    assert (shown["queue"], shown["paused"], shown["concurrency"]) == ("orders", True, 5)
    assert shown["rate_limit"] == {"max": 100, "duration": 60.0}
    assert 0 < shown["rate_limited_for"] <= 50
    assert (shown["next"]["id"], shown["next"]["name"]) == (job.id, "pack")
    assert (shown["counts"]["waiting"], shown["dead_letters"], shown["workers"]) == (1, 0, [])
    for words in ("next to run", "pack", "at most 5 at once", "at most 100 starts in 1 min", "paused: workers fetch"):
        assert words in text.out


@pytest.mark.parametrize("damage", [{"opts": "not json"}, {"opts": '{"delay": 1e12}', "timestamp": "253402300799000"}])
async def test_a_job_that_is_damaged_hides_nothing_of_its_queue(server: Server, damage: dict[str, str]) -> None:
    async with Queue("orders", connection=server.url) as queue:
        job = await queue.add("pack")
        with server.client() as client:
            for name, value in damage.items():
                client.hset(f"emq:{{orders}}:{job.id}", name, value)
        shown = (await echomq("queue", "show", "orders", "--json", url=server.url)).json
        text = await echomq("queue", "show", "orders", url=server.url)
        seen = (await echomq("top", "--json", url=server.url)).json["queues"][0]
    assert (shown["next"]["id"], shown["counts"]["waiting"], text.code) == (job.id, 1, 0)
    assert f"{job.id} pack, ready" in text.out
    assert seen["trouble"] is None
    assert 0 <= seen["oldest_waiting_age"] < 60


async def test_a_queue_that_is_not_there(url: str) -> None:
    shown = await echomq("queue", "show", "typo", url=url)
    assert (shown.code, shown.out) == (3, "")
    assert shown.err.startswith("echomq queue show: there is no queue 'typo' at ")
    assert len(shown.err.splitlines()) == 1
    assert (await echomq("queue", "obliterate", "typo", "--yes", url=url)).code == 3


async def test_pause_and_resume(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        assert (await echomq("queue", "pause", "orders", "--json", url=url)).json == {"queue": "orders", "paused": True}
        assert await queue.is_paused()
        assert (await echomq("queue", "resume", "orders", url=url)).out == "orders: resumed\n"
        assert not await queue.is_paused()


async def test_drain(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await queue.add_bulk([JobSpec("x"), JobSpec("y", priority=2), JobSpec("z", delay=60)])
        refused = await echomq("queue", "drain", "orders", url=url)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err == (
            "echomq queue drain: Remove 2 jobs from orders, which wait? There is no terminal to ask on: say --yes; nothing "
            "was changed\n"
        )
        shown = (await echomq("queue", "drain", "orders", "--yes", "--json", url=url)).json
        assert shown == {"queue": "orders", "removed": 2}
        assert (await echomq("queue", "drain", "orders", "--delayed", "-y", url=url)).out == "orders: removed 1 job\n"
        assert sum((await queue.counts()).values()) == 0


async def test_clean(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await run(queue, JobSpec("a"), JobSpec("b"), JobSpec("fail"))
        words = ["queue", "clean", "orders", "completed", "--older-than"]
        assert (await echomq(*words, "1h", "--yes", "--json", url=url)).json["removed"] == 0
        refused = await echomq(*words, "0", url=url)
        assert refused.code == 1
        assert "Remove completed jobs of orders (there are 2)?" in refused.err
        shown = (await echomq(*words, "0", "--limit", "1", "--yes", "--json", url=url)).json
        assert shown == {"queue": "orders", "state": "completed", "removed": 1}
        wrong = await echomq("queue", "clean", "orders", "done", "--older-than", "0", "--yes", url=url)
        assert (wrong.code, wrong.out) == (2, "")
        assert "state 'done': must be one of completed, failed, delayed" in wrong.err
        assert (await queue.counts("completed", "failed")) == {"completed": 1, "failed": 1}


async def test_retry_and_promote(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await run(queue, JobSpec("fail"), JobSpec("fail"), JobSpec("fine"))
        assert (await echomq("queue", "retry", "orders", "--json", url=url)).json == {"queue": "orders", "retried": 2}
        assert (await echomq("queue", "retry", "orders", "--state", "waiting", url=url)).code == 2
        retried = await echomq("queue", "retry", "orders", "--state", "completed", url=url)
        assert retried.out == "orders: 1 job will run again\n"
        await queue.add("later", delay=60)
        assert (await echomq("queue", "promote", "orders", "--json", url=url)).json == {
            "queue": "orders",
            "promoted": 1,
        }
        assert (await queue.counts("waiting")) == {"waiting": 4}


async def test_obliterate(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await run(queue, JobSpec("a"), JobSpec("fail"))
        await queue.add("x")
        async with Terminal(["queue", "obliterate", "orders"], url=url) as terminal:
            await terminal.says("Remove orders and its 3 jobs? Type orders to go on:")
            terminal.type("y\n")
            assert await terminal.end() == 1
            assert "not confirmed; nothing was changed" in terminal.text
        async with Terminal(["queue", "obliterate", "orders"], url=url) as terminal:
            await terminal.says("to go on:")
            terminal.type("orders\n")
            await terminal.says("orders: obliterated, with 3 jobs")
            assert await terminal.end() == 0
        assert (await echomq("queue", "list", "--json", url=url)).json == {"queues": []}


async def test_ctrl_c_while_it_asks_changes_nothing(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await queue.add("x")
        async with Terminal(["queue", "drain", "orders"], url=url) as terminal:
            await terminal.says("[y/N]")
            terminal.process.send_signal(2)
            assert await terminal.end() == 130
        assert await queue.counts("waiting") == {"waiting": 1}


async def test_progress_of_a_long_verb_is_on_the_terminal_only(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await queue.add_bulk(JobSpec("x") for _ in range(3000))
        async with Terminal(["queue", "drain", "orders", "--yes"], url=url) as terminal:
            await terminal.says("orders: removed: ")
            await terminal.says("orders: removed 3,000 jobs")
            assert await terminal.end() == 0


@pytest.mark.parametrize("words", [["show"], ["clean", "orders", "failed"], ["drain", "a:b", "--yes"]])
async def test_misuse(url: str, words: list[str]) -> None:
    assert (await echomq("queue", *words, url=url)).code == 2


@pytest.mark.parametrize(
    "words",
    [["show"], ["drain", "-y"], ["clean", "failed", "--older-than", "0", "-y"], ["retry"], ["promote"],
     ["obliterate", "-y"]],
)  # fmt: skip
async def test_only_queues_that_are_there_are_changed(url: str, words: list[str]) -> None:
    done = await echomq("queue", words[0], "ordres", *words[1:], url=url)
    assert (done.code, done.out) == (3, "")
    assert "there is no queue 'ordres'" in done.err
    assert await Queue.names(url) == []


@pytest.mark.parametrize(
    "words",
    [["queue", "list"], ["events"], ["workers"], ["workers", "--json"], ["top", "--once", "--interval", "0.1"],
     ["top", "--json", "--interval", "0.1"]],
)  # fmt: skip
async def test_only_queues_that_are_there_are_shown(url: str, words: list[str]) -> None:
    done = await echomq(*words, "ordres", url=url)
    assert (done.code, done.out) == (3, "")
    assert "there is no queue 'ordres'" in done.err
    assert (await echomq("queue", "pause", "ordres", url=url)).code == 0
    assert (await echomq(*words, "ordres", url=url)).code == 0


async def test_a_queue_is_not_obliterated_while_its_jobs_run(url: str) -> None:
    may_end = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        await may_end.wait()

    async with Queue("orders", connection=url) as queue, Worker("orders", process, connection=url):
        await queue.add("x")

        async def runs() -> bool:
            return (await queue.counts("active"))["active"] == 1

        await wait_until(runs)
        done = await echomq("queue", "obliterate", "orders", "--yes", url=url)
        assert (done.code, done.out) == (1, "")
        assert "say --force" in done.err
        assert "echomq queue resume orders" in done.err
        assert "force=True" not in done.err
        assert await queue.is_paused()
        may_end.set()


async def test_a_queue_is_not_obliterated_while_outcomes_are_on_their_way(server: Server) -> None:
    async with Queue("orders", connection=server.url) as queue:
        await queue.add("x")
        server.cli("XADD", "emqx:{orders}:outbox", "*", "id", "o", "to", "emq:{results}:", "at", "", "data", "{}")
        done = await echomq("queue", "obliterate", "orders", "--yes", url=server.url)
        assert (done.code, done.out) == (1, "")
        assert "outcomes of its jobs (1) are on their way" in done.err
        assert "say --force, which drops them" in done.err
        assert (await echomq("queue", "obliterate", "orders", "--yes", "--force", url=server.url)).code == 0


async def test_pausing_a_queue_before_its_first_job_is_told(url: str) -> None:
    done = await echomq("queue", "pause", "orders", url=url)
    assert (done.code, done.out) == (0, "orders: paused\n")
    assert "there was no such queue until now" in done.err
    async with Queue("orders", connection=url) as queue:
        assert await queue.is_paused()
        await queue.add("x")
    assert (await echomq("queue", "resume", "orders", url=url)).err == ""


async def test_list_says_that_there_is_none(url: str) -> None:
    done = await echomq("queue", "list", url=url)
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert "there is no queue at " in done.err
    assert "there is no queue 'a*' at " in (await echomq("queue", "list", "a*", url=url)).err
    assert (await echomq("queue", "list", "--json", url=url)).json == {"queues": []}
