import asyncio

from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisStreamBroker

BULK, JOBS = 100, 6_000
SETTINGS = "gather(100 x kiq); no result backend (its default); stream: XREADGROUP + XACK, entries never trimmed"
PACKAGES = ["taskiq", "taskiq-redis", "redis", "hiredis", "uvloop"]


def _broker(url, cfg, probe=None):
    kind = RedisStreamBroker if cfg.get("variant") == "stream" else ListQueueBroker
    broker = kind(url, queue_name="bench")

    @broker.task(task_name="job")
    async def job(data: dict):
        await probe.ajob(data)

    return broker, job


class Producer:
    async def open(self, url, cfg):
        self.broker, self.job = _broker(url, cfg)
        await self.broker.startup()

    async def add(self, data):
        await self.job.kiq(data)

    async def add_bulk(self, all_data):
        await asyncio.gather(*[self.job.kiq(data) for data in all_data])

    async def close(self):
        await self.broker.shutdown()


def run_worker(url, cfg, probe):
    broker, _ = _broker(url, cfg, probe)
    asyncio.run(run_receiver_task(broker, max_async_tasks=cfg["concurrency"], run_startup=True))
