"""Worker processes in great numbers: all is imported once, and each is a fork, there within milliseconds.

Its argument is JSON: ``url``, ``queue``, ``report``, ``options`` of the worker. For each line that it reads it starts one, and
writes its process id; when one has ended, ``PID CODE``. They end with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

from echomq import Job, Worker
from echomq.cli._logs import LogFormat, log_to_stderr
from echomq.cli._loop import run_in_loop
from echomq.cli.worker.announce import Announcer
from echomq.cli.worker.process import Process

DIE_WITH_PARENT = 1


def work(told: dict[str, Any]) -> int:
    report = os.open(told["report"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(what: str, job: Job[Any]) -> None:
        line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), "job": job.id}
        os.write(report, json.dumps(line).encode() + b"\n")

    async def process(job: Job[Any]) -> None:
        say("start", job)
        await asyncio.sleep(job.data["seconds"])
        say("end", job)  # nothing may come between this and the end of the run

    worker = Worker(told["queue"], process, connection=told["url"], **told["options"])
    return run_in_loop(Process([worker], Announcer(None, False, LogFormat.text), None).run())


def fork(told: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, int(signal.SIGKILL))
        if os.getppid() == parent:
            random.seed()
            code = work(told)
    finally:
        os._exit(code)


def main(told: dict[str, Any]) -> None:
    log_to_stderr(30, LogFormat.text)
    guard = threading.Lock()

    def reap(pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        with guard:
            print(pid, os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201

    pids: list[int] = []
    for _ in sys.stdin:
        pids.append(fork(told))
        with guard:
            print(pids[-1], flush=True)  # noqa: T201
        threading.Thread(target=reap, args=(pids[-1],), daemon=True).start()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
