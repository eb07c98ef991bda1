"""Our handlers, by the same names and rules as those of interop/node/peer.mjs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from echomq import Job, RateLimited, RetryLater, Unrecoverable


@dataclass(frozen=True)
class Run:
    """One run of a handler."""

    id: str
    name: str
    data: Any
    started: int
    made: int
    stalled: int


@dataclass
class Runs:
    """Handles a job as its name says, and notes every run.

    Attributes:
        seen: the runs, in the order of their starts.
        gates: set one to let the handler ``hang`` of that job id go on.
    """

    seen: list[Run] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    async def __call__(self, job: Job[Any]) -> Any:
        self.seen.append(Run(job.id, job.name, job.data, job.attempts_started, job.attempts_made, job.stalled_count))
        handler: Callable[[Job[Any]], Awaitable[Any]] | None = getattr(self, f"do_{job.name}", None)
        if handler is None:
            raise Unrecoverable(f"no handler {job.name}")
        return await handler(job)

    def of(self, job_id: str) -> list[Run]:
        """The runs of one job."""
        return [run for run in self.seen if run.id == job_id]

    async def do_nothing(self, job: Job[Any]) -> None:
        pass

    async def do_echo(self, job: Job[Any]) -> Any:
        return job.data

    async def do_outcome(self, job: Job[Any]) -> Any:
        return job.data["result"]

    async def do_value(self, job: Job[Any]) -> Any:
        return job.data["value"]

    async def do_fail(self, job: Job[Any]) -> str:
        if job.attempts_made < job.data.get("times", 1_000_000):
            raise RuntimeError(job.data.get("reason", "as planned"))
        return "at last"

    async def do_unrecoverable(self, job: Job[Any]) -> None:
        raise Unrecoverable(job.data["reason"])

    async def do_slow(self, job: Job[Any]) -> str:
        await asyncio.sleep(job.data["seconds"])
        return "slept"

    async def do_hang(self, job: Job[Any]) -> str:
        await self.gates.setdefault(job.id, asyncio.Event()).wait()
        return "let go"

    async def do_later(self, job: Job[Any]) -> str:
        if job.attempts_started > 1:
            return "later"
        raise RetryLater(job.data["seconds"])

    async def do_limited(self, job: Job[Any]) -> str:
        if job.attempts_started > 1:
            return "limited"
        raise RateLimited(job.data["seconds"])
