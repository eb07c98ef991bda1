"""``echomq queue``: looks at queues, and does things to all jobs of one."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from echomq import (
    BrokenKey,
    ConnectionLost,
    EchoMQError,
    Job,
    JobLocked,
    JobState,
    Queue,
    ServerUnavailable,
    StateError,
)
from echomq.cli import _text, _workers
from echomq.cli._shell import QueueName, Refusal, Shell, Yes, command, seconds_option

app: typer.Typer = typer.Typer(
    name="queue",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at queues; pause, drain, clean, retry, promote, obliterate.",
)

_AT_ONCE: Final = 50
"""Queues that are asked at the same time."""
_NONE_UNTIL_NOW: Final = "there was no such queue until now"
_WILD: Final = frozenset("*?[")
_COLUMNS: Final[dict[str, JobState]] = {
    "WAITING": "waiting",
    "PRIORITY": "prioritized",
    "DELAYED": "delayed",
    "ACTIVE": "active",
    "CHILDREN": "waiting_children",
    "COMPLETED": "completed",
    "FAILED": "failed",
}


@command(app, "list")
async def list_(
    shell: Shell,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Only queues with such names: 'orders-*'.")] = "*",
) -> None:
    """List the queues, with how many jobs are in each state.

    Exit code 3: PATTERN is the name of one that is not there.
    """
    names = await shell.names()
    if pattern not in names and not _WILD & set(pattern):
        raise shell.no_queue(pattern)
    limit = asyncio.Semaphore(_AT_ONCE)

    async def look(name: str) -> dict[str, Any]:
        async with limit:
            queue = shell.queue(name)
            try:
                counts, paused = await asyncio.gather(queue.counts(), queue.is_paused())
            except (ServerUnavailable, ConnectionLost):
                raise
            except EchoMQError as error:  # one queue that somebody broke does not hide the others
                return {"queue": name, "paused": None, "counts": None, "trouble": str(error)}
            return {"queue": name, "paused": paused, "counts": counts, "trouble": None}

    found = await asyncio.gather(*(look(name) for name in names if fnmatch.fnmatchcase(name, pattern)))
    right = range(1, len(_COLUMNS) + 1)
    shell.answer({"queues": found}, _text.table(["QUEUE", *_COLUMNS, ""], [_row(one) for one in found], right=right))
    if not found:
        such = "no queue" if pattern == "*" else f"no queue {pattern!r}"
        shell.note(f"there is {such} at {shell.connection.where} (prefix {shell.prefix!r}; --prefix names another)")


def _row(listed: Mapping[str, Any]) -> list[str]:
    numbers = ["–"] * len(_COLUMNS) if listed["counts"] is None else _numbers(listed["counts"])
    said = listed["trouble"] or ("paused" if listed["paused"] else "")
    return [_text.one_line(listed["queue"], 60), *numbers, _text.one_line(said, 200)]


def _numbers(counts: Mapping[JobState, int]) -> list[str]:
    return [f"{counts[state]:,}" for state in _COLUMNS.values()]


@command(app)
async def show(shell: Shell, queue: QueueName) -> None:
    """Show one queue: its jobs, limits and workers.

    Exit code 3: it is not there.
    """
    here = shell.queue(queue)
    await shell.must_exist(here)
    counts, paused, dead, workers = await asyncio.gather(
        here.counts(), here.is_paused(), here.dead_letter.counts("waiting"), here.workers()
    )
    concurrency, limiter, limited_for = await asyncio.gather(here.concurrency(), here.limiter(), here.rate_limit_ttl())
    first = await next_to_run(here)
    record = {
        "queue": queue,
        "paused": paused,
        "counts": counts,
        "concurrency": concurrency,
        "rate_limit": limiter,
        "rate_limited_for": limited_for,
        "next": None if first is None else {"id": first.id, "name": first.name, "ready_since": ready_since(first)},
        "dead_letters": dead["waiting"],
        "workers": workers,
    }
    limits = [
        "paused: workers fetch nothing" if paused else "",
        f"at most {concurrency} at once" if concurrency is not None else "",
        f"at most {limiter.max:,} starts in {_text.duration(_seconds(limiter.duration))}" if limiter else "",
        f"rate limit reached: nothing starts for {_text.duration(limited_for)}" if limited_for else "",
    ]
    lines = [f"{'queue':<17} {_text.harmless(queue)} at {shell.connection.where}, prefix {shell.prefix}"]
    lines += [f"{state:<17} {number:>12,}" for state, number in counts.items()]
    lines += [f"{'dead letters':<17} {dead['waiting']:>12,}"]
    if first is not None:
        since = ready_since(first)
        waits = "" if since is None else f", ready {_text.age(since)}"
        lines += [f"{'next to run':<17} {_text.one_line(first.id)} {_text.one_line(first.name)}{waits}"]
    lines += [f"{'limits':<17} {'; '.join(filter(None, limits)) or 'none'}"]
    lines += [f"{'workers':<17} {_workers.in_words(workers, 'none is known')}"]
    shell.answer(record, lines)


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


async def next_to_run(queue: Queue) -> Job[Any] | None:
    """The job that waits at the head of the line, or else the first of those with a priority."""
    states: Sequence[JobState] = ("waiting", "prioritized")
    for state in states:
        page = await queue.page(state, limit=1)
        if page.jobs:
            return page.jobs[0]
    return None


def ready_since(job: Job[Any]) -> datetime | None:
    """Since when a job that waits could run, as far as its record tells: made and its delay over, or back from its last run."""
    moments = [moment for moment in (job.processed_on, job.finished_on, first_due(job)) if moment is not None]
    return min(max(moments), datetime.now(UTC)) if moments else None


def first_due(job: Job[Any]) -> datetime | None:
    """When a job was made and its delay over, as far as its record tells."""
    if job.timestamp is None:
        return None
    try:
        return job.timestamp + timedelta(seconds=job.opts.delay)
    except (BrokenKey, OverflowError):  # what is damaged in one job hides nothing of its queue
        return job.timestamp


@command(app, makes=True)
async def pause(shell: Shell, queue: QueueName) -> None:
    """Let workers fetch nothing more from a queue. Jobs that run go on."""
    here = shell.queue(queue)
    note = await shell.is_its_name(here, _NONE_UNTIL_NOW)
    await here.pause()
    shell.answer({"queue": queue, "paused": True}, f"{queue}: paused")
    shell.note(note)


@command(app, makes=True)
async def resume(shell: Shell, queue: QueueName) -> None:
    """Let workers fetch again."""
    here = shell.queue(queue)
    note = await shell.is_its_name(here, _NONE_UNTIL_NOW)
    await here.resume()
    shell.answer({"queue": queue, "paused": False}, f"{queue}: resumed")
    shell.note(note)


@command(app)
async def drain(
    shell: Shell,
    queue: QueueName,
    delayed: Annotated[bool, typer.Option("--delayed", help="Those too that wait for their time.")] = False,
    yes: Yes = False,
) -> None:
    """Remove the jobs that wait to be run.

    What runs goes on, what has ended stays, and so do the next runs of schedules. Exit code 3: the queue is not there.
    """
    here = shell.queue(queue)
    await shell.must_exist(here)
    states: list[JobState] = ["waiting", "prioritized", *(["delayed"] if delayed else [])]  # type: ignore[list-item]
    waiting = sum((await here.counts(*states)).values())
    await shell.agree(f"Remove {_text.jobs(waiting)} from {queue}, which wait?", yes)
    with shell.progress(f"{queue}: removed") as done:
        removed = await here.admin.drain(delayed=delayed, on_progress=done)
    shell.answer({"queue": queue, "removed": removed}, f"{queue}: removed {_text.jobs(removed)}")


@command(app)
async def clean(
    shell: Shell,
    queue: QueueName,
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="completed, failed, delayed, prioritized, waiting or active.")
    ],
    older_than: Annotated[
        float, seconds_option("--older-than", help="Only jobs older than this: 90, 12h, 7d; 0 for all.")
    ],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.", show_default=False)] = None,
    yes: Yes = False,
) -> None:
    """Remove jobs of a state that are older than a time.

    The age of a job that has ended counts from its end; of one that waits, from its last run, or from when it was made. Of
    active jobs only those are removed whose worker has gone. Exit code 3: the queue is not there.
    """
    here = shell.queue(queue)
    await shell.must_exist(here)
    if not yes:
        there = (await here.counts(state))[state]  # type: ignore[arg-type,index]  # checked by counts
        old = f" that are older than {_text.duration(older_than)}" if older_than else ""
        await shell.agree(f"Remove {state} jobs of {queue}{old} (there are {there:,})?", yes)
    with shell.progress(f"{queue}: removed") as done:
        removed = len(await here.admin.clean(state, older_than, limit, on_progress=done))  # type: ignore[arg-type]
    shell.answer(
        {"queue": queue, "state": state, "removed": removed}, f"{queue}: removed {_text.jobs(removed)} ({state})"
    )


@command(app)
async def obliterate(
    shell: Shell,
    queue: QueueName,
    force: Annotated[bool, typer.Option("--force", help="Also while workers run jobs of it.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a queue with everything that belongs to it.

    It is paused first, and stays paused where it is not removed. Exit code 1: jobs of it run, and --force was not said. 3: it is
    not there.
    """
    here = shell.queue(queue)
    await shell.must_exist(here)
    counts = await here.counts()
    await shell.agree(f"Remove {queue} and its {_text.jobs(sum(counts.values()))}?", yes, expect=queue)
    with shell.progress(f"{queue}: removed") as done:
        try:
            removed = await here.admin.obliterate(force=force, on_progress=done)
        except JobLocked:
            raise Refusal(
                f"{queue} is not removed: workers are running jobs of it. It is paused now: wait for their end and call again, "
                f"or say --force, which leaves them nothing to end; or undo the pause: echomq queue resume {queue}"
            ) from None
        except StateError:
            if force or not (waiting := await here.outbox_size()):
                raise
            raise Refusal(
                f"{queue} is not removed: outcomes of its jobs ({waiting:,}) are on their way to a results queue, where a "
                "running worker of it brings them. It is paused now: call again when they are there, or say --force, "
                f"which drops them; or undo the pause: echomq queue resume {queue}"
            ) from None
    shell.answer({"queue": queue, "removed": removed}, f"{queue}: obliterated, with {_text.jobs(removed)}")


@command(app)
async def retry(
    shell: Shell,
    queue: QueueName,
    state: Annotated[str, typer.Option(metavar="STATE", help="failed or completed.")] = "failed",
) -> None:
    """Let all jobs run again that have failed until now.

    Exit code 3: the queue is not there.
    """
    here = shell.queue(queue)
    await shell.must_exist(here)
    with shell.progress(f"{queue}: put back") as done:
        moved = await here.admin.retry_all(state, on_progress=done)  # type: ignore[arg-type]
    shell.answer({"queue": queue, "retried": moved}, f"{queue}: {_text.jobs(moved)} will run again")


@command(app)
async def promote(shell: Shell, queue: QueueName) -> None:
    """Let all delayed jobs run now. The next runs of schedules keep their times.

    Exit code 3: the queue is not there.
    """
    here = shell.queue(queue)
    await shell.must_exist(here)
    with shell.progress(f"{queue}: promoted") as done:
        moved = await here.admin.promote_all(on_progress=done)
    shell.answer({"queue": queue, "promoted": moved}, f"{queue}: {_text.jobs(moved)} may run now")
