"""Polling costs commands when often, and latency when seldom. A worker that sleeps on the marker costs neither.

python examples/patterns/blocking_not_polling.py
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

from stage import Stage, claim, plain_client, run, stage, until

from echomq import Job, Queue, Worker

IDLE = 2.0
JOBS = 10
OFTEN, SELDOM = 0.01, 0.4


# -- the children ----------------------------------------------------------------------------------------------------------


def poller(url: str, pause: float) -> None:
    """Looks, sleeps, looks again."""
    client = plain_client(url)
    print("works", flush=True)
    while True:
        item = client.rpop("naive:jobs")
        if item is None:
            time.sleep(pause)
            continue
        client.rpush("naive:took", str(time.time() - float(item)))


def popper(url: str) -> None:
    """Blocks, but on the list of jobs itself."""
    client = plain_client(url)
    print("works", flush=True)
    client.brpop(["naive:jobs"])


def worker(url: str) -> None:
    """Ours: sleeps on the marker."""
    client = plain_client(url)

    async def process(job: Job[Any]) -> None:
        client.rpush("took", str(time.time() - job.data))

    async def work() -> None:
        async with Worker("jobs", process, connection=url) as worker:
            await worker.ready()
            print("works", flush=True)
            await worker.run()

    asyncio.run(work())


# -- the proof -------------------------------------------------------------------------------------------------------------


def commands_a_second(on: Stage) -> float:
    """How many commands the server carries out for an idle consumer; those inside scripts count."""
    on.client.config_resetstat()
    time.sleep(IDLE)
    calls: int = sum(stat["calls"] for name, stat in on.client.info("commandstats").items() if "config" not in name)
    return calls / IDLE


def report(name: str, on: Stage, commands: float, key: str) -> float:
    until(f"{JOBS} jobs were taken", lambda: on.client.llen(key) == JOBS)
    wait = statistics.median(map(float, on.client.lrange(key, 0, -1))) * 1000
    print(f"  {name:<26} {commands:7.1f} commands/s when idle   {wait:7.1f} ms from add to start (median)", flush=True)
    on.client.delete(key)
    return wait


def polling(on: Stage, pause: float) -> tuple[float, float]:
    child = on.start("poller", str(pause))
    child.says("works")
    commands = commands_a_second(on)
    for _ in range(JOBS):
        on.client.lpush("naive:jobs", str(time.time()))
        time.sleep(0.11)
    wait = report(f"polling every {pause:g} s", on, commands, "naive:took")
    child.kill()
    return commands, wait


def sleeping(on: Stage) -> tuple[float, float]:
    child = on.start("worker")
    child.says("works")
    commands = commands_a_second(on)

    async def add() -> None:
        async with Queue("jobs", connection=on.url) as jobs:
            for _ in range(JOBS):
                await jobs.add("job", time.time())
                await asyncio.sleep(0.11)

    asyncio.run(add())
    wait = report("sleeping on the marker", on, commands, "took")
    child.kill()
    return commands, wait


def play() -> None:
    with stage(__file__) as on:
        print("what an idle consumer costs, and how fast it starts a job")
        often, _ = polling(on, OFTEN)
        _, seldom = polling(on, SELDOM)
        idle, quick = sleeping(on)
        claim(idle < often / 10, "sleeping on the marker costs less than a tenth of polling often")
        claim(quick < seldom / 2, "and starts a job sooner than polling seldom")

        print("a consumer that blocks on the list itself, frozen while a job comes, then killed")
        consumer = on.start("popper")
        consumer.says("works")
        until("it blocks", lambda: any(client["cmd"] == "brpop" for client in on.client.client_list()))
        consumer.freeze()
        on.client.lpush("naive:jobs", "one")
        consumer.kill()
        claim(on.client.llen("naive:jobs") == 0, "the server had handed the job out: it is lost in the reply")

        print("a worker of ours, the same")
        victim = on.start("worker")
        victim.says("works")
        until("it blocks", lambda: any(client["cmd"] == "bzpopmin" for client in on.client.client_list()))
        victim.freeze()

        async def add() -> None:
            async with Queue("jobs", connection=on.url) as jobs:
                await jobs.add("job", time.time())

        asyncio.run(add())
        claim(not on.client.exists("emq:{jobs}:marker"), "the server has handed the marker out")
        victim.kill()
        claim(on.client.llen("emq:{jobs}:wait") == 1, "with it only a hint was lost: the job stands in wait")
        on.start("worker").says("works")
        until("it is completed", lambda: on.client.llen("emq:{jobs}:wait") == 0 and on.client.llen("took") == 1)
        claim(True, "and the next worker runs it")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        run(play)
    elif sys.argv[1] == "poller":
        poller(sys.argv[2], float(sys.argv[3]))
    else:
        {"popper": popper, "worker": worker}[sys.argv[1]](sys.argv[2])
