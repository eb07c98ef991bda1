"""A running worker: its roles, put together, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from echomq._clock import lasting
from echomq._log import Seldom, about, logger
from echomq._redis.client import Link
from echomq._redis.heartbeat import HeartbeatLink
from echomq._store.call import Lane, Patience
from echomq._store.codec import RunOptions, StoredJob
from echomq._store.fetch import Want
from echomq._store.finish import GivenBack, Outcome
from echomq._store.forward import Destination
from echomq._store.keep import extend_locks_now
from echomq._store.keys import QueueKeys
from echomq._store.presence import leave
from echomq._store.schedule import Schedules
from echomq._store.streams import Streams
from echomq._telemetry import Guard
from echomq._worker.cancels import Cancels
from echomq._worker.forward import Forwarder
from echomq._worker.heal import Healer
from echomq._worker.held import Held, HeldTable, Hold
from echomq._worker.keep import Keeper
from echomq._worker.outcome import Ends, Telling
from echomq._worker.presence import Presence
from echomq._worker.pump import Pump
from echomq._worker.retry import Retries
from echomq._worker.run import Runner
from echomq._worker.slots import Pool
from echomq._worker.stalled import Sweeper
from echomq._worker.trace import Tracer
from echomq.errors import ConnectionLost, EchoMQError, InvalidOption, ServerUnavailable, StateError, Unrecoverable
from echomq.models import FAILURE_KINDS
from echomq.options import Backoff, BackoffStrategy, Keep, OnCrashLimit
from echomq.retry_policy import RetryPolicy

_AFTER_CANCEL = 1.0
"""Seconds that a cancelled handler has for its own cleaning up."""

_FOR_STORING = 5.0
"""Seconds for storing outcomes when the server is away; and for forwarding what is in the outbox."""

_DEAD: Final = tuple(kind for kind in FAILURE_KINDS if kind != "cancelled")

_FOR_MARKER = 0.5
"""Seconds for waking another worker."""

_FOR_LEAVING = 0.5
"""Seconds for taking this worker out of the list."""

_MOST_NAMED: Final = 20
"""Jobs that one line of the log names."""

_TO_SAY = 0.5
"""Seconds after which it is said how many handlers go on whose runs have ended: many may end at once."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a crew works by: a worker's options, checked."""

    name: str
    concurrency: int
    lock_duration: float
    stalled_interval: float
    max_stalled_count: int
    shutdown_timeout: float
    limit: tuple[int, float] | None
    keep_completed: Keep
    keep_failed: Keep
    backoff_strategies: Mapping[str, BackoffStrategy]
    retry_policy: RetryPolicy
    dead_letter: bool
    on_crash_limit: OnCrashLimit
    crash_backoff: Backoff
    fair_share: float
    metrics_points: int
    telemetry: Guard | None
    max_bytes: int | None


class Crew:
    """The roles of one run of a worker.

    Args:
        call: calls the user's handler for a job.
        destination: to which queue the outcome of a job of a name is forwarded, if to any; None if none ever is.
        elsewhere: those of such queues that are on other servers, by what the outbox calls them.
        commands, blocking, heartbeat: the three connections. The crew closes the last two.
        streams: reads the queue's stream of requests to cancel.
        look_after: puts a server back that is ours to put back (an embedded one).
        ready: set at the first answered fetch.
        hears: called with each outcome that is stored, for the hooks of an app.
        process: what the tokens of its locks begin with, or "": by it a supervisor knows them when this process has died.
        pool: slots that it shares with other crews; None: it has its own.
    """

    def __init__(
        self,
        keys: QueueKeys,
        plan: Plan,
        call: Callable[[Held], Awaitable[Any]],
        *,
        destination: Callable[[str], Destination | None] | None,
        elsewhere: Callable[[], Mapping[str, Destination]],
        commands: Link,
        blocking: Link,
        heartbeat: HeartbeatLink,
        streams: Streams,
        look_after: Callable[[Exception], Awaitable[None]],
        ready: asyncio.Event,
        hears: Callable[[Held, Outcome], None] | None = None,
        process: str = "",
        pool: Pool | None = None,
    ) -> None:
        self._keys = keys
        self._plan = plan
        self._commands = commands
        self._blocking = blocking
        self._look_after = look_after
        self._table = HeldTable()
        self._schedules = Schedules(Lane(commands, keys))
        retries = Retries(keys.queue, plan.backoff_strategies, plan.retry_policy)
        # What somebody has cancelled leaves none: nobody has to look into that.
        letters = _DEAD if plan.dead_letter else ("crashed",) if plan.on_crash_limit == "dead_letter" else ()
        telling = None if destination is None else Telling(keys.queue, plan.name, destination)
        self._ends = Ends.of(
            plan.keep_completed, plan.keep_failed, retries.delay, retries.kind, keys.dead_letters.base, letters, telling,
            plan.max_bytes,
        )  # fmt: skip
        tracer = None if plan.telemetry is None else Tracer(plan.telemetry, keys.protocol_name, plan.name)
        called = call if tracer is None else tracer.calls(call)
        self._runner = runner = Runner(keys.queue, called, self._ends, self._advance, self._is_cancelled)
        self._keeper = Keeper(heartbeat, keys, self._table, plan.lock_duration, self._lost)
        self._presence = Presence(
            plan.name,
            plan.concurrency,
            plan.stalled_interval,
            lambda: self.pump.is_shut,
            lambda: self._keeper.loop_lag,
            lambda: self.pump.going_on,
        )
        crash_backoff = plan.crash_backoff if plan.on_crash_limit == "backoff" else None
        self._forwarder = Forwarder(keys, commands, elsewhere)
        self._sweeper = Sweeper(
            keys.queue,
            Lane(commands, keys),
            plan.stalled_interval,
            plan.max_stalled_count,
            crash_backoff,
            self._presence.now,
            self._forwarder.look,
        )
        self._healer = Healer(keys, commands, Lane(commands, keys))
        limit, duration = plan.limit if plan.limit is not None else (None, None)
        self.pump = Pump(
            keys,
            commands,
            blocking,
            self._table,
            slots=plan.concurrency,
            want=Want(plan.lock_duration, plan.name, limit, duration),
            metrics_points=plan.metrics_points,
            fair_share=plan.fair_share,
            run=runner.run if tracer is None else tracer.runs(runner.run),
            settle=self._settle,
            confirm=self._settle_locks,
            answered=self._answered,
            fresh_for=plan.lock_duration / 2,
            ready=ready,
            process=process,
            pool=pool,
            without_result=self._ends.without_result,
            cancelled=self._cancelled,
            taken=self._taken,
            stored=self._stored,
            going_on_changed=self._say_soon,
            hears=hears,
            failed_to_complete=lambda held, why: self._ends.failed(
                held, held.job.opts, f"cannot complete: {why}", "unrecoverable"
            ),
        )
        self._cancels = Cancels(keys, streams, commands, self._table, self._give_up)
        self._away_since: float | None = None  # monotonic, for other threads
        self._seldom = Seldom()
        self._hurry = asyncio.Event()
        self._cleaning_up = _AFTER_CANCEL
        self._saying: asyncio.TimerHandle | None = None
        self._given_back: list[str] | None = None  # ids, since we stop
        self._task: asyncio.Task[Any] | None = None

    @property
    def loop_silent_for(self) -> float:
        """Seconds that the event loop has owed the heartbeat an answer."""
        return self._keeper.loop_silent_for

    @property
    def loop_lag(self) -> float:
        """Seconds: the longest time that the event loop took to answer lately."""
        return self._keeper.loop_lag

    @property
    def away_for(self) -> float:
        """Seconds for which the server has not answered, or has refused all work for now; 0 while it works."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    def shut(self) -> None:
        """Fetches no more, and says so."""
        self.pump.shut()
        self._sweeper.changed()

    def open(self) -> None:
        """Fetches again."""
        self.pump.open()
        self._sweeper.changed()

    def _say_soon(self) -> None:
        if self._saying is None:
            self._saying = asyncio.get_running_loop().call_later(_TO_SAY, self._say)

    def _say(self) -> None:
        self._saying = None
        self._sweeper.changed()

    def hurry(self, cleaning_up: float | None = None) -> None:
        """Gives running jobs back at once, instead of waiting for them; with so many seconds for what handlers clean up."""
        if cleaning_up is not None:
            self._cleaning_up = cleaning_up
        self._hurry.set()

    async def work(self, stop: asyncio.Event, *, until_empty: bool) -> list[Held]:
        """Works until ``stop`` is set (or nothing is left, with ``until_empty``), then stops in order.

        Returns the jobs whose outcome could not be stored.
        """
        self._task = asyncio.current_task()
        self._keeper.start()
        self._cancels.start()
        if until_empty:
            self.pump.stop_when_empty()
        *lanes, blocking = [asyncio.create_task(role, name="echomq pump") for role in self.pump.tasks()]
        sweeping = asyncio.create_task(self._sweeper.run(), name="echomq sweep")
        healing = asyncio.create_task(self._healer.run(), name="echomq heal")
        forwarding = asyncio.create_task(self._forwarder.run(), name="echomq forward")
        stopping = asyncio.create_task(stop.wait(), name="echomq stop")
        try:
            try:
                await self._until_stopped(stopping, lanes, {blocking, sweeping, healing, forwarding})
            except asyncio.CancelledError:  # all tasks of the loop are being cancelled: no time to lose
                self._hurry.set()
                for lane in lanes:
                    lane.cancel()
                await asyncio.wait(lanes)
                await self._stop(lanes, blocking)
                raise
            except BaseException:
                logger.exception("worker %s met an error of its own, and stops", self._plan.name)
                await self._stop(lanes, blocking)
                raise
            return await self._stop(lanes, blocking)
        finally:
            roles = (stopping, sweeping, healing, forwarding, blocking, *lanes)
            for task in roles:
                task.cancel()
            await asyncio.gather(*roles, return_exceptions=True)
            self.pump.leave_pool()
            if self._saying is not None:
                self._saying.cancel()
            await self._cancels.stop()
            await self._leave()
            self._blocking.drop("the worker has stopped")
            await self._keeper.stop()
            await self._blocking.close()

    async def _until_stopped(
        self, stopping: asyncio.Task[Any], lanes: list[asyncio.Task[None]], others: set[asyncio.Task[None]]
    ) -> None:
        waiting: set[asyncio.Task[Any]] = {stopping, *lanes, *others}
        while not stopping.done() and not all(lane.done() for lane in lanes):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                if task.cancelled():  # not by us, and this very task was not: the event loop goes on
                    raise StateError(f"its task {task.get_name()!r} was cancelled by somebody else")
                task.result()  # a role does not end by itself: what it raises is a fault, and ends the worker loudly

    async def _leave(self) -> None:
        """Takes this worker out of the list of those that are there. If that fails, it is dropped from there in time."""
        if self._commands.connected:
            with contextlib.suppress(EchoMQError, TimeoutError):
                async with asyncio.timeout(_FOR_LEAVING):
                    await leave(self._commands, self._keys, self._presence.id)

    # -- stopping --------------------------------------------------------------------------------------------------------

    async def _stop(self, lanes: list[asyncio.Task[None]], blocking: asyncio.Task[None]) -> list[Held]:
        """Fetch no more; let jobs finish; cancel them; give back what is left; store it all."""
        self._given_back = []
        self.pump.close()
        for position, lane in enumerate(lanes):
            if lane.done() and not self.pump.idle:  # by a fault: what is in hand must still be stored
                lanes[position] = asyncio.create_task(self.pump.lane(), name="echomq pump")
        running = self.pump.handlers
        logger.info(
            "worker %s stops; %s",
            self._plan.name,
            f"{'1 job has' if running == 1 else f'{running} jobs have'} up to {self._plan.shutdown_timeout:g} s to finish"
            if running
            else "none of its jobs is running",
        )
        await self._until_quiet(self._plan.shutdown_timeout, running_only=True, unless_hurried=True)
        self.pump.stop_running(self._latest_first(), "the worker stops")
        await self._until_quiet(self._cleaning_up, running_only=True)
        for held, is_back in self.pump.give_back_running():
            logger.warning(
                "the handler of job %s (%s) does not stop; %swhat it still returns is discarded",
                held.job.id,
                held.job.name,
                "the job is given back, and another worker runs it; " if is_back else "",
                extra=about(self._keys.queue, held.job.id, held.job.name),
            )
        await self._until_quiet(_FOR_STORING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FOR_STORING):
                await self._forwarder.at_rest()
        if self.pump.idle:
            await asyncio.wait({*lanes, blocking}, timeout=_FOR_MARKER)
        self._tell_given_back()
        return self.pump.unsettled()

    def _tell_given_back(self) -> None:
        back = self._given_back
        if back:
            logger.info(
                "worker %s gave back %s: %s%s",
                self._plan.name,
                "1 job" if len(back) == 1 else f"{len(back):,} jobs",
                ", ".join(back[: -_MOST_NAMED - 1 : -1]),  # they went latest first
                ", …" if len(back) > _MOST_NAMED else "",
            )

    def _latest_first(self) -> list[Held]:
        return [held for held in reversed(self._table.all()) if held.hold in (Hold.RUNNING, Hold.STOPPED)]

    async def _until_quiet(self, seconds: float, *, unless_hurried: bool = False, running_only: bool = False) -> None:
        quiet = asyncio.create_task(self.pump.quiet(running_only=running_only), name="echomq quiet")
        hurried = asyncio.create_task(self._hurry.wait(), name="echomq hurry")
        try:
            watched = {quiet, hurried} if unless_hurried else {quiet}
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            quiet.cancel()
            hurried.cancel()
            await asyncio.gather(quiet, hurried, return_exceptions=True)

    def _cancelled(self, held: Held, reason: str) -> Outcome:
        try:
            options = held.job.opts
        except Exception:  # whatever was written there
            options = RunOptions(raw={})
        return self._ends.cancelled(held, options, reason)

    def overrun(self, held: Held, error: TimeoutError) -> None:
        """Ends a run whose time is up, and whose handler was told and goes on."""
        outcome = self._runner.overrun(held, error)
        if outcome is not None:
            self.pump.give_up(held, outcome)

    def _give_up(self, held: Held) -> None:
        if held.cancel_reason is not None and held.calling:
            self.pump.give_up(held, self._cancelled(held, held.cancel_reason))

    def _taken(self, fetched: list[Held]) -> None:
        self._cancels.taken(fetched)

    def _stored(self, outcomes: list[Outcome], now: int | None) -> None:
        self._sweeper.ended(outcomes, now)
        if self._given_back is not None:
            self._given_back += [outcome.job_id for outcome in outcomes if isinstance(outcome, GivenBack)]
        if self._ends.telling is not None:
            self._forwarder.stored(outcomes)

    # -- trouble -----------------------------------------------------------------------------------------------------------

    def _is_cancelled(self) -> bool:
        """Whether whoever cancels runs now cancels everything: the event loop is about to end."""
        return self._task is not None and self._task.cancelling() > 0

    def _lost(self, held: Held, certain: bool) -> None:
        if held.hold not in (Hold.RUNNING, Hold.STOPPED):
            return
        extra = about(self._keys.queue, held.job.id, held.job.name)
        if certain:
            logger.warning(
                "job %s (%s) is another worker's now; its run is stopped", held.job.id, held.job.name, extra=extra
            )
            held.stop("LockLost: another worker has the job", Hold.LOST)
        elif held.hold is Hold.RUNNING and self._keeper.overdue(held):  # it may have been renewed since we were told
            logger.warning(
                "the lock of job %s (%s) was not renewed in time; its run is stopped",
                held.job.id,
                held.job.name,
                extra=extra,
            )
            held.stop("LockLost: the lock may have expired", Hold.STOPPED)

    async def _settle(self, trouble: Exception) -> None:
        """After trouble with the connection, before anything is sent again: our locks first.

        Otherwise a call that waits here could find its job's lock expired, although nobody else has taken the job.
        """
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning("queue %s: %s; trying again until it answers", self._keys.queue, trouble)
        await self._settle_locks()

    def _answered(self) -> None:
        """A call has had its answer: that ends an outage. A PING says little: what a replica refuses it answers to that, too."""
        if self._away_since is not None:
            self._away_since = None
            logger.warning("queue %s: the server answers again", self._keys.queue)

    async def _settle_locks(self) -> list[Held]:
        """Renews what is still ours, takes again what is nobody's, and stops and returns what is another's.

        It tries until the server answers.
        """
        pause = _FIRST_PAUSE
        while (settled := await self._try_to_settle()) is None:
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, _LONGEST_PAUSE)
        for one in settled:
            self._lost(one, True)
        return settled

    async def _try_to_settle(self) -> list[Held] | None:
        """The jobs that are lost, or None if the server cannot say yet."""
        held = [one for one in self._table.all() if one.hold is not Hold.LOST]
        triples = [(one.job.id, one.token, one.run) for one in held]
        before = lasting()
        try:
            lost = set(await extend_locks_now(self._commands, self._keys, triples, self._plan.lock_duration))
            if not held:
                await self._commands.call("PING")
        except (ServerUnavailable, ConnectionLost) as error:
            await self._look_after(error)
            return None
        except EchoMQError as error:
            self._seldom.error("queue %s: locks cannot be renewed: %s; trying again", self._keys.queue, error)
            return None
        for one in held:
            if one.job.id not in lost:
                one.renewed_at = max(one.renewed_at, before)
        return [one for one in held if one.job.id in lost]

    async def _advance(self, job: StoredJob) -> float | None:
        try:
            late = await self._schedules.advance(job, Patience(math.inf, self._settle))
            self._answered()
            return late
        except InvalidOption as error:  # its schedule ends here, and somebody must see it
            raise Unrecoverable(f"schedule {job.text(b'rjk')!r} has no next run: {error}") from None
        except EchoMQError as error:
            # The iteration that runs is not to blame, and runs; but without its successor the schedule ends: say so loudly.
            logger.error(
                "the next iteration of schedule %s was not made: %s",
                job.text(b"rjk"),
                error,
                extra=about(self._keys.queue, job.id, job.name),
            )
            return None
