"""Real workers that are led by hand: one job after the other, in an order that can be repeated."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from echomq._redis.client import Link
from echomq._redis.wire import Reply
from echomq._store.keys import QueueKeys
from echomq._store.presence import plain
from echomq._testing import clock
from echomq.app import EchoMQ
from echomq.errors import EchoMQError, InvalidOption
from echomq.job import Job
from echomq.options import ProcessPool
from echomq.worker import Worker

_BY_HAND: Final = b"9007199254740991"  # protocol 3.23
_TICK: Final = 4096  # of the score of a delayed job (protocol 5.1)
_SWEEP_EVERY: Final = 0.1
_LOOK_EVERY: Final = 0.001
_MOST_STEPS: Final = 10_000


class NotSettled(TimeoutError):
    """Work went on for longer than a test should wait."""


@dataclass(slots=True)
class _Pen:
    """A worker of ours, which takes one job each time that it is let out."""

    worker: Worker
    limit: int | None
    job: Job[Any] | None = None

    def taken(self) -> Job[Any] | None:
        """The job that it has taken, if it has."""
        return self.job


@dataclass(frozen=True, slots=True)
class _Look:
    """A queue as it is at a moment. Instants are milliseconds of the server's clock.

    Attributes:
        waiting: how many jobs stand in the line.
        due_at: when the next delayed one is due.
        limited_for: milliseconds for which a rate limit holds back the rest.
        has_room: whether the queue may run one more at this moment.
        active: ids of those that run, or whose worker has died.
        outcomes: how many outcomes wait to be forwarded.
    """

    now: int
    waiting: int
    due_at: int | None
    limited_for: int
    is_paused: bool
    has_room: bool
    active: list[bytes]
    outcomes: int

    @property
    def has_some(self) -> bool:
        """Whether a job waits, or is due."""
        return self.waiting > 0 or (self.due_at is not None and self.due_at <= self.now)

    @property
    def can_run(self) -> bool:
        return self.has_some and not self.is_paused and not self.limited_for and self.has_room

    @property
    def changes_at(self) -> int | None:
        """When time alone lets a job run."""
        if self.is_paused:
            return None
        moments = [self.due_at] if self.due_at is not None and self.due_at > self.now else []
        if self.opens_at is not None:
            moments.append(self.opens_at)
        return min(moments, default=None)

    @property
    def opens_at(self) -> int | None:
        """When a rate window opens that holds jobs back."""
        if self.is_paused or not self.limited_for or not self.has_some:
            return None
        return self.now + self.limited_for


class Driver:
    """Runs what an app's queues hold, by workers of its own. An async context manager.

    Args:
        app: whose tasks it runs.
        chance: decides what the queues leave open: which of them comes next. None: by their names.
        patience: seconds that a single job, or others' work, may take.
        concurrency: more than one lets all workers run free; what comes first is then nobody's choice.
        options: of each ``Worker``.
    """

    def __init__(
        self,
        app: EchoMQ,
        *,
        chance: random.Random | None,
        patience: float,
        concurrency: int,
        options: Mapping[str, Any],
    ) -> None:
        self._app = app
        self._chance = chance
        self._patience = patience
        self._concurrency = concurrency
        self._options = {
            "stalled_interval": _SWEEP_EVERY,
            "name": "testing",
            "processes": ProcessPool(warm=False),
            **options,
        }
        self._pens: dict[str, _Pen] = {}
        self._keys: dict[str, QueueKeys] = {}
        self._stack = contextlib.AsyncExitStack()
        self._link: Link
        self.runs: list[Job[Any]] = []

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            hub = self._app.connection.acquire()
            stack.push_async_callback(hub.release)
            await stack.enter_async_context(self._app.running())
            for name in sorted({task.queue for task in self._app.tasks.values()}):
                self._keys[name] = self._app.queue(name)._home.keys
                worker = self._app.worker(name, concurrency=self._concurrency, **self._options)
                limit = self._options.get("limiter")
                pen = self._pens[name] = _Pen(worker, None if limit is None else limit.max)
                worker._route = self._watched(pen, worker._route)
                await worker.pause()
                await stack.enter_async_context(worker)
            hash_tag = all(keys.hash_tag for keys in self._keys.values())
            self._link = await hub.link(hash_tag=hash_tag)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # -- running -----------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Runs all that can run now, and what comes of it, until nothing can.

        Raises:
            NotSettled: a job, or the work of somebody else's worker, went on for too long.
        """
        loop = asyncio.get_running_loop()
        settled_by = loop.time() + self._patience
        while True:
            looks = await self._look(self._keys)
            ready = [name for name in self._pens if looks[name].can_run]
            if ready:
                await self._run(ready[0] if self._chance is None else self._chance.choice(ready))
                settled_by = loop.time() + self._patience
                continue
            restless = await self._restless(looks)
            if restless is None and len(looks) == len(self._keys):
                return
            if loop.time() > settled_by:
                raise NotSettled(f"after {self._patience:g} s {restless}")
            await asyncio.sleep(_LOOK_EVERY)

    async def advance(self, ms: int, *, work: bool) -> None:
        """Moves the clock, from one moment at which something comes due to the next; without ``work``, in one go."""
        target = await clock.read(self._link) + ms
        if work:
            await self._step_up_to(target)
        await self._move(max(target - await clock.read(self._link), 0))
        if work:
            await self._swept()
            await self.drain()

    async def until_nothing_is_delayed(self) -> None:
        """Runs all, and moves the clock on to what is delayed, apart from the runs of schedules, which never end."""
        for _ in range(_MOST_STEPS):
            await self.drain()
            looks = await self._look(self._pens)
            moments = [look.opens_at for look in looks.values() if look.opens_at is not None]
            moments += [due for name in self._pens if (due := await self._due_but_of_schedules(name)) is not None]
            if not moments:
                return
            await self._step_up_to(min(moments))
            await self._move(max(min(moments) - await clock.read(self._link), 0))
        raise NotSettled(
            f"after {_MOST_STEPS:,} steps jobs are delayed still: do they put themselves off again and again?"
        )

    async def _step_up_to(self, target: int) -> None:
        for _ in range(_MOST_STEPS):
            await self.drain()
            moments = await self._moments()
            if not moments or min(moments) > target:
                return
            await self._move(max(min(moments) - await clock.read(self._link), 0))
        raise NotSettled(
            f"{_MOST_STEPS:,} times something came due in this time, and more is to come: advance in smaller parts, or with "
            "work=False"
        )

    async def _run(self, name: str) -> None:
        """Lets one job of this queue run; all that there are, with a concurrency above 1."""
        pen, loop = self._pens[name], asyncio.get_running_loop()
        pen.job = None
        give_up = loop.time() + self._patience
        await pen.worker.resume()
        while True:
            job = pen.taken()
            if job is not None and not await self._is_active(name, job.id):
                break
            if job is None:
                look = (await self._look([name]))[name]
                if not look.can_run and not look.active and pen.taken() is None:
                    break  # it ended without a run: it had expired, or its schedule skips it
            if loop.time() > give_up:
                what = "no job was taken" if job is None else _still(job)
                raise NotSettled(
                    f"after {self._patience:g} s {what}. Jobs run one by one here: one that waits for another waits for ever; "
                    "let them run side by side with concurrency=2"
                )
            await asyncio.sleep(_LOOK_EVERY)
        if job is None:
            await pen.worker.pause()
        elif self._concurrency == 1:
            await self._note(job)

    def _watched(self, pen: _Pen, route: Callable[[Job[Any]], Any] | None) -> Callable[[Job[Any]], Any]:
        assert route is not None

        def watched(job: Job[Any]) -> Any:
            pen.job = job
            if self._concurrency == 1:
                _at_once(pen.worker.pause())  # one job each time
            else:
                self.runs.append(self._of_the_app(job))
            return route(job)

        return watched

    async def _note(self, job: Job[Any]) -> None:
        """Its record as it is after the run; as it was in it, if nothing is kept."""
        found = None
        with contextlib.suppress(EchoMQError):
            found = await self._app.queue(job.queue_name).get_job(job.id)
        self.runs.append(found or self._of_the_app(job))

    def _of_the_app(self, job: Job[Any]) -> Job[Any]:
        """The same record, which can be asked when the worker is gone."""
        return Job(job._stored, self._app.queue(job.queue_name)._home)

    # -- looking -----------------------------------------------------------------------------------------------------------

    async def _look(self, names: Iterable[str]) -> dict[str, _Look]:
        named = list(names)
        commands: list[tuple[str | int, ...]] = [("TIME",)]
        for name in named:
            keys = self._keys[name]
            commands += (
                ("LLEN", keys.key("wait")),
                ("ZCARD", keys.key("prioritized")),
                ("LRANGE", keys.key("active"), 0, -1),
                ("ZRANGE", keys.key("delayed"), 0, 0, "WITHSCORES"),
                ("HMGET", keys.key("meta"), "paused", "concurrency", "max"),
                ("GET", keys.key("limiter")),
                ("PTTL", keys.key("limiter")),
                ("XLEN", keys.resolve("outbox")),
            )
        (seconds, micros), *replies = await self._ask(commands)
        now = int(seconds) * 1000 + int(micros) // 1000
        looks = {}
        for index, name in enumerate(named):
            wait, prioritized, active, delayed, meta, used, left, outcomes = replies[8 * index : 8 * index + 8]
            paused, concurrency, most = meta
            pen = self._pens.get(name)
            limit = int(most) if most else None if pen is None else pen.limit
            is_limited = used == _BY_HAND or (limit is not None and used is not None and int(used) >= limit)
            looks[name] = _Look(
                now,
                wait + prioritized,
                int(float(delayed[1])) // _TICK if delayed else None,
                max(left, 0) if is_limited else 0,
                paused is not None,
                not concurrency or len(active) < int(concurrency),
                active,
                outcomes,
            )
        return looks

    async def _restless(self, looks: Mapping[str, _Look]) -> str | None:
        """What still goes on by itself, in words; None if nothing does."""
        living = await self._living()
        for name, look in looks.items():
            keys = self._keys[name]
            for job_id in look.active:
                by, lock = await self._by_and_lock(keys, job_id)
                if lock == -2 or by in living.get(keys.base, ()):
                    doing = "has lost its worker" if lock == -2 else f"is run by worker {by!r}"
                    return f"job {job_id.decode(errors='replace')!r} of queue {name!r} {doing}, and that goes on"
            if look.can_run and keys.base in living and name not in self._pens:
                return f"{look.waiting} jobs wait in queue {name!r}"
            if look.outcomes and name in self._pens:
                return f"{look.outcomes} outcomes of queue {name!r} wait to be forwarded"
        return None

    async def _moments(self) -> list[int]:
        """When something changes by time alone, from now on."""
        moments = []
        living = await self._living()
        looks = await self._look(self._keys)
        for name, look in looks.items():
            keys = self._keys[name]
            if look.changes_at is not None:
                moments.append(look.changes_at)
            for job_id in look.active:
                by, lock = await self._by_and_lock(keys, job_id)
                if lock >= 0 and by not in living.get(keys.base, ()):
                    moments.append(look.now + lock + 1)
        return moments

    async def _due_but_of_schedules(self, name: str) -> int | None:
        keys = self._keys[name]
        found: Any = await self._link.call("ZRANGE", keys.key("delayed"), 0, -1, "WITHSCORES")
        if (await self._look([name]))[name].is_paused:
            return None
        for job_id, score in zip(found[::2], found[1::2], strict=True):
            if not await self._link.call("HEXISTS", keys.job(job_id.decode("utf-8", "surrogateescape")), "rjk"):
                return int(float(score)) // _TICK
        return None

    async def _is_active(self, name: str, job_id: str) -> bool:
        return await self._link.call("LPOS", self._keys[name].key("active"), job_id) is not None

    async def _by_and_lock(self, keys: QueueKeys, job_id: bytes) -> tuple[str, int]:
        key = keys.job(job_id.decode("utf-8", "surrogateescape"))
        by, lock = await self._ask([("HGET", key, "pb"), ("PTTL", f"{key}:lock")])
        return plain((by or b"").decode("utf-8", "replace")), lock

    async def _living(self) -> dict[str, set[str]]:
        """The names of the workers that are connected, by what their queue's keys begin with. Learns of further queues by it."""
        names: dict[str, set[str]] = {}
        reply = await self._link.call("CLIENT", "LIST")
        assert isinstance(reply, bytes)
        for line in reply.decode("utf-8", "replace").splitlines():
            fields = dict(field.partition("=")[::2] for field in line.split(" "))
            of_queue, _, worker = fields.get("name", "").rpartition(":w:")
            prefix, _, queue = of_queue.rpartition(":")
            if not prefix or fields.get("db") != self._database:
                continue
            try:
                name = base64.b64decode(queue, validate=True).decode()
                keys = QueueKeys.of(name.strip("{}"), prefix=prefix, hash_tag=name.startswith("{"))
            except (ValueError, InvalidOption):
                continue
            names.setdefault(keys.base, set()).add(worker)
            self._keys.setdefault(keys.queue, keys)
        return names

    @property
    def _database(self) -> str:
        return str(self._link.settings.db)

    async def _ask(self, commands: list[tuple[str | int, ...]]) -> list[Any]:
        replies: list[Reply | EchoMQError] = await self._link.call_many(commands)
        for reply in replies:
            if isinstance(reply, EchoMQError):
                raise reply
        return replies

    # -- time --------------------------------------------------------------------------------------------------------------

    async def _move(self, ms: int) -> None:
        if ms <= 0:
            return
        living = await self._living()
        looks = await self._look(self._keys)
        locks = []
        for name, look in looks.items():
            keys = self._keys[name]
            for job_id in look.active:
                by, _ = await self._by_and_lock(keys, job_id)
                if by in living.get(keys.base, ()):
                    locks.append(f"{keys.job(job_id.decode('utf-8', 'surrogateescape'))}:lock")
        await clock.move(self._link, ms, locks)
        await self._wake([self._keys[name] for name in looks])

    async def _wake(self, queues: Iterable[QueueKeys]) -> None:
        """Workers count the time until a job is due, and until a rate window opens, on clocks of their own."""
        for keys in queues:
            limits = keys.resolve("limits")
            await clock.tell(self._link, limits)
            if keys.queue not in self._pens:
                await self._link.call("ZADD", keys.key("marker"), 0, "0")

    async def _swept(self) -> None:
        """Has our workers sweep, so that what is kept for a time goes that is older by now."""
        began = await clock.read(self._link)
        give_up = asyncio.get_running_loop().time() + self._patience
        for name, pen in self._pens.items():
            keys = self._keys[name]
            await pen.worker.pause()  # it says so with a sweep
            while True:
                last, ended = await self._ask(
                    [("GET", keys.key("stalled-check")), ("EXISTS", keys.key("completed"), keys.key("failed"))]
                )
                if not ended or int(last or 0) >= began:
                    break
                if asyncio.get_running_loop().time() > give_up:
                    raise NotSettled(f"queue {name!r} was not swept within {self._patience:g} s")
                await asyncio.sleep(_LOOK_EVERY)


def _still(job: Job[Any]) -> str:
    return f"job {job.id!r} ({job.name}) of queue {job.queue_name!r} runs still"


def _at_once(awaitable: Awaitable[None]) -> None:
    """Carries out what is asynchronous in its form only."""
    steps = awaitable.__await__()
    with contextlib.suppress(StopIteration):
        next(steps)
        raise RuntimeError("it waits for something")
