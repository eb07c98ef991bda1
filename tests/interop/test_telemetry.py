"""Telemetry beside Node: a trace goes from its producer through our worker and back, and the counts are the same text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from echomq import JobSpec, Queue, Worker
from echomq.metrics import QueueCollector, prometheus_text
from echomq.telemetry import OpenTelemetry
from tests.interop.conftest import Pair
from tests.support.node_peer import NodePeer, PythonPeer
from tests.support.server import Server
from tests.support.wait import wait_until


class Ours:
    """Our telemetry, and the spans that it has made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = OpenTelemetry(provider)

    async def span(self, name: str) -> ReadableSpan:
        def found() -> list[ReadableSpan]:
            return [span for span in self._exporter.get_finished_spans() if span.name == name]

        await wait_until(lambda: bool(found()), 10, name)
        return found()[0]


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Trace, span and parent, as Node writes them."""
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    return (
        trace.format_trace_id(context.trace_id),
        trace.format_span_id(context.span_id),
        None if parent is None else trace.format_span_id(parent.span_id),
    )


async def theirs(node: NodePeer, name: str) -> dict[str, Any]:
    """The first span of this name that Node has ended."""
    found: list[dict[str, Any]] = []

    async def is_there() -> bool:
        found[:] = [span for span in await node("spans") if span["name"] == name]
        return bool(found)

    await wait_until(is_there, 10, name)
    return found[0]


async def test_a_trace_goes_from_node_through_our_worker_and_back(
    make_pair: Callable[..., Pair], node: NodePeer
) -> None:
    first, second = make_pair(), make_pair()
    ours = Ours()
    await node("trace")

    async def pass_on(job: Any) -> None:
        async with Queue(second.name, connection=first.connection, prefix="bull", telemetry=ours.telemetry) as queue:
            await queue.add("nothing")

    job_id = await first.theirs.add("nothing")
    await second.theirs.work()
    async with Worker(first.ours, pass_on, telemetry=ours.telemetry):
        added_there = await theirs(node, f"add {first.name}.nothing")
        process_here = await ours.span(f"process {first.name}")
        add_here = await ours.span(f"add {second.name}.nothing")
        process_there = await theirs(node, f"process {second.name}")
    there, here, again = ids(process_here), ids(add_here), process_there
    assert there == (added_there["trace"], there[1], added_there["id"])
    assert here == (added_there["trace"], here[1], there[1])
    assert (again["trace"], again["parent"]) == (added_there["trace"], here[1])
    assert json.loads((await first.theirs.job(job_id))["opts"]["telemetry"]["metadata"])["traceparent"].split("-")[
        1:3
    ] == [
        added_there["trace"],
        added_there["id"],
    ]
    # The names of attributes are theirs.
    assert set(add_here.attributes or {}) == set(added_there["attributes"])
    here_only = set(process_here.attributes or {}) - set(process_there["attributes"])
    assert here_only == {"bullmq.job.state", "bullmq.worker.name"}
    assert set(process_there["attributes"]) - set(process_here.attributes or {}) <= {"bullmq.job.finished.timestamp"}


async def test_add_bulk_and_a_failed_run(bull: Pair, node: NodePeer) -> None:
    ours = Ours()
    await node("trace")
    async with Queue(bull.name, connection=bull.connection, prefix="bull", telemetry=ours.telemetry) as queue:
        await queue.add_bulk([JobSpec("fail", {"reason": "as planned"}), JobSpec("nothing")])
    await bull.theirs.work()
    added = await ours.span(f"addBulk {bull.name}")
    run = await theirs(node, f"process {bull.name}")
    assert (run["trace"], run["parent"]) == ids(added)[:2]
    await bull.theirs.add_bulk([{"name": "fail", "data": {}}, {"name": "nothing", "data": {}}])
    there = await theirs(node, f"addBulk {bull.name}")
    assert {name: (added.attributes or {})[name] for name in there["attributes"]} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in there["attributes"].items()
    }


async def test_what_omits_its_context_begins_a_trace_of_its_own(bull: Pair, node: NodePeer) -> None:
    ours = Ours()
    await node("trace")
    await bull.theirs.add("nothing", telemetry={"omitContext": True})
    async with bull.worker(telemetry=ours.telemetry):
        span = await ours.span(f"process {bull.name}")
    assert span.parent is None


async def test_the_text_for_prometheus_is_theirs(pair: Pair, node: NodePeer) -> None:
    await pair.ours.add_bulk([JobSpec("nothing"), JobSpec("nothing", delay=60), JobSpec("nothing", priority=3)])
    failing = await pair.ours.add("fail")
    async with pair.worker(metrics_points=10):
        await wait_until(lambda: ended(pair), 10, "three have ended")
    assert (await pair.ours.get_job(failing.id)).state == "failed"  # type: ignore[union-attr]
    await pair.ours.add("nothing")
    for labels in ({}, {"env": 'a "b" \\ c\nd', "zone": "1"}):
        assert await prometheus_text(pair.ours, **labels) == await their_text(pair, labels)
    await pair.ours.pause()
    assert await prometheus_text(pair.ours) == await their_text(pair)


async def test_workers_of_all_runtimes_are_counted(bull: Pair, server: Server) -> None:
    await bull.theirs.work()
    await bull.theirs.work(name="named")
    registry = CollectorRegistry()
    with QueueCollector(bull.ours, "another", **elsewhere(bull)) as collector:
        registry.register(collector)
        async with bull.worker():
            with PythonPeer(server.tcp_url) as python:
                await python.queue(bull.theirs.name).work()
                await wait_until(lambda: counted(bull, registry, 4), 30, "four workers")
            await wait_until(lambda: counted(bull, registry, 3), 30, "three workers, when its process has ended")


def elsewhere(pair: Pair) -> dict[str, Any]:
    return {"connection": pair.connection, "prefix": "bull"}


async def counted(pair: Pair, registry: CollectorRegistry, wanted: int) -> bool:
    def count(queue: str) -> float | None:
        return registry.get_sample_value("echomq_queue_workers", {"queue": queue})

    assert await asyncio.to_thread(count, "another") == 0
    return await asyncio.to_thread(count, pair.name) == wanted == len(await pair.ours.workers())


async def their_text(pair: Pair, labels: dict[str, str] | None = None) -> str:
    """Without the line of a state that only version 5 has: its own list of what waits in a paused queue."""
    text: str = await pair.theirs.call("exportPrometheusMetrics", *([labels] if labels else []))
    return "\n".join(line for line in text.split("\n") if 'state="paused"' not in line)


async def ended(pair: Pair) -> bool:
    counts = await pair.ours.counts("completed", "failed")
    return sum(counts.values()) == 3
