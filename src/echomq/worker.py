"""``Worker``: takes jobs from a queue and runs a handler for each."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, get_args

import msgspec

from echomq._log import about, logger, running_job
from echomq._payloads import CodecOption, Payloads
from echomq._redis.client import Link
from echomq._redis.heartbeat import HeartbeatLink
from echomq._store.call import Lane, Patience, opened
from echomq._store.finish import Outcome
from echomq._store.forward import Destination
from echomq._store.home import Home
from echomq._store.keep import take_from_dead
from echomq._store.keys import QueueKeys
from echomq._store.presence import plain
from echomq._store.streams import Streams
from echomq._telemetry import Guard, TelemetryOption
from echomq._worker.crew import Crew, Plan
from echomq._worker.executors import Threads, is_async, loading
from echomq._worker.held import FOR_CLEANING_UP, Held
from echomq._worker.hooks import Listener, Told, read_back
from echomq._worker.journal import Journal, journal
from echomq._worker.outcome import Encoded
from echomq._worker.payloads import Decoded
from echomq._worker.presence import worker_name
from echomq._worker.processes import Processes
from echomq._worker.pump import LONGEST_BLOCK
from echomq.connection import Connection, Hub
from echomq.errors import (
    ConnectionLost,
    EchoMQError,
    InvalidOption,
    OutcomesNotStored,
    ProcessCrashed,
    ServerUnavailable,
    StateError,
)
from echomq.job import Job
from echomq.models import WorkerStats
from echomq.options import (
    BUILT_IN_BACKOFFS,
    MAX_BYTES,
    UNSET,
    Backoff,
    BackoffStrategy,
    Duration,
    Keep,
    Limiter,
    OnCrashLimit,
    ProcessPool,
    Unset,
    check_max_bytes,
    check_truth,
    check_whole,
    shown,
    to_seconds,
)
from echomq.queue import Queue
from echomq.retry_policy import RetryPolicy
from echomq.slots import SharedSlots

Processor = Callable[[Job[Any]], Any]
"""A handler: ``async def``, or a plain function, which runs in a thread of the worker's own."""

_Caller = Callable[[Held], Awaitable[Any]]
_Hears = Callable[[Held, Outcome], None]

_LONGEST_PAUSE = 1.0
_LONGEST_START: Final = 5.0
"""Seconds that ``async with`` waits for what is started before the first job."""
_FOR_LAST_CALLS: Final = 1.0
"""Seconds for what handlers have asked for, and do not wait for any more."""
_LOOKS_FOR_ORPHANS: Final = (0.0, 0.2, 0.8)
"""Seconds before each look for the jobs of a process that died."""
_CRASH_BACKOFF: Final = Backoff.exponential(60)


def current_job() -> Job[Any] | None:
    """The job whose handler runs here; None outside of handlers.

    It holds in what a handler calls, in the tasks and threads that it starts with its context, and in middleware.

    Example:
        >>> job = current_job()
        >>> await job.update_progress(50)
    """
    found = running_job.get()
    return found if isinstance(found, Job) else None


class Call(msgspec.Struct, frozen=True):
    """What is to be called for a job, as a ``route`` of a ``Worker`` answers it.

    Attributes:
        function: without arguments; ``async def`` runs in the event loop, a plain function in a thread.
        timeout: seconds that it may take, or None. Then it is cancelled and that attempt has failed. A thread cannot be
            stopped: it is told by ``Job.cancelled``, what it still returns is discarded, and its slot stays taken until it ends.
        misfit: says what is wrong with what it returned, which is logged and stored all the same; None if nothing is.
        retry_policy: which of its errors are worth another attempt; None: the worker's policy holds.
        process: run it in a process of its own, which is killed where a thread could only be told. The function is sent there
            by its name: it is one at the top of a module, or a ``functools.partial`` of one, with values that can be pickled;
            so is ``misfit``. In it ``current_job()`` is the job (docs/executors.md).
        max_bytes: how many bytes its result may take; None: the worker's number holds.
        is_async: whether the function is surely an ``async def``; left out, that is looked up.
        around: called in the event loop in place of the function, with what calls that and gives its result; None: nothing stands
            around it.
    """

    function: Callable[[], Any]
    timeout: float | None = None
    misfit: Callable[[Any], str | None] | None = None
    retry_policy: RetryPolicy | None = None
    process: bool = False
    max_bytes: int | None = None
    is_async: bool = False
    around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] | None = None


Route = Callable[[Job[Any]], Call]
"""Finds what to call for a job. It must be quick; what it raises fails the run."""


class Around(msgspec.Struct, frozen=True):
    """Not for users of EchoMQ. What an app has around the runs of its workers.

    Attributes:
        wrap: puts something around a route.
        tell: told of what happens to jobs, and of the way to their queue; None if nobody wants to know.
    """

    wrap: Callable[[Route], Route]
    tell: Callable[[Home, Held, Told], None] | None = None


class Worker:
    """Takes jobs from one queue and runs a handler for each; as many at once as it has slots.

    A job that is being run is locked, and the lock is renewed for as long as the handler runs, from a thread of its own. If
    this process dies, the lock expires and another worker runs the job again: so a handler may run more than once for one
    job, and its effects should be idempotent (``echomq.idempotency`` helps).

    It works while it is used as an async context manager, or while ``run`` is awaited. Nothing starts in ``__init__``.

    Args:
        queue: its name, or a ``Queue``, whose connection and prefix are used then.
        processor: called with the ``Job``; ``async def``, or a plain function, which runs in a thread. What it returns is the
            job's result. What it raises fails the run.
        route: in place of ``processor``: says what to call for each job.
        connection: a ``Connection`` or a URL; left out, ``ECHOMQ_URL``.
        prefix, hash_tag: as for ``Queue``.
        concurrency: how many jobs may run at once: one, if it is left out.
        slots: in place of ``concurrency``: ``SharedSlots``, which it shares with workers of other queues.
        limiter: a rate limit, shared by the queue's workers.
        lock_duration: seconds after which a job whose worker is silent may be run by another.
        stalled_interval: seconds between looks for such jobs.
        max_stalled_count: how often a job's workers may die before ``on_crash_limit`` holds.
        on_crash_limit: what becomes of a job whose workers died more often: ``"fail"``; ``"dead_letter"``, the same and a dead
            letter; or ``"backoff"``, it never fails for that, but waits for a time that grows.
        crash_backoff: that time: a ``Backoff``, at most an hour (or its ``delay``, if that is longer). Left out, a minute that
            doubles.
        retry_policy: which errors are worth another attempt, where a task has no policy of its own.
        dead_letter: let each job that fails for good leave a dead letter in ``Queue.dead_letter``.
        results_queue: the name of a queue, or a ``Queue``, which may be on another server: how each job ended becomes a job
            ``outcome`` there (docs/results-queue.md).
        shutdown_timeout: seconds that running jobs get to finish when the worker stops; then they are cancelled and given back.
        name: shown in jobs and dashboards; left out, host and process id.
        remove_on_complete, remove_on_fail: which finished jobs stay readable, where a job says nothing of its own.
        backoff_strategies: functions for jobs that ask for a back-off by name (``Backoff.custom``): plain ones, of the attempts
            made so far (1 after the first run) and the error; each gives seconds, a ``timedelta``, or None to fail the job now.
        fair_share: of the jobs that this worker fetches, the share that goes to those that have waited longest, whatever their
            priority: from 0 to 0.5 (docs/priorities.md).
        metrics_points: minutes of per-minute counts to keep (protocol 10); 0 for none.
        processes: the processes in which it runs what is to run in a process: tasks with ``process=True``, and what a ``route``
            calls with ``Call(process=True)``. Left out, ``ProcessPool()``.
        telemetry: hears what the worker does, as for ``Queue``; left out, that of the ``Queue`` that it is given, if any.
        max_bytes: how many bytes a result may take, as it would stand on the server: a job with more completes without it, and
            ``result()`` says so. Left out, as the ``Queue`` says that it is given, or 16 MiB; None for any number.
        codec: how data and results are stored, as for ``Queue``; left out, as the ``Queue`` says that it is given.

    Example:
        >>> async def process(job):
        ...     return await seat(job.data["learner"])
        >>> async with Worker("enrollments", process, concurrency=100) as worker:
        ...     await worker.run()
    """

    def __init__(
        self,
        queue: str | Queue,
        processor: Processor | None = None,
        *,
        route: Route | None = None,
        connection: Connection | str | None = None,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        concurrency: int | None = None,
        slots: SharedSlots | None = None,
        limiter: Limiter | None = None,
        lock_duration: Duration = 30.0,
        stalled_interval: Duration = 15.0,
        max_stalled_count: int = 1,
        shutdown_timeout: Duration = 25.0,
        name: str | None = None,
        remove_on_complete: Keep = Keep.DEFAULT,
        remove_on_fail: Keep = Keep.DEFAULT,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        retry_policy: RetryPolicy = RetryPolicy.DEFAULT,
        dead_letter: bool = False,
        results_queue: str | Queue | None = None,
        on_crash_limit: OnCrashLimit = "fail",
        crash_backoff: Backoff | None = None,
        fair_share: float = 0.0,
        metrics_points: int = 0,
        processes: ProcessPool | None = None,
        telemetry: TelemetryOption = None,
        max_bytes: int | Unset | None = UNSET,
        codec: CodecOption = None,
    ) -> None:
        if not callable(processor if route is None else route) or (processor is not None and route is not None):
            raise InvalidOption(
                f"processor={processor!r}, route={route!r}: give one of them, a function that takes the job"
            )
        if route is None:
            _check_takes_the_job(processor)
        guard = Guard.of(telemetry)
        if isinstance(queue, Queue):
            if connection is not None:
                raise InvalidOption("connection: leave it out when you pass a Queue, whose connection is used")
            self._keys, self._connection = queue._home.keys, queue._home.connection
            guard = guard or queue._home.telemetry
            codec = queue._home.payloads if codec is None else codec
            max_bytes = queue._home.max_bytes if isinstance(max_bytes, Unset) else max_bytes
        else:
            self._keys = QueueKeys.of(queue, prefix=prefix, hash_tag=hash_tag)
            self._connection = Connection.of(connection)
        if limiter is not None and not isinstance(limiter, Limiter):
            raise InvalidOption(f"limiter={limiter!r}: must be a Limiter, such as Limiter(max=100, duration=60)")
        for option, value in (("remove_on_complete", remove_on_complete), ("remove_on_fail", remove_on_fail)):
            if not isinstance(value, Keep):
                raise InvalidOption(
                    f"{option}={value!r}: must be a Keep, such as Keep(count=1000), Keep.ALL or Keep.NONE"
                )
        if not isinstance(retry_policy, RetryPolicy):
            raise InvalidOption(
                f"retry_policy={shown(retry_policy)}: must be a RetryPolicy, such as RetryPolicy.ALWAYS"
            )
        self._pool = _checked_pool(processes, route)
        self.name: str = worker_name() if name is None else _checked_name(name)
        self._plan = Plan(
            name=self.name,
            concurrency=_checked_slots(self._keys.queue, concurrency, slots),
            lock_duration=to_seconds(lock_duration, "lock_duration", least=0.1, most=86_400),
            stalled_interval=to_seconds(stalled_interval, "stalled_interval", least=0.1, most=86_400),
            max_stalled_count=check_whole(max_stalled_count, "max_stalled_count", least=0),
            shutdown_timeout=to_seconds(shutdown_timeout, "shutdown_timeout"),
            limit=None if limiter is None else (limiter.max, to_seconds(limiter.duration, "limiter duration")),
            keep_completed=remove_on_complete,
            keep_failed=remove_on_fail,
            backoff_strategies=_checked_strategies(backoff_strategies),
            retry_policy=retry_policy,
            dead_letter=check_truth(dead_letter, "dead_letter"),
            on_crash_limit=_checked_crash_limit(on_crash_limit, crash_backoff),
            crash_backoff=_CRASH_BACKOFF if crash_backoff is None else crash_backoff,
            fair_share=_checked_share(fair_share),
            metrics_points=check_whole(metrics_points, "metrics_points", least=0, most=100_000),
            telemetry=guard,
            max_bytes=MAX_BYTES if isinstance(max_bytes, Unset) else check_max_bytes(max_bytes),
        )
        self._slots = slots
        self._payloads = Payloads.of(codec)
        self._processor = processor
        self._route = route
        self._results = self._checked_results(results_queue)
        self._results_of_tasks: Mapping[str, str | Queue] = {}  # an app's tasks may have their own
        self._around: Callable[[], AbstractAsyncContextManager[Around]] | None = (
            None  # what an app starts before its workers
        )
        # What a process of its own does at its start; None if none is to be there before it is needed.
        self._loads: Callable[[], Sequence[Callable[[], object]] | None] = tuple if processes is not None else _none
        self._session: _Session | None = None
        self._paused = False
        self._process = ""  # by what a supervisor knows this process's locks

    def __repr__(self) -> str:
        return f"<Worker {self.name!r} on {self._keys.queue!r}, {self._plan.concurrency} slots>"

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._keys.queue

    @property
    def connection(self) -> Connection:
        """Its connection."""
        return self._connection

    @property
    def is_running(self) -> bool:
        """Whether it works now, or is stopping."""
        session = self._session
        return session is not None and not session.task.done() and not session.task.get_loop().is_closed()

    @property
    def is_paused(self) -> bool:
        """Whether ``pause`` was called. Other workers, and the queue, are another matter."""
        return self._paused

    @property
    def is_healthy(self) -> bool:
        """Whether it works, the server has answered it, and its event loop answers within ``lock_duration``.

        To be asked from another thread (that of a probe): where the event loop is held up, nothing in it can ask.
        """
        session = self._session
        return session is not None and self.is_running and session.is_healthy

    @property
    def stats(self) -> WorkerStats:
        """How many slots it has and how many handlers run, and how promptly its event loop answers. Costs next to nothing."""
        session = self._session
        if session is None or not self.is_running:
            return WorkerStats(self._plan.concurrency, 0, 0.0)
        return session.stats()

    async def __aenter__(self) -> Self:
        """Starts it, and waits until it has started or cannot: for a server that is away, or a slow start, it does not wait.

        Raises:
            UnsupportedServer, LifespanFailed: as ``run``.
            ProcessCrashed: the processes of its tasks cannot be started.
        """
        session = self._start()
        try:
            await session.begun()
        except asyncio.CancelledError:
            session.stop()
            await self._wait_for(session)
            raise
        if session.task.done():
            await self._wait_for(session)
        else:
            session.task.add_done_callback(session.say_why)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self) -> None:
        """Works until ``close`` is called. Cancelling it stops the worker in order, then raises ``CancelledError``.

        Raises:
            UnsupportedServer: this server cannot be used.
            LifespanFailed: the ``lifespan`` of its app could not be started, or not be stopped in order.
            OutcomesNotStored: the server was away while the worker stopped; names the jobs, which will run again.
            StateError: it has ended although nobody has stopped it: something has cancelled one of its own tasks.
        """
        await self._wait_for(self._session if self.is_running and self._session else self._start())

    async def run_until_drained(self) -> None:
        """Works until nothing waits in the queue and nothing runs here, then stops. Delayed jobs are not waited for.

        What waits is waited for as long as it takes: if the queue is paused or its limit is used up, until that is over.

        Raises:
            UnsupportedServer, LifespanFailed, OutcomesNotStored, StateError: as ``run``.
        """
        session = self._session if self.is_running and self._session else self._start(until_empty=True)
        session.stop_when_empty()
        await self._wait_for(session)

    async def ready(self) -> None:
        """Waits until the worker has talked to the server and would take a job.

        Raises:
            UnsupportedServer, LifespanFailed: as ``run``.
            StateError: the worker was stopped before it was ready.
        """
        session = self._session if self._session is not None else self._start()
        waiter = asyncio.create_task(session.is_ready.wait())
        try:
            await asyncio.wait({waiter, session.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if not session.is_ready.is_set():
            session.task.result()
            raise StateError(f"worker {self.name!r} was stopped before the server had answered it")

    async def pause(self) -> None:
        """Takes no more jobs until ``resume``. Running jobs go on; other workers are not affected."""
        self._paused = True
        if self._session is not None:
            self._session.shut()

    async def resume(self) -> None:
        """Takes jobs again."""
        self._paused = False
        if self._session is not None:
            self._session.open()

    async def close(self, *, force: bool = False) -> None:
        """Stops: fetches no more, lets running jobs finish within ``shutdown_timeout``, cancels the rest and gives them back.

        Args:
            force: give running jobs back at once.

        Called in a handler of this very worker, it asks for the stop and returns at once.

        Raises:
            OutcomesNotStored: the server was away; names the jobs, which will run again.
        """
        session = self._session
        if session is not None and not session.task.get_loop().is_closed():
            session.stop(hurry=force)
            if not session.runs_here():  # a handler that closes its own worker does not wait for itself
                await self._wait_for(session)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _results_home(self, queue: str | Queue) -> Home:
        """The way to a queue of results."""
        if isinstance(queue, Queue):
            return queue._home
        return Home(self._connection, QueueKeys.of(queue, prefix=self._keys.prefix, hash_tag=self._keys.hash_tag))

    def _checked_results(self, queue: str | Queue | None) -> Home | None:
        if queue is None:
            return None
        if not isinstance(queue, (str, Queue)):
            raise InvalidOption(f"results_queue={shown(queue)}: must be the name of a queue, or a Queue")
        home = self._results_home(queue)
        if home.leads_where(Home(self._connection, self._keys)):
            raise InvalidOption(
                f"results_queue={shown(queue)}: is the queue that this worker works, so it would be told of its own jobs; name "
                "another queue, and work that one without a results_queue"
            )
        return home

    def _leave(self, cleaning_up: float) -> None:
        """Stops, and gives running jobs back at once; their handlers have so many seconds for cleaning up."""
        if self._session is not None:
            self._session.stop(hurry=True, cleaning_up=cleaning_up)

    async def _take_from_dead(self, process: str, patience: float) -> None:
        """Puts back at once what a process had in hand of this queue, for a supervisor that saw it die.

        Looks again for what that process had asked for and the server had not yet read. Where the server stays away for longer
        than ``patience`` seconds, the expiry of the locks remains.
        """
        plan = self._plan
        beyond = None if plan.on_crash_limit != "backoff" else plan.crash_backoff
        hub = self._connection.acquire()
        trying = Patience(patience, hub.look_after)
        try:
            lane = Lane(await opened(lambda: hub.link(hash_tag=self._keys.hash_tag), trying), self._keys)
            for pause in _LOOKS_FOR_ORPHANS:
                await asyncio.sleep(pause)
                for job_id in await take_from_dead(lane, process, plan.max_stalled_count, trying, beyond):
                    logger.warning(
                        "job %s of queue %s has lost its worker, which died; it is back in the queue at once",
                        job_id,
                        self.queue,
                        extra=about(self.queue, job_id, ""),
                    )
        except EchoMQError as error:
            logger.warning(
                "queue %s: the jobs of a worker process that died go back only when their locks have expired: %s",
                self.queue,
                error,
            )
        finally:
            await hub.release()

    def _start(self, *, until_empty: bool = False) -> _Session:
        if self.is_running:
            raise InvalidOption(f"worker {self.name!r} is running already; make another Worker for more slots")
        if loading.get():
            raise StateError(
                f"worker {self.name!r} is started by the import of a module, which a worker's process imports too, to find its "
                "task there: put what starts it under `if __name__ == '__main__':`"
            )
        self._session = _Session(self, until_empty)
        return self._session

    async def _wait_for(self, session: _Session) -> None:
        """Waits for the end of a session. Being cancelled means: stop in order; a second time: at once."""
        cancelled = False
        while not session.task.done():
            try:
                await asyncio.wait({session.task})
            except asyncio.CancelledError:
                session.stop(hurry=cancelled)
                cancelled = True
        if self._session is session:
            self._session = None
        left = session.result()
        if cancelled:
            raise asyncio.CancelledError
        if left:
            raise OutcomesNotStored(left)
        if session.was_cancelled:
            raise StateError(
                f"worker {self.name!r} was not stopped, but its task was cancelled: look for what cancels all tasks"
            )


def _both(first: _Hears, second: _Hears) -> _Hears:
    def hear(held: Held, outcome: Outcome) -> None:
        first(held, outcome)
        second(held, outcome)

    return hear


class _Session:
    """One stretch of work, from start to stop, in one event loop."""

    def __init__(self, worker: Worker, until_empty: bool) -> None:
        self._worker = worker
        self._until_empty = until_empty
        self._stop = asyncio.Event()
        self._hurry = False
        self._crew: Crew | None = None
        plan = worker._plan
        self._home = Home(
            worker._connection,
            worker._keys,
            telemetry=plan.telemetry,
            payloads=worker._payloads,
            max_bytes=plan.max_bytes,
        )
        self._route = worker._route
        self._tell: Callable[[Home, Held, Told], None] | None = None
        self.is_ready = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._told = False
        self._began = time.monotonic()
        self.task = asyncio.create_task(self._run(), name=f"echomq worker {worker.name}")

    async def begun(self) -> None:
        """Waits until all that it needs has been started, or cannot be; not for a server that is away, and not for long."""
        waiter = asyncio.create_task(self._has_begun.wait())
        try:
            await asyncio.wait({waiter, self.task}, timeout=_LONGEST_START, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()

    def say_why(self, ended: asyncio.Task[Any]) -> None:
        """Says at once why it works no more, if nobody stopped it: who is inside an ``async with`` hears it only at its end."""
        error = None if ended.cancelled() or self._stop.is_set() else ended.exception()
        if error is not None:
            name, queue = self._worker.name, self._worker.queue
            logger.error("worker %s of queue %s works no more: %s: %s", name, queue, type(error).__name__, error)

    def stop(self, *, hurry: bool = False, cleaning_up: float | None = None) -> None:
        self._stop.set()
        if hurry:
            self._hurry = True
            if self._crew is not None:
                self._crew.hurry(cleaning_up)

    def stop_when_empty(self) -> None:
        self._until_empty = True
        if self._crew is not None:
            self._crew.pump.stop_when_empty()

    def shut(self) -> None:
        if self._crew is not None:
            self._crew.shut()

    def open(self) -> None:
        if self._crew is not None:
            self._crew.open()

    @property
    def is_healthy(self) -> bool:
        crew = self._crew
        if crew is None or not self.is_ready.is_set():
            return False
        return crew.loop_silent_for <= self._worker._plan.lock_duration

    def stats(self) -> WorkerStats:
        """Its figures. Called in any thread."""
        crew, slots = self._crew, self._worker._plan.concurrency
        if crew is None:
            return WorkerStats(slots, 0, 0.0, away_for=time.monotonic() - self._began)
        fetched_at = crew.pump.fetched_at
        since = None if fetched_at is None else time.monotonic() - fetched_at
        return WorkerStats(slots, crew.pump.handlers, crew.loop_lag, since, crew.away_for)

    def runs_here(self) -> bool:
        """Whether it is called in a handler of this session."""
        job = running_job.get()
        return job is not None and job._home is self._home

    @property
    def was_cancelled(self) -> bool:
        """Whether it has ended in another way than by being told to."""
        return self.task.cancelled() and not self._stop.is_set()

    def result(self) -> list[str]:
        """Ids of jobs whose outcome was not stored. What ended the session is raised once, to the first who asks."""
        if self._told:
            return []
        self._told = True
        return [] if self.task.cancelled() else [held.job.id for held in self.task.result()]

    def _heard(self, call: _Caller) -> tuple[_Caller, _Hears | None]:
        """The same, with what hooks and the log's lines for jobs need to know, and who is told of outcomes."""
        queue = self._worker.queue
        hears: _Hears | None = None
        if self._tell is not None:
            listener = Listener(queue, functools.partial(self._tell, self._home))
            call, hears = listener.calls(call), listener.stored
        if journal.isEnabledFor(logging.DEBUG):  # looked up once, not for each job
            notes = Journal(queue)
            call, hears = notes.calls(call), notes.stored if hears is None else _both(notes.stored, hears)
        return call, hears

    async def _run(self) -> list[Held]:
        worker = self._worker
        hub = worker._connection.acquire()
        commands: Link | None = None
        threads = Threads(worker._plan.concurrency, f"echomq-{worker.name}")
        processes = Processes(worker._plan.concurrency, worker._pool, self._home, self._carry)
        around = AsyncExitStack()
        try:
            if not (
                await self._server_is_there(hub)
                and await self._enter(around)
                and await self._processes_are_there(processes)
            ):
                return []
            self._has_begun.set()
            # A socket that is silently dead is noticed in the time of a block, whether the worker is idle or busy.
            reply_timeout = min(worker._connection.call_timeout, LONGEST_BLOCK)
            commands = await hub.new_link(reply_timeout=reply_timeout)
            client_name = worker._keys.client_name(f":w:{plain(worker.name)}")
            if client_name is None:
                logger.warning(
                    "worker %s works, but lists of workers do not show it: the prefix %r holds a blank or a letter beyond ASCII, "
                    "which a server refuses in names of clients",
                    worker.name,
                    worker._keys.prefix,
                )
            blocking = await hub.new_link(client_name=client_name)
            heartbeat = HeartbeatLink(await hub.settings())
            call: _Caller = _Calls(worker._processor, self._route, self._home, threads, processes, self._overruns)
            call, hears = self._heard(call)
            if worker._payloads is not None:
                call = Decoded(worker.queue, call, worker._payloads)
            destinations = _Destinations(worker, hub.is_cluster)
            self._crew = crew = Crew(
                worker._keys,
                worker._plan,
                call,
                destination=destinations.of if destinations else None,
                elsewhere=destinations.elsewhere,
                commands=commands,
                blocking=blocking,
                heartbeat=heartbeat,
                streams=Streams.of(hub),
                look_after=hub.look_after,
                ready=self.is_ready,
                hears=hears,
                process=worker._process,
                pool=None if worker._slots is None else worker._slots.pool(),
            )
            if worker._paused:
                crew.pump.shut()
            if self._hurry:
                crew.hurry()
            logger.info("worker %s works on %s with %d slots", worker.name, worker.queue, worker._plan.concurrency)
            left = await crew.work(self._stop, until_empty=self._until_empty)
            if left:  # said here too: who was cancelled while it waited for the end hears nothing else
                logger.error("worker %s: %s", worker.name, OutcomesNotStored([held.job.id for held in left]))
            logger.info("worker %s has stopped", worker.name)
            return left
        finally:
            threads.close()
            try:
                try:
                    await processes.close()
                finally:
                    await around.aclose()
            finally:
                if commands is not None:
                    await commands.close()
                await self._home.close(_FOR_LAST_CALLS)
                await hub.release()

    async def _enter(self, around: AsyncExitStack) -> bool:
        """Starts what an app has around its workers, which knows what to call; False if the worker was stopped meanwhile."""
        if self._worker._around is None:
            return True
        entering = asyncio.create_task(around.enter_async_context(self._worker._around()), name="echomq startup")
        stopped = asyncio.create_task(self._stop.wait(), name="echomq stop")
        try:
            await asyncio.wait({entering, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not entering.done():
                entering.cancel()
                await asyncio.wait({entering})
        if entering.cancelled():
            if not self._stop.is_set():
                raise StateError(
                    f"worker {self._worker.name!r} was not stopped, but the start of its app was cancelled"
                )
            return False
        found = entering.result()
        if self._route is not None:
            self._route = found.wrap(self._route)
        self._tell = found.tell
        return True

    async def _processes_are_there(self, processes: Processes) -> bool:
        """Waits for the first process, if any is wanted; False if the worker was stopped meanwhile."""
        load = self._worker._loads()
        if load is None:
            return True
        stopped = asyncio.create_task(self._stop.wait(), name="echomq stop")
        starting = asyncio.create_task(processes.start(load), name="echomq children")
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            return starting.done()
        except ProcessCrashed as error:  # said here too: who does not wait for the end of the worker hears nothing else
            logger.error("worker %s cannot start: %s", self._worker.name, error)
            raise
        finally:
            stopped.cancel()
            starting.cancel()
            await asyncio.wait({stopped, starting})

    async def _carry(self, verb: str, arguments: Sequence[Any]) -> Any:
        """What a handler in a process of its own asks of the queue."""
        payloads = self._home.payloads
        if payloads is not None and verb in ("encode", "decode"):
            return await getattr(payloads, verb)(*arguments)
        return await getattr(self._home.line, verb)(*arguments)

    def _overruns(self, held: Held, error: TimeoutError) -> None:
        if self._crew is not None:
            self._crew.overrun(held, error)

    async def _server_is_there(self, hub: Hub) -> bool:
        """Waits for the server, for as long as it takes; False if the worker was stopped meanwhile."""
        pause, told = 0.05, False
        stopped = asyncio.create_task(self._stop.wait(), name="echomq stop")
        try:
            while not stopped.done():
                linking = asyncio.create_task(hub.link(hash_tag=self._worker._keys.hash_tag), name="echomq link")
                try:
                    await asyncio.wait({linking, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    if linking.done():
                        linking.result()
                        return True
                except (ServerUnavailable, ConnectionLost) as error:
                    if not told:
                        told = True
                        self._has_begun.set()  # not yet, but that may take any time
                        logger.warning("worker %s waits for the server: %s", self._worker.name, error)
                    await hub.look_after(error)
                    await asyncio.wait({stopped}, timeout=pause * (0.5 + random.random()))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                finally:
                    linking.cancel()
            return False
        finally:
            stopped.cancel()
            await asyncio.wait({stopped})


class _Calls:
    """Calls the user's handler: async ones in the loop, plain ones in a thread, or in a process where that is wanted."""

    def __init__(
        self,
        processor: Processor | None,
        route: Route | None,
        home: Home,
        threads: Threads,
        processes: Processes,
        overruns: Callable[[Held, TimeoutError], None],
    ) -> None:
        self._processor = processor
        self._route = route
        self._is_async = self._processor is not None and is_async(self._processor)
        self._threads = threads
        self._processes = processes
        self._told_of_overruns = overruns
        self._home = home
        self._home.loop = asyncio.get_running_loop()

    async def __call__(self, held: Held) -> Any:
        job: Job[Any] = Job(held.job, self._home, run=held)
        held.called = True
        running_job.set(job)  # for this run's own context: every run is a task
        if self._is_async:
            assert self._processor is not None
            return await self._processor(job)
        if self._route is None:
            assert self._processor is not None
            return await self._in_thread(held, job, functools.partial(self._processor, job), _never)
        call = self._route(job)
        held.retry_policy, held.max_bytes = call.retry_policy, call.max_bytes
        value: Any
        if call.process:
            held.called = False  # it may wait for a process
            value, wrong = await self._in_process(held, call)
        else:
            if call.timeout is None and call.around is None and (call.is_async or is_async(call.function)):
                value = await call.function()  # the most frequent case, with nothing in between
            else:
                value = await self._within_its_time(held, job, call)
            wrong = None if call.misfit is None else call.misfit(value)
        if wrong is not None:
            logger.warning(
                "job %s (%s) of queue %s returned what does not fit its task: %s",
                job.id,
                job.name,
                job.queue_name,
                wrong,
                extra=about(job.queue_name, job.id, job.name),
            )
        return value

    async def _within_its_time(self, held: Held, job: Job[Any], call: Call) -> Any:
        if call.timeout is None:
            return await self._routed(held, job, call, _never)
        deadline = asyncio.timeout(call.timeout)
        last = asyncio.get_running_loop().call_later(call.timeout + FOR_CLEANING_UP, self._overruns, held, call.timeout)
        try:
            async with deadline:
                return await self._routed(held, job, call, deadline.expired)
        except TimeoutError:
            if deadline.expired():
                held.timed_out = True
                raise _took_too_long(call.timeout) from None
            raise
        finally:
            last.cancel()

    def _overruns(self, held: Held, timeout: float) -> None:
        """It was told that its time is up, and has not ended."""
        held.timed_out = True
        self._told_of_overruns(held, _took_too_long(timeout))

    async def _routed(self, held: Held, job: Job[Any], call: Call, timed_out: Callable[[], bool]) -> Any:
        if call.around is not None:
            return await call.around(lambda: self._called(held, job, call, timed_out))
        return await self._called(held, job, call, timed_out)

    async def _called(self, held: Held, job: Job[Any], call: Call, timed_out: Callable[[], bool]) -> Any:
        if is_async(call.function):
            return await call.function()
        return await self._in_thread(held, job, call.function, timed_out)

    async def _in_process(self, held: Held, call: Call) -> tuple[Any, str | None]:
        """What it returned, as it is stored, and what is wrong with that."""
        if call.around is None:
            return await self._processes.run(held, (call.function, call.misfit), call.timeout)
        found: Encoded = Encoded(b"null")
        seen: Any = None
        wrong: str | None = None

        async def run() -> Any:
            nonlocal found, seen, wrong
            found, wrong = await self._processes.run(held, (call.function, call.misfit), call.timeout)
            seen = read_back(self._home.keys.queue, held, found)
            return seen

        value = await call.around(run)
        return (found if value is seen else value), wrong

    async def _in_thread(
        self, held: Held, job: Job[Any], function: Callable[[], Any], timed_out: Callable[[], bool]
    ) -> Any:
        held.cancelled = job.cancelled
        held.thread = self._threads.start(function, job.cancelled)
        value = await self._threads.wait(held.thread, job.cancelled, timed_out)
        return await value if inspect.isawaitable(value) else value


class _Destinations:
    """The queues that the outcomes of a worker's jobs go to."""

    def __init__(self, worker: Worker, is_cluster: bool | None) -> None:
        self._worker = worker
        self._is_cluster = is_cluster
        self._of_all = None if worker._results is None else self._made(worker._results)
        self._of_tasks: dict[str, Destination] = {}

    def __bool__(self) -> bool:
        return self._of_all is not None or bool(self._worker._results_of_tasks)

    def of(self, name: str) -> Destination | None:
        """Where the outcome of a job of this name goes."""
        given = self._worker._results_of_tasks.get(name)
        if given is None:
            return self._of_all
        found = self._of_tasks.get(name)
        if found is None:
            found = self._of_tasks[name] = self._made(self._worker._results_home(given))
        return found

    def elsewhere(self) -> dict[str, Destination]:
        """Those on other servers, by what the outbox calls them."""
        every = [self._of_all, *map(self.of, self._worker._results_of_tasks)]
        return {one.name: one for one in every if one is not None and one.at}

    def _made(self, home: Home) -> Destination:
        worker = self._worker
        return Destination.of(home.keys, home.connection, worker._keys, worker._connection, is_cluster=self._is_cluster)


def _took_too_long(timeout: float) -> TimeoutError:
    return TimeoutError(f"the run took longer than its timeout of {timeout:g} s")


def _never() -> bool:
    return False


def _none() -> None:
    return None


def _checked_pool(pool: ProcessPool | None, route: Route | None) -> ProcessPool:
    if pool is None:
        return ProcessPool()
    if not isinstance(pool, ProcessPool):
        raise InvalidOption(f"processes={shown(pool)}: must be a ProcessPool, such as ProcessPool(max_jobs=1000)")
    if route is None:
        raise InvalidOption(
            f"processes={shown(pool)}: a processor runs in the event loop or in a thread; for processes make it a task with "
            "process=True, or give a route whose Call has process=True"
        )
    return pool


def _check_takes_the_job(processor: Any) -> None:
    try:
        inspect.signature(processor).bind(None)
    except TypeError as error:
        raise InvalidOption(
            f"processor={processor!r}: must take the job as its only argument, as in `async def process(job)`: {error}"
        ) from None
    except Exception:  # not every callable shows its signature
        return


def _checked_slots(queue: str, concurrency: int | None, slots: SharedSlots | None) -> int:
    if slots is None:
        return check_whole(1 if concurrency is None else concurrency, "concurrency", least=1, most=100_000)
    if not isinstance(slots, SharedSlots):
        raise InvalidOption(
            f"slots={shown(slots)}: must be SharedSlots, such as SharedSlots(20, weights={{'high': 3}}); for slots of its own "
            "write concurrency=…"
        )
    if concurrency is not None:
        raise InvalidOption(f"concurrency={shown(concurrency)}: leave it out with slots, which say how many there are")
    slots.check(queue)
    return slots.size


def _checked_crash_limit(policy: OnCrashLimit, backoff: Backoff | None) -> OnCrashLimit:
    if policy not in get_args(OnCrashLimit):
        raise InvalidOption(f"on_crash_limit={shown(policy)}: must be one of {', '.join(get_args(OnCrashLimit))}")
    if backoff is None:
        return policy
    if policy != "backoff":
        raise InvalidOption(f"crash_backoff={shown(backoff)}: goes with on_crash_limit='backoff' only")
    if not isinstance(backoff, Backoff) or backoff.type not in BUILT_IN_BACKOFFS or backoff.delay <= 0:
        raise InvalidOption(
            f"crash_backoff={shown(backoff)}: must be a fixed, linear or exponential Backoff of more than 0 seconds"
        )
    return policy


def _checked_strategies(strategies: Mapping[str, BackoffStrategy] | None) -> Mapping[str, BackoffStrategy]:
    given: object = {} if strategies is None else strategies
    if not isinstance(given, Mapping):
        raise InvalidOption(
            f"backoff_strategies={shown(given)}: must be a mapping of names to functions, such as {{'by-hour': by_hour}}"
        )
    for name, function in given.items():
        if not isinstance(name, str) or not name or name in BUILT_IN_BACKOFFS:
            raise InvalidOption(
                f"backoff_strategies name {shown(name)}: must be a text that is not empty and none of "
                f"{', '.join(map(repr, BUILT_IN_BACKOFFS))}, which workers know already; choose another"
            )
        if not callable(function) or is_async(function):
            raise InvalidOption(
                f"backoff_strategies[{name!r}]={shown(function)}: must be a plain function of the attempts made so far and the "
                "error, not async, that gives seconds, a timedelta, or None to fail the job now"
            )
    return dict(given)


def _checked_share(share: float) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 0.5:
        raise InvalidOption(
            f"fair_share={shown(share)}: must be a number from 0 to 0.5, such as 0.1 for one job in ten; 0 turns it off"
        )
    return float(share)


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"name={name!r}: must be a text that is not empty")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"name={name!r}: holds a lone surrogate, which has no UTF-8 form; remove it") from None
    return name
