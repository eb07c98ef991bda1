import asyncio

from bullmq import Queue, Worker

BULK, JOBS = 1000, 6_000
SETTINGS = "addBulk(1000); keeps completed jobs, lock and stalled check (its defaults)"
PACKAGES = ["bullmq", "redis", "hiredis", "uvloop"]


class Producer:
    async def open(self, url, cfg):
        self.queue = Queue("bench", {"connection": url})

    async def add(self, data):
        await self.queue.add("job", data)

    async def add_bulk(self, all_data):
        await self.queue.addBulk([{"name": "job", "data": data} for data in all_data])

    async def close(self):
        await self.queue.close()


def run_worker(url, cfg, probe):
    async def process(job, token):
        await probe.ajob(job.data)

    async def main():
        worker = Worker("bench", process, {"connection": url, "concurrency": cfg["concurrency"]})
        await asyncio.Event().wait()
        await worker.close()

    asyncio.run(main())
