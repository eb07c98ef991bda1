"""The demo's processes. None outlives it, however it ends: they hold the other end of a pipe, and see it close."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from echomq.cli._demo import example


async def spawn(module: str, *arguments: str, url: str, folder: Path, errors: Path, output: bool = False) -> Process:
    """Starts ``python -m module``.

    Args:
        module: of the portal; it knows ``--leash``.
        arguments: of its command line.
        url: the server. It may hold a password, so it goes by the environment, which other users cannot read.
        folder: where it runs.
        errors: the file for what it writes to standard error.
        output: whether its standard output is to be read.
    """
    path = os.pathsep.join(filter(None, [str(example.folder()), os.environ.get("PYTHONPATH")]))
    with errors.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", module, *arguments, "--leash"),  # -P: the current folder is not to be imported from
            stdin=PIPE,  # nothing is written to it: it is the leash
            stdout=PIPE if output else log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "ECHOMQ_URL": url},
            # A group of its own, so that Ctrl-C reaches the demo alone; in the demo's session, so that a frozen child
            # whose parent has gone gets SIGHUP.
            process_group=0,
        )


def has_ended(process: Process) -> bool:
    """Whether the process has ended."""
    return process.returncode is not None


def send(process: Process, number: signal.Signals) -> None:
    """Sends the process a signal, unless it has ended.

    Not by the process's own methods: those look first whether it has ended, and then the event loop never hears how.
    """
    if not has_ended(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            pass  # it ended just now


async def end(process: Process) -> None:
    """Kills the process, and returns when it has ended."""
    send(process, signal.SIGKILL)
    await process.wait()


def last_words(errors: Path) -> str:
    """The end of what a process wrote to standard error."""
    text = errors.read_text(errors="replace") if errors.exists() else ""
    return text[-2000:].strip() or "it said nothing"
