"""A newsletter: one job becomes a job for each reader, each mail is tried until it is sent, and nobody gets it twice.

    python examples/email_fanout/fanout.py [readers]

It needs no server: without ECHOMQ_URL one is started for the time of the run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

from post import Post

from echomq import Backoff, EchoMQ, Job
from echomq.idempotency import RedisOnce

app = EchoMQ(os.environ.get("ECHOMQ_URL") or "embedded://memory")
post = Post()
BATCH = 100


@app.task(queue="campaigns", attempts=3, pass_job=True)
async def campaign(job: Job[Any], name: str, readers: list[str]) -> int:
    """Makes a job for each reader.

    Should this process die half-way, the job runs again, from the start. That does no harm: the id of each mail's job says what
    it is, and an id is taken once.
    """
    for start in range(0, len(readers), BATCH):
        batch = readers[start : start + BATCH]
        await app.enqueue_all(mail.options(job_id=f"{name}/{reader}").spec(name, reader) for reader in batch)
        await job.update_progress({"enqueued": start + len(batch), "of": len(readers)})
    return len(readers)


@app.task(queue="mails", attempts=20, backoff=Backoff.exponential(0.05, jitter=0.5))
async def mail(campaign: str, reader: str) -> str:
    """Sends one mail. It may be called more than once for it: by a retry, or because a worker has died."""
    async with RedisOnce(app.connection) as once, once(f"mail:{campaign}:{reader}") as effect:
        if not effect.done:  # the provider is told the key, in case that our last call reached it and its answer not us
            effect.result = await post.send(reader, f"News: {campaign}", idempotency_key=effect.key)
        return str(effect.result)


async def main(count: int) -> None:
    logging.getLogger("echomq").setLevel(logging.ERROR)  # every mail that is tried again is a warning
    readers = [f"reader{number}@example.org" for number in range(count)]
    async with app, app.worker("campaigns"), app.worker("mails", concurrency=50):
        job = await campaign.enqueue("november", readers)
        twice = await campaign.enqueue("november", readers)  # somebody was impatient
        await asyncio.gather(job.result(), twice.result())
        mails = app.queue("mails")
        while unsent := sum((await mails.counts("waiting", "delayed", "active")).values()):
            print(f"{unsent} mails are to be sent")
            await asyncio.sleep(0.2)
        counts = await mails.counts("completed", "failed")
    print(
        f"{len(post.mails)} mails were sent to {len(set(post.mails.values()))} readers, in {post.calls} calls of the provider"
    )
    assert sorted(post.mails.values()) == sorted(readers), "each reader gets one mail"
    assert counts == {"completed": count, "failed": 0}


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
