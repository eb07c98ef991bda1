"""A worker with a store of large payloads, for the tests to kill: ``payload_worker.py URL FOLDER WHERE``.

When the store comes to WHERE (``get``, ``put``, ``written``) it says so on the output and stays there. Each start of the
handler is a line in ``FOLDER/starts``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from echomq.job import Job
from echomq.payloads import Compressed, Encrypted, FileStore, Offloaded
from echomq.worker import Worker


class Staying(FileStore):
    """A folder that stays where it is told."""

    def __init__(self, folder: Path, stay_at: str) -> None:
        super().__init__(folder)
        self._stay_at = stay_at

    def get(self, key: str) -> bytes:
        self._reach("get")
        return super().get(key)

    def put(self, key: str, body: bytes) -> None:
        self._reach("put")
        super().put(key, body)
        self._reach("written")

    def _reach(self, place: str) -> None:
        if place == self._stay_at:
            os.write(1, f"{place}\n".encode())
            time.sleep(60)


async def main(url: str, folder: Path, stay_at: str) -> None:
    async def process(job: Job[Any]) -> Any:
        with (folder / "starts").open("a") as starts:
            starts.write(f"{job.id}\n")
        return {"was": job.data}

    key = (folder / "key").read_text()
    codec = [Compressed(above=10), Encrypted(key), Offloaded(Staying(folder / "payloads", stay_at), above=100)]
    worker = Worker(
        "q", process, connection=url, codec=codec, lock_duration=1, stalled_interval=0.2, shutdown_timeout=0
    )
    running = asyncio.create_task(worker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        os._exit(0)  # a thread of the store sleeps


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
