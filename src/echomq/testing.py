"""The testing kit: what was enqueued, jobs that run at once, real queues without a server of your own, and time that passes.

Two ways to test code that enqueues jobs (docs/testing.md):

* ``inline(app)``: each job has run when it is enqueued.
* ``on_server(app)``: you say when jobs run, and how time passes.

Both are real: the app works on a server to throw away, with real workers in the test's process; nothing connects to the server
that the app names. With pytest they are the fixtures ``echomq_inline`` and ``echomq``.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, overload

from echomq._testing import clock
from echomq._testing.asserting import Wanted, complaint, describe
from echomq._testing.driver import Driver, NotSettled
from echomq._testing.inline import Crews, InlineQueue
from echomq._testing.server import LentConnection, Server, finish
from echomq.app import EchoMQ
from echomq.connection import Connection
from echomq.errors import InvalidOption
from echomq.job import Job
from echomq.options import MAX_DELAY, Duration, check_truth, check_whole, shown, to_seconds
from echomq.queue import Queue
from echomq.task import Task

__all__ = ["Inline", "Kit", "NotSettled", "Server", "inline", "on_server"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_PATIENCE: Final = 30.0
_FARTHEST: Final = timedelta(seconds=MAX_DELAY)
_PASSING: Final = f"of more than 0 and at most {_FARTHEST.days:,} days"
_NOT_OPEN: Final = "the kit is not open: use it in a with block"
_BEFORE_INLINE: Final = ", which inline is with the first job"
_LEFT: Final = ("waiting", "active", "prioritized", "delayed", "waiting_children")


class _Ledger:
    """What was enqueued, and what to say of it."""

    def _every(self) -> list[Job[Any]]:
        raise NotImplementedError

    @overload
    def enqueued(
        self, task: Task[P, R], data: Mapping[str, Any] | None = None, *, queue: str | None = None, **options: Any
    ) -> list[Job[R]]: ...
    @overload
    def enqueued(
        self,
        task: str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **options: Any,
    ) -> list[Job[Any]]: ...
    def enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        **options: Any,
    ) -> list[Job[Any]]:
        """The jobs that were added, by whomever, oldest first, as they are now; also those that have run meanwhile.

        Args:
            task: of this task, or of a task of this name; left out, of any.
            data: with these arguments, and perhaps others. They are compared as a job's data has them.
            queue: in the queue of this name.
            options: with these options, as ``Job.opts`` has them, or in this ``state``, or with this ``delay`` or ``priority``.

        Example:
            >>> [job] = kit.enqueued(enroll, {"learner": 7}, priority=2)
        """
        wanted = Wanted(task, data, queue, options)
        return [job for job in self._every() if not wanted.differences(job)]

    @overload
    def assert_enqueued(
        self,
        task: Task[P, R],
        data: Mapping[str, Any] | None = None,
        *,
        count: int | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> list[Job[R]]: ...
    @overload
    def assert_enqueued(
        self,
        task: str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        count: int | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> list[Job[Any]]: ...
    def assert_enqueued(
        self,
        task: Task[..., Any] | str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        count: int | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> list[Job[Any]]:
        """Fails unless such a job was added; says what was added instead.

        Args:
            task: of this task, or of a task of this name; left out, of any.
            data: as the others for ``enqueued``: some of its arguments.
            queue: the name of its queue.
            options: its options.
            count: exactly so many; 0 for none. Left out: at least one.

        Returns:
            These jobs.

        Raises:
            AssertionError: it was not so.

        Example:
            >>> kit.assert_enqueued(enroll, {"learner": 7}, count=1)
        """
        __tracebackhide__ = True
        if count is not None:
            check_whole(count, "count", least=0)
        wanted = Wanted(task, data, queue, options)
        every = self._every()
        found = [job for job in every if not wanted.differences(job)]
        if (not found) if count is None else len(found) != count:
            raise AssertionError(complaint(wanted, count, found, every))
        return found


def _to_be_awaited(
    function: Callable[Concatenate[Kit, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Kit, P], Coroutine[Any, Any, T]]:
    """The kit remembers each call until it is awaited: a test that forgets that would test less than it says."""

    @functools.wraps(function)
    def remembered(kit: Kit, /, *args: P.args, **values: P.kwargs) -> Coroutine[Any, Any, T]:
        call = function(kit, *args, **values)
        kit._calls = [(name, earlier) for name, earlier in kit._calls if _is_new(earlier)]
        kit._calls.append((function.__name__, call))
        return call

    return remembered


def _is_new(call: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED


class Kit(_Ledger):
    """An app on a real server to throw away, whose jobs run when you say so, and whose time passes when you say so.

    Made by ``on_server``. While it is open, all that the app does goes to an empty database of that server, whatever
    connection the app has of its own.
    """

    def __init__(self, app: EchoMQ, server: Server | None = None, *, patience: Duration = _PATIENCE) -> None:
        self.app = app
        self._own_server = server is None
        self._server = Server() if server is None else server
        self._patience = to_seconds(patience, "patience")
        self._connection: LentConnection | None = None
        self._before: tuple[Connection, dict[str, Queue]] | None = None
        self._calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.app!r}>"

    @property
    def connection(self) -> Connection:
        """The way to its database, for queues, workers and schedulers of your own.

        Example:
            >>> async with JobScheduler("reports", connection=kit.connection) as scheduler: ...
        """
        if self._connection is None:
            raise InvalidOption(_NOT_OPEN)
        return self._connection

    @property
    def now(self) -> datetime:
        """The time as the server's clock has it by now: this machine's, and what ``advance`` has added."""
        return clock.moment(self._server.portal.look(self._now()))

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """For plain tests: has an event loop in another thread carry out what is asynchronous, and gives what it returns.

        Raises:
            RuntimeError: it is called in what it carries out itself.

        Example:
            >>> def test_it(echomq):
            ...     echomq.wait(enroll.enqueue(7, course="redis"))
            ...     echomq.wait(echomq.run_until_drained())
        """
        return self._server.portal.wait(coroutine)

    def override(self, provided: Any, value: Any) -> None:
        """Has this value injected wherever a value of this type is wanted; its provider is not called. Until the kit is closed.

        Args:
            provided: the type, as its provider or a task has it: what ``@app.provide`` returns.
            value: what stands in for it.

        Raises:
            InvalidOption: nothing in the app provides or wants this type; workers of the app are running, which have theirs
                already; or the kit is not open.

        Example:
            >>> kit.override(Mailer, FakeMailer())
        """
        if self._before is None:
            raise InvalidOption(_NOT_OPEN)
        if self.app._lifecycle.is_running:
            raise InvalidOption(
                f"override({shown(provided)}, …): workers of the app are running, and have what is injected; override before "
                f"they start{_BEFORE_INLINE if isinstance(self, Inline) else ''}"
            )
        self.app._lifecycle.providers.override(provided, value, self.app.tasks)

    @_to_be_awaited
    async def run_until_drained(
        self,
        *,
        delayed: bool = False,
        seed: int | None = None,
        concurrency: int = 1,
        worker: Mapping[str, Any] | None = None,
    ) -> list[Job[Any]]:
        """Runs, with real workers in this event loop, all that can run now and what comes of it, until nothing can.

        Jobs run one by one: within a queue in its order, and of several queues the first by name. So two runs of a test
        are alike. ``seed`` chooses another order of the queues.

        Args:
            delayed: run also what is due later (retries, and what a rate limit holds back, too), and move the clock on to it;
                but not the runs of schedules.
            seed: a whole number: which queue's turn it is, is left to chance, the same for the same number.
            concurrency: how many jobs of a queue run at once. With more than one, nobody knows what comes first.
            worker: other options of the workers, such as ``{"limiter": Limiter(10, 1)}``.

        Returns:
            For each run the job as it was after that, in order. With ``concurrency``, as it was in it.

        Raises:
            NotSettled: a job went on for longer than the kit's ``patience``.

        Example:
            >>> ran = await kit.run_until_drained()
            >>> [job.name for job in ran]
            ['enroll', 'send_receipt']
        """
        check_truth(delayed, "delayed")
        async with self._driver(seed, concurrency, worker) as driver:
            if delayed:
                await driver.until_nothing_is_delayed()
            else:
                await driver.drain()
            return driver.runs

    @_to_be_awaited
    async def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        work: bool = True,
        seed: int | None = None,
        concurrency: int = 1,
        worker: Mapping[str, Any] | None = None,
    ) -> list[Job[Any]]:
        """Lets time pass. What comes due on the way is run, each at its time: delays, retries, schedules, rate windows.

        All that the server has of time moves: also deduplication, ``expire_in``, retention, locks of workers that are gone. Time
        in Python does not: ``asyncio.sleep``, timeouts of tasks, ``datetime.now()``; take ``kit.now`` for that.

        Args:
            by: how far, at most ten years at once; or the following.
            days: as of a ``timedelta``.
            hours: the same.
            minutes: the same.
            seconds: the same.
            work: run what comes due. False: nobody works in that time, as in an outage; what was missed comes afterwards.
            seed: as of ``run_until_drained``.
            concurrency: the same.
            worker: other options of the workers, such as ``{"limiter": Limiter(10, 1)}``.

        Returns:
            For each run the job as it was after that, in order.

        Raises:
            InvalidOption: time cannot pass so. NotSettled: a job went on for longer than the kit's ``patience``.

        Example:
            >>> await remind.options(delay=3600).enqueue(7)
            >>> await kit.advance(minutes=59)
            []
            >>> [job] = await kit.advance(minutes=1)
        """
        parts = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds}
        try:
            given = timedelta(**parts)
        except (TypeError, ValueError, OverflowError) as error:  # no number, NaN, infinite, or more than there is time
            said = ", ".join(f"{name}={shown(part)}" for name, part in parts.items() if part != 0)
            raise InvalidOption(f"advance: {said}: {error}; must be numbers, together {_PASSING}") from None
        if by is not None and given:
            raise InvalidOption("advance: give a timedelta, or days, hours, minutes and seconds, and not both")
        passing = given if by is None else by
        if not isinstance(passing, timedelta) or not timedelta(0) < passing <= _FARTHEST:
            by_how_much = f"{passing.total_seconds():.15g} s" if isinstance(passing, timedelta) else shown(passing)
            raise InvalidOption(f"advance by {by_how_much}: must be a time {_PASSING}; time passes forward only")
        async with self._driver(seed, concurrency, worker) as driver:
            await driver.advance(round(passing / timedelta(milliseconds=1)), work=check_truth(work, "work"))
            return driver.runs

    def left(self) -> list[Job[Any]]:
        """The jobs that have not ended, apart from the next runs of schedules."""
        return [job for job in self._every() if job.state in _LEFT and job.scheduled_for is None]

    def left_in_words(self) -> str:
        """Not for users of EchoMQ. The same, a job a line; empty if there is none."""
        return "\n".join(map(describe, self.left()))

    def forgotten_in_words(self) -> str:
        """Not for users of EchoMQ. Which call was made and never awaited; empty if there is none. Says so once."""
        forgotten = [(name, call) for name, call in self._calls if _is_new(call)]
        self._calls = []
        for _, call in forgotten:
            call.close()  # so that Python does not complain once more
        if not forgotten:
            return ""
        name, _ = forgotten[0]
        return (
            f"the test called {name}(…) and did not await it, so it did nothing: write `await echomq.{name}(…)`, "
            f"or in a plain test `echomq.wait(echomq.{name}(…))`, where echomq is the kit"
        )

    # -- life --------------------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Takes the app over. A with block does it."""
        if self._before is not None:
            raise InvalidOption(f"{self!r} is open already")
        app = self.app
        if isinstance(app._connection, LentConnection):
            raise InvalidOption(
                f"{app!r} is in another kit already; leave that first. With pytest: a test has the fixture echomq, "
                "or echomq_inline, and not both"
            )
        self._connection = self._server.lend()
        self._before = app._connection, app._queues
        app._connection, app._queues = self._connection, {}
        try:
            self._server.portal.look(self._emptied())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Gives the app back, and closes what it opened. Closing again does nothing."""
        if self._own_server:
            self._server.check_can_close()
        before, self._before = self._before, None
        if before is None or self._connection is None:
            return
        self.app._connection, self.app._queues = before
        self.app._lifecycle.providers.override_nothing()
        try:
            self._connection.close_everywhere()
        finally:
            if self._own_server:
                self._server.close()

    async def rest(self) -> None:
        """Closes what is open in this event loop, before it ends. What the app is asked afterwards opens it anew."""
        if self._before is not None and self._connection is not None:
            try:
                await self.app.close()
            finally:
                await self._connection.close_here()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self.close()
        self._check_calls(error)

    async def __aenter__(self) -> Self:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        try:
            await self.rest()
        finally:
            self.close()
        self._check_calls(error)

    def _check_calls(self, error: BaseException | None) -> None:
        __tracebackhide__ = True
        forgotten = self.forgotten_in_words()
        if forgotten and error is None:
            raise AssertionError(forgotten)
        if forgotten and error is not None:
            error.add_note(forgotten)

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _driver(self, seed: int | None, concurrency: int, options: Mapping[str, Any] | None) -> Driver:
        chance = None if seed is None else random.Random(check_whole(seed, "seed", least=0))
        return Driver(
            self.app,
            chance=chance,
            patience=self._patience,
            concurrency=check_whole(concurrency, "concurrency", least=1),
            options=options or {},
        )

    def _every(self) -> list[Job[Any]]:
        return self._server.portal.look(self._read())

    async def _read(self) -> list[Job[Any]]:
        app, found = self.app, []
        for name in await Queue.names(self.connection, prefix=app._prefix, hash_tag=app._hash_tag):
            found += [job async for job in app.queue(name).jobs()]
        return sorted(found, key=_age)

    async def _now(self) -> int:
        hub = self.connection.acquire()
        try:
            return await clock.read(await hub.link(hash_tag=True))
        finally:
            await hub.release()

    async def _emptied(self) -> None:
        hub = self.connection.acquire()
        try:
            link = await hub.link(hash_tag=True)
            await clock.check(link)
            await link.call("FLUSHDB")
        finally:
            await hub.release()


class Inline(Kit):
    """An app whose jobs have run when they are enqueued: in this process, by real workers, and again at once if they fail.

    Made by ``inline``. A delay and the pauses between attempts are not waited for. What ``enqueue`` gives is the job as it is at
    its end; an error of the task is raised by its ``result()``, as ever, and not by ``enqueue``.
    """

    def __init__(self, app: EchoMQ, server: Server | None = None, *, patience: Duration = _PATIENCE) -> None:
        super().__init__(app, server, patience=patience)
        self._crews = Crews(app, self._patience)

    def open(self) -> Self:
        """Takes the app over. A with block does it."""
        super().open()
        if self._connection is not None:
            self._connection.runs_at_once()
        self.app._queue_type = functools.partial(InlineQueue, crews=self._crews, tasks=self.app)
        return self

    async def rest(self) -> None:
        """Ends the workers of this event loop and closes what is open in it, before it ends."""
        try:
            await self._crews.close_here()
        finally:
            await super().rest()

    def close(self) -> None:
        """Gives the app back, and closes what it opened. Closing again does nothing."""
        try:
            for loop in self._crews.loops():
                finish(loop, self._crews.close_here)
        finally:
            self.app._queue_type = Queue
            super().close()


def inline(app: EchoMQ, server: Server | None = None, *, patience: Duration = _PATIENCE) -> Inline:
    """Jobs that have run when they are enqueued: a context manager, plain or async, that gives an ``Inline``.

    Args:
        app: the app under test.
        server: as for ``on_server``.
        patience: seconds of real time that a job may take.

    Example:
        >>> async with inline(app) as jobs:
        ...     job = await enroll.enqueue(7, course="redis")
        ...     assert job.state == "completed"
        ...     assert await job.result() == "a seat"
        ...     jobs.assert_enqueued(send_receipt, {"learner": 7})
    """
    return Inline(app, server, patience=patience)


def on_server(app: EchoMQ, server: Server | None = None, *, patience: Duration = _PATIENCE) -> Kit:
    """The app on a real server to throw away: a context manager, plain or async, that gives a ``Kit``.

    Args:
        app: the app under test.
        server: the one to use; left out, one that ends with the block. It takes a tenth of a second to start, so tests
            share one.
        patience: seconds of real time that a single job may take, before a test is told that it hangs.

    Example:
        >>> async with on_server(app) as kit:
        ...     await enroll.enqueue(7, course="redis")
        ...     await kit.run_until_drained()
        ...     kit.assert_enqueued(send_receipt, {"learner": 7})
    """
    return Kit(app, server, patience=patience)


def _age(job: Job[Any]) -> tuple[float, int, str]:
    made = 0.0 if job.timestamp is None else job.timestamp.timestamp()
    return (made, int(job.id) if job.id.isdigit() else 0, job.id)
