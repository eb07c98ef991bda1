"""A worker in a process of its own, which a test may kill. It writes what it does into a file, a line for each thing.

Its argument is JSON: ``url``, ``queue``, ``report`` (the file), ``options`` of the worker, and by how many seconds its
``clock`` is ahead. What a job does stands in its
data: ``seconds`` it takes, and ``how``: ``sleep`` (the default), ``block`` (the event loop) or ``thread``.
SIGTERM stops it in order, as it does the command line's worker; a second one at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import time_machine

from echomq import Call, Job, OutcomesNotStored, Worker


class Report:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, what: str, job: Job[Any] | None = None, **more: Any) -> None:
        line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **more}
        if job is not None:
            line |= {"job": job.id, "starts": job.attempts_started, "name": job.name}
        os.write(self._file, json.dumps(line).encode() + b"\n")  # one write: lines of several processes do not mix


async def main(told: dict[str, Any]) -> int:
    report = Report(told["report"])

    def route(job: Job[Any]) -> Call:
        seconds, how = job.data.get("seconds", 0), job.data.get("how", "sleep")

        async def run() -> str:
            report("start", job)
            try:
                if how == "block":
                    time.sleep(seconds)
                else:
                    await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                report("cancelled", job)
                raise
            report("end", job)
            return job.id

        def run_in_thread() -> str:
            report("start", job)
            time.sleep(seconds)
            report("end", job)
            return job.id

        return Call(run_in_thread if how == "thread" else run)

    worker = Worker(told["queue"], route=route, connection=told["url"], **told["options"])
    running = asyncio.create_task(worker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await worker.ready()
    report("ready")
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await running
    except OutcomesNotStored as error:
        report("not stored", jobs=error.job_ids)
        return 75
    report("stopped")
    return 0


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    if told["clock"]:
        time_machine.travel(time.time() + told["clock"], tick=True).start()
    logging.basicConfig(level=logging.INFO, format="%(process)d %(asctime)s %(levelname)s %(message)s")
    sys.exit(asyncio.run(main(told)))
