"""``echomq dev``: one worker that starts anew when a file changes, with a server of its own where none is named."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from echomq import Connection, EchoMQError
from echomq._redis.embedded import EmbeddedServer
from echomq._redis.embedded.places import MEMORY
from echomq.cli._logs import LogFormat, log_to_stderr
from echomq.cli.worker import run_anew
from echomq.cli.worker.announce import Announcer, let_no_stream_decide
from echomq.cli.worker.state import WorkerState
from echomq.cli.worker.target import check_form, refuse
from echomq.connection import join_embedded

SERVER: Final = "embedded://dev"
_EMBEDDED: Final = "embedded://"
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
    not be loaded it says why, and waits for a change. Where neither it nor you name a server, one of your own is started, whose
    jobs are kept. Each job that ends is a line of the log.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        refuse(f"--log-level {log_level}: must be debug, info, warning or error", "dev")
    check_form(target, command="dev")
    log_to_stderr(level, LogFormat.short)
    let_no_stream_decide()
    named = url or os.environ.get("ECHOMQ_URL")
    with _server(named or SERVER, of_app=not named) as (reached, announce):
        os.environ["ECHOMQ_URL"] = reached
        words = [
            "worker",
            f"--log-level={log_level}",
            f"--log-format={LogFormat.short.value}",
            "--log-jobs",
            f"--shutdown-timeout={_GRACE:g}",
            "--",
            target,
            *(queues or ()),
        ]
        probe_at = None if health_port is None else ("127.0.0.1", health_port)
        raise typer.Exit(run_anew("dev", words, reload_dir or (), 1, announce, probe_at, _GRACE))


@contextlib.contextmanager
def _server(url: str, *, of_app: bool) -> Iterator[tuple[str, Announcer]]:
    """The URL to reach the server by, and who says when the worker is ready. An embedded one runs on while that starts anew.

    Args:
        url: the server that was named; with ``of_app`` that of an app that names none.
        of_app: nobody but the app has named a server, and what it names is not known before it is loaded.
    """
    announce = _Announcer(of_app)
    try:
        Connection(url)
        if not of_app:
            announce.keep(url)
    except EchoMQError as error:
        refuse(str(error), "dev")
    try:
        yield announce.url or url, announce
    finally:
        announce.close()


class _Announcer(Announcer):
    """Also keeps the embedded server that the worker uses, and says how other commands find it.

    Args:
        looks: it is to find that out once the worker is ready.
    """

    def __init__(self, looks: bool) -> None:
        super().__init__(None, False, LogFormat.short)
        self._looks = looks
        self._member: EmbeddedServer | None = None
        self.url: str | None = None

    def ready(self, workers: Sequence[WorkerState]) -> None:
        """See ``Announcer``."""
        for server in sorted({one.server for one in workers}) if self._looks else ():
            if server.startswith(_EMBEDDED) and server != _EMBEDDED + MEMORY:
                self._looks = False
                self._say(f"the server is {server}; elsewhere: export ECHOMQ_URL={server}")
                with contextlib.suppress(EchoMQError):  # then it does not outlive the worker, that is all
                    self.keep(server)
        super().ready(workers)

    def keep(self, url: str) -> None:
        """Has the server of this URL run on, if it is an embedded one."""
        if self._member is None and (member := join_embedded(url)) is not None:
            self._member = member
            self.url = member.url if member.name == MEMORY else None

    def close(self) -> None:
        """Lets go of it."""
        if self._member is not None:
            self._member.close()
