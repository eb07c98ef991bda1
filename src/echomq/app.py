"""``EchoMQ``: the app. It holds the connection and the tasks, and works their queues."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, Protocol, Self, TypeVar, overload

from echomq._log import about, logger
from echomq._telemetry import Guard, TelemetryOption
from echomq.connection import Connection
from echomq.errors import InvalidOption, RetryLater, Unrecoverable
from echomq.job import Job
from echomq.options import Backoff, Deduplication, Duration, Keep, check_whole, shown
from echomq.queue import Queue
from echomq.retry_policy import RetryPolicy
from echomq.task import AsyncTask, PlainTask, Task
from echomq.worker import Call, Worker

P = ParamSpec("P")
R = TypeVar("R")

UNKNOWN_TASK_DELAY = 30.0
UNKNOWN_TASK_PATIENCE = 24 * 3600.0
_LOG_EVERY = 60.0


class _Decorator(Protocol):
    """What ``@app.task(...)`` gives: it makes a task of an async or a plain function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]  # plain functions may return coroutines too; the first that fits wins
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class _JobDecorator(Protocol):
    """The same with ``pass_job=True``: the function's first argument is the job."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], R], /) -> PlainTask[P, R]: ...


class EchoMQ:
    """An app: its tasks, its connection, and the queues that they go to.

    Args:
        connection: a ``Connection`` or a URL (``redis://…``, ``rediss://…``, ``unix://…``, ``embedded://name``); left out,
            ``ECHOMQ_URL``. Nothing connects before the first call.
        prefix: what all keys begin with. ``"bull"`` shares BullMQ's own layout.
        hash_tag: whether queue names stand in braces, as a cluster needs; left out: yes, except with prefix ``"bull"``.
        telemetry: hears what its queues and workers do, as for ``Queue``.

    Example:
        >>> app = EchoMQ("embedded://school")
        >>> @app.task(queue="enrollments", attempts=5, backoff=Backoff.exponential(1))
        ... async def enroll(learner: int, course: str) -> str: ...
        >>> job = await enroll.enqueue(7, course="redis")
    """

    def __init__(
        self,
        connection: Connection | str | None = None,
        *,
        prefix: str = "emq",
        hash_tag: bool | None = None,
        telemetry: TelemetryOption = None,
    ) -> None:
        Guard.of(telemetry)  # refused here, if it is none
        self._telemetry = telemetry
        self._connection = Connection.of(connection)
        self._prefix = prefix
        self._hash_tag = hash_tag
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._queues: dict[str, Queue] = {}
        self._queue_type: type[Queue] = Queue  # the testing kit has one that runs its jobs as they are added
        self._max_sizes: dict[str, int] = {}
        self._results: dict[str, str | Queue] = {}  # by the name of the task
        self._unknown_logged = -_LOG_EVERY

    def __repr__(self) -> str:
        return f"<EchoMQ at {self._connection.where}, {len(self._tasks)} tasks>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connection(self) -> Connection:
        """Its connection."""
        return self._connection

    @property
    def tasks(self) -> dict[str, Task[Any, Any]]:
        """Its tasks by name."""
        return dict(self._tasks)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        pass_job: Literal[True],
        name: str | None = None,
        queue: str = "default",
        timeout: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        results_queue: str | Queue | None = None,
        attempts: int = 0,
        backoff: Backoff | Duration | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        remove_on_complete: Keep | None = None,
        remove_on_fail: Keep | None = None,
        stack_trace_limit: int | None = None,
        deduplication: Deduplication | str | None = None,
        unique_by: Sequence[str] | None = None,
        expire_in: Duration | None = None,
        keep_logs: int | None = None,
        omit_context: bool = False,
    ) -> _JobDecorator: ...
    @overload
    def task(
        self,
        *,
        pass_job: Literal[False] = False,
        name: str | None = None,
        queue: str = "default",
        timeout: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        results_queue: str | Queue | None = None,
        attempts: int = 0,
        backoff: Backoff | Duration | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        remove_on_complete: Keep | None = None,
        remove_on_fail: Keep | None = None,
        stack_trace_limit: int | None = None,
        deduplication: Deduplication | str | None = None,
        unique_by: Sequence[str] | None = None,
        expire_in: Duration | None = None,
        keep_logs: int | None = None,
        omit_context: bool = False,
    ) -> _Decorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        pass_job: bool = False,
        name: str | None = None,
        queue: str = "default",
        timeout: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        results_queue: str | Queue | None = None,
        attempts: int = 0,
        backoff: Backoff | Duration | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        remove_on_complete: Keep | None = None,
        remove_on_fail: Keep | None = None,
        stack_trace_limit: int | None = None,
        deduplication: Deduplication | str | None = None,
        unique_by: Sequence[str] | None = None,
        expire_in: Duration | None = None,
        keep_logs: int | None = None,
        omit_context: bool = False,
    ) -> Any:
        """Makes a task of a function. Plain functions run in a thread, ``async def`` in the event loop.

        Args:
            function: when used without parentheses.
            pass_job: give the running ``Job`` to the function as its first argument.
            name: what its jobs are called; left out, the function's name.
            queue: where its jobs go.
            timeout: seconds that a run may take; then it is cancelled, and that attempt has failed. A thread cannot be
                stopped: ``Job.cancelled`` tells it, what it still returns is discarded, and its slot stays taken until it
                ends.
            retry_policy: which of its errors are worth another attempt; left out, the worker decides.
            results_queue: the name of another queue, or a ``Queue``: how each of its jobs ended becomes a job ``outcome`` there
                (docs/results-queue.md); left out, the worker decides.
            attempts: of its jobs, as this and the following in ``JobSpec``.
            backoff: what to wait between attempts.
            priority: 0 for none, else lower first.
            delay: seconds before it may run.
            remove_on_complete: which completed jobs to keep.
            remove_on_fail: which failed ones.
            stack_trace_limit: how many tracebacks to keep.
            deduplication: which of its jobs count as one and the same: a ``Deduplication``, or an id for the simple kind.
            unique_by: names of arguments: jobs with the same values of these count as one and the same.
            expire_in: seconds within which a worker has to start it; after that it fails without being run.
            keep_logs: how many lines of a job's log are kept, the last ones; left out, 1,000.
            omit_context: where there is telemetry: let its jobs not carry the context of their trace.

        Raises:
            InvalidOption: an option breaks a rule, or the app has another task of this name.
        """
        options = {
            "attempts": attempts,
            "backoff": backoff,
            "priority": priority,
            "delay": delay,
            "remove_on_complete": remove_on_complete,
            "remove_on_fail": remove_on_fail,
            "stack_trace_limit": stack_trace_limit,
            "deduplication": deduplication,
            "unique_by": unique_by,
            "expire_in": expire_in,
            "keep_logs": keep_logs,
            "omit_context": omit_context,
        }

        def make(made: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(made):
                raise InvalidOption(
                    f"@app.task({made!r}): must be a function; for the name of a queue write queue={made!r}"
                )
            self._check_results(self.queue(queue), results_queue)  # names are checked where they are written
            task_name = name if name is not None else made.__name__
            if task_name in self._tasks:
                raise InvalidOption(
                    f"task name {task_name!r} is taken, by {self._tasks[task_name].function!r}; give name=… to one of them"
                )
            kind = AsyncTask if inspect.iscoroutinefunction(made) else PlainTask
            task: Task[Any, Any] = kind(
                self,
                made,
                name=task_name,
                queue=queue,
                timeout=timeout,
                pass_job=pass_job,
                options=options,
                retry_policy=retry_policy,
            )
            self._tasks[task_name] = task
            if results_queue is not None:
                self._results[task_name] = results_queue
            return task

        return make if function is None else make(function)

    def queue(self, name: str, *, max_size: int | None = None) -> Queue:
        """The queue of this name; always the same object.

        Args:
            name: its name.
            max_size: how many jobs may wait in it, as of ``Queue``; it binds all that this app adds, its tasks' jobs too. Left
                out, what was said of it before holds.

        Raises:
            InvalidOption: an argument breaks a rule, or another ``max_size`` was said before.

        Example:
            >>> app.queue("enrollments", max_size=10_000)
        """
        if max_size is not None:
            check_whole(max_size, "max_size", least=1)
        said = self._max_sizes.get(name, max_size)
        if max_size is not None and max_size != said:
            raise InvalidOption(
                f"max_size={shown(max_size)}: queue {name!r} of this app has max_size={said}; say it in one place"
            )
        found = self._queues.get(name)
        if found is None:
            found = self._queue_type(
                name,
                connection=self._connection,
                prefix=self._prefix,
                hash_tag=self._hash_tag,
                max_size=said,
                telemetry=self._telemetry,
            )
            self._queues[name] = found
        elif max_size is not None:
            found._home.bound(max_size)
        if max_size is not None:
            self._max_sizes[name] = max_size
        return found

    def worker(self, queue: str = "default", **options: Any) -> Worker:
        """A worker that runs this app's tasks from one queue.

        Args:
            queue: its name.
            options: of the ``Worker``. Without ``concurrency`` it runs one job at a time.
        """
        worker = Worker(
            queue,
            route=self._route,
            connection=self._connection,
            prefix=self._prefix,
            hash_tag=self._hash_tag,
            **{"telemetry": self._telemetry, **options},
        )
        worker._results_of_tasks = self._results
        return worker

    async def work(self, *queues: str, concurrency: int = 10, **options: Any) -> None:
        """Works these queues (left out: every queue that a task names) until it is cancelled.

        Args:
            queues: their names.
            concurrency: jobs at once, for each queue.
            options: of each ``Worker``.
        """
        names = queues or tuple(sorted({task.queue for task in self._tasks.values()}))
        if not names:
            raise InvalidOption("the app has no task, so there is no queue to work; name one")
        workers = [self.worker(name, concurrency=concurrency, **options) for name in names]
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run())

    async def close(self) -> None:
        """Closes its queues, and with the last of them the sockets. Workers stop by themselves or by being cancelled.

        The app may be used again; a ``Connection`` that it was given stays yours.
        """
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            await queue.close()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _check_results(self, queue: Queue, results_queue: str | Queue | None) -> None:
        if results_queue is None:
            return
        if not isinstance(results_queue, (str, Queue)):
            raise InvalidOption(f"results_queue={shown(results_queue)}: must be the name of a queue, or a Queue")
        results = self.queue(results_queue) if isinstance(results_queue, str) else results_queue
        if results._home.leads_where(queue._home):
            raise InvalidOption(
                f"results_queue={shown(results_queue)}: is the queue that the task's own jobs go to; name another"
            )

    def _route(self, job: Job[Any]) -> Call:
        """Every job of this app's workers: finds the task by the job's name."""
        task = self._tasks.get(job.name)
        if task is None:
            self._refuse_unknown(job)
        arguments = task.arguments(job.data)
        before = (job,) if task.pass_job else ()
        function = functools.partial(task.function, *before, **arguments)
        return Call(function, task.timeout, task.misfit, task.retry_policy)

    def _refuse_unknown(self, job: Job[Any]) -> NoReturn:
        """A rolling deploy must not lose work: the job waits, for a worker that knows it (docs: unknown tasks)."""
        # By the server's clock: that of this machine may be another.
        began, made = job.processed_on, job.timestamp
        age = 0.0 if began is None or made is None else (began - made).total_seconds()
        known = ", ".join(sorted(self._tasks)) or "none"
        if age > UNKNOWN_TASK_PATIENCE:
            raise Unrecoverable(
                f"no worker has known a task named {job.name!r} for {UNKNOWN_TASK_PATIENCE / 3600:g} hours; "
                f"this one knows: {known}"
            )
        now = time.monotonic()
        if now - self._unknown_logged >= _LOG_EVERY:
            self._unknown_logged = now
            logger.warning(
                "job %s asks for task %r, which this worker does not know (it knows: %s); it waits %g s for one that does",
                job.id,
                job.name,
                known,
                UNKNOWN_TASK_DELAY,
                extra=about(job.queue_name, job.id, job.name),
            )
        raise RetryLater(UNKNOWN_TASK_DELAY, f"unknown task {job.name!r}")
