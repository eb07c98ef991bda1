"""``echomq workers``: who works."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from echomq.cli import _text
from echomq.cli._shell import Shell, command
from echomq.models import WorkerInfo

_AT_ONCE: Final = 10
"""Queues that are asked at the same time: for each the server goes through its list of clients."""


@command()
async def workers(
    shell: Shell,
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", help="Only these queues; left out, all of the prefix.")
    ] = None,
) -> None:
    """List the workers, and what they run.

    Those of other runtimes only show that they are connected, and what they have in hand. Exit code 3: a
    queue is not there.
    """
    names = queues or await shell.names()
    limit = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str) -> list[WorkerInfo]:
        async with limit:
            queue = shell.queue(name)
            here = await queue.workers()
            if queues and not here:
                await shell.must_exist(queue)
            return here

    found = [worker for some in await asyncio.gather(*map(look, names)) for worker in some]
    head = ["QUEUE", "WORKER", "HOST", "PID", "VERSION", "RUNS", "LAG", "UP", "SEEN", "JOBS"]
    shell.answer({"workers": found}, _text.table(head, [_row(worker) for worker in found], right=(3, 5, 6)))


def _row(worker: WorkerInfo) -> list[str]:
    slots = "?" if worker.slots is None else str(worker.slots)
    seen = _text.age(worker.last_seen)
    state = "".join((" (paused)" if worker.paused else "", " (not connected)" if worker.is_connected is False else ""))
    return [
        _text.one_line(worker.queue, 40),
        _text.one_line(worker.name, 40) + state,
        _text.one_line(worker.host or worker.address or "", 40),
        str(worker.pid or ""),
        _text.one_line(f"echomq {worker.version}" if worker.version else worker.library or "", 30),
        f"{len(worker.jobs)}/{slots}{_going_on(worker.going_on)}",
        "" if worker.loop_lag is None else _text.duration(worker.loop_lag),
        "" if worker.started_at is None else _text.age(worker.started_at).removesuffix(" ago"),
        seen,
        _text.one_line(", ".join(job.id for job in worker.jobs), 60),
    ]


def _going_on(handlers: int | None) -> str:
    return "" if not handlers else " (1 goes on)" if handlers == 1 else f" ({handlers} go on)"
