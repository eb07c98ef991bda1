"""What is done around a job that runs in a thread, or in a process of its own, which has no Django yet when it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django
from django.apps import apps
from django.db import close_old_connections


def set_up() -> None:
    """Sets Django up, once."""
    if not apps.ready:
        django.setup()


def run(function: Callable[..., Any], /, **injected: Any) -> Any:
    """Runs a job with connections to the database that are neither broken nor old."""
    set_up()
    close_old_connections()
    try:
        return function(**injected)
    finally:
        close_old_connections()
