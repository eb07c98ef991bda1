"""A transition touches several keys. In steps it tears when its process dies; as one script it does not.

python examples/patterns/atomic_state_machine.py
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

from stage import SHORT, Stage, checkpoint, claim, plain_client, run, stage, until

from echomq import Job, JobSpec, Queue, Worker

STEPS = ("LREM active", "DEL lock", "HSET returnvalue", "ZADD completed", "RPOPLPUSH wait active", "SET lock")
STATES = {"wait": "lrange", "active": "lrange", "prioritized": "zrange", "delayed": "zrange", "completed": "zrange",
          "failed": "zrange"}  # fmt: skip
JOBS = 5000
KILLS = 6


# -- the children ----------------------------------------------------------------------------------------------------------


def naive_finish(url: str) -> None:
    """Completes job 1 and takes job 2, a command at a time."""
    client = plain_client(url)
    commands: list[tuple[Any, ...]] = [
        ("LREM", "naive:active", "1", "1"),
        ("DEL", "naive:1:lock"),
        ("HSET", "naive:1", "returnvalue", "42"),
        ("ZADD", "naive:completed", "1700000000000", "1"),
        ("RPOPLPUSH", "naive:wait", "naive:active"),
        ("SET", "naive:2:lock", "mine", "PX", "30000"),
    ]
    for step, command in zip(STEPS, commands, strict=True):
        client.execute_command(*command)
        checkpoint("did " + step)


def worker(url: str) -> None:
    """A worker of ours: fifty slots, jobs that take no time, so it finishes and fetches all the time."""

    async def process(job: Job[Any]) -> int:
        return int(job.id)

    async def work() -> None:
        async with Worker("jobs", process, connection=url, concurrency=50, **SHORT) as worker:
            await worker.ready()
            print("works", flush=True)
            await worker.run()

    asyncio.run(work())


# -- the proof -------------------------------------------------------------------------------------------------------------


def torn_after(on: Stage, step: int) -> str:
    """What is left when the naive finish is killed after so many steps."""
    on.client.flushdb()
    on.client.hset("naive:1", mapping={"name": "job"})
    on.client.hset("naive:2", mapping={"name": "job"})
    on.client.rpush("naive:active", "1")
    on.client.set("naive:1:lock", "mine", px=30_000)
    on.client.rpush("naive:wait", "2")
    child = on.start("naive-finish")
    for name in STEPS[:step]:
        child.says("did " + name)
        if name != STEPS[step - 1]:
            child.go_on()
    child.kill()
    broken = []
    for job_id in ("1", "2"):
        states = list(states_of(on, "naive:", job_id))
        if not states:
            broken.append(f"job {job_id} is in no state")
        locked = bool(on.client.exists(f"naive:{job_id}:lock"))
        if states == ["active"] and not locked:
            broken.append(f"job {job_id} is in active without a lock, like one whose worker has died")
        if states != ["active"] and locked:
            broken.append(f"job {job_id} has a lock and is not in active")
    return ", ".join(broken)


def states_of(on: Stage, base: str, job_id: str) -> Iterator[str]:
    for state, command in STATES.items():
        if job_id in getattr(on.client, command)(base + state, 0, -1):
            yield state


def audit(on: Stage) -> dict[str, int]:
    """Every job in exactly one state; every id in a state has its job; completed means that its result is there."""
    base = "emq:{jobs}:"
    with on.client.pipeline(transaction=True) as together:  # all lists at one moment
        for state, command in STATES.items():
            getattr(together, command)(base + state, 0, -1)
        lists = dict(zip(STATES, together.execute(), strict=True))
    everywhere = [job_id for ids in lists.values() for job_id in ids]
    claim(sorted(everywhere, key=int) == [str(number) for number in range(1, JOBS + 1)],
          f"{JOBS} jobs, each in exactly one state: " + ", ".join(f"{len(ids)} {state}" for state, ids in lists.items() if ids)
    )  # fmt: skip
    with on.client.pipeline(transaction=False) as together:
        for job_id in lists["completed"]:
            together.hmget(base + job_id, "returnvalue", "finishedOn", "atm")
            together.exists(f"{base}{job_id}:lock")
        replies = together.execute()
    for job_id, fields, locked in zip(lists["completed"], replies[::2], replies[1::2], strict=True):
        if fields[0] != job_id or not fields[1] or fields[2] != "1" or locked:
            claim(
                False, f"job {job_id} is completed and has result, time, count and no lock; it has {fields}, {locked}"
            )
    return {state: len(ids) for state, ids in lists.items()}


def play() -> None:
    with stage(__file__) as on:
        print("naive: one command after another, killed after each")
        torn = 0
        for step in range(1, len(STEPS)):
            what = torn_after(on, step)
            torn += bool(what)
            print(f"  killed after {STEPS[step - 1]}: {what or 'whole, and nobody works on job 2'}")
        claim(torn >= 4, f"{torn} of {len(STEPS) - 1} places to die leave a torn state")

        print(f"ours: one script; a worker is killed {KILLS} times at random moments while it finishes and fetches")
        on.client.flushdb()

        async def add() -> None:
            async with Queue("jobs", connection=on.url) as jobs:
                await jobs.add_bulk(JobSpec("job") for _ in range(JOBS))

        asyncio.run(add())
        chance = random.Random()
        for _ in range(KILLS):
            victim = on.start("worker")
            victim.says("works")
            time.sleep(chance.uniform(0.0, 0.03))
            victim.kill()
            audit(on)
        on.start("worker").says("works")
        until("every job is completed", lambda: on.client.zcard("emq:{jobs}:completed") == JOBS)
        claim(audit(on)["completed"] == JOBS, "the next worker finished what was left")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        run(play)
    else:
        {"naive-finish": naive_finish, "worker": worker}[sys.argv[1]](sys.argv[2])
