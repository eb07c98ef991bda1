"""Fixtures of the fault tests: worker processes that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rig import Program, StartProgram


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """The file into which this test's worker processes write what they do."""
    return tmp_path / "report"


@pytest.fixture
def start_program(report: Path, tmp_path: Path) -> Iterator[StartProgram]:
    """Starts worker processes: ``start_program(url, concurrency=3)``. What they log is shown when the test fails."""
    started: list[Program] = []
    log = tmp_path / "log"

    def start(url: str, **options: Any) -> Program:
        program = Program(url, report, log, **options)
        started.append(program)
        return program

    yield start
    for program in started:
        program.kill()
    if log.exists():
        print(log.read_text(errors="replace")[-20_000:])  # noqa: T201 - pytest shows it with a failure
