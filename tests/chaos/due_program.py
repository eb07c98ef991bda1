"""Some workers in a process of its own, whose handlers do nothing but count. At SIGTERM it stops and prints what it counted:
runs, the sum of their ids, and the sum of the squares of these, which tell whether each job ran once.

python -m tests.chaos.due_program URL QUEUE WORKERS '{"concurrency": 10, …}'
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from typing import Any

from echomq import Connection, Job, Worker


async def main(url: str, queue: str, workers: int, options: dict[str, Any]) -> list[int]:
    sums = [0, 0, 0]

    async def process(job: Job[Any]) -> None:
        number = int(job.id)
        sums[0] += 1
        sums[1] += number
        sums[2] += number * number

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(Connection(url))
        for _ in range(workers):
            await stack.enter_async_context(Worker(queue, process, connection=connection, **options))
        await stop.wait()
    return sums


if __name__ == "__main__":
    given_url, given_queue, given_workers, given_options = sys.argv[1:]
    print(*asyncio.run(main(given_url, given_queue, int(given_workers), json.loads(given_options))))  # noqa: T201
