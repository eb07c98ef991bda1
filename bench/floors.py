"""What no queue on this machine can beat: ``python -m bench.floors URL wake|trip``, one JSON object on stdout.

``wake``: how long a push takes to wake a blocked pop, one each 50 ms. ``trip``: round trips of an empty script a second, one
after another, and what one costs the client, through a bare protocol on a socket.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

import hiredis
import redis.asyncio
import uvloop

GAP = 0.05


async def wake(url: str, count: int) -> dict[str, object]:
    """Milliseconds from before the push to the return of the pop, both in this process."""
    async with redis.asyncio.Redis.from_url(url) as pushing, redis.asyncio.Redis.from_url(url) as popping:
        popped: dict[int, int] = {}

        async def pop() -> None:
            for _ in range(count + 1):
                _, value = await popping.blpop("wake")
                popped[int(value)] = time.monotonic_ns()

        task = asyncio.create_task(pop())
        await pushing.lpush("wake", count)  # this one connects
        await asyncio.sleep(0.5)
        sent = {}
        start = time.monotonic()
        for number in range(count):
            await asyncio.sleep(max(0, start + number * GAP - time.monotonic()))
            sent[number] = time.monotonic_ns()
            await pushing.lpush("wake", number)
        await task
    return {"latencies": [(popped[number] - at) / 1e6 for number, at in sent.items()]}


class _Wire(asyncio.Protocol):
    def __init__(self) -> None:
        self.reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        self.reply.set_result(self.reader.gets())


async def trip(url: str, seconds: float) -> dict[str, object]:
    """EVALSHA of ``return 1``, each sent when the last was answered."""
    async with redis.asyncio.Redis.from_url(url) as client:
        sha = await client.script_load("return 1")
    loop, parts = asyncio.get_running_loop(), urlsplit(url)
    _, wire = await loop.create_connection(_Wire, parts.hostname, parts.port)
    command = hiredis.pack_command(("EVALSHA", sha, "1", "key", '{"n":1,"user":"u123"}'))
    count, start, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        wire.reply = loop.create_future()
        wire.transport.write(command)
        await wire.reply
        count += 1
    elapsed, cpu = time.monotonic() - start, time.process_time() - cpu
    wire.transport.close()
    return {"rate": count / elapsed, "client_us": cpu / count * 1e6}


if __name__ == "__main__":
    _, where, what, amount = sys.argv
    run = wake(where, int(amount)) if what == "wake" else trip(where, float(amount))
    print(json.dumps(uvloop.run(run)))
