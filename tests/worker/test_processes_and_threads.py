"""What a handler does to its process: it forks, or there is no thread left for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from echomq import Job, JobFailed, Queue, Worker
from tests.support.server import Server
from tests.support.wait import wait_until


def fork(pids: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        sys.exit(0)  # as a child that means to leave; it must not come back as a second worker
    pids.append(pid)
    return pid


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_the_child_of_a_fork_is_no_second_worker(server: Server, url: str, kind: str) -> None:
    pids: list[int] = []

    async def process(job: Job[Any]) -> Any:
        return fork(pids) if job.data == 3 else job.data

    def process_plainly(job: Job[Any]) -> Any:
        return fork(pids) if job.data == 3 else job.data

    handler: Callable[[Job[Any]], Any] = process if kind == "async" else process_plainly
    async with Queue("forks", connection=url) as queue, Worker("forks", handler, connection=url, concurrency=4):
        jobs = [await queue.add("x", number) for number in range(8)]
        results = [await job.result(timeout=10) for job in jobs]
    assert results == [0, 1, 2, pids[0], 4, 5, 6, 7]
    await wait_until(lambda: os.waitpid(pids[0], os.WNOHANG)[0] == pids[0], what="the child has ended")
    await wait_until(lambda: not server.clients(), what="the child keeps none of our connections")


async def test_one_failed_thread_start_costs_one_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = threading.Thread.start, [1]

    def start(thread: threading.Thread) -> None:
        if failures[0] and thread.name.startswith("echomq-") and thread.name != "echomq-heartbeat":
            failures[0] -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)

    def double(job: Job[Any]) -> int:
        return 2 * int(job.data)

    async with Queue("threads", connection=url) as queue, Worker("threads", double, connection=url):
        with pytest.raises(JobFailed, match="can't start new thread"):
            await (await queue.add("x", 1)).result(timeout=10)
        assert await (await queue.add("x", 2)).result(timeout=10) == 4
