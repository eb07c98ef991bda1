"""``echomq job``: looks at single jobs, adds them, and changes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from echomq import BrokenKey, InvalidOption, Job, JobCancelled, JobFailed, StateError
from echomq.cli import _text
from echomq.cli._shell import JobId, QueueName, Shell, Yes, command, moment_option, seconds_option, utc

app: typer.Typer = typer.Typer(
    name="job",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at jobs; add, retry, promote, cancel, remove, wait for one.",
)

_MOST_SHOWN: Final = 4_000
"""Characters of a value or a traceback that are shown to people; JSON has all."""


@command(app)
async def show(shell: Shell, queue: QueueName, job_id: JobId) -> None:
    """Show all that is known of a job.

    Exit code 3: it is not there.
    """
    job = await shell.job(queue, job_id)
    shell.answer(record(job), _lines(job))


@command(app, "list")
async def list_(
    shell: Shell,
    queue: QueueName,
    state: Annotated[
        str,
        typer.Argument(
            metavar="STATE",
            help="waiting, prioritized, delayed, active, waiting_children, completed or failed.",
        ),
    ],
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="So many at most.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Go on where an earlier list ended.", show_default=False)
    ] = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="The one that came or ended last comes first.")
    ] = False,
) -> None:
    """List the jobs of a state, a page at a time.

    The one that runs next, is due next or ended first comes first. Exit code 3: the queue is not there.
    """
    here = shell.queue(queue)
    page = await here.page(state, cursor=cursor, limit=limit, newest_first=newest_first)  # type: ignore[arg-type]
    if not page.jobs:
        await shell.must_exist(here)
    rows = [_row(job) for job in page.jobs]
    shell.answer(
        {"queue": queue, "state": state, "jobs": [record(job) for job in page.jobs], "cursor": page.cursor},
        _text.table(["ID", "NAME", "MADE", "STARTED", "ENDED", "RUNS", ""], rows),
    )
    if page.cursor is not None:
        shell.note(f"more: --cursor {page.cursor}")


def _row(job: Job[Any]) -> list[str]:
    moments = (job.timestamp, job.processed_on, job.finished_on)
    ages = ["" if moment is None else _text.age(moment) for moment in moments]
    why = job.failed_reason if job.state in ("failed", "delayed", "waiting", "prioritized") else None
    return [
        _text.one_line(job.id, 40),
        _text.one_line(job.name, 40),
        *ages,
        str(job.attempts_started),
        "" if why is None else _text.one_line(why, 60),
    ]


@command(app, makes=True)
async def add(
    shell: Shell,
    queue: QueueName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The job's name: that of its task.")],
    data: Annotated[
        str, typer.Option(metavar="JSON", help="Its data: JSON, or @FILE, or - for the standard input.")
    ] = "{}",
    job_id: Annotated[
        str | None, typer.Option(metavar="ID", help="An id of your own; added once.", show_default=False)
    ] = None,
    delay: Annotated[float | None, seconds_option("--delay", help="Not before this time is over: 90, 1.5h.")] = None,
    at: Annotated[
        datetime | None,
        moment_option("--at", help="Not before this moment, such as 2026-12-01T09:30, here or with a zone."),
    ] = None,
    priority: Annotated[int, typer.Option(metavar="N", help="0 for none, which runs first; else lower first.")] = 0,
    lifo: Annotated[bool, typer.Option("--lifo", help="To the front of the line.")] = False,
    attempts: Annotated[int, typer.Option(metavar="N", help="How often it may run; 0 and 1 mean once.")] = 0,
    backoff: Annotated[float | None, seconds_option("--backoff", help="What to wait between attempts.")] = None,
    expire_in: Annotated[
        float | None, seconds_option("--expire-in", help="It fails if no worker has started it by then.")
    ] = None,
    deduplication_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Adds nothing while a job of this deduplication id is there.", show_default=False
        ),
    ] = None,
) -> None:
    """Add a job."""
    if delay is not None and at is not None:
        raise InvalidOption("--delay and --at: give one of them")
    job = await shell.queue(queue).add(
        name,
        _data(data),
        job_id=job_id,
        delay=delay,
        at=at,
        priority=priority,
        lifo=lifo,
        attempts=attempts,
        backoff=backoff,
        expire_in=expire_in,
        deduplication=deduplication_id,
    )
    added = not (job.duplicate or job.deduplicated)
    said = "added" if added else "not added: this job was there already"
    shell.answer(
        {"queue": queue, "id": job.id, "state": job.state, "added": added},
        f"{_text.harmless(job.id)}: {said} ({job.state})",
    )


def _data(given: str) -> Any:
    text, where = given, "--data"
    try:
        if given == "-":
            text, where = sys.stdin.read(), "the standard input"
        elif given.startswith("@"):
            text, where = Path(given[1:]).read_text("utf-8"), given[1:]
    except (OSError, ValueError) as error:
        raise InvalidOption(f"--data {given}: cannot be read: {error}; @FILE names a file of JSON in UTF-8") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(
            f"{where}: {_text.one_line(text, 60)!r} is no JSON: {error}; in a shell quote it, such as --data "
            "'{\"learner\": 7}'"
        ) from None


@command(app)
async def retry(
    shell: Shell,
    queue: QueueName,
    job_id: JobId,
    reset_attempts: Annotated[bool, typer.Option("--reset-attempts", help="Count them from the start again.")] = False,
) -> None:
    """Let a job run again that has failed or completed.

    Exit code 1: it has not ended. 3: it is not there.
    """
    job = await shell.job(queue, job_id)
    await job.retry(reset_attempts=reset_attempts)
    shell.answer({"queue": queue, "id": job.id}, f"{_text.harmless(job.id)}: will run again")


@command(app)
async def cancel(
    shell: Shell,
    queue: QueueName,
    job_id: JobId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever waits for it or looks at it.")] = "",
) -> None:
    """Cancel a job: it fails, and is not run again. One that is being run is told to stop.

    Exit code 1: it has ended. 3: it is not there.
    """
    job = await shell.job(queue, job_id)
    if not await job.cancel(reason):
        raise StateError(f"job {job.id!r} of queue {queue!r} is not cancelled: it has ended already")
    now = await job.refresh()
    ended = now is not None and now.state == "failed"
    shell.answer(
        {"queue": queue, "id": job.id, "ended": ended},
        f"{_text.harmless(job.id)}: " + ("cancelled" if ended else "is being run; its worker is told to stop"),
    )


@command(app)
async def promote(shell: Shell, queue: QueueName, job_id: JobId) -> None:
    """Let a delayed job run now.

    Exit code 1: it is not delayed. 3: it is not there.
    """
    job = await shell.job(queue, job_id)
    await job.promote()
    shell.answer({"queue": queue, "id": job.id}, f"{_text.harmless(job.id)}: may run now")


@command(app)
async def remove(
    shell: Shell,
    queue: QueueName,
    job_id: JobId,
    keep_children: Annotated[bool, typer.Option("--keep-children", help="Not the jobs that it waits for.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a job, and the jobs that it waits for.

    Exit code 1: a worker runs it. 3: it is not there.
    """
    job = await shell.job(queue, job_id)
    named = f"{_text.harmless(job.id)} ({_text.one_line(job.name)}, {job.state})"
    await shell.agree(f"Remove job {named} from {queue}?", yes)
    await job.remove(children=not keep_children)
    shell.answer({"queue": queue, "id": job.id, "removed": True}, f"{_text.harmless(job.id)}: removed")


@command(app)
async def logs(
    shell: Shell,
    queue: QueueName,
    job_id: JobId,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last so many.", show_default=False)
    ] = None,
) -> None:
    """Print the lines that a job's handler has logged."""
    job = await shell.job(queue, job_id)
    if last is None:
        found = await job.logs()
        lines = list(found.lines)
    else:
        found = await job.logs(0, last - 1, newest_first=True)
        lines = list(found.lines)[::-1]
    shell.answer({"queue": queue, "id": job.id, "lines": lines, "count": found.count}, map(_text.harmless, lines))


@command(app)
async def explain(shell: Shell, queue: QueueName, job_id: JobId) -> None:
    """Say why a job is where it is, and what comes next.

    Exit code 3: it is not there.
    """
    job = await shell.job(queue, job_id)
    found = await job.explain()
    shell.answer(
        {"queue": queue, "id": job.id, "state": found.state, "at": utc(found.at), "reasons": found.reasons},
        map(_text.harmless, str(found).splitlines()),
    )


@command(app, is_timed=False)
async def wait(shell: Shell, queue: QueueName, job_id: JobId) -> None:
    """Wait for a job to end, and print its result as JSON.

    Exit code 1: it failed, for the reason that is told; 3: it is not there, or was removed; 4: --timeout is over, and the job
    goes on.
    """
    async with shell.in_time():
        job = await shell.job(queue, job_id)
    try:
        result = await job.result(timeout=shell.timeout)
    except JobFailed as error:
        if shell.as_json:
            status = "cancelled" if isinstance(error, JobCancelled) else "failed"
            shell.print_json({"queue": queue, "id": job.id, "status": status, "reason": error.reason})
        raise
    if shell.as_json:
        shell.print_json({"queue": queue, "id": job.id, "status": "completed", "result": result})
    else:
        shell.print_json(result)


# -- the record of a job -----------------------------------------------------------------------------------------------

_VALUES: Final[dict[str, Callable[[Job[Any]], Any]]] = {
    "data": lambda job: job.data,
    "options": lambda job: job.opts,
    "progress": lambda job: job.progress,
    "return_value": lambda job: job.return_value,
    "dead_letter": lambda job: job.dead_letter,
}
"""What is decoded when it is asked for, and may be broken."""


def record(job: Job[Any]) -> dict[str, Any]:
    """A job as it stands in JSON. What cannot be read is null, and named under ``broken``."""
    values, broken = _values(job)
    return {
        "queue": job.queue_name,
        "id": job.id,
        "name": job.name,
        "state": job.state,
        **values,
        "priority": job.priority,
        "delay": job.delay,
        "attempts_made": job.attempts_made,
        "attempts_started": job.attempts_started,
        "stalled_count": job.stalled_count,
        "timestamp": utc(job.timestamp),
        "processed_on": utc(job.processed_on),
        "finished_on": utc(job.finished_on),
        "processed_by": job.processed_by,
        "scheduled_for": utc(job.scheduled_for),
        "result_error": job.result_error,
        "failed_reason": job.failed_reason,
        "failure_kind": job.failure_kind,
        "skipped": job.skipped,
        "deduplication_id": job.deduplication_id,
        "parent": job.parent,
        "stacktrace": job.stacktrace,
        "broken": broken,
    }


def _values(job: Job[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    broken: dict[str, str] = {}
    for name, read in _VALUES.items():
        try:
            values[name] = read(job)
        except BrokenKey as error:
            values[name] = None
            broken[name] = str(error)
    return values, broken


def _lines(job: Job[Any]) -> Iterator[str]:
    values, broken = _values(job)
    options = values.pop("options")
    opts = {} if options is None else _given(options)
    dead = values.pop("dead_letter")
    rows: list[tuple[str, str | None]] = [
        ("job", f"{_text.harmless(job.id)} of {_text.harmless(job.queue_name)}"),
        ("name", _text.harmless(job.name)),
        ("state", job.state or "in none: echomq doctor may know more"),
        ("made", _moment(job.timestamp)),
        ("scheduled for", _moment(job.scheduled_for)),
        ("delay", _text.duration(job.delay) if job.delay else None),
        ("started", _moment(job.processed_on)),
        ("by", _harmless(job.processed_by)),
        ("ended", _moment(job.finished_on)),
        ("took", _took(job)),
        ("runs", f"{job.attempts_started} begun, {job.attempts_made} ended, {job.stalled_count} times stalled"),
        ("priority", str(job.priority) if job.priority else None),
        ("parent", None if job.parent is None else _harmless(f"{job.parent.id} of {job.parent.queue_key}")),
        ("deduplication", _harmless(job.deduplication_id)),
        ("skipped", _harmless(job.skipped)),
        ("failed", _harmless(job.failed_reason)),
        ("kind of failure", job.failure_kind),
        ("dead letter of", None if dead is None else _harmless(f"{dead.job_id}, {dead.reason}")),
        ("options", _json(opts) if opts else None),
        ("data", _json(values["data"]) if "data" not in broken else None),
        ("progress", _json(values["progress"]) if values["progress"] is not None else None),
        (
            "result",
            _json(values["return_value"])
            if job.state == "completed" and "return_value" not in broken and job.result_error is None
            else None,
        ),
        ("lost result", _harmless(job.result_error)),
        *(("cannot be read", _harmless(text)) for text in broken.values()),
    ]
    for label, text in rows:
        if text is not None:
            first, *more = _cut(text).splitlines() or [""]
            yield f"{label:<15} {first}"
            yield from (f"{'':<15} {line}" for line in more)
    for number, trace in enumerate(job.stacktrace, 1):
        yield f"traceback {number}"
        yield from (f"  {line}" for line in _cut(_text.harmless(trace)).splitlines())


def _given(options: Any) -> dict[str, Any]:
    """The options that are not as they are when left out."""
    plain = type(options)()
    built = msgspec.to_builtins(options)
    return {name: value for name, value in built.items() if value != msgspec.to_builtins(getattr(plain, name))}


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else _text.local(moment)


def _harmless(text: str | None) -> str | None:
    return None if text is None else _text.harmless(text)


def _took(job: Job[Any]) -> str | None:
    if job.processed_on is None or job.finished_on is None or job.finished_on < job.processed_on:
        return None
    return _text.duration((job.finished_on - job.processed_on).total_seconds())


def _json(value: Any) -> str:
    short = _text.to_json(value)
    return _text.harmless(short if len(short) <= 90 else msgspec.json.format(short, indent=2))


def _cut(text: str) -> str:
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}\n… ({len(text):,} characters; --json shows all)"
