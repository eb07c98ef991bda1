import asyncio

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

BULK, JOBS = 100, 5_000
SETTINGS = "gather(100 x enqueue_job); keeps the result 1 h (its default); poll_delay 0.01 instead of 0.5 s, or c=1 is 2 jobs/s"
PACKAGES = ["arq", "redis", "hiredis", "uvloop"]


class Producer:
    async def open(self, url, cfg):
        self.pool = await create_pool(RedisSettings.from_dsn(url))

    async def add(self, data):
        await self.pool.enqueue_job("job", data)

    async def add_bulk(self, all_data):
        await asyncio.gather(*[self.pool.enqueue_job("job", data) for data in all_data])

    async def close(self):
        await self.pool.aclose()


def run_worker(url, cfg, probe):
    async def job(ctx, data):
        await probe.ajob(data)

    asyncio.set_event_loop(asyncio.new_event_loop())
    Worker(
        [func(job, name="job")],
        redis_settings=RedisSettings.from_dsn(url),
        max_jobs=cfg["concurrency"],
        poll_delay=0.01,
        handle_signals=False,
    ).run()
