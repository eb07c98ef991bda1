"""``echomq queue``: looks at queues, and does things to all jobs of one."""

from __future__ import annotations

from typing import Annotated

import typer

from echomq import JobState
from echomq.cli import _text
from echomq.cli._shell import QueueName, Shell, Yes, command, seconds_option

app: typer.Typer = typer.Typer(
    name="queue",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at queues; pause, drain, clean, retry, promote, obliterate.",
)


@command(app)
async def pause(shell: Shell, queue: QueueName) -> None:
    """Let workers fetch nothing more from a queue. Jobs that run go on."""
    await shell.queue(queue).pause()
    shell.answer({"queue": queue, "paused": True}, f"{queue}: paused")


@command(app)
async def resume(shell: Shell, queue: QueueName) -> None:
    """Let workers fetch again."""
    await shell.queue(queue).resume()
    shell.answer({"queue": queue, "paused": False}, f"{queue}: resumed")


@command(app)
async def drain(
    shell: Shell,
    queue: QueueName,
    delayed: Annotated[bool, typer.Option("--delayed", help="Those too that wait for their time.")] = False,
    yes: Yes = False,
) -> None:
    """Remove the jobs that wait to be run.

    What runs goes on, what has ended stays, and so do the next runs of schedules.
    """
    here = shell.queue(queue)
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
    active jobs only those are removed whose worker has gone.
    """
    here = shell.queue(queue)
    if not yes:
        there = (await here.counts(state))[state]  # type: ignore[arg-type,index]  # checked by counts
        old = f" that are older than {_text.duration(older_than)}" if older_than else ""
        await shell.agree(f"Remove {state} jobs of {queue}{old} (of {there:,})?", yes)
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

    Exit code 1: jobs of it run, and --force was not said. 3: it is not there.
    """
    here = shell.queue(queue)
    counts = await here.counts()
    await shell.agree(f"Remove {queue} and its {_text.jobs(sum(counts.values()))}?", yes, expect=queue)
    with shell.progress(f"{queue}: removed") as done:
        removed = await here.admin.obliterate(force=force, on_progress=done)
    shell.answer({"queue": queue, "removed": removed}, f"{queue}: obliterated, with {_text.jobs(removed)}")


@command(app)
async def retry(
    shell: Shell,
    queue: QueueName,
    state: Annotated[str, typer.Option(metavar="STATE", help="failed or completed.")] = "failed",
) -> None:
    """Let all jobs run again that have failed until now."""
    with shell.progress(f"{queue}: put back") as done:
        moved = await shell.queue(queue).admin.retry_all(state, on_progress=done)  # type: ignore[arg-type]
    shell.answer({"queue": queue, "retried": moved}, f"{queue}: {_text.jobs(moved)} will run again")


@command(app)
async def promote(shell: Shell, queue: QueueName) -> None:
    """Let all delayed jobs run now. The next runs of schedules keep their times."""
    with shell.progress(f"{queue}: promoted") as done:
        moved = await shell.queue(queue).admin.promote_all(on_progress=done)
    shell.answer({"queue": queue, "promoted": moved}, f"{queue}: {_text.jobs(moved)} may run now")
