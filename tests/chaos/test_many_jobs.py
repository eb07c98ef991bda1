"""Queues of very many jobs are cleaned and obliterated while others produce: nothing is held up, and nothing else is touched."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from echomq import Queue
from tests.chaos.rig import BASE, QUEUE
from tests.chaos.test_due_at_once import slowest
from tests.support.audit import audit
from tests.support.server import Server
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
OTHER = "other"

# Jobs as our producers and workers leave them: id after id, at most 10,000 a call.
_FILL = """
local first, last, place, now = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
for id = first, last do
  local at = string.format("%.0f", now - 2000000 + id)
  redis.call("HSET", KEYS[1] .. id, "name", "work", "data", '{"n":17,"user":"u123"}', "opts", '{"attempts":0}', "timestamp", at,
    "delay", "0", "priority", "0")
  if place == "completed" then
    redis.call("HSET", KEYS[1] .. id, "processedOn", at, "pb", "host-1", "ats", "1", "returnvalue", '"seat"', "finishedOn", at,
      "atm", "1")
    redis.call("ZADD", KEYS[1] .. place, at, id)
  else
    redis.call("LPUSH", KEYS[1] .. place, id)
  end
end
redis.call("INCRBY", KEYS[1] .. "id", last - first + 1)
"""


def fill(client: redis.Redis, place: str, count: int) -> None:
    """Puts so many jobs of their own ids there."""
    first = int(client.get(BASE + "id") or 0) + 1
    now = int(client.time()[0]) * 1000
    for start in range(first, first + count, 10_000):
        client.eval(_FILL, 1, BASE, start, min(start + 10_000, first + count) - 1, place, now)


@contextmanager
def producing(url: str, pause: float) -> Iterator[Callable[[], dict[str, Any]]]:
    """Adds to both queues meanwhile; what is given ends that and tells how it went."""
    command = [sys.executable, "-m", "tests.chaos.producing_program", url, str(pause), QUEUE, OTHER]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)

    def end() -> dict[str, Any]:
        process.terminate()
        return dict(json.loads(process.communicate(timeout=30)[0]))

    try:
        yield end
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def measure(client: redis.Redis) -> None:
    client.config_set("slowlog-log-slower-than", 1000)
    client.config_set("slowlog-max-len", 10_000)
    client.slowlog_reset()
    client.config_resetstat()


async def beside_producers(
    server: Server, client: redis.Redis, pause: float, what: str, verb: Callable[[], Awaitable[int]]
) -> tuple[int, dict[str, Any]]:
    """Runs a verb while jobs are produced: what it gave, and how that went."""
    with producing(server.url, pause) as end:
        await wait_until(lambda: client.exists("emq:{other}:wait"), 20)
        measure(client)
        began = time.monotonic()
        gone = await verb()
        seconds = time.monotonic() - began
        p999, longest = slowest(client)
        told = end()
    told |= {"script p99.9": p999, "script longest": longest}
    print(  # noqa: T201 - figures for bench/NOTES.md
        f"{server.kind}, {what}: {gone} jobs in {seconds:.1f} s; {sum(told['added'].values())} adds beside it, median "
        f"{told['median']:.2f}, p99 {told['p99']:.2f}, longest {told['longest']:.1f} ms; scripts p99.9 {p999:.2f}, "
        f"longest {longest:.1f} ms"
    )
    return gone, told


async def clean_and_obliterate(server: Server, count: int, pause: float) -> list[dict[str, Any]]:
    """So many completed and so many waiting jobs: the completed ones are cleaned; then all is obliterated, with as many again."""
    with server.client() as client:
        fill(client, "completed", count)
        fill(client, "wait", count)
        async with Queue(QUEUE, connection=server.url) as queue, Queue(OTHER, connection=server.url) as other:

            async def clean() -> int:
                return len(await queue.admin.clean("completed", 0))

            gone, cleaned = await beside_producers(server, client, pause, "clean", clean)
            assert gone == count
            assert (await queue.counts("waiting"))["waiting"] == count + cleaned["added"][QUEUE]
            client.delete("emq:{other}:wait")  # so that the next producer is seen to begin
            fill(client, "completed", count)
            gone, obliterated = await beside_producers(server, client, pause, "obliterate", queue.admin.obliterate)
            left = (await queue.counts("waiting"))["waiting"]
            assert gone + left == 2 * count + cleaned["added"][QUEUE] + obliterated["added"][QUEUE]
            assert left < count
            assert await other.counts("waiting") == {"waiting": obliterated["added"][OTHER]}
            assert client.dbsize() < 3 * left + 2 * (cleaned["added"][OTHER] + obliterated["added"][OTHER]) + 20
    return [cleaned, obliterated]


async def test_thousands_beside_producers(server: Server) -> None:
    await clean_and_obliterate(server, 5_000, 0.001)
    with server.client() as client:
        assert audit(client, "emq", QUEUE) == []


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
async def test_millions_beside_producers(server: Server) -> None:
    for told in await clean_and_obliterate(server, 1_000_000, 0.01):
        assert told["p99"] < 50
        assert told["script p99.9"] < 20  # 5 on a machine that has nothing else to do
