"""``EchoMQ``: the app. It holds the connection and the tasks, and works their queues."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import signature
from types import TracebackType
from typing import Any, Never, NoReturn, Self, TypeVar, overload

from echomq._elsewhere import ATTRIBUTES_OF_APPS, OPTIONS_OF_APPS, answers, check_known
from echomq._hooks import H, Hook, RunEventKind, check_hook, checked_kinds
from echomq._in_process import InProcess
from echomq._injection import Provider, Scope
from echomq._lifespan import Lifecycle, Lifespan
from echomq._log import about, logger
from echomq._payloads import CodecOption, Payloads, wrapped_steps
from echomq._store.codec import NewJob
from echomq._telemetry import Guard, TelemetryOption
from echomq.connection import Connection
from echomq.errors import BulkAddError, InvalidOption, RetryLater, Unrecoverable
from echomq.job import Job
from echomq.middleware import Middleware, checked_middleware, enqueue_chain
from echomq.options import MAX_BYTES, Extra, JobSpec, Limiter, check_extra, check_max_bytes, check_whole, shown
from echomq.queue import Queue, encoded
from echomq.slots import SharedSlots
from echomq.sync import SyncEchoMQ
from echomq.task import AsyncTask, Place, Task
from echomq.tasks import TaskMaker, Tasks
from echomq.worker import Call, Worker

F = TypeVar("F", bound=Callable[..., Any])

UNKNOWN_TASK_DELAY = 30.0
UNKNOWN_TASK_PATIENCE = 24 * 3600.0
_LOG_EVERY = 60.0


@answers("an app", ATTRIBUTES_OF_APPS)
class EchoMQ(TaskMaker):
    """An app: its tasks, its connection, and the queues that they go to.

    Args:
        connection: a ``Connection`` or a URL (``redis://…``, ``rediss://…``, ``unix://…``, ``embedded://name``); left out,
            ``ECHOMQ_URL``. Nothing connects before the first call.
        prefix: what all keys begin with. ``"bull"`` shares BullMQ's own layout.
        hash_tag: whether queue names stand in braces, as a cluster needs; left out: yes, except with prefix ``"bull"``.
        telemetry: hears what its queues and workers do, as for ``Queue``.
        extra: what becomes of a job whose data have more than the arguments of its task. ``"ignore"``: the rest is left out,
            and a line in the log says so; ``"forbid"``: the job fails (docs/typed-data.md). A task may say otherwise.
        max_bytes: how many bytes the data of a job, or its result, may take; as for ``Queue``.
        codec: how data and results are stored: compressed, encrypted, elsewhere; as for ``Queue``.
        middleware: what stands around the jobs of its tasks, the outermost first.

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
        extra: Extra = "ignore",
        max_bytes: int | None = MAX_BYTES,
        codec: CodecOption = None,
        middleware: Iterable[Middleware] = (),
        **unknown: Never,
    ) -> None:
        check_known(
            unknown, [name for name in signature(EchoMQ).parameters if name != "unknown"], "EchoMQ", OPTIONS_OF_APPS
        )
        Guard.of(telemetry)  # refused here, if it is none
        self.extra: Extra = check_extra(extra)
        self._max_bytes = check_max_bytes(max_bytes)
        self._payloads = Payloads.of(codec)
        self._telemetry = telemetry
        super().__init__(Place(self), {})
        self._middleware = checked_middleware(middleware)
        self._on_enqueue = enqueue_chain(self._middleware)
        self._connection = Connection.of(connection)
        self._prefix = prefix
        self._hash_tag = hash_tag
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._queues: dict[str, Queue] = {}
        self._queue_type: Callable[..., Queue] = Queue  # the testing kit has one that runs its jobs as they are added
        self._max_sizes: dict[str, int] = {}
        self._results: dict[str, str | Queue] = {}  # by the name of the task
        self._process_calls: dict[str, Call] = {}
        self._unknown_logged = -_LOG_EVERY
        self._lifecycle = Lifecycle(self)
        self._hooks: dict[str, list[Hook]] = {}

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
    def sync(self) -> SyncEchoMQ:
        """The same app for programs without an event loop, such as scripts: its calls without ``await`` (docs/sync.md)."""
        return SyncEchoMQ(self)

    @property
    def middleware(self) -> list[Middleware]:
        """What stands around the jobs of its tasks, the outermost first."""
        return list(self._middleware)

    @property
    def tasks(self) -> dict[str, Task[Any, Any]]:
        """Its tasks by name."""
        return dict(self._tasks)

    @property
    def queue_names(self) -> list[str]:
        """The queues that its tasks name, sorted: those that ``work`` and ``echomq worker`` work if none is named."""
        return sorted({task.queue for task in self._tasks.values()})

    def include(self, tasks: Tasks, *, name_prefix: str = "") -> None:
        """Takes in a group of tasks: those that it has, and those that are added to it later.

        Args:
            tasks: the group. It can be in one app only.
            name_prefix: what the names of its tasks begin with in this app, such as ``"mail."``.

        Raises:
            InvalidOption: the group is included already, or the app has another task of a name.

        Example:
            >>> app.include(mail.tasks)
        """
        if not isinstance(tasks, Tasks):
            raise InvalidOption(f"include({shown(tasks)}): must be a group of tasks: tasks = Tasks(queue='mail')")
        tasks._become(self, name_prefix)

    async def enqueue_all(self, specs: Iterable[JobSpec]) -> list[Job[Any]]:
        """Adds many jobs, each to the queue of its task, by the name of the job. Returns them in the same order.

        All are checked before the first is sent. What goes to one queue travels in parts, as ``Queue.add_bulk`` says.

        Args:
            specs: what ``spec`` of tasks made.

        Raises:
            InvalidOption, EncodingError, PayloadTooLarge: nothing was added.
            StoreUnavailable: the codec's store does not answer; nothing was added.
            BulkAddError: it stopped half-way; says which jobs were added, which were not, and of which that is unknown.

        Example:
            >>> await app.enqueue_all([enroll.spec(7, "redis"), welcome.spec(7)])
        """
        given = list(specs)
        places: dict[str, list[int]] = {}
        for position, spec in enumerate(given):
            places.setdefault(self._task_of_spec(position, spec).queue, []).append(position)
        new = [encoded(position, spec) for position, spec in enumerate(given)]
        made: dict[int, Job[Any]] = {}
        sent: list[NewJob] = []
        for name, positions in places.items():
            queue = self.queue(name)
            if not sent:  # of all queues, which store data alike, before the first of them gets any
                sent = await queue._home.all_wrapped(new, given)
            theirs = [[of_all[position] for position in positions] for of_all in (new, sent)]
            try:
                jobs = await queue._add_encoded([given[position] for position in positions], *theirs)
            except BulkAddError as error:
                raise _of_all(error, made, positions, len(given)) from error.__cause__
            made.update(zip(positions, jobs, strict=True))
        jobs = [made[position] for position in range(len(given))]
        return [self._tasks[spec.name]._returning(job) for spec, job in zip(given, jobs, strict=True)]

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Says what is started before the workers of this app take jobs, and stopped after their last job.

        In each process that works queues of the app (to be exact, in each of its event loops) it is entered once, however many
        queues there are: by the first worker that starts, and left with the last that ends. Several are entered in the order
        in which they were given, and left in reverse. It runs in a task of its own.

        What it raises before its ``yield`` keeps the workers from taking jobs: they end with ``LifespanFailed``.

        Args:
            function: an async generator function with one ``yield``, or whatever gives an async context manager. It is called
                with the app.

        Example:
            >>> @app.lifespan
            ... async def database(app):
            ...     await pool.open()
            ...     yield
            ...     await pool.close()
        """
        self._lifecycle.add(function)
        return function

    def on(self, *kinds: RunEventKind) -> Callable[[H], H]:
        """Has a function told of what becomes of the runs of this app's tasks, in the process that runs them.

        It gets a ``RunEvent``. A plain function is called in the event loop, and must not block; an ``async`` one runs beside the
        jobs, and the last ones get 5 seconds when the workers stop. An error in it is logged, and changes nothing.
        It is told once the server has the outcome; a process that dies just then tells nobody, and what happens to jobs
        that nobody runs (one that is cancelled while it waits) is not told. ``QueueEvents`` tells of everything.

        Args:
            kinds: ``"started"``: a worker begins with it. ``"completed"``. ``"failed"``: for good. ``"retried"``: it
                failed, and runs again. ``"delayed"``: it asked for that (``RetryLater``, ``RateLimited``). ``"cancelled"``.
                ``"skipped"``: its schedule skips runs as late as it. ``"given_back"``: its worker stops, and another runs it.

        Raises:
            InvalidOption: there is no event of such a kind.

        Example:
            >>> @app.on("failed")
            ... async def tell(event):
            ...     await chat.send(f"{event.job.name} {event.job.id}: {event.reason}")
        """
        checked_kinds(kinds)

        def on(function: H) -> H:
            check_hook(function, kinds)
            for kind in kinds:
                self._hooks.setdefault(kind, []).append(function)
            return function

        return on

    @overload
    def provide(self, function: F, /) -> F: ...
    @overload
    def provide(self, *, scope: Scope) -> Callable[[F], F]: ...

    def provide(self, function: Callable[..., Any] | None = None, *, scope: Scope = "job") -> Any:
        """Says how a value is made that tasks and other providers want by ``= Inject()``: by the type that is returned.

        A plain function or ``async def`` that returns it; or a generator that yields it once, and takes it back after that. A
        generator of scope ``"job"`` sees the error of a run that has failed. Its own parameters may be injected, too.

        Those of scope ``"process"`` are called in the event loop before the workers take jobs, after ``lifespan``. Those of scope
        ``"job"`` are called where the function runs: in its thread, if it is a plain one. ``async`` ones are called in the event
        loop.

        Args:
            function: its return annotation names the type; ``Annotated[Database, "replica"]`` is another than ``Database``.
            scope: ``"job"``, a value for each run; or ``"process"``, one for all.

        Raises:
            InvalidOption: it is no such function. What is missing or goes in a circle is told when workers start.

        Example:
            >>> @app.provide(scope="process")
            ... async def pool() -> AsyncIterator[Pool]:
            ...     async with create_pool() as made:
            ...         yield made
            >>> @app.provide
            ... async def session(pool: Pool = Inject()) -> AsyncIterator[Session]:
            ...     async with pool.session() as made:
            ...         yield made
        """

        def provide(given: F) -> F:
            self._lifecycle.providers.add(Provider(given, scope))
            return given

        return provide if function is None else provide(function)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What surrounds the workers of this app: its ``lifespan`` is started for the first that enters, stopped after the last.

        It is one for each event loop. Workers of the app enter it by themselves; enter it, too, to keep it while they come and
        go.

        Raises:
            LifespanFailed: it could not be started, or not be stopped in order.

        Example:
            >>> async with app.running():
            ...     await app.worker("mail").run_until_drained()
            ...     await app.worker("reports").run_until_drained()
        """
        async with self._lifecycle.running():
            yield

    def queue(self, name: str, *, max_size: int | None = None) -> Queue:
        """The queue of this name; always the same object, until that is closed: then a new one.

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
        if found is not None and found._home.is_closed:  # as one that was left with ``async with``
            self._queues.pop(name, None)
            found = None
        if found is None:
            made = self._queue_type(
                name,
                connection=self._connection,
                prefix=self._prefix,
                hash_tag=self._hash_tag,
                max_size=said,
                telemetry=self._telemetry,
                max_bytes=self._max_bytes,
                codec=self._payloads,
            )
            found = self._queues.setdefault(
                name, made
            )  # another thread, or a signal handler, may have made one meanwhile
        elif max_size is not None:
            found._home.bound(max_size)
        if max_size is not None:
            self._max_sizes[name] = max_size
        return found

    def worker(self, queue: str = "default", **options: Any) -> Worker:
        """A worker that runs this app's tasks from one queue.

        Args:
            queue: its name.
            options: of the ``Worker``. Without ``concurrency`` it runs one job at a time; without ``limiter`` it has that of the
                tasks.

        Raises:
            InvalidOption: an option breaks a rule, or tasks of the queue have different limiters.
        """
        if "limiter" not in options:
            options["limiter"] = self._limiter(queue)
        worker = Worker(
            queue,
            route=self._route,
            connection=self._connection,
            prefix=self._prefix,
            hash_tag=self._hash_tag,
            **{"telemetry": self._telemetry, "max_bytes": self._max_bytes, "codec": self._payloads, **options},
        )
        worker._results_of_tasks = self._results
        worker._around = self._lifecycle.running
        worker._loads = functools.partial(self._loads, queue)
        return worker

    async def work(
        self,
        *queues: str,
        concurrency: int = 10,
        weights: Mapping[str, int] | None = None,
        strict: bool = False,
        **options: Any,
    ) -> None:
        """Works these queues (left out: every queue that a task names) until it is cancelled.

        Args:
            queues: their names.
            concurrency: jobs at once, for each queue; with ``weights`` or ``strict``, for all of them together.
            weights: share ``concurrency`` slots by weight, as of ``SharedSlots``: 3 for a queue that is to get three times the
                time of one with 1, which a queue weighs that is not named here.
            strict: share them in the order of ``queues``: one gets what those before it leave.
            options: of each ``Worker``.

        Raises:
            InvalidOption: an argument breaks a rule.
            LifespanFailed: the app's ``lifespan`` could not be started, or not be stopped in order.
        """
        names = queues or tuple(self.queue_names)
        if not names:
            raise InvalidOption("the app has no task, so there is no queue to work; name one")
        if weights is None and not strict:
            options["concurrency"] = concurrency
        else:
            options["slots"] = _shared(names, queues, concurrency, weights, strict)
        workers = [self.worker(name, **options) for name in names]
        try:
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker.run())
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            if any(error is not first for error in errors.exceptions):
                raise
            raise first from first.__cause__  # one for all of them: the app itself could not be started, say

    async def close(self) -> None:
        """Closes its queues, and with the last of them the sockets. Workers stop by themselves or by being cancelled.

        The app may be used again; a ``Connection`` that it was given stays yours.
        """
        for name in list(self._queues):  # when this is cancelled, the others are still there to be closed
            queue = self._queues.pop(name, None)
            if queue is not None:
                await queue.close()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _added(self, task: Task[Any, Any]) -> None:
        self._take(task)

    def _take(self, *tasks: Task[Any, Any]) -> None:
        """Tasks of this app, or of a group that it includes; if one of them is refused, none."""
        for task in tasks:
            if task.name in self._tasks:
                raise InvalidOption(
                    f"task name {task.name!r} is taken, by {self._tasks[task.name].function!r}; give name=… to one of them"
                )
            self._check_results(self.queue(task.queue), task.results_queue)  # names are checked where they are written
        for task in tasks:
            self._tasks[task.name] = task
            if task.results_queue is not None:
                self._results[task.name] = task.results_queue

    def _on_the_way(self, spec: JobSpec) -> JobSpec:
        """A job that a task has made, as its middleware wants it."""
        for change in self._on_enqueue:
            spec = change(spec)
            if not isinstance(spec, JobSpec):
                raise InvalidOption(f"on_enqueue of a middleware gave {shown(spec)}: must give a JobSpec")
        return spec

    def _task_of_spec(self, position: int, spec: JobSpec) -> Task[Any, Any]:
        if not isinstance(spec, JobSpec):
            raise InvalidOption(f"job {position}: {shown(spec)} must be a JobSpec, as task.spec(…) makes it")
        task = self._tasks.get(spec.name)
        if task is None:
            raise InvalidOption(
                f"job {position}: the app has no task {spec.name!r}, so it has no queue to go to; the app has: "
                f"{', '.join(sorted(self._tasks)) or 'none'}; or write queue.add_bulk(…)"
            )
        return task

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
        if task.process:
            if job._is_wrapped and not job._has_codec:
                self._let_wait_for_codec(job, "the job's data were written with a codec, and this worker has none")
            return self._process_call(task)
        data = job.data
        try:
            arguments = task.arguments(data, decoded=job._has_codec)
        except Unrecoverable as error:
            self._let_wait_for_codec(job, str(error))
            raise
        before = (job,) if task.pass_job else ()
        function = functools.partial(task.function, *before, **arguments)
        return Call(
            function, task.timeout, task.misfit, task.retry_policy, False, task.max_bytes, isinstance(task, AsyncTask)
        )

    def _let_wait_for_codec(self, job: Job[Any], why: str) -> None:
        """As with unknown tasks: who writes with a codec may have been deployed before who reads with it."""
        if job._has_codec or wrapped_steps(job.data) is None or _was_put_off_enough(job):
            return
        self._told(job, "%s; it waits %g s for one that has it", why, UNKNOWN_TASK_DELAY)
        raise RetryLater(UNKNOWN_TASK_DELAY, why)

    def _process_call(self, task: Task[Any, Any]) -> Call:
        """The same call for every job: the process has the job, and decodes it."""
        found = self._process_calls.get(task.name)
        if found is None:
            place = InProcess.of(task, self)
            found = Call(
                place.run, task.timeout, place.misfit, task.retry_policy, process=True, max_bytes=task.max_bytes
            )
            self._process_calls[task.name] = found
        return found

    def _limiter(self, queue: str) -> Limiter | None:
        """What the tasks of a queue say; it holds for the queue, so they have to agree."""
        tasks = [task for task in self._tasks.values() if task.queue == queue]
        for task in tasks:
            if task.limiter != tasks[0].limiter:
                raise InvalidOption(
                    f"task {tasks[0].name!r} has limiter={shown(tasks[0].limiter)} and task {task.name!r} has "
                    f"limiter={shown(task.limiter)}: a limit holds for all of the queue {queue!r}; give both the same, or one of "
                    "them another queue"
                )
        return tasks[0].limiter if tasks else None

    def _loads(self, queue: str) -> list[Callable[[], object]] | None:
        """What a process of this queue's worker does before it takes jobs; None if the queue has no task for one."""
        tasks = [task for task in self._tasks.values() if task.process and task.queue == queue]
        return [InProcess.of(task, self).load for task in tasks] or None

    def _refuse_unknown(self, job: Job[Any]) -> NoReturn:
        """A rolling deploy must not lose work: the job waits, for a worker that knows it (docs: unknown tasks)."""
        known = ", ".join(sorted(self._tasks)) or "none"
        if _was_put_off_enough(job):
            raise Unrecoverable(
                f"no worker has known a task named {job.name!r} for {UNKNOWN_TASK_PATIENCE / 3600:g} hours; "
                f"this one knows: {known}"
            )
        self._told(
            job,
            "it asks for task %r, which this worker does not know (it knows: %s); it waits %g s for one that does",
            job.name,
            known,
            UNKNOWN_TASK_DELAY,
        )
        raise RetryLater(UNKNOWN_TASK_DELAY, f"unknown task {job.name!r}")

    def _told(self, job: Job[Any], text: str, *values: object) -> None:
        """Logs why a job waits for another worker, but not for each."""
        now = time.monotonic()
        if now - self._unknown_logged >= _LOG_EVERY:
            self._unknown_logged = now
            values = job.id, job.name, job.queue_name, *values
            logger.warning(f"job %s (%s) of queue %s: {text}", *values, extra=about(job.queue_name, job.id, job.name))


def _was_put_off_enough(job: Job[Any]) -> bool:
    """Whether a job has gone round for so long that there is no worker for it; one that was just late in starting has not.

    Each time that it was put off for that has cost it a start; so has what else puts a job off, perhaps more often, so that
    its age counts, too, by the server's clock: that of this machine may be another.
    """
    began, made = job.processed_on, job.timestamp
    if began is None or made is None or (began - made).total_seconds() <= UNKNOWN_TASK_PATIENCE:
        return False
    return (job._stored.starts_of_attempt - 1) * UNKNOWN_TASK_DELAY >= UNKNOWN_TASK_PATIENCE


def _of_all(error: BulkAddError, made: dict[int, Job[Any]], positions: Sequence[int], count: int) -> BulkAddError:
    """What became of the jobs of several queues, of which one got only a part of its own."""
    unknown = [positions[place] for place in error.unknown]
    surely = {*made, *unknown, *(position for place, position in enumerate(positions) if place not in error.not_added)}
    return BulkAddError(
        f"{len(made) + len(error.added)} of {count} jobs were added, then: {error.__cause__}",
        added=[*(job.id for job in made.values()), *error.added],
        unknown=unknown,
        not_added=[position for position in range(count) if position not in surely],
    )


def _shared(
    names: Sequence[str], given: Sequence[str], size: int, weights: Mapping[str, int] | None, strict: bool
) -> SharedSlots:
    if strict and not given:
        raise InvalidOption("strict=True: name the queues, the first comes first")
    if strict and weights:
        raise InvalidOption(f"weights={shown(weights)}, strict={shown(strict)}: give one of them")
    slots = SharedSlots(size, weights=weights, strict=given if strict else None)
    strange = [name for name in weights or () if name not in names]
    if strange:
        raise InvalidOption(
            f"weights={shown(weights)}: {strange[0]!r} is none of the queues: {', '.join(map(repr, names))}"
        )
    return slots
