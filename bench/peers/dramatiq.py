import threading

import dramatiq
import redis
from dramatiq import Worker
from dramatiq.brokers.redis import RedisBroker

BULK, JOBS = 100, 6_000
SETTINGS = "a loop of send (it has no bulk path); no results; threads; acknowledged after the run"
PACKAGES = ["dramatiq", "redis", "hiredis"]


def _broker(url):
    pool = redis.ConnectionPool.from_url(url, max_connections=2000)  # redis-py 8 stops at 100 by default
    broker = RedisBroker(client=redis.Redis(connection_pool=pool))
    dramatiq.set_broker(broker)
    return broker


class Producer:
    async def open(self, url, cfg):
        self.broker = _broker(url)

        @dramatiq.actor(actor_name="job")
        def job(data):
            """Runs in the worker."""

        self.job = job

    async def add(self, data):
        self.job.send(data)

    async def add_bulk(self, all_data):
        for data in all_data:
            self.job.send(data)

    async def close(self):
        self.broker.close()


def run_worker(url, cfg, probe):
    broker = _broker(url)

    @dramatiq.actor(actor_name="job")
    def job(data):
        probe.job(data)

    Worker(broker, worker_threads=cfg["concurrency"]).start()
    threading.Event().wait()
