"""The example of a system in two languages, as its README says, with both versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node_peer import FOLDER, VERSIONS
from tests.support.server import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "node_and_python"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_order_goes_through_both(version: str, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "bullmq").symlink_to(FOLDER / "node_modules" / version)
    surroundings = {**os.environ, "ECHOMQ_URL": server.url, "REDIS_PORT": str(server.port)}
    workers = [
        subprocess.Popen(command, cwd=folder, env=surroundings)
        for command in ([sys.executable, "-m", "echomq.cli", "worker", "shop:app"], ["node", "letters.mjs"])
    ]
    try:
        printed = subprocess.run(
            ["node", "order.mjs"],
            cwd=folder,
            env=surroundings,
            check=True,
            timeout=45,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    finally:
        for worker in workers:
            worker.terminate()
        ends = [worker.wait(30) for worker in workers]
    assert printed == "Dear Ada, 3 x tea is 1350 cents.\n"
    assert ends == [0, 0]
