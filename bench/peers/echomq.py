import asyncio
import functools
import signal

from echomq import Call, EchoMQ, JobSpec, Keep, ProcessPool, Queue, Worker

BULK, JOBS, PROCESSES = 1000, 60_000, 2
SETTINGS = (
    "add_bulk(1000); keeps all completed jobs (Keep.ALL, as Node does), lock and stalled check; asyncio: no uvloop"
)
PACKAGES = ["echomq", "redis", "hiredis", "msgspec", "uvloop"]


class Producer:
    async def open(self, url, cfg):
        self.queue = Queue("bench", connection=url)
        if cfg.get("variant") == "tasks":
            self.app, self.task = _app(url)
            self.add, self.add_bulk = self._enqueue, self._enqueue_all

    async def _enqueue(self, data):
        await self.task.enqueue(**data)

    async def _enqueue_all(self, all_data):
        await self.app.enqueue_all([self.task.spec(**data) for data in all_data])

    async def add(self, data):
        await self.queue.add("job", data)

    async def add_bulk(self, all_data):
        await self.queue.add_bulk([JobSpec("job", data) for data in all_data])

    async def close(self):
        await self.queue.close()


def nothing(data):
    """Runs in a process."""


def _app(url, probe=None):
    app = EchoMQ(url)

    @app.task(queue="bench", name="job")
    async def job(n: int, user: str) -> None:
        await probe.ajob({"n": n, "user": user})

    return app, job


def _handler(variant, probe):
    async def process(job):
        await probe.ajob(job.data)

    def process_in_thread(job):
        probe.job(job.data)

    def route(job):  # there is no probe in a process: a job counts from here on, so the last ones may not have ended
        probe.job(job.data)
        return Call(functools.partial(nothing, job.data), process=True)

    if variant == "processes":
        return {"route": route, "processes": ProcessPool(size=PROCESSES)}
    return {"processor": process_in_thread if variant == "threads" else process}


def run_worker(url, cfg, probe):
    async def main():
        keep = Keep.DEFAULT if cfg.get("variant") == "trimming" else Keep.ALL
        options = {"concurrency": cfg["concurrency"], "remove_on_complete": keep, "remove_on_fail": keep}
        if cfg.get("variant") == "tasks":
            worker = _app(url, probe)[0].worker("bench", **options)
        else:
            worker = Worker("bench", **_handler(cfg.get("variant"), probe), connection=url, **options)
        async with worker:
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
            await stop.wait()

    asyncio.run(main())
