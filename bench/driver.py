"""One side of a Python peer: ``python driver.py PEER worker|produce '{…}'``, run by the peer's own interpreter.

It imports nothing but the standard library and the peer's adapter. What it measured goes to the file ``out``.
``driver.mjs`` is its twin for Node.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

now = time.monotonic_ns


def cpu() -> float:
    """Seconds of processor time that this process has used."""
    return time.process_time()


def write(out: str, result: dict[str, Any]) -> None:
    """Leaves the result, whole."""
    made = Path(out + ".tmp")
    made.write_text(json.dumps(result))
    made.rename(out)


def payload(number: int) -> dict[str, Any]:
    return {"n": number, "user": "u123"}


class Probe:
    """Counts the jobs of a worker. The first start begins the measurement, the ``n``-th end closes it.

    A clock is read at both ends, and for each job with ``record``; otherwise a job costs two counters and a mark.
    """

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.n = cfg["n"]
        self.out = cfg["out"]
        self.cap_s = cfg.get("cap_s")
        self.settle_s = cfg.get("settle_s", 0.6)  # for what the worker still has to store
        self.starts: dict[int, int] | None = {} if cfg.get("record") else None
        self.seen = bytearray(cfg.get("ids", self.n) + 1)
        self._started, self._finished = itertools.count(1), itertools.count(1)  # safe in threads
        self.started = self.finished = 0
        self.written = threading.Lock()

    async def ajob(self, data: dict[str, Any]) -> None:
        self.job(data)

    def job(self, data: dict[str, Any]) -> None:
        number = data["n"]
        self.started = next(self._started)
        if self.started == 1:
            self._begin()
        self.seen[number] += 1
        if self.starts is not None:
            self.starts[number] = now()
        self.finished = finished = next(self._finished)
        if finished == self.n:
            self._end(finished)

    def _begin(self) -> None:
        self.t0, self.cpu0 = now(), cpu()
        if self.cap_s:
            self._later(self.cap_s, lambda: self._end(self.finished))

    def _end(self, count: int) -> None:
        if not self.written.acquire(blocking=False):
            return
        measured = {"jobs": count, "elapsed": (now() - self.t0) / 1e9, "cpu_s": cpu() - self.cpu0}
        self._later(self.settle_s, lambda: self._write(measured))

    def _write(self, measured: dict[str, Any]) -> None:
        measured |= {
            "started": self.started,
            "distinct": sum(map(bool, self.seen)),
            "partial": measured["jobs"] < self.n,
            "starts": self.starts,
        }
        write(self.out, measured)

    @staticmethod
    def _later(seconds: float, what: Any) -> None:
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()


async def produce(peer: Any, cfg: dict[str, Any]) -> None:
    """Adds ``n`` jobs: one by one, in bulk, or one each ``gap_s`` seconds."""
    producer = peer.Producer()
    await producer.open(cfg["url"], cfg)
    first, end, mode = cfg.get("first", 0), cfg.get("first", 0) + cfg["n"], cfg["mode"]
    result: dict[str, Any] = {"jobs": cfg["n"]}
    if mode == "paced":  # the first one connects; it is not measured
        await producer.add(payload(0))
        await asyncio.sleep(1)
    cpu0, t0 = cpu(), now()
    if mode == "single":
        for number in range(first, end):
            await producer.add(payload(number))
    elif mode == "bulk":
        for start in range(first, end, peer.BULK):
            await producer.add_bulk([payload(number) for number in range(start, min(start + peer.BULK, end))])
    else:
        sent = result["sent"] = {}
        for number in range(first, end):
            wait = (t0 + (number - first) * cfg["gap_s"] * 1e9 - now()) / 1e9
            await asyncio.sleep(max(wait, 0))
            sent[number] = now()
            await producer.add(payload(number))
    result |= {"elapsed": (now() - t0) / 1e9, "cpu_s": cpu() - cpu0}
    await producer.close()
    write(cfg["out"], result)


def main() -> None:
    name, role, cfg = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    logging.basicConfig(level=logging.ERROR)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    peer = importlib.import_module(f"peers.{name}")
    if not (name == "echomq" and cfg.get("variant") == "asyncio"):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if role == "worker":
        peer.run_worker(cfg["url"], cfg, Probe(cfg))
    else:
        asyncio.run(produce(peer, cfg))


if __name__ == "__main__":
    main()
