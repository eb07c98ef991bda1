"""Programs whose start scripts do more than start a worker: what of it their processes do again, and what is logged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TASKS = """\
import os
from echomq import EchoMQ

app = EchoMQ("embedded://memory")

@app.task(queue="t", process=True)
def work() -> int:
    return os.getpid()
"""
STARTS = """\
import asyncio, os
from tasks import app, work

print("the start script is run", flush=True)

async def main():
    async with app, app.worker("t"):
        assert await (await work.enqueue()).result(timeout=30) != os.getpid()

if __name__ == "__main__":
    asyncio.run(main())
"""

LAZY = """\
import logging
from seen import Seen

logging.getLogger("lazy").addHandler(Seen("its own"))
logging.getLogger("lazy").propagate = False

def work():
    logging.getLogger("lazy").warning("from a route")
"""
SEEN = """\
import logging, os

class Seen(logging.Handler):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def emit(self, record):
        print(os.getpid(), self.kind, record.name, record.getMessage(), flush=True)
"""
LOGS = """\
import asyncio, logging, logging.config, os
from echomq import Call, EchoMQ, ProcessPool, Worker
import lazy
from seen import Seen

app = EchoMQ("embedded://memory")

logging.config.dictConfig({
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"seen": {"()": Seen, "kind": "configured"}},
    "root": {"handlers": ["seen"], "level": "INFO"},
    "loggers": {"apart": {"handlers": ["seen"], "propagate": False}},
})
logging.getLogger("shop").addHandler(Seen("its own"))

@app.task(queue="t", process=True)
def work() -> None:
    logging.getLogger("shop").warning("charged")
    logging.getLogger("shop").debug("in detail")
    logging.getLogger("apart").warning("by itself")
    logging.getLogger("other").debug("in too much detail")

def route(job):
    return Call(lazy.work, process=True)

async def main():
    logging.getLogger("shop").setLevel("DEBUG")
    logging.getLogger("echomq").setLevel("ERROR")
    logging.getLogger("asyncio").setLevel("ERROR")
    pool = ProcessPool(size=1)
    async with app, app.worker("t", processes=pool), Worker("r", route=route, connection=app.connection, processes=pool):
        await (await work.enqueue()).result(timeout=30)
        await (await app.queue("r").add("x")).result(timeout=30)
    print(os.getpid(), "is the worker")

if __name__ == "__main__":
    asyncio.run(main())
"""


def run(folder: Path, **modules: str) -> str:
    """What a program prints that is made of these modules; the last one is the start script."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    program = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=folder, capture_output=True, text=True, timeout=50, check=False
    )
    assert program.returncode == 0, program.stderr
    return program.stdout


def test_a_start_script_is_not_run_again_for_tasks_of_another_module(tmp_path: Path) -> None:
    assert run(tmp_path, tasks=TASKS, start=STARTS) == "the start script is run\n"


def test_what_is_logged_in_a_process_reaches_each_handler_of_the_worker_once(tmp_path: Path) -> None:
    *lines, last = run(tmp_path, seen=SEEN, lazy=LAZY, logs=LOGS).splitlines()
    worker = last.removesuffix(" is the worker")
    assert sorted(lines) == sorted(
        f"{worker} {line}"
        for line in (
            "its own shop charged",
            "configured shop charged",
            "its own shop in detail",
            "configured shop in detail",
            "configured apart by itself",
            "its own lazy from a route",
        )
    )
