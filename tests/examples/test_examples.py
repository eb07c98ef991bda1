"""The proofs of the pattern pages hold: each is run as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PATTERNS = Path(__file__).parents[2] / "examples" / "patterns"

KEY_LINES = {
    "processing_list": (
        "stands in no key of the server: it is lost, and nothing knows it",
        "is still on the server, in active",
        "the next worker did all of them",
    ),
    "at_least_once": (
        "0 payments, and no job: lost",
        "2 payments: the job was not lost, and its effect happened twice",
        "1 payment: delivered at least once, in effect exactly once",
    ),
    "stalled_recovery": (
        "job 1 is in no list: recovery has lost it",
        "job 2 waits for a second worker while the first, alive, runs it",
        "each of the 20 was put back once",
    ),
    "atomic_state_machine": (
        "4 of 5 places to die leave a torn state",
        "the next worker finished what was left",
    ),
    "blocking_not_polling": (
        "sleeping on the marker costs less than a tenth of polling often",
        "the server had handed the job out: it is lost in the reply",
        "with it only a hint was lost: the job stands in wait",
    ),
}


@pytest.mark.parametrize("name", KEY_LINES)
def test_the_proof_holds(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, PATTERNS / f"{name}.py"], capture_output=True, text=True, timeout=55, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in (*KEY_LINES[name], "the claim holds"):
        assert line in ran.stdout, ran.stdout
    assert "BROKEN" not in ran.stdout
    assert "Traceback" not in ran.stderr


def test_every_proof_is_run() -> None:
    scripts = {file.stem for file in PATTERNS.glob("*.py")} - {"stage"}
    assert scripts == set(KEY_LINES)
