"""A worker dies while it holds a job. A popped item is gone; a moved one is not.

python examples/patterns/processing_list.py
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from stage import SHORT, claim, plain_client, run, stage, until

from echomq import Job, Queue, Worker

JOBS = ["a", "b", "c"]


# -- the children ----------------------------------------------------------------------------------------------------------


def popping_consumer(url: str) -> None:
    """The naive consumer: pop, then work. Between the two, the item is nowhere but here."""
    client = plain_client(url)
    while True:
        _, item = client.brpop(["naive:jobs"])
        print("holds", item, flush=True)
        sys.stdin.readline()  # the work; it takes as long as we are let
        client.rpush("naive:done", item)
        print("did", item, flush=True)


def moving_consumer(url: str) -> None:
    """A worker of ours. The job stays on the server while it runs: in ``active``, under a lock."""

    def process(job: Job[Any]) -> None:
        print("holds", job.data["item"], flush=True)
        sys.stdin.readline()
        print("did", job.data["item"], flush=True)

    async def work() -> None:
        async with Worker("jobs", process, connection=url, **SHORT) as worker:
            await worker.run()

    asyncio.run(work())


# -- the proof -------------------------------------------------------------------------------------------------------------


def play() -> None:
    with stage(__file__) as on:
        print("naive: pop, work")
        on.client.lpush("naive:jobs", *JOBS)
        first = on.start("popping")
        held = first.says("holds")
        first.kill()
        print(f"  killed while it held {held!r}")
        second = on.start("popping")
        for _ in range(len(JOBS) - 1):
            second.says("holds")
            second.go_on()
            second.says("did")
        second.kill()
        done = on.client.lrange("naive:done", 0, -1)
        claim(held not in done, f"{held!r} was never done")
        anywhere = [key for key in on.client.keys("naive:*") if held in on.client.lrange(key, 0, -1)]
        claim(not anywhere, f"{held!r} stands in no key of the server: it is lost, and nothing knows it")

        print("ours: move into active under a lock, work, finish")

        async def add() -> None:
            async with Queue("jobs", connection=on.url) as jobs:
                for item in JOBS:
                    await jobs.add("job", {"item": item})

        asyncio.run(add())
        first = on.start("moving")
        held = first.says("holds")
        first.kill()
        print(f"  killed while it held {held!r}")
        in_flight = on.client.lrange("emq:{jobs}:active", 0, -1)
        claim(
            [on.client.hget(f"emq:{{jobs}}:{job_id}", "data") for job_id in in_flight] == [f'{{"item":"{held}"}}'],
            f"{held!r} is still on the server, in active",
        )
        second = on.start("moving")
        did = []
        for _ in JOBS:
            second.says("holds")
            second.go_on()
            did.append(second.says("did"))
        until("every job is completed", lambda: on.client.zcard("emq:{jobs}:completed") == len(JOBS))
        claim(sorted(did) == JOBS, f"the next worker did all of them: {', '.join(did)}")
        claim(on.client.llen("emq:{jobs}:active") == 0, "nothing is left in active")


if __name__ == "__main__":
    children = {"popping": popping_consumer, "moving": moving_consumer}
    if len(sys.argv) > 1:
        children[sys.argv[1]](sys.argv[2])
    else:
        run(play)
