"""Where the portal lies. There is one copy of it: the demo runs the example that people read."""

from __future__ import annotations

import sys
from pathlib import Path


def folder() -> Path:
    """The folder that holds the package ``portal``: ``examples`` in a checkout, its copy in an installed package."""
    installed = Path(__file__).parents[1] / "_examples"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "examples"


def make_importable() -> None:
    """From here on, ``import portal`` finds the portal, before any other module of that name."""
    path = str(folder())
    if path not in sys.path:
        sys.path.insert(0, path)
