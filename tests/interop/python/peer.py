"""BullMQ for Python on the far side of a test: the same language as ../node/peer.mjs, as far as its tests need it.

It runs in a virtual environment of its own (requirements/peers.txt). It ends with its standard input.

    python peer.py URL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from bullmq import Queue, Worker  # type: ignore[import-not-found]


def send(line: dict[str, Any]) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


class Peer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.open: dict[str, Any] = {}

    def queue(self, given: dict[str, Any]) -> Any:
        name, prefix = given["queue"], given["prefix"]
        key = f"queue {prefix} {name}"
        if key not in self.open:
            self.open[key] = Queue(name, {"connection": self.url, "prefix": prefix})
        return self.open[key]

    async def add(self, given: dict[str, Any]) -> dict[str, str]:
        job = await self.queue(given).add(given["name"], given.get("data", {}), given["opts"])
        return {"id": job.id}

    async def pause(self, given: dict[str, Any]) -> None:
        await self.queue(given).pause()

    async def resume(self, given: dict[str, Any]) -> None:
        await self.queue(given).resume()

    async def isPaused(self, given: dict[str, Any]) -> bool:
        return bool(await self.queue(given).isPaused())

    async def work(self, given: dict[str, Any]) -> None:
        handle = given["worker"]

        async def process(job: Any, token: str) -> Any:
            send({"news": "start", "worker": handle, "id": job.id, "name": job.name})
            if job.name == "slow":
                await asyncio.sleep(job.data["seconds"])
            send({"news": "return", "worker": handle, "id": job.id, "name": job.name})
            return job.data

        options = {"connection": self.url, "prefix": given["prefix"], **given["options"]}
        self.open[f"worker {handle}"] = Worker(given["queue"], process, options)

    async def reset(self, given: dict[str, Any]) -> None:
        opened, self.open = list(self.open.values()), {}
        for one in opened:
            await one.close()

    async def answer(self, line: bytes) -> None:
        given = json.loads(line)
        try:
            send({"n": given["n"], "ok": await getattr(self, given["op"])(given)})
        except Exception as error:
            send({"n": given["n"], "error": {"name": type(error).__name__, "message": str(error)}})


async def main(url: str) -> None:
    peer = Peer(url)
    loop = asyncio.get_running_loop()
    tasks = set()

    def take(line: bytes) -> None:
        task = loop.create_task(peer.answer(line))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(take, line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
