"""Fetching: jobs into ``active``, each under a lock (``moveToActive-11``)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from echomq._redis.wire import Argument, Reply
from echomq._store.call import Lane, Patience
from echomq._store.codec import StoredJob, to_ms


class Closed(enum.IntFlag):
    """Why a fetch may have taken less than it wanted."""

    PAUSED = 1
    MAXED = 2
    LIMITED = 4
    MORE_DUE = 8
    """Not a limit: more jobs have become due than one call moves. The next call should come at once."""
    LAST = 16
    """Nor this one: after the jobs that came, or behind the window that is shut, nothing waits."""


@dataclass(frozen=True, slots=True)
class Want:
    """How a worker wants its jobs.

    Attributes:
        lock_duration: seconds.
        worker: the worker's name, written to each job, or "".
        limit: at most so many starts …
        limit_duration: … in so many seconds; both or neither.
    """

    lock_duration: float
    worker: str = ""
    limit: int | None = None
    limit_duration: float | None = None

    @property
    def args(self) -> tuple[str, str, str, str]:
        """As the scripts take them."""
        return (
            str(to_ms(self.lock_duration)),
            self.worker,
            "" if self.limit is None else str(self.limit),
            "" if self.limit_duration is None else str(to_ms(self.limit_duration)),
        )


@dataclass(slots=True)
class Turn:
    """What one call brought.

    Attributes:
        now: the server's time in milliseconds, or None (an idle look does not ask for it).
        codes: for each outcome 0 or more (done), a code of the protocol below 0, or a text: BROKEN, why nothing
            changed, or STORED, but what was left undone.
        closed: why less came than was wanted.
        limited_for: seconds until the rate window opens.
        due_in: seconds until the next delayed job becomes due, or None.
        dropped: ids that stood in the line and had no job to run: none is there, or it is being run, or has ended.
        jobs: the fetched jobs.
        token: with which they are locked.
    """

    now: int | None
    codes: list[int | str]
    closed: Closed
    limited_for: float
    due_in: float | None
    dropped: list[str]
    jobs: list[StoredJob]
    token: str


_OPEN = Closed(0)


def read_turn(reply: Reply, token: str) -> Turn:
    """A fetch or finish script's reply."""
    assert isinstance(reply, list)
    now_text: Any
    codes: Any
    dropped: Any
    now_text, codes, flags, limited_ms, due_text, dropped = reply[:6]
    now = int(now_text) if now_text else None
    due = int(due_text)  # type: ignore[arg-type]
    jobs = [StoredJob.from_reply(reply[at], reply[at + 1]) for at in range(6, len(reply), 2)]  # type: ignore[arg-type]
    return Turn(
        now=now,
        codes=[code if isinstance(code, int) else code.decode("utf-8", "replace") for code in codes] if codes else [],
        closed=Closed(flags) if flags else _OPEN,  # type: ignore[arg-type]
        limited_for=limited_ms / 1000,  # type: ignore[operator]
        due_in=(due - now) / 1000 if due and now is not None else None,
        dropped=[job_id.decode("utf-8", "replace") for job_id in dropped],
        jobs=jobs,
        token=token,
    )


async def take(lane: Lane, want: tuple[str, str, str, str], count: int, patience: Patience, share: int = 0) -> Turn:
    """Fetches up to ``count`` jobs; ``share`` of them are to be those that have waited longest (docs/priorities.md)."""
    token = lane.next_token
    args: tuple[Argument, ...] = (str(count), *want, str(share) if share else "")
    return read_turn(await lane.call("moveToActive-11", args, patience), token)
