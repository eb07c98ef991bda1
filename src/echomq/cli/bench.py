"""``echomq bench``: how fast this machine and a server of yours are with jobs that do nothing."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from echomq import Connection, EchoMQError, Job, JobSpec, Keep, Queue, Worker
from echomq._store.keys import QueueKeys
from echomq.cli._loop import run_in_loop
from echomq.cli._remove import remove_queue

_BULK: Final = 1000
_PICK_UPS: Final = 200
_GAP: Final = 0.02
_PAYLOAD: Final = {"learner": 7, "course": "redis"}


@dataclass(frozen=True)
class Measured:
    """What was measured: jobs a second, and milliseconds from before an add to the first line of the handler."""

    server: str
    jobs: int
    concurrency: int
    add_per_second: float
    add_in_bulk_per_second: float
    drain_per_second: float
    latency_p50_ms: float
    latency_p99_ms: float


def bench(
    jobs: Annotated[
        int, typer.Option(min=100, max=1_000_000, metavar="N", help="How many jobs to add in bulk and drain.")
    ] = 20_000,
    concurrency: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="How many of them run at once.")
    ] = 100,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A server of yours; left out, an embedded one, for this run.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure adding, draining and latency with jobs that do nothing.

    In one process, on a queue of this run's own: it has a random name, and everything of it is removed at the end.
    Exit code 1: the server could not be used.
    """
    try:
        connection = Connection(url or "embedded://memory")
        measured = run_in_loop(_bench(connection, jobs, concurrency))
    except EchoMQError as error:
        typer.echo(f"echomq bench: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(asdict(measured)))
        return
    typer.echo(f"{measured.server}: {jobs:,} jobs that do nothing, {concurrency} at once, one process")
    for what, rate in (
        ("add one by one", measured.add_per_second),
        ("add in bulk", measured.add_in_bulk_per_second),
        ("drain", measured.drain_per_second),
    ):
        typer.echo(f"{what:<16} {rate:>10,.0f} jobs/s")
    latencies = f"p50 {measured.latency_p50_ms:.2f} ms, p99 {measured.latency_p99_ms:.2f} ms"
    typer.echo(f"{'pick-up latency':<16} {latencies} (from before the add to the handler, of an idle worker)")


async def _bench(connection: Connection, jobs: int, concurrency: int) -> Measured:
    keys = QueueKeys.of(f"bench-{secrets.token_hex(8)}")
    hub = connection.acquire()
    try:
        link = await hub.link(hash_tag=True)
        try:
            async with Queue(keys.queue, connection=connection) as queue:
                few = max(20, jobs // 10)
                bulk = await _add_in_bulk(queue, jobs)
                drain = await _drain(queue, jobs, concurrency)
                single = await _add_one_by_one(queue, few)
                await _drain(queue, few, concurrency)
                latencies = sorted(await _latencies(queue, min(few, _PICK_UPS), concurrency))
        finally:
            await remove_queue(link, keys)
    finally:
        await hub.release()
    return Measured(
        server=connection.where,
        jobs=jobs,
        concurrency=concurrency,
        add_per_second=single,
        add_in_bulk_per_second=bulk,
        drain_per_second=drain,
        latency_p50_ms=latencies[len(latencies) // 2] * 1000,
        latency_p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
    )


async def _add_in_bulk(queue: Queue, jobs: int) -> float:
    started = time.perf_counter()
    for first in range(0, jobs, _BULK):
        await queue.add_bulk(JobSpec("bench", _PAYLOAD) for _ in range(min(_BULK, jobs - first)))
    return jobs / (time.perf_counter() - started)


async def _add_one_by_one(queue: Queue, jobs: int) -> float:
    started = time.perf_counter()
    for _ in range(jobs):
        await queue.add("bench", _PAYLOAD)
    return jobs / (time.perf_counter() - started)


async def _drain(queue: Queue, jobs: int, concurrency: int) -> float:
    """From the start of the first job to the end of the last."""
    moments: list[float] = []

    async def process(job: Job[Any]) -> None:
        moments.append(time.perf_counter())

    worker = Worker(queue, process, concurrency=concurrency, remove_on_complete=Keep.ALL)
    await worker.run_until_drained()
    if len(moments) < jobs:
        raise EchoMQError(f"only {len(moments)} of {jobs} jobs were run: does another program remove them?")
    return len(moments) / max(moments[-1] - moments[0], 1e-9)


async def _latencies(queue: Queue, jobs: int, concurrency: int) -> list[float]:
    """Of jobs that come one at a time to a worker that waits for them."""
    started: asyncio.Queue[float] = asyncio.Queue()

    async def process(job: Job[Any]) -> None:
        started.put_nowait(time.perf_counter())

    latencies = []
    async with Worker(queue, process, concurrency=concurrency) as worker:
        await worker.ready()
        for _ in range(jobs):
            await asyncio.sleep(_GAP)
            added = time.perf_counter()
            await queue.add("bench", _PAYLOAD)
            latencies.append(await started.get() - added)
    return latencies
