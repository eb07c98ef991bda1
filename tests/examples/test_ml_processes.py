"""The example of a model in processes, run as its reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "ml_processes"


def test_letters_are_sorted_and_a_crash_costs_an_attempt() -> None:
    ran = subprocess.run(
        [sys.executable, "mailroom.py"], cwd=FOLDER, capture_output=True, text=True, timeout=55, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == [
        "trained: letters",
        "sorted: ['praise', 'complaint', 'question'], 60 letters",
        "beside the worker: True, in at most 2 processes: True",
        "killed: TimeoutError: the run took longer than its timeout of 0.5 s",
        "a crash cost an attempt: ran the second time",
    ]
