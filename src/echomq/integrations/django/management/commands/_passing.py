"""Commands of ``echomq`` as commands of ``manage.py``."""

from __future__ import annotations

import os
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from django.core.management.base import BaseCommand, CommandError, SystemCheckError

TARGET: Final = "echomq.integrations.django.worker"
_OF_DJANGO: Final = ("--settings", "--pythonpath")


class PassingOn(BaseCommand):
    """Hands its arguments on to a command of ``echomq``, which has its own ``--help``."""

    def words(self, given: Sequence[str]) -> list[str]:
        """The words after ``echomq``."""
        raise NotImplementedError

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("words", nargs="*")

    def run_from_argv(self, argv: list[str]) -> None:
        """Called by ``manage.py``, which has read the options of Django's own by now."""
        given = _without_djangos(argv[2:])
        try:
            if "--skip-checks" in given:
                given.remove("--skip-checks")
            elif "--help" not in given:
                self.check()
            self._run(given)
        except SystemCheckError as error:
            self.stderr.write(str(error), lambda text: text)  # which is coloured already
            sys.exit(error.returncode)
        except CommandError as error:
            self.stderr.write(f"CommandError: {error}")
            sys.exit(error.returncode)

    def handle(self, *args: Any, **options: Any) -> str | None:
        """Called by ``call_command``."""
        self._run([*args, *options.get("words", ())])

    def _run(self, given: Sequence[str]) -> NoReturn:
        try:
            import typer as typer
        except ModuleNotFoundError as error:
            raise CommandError(f"this command needs {error.name}: pip install 'echomq[django,cli]'") from None
        # For the processes that it starts: they import what this one imports.
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (sys.path[0], os.environ.get("PYTHONPATH")) if path)
        sys.argv = ["echomq", *self.words(given)]
        runpy.run_module("echomq.cli", run_name="__main__", alter_sys=False)
        raise SystemExit(0)


def _without_djangos(given: Sequence[str]) -> list[str]:
    kept, words = [], iter(given)
    for word in words:
        if word in _OF_DJANGO:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in _OF_DJANGO)):
            kept.append(word)
    return kept
