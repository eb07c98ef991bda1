"""``echomq demo``: learners are enrolled while workers are killed, and an audit shows that nothing was lost."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Annotated

import typer

BAD_INPUT = 2
"""The exit code for what the demo cannot start with, as for a wrong option."""


def demo(
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="How many enrolments; left out, all valid rows of the roster.", show_default=False
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Worker processes at a time.")] = 4,
    kills: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N", help="How many workers to kill (SIGKILL), each replaced.")
    ] = 6,
    input: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A roster: CSV with the columns learner, course and, if wanted, seats.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A server of yours; left out, an embedded one, for this run.", show_default=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Repeats the choices of an earlier run.", show_default=False)
    ] = None,
) -> None:
    """Enrol learners while workers are killed, and audit the outcome.

    Exit code 0: the audit is clean. 1: it is not, or there was no getting to it. 2: the demo cannot start.
    """
    from echomq.cli._demo import example

    example.make_importable()
    from echomq.cli._demo.play import CannotStart, Told, Wish, play, tell
    from echomq.cli._demo.story import Story
    from echomq.errors import EchoMQError
    from portal.roster import RosterError

    wish = Wish(jobs, workers, kills, input, url, random.randrange(1_000_000) if seed is None else seed)
    story = Story(quiet=as_json)
    try:
        with story:
            report = play(wish, story)
    except (RosterError, EchoMQError) as error:
        typer.echo(f"echomq demo: {error}", err=True)
        raise typer.Exit(BAD_INPUT if isinstance(error, RosterError | CannotStart) else 1) from error
    except Told as told:
        typer.echo(f"echomq demo: ended by {told}", err=True)
        raise typer.Exit(128 + told.signal) from None
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
    else:
        tell(report, wish, story)
    raise typer.Exit(0 if report.clean else 1)
