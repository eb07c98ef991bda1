"""Which files have changed."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from echomq.cli.worker.target import refuse


def changes(folders: Sequence[Path], command: str) -> AsyncIterator[str]:
    """The names of Python files in these folders that have changed, each time that some have."""
    try:
        from watchfiles import PythonFilter, awatch
    except ModuleNotFoundError:
        refuse("watchfiles, which sees files change, is not installed: pip install 'echomq[cli]'", command)
    for folder in folders:
        if not folder.exists():
            refuse(f"--reload-dir {folder}: there is no such folder", command)

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # what has changed we say ourselves
    here = f"{Path.cwd()}{os.sep}"

    async def watch() -> AsyncIterator[str]:
        async for found in awatch(*folders, watch_filter=PythonFilter(), debounce=400, step=50):
            yield ", ".join(sorted({path.removeprefix(here) for _, path in found})[:5])

    return watch()
