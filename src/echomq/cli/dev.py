"""``echomq dev``: one worker that starts anew when a file changes, with a server of its own where none is named."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from echomq import Connection, EchoMQError
from echomq._redis import embedded
from echomq._redis.embedded.places import MEMORY
from echomq.cli._logs import LogFormat, log_to_stderr
from echomq.cli.worker import run_anew
from echomq.cli.worker.announce import Announcer
from echomq.cli.worker.target import refuse

SERVER: Final = "embedded://dev"
_GRACE: Final = 3.0


def dev(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Where the app is: package.module:name.")],
    queues: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUEUE", help="Queues to work; left out, those that its tasks name."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help=f"The server, for an app that names none; left out, ECHOMQ_URL, else {SERVER}.",
            show_default=False,
        ),
    ] = None,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Where to look for changes; left out, here.", show_default=False),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, metavar="N", help="Answer probes on this port; left out, none.", show_default=False
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Work an app while you write it; reloads when a file changes.

    The worker starts anew when a Python file changes; what it runs then has 3 seconds to finish, and goes back. Where the app can
    not be loaded it says why, and waits for a change. Without a server, one of your own is started, whose jobs are kept.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        refuse(f"--log-level {log_level}: must be debug, info, warning or error", "dev")
    log_to_stderr(level, LogFormat.short)
    chosen = url or os.environ.get("ECHOMQ_URL") or SERVER
    with _server(chosen) as reached:
        if chosen == SERVER:
            typer.echo(f"no server was named, so this is {SERVER}; elsewhere: export ECHOMQ_URL={SERVER}", err=True)
        os.environ["ECHOMQ_URL"] = reached
        words = [
            "worker",
            f"--log-level={log_level}",
            f"--log-format={LogFormat.short.value}",
            f"--shutdown-timeout={_GRACE:g}",
            "--",
            target,
            *(queues or ()),
        ]
        announce = Announcer(None, False, LogFormat.short)
        probe_at = None if health_port is None else ("127.0.0.1", health_port)
        raise typer.Exit(run_anew(words, reload_dir or (), 1, announce, probe_at, _GRACE))


@contextlib.contextmanager
def _server(url: str) -> Iterator[str]:
    """The URL to reach the server by. An embedded one runs on while the worker starts anew."""
    try:
        Connection(url)
        name = url.partition("://")[2].partition("?")[0] if url.startswith("embedded://") else None
        member = None if name is None else embedded.join(name or "default")
    except EchoMQError as error:
        refuse(str(error), "dev")
    try:
        yield member.url if member is not None and name == MEMORY else url
    finally:
        if member is not None:
            member.close()
