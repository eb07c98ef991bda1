"""Says when all is ready, stops and has stopped."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echomq.cli._logs import LogFormat
from echomq.cli.worker.state import WorkerState


def let_no_stream_decide() -> None:
    """What cannot be printed (a full disk, a pipe that nobody reads) changes no exit code: Python would make it 120."""
    atexit.register(_drop_what_is_left)


def _drop_what_is_left() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Announcer:
    """Tells people, programs, and whoever watches a file; whoever cannot be told any more goes without: nothing depends on it.

    Args:
        ready_file: there while every process takes jobs and no event loop is held up.
        as_json: print events as JSON lines.
    """

    def __init__(self, ready_file: Path | None, as_json: bool, log_format: LogFormat) -> None:
        self._ready_file = ready_file
        self._as_json = as_json
        self._log_format = log_format
        self._has_stopped = False

    def ready(self, workers: Sequence[WorkerState]) -> None:
        """All of these workers take jobs: once, and again whenever they were started anew for a change of files."""
        names = [one.name for one in workers]
        self.healthy(True)
        if self._as_json:
            self._print(event="ready", workers=names, pid=os.getpid())
        else:
            self._say(f"ready: {', '.join(names)}")

    def healthy(self, is_healthy: bool) -> None:
        """Lets the file come and go. Called in any thread."""
        if self._ready_file is None:
            return
        try:
            if is_healthy:
                self._ready_file.touch()
            else:
                self._ready_file.unlink(missing_ok=True)
        except OSError as error:
            logging.getLogger("echomq").error("--ready-file %s: %s", self._ready_file, error)

    def stopping(self) -> None:
        """The first signal has come."""
        self._say("stopping: running jobs may finish; a second signal (or Ctrl-C) gives them back at once")

    def stopped(self, code: int) -> None:
        """All has ended. Told once, by whoever comes first: the command, or a thread that ends it."""
        if self._has_stopped:
            return
        self._has_stopped = True
        self.healthy(False)
        if self._as_json:
            self._print(event="stopped", code=code, pid=os.getpid())

    def _print(self, **fields: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(json.dumps(fields), flush=True)  # noqa: T201

    def _say(self, text: str) -> None:
        """Among the lines of the log, in one write, since threads of handlers log meanwhile."""
        if self._log_format is LogFormat.json:
            logging.getLogger("echomq").info("%s", text)
        else:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
