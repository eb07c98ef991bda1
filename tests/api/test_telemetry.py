"""Telemetry: what is told of adds, runs and verbs, whose span is whose parent, and that a broken one does no harm."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from echomq import (
    Connection,
    EchoMQ,
    Every,
    InvalidOption,
    Job,
    JobFailed,
    JobScheduler,
    JobSpec,
    Queue,
    QueueFull,
    RateLimited,
    RetryLater,
    Worker,
)
from echomq.telemetry import Attributes, JobContextFilter, OpenTelemetry, RunEnd, Span, SpanKind
from tests.support.server import Server
from tests.support.wait import wait_until

ERROR, UNSET = trace.StatusCode.ERROR, trace.StatusCode.UNSET


class Backend:
    """Where a test's spans and counts end up."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.telemetry = OpenTelemetry(self.provider, self.meters)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    async def span(self, name: str, times: int = 1) -> ReadableSpan:
        """The last of so many."""
        await wait_until(lambda: len(self.named(name)) >= times, 10, name)
        return self.named(name)[times - 1]

    def counts(self) -> dict[tuple[str, str], float]:
        """By instrument and job name, or state; of a histogram how many values it has."""
        found: dict[tuple[str, str], float] = {}
        data = self.reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            for point in metric.data.data_points:
                about = dict(point.attributes or {})
                assert about.pop("bullmq.queue.name") == "{q}"
                [which] = about.values()
                value = point.count if hasattr(point, "count") else point.value
                found[metric.name, str(which)] = value
        return found


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.meters.shutdown()
    made.provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def about(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


async def nothing(job: Job[Any]) -> None:
    pass


async def test_an_add_is_the_parent_of_its_run_and_a_run_of_what_it_does(url: str, backend: Backend) -> None:
    async with Connection(url) as connection, Queue("q", connection=connection, telemetry=backend.telemetry) as queue:

        async def process(job: Job[Any]) -> int:
            if job.name == "outer":
                await queue.add("inner")
            return 7

        tracer = trace.get_tracer("test", tracer_provider=backend.provider)
        with tracer.start_as_current_span("request") as request:
            job = await queue.add("outer", attempts=3)
            assert trace.get_current_span() is request
        assert not trace.get_current_span().get_span_context().is_valid
        async with Worker(queue, process, name="w"):
            outer, inner = await backend.span("process {q}"), await backend.span("process {q}", 2)
        added, within = await backend.span("add {q}.outer"), await backend.span("add {q}.inner")
        assert [parent_of(span) for span in (added, outer, within, inner)] == [
            request.get_span_context().span_id,
            id_of(added),
            id_of(outer),
            id_of(within),
        ]
        assert [added.kind, outer.kind] == [trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER]
        assert about(added) == {
            "bullmq.queue.name": "{q}",
            "bullmq.queue.operation": "add",
            "bullmq.job.name": "outer",
            "bullmq.job.id": job.id,
        }
        found = dict(about(outer))
        assert found.pop("bullmq.worker.id")
        times = found.pop("bullmq.job.processed.timestamp"), found.pop("bullmq.job.attempt_finished_timestamp")
        assert abs(times[1] - times[0]) < 10_000
        assert found == {
            "bullmq.queue.name": "{q}",
            "bullmq.queue.operation": "process",
            "bullmq.job.name": "outer",
            "bullmq.job.id": job.id,
            "bullmq.job.attempts.made": 1,
            "bullmq.job.state": "completed",
            "bullmq.worker.name": "w",
        }
        read = await queue.get_job(job.id)
        assert read is not None
        assert read.opts.attempts == 3
        assert set(read.opts.others) == {"tm"}


async def test_a_run_is_not_below_what_its_worker_was_started_in(url: str, backend: Backend) -> None:
    tracer = trace.get_tracer("test", tracer_provider=backend.provider)
    async with Queue("q", connection=url, telemetry=backend.telemetry) as queue:
        with tracer.start_as_current_span("start of the program") as span:
            async with Worker(queue, nothing):
                carries = await queue.add("carries")
                await queue.add("carries nothing", omit_context=True)
                first, second = await backend.span("process {q}"), await backend.span("process {q}", 2)
                assert trace.get_current_span() is span
    if about(first)["bullmq.job.id"] != carries.id:
        first, second = second, first
    assert parent_of(first) == id_of(await backend.span("add {q}.carries"))
    assert second.parent is None


async def test_handlers_in_threads_run_inside_their_span(url: str, backend: Backend) -> None:
    seen: list[int] = []
    async with EchoMQ(url, telemetry=backend.telemetry) as app:

        @app.task(queue="q")
        def plain() -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)

        job = await plain.enqueue()
        async with app.worker("q"):
            await job.result(timeout=10)
            span = await backend.span("process {q}")
    assert seen == [id_of(span)]
    assert parent_of(span) == id_of(await backend.span("add {q}.plain"))


async def test_errors_are_recorded_and_attempts_share_their_parent(url: str, backend: Backend) -> None:
    async def process(job: Job[Any]) -> None:
        raise ValueError("as planned")

    async with Queue("q", connection=url, telemetry=backend.telemetry) as queue:
        job = await queue.add("fail", attempts=2)
        async with Worker(queue, process):
            with pytest.raises(JobFailed):
                await job.result(timeout=10)
            first, second = await backend.span("process {q}"), await backend.span("process {q}", 2)
        added = await backend.span("add {q}.fail")
        assert parent_of(first) == parent_of(second) == id_of(added)
        for span in (first, second):
            assert (span.status.status_code, span.status.description) == (ERROR, "ValueError: as planned")
            [event] = span.events
            assert event.attributes is not None
            assert (event.attributes["exception.type"], event.attributes["exception.message"]) == (
                "ValueError",
                "as planned",
            )
            assert about(span)["bullmq.job.failed.reason"] == "ValueError: as planned"
        assert [about(span)["bullmq.job.state"] for span in (first, second)] == ["waiting", "failed"]
        assert [about(span)["bullmq.job.attempts.made"] for span in (first, second)] == [1, 2]
        await queue.counts("failed", "waiting_children")
    found = backend.counts()
    assert found == {
        ("bullmq.jobs.retried", "fail"): 1,
        ("bullmq.jobs.failed", "fail"): 1,
        ("bullmq.job.duration", "fail"): 2,
        ("bullmq.queue.jobs", "failed"): 1,
        ("bullmq.queue.jobs", "waiting-children"): 0,
    }


async def test_what_is_put_off_or_given_back_has_not_failed(url: str, backend: Backend) -> None:
    begun = asyncio.Event()

    async def process(job: Job[Any]) -> None:
        if job.name == "later":
            raise RetryLater(60)
        if job.name == "limited":
            if job.attempts_started == 1:
                raise RateLimited(0.001)
            return
        begun.set()
        await asyncio.sleep(60)

    async with Queue("q", connection=url, telemetry=backend.telemetry) as queue:
        async with Worker(queue, process, shutdown_timeout=0) as worker:
            await queue.add("later")
            await backend.span("process {q}")
            await queue.add("limited")
            await backend.span("process {q}", 3)
            await queue.add("slow")
            await begun.wait()
            await worker.close()
        spans = backend.named("process {q}")
        assert [about(span)["bullmq.job.state"] for span in spans] == ["delayed", "waiting", "completed", "waiting"]
        assert [about(span)["bullmq.job.attempts.made"] for span in spans] == [0, 0, 1, 0]
        assert {span.status.status_code for span in spans} == {UNSET}
        assert not any(span.events for span in spans)
    found = backend.counts()
    assert found["bullmq.jobs.delayed", "later"] == 1
    assert found["bullmq.jobs.waiting", "limited"] == 1
    assert found["bullmq.jobs.waiting", "slow"] == 1


async def test_verbs_are_operations(url: str, backend: Backend) -> None:
    async with Queue("q", connection=url, telemetry=backend.telemetry, max_size=3) as queue:
        later = await queue.add("later", delay=60)
        await later.change_delay(30)
        await later.promote()
        await later.change_priority(2)
        await later.remove()
        await queue.pause()
        await queue.resume()
        await queue.admin.retry_all()
        await queue.admin.promote_all()
        await queue.admin.drain()
        await queue.admin.clean("failed", 0)
        scheduler = JobScheduler(queue)
        await scheduler.upsert("daily", Every(3600, offset=1), JobSpec("sweep"))
        await scheduler.remove("daily")
        await queue.add_bulk([JobSpec("a"), JobSpec("b"), JobSpec("a")])
        with pytest.raises(QueueFull):
            await queue.add("c")
    spans = {span.name: span for span in backend.spans.get_finished_spans()}
    assert list(spans) == [
        "add {q}.later", "changeDelay {q}", "promote {q}", "changePriority {q}", "remove {q}", "pause {q}", "resume {q}",
        "retryJobs {q}", "promoteJobs {q}", "drain {q}", "clean {q}",
        "upsertJobScheduler {q}", "removeJobScheduler {q}", "addBulk {q}", "add {q}.c",
    ]  # fmt: skip
    producers = [name for name, span in spans.items() if span.kind is trace.SpanKind.PRODUCER]
    assert producers == ["add {q}.later", "retryJobs {q}", "upsertJobScheduler {q}", "addBulk {q}", "add {q}.c"]
    assert about(spans["promote {q}"])["bullmq.job.id"] == later.id
    assert about(spans["promote {q}"])["bullmq.job.name"] == "later"
    assert about(spans["upsertJobScheduler {q}"])["bullmq.job.scheduler.id"] == "daily"
    assert about(spans["upsertJobScheduler {q}"])["bullmq.job.name"] == "sweep"
    assert about(spans["addBulk {q}"])["bullmq.job.bulk.count"] == 3
    assert about(spans["addBulk {q}"])["bullmq.job.bulk.names"] == ("a", "b")
    assert spans["add {q}.c"].status.status_code is ERROR
    assert spans["pause {q}"].status.status_code is UNSET


@pytest.mark.parametrize(
    "carried",
    ["rubbish", "[]", "[" * 100_000, '{"traceparent": 7}', '{"traceparent": "00-x-y-01"}', 7, None],
    ids=lambda carried: str(carried)[:20],
)
async def test_a_context_that_cannot_be_read_is_none(
    url: str, server: Server, backend: Backend, carried: object
) -> None:
    async with Queue("q", connection=url) as queue:
        await queue.pause()
        job = await queue.add("nothing")
        with server.client() as client:
            client.hset(f"emq:{{q}}:{job.id}", "opts", json.dumps({"tm": carried}))
        await queue.resume()
        async with Worker(queue, nothing, telemetry=backend.telemetry):
            span = await backend.span("process {q}")
    assert span.parent is None
    assert about(span)["bullmq.job.state"] == "completed"


def test_names_of_jobs_are_bounded_in_meters(backend: Backend) -> None:
    for number in range(1_100):
        backend.telemetry.run_ended("{q}", f"job {number}", "completed", 0.1)
    counts = backend.counts()
    assert len([which for name, which in counts if name == "bullmq.jobs.completed"]) == 1_001
    assert counts["bullmq.jobs.completed", "(others)"] == 100


async def test_without_telemetry_a_job_carries_nothing(url: str, server: Server) -> None:
    async with Queue("q", connection=url) as queue:
        job = await queue.add("nothing")
        with server.client() as client:
            assert client.hget(f"emq:{{q}}:{job.id}", "opts") == b'{"attempts":0}'


async def test_what_omits_its_context_begins_a_trace_of_its_own(url: str, server: Server, backend: Backend) -> None:
    async with EchoMQ(url, telemetry=backend.telemetry) as app:

        @app.task(queue="q", omit_context=True)
        async def alone() -> None: ...

        queue = app.queue("q")
        first = await queue.add("alone", omit_context=True)
        second, third = await queue.add_bulk([JobSpec("alone", omit_context=True), JobSpec("alone")])
        fourth = await alone.enqueue()
        fifth = await alone.options(omit_context=None).enqueue()
        with server.client() as client:
            opts = [json.loads(client.hget(f"emq:{{q}}:{job.id}", "opts") or "") for job in (first, second, fourth)]
            assert opts == [{"attempts": 0, "omc": True}] * 3
        await app.worker("q").run_until_drained()
    parents = {about(span)["bullmq.job.id"]: parent_of(span) for span in backend.named("process {q}")}
    assert [parents[job.id] is None for job in (first, second, third, fourth, fifth)] == [
        True,
        True,
        False,
        True,
        False,
    ]


async def test_without_a_backend_nothing_is_carried_and_all_works(url: str, server: Server) -> None:
    async with Queue("q", connection=url, telemetry=OpenTelemetry()) as queue:
        job = await queue.add("nothing", attempts=2)
        with server.client() as client:
            assert client.hget(f"emq:{{q}}:{job.id}", "opts") == b'{"attempts":2}'
        async with Worker(queue, nothing):
            assert await job.result(timeout=10) is None


async def test_results_are_told_only_if_wanted(url: str, backend: Backend) -> None:
    async def process(job: Job[Any]) -> str:
        return "x" * 2000

    async with Queue("q", connection=url) as queue:
        await queue.add("a")
        telemetry = OpenTelemetry(backend.provider, backend.meters, results=True)
        async with Worker(queue, process, telemetry=telemetry):
            span = await backend.span("process {q}")
    assert about(span)["bullmq.job.result"] == '"' + "x" * 1023


async def test_a_dead_letter_and_its_requeued_job_stay_in_the_trace(url: str, backend: Backend) -> None:
    async def process(job: Job[Any]) -> None:
        if job.queue_name == "q" and job.failed_reason is None:
            raise ValueError("as planned")

    async with Queue("q", connection=url, telemetry=backend.telemetry) as queue:
        job = await queue.add("fail")
        async with Worker(queue, process, dead_letter=True):
            with pytest.raises(JobFailed):
                await job.result(timeout=10)
            await wait_until(lambda: queue.dead_letter.requeue(), 10, "the letter")
            again = await backend.span("process {q}", 2)
    assert parent_of(again) == id_of(await backend.span("add {q}.fail"))


class Broken:
    """Raises wherever it is asked."""

    def __init__(self, where: str, error: type[BaseException]) -> None:
        self.where, self.error, self.raised = where, error, 0

    def fail(self, where: str) -> Any:
        if where == self.where:
            self.raised += 1
            raise self.error("broken")
        return None

    def start(self, operation: str, queue: str, kind: SpanKind, attributes: Attributes, carried: str | None) -> Span:
        self.fail("start")
        if self.where == "no span":
            self.raised += 1
            return object()  # type: ignore[return-value]
        return BrokenSpan(self)

    def run_ended(self, queue: str, job_name: str, end: RunEnd, seconds: float) -> None:
        self.fail("run_ended")

    def counted(self, queue: str, counts: Mapping[str, int]) -> None:
        self.fail("counted")


class BrokenSpan:
    def __init__(self, whole: Broken) -> None:
        self.whole = whole

    def carried(self) -> str | None:
        self.whole.fail("carried")
        return '"'

    def set(self, attributes: Attributes) -> None:
        self.whole.fail("set")

    def error(self, reason: str, error: BaseException | None) -> None:
        self.whole.fail("error")

    def end(self) -> None:
        self.whole.fail("end")


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("where", ["start", "no span", "run_ended", "counted", "carried", "set", "error", "end"])
async def test_a_broken_telemetry_does_no_harm(
    url: str, backend: Backend, caplog: pytest.LogCaptureFixture, where: str, error: type[BaseException]
) -> None:
    async def process(job: Job[Any]) -> int:
        if job.name == "fail":
            raise ValueError("as planned")
        return 7

    broken = Broken(where, error)
    async with Queue("q", connection=url, telemetry=[broken, backend.telemetry]) as queue:
        with caplog.at_level(logging.WARNING, "echomq"):
            async with Worker(queue, process):
                job = await queue.add("value")
                fail = (await queue.add_bulk([JobSpec("fail", attempts=2)]))[0]
                assert await job.result(timeout=10) == 7
                with pytest.raises(JobFailed):
                    await fail.result(timeout=10)
                await queue.counts()
                await queue.pause()
    assert broken.raised >= 1
    said = [record for record in caplog.records if "telemetry" in record.message]
    assert len(said) == 1
    assert said[0].exc_info is not None
    assert backend.named("pause {q}")
    assert backend.counts()["bullmq.jobs.completed", "value"] == 1


@pytest.mark.parametrize("telemetry", [7, "otel", [OpenTelemetry], OpenTelemetry])
@pytest.mark.parametrize(
    "make",
    [
        lambda telemetry: Queue("q", connection="redis://x", telemetry=telemetry),
        lambda telemetry: Worker("q", nothing, connection="redis://x", telemetry=telemetry),
        lambda telemetry: EchoMQ("redis://x", telemetry=telemetry),
    ],
)
def test_what_is_no_telemetry_is_refused(make: Callable[[Any], object], telemetry: object) -> None:
    with pytest.raises(InvalidOption, match=r"telemetry=.*must be an echomq\.telemetry\.OpenTelemetry"):
        make(telemetry)


# -- log lines


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobContextFilter())
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


async def test_lines_of_a_handler_carry_its_job(url: str) -> None:
    own, lines = logging.getLogger("somebody.else"), Lines()
    own.addHandler(lines)
    own.setLevel(logging.INFO)

    async def deeper() -> None:
        own.info("deeper")

    try:
        async with EchoMQ(url) as app:

            @app.task(queue="q")
            def plain() -> None:
                own.info("thread")

            @app.task(queue="q")
            async def coroutine() -> None:
                own.info("loop")
                await asyncio.create_task(deeper())

            own.info("outside")
            jobs = [await plain.enqueue(), await coroutine.enqueue()]
            async with app.worker("q"):
                await asyncio.gather(*(job.result(timeout=10) for job in jobs))
            own.info("outside again", extra={"job_id": "mine"})
    finally:
        own.removeHandler(lines)
    found = {
        record.message if hasattr(record, "message") else record.getMessage(): tuple(
            getattr(record, name) for name in ("queue", "job_id", "job_name")
        )
        for record in lines.records
    }
    assert found == {
        "outside": ("", "", ""),
        "thread": ("q", jobs[0].id, "plain"),
        "loop": ("q", jobs[1].id, "coroutine"),
        "deeper": ("q", jobs[1].id, "coroutine"),
        "outside again": ("", "mine", ""),
    }
