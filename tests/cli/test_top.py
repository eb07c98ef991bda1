"""``echomq top``: one frame, one object, and the whole terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from echomq import Job, JobSpec, Queue, Worker
from tests.support.command import Terminal, echomq
from tests.support.server import Server
from tests.support.wait import wait_until

OTHER_SCREEN = "\x1b[?1049h"
BACK = "\x1b[?7h\x1b[?25h\x1b[?1049l"


async def test_one_object(url: str) -> None:
    async def work(job: Job[int]) -> int:
        return 1

    async with Queue("top", connection=url) as queue, Queue("idle", connection=url) as idle:
        await idle.add("wait")
        await idle.pause()
        await queue.set_concurrency(7)
        async with Worker(queue, work, concurrency=2) as worker:
            await worker.ready()
            for job in await queue.add_bulk(JobSpec("count") for _ in range(20)):
                await job.result(timeout=10)
            await queue.add("later", delay=60)
            shown = (await echomq("top", "--json", "--interval", "0.2", url=url)).json
    waits, works = shown["queues"]
    assert (shown["prefix"], [waits["queue"], works["queue"]]) == ("emq", ["idle", "top"])
    assert (waits["paused"], waits["counts"]["waiting"], waits["workers"]) == (True, 1, [])
    assert 0 < waits["oldest_waiting_age"] < 60
    assert (works["paused"], works["counts"]["completed"], works["counts"]["delayed"]) == (False, 20, 1)
    assert (works["sampled"], works["concurrency"], works["oldest_waiting_age"]) == (20, 7, None)
    assert 0 <= works["ran"]["p50"] <= works["ran"]["p95"] < 10
    assert 0 <= works["out_per_second"] <= 20
    assert [worker["slots"] for worker in works["workers"]] == [2]


async def test_one_frame_has_no_colour_without_a_terminal(url: str) -> None:
    async with Queue("plain\x1b[31m", connection=url) as queue, Queue("left out", connection=url) as other:
        await queue.add("x")
        await other.add("x")
        shown = await echomq("top", "plain\x1b[31m", "--once", "--interval", "0.1", url=url)
    assert shown.code == 0, shown.err
    assert "\x1b" not in shown.out
    assert "plain\\x1b[31m" in shown.out
    assert "left out" not in shown.out
    assert "no worker" in shown.out


async def test_rates_and_many_queues(url: str) -> None:
    queues = [Queue(f"many-{number:03d}", connection=url) for number in range(60)]
    for queue in queues:
        await queue.add("x")
    shown = (await echomq("top", "--json", "--interval", "0.1", url=url)).json
    assert [one["queue"] for one in shown["queues"]] == [queue.name for queue in queues]
    assert all(one["oldest_waiting_age"] > 0 for one in shown["queues"])
    for queue in queues:
        await queue.close()


FILL = """
for number = tonumber(ARGV[3]), tonumber(ARGV[3]) + tonumber(ARGV[4]) - 1 do
  redis.call('HSET', ARGV[1] .. number, 'name', 'pack', 'data', '{"order":17}', 'opts', '{}', 'timestamp', '1790000000000',
    'delay', '0', 'priority', '0', 'processedOn', '1790000000100', 'finishedOn', '1790000000200', 'atm', '1', 'ats', '1')
  if ARGV[2] == 'completed' then
    redis.call('ZADD', ARGV[1] .. 'completed', 1790000000000 + number, number)
  else
    redis.call('LPUSH', ARGV[1] .. 'wait', number)
  end
end
redis.call('SET', ARGV[1] .. 'id', 10000000)
redis.call('HSET', ARGV[1] .. 'meta', 'opts.maxLenEvents', '10000')
"""


@pytest.mark.torture
async def test_500_queues_and_two_million_jobs(make_server: Callable[..., Server]) -> None:
    """A frame is there at once, keys are obeyed at once, and producers do not notice."""
    server, step = make_server(), 5_000
    with server.client() as client:
        fill = client.register_script(FILL)
        for name, state in (("done", "completed"), ("waits", "waiting")):
            for start in range(1, 1_000_000, step):
                fill(args=[f"emq:{{{name}}}:", state, start, step])
        for number in range(500):
            fill(args=[f"emq:{{q{number:03d}}}:", "waiting", 1, 10])
    begun = time.monotonic()
    shown = (await echomq("top", "--json", "--interval", "0.1", url=server.url)).json
    assert time.monotonic() - begun < 15
    assert len(shown["queues"]) == 502
    async with (
        Queue("waits", connection=server.url) as queue,
        Terminal(["top"], url=server.url, size=(160, 50)) as terminal,
    ):
        await terminal.says("workers of done: none")
        adds, keys = [], []
        for key in "jkjkjkjkjk":
            terminal.type(key)
            keys.append(await _timed(terminal.says("workers of")))
            for _ in range(100):
                adds.append(await _timed(queue.add("pack")))
                await asyncio.sleep(0.01)
        terminal.type("q")
        assert await terminal.end() == 0
    assert sorted(keys)[-2] < 0.5
    assert sorted(adds)[len(adds) * 99 // 100] < 0.05


async def _timed(work: Coroutine[Any, Any, object]) -> float:
    begun = time.monotonic()
    await work
    return time.monotonic() - begun


async def test_without_a_terminal_it_says_what_to_do(url: str) -> None:
    shown = await echomq("top", url=url)
    assert (shown.code, shown.out) == (2, "")
    assert "--once prints one frame" in shown.err
    assert (await echomq("top", "--once", "--interval", "0.01", url=url)).code == 2


async def test_it_draws_obeys_keys_and_gives_the_terminal_back(url: str) -> None:
    async with Queue("first", connection=url) as queue, Queue("second", connection=url) as second:
        await queue.add("x")
        await second.add("x")
        async with Terminal(["top", "--interval", "0.1"], url=url) as terminal:
            await terminal.says(OTHER_SCREEN)
            await terminal.says("first")
            await terminal.says("second")
            await terminal.says("workers of first: none")
            terminal.type("j")
            await terminal.says("workers of second")
            terminal.type("\x1b[A\x1b[B\x1bOB\x1b[5~")
            await terminal.says("workers of first")
            terminal.type("\x1b[6~\x1b[Z")
            await terminal.says("workers of second")
            terminal.type("p")
            await terminal.says("pause second for all its workers? y/n")
            terminal.type("n")
            await terminal.says("q quit")
            terminal.type("p")
            await terminal.says("y/n")
            terminal.type("y")
            await terminal.says("second: paused")
            assert await second.is_paused()
            assert not await queue.is_paused()
            terminal.type("/fir")
            await terminal.says("workers of first")
            await terminal.says("filter: fir")
            terminal.type("\r")
            await terminal.says("q quit")
            terminal.type("\x1b")
            await terminal.says("second")
            terminal.type("s")
            await terminal.says("WAIT▼")
            terminal.resize(60, 12)
            terminal.process.send_signal(signal.SIGWINCH)
            await terminal.says("\x1b[2J")
            await terminal.says("first")
            assert "workers of" not in terminal.text
            assert terminal.now != terminal.before
            terminal.type("q")
            assert await terminal.end() == 0
            assert terminal.text.endswith(BACK)
            assert terminal.now == terminal.before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
async def test_a_signal_ends_it_and_gives_the_terminal_back(url: str, number: int, code: int) -> None:
    async with Terminal(["top"], url=url) as terminal:
        await terminal.says("0 queues")
        terminal.process.send_signal(number)
        assert await terminal.end() == code
        assert terminal.text.endswith(BACK)
        assert terminal.now == terminal.before


async def test_an_exception_gives_the_terminal_back_first(url: str) -> None:
    broken = (
        "import sys\nfrom echomq.cli import main\nfrom echomq.cli._top.watch import Watch\n"
        "async def find(*_): raise RuntimeError('broken on purpose')\n"
        "Watch.find = find\nsys.argv = ['echomq', 'top']\nmain()\n"
    )
    async with Terminal([], url=url, program=[sys.executable, "-c", broken]) as terminal:
        await terminal.says(OTHER_SCREEN)
        await terminal.says(BACK)
        await terminal.says("RuntimeError: broken on purpose")
        assert await terminal.end() == 1
        assert terminal.now == terminal.before


async def test_it_says_that_the_server_is_away_and_goes_on_when_it_is_back(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    async with Queue("away", connection=server.url) as queue:
        await queue.add("x")
    async with Terminal(["top", "--interval", "0.1"], url=server.url) as terminal:
        await terminal.says("workers of away: none")
        server.kill()
        await terminal.says("SERVER AWAY")
        await terminal.says("seen at")
        terminal.type("s")
        await terminal.says("WAIT▼")
        server.start()
        await wait_until(lambda: server.is_running)
        await terminal.says("echomq top")
        await wait_until(lambda: "SERVER AWAY" not in terminal.text.rpartition("echomq top")[2], what="it is back")
        terminal.type("q")
        assert await terminal.end() == 0
    server.kill()
    async with Terminal(["top", "--interval", "0.1"], url=server.url) as terminal:
        await terminal.says("SERVER AWAY")
        server.start()
        await terminal.says("workers of away")
        terminal.type("q")
        assert await terminal.end() == 0
    gone = await echomq("top", "--once", url="redis://127.0.0.1:1")
    assert (gone.code, gone.out) == (1, "")
    assert "127.0.0.1:1" in gone.err
    assert len(gone.err.splitlines()) == 1
