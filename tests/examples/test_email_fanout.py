"""The newsletter, run as a reader would run it; and its own tests, with pytest's plugin as a project would use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "email_fanout"


def run(*command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ECHOMQ_"))}
    ran = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def test_everybody_gets_one_mail() -> None:
    assert "100 mails were sent to 100 readers" in run("fanout.py", "100")


def test_its_own_tests() -> None:
    own = ("-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-p", "no:valkey", "-p", "no:asyncio")
    said = run("-m", "pytest", *own)
    assert "3 passed" in said
    assert "left" not in said
