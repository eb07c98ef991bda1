"""The command line. ``echomq --help`` lists what it can do; each command's code is loaded when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

_COMMANDS: Final = {
    "worker": ("echomq.cli.worker", "worker"),
    "metrics": ("echomq.cli.metrics", "metrics"),
    "demo": ("echomq.cli.demo", "demo"),
    "bench": ("echomq.cli.bench", "bench"),
    "server": ("echomq.cli.server", "app"),
}


def main() -> None:
    """The ``echomq`` command."""
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
    for name in [wanted] if wanted in _COMMANDS else list(_COMMANDS):
        module, attribute = _COMMANDS[str(name)]
        found: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    app()
