"""Hooks: functions of an app that are told how the runs of its tasks begin and end, in the process that runs them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec

from echomq._log import about, logger, running_job
from echomq._worker.beside import called, error_of
from echomq.errors import InvalidOption
from echomq.job import Job
from echomq.options import shown

RunEventKind = Literal["started", "completed", "failed", "retried", "delayed", "cancelled", "skipped", "given_back"]
"""What hooks are told of: ``EchoMQ.on`` explains each."""

_KINDS: Final = get_args(RunEventKind)
_MOST: Final = 1_000
"""Calls of ``async`` hooks that go on at once."""
_LOG_EVERY: Final = 60.0
_TO_END: Final = 5.0
"""Seconds that hooks get to end when the last worker has stopped."""


class RunEvent(msgspec.Struct, frozen=True):
    """What a hook is told.

    Attributes:
        kind: what has happened, such as ``"completed"``.
        job: as it was when its run began.
        result: what the function returned, if the job has completed.
        error: what it raised, if it has; None also where it was not called, as for a job that had expired.
        reason: why the run has failed, as it is stored with the job.
        delay: seconds until the job may run again, if it is to.
    """

    kind: RunEventKind
    job: Job[Any]
    result: Any = None
    error: BaseException | None = None
    reason: str | None = None
    delay: float | None = None


Hook = Callable[[RunEvent], Coroutine[Any, Any, object] | None]

H = TypeVar("H", bound=Hook)


def checked_kinds(kinds: Sequence[RunEventKind]) -> Sequence[RunEventKind]:
    """Kinds of events, as a hook names them."""
    given: Sequence[object] = kinds
    for kind in given:
        if kind not in _KINDS:
            remedy = "; write @app.on('completed') for it" if callable(kind) else ""
            raise InvalidOption(f"@app.on({shown(kind)}): must be of {', '.join(map(repr, _KINDS))}{remedy}")
    if not kinds:
        raise InvalidOption(f"@app.on(): name what to be told of: {', '.join(map(repr, _KINDS))}")
    return kinds


def check_hook(hook: object, kinds: Sequence[RunEventKind]) -> None:
    """Refuses what cannot be called."""
    if not callable(hook):
        raise InvalidOption(
            f"@app.on({', '.join(map(repr, kinds))}) of {shown(hook)}: must be a function that takes the RunEvent, plain or async"
        )


class Hooks:
    """Calls the hooks of an app. An error in one of them is logged, and changes nothing."""

    def __init__(self, by_kind: Mapping[str, Sequence[Hook]]) -> None:
        self._by_kind = by_kind
        self._going_on: set[asyncio.Task[None]] = set()
        self._complained = -_LOG_EVERY

    def wants(self, kind: str) -> bool:
        """Whether anybody is told of such events."""
        return kind in self._by_kind

    def tell(self, event: RunEvent) -> None:
        """Calls plain hooks here and now, and lets ``async`` ones run beside."""
        for hook in self._by_kind.get(event.kind, ()):
            made, error = called(hook, event)
            if error is not None:
                _log(hook, event, error)
            elif inspect.iscoroutine(made):
                self._beside(made, hook, event)

    async def rest(self) -> None:
        """Waits for those that go on, for a while, then cancels them."""
        if not self._going_on:
            return
        _, late = await asyncio.wait(self._going_on, timeout=_TO_END)
        for task in late:
            task.cancel()
        if late:
            logger.warning("%d hooks have not ended %g s after the last job, and are cancelled", len(late), _TO_END)
            await asyncio.wait(late, timeout=1.0)

    def _beside(self, made: Coroutine[Any, Any, object], hook: Hook, event: RunEvent) -> None:
        if len(self._going_on) >= _MOST:
            made.close()
            now = time.monotonic()
            if now - self._complained >= _LOG_EVERY:
                self._complained = now
                logger.warning(
                    "%d calls of hooks go on: they are slower than the jobs, and are not called for some of them", _MOST
                )
            return
        task = asyncio.create_task(_ended(made, hook, event), name="echomq hook")
        self._going_on.add(task)
        task.add_done_callback(self._going_on.discard)


async def _ended(made: Coroutine[Any, Any, object], hook: Hook, event: RunEvent) -> None:
    running_job.set(event.job)
    error = await error_of(lambda: made)
    if error is not None:
        _log(hook, event, error)


def _log(hook: object, event: RunEvent, error: BaseException) -> None:
    job = event.job
    logger.error(
        "job %s (%s) of queue %s: the hook %s for %r has raised; nothing else is changed",
        job.id,
        job.name,
        job.queue_name,
        getattr(hook, "__qualname__", hook),
        event.kind,
        exc_info=error,
        extra=about(job.queue_name, job.id, job.name),
    )
