"""The command line. ``echomq --help`` lists what it can do; each command's code is loaded when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

_COMMANDS: Final = {
    "worker": ("echomq.cli.worker", "worker", "Take jobs and run them, until SIGTERM or SIGINT (Ctrl-C)."),
    "dev": ("echomq.cli.dev", "dev", "Work an app while you write it; reloads when a file changes."),
    "health": ("echomq.cli.health", "health", "Ask a worker that was started with --health-port how it does."),
    "queue": ("echomq.cli.queue", "app", "Look at queues; pause, drain, clean, retry, promote, obliterate."),
    "job": ("echomq.cli.job", "app", "Look at jobs; add, retry, promote, cancel, remove, wait for one."),
    "events": ("echomq.cli.events", "events", "Print what happens in queues, or what their logs hold of it."),
    "workers": ("echomq.cli.workers", "workers", "List the workers, and what they run."),
    "top": ("echomq.cli.top", "top", "Show queues and workers, live, on the whole terminal."),
    "doctor": (
        "echomq.cli.doctor",
        "doctor",
        "Find what is not as it should be, and repair it.",
    ),
    "outbox": ("echomq.cli.outbox", "app", "Send what a transactional outbox holds; look at it."),
    "metrics": ("echomq.cli.metrics", "metrics", "Serve queues to Prometheus, until SIGTERM or SIGINT (Ctrl-C)."),
    "demo": ("echomq.cli.demo", "demo", "Enrol learners while workers are killed, and audit the outcome."),
    "bench": ("echomq.cli.bench", "bench", "Measure adding, draining and latency with jobs that do nothing."),
    "server": ("echomq.cli.server", "app", "Look at, start and stop the embedded server (embedded://NAME)."),
}
"""Where each command is, and the line that the list of commands has of it, for which its module need not be loaded."""


def main() -> None:
    """The ``echomq`` command."""
    _open_standard_streams()
    try:
        _main()
    except KeyboardInterrupt:  # Ctrl-C while it loads: commands see to it themselves
        sys.exit(130)


def _open_standard_streams() -> None:
    """Where one of them is closed, its number would go to the first file that is opened, and what is printed into that."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def _main() -> None:
    if sys.argv[1:2] == ["--version"]:
        from importlib.metadata import version

        print(f"echomq {version('echomq')}")  # noqa: T201
        return
    try:
        import rich as rich
        import typer
    except ModuleNotFoundError as error:
        sys.exit(f"the command line needs {error.name}: pip install 'echomq[cli]'")
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="EchoMQ: a reliable job queue on Redis or Valkey.",
    )

    @app.callback()
    def echomq(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        pass  # --version is answered above, before anything is loaded

    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    for name, (module, attribute, line) in _COMMANDS.items():
        if wanted not in _COMMANDS:
            app.command(name, help=line)(_listed)
        elif name == wanted:
            found: Any = getattr(importlib.import_module(module), attribute)
            if isinstance(found, typer.Typer):
                app.add_typer(found, name=name)
            else:
                app.command(name)(found)
    app()


def _listed() -> None:
    """Stands in the list of commands for one that was not called."""
