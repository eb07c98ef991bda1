"""The heart: outcomes go to the server and jobs come back, in one call, as many as there are.

The pump holds the free slots and the outcomes that wait to be stored. Whenever it has either, it makes one call; while
that call is under way more gather, so the size of a batch finds itself: one job when the queue is quiet, fifty under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine
from fractions import Fraction
from typing import Any, NamedTuple

from echomq._clock import lasting
from echomq._log import Seldom, about, logger
from echomq._redis.blocking import next_entry, pop_marker
from echomq._redis.client import Link
from echomq._store import codes
from echomq._store.call import Lane, Patience, run_script
from echomq._store.fetch import Closed, Turn, Want, take
from echomq._store.finish import Completed, GivenBack, Outcome, RateLimited, finish_and_take
from echomq._store.keys import QueueKeys
from echomq._worker.held import Held, HeldTable, Hold
from echomq._worker.slots import Pool, Share
from echomq.errors import ConnectionLost, EchoMQError, EncodingError, ServerError, ServerUnavailable

CAP = 50
"""Outcomes and jobs of one call: beyond, nothing is gained, and no script may take long."""

MOST_BYTES = 1024 * 1024
"""Of outcomes in one call, as far as there is more than one."""

LONGEST_BLOCK = 5.0
_LONGEST_LIMIT = 30.0
_PAUSE_AFTER_ERROR = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_SILENCE = 1.0
"""Seconds beyond the time of a block after which its connection was not closed, but silent."""

_TIMEOUT_GRAIN = 0.1
"""Seconds by which a server may be late to say that a block has timed out: it looks ten times a second."""

_DROP_ARRIVES = 0.02
"""Seconds that the server may take to see that a connection was closed."""


class Gate(enum.Enum):
    """Whether new jobs are fetched."""

    OPEN = "open"
    SHUT = "shut"


class _Ask(NamedTuple):
    """What one call carries.

    Attributes:
        outcomes: to be stored.
        wanted: how many jobs it asks for.
        share: how many of these are to be those that have waited longest.
        before: when it was first sent, on the lasting clock.
        reasons: how many reasons to look there had been by then.
    """

    outcomes: list[tuple[Held, Outcome]]
    wanted: int
    share: int
    before: float
    reasons: int


class FairShare:
    """Keeps account of jobs that are fetched because they have waited longest, so that their share is exact over time.

    Args:
        share: of all jobs that are fetched; from 0 to 0.5.
    """

    def __init__(self, share: float) -> None:
        self._share = Fraction(str(share))
        self._all = self._longest = 0

    def of(self, wanted: int) -> int:
        """How many of the next ``wanted`` jobs are to be such ones. They count as fetched until ``got`` says how many came."""
        self._all += wanted
        due = min(max(int(self._all * self._share) - self._longest, 0), wanted)
        self._longest += due
        return due

    def got(self, came: int, wanted: int, share: int) -> None:
        """So many came. A fetch that takes fewer than it may takes those that have waited longest all the same."""
        self._all -= wanted - came
        self._longest -= max(share - came, 0)


class Pump:
    """Fetches, hands jobs to runs, and stores how they ended.

    Args:
        keys, link, blocking: the queue, the connection for calls, and the one that blocks on the marker.
        table: all jobs in our hands.
        slots: how many jobs may run at once.
        fair_share: of the jobs that it fetches, how many are to be those that have waited longest.
        run: runs one job and says its outcome.
        settle: called after trouble with the connection, before anything is sent again; returns when the server is back and
            our locks are settled.
        confirm: settles our locks, without trouble; returns the jobs that are lost.
        answered: called when the server has answered a call, be it with an error.
        fresh_for: seconds after which the answer to a fetch must be confirmed before its jobs are run.
        failed_to_complete: the outcome of a job that returned but must not complete, because of its children.
        without_result: the outcome of a job whose own cannot be sent, with the reason; None if there is no other.
        cancelled: the outcome of a job that somebody has cancelled, with the reason.
        taken: called with the jobs of each fetch.
        stored: called with the outcomes that a call has stored, and the server's time.
        hears: called with each of them, for the hooks of an app; None if there are none.
        going_on_changed: called when there are more or fewer handlers whose runs have ended.
        ready: set when the server has answered the first fetch.
        process: what the ids of its lanes begin with, or "".
        pool: slots that it shares with others; None: it has its own.
    """

    def __init__(
        self,
        keys: QueueKeys,
        link: Link,
        blocking: Link,
        table: HeldTable,
        *,
        slots: int,
        want: Want,
        metrics_points: int,
        fair_share: float,
        run: Callable[[Held], Coroutine[Any, Any, Outcome | None]],
        settle: Callable[[Exception], Coroutine[Any, Any, None]],
        confirm: Callable[[], Coroutine[Any, Any, list[Held]]],
        answered: Callable[[], None],
        fresh_for: float,
        failed_to_complete: Callable[[Held, str], Outcome],
        without_result: Callable[[Held, Outcome, str], Outcome | None],
        cancelled: Callable[[Held, str], Outcome],
        taken: Callable[[list[Held]], None],
        stored: Callable[[list[Outcome], int | None], None],
        hears: Callable[[Held, Outcome], None] | None,
        going_on_changed: Callable[[], None],
        ready: asyncio.Event,
        process: str = "",
        pool: Pool | None = None,
    ) -> None:
        self._keys, self._process = keys, process
        self._link = link
        self._blocking = blocking
        self._table = table
        self._slots = slots
        self._want = want.args
        self._metrics_points = metrics_points
        self._fair_share = FairShare(fair_share) if fair_share else None
        self._run = run
        self._failed_to_complete, self._without_result = failed_to_complete, without_result
        self._cancelled = cancelled
        self._have_been_taken, self._have_been_stored, self._hears = taken, stored, hears
        self._ready = ready
        self._confirm, self._fresh_for = confirm, fresh_for
        self._has_answered, self._going_on_changed = answered, going_on_changed
        self._patience = Patience(math.inf, settle)
        self._cap = 1 if slots == 1 else min(CAP, max(1, slots // 2))
        self._lanes = 1 if slots == 1 else 2
        self._ended: deque[tuple[Held, Outcome]] = deque()
        self._put_back = False  # whether one that has ended goes back to the front, because of a rate limit
        self._given_back: list[tuple[Held, Outcome]] | None = None  # gathered until all that stop have stopped
        self._in_call: set[Held] = set()
        self._unanswered: list[tuple[Lane, _Ask]] = []
        self._runs: set[asyncio.Task[None]] = set()
        self._fetching = 0
        self._running = 0
        self._going_on: set[Held] = (
            set()
        )  # timed out or cancelled: their runs have ended, their threads not, and these keep their slots
        self._gate = Gate.OPEN
        self._closing = False
        self._empty = False
        self._reasons = 0  # to look, so far
        self._drained = False
        self._ramp = 1
        self._held_until = 0.0
        self._window_timer: asyncio.TimerHandle | None = None
        self._limit_seen_at = 0  # milliseconds of the server: changes of a limit up to then are known
        self._due_at: float | None = None
        self._due_timer: asyncio.TimerHandle | None = None
        self._server_offset: float | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._blocked = False
        self._owes_marker = False
        self._stop_when_empty = False
        self._changed = asyncio.Event()
        self._seldom = Seldom()
        self.fetched_at: float | None = None  # monotonic, for other threads; None before the first answer
        self._unanswered_since: float | None = None  # only where slots are shared
        self._pool = pool
        self._share: Share | None = None

    # -- what others ask of it -----------------------------------------------------------------------------------------

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Its roles, to be run as tasks: the lanes and the one that blocks on the marker."""
        if self._pool is not None:
            self._share = self._pool.join(
                self._keys.queue, self._slots_taken, self._wants, lambda: self._unanswered_since, self._wake_one
            )
        return [*(self.lane() for _ in range(self._lanes)), self._block()]

    def leave_pool(self) -> None:
        """Its slots, where it shared them, are the others' from now on."""
        if self._share is not None:
            self._share.leave()

    def lane(self) -> Coroutine[Any, Any, None]:
        """One more lane, to take the place of one that has ended."""
        lane, ask = self._unanswered.pop() if self._unanswered else (Lane(self._link, self._keys, self._process), None)
        return self._drive(lane, ask)

    def stop_when_empty(self) -> None:
        """Ends the lanes once nothing waits and nothing runs here."""
        self._stop_when_empty = True
        self._wake_all()

    def shut(self) -> None:
        """Fetches no more. Running jobs go on."""
        self._gate = Gate.SHUT
        # Whether the marker has just been given to us, we may never know; `_block` passes one on.
        self._owes_marker = True
        if self._blocked:
            self._blocking.drop("the worker fetches no more")
        self._changed.set()
        self._wake_all()
        self._shares_changed()

    def open(self) -> None:
        """Fetches again."""
        if self._closing:
            return
        self._gate = Gate.OPEN
        self._look_again()
        self._changed.set()

    def close(self) -> None:
        """Ends the lanes once every outcome is stored. Fetches no more."""
        self._closing = True
        self._comes_due(None, asyncio.get_running_loop())
        if self._window_timer is not None:
            self._window_timer.cancel()
        self.shut()

    @property
    def is_shut(self) -> bool:
        """Whether it was told to fetch nothing for now."""
        return self._gate is Gate.SHUT and not self._closing

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits to be stored or is under way."""
        under_way = self._running or self._ended or self._in_call or self._fetching or self._given_back
        return not under_way

    async def quiet(self, *, running_only: bool = False) -> None:
        """Waits until it is idle, or until no job runs, nor a thread of one that has timed out."""
        while (self._running or self._going_on) if running_only else not self.idle:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def stop_running(self, held: list[Held], reason: str) -> None:
        """Tells handlers to stop. What is given back is gathered until ``give_back_running``, which knows the order."""
        self._given_back = []
        for one in held:
            if one.hold is Hold.RUNNING:  # one that has been told already may be cleaning up
                one.stop(reason, Hold.STOPPED)

    def give_back_running(self) -> list[tuple[Held, bool]]:
        """Gives jobs back whose handlers have been told to stop, latest fetched first, so that their order is kept.

        What a handler that goes on still returns is discarded. Returns the jobs of such handlers, and whether each is given back
        now; one that is not has ended, or is another worker's.
        """
        going_on = [(one, False) for one in self._going_on]
        for one in self._table.all():
            if one.hold is Hold.ENDED:
                continue
            if one.task is not None:
                going_on.append((one, one.hold is not Hold.LOST and one.cancel_reason is None))
            if one.hold is Hold.LOST:
                self._running -= 1
                self._table.drop(one)
                one.hold = Hold.ENDED
            elif one.cancel_reason is not None:
                self._end(one, self._cancelled(one, one.cancel_reason))
            else:
                self._end(one, GivenBack(one.job.id, one.token, started=one.called))
        back, self._given_back = self._given_back or [], None
        place = {id(one): number for number, one in enumerate(self._table.all())}
        back.sort(key=lambda pair: place.get(id(pair[0]), -1), reverse=True)
        self._ended.extend(back)
        self._wake_all()
        self._tell_idle()
        return going_on

    def give_up(self, held: Held, outcome: Outcome) -> None:
        """Ends a run whose handler was told to stop, and goes on: that keeps its slot until it ends."""
        if held.task is None or held.hold not in (Hold.RUNNING, Hold.STOPPED):
            return
        if held.thread is None or held.thread.done():
            held.thread = held.task
        self._end(held, outcome)

    @property
    def handlers(self) -> int:
        """How many handlers have not ended, in runs or in threads."""
        return self._running + len(self._going_on)

    @property
    def going_on(self) -> int:
        """How many slots are held by handlers whose runs have ended."""
        return len(self._going_on)

    def unsettled(self) -> list[Held]:
        """Jobs whose outcome has not been stored."""
        return [held for held in self._table.all() if held.hold is not Hold.LOST]

    # -- a lane --------------------------------------------------------------------------------------------------------

    async def _drive(self, lane: Lane, ask: _Ask | None) -> None:
        while True:
            if ask is None:
                ask = self._load()
            if ask is None:
                if self._done():
                    self._wake_all()
                    return
                await self._wait()
                continue
            try:
                turn = await self._call(lane, ask)
            except EchoMQError as error:
                await self._refused(ask, error)
                ask = None
                continue
            except BaseException:  # cancelled: its answer may hold jobs, so the lane that follows asks again
                lane.step_back()
                self._unanswered.append((lane, ask))
                raise
            self._has_answered()
            self._asked(ask, len(turn.jobs) + len(turn.dropped))
            try:
                stored, late = self._stored(ask.outcomes, turn)
                fetched = self._take_in(turn, ask.before)  # at once: what is not in the table, nobody gives back
                self._tell_hooks(stored)
                if late:
                    await self._store_late(late)
                if fetched:
                    await self._begin(fetched, ask.before)
                self._fetched(turn, ask)
            except BaseException:  # this lane ends; another may ask again what has become of these
                self._take_back(ask.outcomes)
                raise
            ask = None
            self._tell_idle()

    async def _call(self, lane: Lane, ask: _Ask) -> Turn:
        if not ask.outcomes:
            return await take(lane, self._want, ask.wanted, self._patience, ask.share)
        outcomes = [outcome for _, outcome in ask.outcomes]
        return await finish_and_take(
            lane, self._want, ask.wanted, outcomes, self._metrics_points, self._patience, ask.share
        )

    def _asked(self, ask: _Ask, came: int) -> None:
        self._fetching -= ask.wanted
        if self._share is not None:
            self._share.started(came)
            self._unanswered_since = self._share_clock() if self._fetching else None
        if self._fair_share is not None:
            self._fair_share.got(came, ask.wanted, ask.share)

    def _load(self) -> _Ask | None:
        """What the next call carries: outcomes, and how many jobs it asks for. None if there is nothing to call for."""
        outcomes: list[tuple[Held, Outcome]] = []
        size = 0
        if self._put_back:
            self._put_latest_back_first()
        while self._ended and len(outcomes) < self._cap and size < MOST_BYTES:
            ended = self._ended.popleft()
            size += ended[1].size
            outcomes.append(ended)
        count = self._wanted(bool(outcomes))
        if outcomes:
            self._shares_changed()  # the slots of these are free
        if not outcomes and not count:
            return None
        self._in_call.update(held for held, _ in outcomes)
        self._fetching += count
        if count and self._share is not None and self._unanswered_since is None:
            self._unanswered_since = self._share_clock()
        share = 0 if self._fair_share is None else self._fair_share.of(count)
        return _Ask(outcomes, count, share, lasting(), self._reasons)

    def _wanted(self, going_anyway: bool) -> int:
        if self._gate is Gate.SHUT or (self._empty and not going_anyway):
            return 0
        # Not more at once than there are slots, and outcomes that wait: while the server is away, no pile of these is to grow.
        free = self._slots - self._slots_taken() - len(self._ended)
        if asyncio.get_running_loop().time() < self._held_until:
            # Nothing will come; but one that stops when nothing waits has to know that nothing does.
            return 1 if self._stop_when_empty and free > 0 and not self._fetching else 0
        wanted = max(0, min(free, self._cap, self._ramp - self._fetching))
        return wanted if self._share is None else self._share.grant(wanted)

    def _slots_taken(self) -> int:
        return self.handlers + self._fetching

    # -- slots that are shared -------------------------------------------------------------------------------------------

    def _wants(self) -> bool:
        return self._gate is Gate.OPEN and not self._empty and self._share_clock() >= self._held_until

    @staticmethod
    def _share_clock() -> float:
        return asyncio.get_running_loop().time()

    def _shares_changed(self) -> None:
        if self._share is not None:
            self._share.changed()

    # -- a lane, further -------------------------------------------------------------------------------------------------

    def _done(self) -> bool:
        if not self.idle:
            return False
        if self._closing:
            return True
        return self._stop_when_empty and self._drained

    def _stored(
        self, outcomes: list[tuple[Held, Outcome]], turn: Turn
    ) -> tuple[list[tuple[Held, Outcome]], list[tuple[Held, Outcome]]]:
        """What has been stored, and what came after its lock had expired."""
        late, stored = [], []
        for (held, outcome), code in zip(outcomes, turn.codes, strict=True):
            if code == codes.LOCK_GONE:
                late.append((held, outcome))
                continue
            self._in_call.discard(held)
            if codes.is_stored(code):
                self._table.drop(held)
                stored.append((held, outcome))
                if isinstance(code, str):
                    self._say_undone(held, code)
            else:
                self._not_stored(held, outcome, code)
        if stored:
            self._have_been_stored([outcome for _, outcome in stored], turn.now)
        return stored, late

    def _tell_hooks(self, stored: list[tuple[Held, Outcome]]) -> None:
        if self._hears is None:
            return
        for held, outcome in stored:
            try:
                self._hears(held, outcome)
            except Exception:  # a fault of ours, and no reason to stop
                logger.exception(
                    "hooks could not be told of job %s (%s)",
                    held.job.id,
                    held.job.name,
                    extra=about(self._keys.queue, held.job.id, held.job.name),
                )

    def _say_undone(self, held: Held, code: str) -> None:
        logger.warning(
            "job %s (%s) has ended, but its surroundings are damaged and were left as they are: %s",
            held.job.id,
            held.job.name,
            codes.meaning(code),
            extra=about(self._keys.queue, held.job.id, held.job.name),
        )

    async def _store_late(self, late: list[tuple[Held, Outcome]]) -> None:
        """Locks have expired, in an outage or while we stood still. What nobody else has taken is taken again, and stored."""
        lost = await self._confirm()
        ours = set(self._table.all()).difference(lost)
        for held, outcome in late:
            self._in_call.discard(held)
            if held in ours:
                self._ended.append((held, outcome))
            else:
                self._not_stored(held, outcome, codes.LOCK_GONE)

    def _not_stored(self, held: Held, outcome: Outcome, code: int | str) -> None:
        reason = codes.cancels(code)
        if reason is not None:  # somebody has cancelled it before this came: still ours, in active and locked
            self._ended.append((held, self._cancelled(held, reason)))
            return
        if isinstance(outcome, Completed) and code in (codes.PENDING_CHILDREN, codes.FAILED_CHILDREN):
            # Still ours, in active and locked: a job that cannot complete has failed, and says why.
            self._ended.append((held, self._failed_to_complete(held, codes.meaning(code))))
            logger.error(
                "job %s (%s) of queue %s has returned, but fails for good: %s",
                held.job.id,
                held.job.name,
                self._keys.queue,
                codes.meaning(code),
                extra=about(self._keys.queue, held.job.id, held.job.name),
            )
            return
        held.hold = Hold.LOST
        self._table.drop(held)
        logger.warning(
            "the outcome of job %s (%s) was not stored: %s",
            held.job.id,
            held.job.name,
            codes.meaning(code),
            extra=about(self._keys.queue, held.job.id, held.job.name),
        )

    async def _refused(self, ask: _Ask, error: EchoMQError) -> None:
        """The server refused the whole call, so nothing has changed: all outcomes wait for the next one."""
        if isinstance(error, ServerError):
            self._has_answered()
        self._asked(ask, 0)
        self._ramp = 1
        self._complain(error)
        if isinstance(error, EncodingError) and ask.outcomes:
            pause = 0.0  # there is one the less to send
            self._without_culprit(ask.outcomes, error)
        else:
            pause = _PAUSE_AFTER_ERROR
            self._take_back(ask.outcomes)
        self._shares_changed()
        self._tell_idle()
        await asyncio.sleep(pause)
        if ask.wanted:
            self._look_again()  # a fetch of the other lane may have emptied the line meanwhile, and nobody waits for more

    def _without_culprit(self, outcomes: list[tuple[Held, Outcome]], error: EncodingError) -> None:
        """Some outcome cannot be sent. It must not hold up the others, nor be tried for ever."""
        if len(outcomes) > 1:  # the largest is the likeliest; the rest go without it
            outcomes = sorted(outcomes, key=lambda pair: pair[1].size)
            self._take_back(outcomes[:-1])
        held, outcome = outcomes[-1]
        self._in_call.discard(held)
        other = self._without_result(held, outcome, str(error))
        if other is not None:
            self._ended.append((held, other))
            logger.warning(
                "job %s (%s) of queue %s completes without its result: %s",
                held.job.id,
                held.job.name,
                self._keys.queue,
                error,
                extra=about(self._keys.queue, held.job.id, held.job.name),
            )
            return
        held.hold = Hold.LOST  # nothing can be said of it; once its lock has expired, it is looked at again
        self._table.drop(held)
        logger.error(
            "the outcome of job %s (%s) cannot be stored: %s",
            held.job.id,
            held.job.name,
            error,
            extra=about(self._keys.queue, held.job.id, held.job.name),
        )

    def _take_back(self, outcomes: list[tuple[Held, Outcome]]) -> None:
        for held, outcome in reversed(outcomes):
            if held in self._in_call:
                self._in_call.discard(held)
                self._ended.appendleft((held, outcome))

    def _take_in(self, turn: Turn, before: float) -> list[Held]:
        """The jobs that have come are in our hands."""
        if not turn.jobs:
            return []
        fetched = [Held(job, turn.token, before) for job in turn.jobs]
        for former in self._table.add(fetched):
            if former.hold is not Hold.ENDED:  # its lock had expired while we were away: its run is nobody's now
                former.stop("LockLost: the job was fetched again", Hold.LOST)
        self._have_been_taken(fetched)
        self._running += len(fetched)
        return fetched

    async def _begin(self, fetched: list[Held], before: float) -> None:
        """Their runs begin."""
        if lasting() - before > self._fresh_for:  # so old an answer may speak of locks that have expired
            await self._confirm()
        loop = asyncio.get_running_loop()
        # Once we are shut they go back whole, latest first, so that their order is kept.
        for held in reversed(fetched) if self._gate is Gate.SHUT else fetched:
            self._start(held, loop)

    def _fetched(self, turn: Turn, ask: _Ask) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if turn.now is not None:
            self._server_offset = turn.now / 1000 - now
        self._comes_due(None if turn.due_in is None else now + turn.due_in, loop)
        for job_id in turn.dropped:
            logger.error(
                "queue %s: id %s stood in the line without a job to run (there is none, or it is being run, or has ended); "
                "it was taken out",
                self._keys.queue,
                job_id,
                extra=about(self._keys.queue, job_id, ""),
            )
        if not ask.wanted:
            if ask.outcomes and self._stop_when_empty:  # one of them may have gone back, or have let another job go
                self._drained = False
                self._look_again()
            return
        self.fetched_at = time.monotonic()
        if not self._ready.is_set():
            self._ready.set()
        got = len(turn.jobs) + len(turn.dropped)
        last = Closed.LAST in turn.closed
        self._drained = not got and (last or not turn.closed) and self._reasons == ask.reasons
        if Closed.LIMITED in turn.closed:
            if turn.now is not None:
                self._limit_seen_at = max(self._limit_seen_at, turn.now - 1)
            self._hold_off(turn.limited_for)
        if (got == ask.wanted and not last) or Closed.MORE_DUE in turn.closed:
            self._empty = False
            self._ramp = min(self._ramp * 2, 2 * CAP)
            self._wake_one()
        elif self._reasons != ask.reasons:  # the marker, say, came to us while the server had answered this one already
            self._ramp = 1
            self._empty = False
            self._wake_one()
        else:
            self._ramp = 1
            self._empty = True
            self._changed.set()
            if self._stop_when_empty:
                self._wake_all()
        self._shares_changed()

    # -- a job ---------------------------------------------------------------------------------------------------------

    def _start(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        if (
            self._gate is Gate.SHUT and held.hold is Hold.RUNNING
        ):  # it answers a fetch that was under way when we were shut
            self._end(held, GivenBack(held.job.id, held.token, started=False))
            return
        task = loop.create_task(self._one(held))
        held.task = task
        self._runs.add(task)

    async def _one(self, held: Held) -> None:
        task = held.task
        assert task is not None
        held.begun = True
        outcome: Outcome | None = None
        try:
            if held.hold is Hold.RUNNING:
                outcome = await self._run(held)
            elif held.hold is Hold.STOPPED:  # told to stop before its first step
                outcome = GivenBack(held.job.id, held.token, started=False)
        except GeneratorExit:
            if asyncio.current_task(task.get_loop()) is not task:
                raise  # the event loop is gone
            outcome = held.outcome  # something that the handler awaited raised it, which has closed the run
        except Exception:
            # A fault of ours. Nothing is known that could be stored: its lock expires, and the sweep counts that.
            logger.exception(
                "the run of job %s (%s) met an error of the worker's own",
                held.job.id,
                held.job.name,
                extra=about(self._keys.queue, held.job.id, held.job.name),
            )
        finally:
            held.task = None
            self._runs.discard(task)
        self._end(held, outcome)

    def _end(self, held: Held, outcome: Outcome | None) -> None:
        if held.hold is Hold.ENDED:
            return  # given back while it ran: its late end changes nothing
        self._running -= 1
        if held.thread is not None and not held.thread.done():
            self._thread_goes_on(held, held.thread)
        else:
            self._slot_is_free()
        if outcome is None or held.hold is Hold.LOST:
            self._table.drop(held)
            self._look_again()
            self._tell_idle()
            return
        held.hold = Hold.ENDED
        if isinstance(outcome, RateLimited):
            self._hold_off(outcome.limit)  # from now on, not only when the server knows
            self._put_back = True
        if self._given_back is not None and isinstance(outcome, GivenBack):
            self._given_back.append((held, outcome))
        else:
            self._ended.append((held, outcome))
            self._wake_one()
        self._tell_idle()

    def _put_latest_back_first(self) -> None:
        """Each goes to the front of the line, so the last to go is the next to come: their order is kept."""
        place = {id(held): number for number, held in enumerate(self._table.all())}
        self._ended = deque(
            sorted(
                self._ended,
                key=lambda pair: -place.get(id(pair[0]), 0) if isinstance(pair[1], RateLimited) else 1,
            )
        )
        self._put_back = False

    def _slot_is_free(self) -> None:
        if self.handlers == self._slots - 1:
            self._changed.set()  # there is a slot again: the marker may be waited for
        self._shares_changed()

    def _thread_goes_on(self, held: Held, thread: asyncio.Future[Any]) -> None:
        """The run has ended, and its outcome counts; but a worker never has more handlers than slots."""
        self._going_on.add(held)
        self._going_on_changed()
        thread.add_done_callback(lambda _: self._thread_has_ended(held))
        if not self._closing:
            logger.warning(
                "job %s (%s) of queue %s %s, and its %s goes on: it keeps its slot until it ends (%d of %d slots "
                "are taken so), and what it still returns is discarded; look at job.cancelled in what takes long",
                held.job.id,
                held.job.name,
                self._keys.queue,
                "has timed out" if held.cancel_reason is None else "was cancelled",
                "handler" if isinstance(thread, asyncio.Task) else "thread",
                len(self._going_on),
                self._slots,
                extra=about(self._keys.queue, held.job.id, held.job.name),
            )

    def _thread_has_ended(self, held: Held) -> None:
        self._going_on.discard(held)
        self._going_on_changed()
        self._slot_is_free()
        self._look_again()
        self._tell_idle()

    # -- waiting ---------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done():
                self._waiters.remove(waiter)

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _look_again(self) -> None:
        self._reasons += 1
        self._empty = False
        self._wake_one()

    def _hold_off(self, seconds: float) -> None:
        """Fetches nothing for so long. Jobs may wait, so this is not the end of a drain."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, _LONGEST_LIMIT)
        if until > self._held_until:
            self._held_until = until
            self._changed.set()
            self._shares_changed()
            if self._window_timer is not None:
                self._window_timer.cancel()
            # One that is closing waits for no moment: its timer would keep all of it in memory until then.
            self._window_timer = None if self._closing else loop.call_at(until, self._window_opens, until)

    def _window_opens(self, until: float) -> None:
        if until == self._held_until:
            self._held_until = 0.0  # a timer may ring a moment early, and no other would ring after it
            self._look_again()
            self._changed.set()

    def _comes_due(self, at: float | None, loop: asyncio.AbstractEventLoop) -> None:
        """When the next delayed job does. A timer of our own rings then: the end of a block would come late."""
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._due_at = None if self._closing else at
        self._due_timer = None if self._due_at is None else loop.call_at(self._due_at, self._is_due)

    def _is_due(self) -> None:
        self._due_at = self._due_timer = None
        self._look_again()

    def _tell_idle(self) -> None:
        if self._idle_waiters and not self._running:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()

    # -- blocking on the marker ------------------------------------------------------------------------------------------

    async def _block(self) -> None:
        """Sleeps on the marker while there is nothing to fetch, and has a lane look when it wakes (protocol 4)."""
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            if self._owes_marker:
                self._owes_marker = False
                await asyncio.sleep(_DROP_ARRIVES)
                await self.pass_marker_on()
            if self._closing:
                return
            if not self._may_block(loop.time()):
                self._changed.clear()
                await self._be_seen()
                await self._changed.wait()
                continue
            began = loop.time()
            held = began < self._held_until
            seconds = self._held_until - began - _TIMEOUT_GRAIN if held else LONGEST_BLOCK
            if seconds <= 0:  # the window opens before a server would say so
                self._changed.clear()
                await self._changed.wait()
                continue
            self._blocked = True
            try:
                if held:
                    await self._limit_changes(seconds)
                else:
                    await self._woken(await pop_marker(self._blocking, self._keys.key("marker"), seconds), loop)
            except (ServerUnavailable, ConnectionLost):
                if self._gate is Gate.SHUT:  # by our own hand
                    continue
                if loop.time() - began > seconds + _SILENCE and self._link.moved_at < began + seconds:
                    # Silently dead; then so is, most likely, its neighbour, and its calls can be repeated. (Not on a slow way
                    # that is full of the neighbour's large result: that would be sent again and again.)
                    self._link.drop("the connection beside it had fallen silent")
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, _LONGEST_PAUSE)
                self._look_again()  # a marker may have been lost with the connection
            except EchoMQError as error:
                self._complain(error)
                await asyncio.sleep(_PAUSE_AFTER_ERROR)
                self._look_again()
            else:
                pause = _FIRST_PAUSE
            finally:
                self._blocked = False

    async def _be_seen(self) -> None:
        """Connects though there is nothing to block for: by the name of this connection lists of workers show ours."""
        if not self._blocking.connected:
            with contextlib.suppress(EchoMQError):
                await self._blocking.connect()

    def _may_block(self, now: float) -> bool:
        if self._gate is Gate.SHUT or self._closing:
            return False
        if now < self._held_until:
            return True
        # Where others may hold all slots, it has to know that jobs have come, or it would not ask for the next slot.
        return self._empty and (self._share is not None or self._slots > self._slots_taken())

    async def _limit_changes(self, seconds: float) -> None:
        """Sleeps while a rate limit lasts, and has a lane look when one of the queue's limits has been changed meanwhile."""
        changed_at = await next_entry(self._blocking, self._keys.resolve("limits"), self._limit_seen_at, seconds)
        if changed_at is not None:
            self._limit_seen_at = max(self._limit_seen_at, changed_at)
            self._window_opens(self._held_until)

    async def _woken(self, popped: tuple[bytes, float] | None, loop: asyncio.AbstractEventLoop) -> None:
        if popped is None:
            self._look_again()
            return
        member, score = popped
        if self._pool is not None and self._gate is Gate.OPEN and self._pool.free <= 0:
            await self.pass_marker_on()  # another worker may have a slot now; this one asks for the next of its pool
            self._look_again()
            return
        if self._gate is Gate.SHUT or self._slots <= self._slots_taken():
            await self.pass_marker_on()  # our slots have filled meanwhile: the marker is another's
            return
        if member == b"1" and self._server_offset is not None:
            due_at = score / 1000 - self._server_offset
            if due_at > loop.time() + 0.001:
                if self._due_at is None or due_at < self._due_at:
                    self._comes_due(due_at, loop)
                return
        self._look_again()

    async def pass_marker_on(self) -> None:
        """Wakes another worker if jobs wait; best effort, since a lost marker costs a few seconds and no job."""
        try:
            await run_script(self._link, "passMarkerOn-6", self._keys, ())
        except EchoMQError as error:
            logger.debug("queue %s: a marker could not be passed on: %s", self._keys.queue, error)

    def _complain(self, error: EchoMQError) -> None:
        self._seldom.error("queue %s: %s; trying again", self._keys.queue, error)
