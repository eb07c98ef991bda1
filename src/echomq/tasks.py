"""How functions become tasks, of an app or of a group that an app includes later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypedDict, TypeVar, overload

from echomq._elsewhere import OPTIONS_OF_TASKS, check_known
from echomq.errors import InvalidOption
from echomq.job import Job
from echomq.options import Backoff, Deduplication, Duration, Extra, Keep, Limiter, shown
from echomq.queue import Queue
from echomq.retry_policy import RetryPolicy
from echomq.task import AsyncTask, Place, PlainTask, Task

if TYPE_CHECKING:
    from typing import Unpack

    from echomq.app import EchoMQ

P = ParamSpec("P")
R = TypeVar("R")


class TaskDefaults(TypedDict, total=False):
    """The options of a task that a group of tasks can give to all of them; ``EchoMQ.task`` explains each."""

    queue: str
    timeout: Duration | None
    process: bool
    retry_policy: RetryPolicy | None
    results_queue: str | Queue | None
    limiter: Limiter | None
    attempts: int
    backoff: Backoff | Duration | None
    priority: int
    delay: Duration | None
    remove_on_complete: Keep | None
    remove_on_fail: Keep | None
    stack_trace_limit: int | None
    deduplication: Deduplication | str | None
    unique_by: Sequence[str] | None
    expire_in: Duration | None
    keep_logs: int | None
    omit_context: bool
    max_bytes: int | None
    extra: Extra | None


class TaskOptions(TaskDefaults, total=False):
    """The options of a task; ``EchoMQ.task`` explains each."""

    name: str | None


_OF_THE_TASK: Final = frozenset(
    {"name", "queue", "timeout", "process", "retry_policy", "results_queue", "extra", "limiter"}
)
"""Options that say something of the task itself; the others are those of its jobs."""


class TaskDecorator(Protocol):
    """What ``@app.task(...)`` gives: it makes a task of an async or a plain function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]  # plain functions may return coroutines too; the first that fits wins
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class JobTaskDecorator(Protocol):
    """The same with ``pass_job=True``: the function's first argument is the job."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[Concatenate[Job[Any], P], R], /) -> PlainTask[P, R]: ...


class TaskMaker:
    """What an app and a group of tasks have in common: they make tasks of functions, each under a name of its own."""

    def __init__(self, place: Place, defaults: TaskDefaults) -> None:
        self._place = place
        self._defaults = defaults
        self._made: dict[str, Task[Any, Any]] = {}
        """By the name that was given where they were made."""

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, *, pass_job: Literal[True], **options: Unpack[TaskOptions]) -> JobTaskDecorator: ...
    @overload
    def task(self, *, pass_job: Literal[False] = False, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(
        self, function: Callable[..., Any] | None = None, *, pass_job: bool = False, **options: Unpack[TaskOptions]
    ) -> Any:
        """Makes a task of a function. Plain functions run in a thread or a process, ``async def`` in the event loop.

        Args:
            function: when used without parentheses.
            pass_job: give the running ``Job`` to the function as its first argument.
            options: as follows.

        Options:
            name: what its jobs are called; left out, the function's name.
            queue: where its jobs go; left out, ``"default"``.
            timeout: seconds that a run may take; then it is cancelled, and that attempt has failed. A thread cannot be
                stopped: ``Job.cancelled`` tells it, what it still returns is discarded, and its slot stays taken until it
                ends.
            process: run it in a process of its own, for what computes, or may crash (docs/executors.md). It must be a plain
                ``def`` at the top of a module. Past its timeout the process is killed.
            retry_policy: which of its errors are worth another attempt; left out, the worker decides.
            results_queue: the name of another queue, or a ``Queue``: how each of its jobs ended becomes a job ``outcome`` there
                (docs/results-queue.md); left out, the worker decides.
            limiter: how many jobs of its queue start in a time, over all workers of the app: a limit is that of a whole queue, so
                all tasks of the queue have to say the same; left out, the worker decides (docs/limits.md).
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
            max_bytes: how many bytes its arguments may take, and its result, as they stand on the server; left out, as the app
                says.
            extra: what becomes of a job whose data have more than the function's arguments: ``"ignore"`` or ``"forbid"``
                (docs/typed-data.md); left out, as the app says.

        Raises:
            InvalidOption: an option breaks a rule, or there is another task of this name.
        """
        check_known(options, [*TaskOptions.__annotations__, "pass_job"], "@app.task", OPTIONS_OF_TASKS)

        def make(made: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(made):
                raise InvalidOption(
                    f"@app.task({made!r}): must be a function; for the name of a queue write queue={made!r}"
                )
            function = made.function if isinstance(made, Task) else made  # a task of another app, say
            task = self._task_of(function, pass_job, {**self._defaults, **options})
            if task.own_name in self._made:
                raise InvalidOption(
                    f"task name {task.own_name!r} is taken, by {self._made[task.own_name].function!r}; give name=… to one of them"
                )
            self._added(task)
            self._made[task.own_name] = task
            return task

        return make if function is None else make(function)

    def _task_of(self, function: Callable[..., Any], pass_job: bool, given: dict[str, Any]) -> Task[Any, Any]:
        kind = AsyncTask if inspect.iscoroutinefunction(function) else PlainTask
        name = given.get("name")
        if name is None:
            name = getattr(function, "__name__", None)
        if name is None:  # as of functools.partial
            raise InvalidOption(f"@app.task({shown(function)}): has no name of its own; give name=…")
        return kind(
            self._place,
            function,
            name=name,
            queue=given.get("queue", "default"),
            timeout=given.get("timeout"),
            pass_job=pass_job,
            process=given.get("process", False),
            options={option: value for option, value in given.items() if option not in _OF_THE_TASK},
            retry_policy=given.get("retry_policy"),
            results_queue=given.get("results_queue"),
            extra=given.get("extra"),
            limiter=given.get("limiter"),
        )

    def _added(self, task: Task[Any, Any]) -> None:
        """A task was made here."""
        raise NotImplementedError


class Tasks(TaskMaker):
    """Tasks of a module, which an app includes: so the module need not know the app, nor be imported by it first.

    Args:
        defaults: options of ``EchoMQ.task`` that hold for each of them which says nothing else.

    Example:
        In ``mail.py``:

        >>> tasks = Tasks(queue="mail", attempts=5)
        >>> @tasks.task
        ... async def welcome(learner: int) -> None: ...

        And where the app is:

        >>> app = EchoMQ("redis://localhost:6379/0")
        >>> app.include(mail.tasks)
    """

    def __init__(self, **defaults: Unpack[TaskDefaults]) -> None:
        check_known(defaults, TaskDefaults.__annotations__, "Tasks", OPTIONS_OF_TASKS)
        super().__init__(Place(), defaults)

    def __repr__(self) -> str:
        where = "no app" if self._place.app is None else repr(self._place.app)
        return f"<Tasks of {where}: {', '.join(self._made) or 'none'}>"

    def _added(self, task: Task[Any, Any]) -> None:
        if self._place.app is not None:
            self._place.app._take(task)

    def _become(self, app: EchoMQ, name_prefix: str) -> None:
        """Its tasks are those of the app from now on."""
        if not isinstance(name_prefix, str):
            raise InvalidOption(f"name_prefix={shown(name_prefix)}: must be a text, such as 'mail.'")
        if self._place.app is not None:
            raise InvalidOption(
                f"{self!r} is included already; for tasks of the same functions in a second app, "
                "make another group, or write other.task(…)(function)"
            )
        taken = [name for name in self._made if name_prefix + name in app.tasks]
        if taken:
            name = name_prefix + taken[0]
            raise InvalidOption(
                f"task name {name!r} is taken, by {app.tasks[name].function!r}; give name=… to one of them, or "
                "include the group with a name_prefix"
            )
        self._place.app, self._place.prefix = app, name_prefix
        try:
            app._take(*self._made.values())
        except InvalidOption:
            self._place.app, self._place.prefix = None, ""
            raise
