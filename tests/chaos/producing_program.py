"""A producer in a process of its own: ten tasks add to queues in turn, one job each at a time, until SIGTERM. Then it prints how
many were added to each queue, and how many milliseconds an add took: the median, the 99th of 100, the longest.

python -m tests.chaos.producing_program URL PAUSE QUEUE…
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack

from echomq import Connection, Queue

TASKS = 10


async def main(url: str, pause: float, names: list[str]) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    took: list[float] = []
    added: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection(url))
        queues = [await stack.enter_async_context(Queue(name, connection=connection)) for name in names]

        async def produce(number: int) -> None:
            while not stop.is_set():
                queue = queues[number % len(queues)]
                began = loop.time()
                await queue.add("work", {"n": number})
                took.append((loop.time() - began) * 1000)
                added[queue.name] += 1
                number += 1
                await asyncio.sleep(pause)

        await asyncio.gather(*(produce(number) for number in range(TASKS)))
    took.sort()
    return {
        "added": added,
        "median": took[len(took) // 2],
        "p99": took[len(took) * 99 // 100],
        "longest": took[-1],
    }


if __name__ == "__main__":
    given_url, given_pause, *given_names = sys.argv[1:]
    print(json.dumps(asyncio.run(main(given_url, float(given_pause), given_names))))  # noqa: T201
