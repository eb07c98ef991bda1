"""Finishing: the outcomes of runs, and the next fetch in the same call (``moveToFinished-14``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from echomq._redis.wire import Argument
from echomq._store.call import Lane, Patience
from echomq._store.codec import id_out, pack, to_ms
from echomq._store.fetch import Turn, read_turn
from echomq._store.forward import Forward
from echomq.models import FailureKind


class Outcome(msgspec.Struct, frozen=True, tag_field="kind"):
    """How a run ended, as it will be stored. Which kind it is decides which transition the server makes.

    Attributes:
        job_id, token: whose run, and under which lock.
    """

    job_id: str
    token: str

    @property
    def size(self) -> int:
        """About how many bytes it takes on its way."""
        return len(self.job_id) + 64

    def wire(self) -> tuple[Argument, ...]:
        """The six arguments of moveToFinished."""
        raise NotImplementedError


class Completed(Outcome, frozen=True):
    """It returned. ``value`` is JSON; ``error`` says why the real result could not be encoded."""

    value: bytes
    keep: str
    error: str | None = None
    forward: Forward | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes on its way."""
        return len(self.value) + 64 + _size(self.forward)

    def wire(self) -> tuple[Argument, ...]:
        if self.error is None and self.forward is None:
            return ("completed", id_out(self.job_id), self.token, self.value, self.keep, b"")
        more: dict[str, Any] = {}
        if self.error is not None:
            more["fields"] = ["resultError", self.error]
        if self.forward is not None:
            more["forward"] = self.forward.packed()
        return ("completed", id_out(self.job_id), self.token, self.value, self.keep, pack(more))


class Skipped(Outcome, frozen=True):
    """It was not run: it came so many seconds later than its schedule wants (docs/schedules.md)."""

    late: float
    keep: str
    forward: Forward | None = None

    def wire(self) -> tuple[Argument, ...]:
        said = ["skipped", "late", str(to_ms(self.late))]
        more: dict[str, Any] = {"fields": ["skipped", skipped_for(self.late)], "said": said}
        if self.forward is not None:
            more["forward"] = self.forward.packed()
        return ("completed", id_out(self.job_id), self.token, b"null", self.keep, pack(more))


def skipped_for(late: float) -> str:
    """Why a job was not run that came so many seconds late."""
    return f"not run: {late:.3f} s late"


def _size(forward: Forward | None) -> int:
    return 0 if forward is None else len(forward.head)


class Letter(msgspec.Struct, frozen=True):
    """What a job leaves in the queue of dead letters.

    Attributes:
        queue: what the keys of that queue begin with.
        opts: from ``codec.dead_letter_opts``.
    """

    queue: str
    opts: bytes


class Failed(Outcome, frozen=True):
    """It raised, and there is no further attempt."""

    reason: str
    stacktrace: bytes
    keep: str
    attempts: int
    failure_kind: FailureKind
    letter: Letter | None = None
    forward: Forward | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes on its way."""
        letter = 0 if self.letter is None else len(self.letter.opts)
        return len(self.reason) + len(self.stacktrace) + 64 + letter + _size(self.forward)

    def wire(self) -> tuple[Argument, ...]:
        fields = _failure(self.reason, self.stacktrace, self.failure_kind)
        more: dict[str, Any] = {"fields": fields, "attempts": self.attempts}
        if self.failure_kind == "expired":
            more["said"] = ["expired"]
        elif self.failure_kind == "cancelled":
            more["said"] = ["cancelled", "reason", self.reason]
        if self.letter is not None:
            more["letter"] = [self.letter.queue, self.letter.opts.decode()]
        if self.forward is not None:
            more["forward"] = self.forward.packed()
        return ("failed", id_out(self.job_id), self.token, self.reason, self.keep, pack(more))


ENDINGS = (Completed, Skipped, Failed)
"""The outcomes after which a job has ended."""


class Retry(Outcome, frozen=True):
    """It raised; the next attempt comes at once (``delay`` 0) or later."""

    reason: str
    stacktrace: bytes
    delay: float
    lifo: bool
    failure_kind: FailureKind

    @property
    def size(self) -> int:
        """About how many bytes it takes on its way."""
        return len(self.reason) + len(self.stacktrace) + 64

    def wire(self) -> tuple[Argument, ...]:
        fields = _failure(self.reason, self.stacktrace, self.failure_kind)
        delay = to_ms(self.delay)
        if delay > 0:
            return ("delayed", id_out(self.job_id), self.token, str(delay), "", pack({"fields": fields}))
        more = {"fields": fields, "lifo": True} if self.lifo else {"fields": fields}
        return ("retry", id_out(self.job_id), self.token, "", "", pack(more))


class Delayed(Outcome, frozen=True):
    """It asked to run again later. No attempt is used."""

    delay: float

    def wire(self) -> tuple[Argument, ...]:
        return ("delayed", id_out(self.job_id), self.token, str(max(to_ms(self.delay), 1)), "", pack({"skip": True}))


class RateLimited(Outcome, frozen=True):
    """It was told to slow down: to the front of the line, and a limit for all workers."""

    limit: float

    def wire(self) -> tuple[Argument, ...]:
        return ("wait", id_out(self.job_id), self.token, str(max(to_ms(self.limit), 1)), "", b"")


class GivenBack(Outcome, frozen=True):
    """Its worker stops, or has lost its connection: to the front of the line, for whoever comes next."""

    started: bool

    def wire(self) -> tuple[Argument, ...]:
        return ("back", id_out(self.job_id), self.token, "" if self.started else "1", "", b"")


def _failure(reason: str, stacktrace: bytes, kind: FailureKind) -> list[str]:
    return ["failedReason", reason, "stacktrace", stacktrace.decode(), "failureKind", kind]


async def finish_and_take(
    lane: Lane,
    want: tuple[str, str, str, str],
    count: int,
    outcomes: Sequence[Outcome],
    metrics_points: int,
    patience: Patience,
    share: int = 0,
) -> Turn:
    """Stores outcomes, then fetches up to ``count`` jobs as ``take`` does, in one call."""
    token = lane.next_token
    args: list[Argument] = [str(count), *want, str(share) if share else "", str(metrics_points), str(len(outcomes))]
    for outcome in outcomes:
        args.extend(outcome.wire())
    return read_turn(await lane.call("moveToFinished-14", args, patience), token)
