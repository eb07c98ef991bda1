"""One side of the long soak, in a process of its own: ``producer``, ``worker`` or ``outcomes``. SIGTERM ends it in order.

Its argument is JSON: ``role``, ``url``, ``out`` (a file that gets what it counted) and, for the producer, ``rate``.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from echomq import (
    Backoff,
    BulkAddError,
    Connection,
    ConnectionLost,
    Deduplication,
    EchoMQError,
    Every,
    JobScheduler,
    JobSpec,
    Keep,
    Queue,
    QueueEvents,
    Worker,
)

QUEUE, OUTCOMES = "soak", "soak-outcomes"
KEPT = Keep(count=1000)
counted: Counter[str] = Counter()


def told_to_stop() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def produce(url: str, rate: float) -> None:
    stop, chance = told_to_stop(), random.Random(7)
    connection = Connection(url, wait=30)
    async with Queue(QUEUE, connection=connection) as queue, QueueEvents(QUEUE, connection=connection) as events:
        listening = asyncio.create_task(listen(events))
        waiting: set[asyncio.Task[None]] = set()
        schedules = JobScheduler(queue)
        await schedules.upsert("tick", Every(0.5), JobSpec("scheduled", {}))
        begun, asked = asyncio.get_running_loop().time(), 0
        while not stop.is_set():
            asked += 20
            for job in await add_some(queue, chance, asked):
                if len(waiting) < 200 and chance.random() < 0.1:
                    task = asyncio.create_task(wait_for(job))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
            await asyncio.sleep(max(0.0, begun + asked / rate - asyncio.get_running_loop().time()))
        await schedules.remove("tick")
        await asyncio.gather(*waiting)
        listening.cancel()


async def add_some(queue: Queue, chance: random.Random, asked: int) -> list[Any]:
    """Twenty jobs of all kinds; counts what was acknowledged, and of what it is not known."""
    delays = [chance.choice([None, None, None, 0.05, 1.0]) for _ in range(15)]
    specs = [JobSpec("plain", {"n": n}, delay=d, priority=chance.choice([0, 0, 0, 1, 9])) for n, d in enumerate(delays)]
    try:
        jobs = await queue.add_bulk(specs)
        counted["acknowledged"] += len(jobs)
    except BulkAddError as error:
        jobs = []
        counted["acknowledged"] += len(error.added)
        counted["unknown"] += len(error.unknown)
    for number in range(5):
        try:
            unique = Deduplication.throttle(f"d{chance.randrange(50)}", ttl=1) if number == 0 else None
            failing = {"fails": chance.random() < 0.1}
            job = await queue.add("single", failing, attempts=2, backoff=Backoff.fixed(0.1), deduplication=unique)
            if not job.deduplicated:
                counted["acknowledged"] += 1
                jobs.append(job)
        except ConnectionLost:
            counted["unknown"] += 1
    return jobs


async def wait_for(job: Any) -> None:
    try:
        await job.result(timeout=120)
        counted["results"] += 1
    except EchoMQError as error:
        counted[type(error).__name__] += 1


async def listen(events: QueueEvents) -> None:
    async for event in events:
        counted[f"event {type(event).__name__}"] += 1


async def work(url: str) -> None:
    stop = told_to_stop()

    async def process(job: Any) -> Any:
        if job.name == "single":
            await job.log(f"run {job.attempts_started}")
            await job.update_progress({"percent": 50})
            if job.data["fails"]:
                raise ValueError("as it was told")
        await asyncio.sleep(0.002)
        return {"id": job.id}

    worker = Worker(
        QUEUE, process, connection=url, concurrency=20, remove_on_complete=KEPT, remove_on_fail=KEPT, metrics_points=60,
        results_queue=OUTCOMES, lock_duration=10, stalled_interval=5, max_stalled_count=100,
    )  # fmt: skip
    async with worker:
        await stop.wait()


async def take_outcomes(url: str) -> None:
    stop = told_to_stop()

    async def process(job: Any) -> None:
        counted[job.data["status"]] += 1

    worker = Worker(
        OUTCOMES, process, connection=url, concurrency=20, remove_on_complete=Keep.NONE, lock_duration=10, stalled_interval=5
    )  # fmt: skip
    async with worker:
        await stop.wait()


async def main(told: dict[str, Any]) -> None:
    match told["role"]:
        case "producer":
            await produce(told["url"], told["rate"])
        case "worker":
            await work(told["url"])
        case "outcomes":
            await take_outcomes(told["url"])
    Path(told["out"]).write_text(json.dumps(counted))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
