"""Queues and workers for Prometheus: what is shown, parsed by its own client, also while the server is away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from echomq import Connection, InvalidOption, Job, JobFailed, JobSpec, Queue, RetryLater, Worker, metrics
from echomq.metrics import QueueCollector, WorkerMetrics, prometheus_text
from tests.support.server import Server
from tests.support.wait import wait_until

Samples = dict[tuple[str, ...], float]


def parsed(text: str) -> Samples:
    """The name of a sample and the values of its labels, and what it is."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(registry: CollectorRegistry) -> Samples:
    return parsed(generate_latest(registry).decode())


async def scraped(registry: CollectorRegistry) -> Samples:
    return await asyncio.to_thread(scrape, registry)


@pytest.fixture
def collect(url: str) -> Iterator[Callable[..., CollectorRegistry]]:
    """Makes a registry with a collector of its own."""
    made: list[QueueCollector] = []

    def make(*queues: str | Queue, **options: Any) -> CollectorRegistry:
        given = {} if queues and isinstance(queues[0], Queue) else {"connection": url}
        made.append(QueueCollector(*queues, **{**given, **options}))
        registry = CollectorRegistry(auto_describe=True)
        registry.register(made[-1])
        return registry

    yield make
    for collector in made:
        collector.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "echomq-metrics"]


async def process(job: Job[Any]) -> None:
    if job.name == "fail":
        raise ValueError("as planned")
    if job.name == "later":
        raise RetryLater(60)


async def test_a_queue_at_one_moment(url: str, server: Server, collect: Callable[..., CollectorRegistry]) -> None:
    async with Queue("q", connection=url) as queue:
        await queue.add_bulk([JobSpec("done"), JobSpec("done"), JobSpec("fail"), JobSpec("later")])
        async with Worker(queue, process, metrics_points=10) as worker:
            await wait_until(lambda: counted(queue, completed=2, failed=1, delayed=1))
            assert (await scraped(collect("q")))["echomq_queue_workers", "{q}"] == 1
            await worker.close()
        await queue.pause()
        waiting = (await queue.add_bulk([JobSpec("w"), JobSpec("w", priority=3), JobSpec("w", delay=60)]))[0]
        with server.client() as client:
            client.hincrby(f"emq:{{q}}:{waiting.id}", "timestamp", -90_000)
        await queue.rate_limit(50)
        found = await scraped(collect("q"))
    assert {name[2]: value for name, value in found.items() if name[0] == "bullmq_job_count"} == {
        "active": 0,
        "completed": 2,
        "delayed": 2,
        "failed": 1,
        "prioritized": 1,
        "waiting": 1,
        "waiting-children": 0,
    }
    assert found["bullmq_job_completed_total", "{q}"] == 2
    assert found["bullmq_job_failed_total", "{q}"] == 1
    assert 90 <= found["echomq_queue_oldest_waiting_seconds", "{q}"] < 150
    assert 40 < found["echomq_queue_rate_limited_seconds", "{q}"] <= 50
    assert found["echomq_queue_paused", "{q}"] == 1
    assert found["echomq_queue_workers", "{q}"] == 0
    assert found["echomq_up",] == 1
    assert found["echomq_queues_left_out",] == 0


async def counted(queue: Queue, **wanted: int) -> bool:
    counts = await queue.counts()
    return all(counts[state] == count for state, count in wanted.items())  # type: ignore[index]


async def test_what_was_never_there_has_no_totals(collect: Callable[..., CollectorRegistry]) -> None:
    found = await scraped(collect("nowhere"))
    assert found["bullmq_job_count", "{nowhere}", "waiting"] == 0
    assert found["echomq_queue_oldest_waiting_seconds", "{nowhere}"] == 0
    assert not [name for name in found if name[0].endswith("_total")]


async def test_a_wait_begins_when_a_job_is_due_or_was_last_in_hand(
    url: str, server: Server, collect: Callable[..., CollectorRegistry]
) -> None:
    async with Queue("q", connection=url) as queue:
        registry = collect(queue)
        job = await queue.add("w", delay=3600)
        await queue.pause()
        with server.client() as client:
            client.hincrby(f"emq:{{q}}:{job.id}", "timestamp", -3_700_000)
            await job.promote()
            assert 100 <= (await scraped(registry))["echomq_queue_oldest_waiting_seconds", "{q}"] < 160
            now = int(client.hget(f"emq:{{q}}:{job.id}", "timestamp")) + 3_700_000  # type: ignore[arg-type]
            client.hset(f"emq:{{q}}:{job.id}", "processedOn", now - 7_000)
            assert 7 <= (await scraped(registry))["echomq_queue_oldest_waiting_seconds", "{q}"] < 60
            client.hset(f"emq:{{q}}:{job.id}", "opts", "rubbish")
            assert (await scraped(registry))["echomq_queue_oldest_waiting_seconds", "{q}"] < 60


async def test_all_queues_of_a_prefix_up_to_a_number(url: str, collect: Callable[..., CollectorRegistry]) -> None:
    async with Connection(url) as connection:
        for name, prefix in (("a", "emq"), ("b*[", "emq"), ("c", "emq"), ("d", "bull"), ("c", "emqx"), ("e", "em")):
            async with Queue(name, connection=connection, prefix=prefix) as queue:
                await queue.add("w")
    shows = {name[1] for name in await scraped(collect(max_queues=2)) if len(name) > 1}
    found = await scraped(collect(max_queues=2))
    assert shows == {"{a}", "{b*[}"}
    assert found["echomq_queues_left_out",] == 1
    bull = await scraped(collect(prefix="bull"))
    assert {name[1] for name in bull if len(name) > 1} == {"d"}


async def test_looking_for_queues_may_take_longer_than_a_scrape(
    url: str, collect: Callable[..., CollectorRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Queue.names

    async def among_very_many_keys(*args: Any, **options: Any) -> list[str]:
        await asyncio.sleep(1)
        return await names(*args, **options)

    monkeypatch.setattr(Queue, "names", among_very_many_keys)
    async with Connection(url) as connection, Queue("a", connection=connection) as queue:
        await queue.add("w")
        registry = collect(timeout=0.4)

        async def shows(*names: str) -> bool:
            found = await scraped(registry)
            return all(("bullmq_job_count", name, "waiting") in found for name in names)

        assert not await shows("{a}")
        await wait_until(lambda: shows("{a}"), timeout=20)
        monkeypatch.setattr(metrics, "_NAMES_EVERY", 0.0)  # so it is always under way
        await wait_until(lambda: shows("{a}"), timeout=20)
        async with Queue("b", connection=connection) as other:
            await other.add("w")
            await wait_until(lambda: shows("{a}", "{b}"), timeout=20)
    found = await scraped(collect(timeout=0.4))
    assert found["echomq_up",] == 0
    assert not [name for name in found if name[0] == "bullmq_job_count"]


async def test_a_connection_that_is_closed_is_no_server(
    url: str, collect: Callable[..., CollectorRegistry], caplog: pytest.LogCaptureFixture
) -> None:
    async with Connection(url) as connection:
        registries = [collect(Queue("q", connection=connection)), collect(connection=connection)]
    for registry in registries:
        assert (await scraped(registry))["echomq_up",] == 0
        assert "closed" in caplog.text
        caplog.clear()


async def test_a_broken_queue_is_left_out_and_said_once(
    url: str, server: Server, collect: Callable[..., CollectorRegistry], caplog: pytest.LogCaptureFixture
) -> None:
    async with Connection(url) as connection:
        for name in ("good", "bad"):
            async with Queue(name, connection=connection) as queue:
                await queue.add("w")
    with server.client() as client:
        client.delete("emq:{bad}:wait")
        client.set("emq:{bad}:wait", "rubbish")
    registry = collect("good", "bad")
    for _ in range(2):
        found = await scraped(registry)
        assert {name[1] for name in found if name[0] == "bullmq_job_count"} == {"{good}"}
        assert found["echomq_up",] == 1
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("metrics: ")]
    assert len(said) == 1
    assert "emq:{bad}:wait must be a list" in said[0]


async def test_an_outage_is_shown_and_survived(
    make_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    async with Connection(server.url, wait=0) as connection, Queue("q", connection=connection) as queue:
        await queue.add("w")
        with QueueCollector(queue, timeout=2) as collector:
            registry = CollectorRegistry()
            registry.register(collector)
            assert (await scraped(registry))["bullmq_job_count", "{q}", "waiting"] == 1
            server.kill()
            for _ in range(2):
                found = await scraped(registry)
                assert {name: found[name] for name in found if len(name) > 1} == {}
                assert found["echomq_up",] == 0
            server.start()
            await wait_until(lambda: back(registry), 10)
    assert len([record for record in caplog.records if record.getMessage().startswith("metrics: ")]) <= 2


async def back(registry: CollectorRegistry) -> bool:
    return (await scraped(registry))["echomq_up",] == 1


async def test_a_server_that_is_silent_is_given_up_in_time(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with Connection(server.url) as connection, Queue("q", connection=connection) as queue:
        await queue.add("w")
        with QueueCollector(queue, timeout=0.2) as collector:
            registry = CollectorRegistry()
            registry.register(collector)
            assert (await scraped(registry))["echomq_up",] == 1
            server.pause()
            began = time.monotonic()
            assert (await scraped(registry))["echomq_up",] == 0
            assert time.monotonic() - began < 3
            server.resume()


def test_it_works_without_an_event_loop_and_in_several_threads(collect: Callable[..., CollectorRegistry]) -> None:
    registry = collect("q")
    found: list[Samples] = []
    threads = [threading.Thread(target=lambda: found.append(scrape(registry))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one["echomq_up",] for one in found] == [1] * 5


@pytest.mark.parametrize(
    ("queues", "options", "said"),
    [
        (("a:b",), {}, "a:b"),
        ((), {"prefix": ""}, "prefix"),
        ((), {"max_queues": 0}, "max_queues=0"),
        ((), {"timeout": -1}, "timeout=-1"),
    ],
)
def test_wrong_options_are_refused(url: str, queues: tuple[str, ...], options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        QueueCollector(*queues, connection=url, **options)


async def test_the_text_escapes_labels(url: str) -> None:
    async with Queue('q"\\', connection=url) as queue:
        text = await prometheus_text(queue, path='a\\b "c"\nd')
    assert not text.endswith("\n")
    assert ("bullmq_job_count", '{q"\\}', "active", 'a\\b "c"\nd') in parsed(text + "\n")


async def test_the_workers_of_this_process(url: str) -> None:
    registry = CollectorRegistry(auto_describe=True)
    metrics = WorkerMetrics(registry)
    go = asyncio.Event()

    async def hold(job: Job[Any]) -> None:
        await process(job)
        await go.wait()

    async with Queue("q", connection=url) as queue:
        async with Worker(queue, hold, concurrency=4, telemetry=metrics):
            jobs = await queue.add_bulk([JobSpec("done"), JobSpec("done"), JobSpec("fail"), JobSpec("later")])
            with pytest.raises(JobFailed):
                await jobs[2].result(timeout=10)
            await wait_until(lambda: counted(queue, active=2, delayed=1))
            found = await scraped(registry)
            assert found["echomq_runs_in_flight", "{q}"] == 2
            assert 0 <= found["echomq_event_loop_lag_seconds",] <= 1
            assert ("echomq_event_loop_lag_seconds",) not in scrape(registry)  # by the loop itself
            go.set()
            await jobs[0].result(timeout=10)
            await jobs[1].result(timeout=10)
    found = scrape(registry)
    assert found["echomq_runs_in_flight", "{q}"] == 0
    assert {name[1]: value for name, value in found.items() if name[0] == "echomq_runs_total"} == {
        "completed": 2,
        "failed": 1,
        "delayed": 1,
    }
    assert found["echomq_run_duration_seconds_count", "{q}"] == 4


@pytest.mark.parametrize(
    ("hidden", "make", "extra"),
    [
        ("prometheus_client", "from echomq.metrics import QueueCollector as C; C('q')", "metrics"),
        ("prometheus_client", "from echomq.metrics import WorkerMetrics as C; C()", "metrics"),
        ("opentelemetry", "from echomq.telemetry import OpenTelemetry as C; C()", "otel"),
    ],
)
def test_what_is_not_installed_is_named(url: str, hidden: str, make: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{hidden!r}] = None
import echomq, echomq.telemetry, echomq.metrics
from echomq.metrics import prometheus_text
try:
    {make}
except ModuleNotFoundError as error:
    assert "pip install 'echomq[{extra}]'" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, env={"ECHOMQ_URL": url})


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    # What of OpenTelemetry the client library imports by itself is another matter.
    program = "import sys, echomq, echomq.telemetry; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
