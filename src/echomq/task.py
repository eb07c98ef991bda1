"""A task: a function that can be enqueued."""

from __future__ import annotations

import copy
import functools
import inspect
import time
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast

import msgspec

from echomq._elsewhere import ATTRIBUTES_OF_TASKS, OPTIONS_OF_JOBS, answers, check_known
from echomq._log import logger
from echomq._payloads import KEY, wrapped_steps
from echomq._store.codec import decode_json
from echomq._types import Misfit, Reader, plain_scalar, reader
from echomq.errors import InvalidOption, Unrecoverable
from echomq.job import Job
from echomq.options import (
    UNSET,
    Backoff,
    Deduplication,
    Duration,
    Extra,
    JobSpec,
    Keep,
    Limiter,
    check_extra,
    check_truth,
    shown,
    to_seconds,
)
from echomq.queue import Queue
from echomq.retry_policy import RetryPolicy
from echomq.sync import SyncTask

if TYPE_CHECKING:
    from echomq.app import EchoMQ

P = ParamSpec("P")
R = TypeVar("R")

_NOTHING = type(None)
_INJECTED: Final = "injected"
_LOG_EVERY = 60.0


class NextJobs(TypedDict, total=False):
    """What ``Task.options`` takes: a queue, and the options of a ``JobSpec``, which explains each. None undoes the task's own."""

    job_id: str | None
    delay: Duration | None
    at: datetime | None
    priority: int | None
    lifo: bool | None
    attempts: int | None
    backoff: Backoff | Duration | None
    remove_on_complete: Keep | None
    remove_on_fail: Keep | None
    stack_trace_limit: int | None
    deduplication: Deduplication | str | None
    unique_by: Sequence[str] | None
    expire_in: Duration | None
    keep_logs: int | None
    omit_context: bool | None
    max_bytes: int | None
    queue: str


class Injected:
    """The type of ``INJECTED``."""

    def __repr__(self) -> str:
        return "Inject()"


INJECTED: Final = Injected()
"""The default of a parameter that is injected when a job runs: what ``Inject()`` gives."""


class _Never:
    """The type of no value."""


class Place:
    """Where tasks belong.

    Attributes:
        app: the app; None while a group of tasks is included in none.
        prefix: what the names of its tasks begin with there.
    """

    __slots__ = ("app", "prefix")

    def __init__(self, app: EchoMQ | None = None, prefix: str = "") -> None:
        self.app: EchoMQ | None = app
        self.prefix: str = prefix


@answers("a task", ATTRIBUTES_OF_TASKS)
class Task(Generic[P, R]):
    """A function with a name, a queue, and options; made by ``EchoMQ.task`` and ``Tasks.task``.

    Attributes:
        queue: the name of the queue that its jobs go to.
        timeout: seconds that a run may take, or None.
        pass_job: whether the function's first argument is the running ``Job``.
        process: whether its jobs run in a process of their own.
        retry_policy: which of its errors are worth another attempt; None: the worker decides.
        results_queue: which queue is told how its jobs end; None: the worker decides.
        limiter: how many jobs of its queue start in a time; None: the worker decides.
        extra: what becomes of a job whose data have more than its arguments; None: as its app says.
        injected: the names of its parameters that providers of the app give it.

    Example:
        >>> job = await enroll.enqueue(7, course="redis")
        >>> seat = await job.result(timeout=10)
    """

    def __init__(
        self,
        place: Place,
        function: Callable[..., Any],
        *,
        name: str,
        queue: str,
        timeout: Duration | None,
        pass_job: bool,
        options: dict[str, Any],
        retry_policy: RetryPolicy | None = None,
        results_queue: str | Queue | None = None,
        process: bool = False,
        annotations: _Annotations | None = None,
        extra: Extra | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self._place = place
        self.function = function
        self.own_name = name
        self.queue = queue
        self.timeout: float | None = None if timeout is None else to_seconds(timeout, "timeout", least=0.001)
        self.pass_job = pass_job
        if retry_policy is not None and not isinstance(retry_policy, RetryPolicy):
            raise InvalidOption(
                f"retry_policy={shown(retry_policy)}: must be a RetryPolicy, such as RetryPolicy.ALWAYS"
            )
        self.retry_policy = retry_policy
        self.results_queue = results_queue
        if limiter is not None and not isinstance(limiter, Limiter):
            raise InvalidOption(f"limiter={shown(limiter)}: must be a Limiter, such as Limiter(max=100, duration=60)")
        self.limiter = limiter
        self.process: bool = check_truth(process, "process")
        if process:
            _check_can_be_found(function, name)
        self.extra: Extra | None = None if extra is None else check_extra(extra)
        self._extra_logged = -_LOG_EVERY
        self._options = options
        JobSpec(name, **options)  # wrong options are refused where they are written
        self.injected: tuple[str, ...]
        self._signature, self._given = _signature_of(function, name, pass_job)
        self.injected = tuple(name for name, what in self._given.items() if what is _INJECTED)
        if annotations is None:
            annotations = _Annotations(function, name, {*self._signature.parameters, "return"})
        self._annotations = annotations
        self._check_unique_by()
        # Without what stands in its __dict__, which may have any name: of the task's own attributes, too.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self.queue!r}>"

    @property
    def max_bytes(self) -> int | None:
        """How many bytes its arguments, and its result, may take; None: as its app says."""
        most: int | None = self._options.get("max_bytes")
        return most

    @property
    def name(self) -> str:
        """What its jobs are called."""
        return self._place.prefix + self.own_name

    @property
    def app(self) -> EchoMQ:
        """The app that it belongs to.

        Raises:
            InvalidOption: it is of a group of tasks that no app has included yet.
        """
        app = self._place.app
        if app is None:
            raise InvalidOption(
                f"task {self.own_name!r} of module {getattr(self.function, '__module__', None)!r} is of a group of tasks that "
                "no app has included; write app.include(…) where the app is made, and import that module first"
            )
        return app

    @property
    def sync(self) -> SyncTask[P, R]:
        """The same task for programs without an event loop: ``task.sync.enqueue(…)`` (docs/sync.md)."""
        return SyncTask(self)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Adds a job that will call the function with these arguments.

        Raises:
            TypeError: the arguments do not fit the function.
            EncodingError: an argument has no JSON form; names which.
            PayloadTooLarge: the arguments take more than ``max_bytes``.
            ServerUnavailable: the job was not added.
            ConnectionLost: the job may have been added. Enqueue it again with a ``job_id`` of your own to be sure that it is
                there once.
        """
        return self._returning(await self.app.queue(self.queue).add(self.spec(*args, **kwargs)))

    async def map(self, *iterables: Iterable[Any], **constants: Any) -> list[Job[R]]:
        """Adds a job for each row of arguments, as the built-in ``map`` takes them; many in one call to the server.

        All are checked before the first is added. A type checker cannot look into the iterables; where it shall, write
        ``app.enqueue_all(enroll.spec(…) for …)``.

        Args:
            iterables: one for each argument, in the order of the function's, all of the same length.
            constants: arguments by name that are the same for all.

        Raises:
            TypeError, EncodingError: as ``enqueue``; nothing was added.
            InvalidOption: there is no iterable, or what is none, or they are of different lengths; nothing was added.
            BulkAddError: it stopped half-way; says which jobs were added.

        Example:
            >>> jobs = await enroll.map([7, 8, 9], course="redis")
        """
        if not iterables:
            raise InvalidOption(
                f"task {self.name!r}: map needs an iterable of arguments, such as {self.name}.map([1, 2, 3]); "
                f"for one job write {self.name}.enqueue(…)"
            )
        queue = self.app.queue(self.queue)
        make: Callable[..., JobSpec] = self.spec
        specs = [make(*row, **constants) for row in self._rows(iterables)]
        return [self._returning(job) for job in await queue.add_bulk(specs)]

    def _rows(self, iterables: tuple[Iterable[Any], ...]) -> Iterator[tuple[Any, ...]]:
        for position, values in enumerate(iterables, 1):
            try:
                iter(values)
            except TypeError:
                raise InvalidOption(
                    f"task {self.name!r}: map takes iterables of arguments, and number {position} is {shown(values)}; "
                    f"for one job write {self.name}.enqueue(…)"
                ) from None
        rows = zip_longest(*iterables, fillvalue=UNSET)
        for number, row in enumerate(rows):
            ended = [position for position, value in enumerate(row, 1) if value is UNSET]
            if ended:
                raise InvalidOption(
                    f"task {self.name!r}: map got iterables of different lengths: number {ended[0]} has only {_values(number)}; "
                    "give what is the same for all jobs by its name"
                )
            yield row

    def _returning(self, job: Job[Any]) -> Job[R]:
        """A job that was just added, whose result is of the annotated type."""
        if self._result is not None:
            job._returns = self._decoded
        return job

    def options(self, **options: Unpack[NextJobs]) -> Self:
        """The same task with other options for its next jobs. See ``JobSpec``.

        What is left out stays, and ``None`` undoes what the task has. ``at`` takes the place of the task's ``delay``, a
        deduplication id that of its ``unique_by``, and the other way round. ``queue`` is where ``enqueue`` and ``map`` add them
        (``spec`` gives a job without a queue).

        Example:
            >>> await enroll.options(delay=60, priority=2).enqueue(8, course="redis")
            >>> once = enroll.options(delay=None, unique_by=None)
        """
        check_known(options, NextJobs.__annotations__, ".options", OPTIONS_OF_JOBS)
        given: dict[str, Any] = {**options}
        queue = given.pop("queue", UNSET)
        other = copy.copy(self)  # with all that was looked up already
        other._options = _changed(self._options, given)
        JobSpec(self.own_name, **other._options)  # wrong options are refused where they are written
        other._check_unique_by()
        if queue is not UNSET:
            if self._place.app is not None:
                self._place.app.queue(queue)  # wrong names are refused where they are written
            other.queue = queue
        return other

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec:
        """The job that ``enqueue`` would add, for ``Queue.add_bulk``.

        It has no queue of its own: it goes to the queue that it is added to, which need not be the task's.
        ``EchoMQ.enqueue_all`` adds it to that of its task.

        Example:
            >>> await app.enqueue_all(enroll.spec(learner, "redis") for learner in learners)
        """
        if self._given:
            self._refuse_given(kwargs)
        readers = self._readers
        data = self._data(args, kwargs)
        for parameter, value in data.items():
            wanted = readers.get(parameter)
            if wanted is not None and type(value) is not wanted.plain:
                self._check(parameter, value, wanted)
        for parameter in self._options.get("unique_by") or ():
            if parameter not in data and parameter in self._signature.parameters:  # left out is the same as its default
                data[parameter] = self._signature.parameters[parameter].default
        spec = JobSpec(self.name, data, **self._options)
        app = self._place.app
        return spec if app is None or not app._on_enqueue else app._on_the_way(spec)

    def _data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name. ``Signature.bind`` says what is wrong; for what is right it takes too long."""
        if not self._takes_any and len(args) <= len(self._positional):
            data: dict[str, Any] = dict(zip(self._positional, args, strict=False))
            if kwargs:
                data |= {name: kwargs[name] for name in self._readers if name in kwargs and name not in data}
            if len(data) == len(args) + len(kwargs) and data.keys() >= self._required:
                return data
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self.name!r}: {error}{self._hint(kwargs)}") from None
        data = {}
        for parameter, value in bound.arguments.items():
            if self._signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD:
                data.update(value)
            else:
                data[parameter] = value
        return data

    @property
    def argument_names(self) -> Sequence[str]:
        """Not for users of EchoMQ. The names of its arguments, in order; without what else ``**`` takes."""
        return tuple(self._readers)

    def takes(self, name: str) -> bool:
        """Not for users of EchoMQ. Whether it has an argument of this name."""
        return self._takes_any or name in self._readers

    def arguments(self, data: Any, *, decoded: bool = False) -> dict[str, Any]:
        """A job's data as the function's arguments, turned into the annotated types.

        Args:
            data: of the job.
            decoded: whether a codec has read them. They may have been encrypted, so the error shows nothing of them.

        Raises:
            Unrecoverable: they do not fit: no later run of this job could fare better. Names the argument, and where in it.
        """
        if not isinstance(data, dict):
            found = f"a {type(data).__name__}" if decoded else f"{data!r:.80}"
            raise Unrecoverable(f"task {self.name!r} takes an object of named arguments; the job's data is {found}")
        if self._given and not data.keys().isdisjoint(self._given):
            names = ", ".join(f"{name} is {what}" for name, what in self._given.items() if name in data)
            raise Unrecoverable(f"the job's data does not fit task {self.name!r}: {names}, and no argument")
        if self._are_there(data):
            return data
        readers = self._readers
        converted: dict[str, Any] = {}
        more: list[str] = []
        for name, value in data.items():
            try:
                wanted = readers[name]
            except KeyError:
                if not self._takes_any:
                    more.append(name)
                    continue
                wanted = None
            if wanted is None or type(value) is wanted.plain:
                converted[name] = value
                continue
            try:
                converted[name] = wanted.convert(value)
            except Misfit as error:
                raise Unrecoverable(self._misfit_of(name, error, decoded)) from None
        if KEY in data:
            self._refuse_wrapped(data, decoded)
        if not converted.keys() >= self._required:
            missing = ", ".join(repr(name) for name in readers if name in self._required - converted.keys())
            raise Unrecoverable(
                f"the job's data does not fit task {self.name!r}: missing a required argument: {missing}"
            )
        if more:
            self._told_more(more)
        return converted

    def _are_there(self, data: dict[str, Any]) -> bool:
        """Whether data has every argument and no other, each as it shall be; which is most often so, and is told quickly."""
        plain = self._plain
        if data.keys() != plain.keys():
            return False
        for name, value in data.items():
            wanted = plain[name]
            if wanted is not None and type(value) is not wanted:
                return False
        return True

    def misfit(self, value: Any) -> str | None:
        """Not for users of EchoMQ. Why a result is not of the annotated type; None if it is, or nobody can tell."""
        wanted = self._result
        if wanted is None or type(value) is wanted.hint or (value is None and wanted.hint is _NOTHING):
            return None
        try:
            wanted.convert(msgspec.to_builtins(value, enc_hook=plain_scalar))
        except Misfit as error:
            return f"{error}; it is annotated with {_spelled(wanted.hint):.80}"
        except Exception:  # the encoder says what is wrong with it, if anything is
            return None
        return None

    def _misfit_of(self, name: str, error: Misfit, decoded: bool) -> str:
        found = "" if decoded else f"={error.found!r:.60}"
        return f"argument {name}{error.path}{found} of task {self.name!r}: {error.reason}"

    def _refuse_wrapped(self, data: dict[str, Any], decoded: bool) -> None:
        steps = wrapped_steps(data)
        if steps is not None and decoded:
            raise Unrecoverable(
                "the job's data are as a codec writes them even after this worker's codec has read them: somebody has added what "
                "was encoded already; add the data as they are"
            )
        if steps is not None:
            raise Unrecoverable(
                f"the job's data were written with a codec ({', '.join(steps)}), and this worker has none: give it the same codec"
            )

    def _told_more(self, more: Sequence[str]) -> None:
        """A rolling deploy must not lose work: what a newer program sends to an older one is no error, if nobody wants it so."""
        names = ", ".join(map(repr, more))
        if (self.extra or self.app.extra) == "forbid":
            raise Unrecoverable(
                f"the job's data does not fit task {self.name!r}: got an unexpected keyword argument {names}"
            )
        now = time.monotonic()
        if now - self._extra_logged >= _LOG_EVERY:
            self._extra_logged = now
            logger.warning(
                "task %r: a job has arguments that it does not take, which are ignored: %s; with extra='forbid' such a job fails",
                self.name,
                names,
            )

    def _refuse_given(self, kwargs: Mapping[str, Any]) -> None:
        for name, what in self._given.items():
            if name in kwargs:
                raise TypeError(f"task {self.name!r}: {name} is {what} when a job runs; leave it out")

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """For who calls the function: nobody injects anything then."""
        try:
            given = inspect.signature(self.function).bind(*args, **kwargs).arguments
        except TypeError:
            return  # the call itself says so
        missing = [name for name in self.injected if name not in given]
        if missing:
            written = ", ".join(f"{name}=…" for name in missing)
            raise TypeError(
                f"task {self.name!r}: {', '.join(missing)} is injected only when a job runs; to call the function yourself give "
                f"{written}"
            )

    def _hint(self, kwargs: Mapping[str, Any]) -> str:
        """For who gives options of the job among the arguments of the function."""
        options = [
            name for name in kwargs if name in NextJobs.__annotations__ and name not in self._signature.parameters
        ]
        if not options:
            return ""
        written = ", ".join(f"{name}={shown(kwargs[name])}" for name in options)
        return f"; for an option of the job write {self.name}.options({written}).enqueue(…)"

    def _check_unique_by(self) -> None:
        parameters = self._signature.parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return  # then any name may be an argument
        for name in self._options.get("unique_by") or ():
            if name not in parameters:
                raise InvalidOption(
                    f"task {self.name!r}: unique_by names {name!r}, which is no argument of its function; its arguments are: "
                    f"{', '.join(parameters) or 'none'}"
                )

    def _check(self, parameter: str, value: Any, wanted: Reader) -> None:
        """Refuses here what the worker would refuse."""
        try:
            plain = msgspec.to_builtins(value, str_keys=True, enc_hook=plain_scalar)
        except Exception:  # the encoder says what is wrong with it
            return
        try:
            wanted.convert(plain)
        except Misfit as error:
            found = error.found if error.path else value
            raise TypeError(
                f"task {self.name!r}: argument {parameter}{error.path}={found!r:.60}: {error.reason}"
            ) from None

    @functools.cached_property
    def _readers(self) -> dict[str, Reader | None]:
        """By argument, what makes its values; None for one that takes them as they come."""
        hints = self._annotations.resolved
        return {
            name: reader(hints.get(name, Any))
            for name, parameter in self._signature.parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }

    @functools.cached_property
    def _plain(self) -> dict[str, type | None]:
        """By argument, the type whose values need not be converted; None where any value is taken as it comes."""
        return {name: None if wanted is None else wanted.plain or _Never for name, wanted in self._readers.items()}

    @functools.cached_property
    def _required(self) -> frozenset[str]:
        parameters = self._signature.parameters
        return frozenset(name for name in self._readers if parameters[name].default is inspect.Parameter.empty)

    @functools.cached_property
    def _positional(self) -> tuple[str, ...]:
        parameters = self._signature.parameters.values()
        return tuple(one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.cached_property
    def _takes_any(self) -> bool:
        return len(self._readers) < len(self._signature.parameters)

    @functools.cached_property
    def _decoded(self) -> Callable[[bytes], Any]:
        """Makes what the result's annotation says of the result as it is stored."""
        wanted = self._result
        return decode_json if wanted is None else functools.partial(wanted.decode, read=decode_json)

    @functools.cached_property
    def _result(self) -> Reader | None:
        return reader(self._annotations.resolved.get("return", Any))


class AsyncTask(Task[P, R]):
    """A task whose function is ``async def``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Runs the function here and now, as ever. No queue is involved."""
        if self.injected:
            self._check_call(args, kwargs)
        made: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return made


class PlainTask(Task[P, R]):
    """A task whose function is a plain ``def``: a worker runs it in a thread, or in a process of its own."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function here and now, as ever. No queue is involved."""
        if self.injected:
            self._check_call(args, kwargs)
        value: R = self.function(*args, **kwargs)
        return value


def _check_can_be_found(function: Callable[..., Any], name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise InvalidOption(f"task {name!r} has process=True: its function must be a plain def, not async def")
    if not inspect.isfunction(function) or not all(part.isidentifier() for part in function.__qualname__.split(".")):
        raise InvalidOption(
            f"task {name!r} has process=True: {function!r} must be a def at the top of a module, where another process "
            "finds it by its name"
        )


def _changed(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A task's options with those that were given. One that excludes another takes its place, unless both were given."""
    changed = dict(options)
    if given.get("at") is not None:
        changed["delay"] = None
    if given.get("delay") is not None:
        changed["at"] = None
    if _names_id(given.get("deduplication")):
        changed["unique_by"] = None
    policy, unique_by = changed.get("deduplication"), given.get("unique_by", changed.get("unique_by"))
    if policy is not None and _names_id(policy) == (
        unique_by is not None
    ):  # two ids, or none: the kind alone stays, or goes
        kind_stays = unique_by is not None and isinstance(policy, Deduplication)
        changed["deduplication"] = msgspec.structs.replace(policy, id=None) if kind_stays else None
    changed |= given
    return {name: value for name, value in changed.items() if value is not None}


def _names_id(deduplication: Any) -> bool:
    return deduplication is not None and (not isinstance(deduplication, Deduplication) or deduplication.id is not None)


def _signature_of(function: Callable[..., Any], name: str, pass_job: bool) -> tuple[inspect.Signature, dict[str, str]]:
    """What a job's data can hold; and which names it cannot, as the worker gives these values: each with what it is."""
    if isinstance(function, type) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"task {name!r}: {function!r} must be a function that returns, not a class or a generator")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    given: dict[str, str] = {}
    if parameters and parameters[0].name in ("self", "cls"):
        raise InvalidOption(
            f"task {name!r}: {function!r} takes {parameters[0].name}, as a method does, and no job carries its object; make it a "
            "function of the module, or a task of a bound method: app.task(mailer.send)"
        )
    if pass_job:
        if not parameters:
            raise InvalidOption(f"task {name!r} has pass_job=True: its function must take the job as first argument")
        if (
            parameters[-1].kind is parameters[-1].VAR_KEYWORD
            and parameters[0].kind is parameters[0].POSITIONAL_OR_KEYWORD
        ):
            given[parameters[0].name] = "the job itself"  # which ** would take a second time
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise InvalidOption(
                f"task {name!r}: argument {parameter} has no name that a job's data could carry; "
                "make it a named argument"
            )
    injected = [parameter for parameter in parameters if parameter.default is INJECTED]
    if not injected:
        return signature.replace(parameters=parameters), given
    own = [parameter for parameter in parameters if parameter.default is not INJECTED]
    for parameter in own:
        before = parameters[: parameters.index(parameter)]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and any(one.default is INJECTED for one in before):
            raise InvalidOption(
                f"task {name!r}: {parameter.name} stands after a parameter that is injected; let those with Inject() stand last"
            )
    given |= {parameter.name: _INJECTED for parameter in injected}
    return signature.replace(parameters=own), given


class _Annotations:
    """A function's annotations, each resolved by itself when one is first needed: by then its module has been run.

    Args:
        function: the task's.
        task: the task's name.
        wanted: the names that matter: not that of the job, for one.
    """

    def __init__(self, function: Callable[..., Any], task: str, wanted: Set[str]) -> None:
        self._function = annotated(function)
        self._task = task
        self._wanted = wanted

    @functools.cached_property
    def resolved(self) -> dict[str, Any]:
        """By argument, and "return"; without those that name what is not there, which are logged."""
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except Exception:  # one of them is broken, which is no reason to do without the others
            return self._one_by_one()

    def _one_by_one(self) -> dict[str, Any]:
        inner = inspect.unwrap(self._function)
        carried = getattr(inner, "__globals__", {})
        found: dict[str, Any] = {}
        for name, annotation in getattr(inner, "__annotations__", {}).items():
            if name not in self._wanted:
                continue
            try:
                found |= typing.get_type_hints(_carrier(name, annotation), carried, include_extras=True)
            except Exception as error:
                logger.warning(
                    "task %r: %s is annotated with %s, which cannot be resolved (%s): it is neither checked nor converted. "
                    "Import or define what it names at the top of its module, outside of `if TYPE_CHECKING:` and of functions",
                    self._task,
                    "its result" if name == "return" else f"argument {name}",
                    annotation if isinstance(annotation, str) else repr(annotation),
                    error,
                )
        return found


def annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """What has the annotations: behind ``partial``, and in the class of an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__annotations__") else type(function).__call__


def _carrier(name: str, annotation: Any) -> Callable[[], None]:
    def carrier() -> None: ...

    carrier.__annotations__ = {name: annotation}
    return carrier


def _values(number: int) -> str:
    return "1 value" if number == 1 else f"{number} values"


def _spelled(hint: Any) -> str:
    """A type as programs write it."""
    if hint is _NOTHING:
        return "None"
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
