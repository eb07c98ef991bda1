"""Explaining: why a job is where it is, in words, from what the server knows of it and of the workers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from echomq._store import presence
from echomq._store.codec import (
    RunOptions,
    as_whole,
    decode_opts,
    id_out,
    last_start,
    public_options,
    state_in,
    to_moment,
)
from echomq._store.line import Line
from echomq.models import Explanation, JobState, Reason
from echomq.options import KEEP_COMPLETED, KEEP_FAILED, Keep

_SWEEP = 15.0
"""Seconds between two sweeps, where workers were not told otherwise."""
_CONFIRM = 1.5
_COMING = 2.0
"""Seconds for which a worker may run jobs before the connection is open that has its name."""
_FURTHEST = 100_000
"""How far into a list the script looks for the job."""


async def explain(line: Line, job_id: str) -> Explanation:
    """Why a job is where it is."""
    reply: Any = await line.read("explainJob-15", (id_out(job_id),))
    facts = _Facts(reply)
    state = state_in(facts.raw("state") or b"")
    missed, cut_off = None, False
    if state not in ("completed", "failed", "waiting_children"):
        connected, last = await presence.seen(line)
        missed = _missed(facts, connected, last)
        cut_off = _is_cut_off(facts, connected)
    return Explanation(job_id, line.keys.queue, state, list(_Words(facts, state, missed, cut_off)), facts.now)


def _missed(facts: _Facts, connected: frozenset[str] | None, last: datetime | None) -> str | None:
    """That no worker is there, in words; None if one is, or may be."""
    silent = None if last is None else (facts.now - last).total_seconds()
    holders = facts.texts("lives")
    if connected:
        return None
    if connected is None and (holders or silent is None or silent < 2 * presence.LONGEST_SILENCE):
        return None
    if holders and (any(map(_may_hide, holders)) or (silent is not None and silent < _COMING)):
        return None
    if silent is None:
        return "no worker of this queue is connected to the server, nor was one seen in the last day"
    return f"no worker of this queue is connected to the server; the last one was seen {_span(silent)} ago"


def _is_cut_off(facts: _Facts, connected: frozenset[str] | None) -> bool:
    """Whether the worker that runs the job has surely no connection."""
    began, holder = facts.moment("job.processedOn"), facts.text("job.pb")
    if connected is None or began is None or (facts.now - began).total_seconds() < _COMING or _may_hide(holder):
        return False
    return not connected or not ("" in connected or holder == "" or holder in connected)


def _may_hide(worker: str) -> bool:
    """Whether servers refuse this name to a connection: a worker of another runtime then has none with a name."""
    return presence.plain(worker) != worker


class _Facts:
    """What the script told."""

    def __init__(self, reply: list[bytes]) -> None:
        self._found: dict[bytes, list[bytes]] = {}
        for name, value in zip(reply[::2], reply[1::2], strict=True):
            self._found.setdefault(name, []).append(value)
        self.now: datetime = to_moment(self.number("now"))

    def raw(self, name: str) -> bytes | None:
        return self._found.get(name.encode(), [None])[0]

    def text(self, name: str) -> str:
        return (self.raw(name) or b"").decode("utf-8", "replace")

    def texts(self, name: str) -> list[str]:
        return [value.decode("utf-8", "replace") for value in self._found.get(name.encode(), [])]

    def has(self, name: str) -> bool:
        return name.encode() in self._found

    def number(self, name: str) -> int:
        return as_whole(self.raw(name)) or 0

    def moment(self, name: str) -> datetime | None:
        value = as_whole(self.raw(name))
        return None if value is None or not 0 < value < _LAST_MS else to_moment(value)

    def options(self) -> RunOptions | None:
        try:
            return decode_opts(self.raw("job.opts") or b"{}")
        except ValueError:
            return None


_LAST_MS = 253_402_300_800_000


class _Words:
    """The facts as reasons, what counts most first."""

    def __init__(self, facts: _Facts, state: JobState | None, missed: str | None, cut_off: bool) -> None:
        self._facts = facts
        self._state = state
        self._missed = missed
        self._cut_off = cut_off
        self._options = facts.options()

    def __iter__(self) -> Iterator[Reason]:
        facts, state = self._facts, self._state
        if not facts.number("exists"):
            yield from self._gone()
            return
        if not facts.has("job.name"):
            yield Reason("broken", "what stands under its key is no whole job: it has no name; no worker can run it")
        if facts.has("job.cancelRequested") and state not in ("completed", "failed"):
            yield self._asked_to_stop()
        if facts.has("job.defa") and state not in ("completed", "failed"):
            yield Reason("deferred_failure", f"it fails as soon as a worker takes it: {facts.text('job.defa')}")
        match state:
            case "waiting" | "prioritized":
                yield from self._held_up()
                yield from self._in_line()
                yield from self._schedule()
                yield from self._last_failure("it has run before, and the run failed")
                yield from self._expires()
            case "delayed":
                yield from self._delayed()
                yield from self._schedule()
                yield from self._last_failure("it waits for its next attempt; the last run failed")
                yield from self._expires()
            case "waiting_children":
                yield from self._children()
            case "active":
                yield from self._active()
            case "completed" | "failed":
                yield from self._ended()
            case None:
                if facts.has("job.name"):
                    yield Reason(
                        "in_no_state",
                        "it is there, but stands in no list and no set, so no worker will find it; "
                        "queue.admin.heal() puts it back where it belongs",
                    )
        yield from self._unique()

    def _asked_to_stop(self) -> Reason:
        then = (
            "its worker has been told"
            if self._state == "active"
            else "it ends as cancelled as soon as a worker takes it"
        )
        return Reason("cancelled", f"somebody has cancelled it, and {then}: {self._facts.text('job.cancelRequested')}")

    def _gone(self) -> Iterator[Reason]:
        facts = self._facts
        if self._state is None:
            yield Reason(
                "gone",
                "there is no job of this id: it was never added, or was removed, or its retention removed it after its end",
            )
        else:
            yield Reason(
                "gone",
                f"its id stands in {self._state}, but the job itself is gone; a worker that meets the id takes it out",
            )
        if facts.number("schedule paused"):
            yield Reason(
                "schedule_paused",
                f"schedule {facts.text('schedule')!r} is paused, and its next run was taken out; it comes back when the schedule "
                "is resumed",
            )

    # -- what waits

    def _held_up(self) -> Iterator[Reason]:
        """What keeps every job of the queue from being started."""
        facts = self._facts
        if facts.has("paused"):
            yield Reason("paused", "the queue is paused: no worker takes a job from it before queue.resume()")
        if facts.has("limited"):
            left = facts.number("limited") / 1000
            until = facts.now + timedelta(seconds=left)
            if facts.has("limited by hand"):
                why = "a worker, or somebody, has limited it (rate_limit)"
            else:
                why = f"its rate limit of {facts.number('max')} is used up"
            yield Reason("rate_limited", f"nothing of the queue starts for another {_span(left)}: {why}", at=until)
        elif facts.has("window ms"):
            left = facts.number("window ms") / 1000
            started = "1 job" if facts.number("window used") == 1 else f"{facts.number('window used')} jobs"
            yield Reason(
                "rate_limited",
                f"workers with a rate limit of their own have started {started} in a time that ends in {_span(left)}; if that is "
                "all they may, they start nothing before",
                at=facts.now + timedelta(seconds=left),
                count=facts.number("window used"),
            )
        most = facts.number("concurrency")
        if most and facts.number("running") >= most:
            slots = "the one slot" if most == 1 else f"all {most} slots"
            yield Reason(
                "concurrency",
                f"{slots} of the queue (set_concurrency) {'is' if most == 1 else 'are'} taken: {facts.number('running')} "
                f"{'job runs, and' if facts.number('running') == 1 else 'jobs run, and one of them'} has to end first",
                count=most,
            )
        if self._missed is not None:
            yield Reason("no_worker", self._missed)

    def _in_line(self) -> Iterator[Reason]:
        facts = self._facts
        if not facts.has("before"):
            yield Reason("behind", f"at least {_FURTHEST:,} jobs are before it in the line", count=_FURTHEST)
        elif before := facts.number("before"):
            jobs = "1 job is" if before == 1 else f"{before:,} jobs are"
            yield Reason("behind", f"{jobs} before it in the line", count=before)
        else:
            running = facts.number("running")
            yield Reason(
                "next",
                "it is the next in the line: the first worker with a free slot takes it"
                + (
                    f" (of the queue {'1 job runs' if running == 1 else f'{running} jobs run'} now)"
                    if running and self._missed is None
                    else ""
                ),
                count=0,
            )

    def _delayed(self) -> Iterator[Reason]:
        facts = self._facts
        due = facts.moment("due")
        if due is None:
            yield Reason("broken", "the time that it waits for cannot be read; change_delay() gives it another")
            return
        left = (due - facts.now).total_seconds()
        if left > 0:
            yield Reason("delayed", f"it waits for its time, {_when(due)}: in {_span(left)}", at=due)
            return
        yield Reason(
            "due", f"its time came {_span(-left)} ago, {_when(due)}; the next worker that looks moves it on", at=due
        )
        yield from self._held_up()

    def _expires(self) -> Iterator[Reason]:
        facts = self._facts
        if self._options is None or facts.number("job.ats") or facts.moment("job.timestamp") is None:
            return
        until = last_start(self._options, facts.number("job.timestamp"), facts.number("job.due"))
        if until is None or not 0 < until < _LAST_MS:
            return
        last = to_moment(until)
        late = last <= facts.now
        yield Reason(
            "expires",
            f"it is too late for it (expire_in): it fails when a worker takes it, since {_when(last)}"
            if late
            else f"if no worker has started it by {_when(last)}, it fails (expire_in)",
            at=last,
        )

    def _last_failure(self, words: str) -> Iterator[Reason]:
        facts = self._facts
        if not facts.has("job.failedReason"):
            return
        made = max(facts.number("job.atm"), facts.number("job.attemptsMade"))
        of = max(1 if self._options is None else self._options.attempts, 1)
        yield Reason("retry", f"{words} ({made} of {of} attempts used): {facts.text('job.failedReason')}", count=made)

    def _schedule(self) -> Iterator[Reason]:
        facts = self._facts
        if not facts.has("schedule"):
            return
        name = facts.text("schedule")
        if facts.number("schedule paused"):
            yield Reason("schedule_paused", f"it is a run of schedule {name!r}, which is paused now")
        elif facts.has("schedule next") and facts.number("schedule next") == facts.number("schedule slot"):
            yield Reason(
                "schedule",
                f"it is the next run of schedule {name!r}, so it cannot be removed by itself; pause or remove the schedule",
            )
        else:
            yield Reason("schedule", f"it is a run of schedule {name!r}")

    def _children(self) -> Iterator[Reason]:
        facts = self._facts
        pending, done = facts.number("children"), facts.number("children completed")
        some = facts.texts("child")
        if pending:
            named = ", ".join(some) + (", …" if pending > len(some) else "")
            yield Reason(
                "children",
                f"it waits for {'1 child' if pending == 1 else f'{pending:,} children'} ({named}); {done:,} have completed",
                count=pending,
                jobs=some,
            )
        else:
            yield Reason(
                "no_children_left",
                "it waits for children, but none is left to wait for: the word of the last one was lost; `echomq doctor` helps",
                count=0,
            )
        yield from self._failed_children()

    def _failed_children(self) -> Iterator[Reason]:
        facts = self._facts
        if failed := facts.number("children failed"):
            some = facts.texts("failed child")
            named = f": {', '.join(some)}" if some else ""
            yield Reason(
                "children_failed",
                f"{'1 child has' if failed == 1 else f'{failed:,} children have'} failed{named}",
                count=failed,
                jobs=some,
            )

    # -- what runs

    def _active(self) -> Iterator[Reason]:
        facts = self._facts
        began = facts.moment("job.processedOn")
        worker = f"worker {facts.text('job.pb')!r}" if facts.has("job.pb") else "a worker"
        since = "" if began is None else f" for {_span((facts.now - began).total_seconds())}, since {_when(began)}"
        starts = facts.number("job.ats")
        if facts.number("lock"):
            left = facts.number("lock ms") / 1000
            again = f"; it is its start number {starts}" if starts > 1 else ""
            if self._cut_off:
                text = (
                    f"{worker} has started it{since}{again}, and is not connected now: if it has died, its lock expires in "
                    f"{_span(left)}, and then {self._who_puts_back('soon after')}"
                )
            else:
                text = (
                    f"{worker} has been running it{since}{again}. Its lock lasts another {_span(left)}, and is renewed while the "
                    "worker lives"
                )
            yield Reason("running", text, at=began)
            return
        if facts.number("suspect"):
            within = _CONFIRM
        else:
            within = max(facts.number("sweep ms"), 0) / 1000 + _CONFIRM + (0 if facts.number("marked") else _SWEEP)
        back = facts.now + timedelta(seconds=within)
        then = self._who_puts_back(f"within {_span(within)} or so")
        text = f"{worker} has started it{since}, but its lock has gone: that worker has died, or is cut off; {then}"
        yield Reason("lock_lost", text, at=back)

    def _who_puts_back(self, when: str) -> str:
        if self._missed is not None:
            return f"only a worker puts it back into the line, and {self._missed}"
        return f"a sweep of the workers puts it back into the line {when}"

    # -- what has ended

    def _ended(self) -> Iterator[Reason]:
        facts = self._facts
        at = facts.moment("job.finishedOn")
        when = "" if at is None else f" {_when(at)}, {_span((facts.now - at).total_seconds())} ago"
        by = f", by worker {facts.text('job.pb')!r}" if facts.has("job.pb") else ""
        if self._state == "completed":
            text = f"it completed{when}{by}"
            if facts.has("job.skipped"):
                text = f"it was not run, and counts as completed{when}: {facts.text('job.skipped')}"
            elif facts.has("job.resultError"):
                text += f"; its result could not be stored: {facts.text('job.resultError')}"
            yield Reason("completed", text, at=at)
        else:
            made = max(facts.number("job.atm"), facts.number("job.attemptsMade"))
            kind = f" (kind of failure: {facts.text('job.failureKind')})" if facts.has("job.failureKind") else ""
            runs = f" after {made} attempts" if made > 1 else ""
            if facts.text("job.failureKind") == "cancelled":
                yield Reason("cancelled", f"it was cancelled{when}: {facts.text('job.failedReason')}", at=at)
                yield self._retained(at)
                return
            yield Reason(
                "failed",
                f"it failed for good{when}{by}{runs}{kind}: {facts.text('job.failedReason')}",
                at=at,
                count=made,
            )
            yield from self._failed_children()
        yield self._retained(at)

    def _retained(self, ended: datetime | None) -> Reason:
        keep = None
        if self._options is not None:
            options = public_options(self._options)
            keep = options.remove_on_complete if self._state == "completed" else options.remove_on_fail
        name = "remove_on_complete" if self._state == "completed" else "remove_on_fail"
        if keep is None:
            usual = KEEP_COMPLETED if self._state == "completed" else KEEP_FAILED
            return Reason("retained", f"it stays as long as the workers' {name} says; by default {_kept(usual)}")
        until = None if keep.age is None or ended is None else ended + timedelta(seconds=float(keep.age))  # type: ignore[arg-type]
        if until is None:
            return Reason("retained", f"its own {name} keeps {_kept(keep)}")
        return Reason("retained", f"its own {name} keeps {_kept(keep)}: until {_when(until)}", at=until)

    def _unique(self) -> Iterator[Reason]:
        facts = self._facts
        if facts.has("unique ms"):
            left = facts.number("unique ms")
            until = f"for another {_span(left / 1000)}" if left >= 0 else "until it has ended"
            yield Reason(
                "deduplication",
                f"it holds the deduplication id {facts.text('job.deid')!r} {until}: an add with this id adds nothing meanwhile",
                at=facts.now + timedelta(milliseconds=left) if left >= 0 else None,
            )


def _kept(keep: Keep) -> str:
    parts = []
    if keep.count == 0:
        return "nothing"
    if keep.age is not None:
        parts.append(f"what ended within {_span(float(keep.age))}")  # type: ignore[arg-type]
    if keep.count > 0:
        parts.append(f"the last {keep.count:,}")
    return ", and ".join(parts) or "all"


def _when(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    """A length of time as people say it."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0):.1f} s"
