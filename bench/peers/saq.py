import asyncio

from saq import Queue, Worker

BULK, JOBS = 100, 5_000
SETTINGS = "gather(100 x enqueue); keeps job and result 600 s (its default)"
PACKAGES = ["saq", "redis", "hiredis", "uvloop"]


class Producer:
    async def open(self, url, cfg):
        self.queue = Queue.from_url(url, name="bench")
        await self.queue.connect()

    async def add(self, data):
        await self.queue.enqueue("job", payload=data)

    async def add_bulk(self, all_data):
        await asyncio.gather(*[self.queue.enqueue("job", payload=data) for data in all_data])

    async def close(self):
        await self.queue.disconnect()


def run_worker(url, cfg, probe):
    async def job(ctx, *, payload):
        await probe.ajob(payload)

    async def main():
        queue = Queue.from_url(url, name="bench")
        await queue.connect()
        await Worker(queue, functions=[("job", job)], concurrency=cfg["concurrency"]).start()

    asyncio.run(main())
