"""Queues and workers for Prometheus.

``prometheus_text`` needs nothing; the classes need ``pip install 'echomq[metrics]'``.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from echomq._log import Seldom
from echomq._store.gauges import Gauges, gauges, workers_of
from echomq._store.home import Home
from echomq._store.keys import QueueKeys
from echomq._telemetry import Attributes, RunEnd, Span, SpanKind
from echomq.connection import Connection
from echomq.errors import ConnectionLost, EchoMQError, ServerUnavailable
from echomq.options import Duration, check_whole, to_seconds
from echomq.queue import Queue

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
else:
    try:
        from prometheus_client.registry import Collector
    except ModuleNotFoundError:
        Collector = object  # said when one is made

__all__ = ["QueueCollector", "WorkerMetrics", "prometheus_text"]

_NAMES_EVERY: Final = 60.0
_LONGEST_LAG: Final = 1.0
_GRACE: Final = 1.0
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

_COUNT: Final = ("bullmq_job_count", "Number of jobs in the queue by state")
_COMPLETED: Final = ("bullmq_job_completed_total", "Total number of completed jobs")
_FAILED: Final = ("bullmq_job_failed_total", "Total number of failed jobs")

T = TypeVar("T")


async def prometheus_text(queue: Queue, **labels: str) -> str:
    """A queue's counts as Prometheus reads them, letter for letter what BullMQ's ``exportPrometheusMetrics`` gives.

    For programs that serve their own ``/metrics``; ``QueueCollector`` and ``echomq metrics`` say more. The totals of completed
    and failed jobs are counted by workers with ``metrics_points``; they are 0 where there are none.

    Args:
        queue: which.
        labels: more labels of each line.

    Raises:
        ServerUnavailable: the server could not be asked.

    Example:
        >>> print(await prometheus_text(queue, env="prod"))
    """
    found = await gauges(queue._home.line)
    more = "".join(f', {name}="{_escaped(value)}"' for name, value in labels.items())
    whose = f'queue="{_escaped(queue._home.keys.protocol_name)}"'
    lines = [
        *_head(_COUNT, "gauge"),
        *(f'{_COUNT[0]}{{{whose}, state="{state}"{more}}} {count}' for state, count in found.counts.items()),
        *_head(_COMPLETED, "counter"),
        f"{_COMPLETED[0]}{{{whose}{more}}} {found.completed or 0}",
        *_head(_FAILED, "counter"),
        f"{_FAILED[0]}{{{whose}{more}}} {found.failed or 0}",
    ]
    return "\n".join(lines)


def _head(metric: tuple[str, str], kind: str) -> tuple[str, str]:
    return f"# HELP {metric[0]} {metric[1]}", f"# TYPE {metric[0]} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class QueueCollector(Collector):
    """A collector for ``prometheus_client``: how many jobs are in which state, how long they wait, who works, what holds them up.

    Each scrape reads the server anew, one call for each queue, from an event loop in a thread of the collector's own. It takes
    some milliseconds, and blocks whoever scrapes: in an event loop, scrape with ``await asyncio.to_thread(…)``. When the server
    is away, a scrape shows ``echomq_up 0`` and nothing of the queues. docs/telemetry.md lists the metrics.

    Args:
        queues: names, or ``Queue`` objects, whose connections are used; left out, all queues of the prefix, looked for once a
            minute; while that takes longer than a scrape may, those that were found last are shown.
        connection, prefix, hash_tag: for those that are named, or looked for; as for ``Queue``.
        max_queues: of those that are looked for, show at most so many, the first by name; ``echomq_queues_left_out`` says how
            many more there are.
        timeout: seconds that a scrape may take.

    Raises:
        InvalidOption: an argument breaks a rule. ModuleNotFoundError: ``prometheus_client`` is not installed.

    Example:
        >>> from prometheus_client import REGISTRY, start_http_server
        >>> REGISTRY.register(QueueCollector("enrollments", connection="redis://localhost:6379/0"))
        >>> start_http_server(9464)
    """

    def __init__(
        self,
        *queues: str | Queue,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        max_queues: int = 100,
        timeout: Duration = 5.0,
    ) -> None:
        _need_prometheus()
        self._prefix = prefix
        self._hash_tag = hash_tag
        self._most = check_whole(max_queues, "max_queues", least=1, most=10_000)
        self._timeout = to_seconds(timeout, "timeout", least=0.01)
        named = [queue for queue in queues if not isinstance(queue, Queue)]
        self._connection = None if queues and not named else Connection.of(connection)
        keys = {name: QueueKeys.of(name, prefix=prefix, hash_tag=hash_tag) for name in named}
        QueueKeys.of("-", prefix=prefix, hash_tag=hash_tag)  # refused here, also where no queue is named
        self._given = [
            (queue._home.connection, queue._home.keys) if isinstance(queue, Queue) else (self._connection, keys[queue])
            for queue in queues
        ]
        self._thread = _LoopThread("echomq-metrics")
        self._one_at_a_time = threading.Lock()
        self._homes: dict[tuple[Connection, str], Home] = {}
        self._left_out = 0
        self._found: list[tuple[Connection | None, QueueKeys]] = []
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -math.inf
        self._seldom = Seldom()

    def describe(self) -> Iterable[Metric]:
        """The names, without asking the server."""
        return list(self._families(False, [], []))

    def collect(self) -> Iterator[Metric]:
        """Reads the queues. For ``prometheus_client``, from any thread but that of the event loop whose jobs must not wait."""
        with self._one_at_a_time:
            try:
                keys, found, workers = self._thread.run(self._read(), self._timeout + _GRACE)
            except (TimeoutError, EchoMQError, RuntimeError) as error:  # of a connection that is closed
                self._complain(str(error) or f"no answer within {self._timeout:g} s")
                keys, found, workers = [], None, []
        shows = [
            (one.protocol_name, values) for one, values in zip(keys, found or [], strict=True) if values is not None
        ]
        counts = [(one.protocol_name, count) for one, count in zip(keys, workers, strict=False)]
        yield from self._families(found is not None, shows, counts)

    def close(self) -> None:
        """Ends its thread and its connections. Unregister it first."""
        with self._one_at_a_time:
            self._thread.close(self._leave())

    def __enter__(self) -> QueueCollector:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- in its own event loop -----------------------------------------------------------------------------------------

    async def _read(self) -> tuple[list[QueueKeys], list[Gauges | None], list[int]]:
        async with asyncio.timeout(self._timeout):
            homes = await self._those_to_show()
            answers = await asyncio.gather(*(gauges(home.line) for home in homes), return_exceptions=True)
            found: list[Gauges | None] = []
            for answer in answers:
                if isinstance(answer, Gauges):
                    found.append(answer)
                elif isinstance(answer, EchoMQError) and not isinstance(answer, (ServerUnavailable, ConnectionLost)):
                    self._complain(str(answer))  # a broken key is a matter of that queue
                    found.append(None)
                else:
                    raise answer
            return [home.keys for home in homes], found, await self._workers(homes)

    async def _those_to_show(self) -> list[Home]:
        if not self._given:
            await self._look()
        wanted = self._given or self._found
        for connection, keys in wanted:
            assert connection is not None
            if (connection, keys.base) not in self._homes:
                self._homes[connection, keys.base] = Home(connection, keys)
        kept = {(connection, keys.base) for connection, keys in wanted}
        for gone in [one for one in self._homes if one not in kept]:
            await self._homes.pop(gone).close()
        return list(self._homes.values())

    async def _look(self) -> None:
        """Sees to it that the queues are looked for once a minute. Those that were found last are good until that is done."""
        looking = self._looking
        if looking is None or looking.get_loop() is not asyncio.get_running_loop():  # as in a fork
            if time.monotonic() - self._looked_at < _NAMES_EVERY:
                return
            looking = self._looking = asyncio.create_task(self._look_for_all(), name="echomq metrics")
        # It goes on when the time of this scrape is over.
        await asyncio.wait({looking}, timeout=self._timeout / 5 if self._found else None)
        if looking.done():
            self._looking = None
            try:
                looking.result()
            except EchoMQError as error:
                if not self._found:
                    raise
                self._complain(str(error))

    async def _look_for_all(self) -> None:
        assert self._connection is not None
        names = await Queue.names(self._connection, prefix=self._prefix, hash_tag=self._hash_tag)
        some = names[: self._most]
        self._found = [
            (self._connection, QueueKeys.of(name, prefix=self._prefix, hash_tag=self._hash_tag)) for name in some
        ]
        self._left_out = len(names) - len(some)
        self._looked_at = time.monotonic()

    async def _workers(self, homes: Sequence[Home]) -> list[int]:
        """For each queue; none at all where a server does not tell, and nobody can know."""
        if len({home.connection for home in homes}) != 1:
            by_connection = [await self._workers_at([home]) for home in homes]
            return [count for counts in by_connection for count in counts] if all(by_connection) else []
        return await self._workers_at(homes)

    async def _workers_at(self, homes: Sequence[Home]) -> list[int]:
        try:
            return await workers_of(homes[0].line, [home.keys for home in homes])
        except (ServerUnavailable, ConnectionLost):
            raise
        except EchoMQError as error:  # CLIENT LIST is not allowed everywhere
            self._complain(str(error))
            return []

    async def _leave(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
            self._looking = None
        homes, self._homes = list(self._homes.values()), {}
        for home in homes:
            await home.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _families(
        self, up: bool, shows: Sequence[tuple[str, Gauges]], workers: Sequence[tuple[str, int]]
    ) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily("echomq_up", "Whether the server answered this scrape", value=1.0 if up else 0.0)
        yield GaugeMetricFamily(
            "echomq_queues_left_out",
            "Queues of the prefix beyond max_queues, which are not shown",
            value=self._left_out,
        )
        counts = GaugeMetricFamily(*_COUNT, labels=["queue", "state"])
        completed = CounterMetricFamily(*_COMPLETED, labels=["queue"])
        failed = CounterMetricFamily(*_FAILED, labels=["queue"])
        oldest = GaugeMetricFamily(
            "echomq_queue_oldest_waiting_seconds", "For how long the job waits that runs next", labels=["queue"]
        )
        paused = GaugeMetricFamily("echomq_queue_paused", "Whether the queue is paused", labels=["queue"])
        limited = GaugeMetricFamily(
            "echomq_queue_rate_limited_seconds", "For how long a rate limit holds its workers", labels=["queue"]
        )
        connected = GaugeMetricFamily(
            "echomq_queue_workers", "Workers of any language that are connected", labels=["queue"]
        )
        for queue, found in shows:
            for state, count in found.counts.items():
                counts.add_metric([queue, state], count)
            if found.completed is not None:
                completed.add_metric([queue], found.completed)
            if found.failed is not None:
                failed.add_metric([queue], found.failed)
            oldest.add_metric([queue], found.oldest)
            paused.add_metric([queue], float(found.paused))
            limited.add_metric([queue], found.limited_for)
        for queue, count in workers:
            connected.add_metric([queue], count)
        yield from (counts, completed, failed, oldest, paused, limited, connected)

    def _complain(self, text: str) -> None:
        self._seldom.warning("metrics: %s", text)


class _LoopThread:
    """An event loop in a thread of its own, from its first use on; a forked child has another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Runs it there, and waits for it here."""
        if self._loop is None or self._process != os.getpid():
            self._process = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        finally:
            future.cancel()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Runs what is to be done there last, and ends it."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._process != os.getpid():
            last.close()
            return
        try:
            self.run(last, _GRACE)
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class WorkerMetrics:
    """What the workers of this process do, for ``prometheus_client``: how runs end, how long they take, how many there are.

    Give it as ``telemetry=`` to workers, or to an ``EchoMQ``; beside OpenTelemetry as ``telemetry=[OpenTelemetry(), metrics]``.

    Args:
        registry: where to register; left out, prometheus_client's own.

    Raises:
        ModuleNotFoundError: ``prometheus_client`` is not installed.

    Example:
        >>> app = EchoMQ(telemetry=WorkerMetrics())
        >>> start_http_server(9465)
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        _need_prometheus()
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        into = REGISTRY if registry is None else registry
        self._runs = Counter("echomq_runs", "Runs by what became of their job", ["queue", "end"], registry=into)
        self._seconds = Histogram(
            "echomq_run_duration_seconds", "How long runs took", ["queue"], registry=into, buckets=_BUCKETS
        )
        self._running = Gauge("echomq_runs_in_flight", "Runs under way", ["queue"], registry=into)
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}
        into.register(_LoopLag(self._loops))

    def start(self, operation: str, queue: str, kind: SpanKind, attributes: Attributes, carried: str | None) -> Span:
        """See ``Telemetry``."""
        if kind != "consumer":
            return _NO_SPAN
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = threading.get_ident()
        return _InFlight(self._running.labels(queue))

    def run_ended(self, queue: str, job_name: str, end: RunEnd, seconds: float) -> None:
        """See ``Telemetry``."""
        self._runs.labels(queue, end).inc()
        self._seconds.labels(queue).observe(seconds)

    def counted(self, queue: str, counts: Mapping[str, int]) -> None:
        """See ``Telemetry``."""


class _NoSpan:
    """Nothing to tell of an operation."""

    def carried(self) -> str | None:
        return None

    def set(self, attributes: Attributes) -> None:
        pass

    def error(self, reason: str, error: BaseException | None) -> None:
        pass

    def end(self) -> None:
        pass


_NO_SPAN: Final = _NoSpan()


class _InFlight(_NoSpan):
    """One run under way."""

    def __init__(self, gauge: Any) -> None:
        self._gauge = gauge
        gauge.inc()

    def end(self) -> None:
        self._gauge.dec()


class _LoopLag(Collector):
    """How long the event loops of workers take to answer at this moment; at most a second is waited for."""

    def __init__(self, loops: dict[asyncio.AbstractEventLoop, int]) -> None:
        self._loops = loops

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        asked, began = [], time.monotonic()
        for loop, thread in list(self._loops.items()):
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                self._loops.pop(loop, None)  # it has ended
                continue
            if thread != threading.get_ident():  # else it answers whoever scrapes, and nothing can be measured
                asked.append(answered)
        worst = 0.0
        for answered in asked:
            answered.wait(max(began + _LONGEST_LAG - time.monotonic(), 0.0))
            worst = time.monotonic() - began
        if asked:
            family.add_metric([], worst)
        yield family

    def _family(self) -> Any:
        from prometheus_client.metrics_core import GaugeMetricFamily

        return GaugeMetricFamily(
            "echomq_event_loop_lag_seconds", "How long the slowest event loop took to answer", labels=[]
        )


def _need_prometheus() -> None:
    try:
        import prometheus_client as prometheus_client
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "prometheus_client is not installed: pip install 'echomq[metrics]'", name=error.name
        ) from error
