"""Very many delayed jobs come due in the same moment: each is promoted and run once, in small steps, and none is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from echomq import Connection, JobSpec, Queue
from tests.chaos.rig import BASE, FAST, QUEUE, RECOVERED, SLACK, assert_sound
from tests.support.server import Server
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def fleet(url: str, *, processes: int, workers: int, **options: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes with so many workers in each."""
    command = [
        sys.executable,
        "-m",
        "tests.chaos.due_program",
        url,
        QUEUE,
        str(workers),
        json.dumps({**FAST, **options}),
    ]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def assert_each_ran_once(processes: list[subprocess.Popen[bytes]], count: int) -> None:
    """Stops them in order; they have run the jobs 1 to ``count``, each once."""
    for process in processes:
        process.terminate()
    sums = [list(map(int, process.communicate(timeout=30)[0].split())) for process in processes]
    ids = range(1, count + 1)
    assert [sum(column) for column in zip(*sums, strict=True)] == [count, sum(ids), sum(number**2 for number in ids)]


async def add_delayed(url: str, count: int) -> None:
    """Adds jobs for the same moment, far ahead: none may come due while they are added."""
    async with Connection(url) as connection, Queue(QUEUE, connection=connection) as queue:
        await queue.add_bulk(JobSpec("work", delay=3600) for _ in range(count))


def bring_forward(client: redis.Redis, seconds: float) -> None:
    """Lets all of them come due at one moment, in so many seconds."""
    now, micros = client.time()
    due = int((now + seconds) * 1000 + micros // 1000) * 4096
    lua = """
      local ids = redis.call("ZRANGEBYSCORE", KEYS[1], "(" .. ARGV[1], "+inf", "LIMIT", "0", "1000")
      for index, id in ipairs(ids) do redis.call("ZADD", KEYS[1], ARGV[1], id) end
      return #ids"""
    while client.eval(lua, 1, BASE + "delayed", due):
        pass
    client.zadd(BASE + "marker", {"1": due / 4096})


def everything_is_done(client: redis.Redis, count: int) -> Callable[[], bool]:
    return lambda: client.zcard(BASE + "completed") == count


def promoted(client: redis.Redis) -> Counter[str]:
    """How often each job was promoted."""
    said: list[Any] = client.xrange(BASE + "events")  # type: ignore[assignment]
    return Counter(
        fields[b"jobId"].decode()
        for _, fields in said
        if fields[b"event"] == b"waiting" and fields.get(b"prev") == b"delayed"
    )


def slowest(client: redis.Redis) -> tuple[float, float]:
    """Of the scripts: the longest of 999 in 1,000 (the server counts in steps of a few per cent), and the longest; ms."""
    calls = client.info("latencystats")["latency_percentiles_usec_evalsha"]
    longest = max((entry["duration"] for entry in client.slowlog_get(10_000)), default=0)
    return float(calls["p99.9"]) / 1000, longest / 1000


async def test_each_is_promoted_and_run_exactly_once(server: Server) -> None:
    count = 20_000
    server.cli("HSET", BASE + "meta", "opts.maxLenEvents", 10 * count)
    await add_delayed(server.url, count)
    with server.client() as client, fleet(server.url, processes=4, workers=5, concurrency=10) as processes:
        bring_forward(client, 1.0)
        await wait_until(everything_is_done(client, count), 60)
        assert_each_ran_once(processes, count)
        times = promoted(client)
        assert len(times) == count
        assert set(times.values()) == {1}
    assert_sound(server, jobs=count, starts=1)


async def test_a_worker_that_is_killed_during_promotion_loses_none(server: Server) -> None:
    count = 10_000
    await add_delayed(server.url, count)
    with server.client() as client, fleet(server.url, processes=3, workers=3, concurrency=10) as processes:
        bring_forward(client, 0.7)
        for number, victim in enumerate(processes[:2], start=1):
            await wait_until(lambda number=number: client.zcard(BASE + "delayed") <= count - 2000 * number, 20)
            victim.kill()
        await wait_until(everything_is_done(client, count), 40 + RECOVERED + SLACK)
    assert_sound(server, jobs=count, starts=3, stalls=2)


@pytest.mark.torture
@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
async def test_a_million_at_once(server: Server) -> None:
    count = 1_000_000
    await add_delayed(server.url, count)
    with server.client() as client:
        client.config_set("slowlog-log-slower-than", 1000)
        client.config_set("slowlog-max-len", 10_000)
        bring_forward(client, 4.0)
        client.slowlog_reset()
        client.config_resetstat()
        with fleet(server.url, processes=4, workers=5, concurrency=20) as processes:
            began = time.monotonic()
            await wait_until(lambda: client.zcard(BASE + "delayed") == 0, 600)
            all_promoted = time.monotonic()
            await wait_until(lambda: client.llen(BASE + "wait") + client.llen(BASE + "active") == 0, 600)
            ended = time.monotonic()
            assert_each_ran_once(processes, count)
        p999, longest = slowest(client)
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        completed_now: Any = client.zcard(BASE + "completed")
        print(  # noqa: T201 - figures for bench/NOTES.md
            f"{server.kind}: promoted after {all_promoted - began:.1f} s, done after {ended - began:.1f} s, {calls} calls, "
            f"p99.9 {p999:.2f} ms, longest {longest:.1f} ms"
        )
        assert completed_now == 100_000  # the default retention of workers
        assert p999 < 20
