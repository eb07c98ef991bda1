"""``echomq job``: looking at one job, adding, changing, waiting."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from echomq import Job, JobSpec, Queue, Unrecoverable, Worker
from tests.support.command import Terminal, echomq
from tests.support.server import Server


async def work(job: Job[Any]) -> Any:
    if job.name == "fail":
        raise Unrecoverable("no \x1b[31mseat\x07 left")
    return {"order": job.data}


async def test_add(url: str, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"order": 12345678901234567890}')
    async with Queue("orders", connection=url) as queue:
        words = ["job", "add", "orders", "pack", "--json"]
        shown = (await echomq(*words, "--data", f"@{file}", "--priority", "3", "--attempts", "5", url=url)).json
        assert shown == {"queue": "orders", "id": "1", "state": "prioritized", "added": True}
        job = await queue.get_job("1")
        assert job is not None
        assert (job.name, job.data, job.opts.attempts) == ("pack", {"order": 12345678901234567890}, 5)
        at = datetime.now(UTC) + timedelta(hours=1)
        shown = (await echomq(*words, "--data", "-", "--at", at.isoformat(), url=url, given="[1]")).json
        job = await queue.get_job(shown["id"])
        assert job is not None
        assert (job.data, job.state, round(job.delay / 60)) == ([1], "delayed", 60)
        assert (await echomq(*words, "--job-id", "mine", url=url)).json["added"] is True
        again = await echomq("job", "add", "orders", "pack", "--job-id", "mine", url=url)
        assert again.out == "mine: not added: this job was there already (waiting)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "[" * 100_000], " is no JSON: "),
        (["--data", '{"order": 1'], "--data: '{\"order\": 1' is no JSON: "),
        (["--data", "@nothing.json"], "--data @nothing.json: cannot be read"),
        (["--delay", "soon"], "'soon': must be seconds, or a number with ms, s, m, h, d or w"),
        (["--at", "tomorrow"], "'tomorrow': must be a moment such as"),
        (["--delay", "5", "--at", "2099-12-01T09:30"], "give one of them"),
        (["--job-id", "17"], "'17'"),
        (["--priority", "-1"], "priority"),
    ],
)
async def test_what_cannot_be_added(words: list[str], said: str) -> None:
    shown = await echomq("job", "add", "orders", "pack", *words, url="redis://127.0.0.1:1")
    assert (shown.code, shown.out) == (2, "")
    assert said in shown.err
    assert "Traceback" not in shown.err


async def test_show(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        job = await queue.add("fail", {"order": 17, "note": "x" * 200}, attempts=3)
        await Worker(queue, work, name="packer").run_until_drained()
        shown = (await echomq("job", "show", "orders", job.id, "--json", url=url)).json
        text = (await echomq("job", "show", "orders", job.id, url=url, env={"TZ": "Asia/Kathmandu"})).out
    assert (shown["queue"], shown["id"], shown["name"], shown["state"]) == ("orders", job.id, "fail", "failed")
    assert (shown["data"]["order"], shown["options"]["attempts"], shown["processed_by"]) == (17, 3, "packer")
    assert (shown["attempts_made"], shown["failure_kind"], shown["return_value"]) == (1, "unrecoverable", None)
    assert shown["failed_reason"] == "no \x1b[31mseat\x07 left"
    assert datetime.fromisoformat(shown["finished_on"]) <= datetime.now(UTC)
    assert len(shown["stacktrace"]) == 1
    assert shown["broken"] == {}
    assert "\x1b" not in text
    assert "no \\x1b[31mseat\\x07 left" in text
    assert "+0545 (" in text
    assert " ago)" in text
    assert '"order": 17' in text
    assert "traceback 1" in text


async def test_show_of_a_job_whose_result_was_lost(url: str) -> None:
    async def give_object(job: Job[Any]) -> object:
        return object()

    async with Queue("orders", connection=url) as queue:
        job = await queue.add("pack")
        await Worker(queue, give_object).run_until_drained()
        shown = (await echomq("job", "show", "orders", job.id, "--json", url=url)).json
        text = (await echomq("job", "show", "orders", job.id, url=url)).out
    assert (shown["state"], shown["return_value"]) == ("completed", None)
    assert "object" in shown["result_error"]
    assert "lost result     result" in text
    assert "result          null" not in text


async def test_show_of_a_job_that_somebody_broke(server: Server) -> None:
    async with Queue("orders", connection=server.url) as queue:
        job = await queue.add("pack")
        with server.client() as client:
            client.hset("emq:{orders}:" + job.id, mapping={"data": "{no json", "opts": "[]"})
        shown = (await echomq("job", "show", "orders", job.id, "--json", url=server.url)).json
        text = await echomq("job", "show", "orders", job.id, url=server.url)
    assert (shown["data"], sorted(shown["broken"])) == (None, ["data", "dead_letter", "options"])
    assert text.code == 0
    assert "cannot be read" in text.out


async def test_a_job_that_is_not_there(url: str) -> None:
    for verb in ("show", "retry", "promote", "cancel", "remove", "logs", "explain", "wait"):
        words = ["--yes"] if verb == "remove" else []
        shown = await echomq("job", verb, "orders", "99", *words, url=url)
        assert (shown.code, shown.out) == (3, ""), verb
        assert shown.err.startswith(f"echomq job {verb}: there is no job '99' in queue 'orders' at ")
        assert len(shown.err.splitlines()) == 1


async def test_list_page_by_page(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        await queue.add_bulk(JobSpec("pack", {"order": number}) for number in range(5))
        first = (await echomq("job", "list", "orders", "waiting", "--limit", "3", "--json", url=url)).json
        assert [job["data"]["order"] for job in first["jobs"]] == [0, 1, 2]
        words = ["job", "list", "orders", "waiting", "--limit", "3", "--cursor", first["cursor"]]
        rest = (await echomq(*words, "--json", url=url)).json
        assert ([job["data"]["order"] for job in rest["jobs"]], rest["cursor"]) == ([3, 4], None)
        text = await echomq("job", "list", "orders", "waiting", "--limit", "2", "--newest-first", url=url)
        assert [line.split()[0] for line in text.out.splitlines()] == ["ID", "5", "4"]
        assert text.err.startswith("more: --cursor ")
        wrong = await echomq("job", "list", "orders", "done", url=url)
    assert wrong.code == 2
    assert "state 'done': must be one of" in wrong.err


async def test_cancel(url: str) -> None:
    begun, hold = asyncio.Event(), asyncio.Event()

    async def process(job: Job[object]) -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            await hold.wait()

    async with Queue("orders", connection=url) as queue:
        waits, runs = await queue.add("pack", delay=60), await queue.add("pack")
        words = ["job", "cancel", "orders", waits.id]
        assert (await echomq(*words, "--reason", "sold out", url=url)).out == "1: cancelled\n"
        again = await echomq(*words, url=url)
        assert (again.code, again.out) == (1, "")
        assert "is not cancelled: it has ended already" in again.err
        explained = await echomq("job", "explain", "orders", waits.id, url=url)
        assert "it was cancelled" in explained.out
        assert "sold out" in explained.out
        async with Worker(queue, process):
            await begun.wait()
            told = await echomq("job", "cancel", "orders", runs.id, "--reason", "sold out", "--json", url=url)
            assert told.json == {"queue": "orders", "id": "2", "ended": False}
            assert "somebody has cancelled it, and its worker has been told" in str(await runs.explain())
            hold.set()
            ended = await echomq("job", "wait", "orders", runs.id, "--json", url=url)
        assert (ended.code, json.loads(ended.out)["status"]) == (1, "cancelled")


async def test_retry_promote_and_remove(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        failed = await queue.add("fail")
        await Worker(queue, work).run_until_drained()
        delayed = await queue.add("pack", delay=60)
        assert (await echomq("job", "promote", "orders", failed.id, url=url)).code == 1
        assert (await echomq("job", "promote", "orders", delayed.id, url=url)).out == "2: may run now\n"
        assert (await echomq("job", "retry", "orders", delayed.id, url=url)).code == 1
        assert (await echomq("job", "retry", "orders", failed.id, "--json", url=url)).json == {
            "queue": "orders",
            "id": "1",
        }
        assert await queue.counts("waiting") == {"waiting": 2}
        refused = await echomq("job", "remove", "orders", failed.id, url=url)
        assert refused.code == 1
        assert "Remove job 1 (fail, waiting) from orders? There is no terminal to ask on: say --yes" in refused.err
        async with Terminal(["job", "remove", "orders", failed.id], url=url) as terminal:
            await terminal.says("[y/N]")
            terminal.type("y\n")
            await terminal.says("1: removed")
            assert await terminal.end() == 0
        assert await failed.refresh() is None


async def test_logs_and_explain(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        job = await queue.add("pack")
        for line in ("one", "two\x1b[31m", "three\x9b31m\u202e"):
            await job.log(line)
        shown = await echomq("job", "logs", "orders", job.id, "--json", url=url)
        lines = ["one", "two\x1b[31m", "three\x9b31m\u202e"]
        assert shown.json == {"queue": "orders", "id": "1", "lines": lines, "count": 3}
        assert shown.out.isascii(), "JSON on a terminal must do no harm either"
        last = await echomq("job", "logs", "orders", job.id, "--last", "2", url=url)
        assert last.out == "two\\x1b[31m\nthree\\x9b31m\\u202e\n"
        await queue.pause()
        why = (await echomq("job", "explain", "orders", job.id, "--json", url=url)).json
        assert (why["queue"], why["id"], why["state"]) == ("orders", "1", "waiting")
        assert "paused" in {reason["kind"] for reason in why["reasons"]}
        assert "pause" in (await echomq("job", "explain", "orders", job.id, url=url)).out


async def test_wait(url: str) -> None:
    async with Queue("orders", connection=url) as queue:
        done, failed = await queue.add("pack", 7), await queue.add("fail")
        begun = time.monotonic()
        late = await echomq("job", "wait", "orders", done.id, "--timeout", "0.2", url=url)
        assert (late.code, late.out) == (4, "")
        assert "job '1' of queue 'orders' has not ended within 0.2 s" in late.err
        assert time.monotonic() - begun < 15
        async with Worker(queue, work):
            waited = await echomq("job", "wait", "orders", done.id, "--timeout", "20", url=url)
            assert (waited.code, json.loads(waited.out)) == (0, {"order": 7})
            shown = (await echomq("job", "wait", "orders", done.id, "--json", url=url)).json
            assert shown == {"queue": "orders", "id": "1", "status": "completed", "result": {"order": 7}}
            lost = await echomq("job", "wait", "orders", failed.id, url=url)
            assert (lost.code, lost.out) == (1, "")
            assert lost.err == "echomq job wait: job '2' of queue 'orders' failed: no \\x1b[31mseat\\x07 left\n"
            lost = await echomq("job", "wait", "orders", failed.id, "--json", url=url)
            assert (lost.code, json.loads(lost.out)["status"]) == (1, "failed")
