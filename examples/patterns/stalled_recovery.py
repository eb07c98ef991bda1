"""A dead worker's jobs must come back: each of them, once, and no living worker's.

python examples/patterns/stalled_recovery.py
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from stage import SHORT, checkpoint, claim, plain_client, run, stage, until

from echomq import Job, JobSpec, Queue, Worker

JOBS = 20
LONG = 4.0  # more than three lock durations


# -- the children ----------------------------------------------------------------------------------------------------------


def naive_sweeper(url: str) -> None:
    """For each job in active whose lock has gone: out of active, into wait. Two commands."""
    client = plain_client(url)
    for job_id in client.lrange("naive:active", 0, -1):
        if not client.exists(f"naive:{job_id}:lock"):
            client.lrem("naive:active", 1, job_id)
            checkpoint("removed " + job_id)
            client.rpush("naive:wait", job_id)
    print("swept", flush=True)


def naive_worker(url: str) -> None:
    """Takes a job, then locks it. Two commands again."""
    client = plain_client(url)
    job_id = client.rpoplpush("naive:wait", "naive:active")
    checkpoint("took " + job_id)
    client.set(f"naive:{job_id}:lock", "mine", px=30_000)
    checkpoint("runs " + job_id)


def worker(url: str, slots: int, seconds: float) -> None:
    async def process(job: Job[Any]) -> None:
        print("runs", job.id, flush=True)
        await asyncio.sleep(LONG if job.name == "long" else seconds)

    async def work() -> None:
        async with Worker("jobs", process, connection=url, concurrency=slots, **SHORT) as worker:
            await worker.run()

    asyncio.run(work())


# -- the proof -------------------------------------------------------------------------------------------------------------


def play() -> None:
    with stage(__file__) as on:
        print("naive sweep: look, remove, push")
        on.client.rpush("naive:active", "1")  # its worker has died, its lock has expired
        sweeper = on.start("naive-sweeper")
        sweeper.says("removed")
        sweeper.kill()
        print("  the sweeper is killed between its two commands")
        claim(not on.client.exists("naive:active", "naive:wait"), "job 1 is in no list: recovery has lost it")

        print("naive sweep, meeting a job that was taken and is not locked yet")
        on.client.rpush("naive:wait", "2")
        taker = on.start("naive-worker")
        taker.says("took")
        sweeper = on.start("naive-sweeper")
        sweeper.says("removed")
        sweeper.go_on()
        sweeper.says("swept")
        taker.go_on()
        taker.says("runs")
        claim(
            on.client.lrange("naive:wait", 0, -1) == ["2"],
            "job 2 waits for a second worker while the first, alive, runs it",
        )

        print(f"ours: a worker is killed with {JOBS} jobs in hand; three others live, and one of them runs a long job")

        async def add(specs: list[JobSpec]) -> None:
            async with Queue("jobs", connection=on.url) as jobs:
                await jobs.add_bulk(specs)

        asyncio.run(add([JobSpec("long", job_id="long-job")]))
        survivors = [on.start("worker", "1", "0")]
        survivors[0].says("runs long-job")
        victim = on.start("worker", str(JOBS), "60")
        asyncio.run(add([JobSpec("short") for _ in range(JOBS)]))
        for _ in range(JOBS):
            victim.says("runs")
        victim.kill()
        claim(
            on.client.llen("emq:{jobs}:active") == JOBS + 1,
            f"{JOBS + 1} jobs are in active; {JOBS} of them have nobody",
        )
        survivors += [on.start("worker", "5", "0") for _ in range(2)]
        until("every job is completed", lambda: on.client.zcard("emq:{jobs}:completed") == JOBS + 1)
        rows = {
            job_id: on.client.hmget(f"emq:{{jobs}}:{job_id}", "ats", "stc")
            for job_id in on.client.zrange("emq:{jobs}:completed", 0, -1)
        }
        claim(
            rows.pop("long-job") == ["1", None],
            f"the long job, {LONG / SHORT['lock_duration']:.1f} times as long as a lock, was left alone",
        )
        claim(
            all(row == ["2", "1"] for row in rows.values()),
            f"each of the {JOBS} was put back once (stc 1) and run once more (ats 2), although three workers sweep",
        )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        run(play)
    elif sys.argv[1] == "worker":
        worker(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        {"naive-sweeper": naive_sweeper, "naive-worker": naive_worker}[sys.argv[1]](sys.argv[2])
