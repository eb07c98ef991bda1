"""The protocol's return codes (6.4) in words. The scripts' headers say which of them each returns."""

from __future__ import annotations

from typing import Final

from echomq.errors import JobNotFound

JOB_GONE: Final = -1
LOCK_GONE: Final = -2
NOT_THERE: Final = -3
PENDING_CHILDREN: Final = -4
PARENT_GONE: Final = -5
OTHER_OWNER: Final = -6
OTHER_PARENT: Final = -7
SCHEDULED: Final = -8
FAILED_CHILDREN: Final = -9

ADDED: Final = 1
"""Of an add: the job is in the queue."""
DUPLICATE: Final = 0
"""Of an add: a job of its id was there."""
DEDUPLICATED: Final = 2
"""Of an add: its deduplication id is held by another job."""
FULL: Final = 3
"""Of an add: refused, because as many jobs wait as may."""

WORDS: Final = {
    JOB_GONE: "the job is gone",
    LOCK_GONE: "its lock has expired",
    NOT_THERE: "it is not in the state that this change needs",
    PENDING_CHILDREN: "it has children that have not finished",
    PARENT_GONE: "its parent is gone",
    OTHER_OWNER: "another worker owns it now",
    OTHER_PARENT: "it belongs to another parent",
    SCHEDULED: "it is the next run of a schedule; remove the schedule instead",
    FAILED_CHILDREN: "children of it have failed",
}

_STORED_BUT: Final = "STORED, but "


_CANCEL: Final = "CANCEL "


def cancels(code: int | str) -> str | None:
    """Why an outcome was not stored, and its job is to end as cancelled instead; None for any other code."""
    return code.removeprefix(_CANCEL) if isinstance(code, str) and code.startswith(_CANCEL) else None


def is_stored(code: int | str) -> bool:
    """Whether an outcome has been stored; then a text says what was left undone for the job's neighbours, and why."""
    return code.startswith(_STORED_BUT) if isinstance(code, str) else code >= 0


def meaning(code: int | str) -> str:
    """What a code says, for logs and errors."""
    return code.removeprefix(_STORED_BUT) if isinstance(code, str) else WORDS.get(code, f"unknown code {code}")


def gone(what: str) -> JobNotFound:
    """The error for a job that is not there; ``what`` says which it is, and what was not done."""
    return JobNotFound(
        f"{what}: there is no such job; it has been removed, by somebody or by its retention, or never was"
    )
