"""Traces and meters with OpenTelemetry, and the job's id in a program's own log lines.

``OpenTelemetry`` needs ``pip install 'echomq[otel]'``; nothing else here does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from echomq._log import running_job
from echomq._telemetry import JOB_NAME, QUEUE, Attributes, RunEnd, Span, SpanKind, Telemetry, Value
from echomq._version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = [
    "Attributes",
    "JobContextFilter",
    "OpenTelemetry",
    "RunEnd",
    "Span",
    "SpanKind",
    "Telemetry",
    "Value",
]

_NAME: Final = "echomq"
_MOST_NAMES: Final = 1_000
_OTHERS: Final = "(others)"
_COUNTERS: Final[Mapping[RunEnd, str]] = {
    "completed": "Runs after which a job has completed",
    "failed": "Runs after which a job has failed for good",
    "retried": "Runs that failed, and after which the job runs again",
    "delayed": "Runs whose handler put its job off",
    "waiting": "Runs after which the job went back to the line",
    "waiting_children": "Runs after which the job waits for its children",
    "cancelled": "Runs of jobs that somebody has cancelled",
}


class OpenTelemetry:
    """Tells OpenTelemetry what queues and workers do, with the names that BullMQ's own telemetry uses.

    Give it as ``telemetry=`` to a ``Queue``, a ``Worker`` or an ``EchoMQ``; one object serves them all. An add is a span whose
    context the job carries, and the job's run is a span below it, in whatever process and language that is.

    Args:
        tracer_provider: left out, the one that the program has set.
        meter_provider: the same for meters.
        results: let spans of runs have the job's result, too, cut at 1,024 characters. It may hold what nobody should see.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed.

    Example:
        >>> app = EchoMQ("redis://localhost:6379/0", telemetry=OpenTelemetry())
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        results: bool = False,
    ) -> None:
        try:
            from opentelemetry import context, metrics, propagate, trace
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "OpenTelemetry is not installed: pip install 'echomq[otel]'", name=error.name
            ) from error
        self._context = context
        self._propagate = propagate
        self._trace = trace
        self._kinds = {
            "producer": trace.SpanKind.PRODUCER,
            "consumer": trace.SpanKind.CONSUMER,
            "internal": trace.SpanKind.INTERNAL,
        }
        self._results = results
        self._names: set[str] = set()
        self._tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        self._counters = {
            end: meter.create_counter(f"bullmq.jobs.{end}", unit="{jobs}", description=description)
            for end, description in _COUNTERS.items()
        }
        self._durations = meter.create_histogram("bullmq.job.duration", unit="ms", description="How long runs took")
        self._jobs = meter.create_gauge("bullmq.queue.jobs", unit="{jobs}", description="Jobs by state")

    def start(self, operation: str, queue: str, kind: SpanKind, attributes: Attributes, carried: str | None) -> Span:
        """See ``Telemetry``."""
        # Where the worker was started says nothing about its jobs: without what they carry, their runs begin traces.
        above = self._context.Context() if kind == "consumer" else self._context.get_current()
        if carried is not None:
            above = self._propagate.extract(_carrier(carried), above)
        to = f"{queue}.{attributes[JOB_NAME]}" if operation == "add" else queue  # as BullMQ names its spans
        span = self._tracer.start_span(f"{operation} {to}", above, self._kinds[kind], attributes)
        return _OtelSpan(self, span, self._trace.set_span_in_context(span, above))

    def run_ended(self, queue: str, job_name: str, end: RunEnd, seconds: float) -> None:
        """See ``Telemetry``."""
        attributes = {QUEUE: queue, JOB_NAME: self._bounded(job_name)}
        self._counters[end].add(1, attributes)
        self._durations.record(seconds * 1000, attributes)

    def _bounded(self, job_name: str) -> str:
        """Meters keep something for each name for ever, and other programs may name jobs as they like."""
        if job_name not in self._names:
            if len(self._names) >= _MOST_NAMES:
                return _OTHERS
            self._names.add(job_name)
        return job_name

    def counted(self, queue: str, counts: Mapping[str, int]) -> None:
        """See ``Telemetry``."""
        for state, count in counts.items():
            self._jobs.set(count, {QUEUE: queue, "bullmq.queue.jobs.state": state})


class _OtelSpan:
    """A span of OpenTelemetry, current until its end."""

    def __init__(self, telemetry: OpenTelemetry, span: Any, inside: Any) -> None:
        self._telemetry = telemetry
        self._span = span
        self._inside = inside
        self._token = telemetry._context.attach(inside)

    def carried(self) -> str | None:
        carrier: dict[str, str] = {}
        self._telemetry._propagate.inject(carrier, self._inside)
        return json.dumps(carrier, separators=(",", ":")) if carrier else None

    def set(self, attributes: Attributes) -> None:
        for name, value in attributes.items():
            if name != _RESULT:
                self._span.set_attribute(name, value)
            elif self._telemetry._results:
                self._span.set_attribute(name, str(value)[:_MOST_OF_A_RESULT])

    def error(self, reason: str, error: BaseException | None) -> None:
        self._span.set_status(self._telemetry._trace.Status(self._telemetry._trace.StatusCode.ERROR, reason))
        if error is not None:
            self._span.record_exception(error)

    def end(self) -> None:
        self._telemetry._context.detach(self._token)
        self._span.end()


_RESULT: Final = "bullmq.job.result"
_MOST_OF_A_RESULT: Final = 1024


def _carrier(carried: str) -> dict[str, str]:
    """What a job carries. Whatever somebody wrote there, it is no reason to do without a span."""
    try:
        found = json.loads(carried)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


class JobContextFilter(logging.Filter):
    """Gives each log record that is made inside a job's run the attributes ``queue``, ``job_id`` and ``job_name``.

    Also to those of other libraries, of tasks that the handler starts, and of handlers in threads. Outside of a run they are
    empty texts. What a record has already, it keeps. Add it to a logging handler: a filter of a logger sees only what that very
    logger is given.

    Example:
        >>> handler = logging.StreamHandler()
        >>> handler.addFilter(JobContextFilter())
        >>> handler.setFormatter(logging.Formatter("%(levelname)s [%(queue)s %(job_id)s] %(message)s"))
        >>> logging.getLogger().addHandler(handler)
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the attributes. Lets every record pass."""
        job = running_job.get()
        for name, value in (
            ("queue", "" if job is None else job.queue_name),
            ("job_id", "" if job is None else job.id),
            ("job_name", "" if job is None else job.name),
        ):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
