"""What the doctor finds: plain records, frozen, and the list of all kinds."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from echomq.models import JobState

Severity: TypeAlias = Literal["error", "warning"]
"""``error``: jobs are lost, stuck or run twice by it, or may be. ``warning``: nothing of that yet."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be.

    Attributes:
        kind: its name, in the table of ``docs/doctor.md``.
        severity: ``error`` or ``warning``.
        queue: the queue's name; empty for what concerns the server.
        subject: what it is about: a job's id, a deduplication id, a schedule, a key.
        text: what was found, in a sentence.
        remedy: what can be done.
        fixable: whether ``Doctor.fix`` does it.
        beside: what else it is about: the child of a parent, the place of an id, the part of a job; often empty.
        dead_letters: whether it is about the queue of the dead letters of ``queue``.
    """

    kind: str
    severity: Severity
    queue: str
    subject: str
    text: str
    remedy: str
    fixable: bool
    beside: str = ""
    dead_letters: bool = False


class QueueFacts(msgspec.Struct, frozen=True):
    """How a queue is, without any judgement.

    Attributes:
        queue: its name.
        counts: how many jobs stand in each state.
        paused: whether it is paused.
        workers: how many workers were seen, of whatever runtime; None where the server does not let us read that.
        oldest_waiting: the job that has waited longest of those that come next, None if none waits.
        oldest_waiting_age: for how many seconds it has waited.
        memory: bytes: the lists, sets and the event log, and the jobs by a sample of them; None where it cannot be read.
    """

    queue: str
    counts: dict[JobState, int]
    paused: bool
    workers: int | None
    oldest_waiting: str | None
    oldest_waiting_age: float | None
    memory: int | None


class ServerFacts(msgspec.Struct, frozen=True):
    """How the server is. What it does not let us read is None.

    Attributes:
        product: Redis or Valkey, with its version.
        role: primary or replica.
        used_memory, max_memory: bytes; 0 for no maximum.
        policy: what it does when its memory is full.
        append_only: whether it keeps an append-only file.
        clock_ahead: by how many seconds its clock is ahead of ours.
        read_at: when that was.
    """

    product: str | None
    role: str | None
    used_memory: int | None
    max_memory: int | None
    policy: str | None
    append_only: bool | None
    clock_ahead: float | None
    read_at: datetime


class Report(msgspec.Struct, frozen=True):
    """What an examination gave.

    Attributes:
        findings: errors first.
        server: facts of the server.
        queues: facts of each queue.
        not_looked_at: what could not be looked at, and why: what an access list denies, a key that cannot be read.
    """

    findings: list[Finding]
    server: ServerFacts
    queues: list[QueueFacts]
    not_looked_at: list[str]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Kind(NamedTuple):
    """What is known of all findings of a kind."""

    severity: Severity
    fixable: bool
    remedy: str


KINDS: Final[dict[str, Kind]] = {
    # jobs
    "job-in-no-state": Kind("error", True, "the fix puts it back where it belongs, as queue.admin.heal() does"),
    "partial-job": Kind("warning", False, "no program can run it: read the hash, then delete it by hand"),
    "job-in-two-states": Kind("error", True, "the fix leaves it where a worker runs it, where it ended, or where it waits"),
    "id-twice-in-list": Kind("warning", True, "the fix leaves the one that comes first"),
    "ghost-id": Kind("warning", True, "the fix takes the id out; there is no job to lose"),
    "job-of-wrong-type": Kind("error", False, "another program wrote there: RENAME the key away, and examine again"),
    "unreadable-options": Kind("warning", True, "the fix puts no options in their place: the job runs once, with its data"),
    "orphaned-part": Kind("warning", True, "the fix removes it"),
    # parents and children
    "stuck-parent": Kind("error", True, "the fix lets the parent run"),
    "missing-child": Kind("error", True, "the fix takes the child off, and lets the parent run if it was the last"),
    "ended-child": Kind("error", True, "the fix tells the parent what became of the child"),
    # deduplication
    "dead-deduplication-id": Kind("warning", True, "the fix frees the id; what was kept to run next is added"),
    "orphaned-next-job": Kind("error", True, "the fix adds the job"),
    # locks
    "lock-without-run": Kind("warning", True, "the fix removes the lock"),
    "run-without-lock": Kind("error", True, "start a worker, whose sweep puts it back; the fix does the same at once"),
    # the line
    "jobs-in-paused-list": Kind("error", True, "the fix moves them into the line"),
    "two-waiting-lists": Kind("warning", True, "the fix makes one of them, before a BullMQ 5 drops one (docs/mixed-fleets.md)"),
    "missing-marker": Kind("warning", True, "the fix sets the marker, and a free worker looks at once"),
    "overdue-jobs": Kind("error", True, "start a worker, which lets them run; the fix moves them into the line"),
    "old-waiting-job": Kind("warning", False, "start more workers, or look at what holds these: echomq workers, job.explain()"),
    # schedules
    "slot-without-schedule": Kind("warning", True, "the fix removes the slot"),
    "schedule-without-slot": Kind("error", True, "the fix lets it go on with its next run"),
    "schedule-without-next-run": Kind("error", True, "the fix lets it go on with its next run"),
    # bounds
    "events-too-long": Kind("warning", True, "the fix trims the log to its limit"),
    "events-too-large": Kind("warning", True, "the fix trims the log to its limit; queue.admin.limit_events(bytes=…) sets it"),
    "logs-too-long": Kind("warning", True, "the fix keeps the newest lines, as many as the job's options say"),
    "no-retention": Kind("warning", False, "bound them by remove_on_complete and remove_on_fail, and queue.admin.clean()"),
    "outcomes-not-forwarded": Kind("warning", False, "start a worker that has the results queue (docs/results-queue.md)"),
    "silent-lanes": Kind("warning", True, "start a worker, whose sweep removes them; the fix does the same at once"),
    "own-key-without-expiry": Kind("warning", True, "the fix gives it one"),
    "leftover-own-key": Kind("warning", True, "the fix removes the key"),
    "key-of-wrong-type": Kind("error", False, "another program wrote there: RENAME the key away; the queue makes its own"),
    # the server
    "eviction-policy": Kind("error", False, "CONFIG SET maxmemory-policy noeviction, and the same in the server's configuration"),
    "no-append-only-file": Kind("warning", False, "CONFIG SET appendonly yes, and the same in the server's configuration"),
    "no-persistence": Kind("error", False, "CONFIG SET appendonly yes, and the same in the server's configuration"),
    "memory-nearly-full": Kind("error", False, "raise maxmemory, or remove finished jobs: queue.admin.clean()"),
    "slow-scripts": Kind("warning", False, "SLOWLOG GET shows them; usual causes: a slow machine, very large jobs"),
    "clock-skew": Kind("warning", False, "set the clocks by NTP: BullMQ's programs go by their own, at= goes by this one"),
    "replica": Kind("error", False, "use the address of the primary"),
    "cluster-down": Kind("error", False, "CLUSTER INFO and CLUSTER NODES tell which slots are not served"),
}  # fmt: skip
"""All kinds, in the order in which findings are told."""
