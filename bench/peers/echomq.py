import asyncio
import signal

from echomq import JobSpec, Keep, Queue, Worker

BULK, JOBS = 1000, 60_000
SETTINGS = (
    "add_bulk(1000); keeps all completed jobs (Keep.ALL, as Node does), lock and stalled check; asyncio: no uvloop"
)
PACKAGES = ["echomq", "redis", "hiredis", "msgspec", "uvloop"]


class Producer:
    async def open(self, url, cfg):
        self.queue = Queue("bench", connection=url)

    async def add(self, data):
        await self.queue.add("job", data)

    async def add_bulk(self, all_data):
        await self.queue.add_bulk([JobSpec("job", data) for data in all_data])

    async def close(self):
        await self.queue.close()


def run_worker(url, cfg, probe):
    async def process(job):
        await probe.ajob(job.data)

    async def main():
        keep = Keep.DEFAULT if cfg.get("variant") == "trimming" else Keep.ALL
        worker = Worker(
            "bench",
            process,
            connection=url,
            concurrency=cfg["concurrency"],
            remove_on_complete=keep,
            remove_on_fail=keep,
        )
        async with worker:
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
            await stop.wait()

    asyncio.run(main())
