"""The programs of docs/coming-from-bullmq.md work as the page says, with both versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.node_peer import FOLDER, VERSIONS, Version
from tests.support.server import Server

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-bullmq.md"
_PROGRAM = re.compile(r"<!-- both ways: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The page's programs, beside a node_modules with the version as plain "bullmq"."""
    version: Version = request.param
    for name, text in _PROGRAM.findall(PAGE.read_text("utf-8")):
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "bullmq").symlink_to(FOLDER / "node_modules" / version)
    return tmp_path


@pytest.fixture
def surroundings(server: Server) -> dict[str, str]:
    return {**os.environ, "ECHOMQ_URL": server.url, "REDIS_PORT": str(server.port)}


@contextmanager
def running(command: list[str], folder: Path, surroundings: dict[str, str]) -> Iterator[None]:
    """A program that works until it is told to stop."""
    with subprocess.Popen(command, cwd=folder, env=surroundings) as process:
        try:
            yield
        finally:
            process.terminate()


def printed(command: list[str], folder: Path, surroundings: dict[str, str]) -> str:
    """What a program prints, which has to end well."""
    return subprocess.run(
        command, cwd=folder, env=surroundings, check=True, timeout=30, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_node_adds_and_python_works(folder: Path, surroundings: dict[str, str]) -> None:
    worker = [sys.executable, "-c", "from echomq.cli import main; main()", "worker", "school:app"]
    with running(worker, folder, {**surroundings, "PYTHONPATH": str(folder)}):
        assert printed(["node", "enroll.mjs"], folder, surroundings) == "{ seat: 'redis-7' }"


def test_python_adds_and_node_works(folder: Path, surroundings: dict[str, str]) -> None:
    with running(["node", "letters.mjs"], folder, surroundings):
        assert printed([sys.executable, "welcome.py"], folder, surroundings) == "{'text': 'Dear learner 7'}"
