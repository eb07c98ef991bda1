"""A relay that is killed at any moment: each committed job is added once, none that was rolled back."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from echomq import Connection, Job, JobSpec, Keep, Worker
from echomq.outbox import Outbox
from tests.support.wait import wait_until

SHOP = """\
import sqlite3
from echomq import EchoMQ
from echomq.outbox import Outbox, Relay

app = EchoMQ()
relay = Relay(Outbox(lambda: sqlite3.connect("shop.db", timeout=20)), app, batch=3, lease=1, interval=0.01)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=[pytest.mark.torture, pytest.mark.timeout(1800)])])
async def test_relay_killed_at_random_moments(tmp_path: Path, url: str, kills: int) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    outbox = Outbox(lambda: sqlite3.connect(tmp_path / "shop.db", timeout=20))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        for statement in outbox.create_table("sqlite"):
            db.execute(statement)
    runs: Counter[int] = Counter()
    number = 0

    async def run(job: Job[Any]) -> None:
        runs[job.data] += 1

    def write() -> None:
        """Two transactions, of which the second is rolled back."""
        nonlocal number
        with closing(sqlite3.connect(tmp_path / "shop.db", timeout=20)) as db:
            for _ in range(5):
                outbox.add(db, JobSpec("pack", number, remove_on_complete=Keep.NONE), queue="orders")
                number += 1
            db.commit()
            outbox.add(db, JobSpec("pack", -1), queue="orders")
            db.rollback()

    def more_have_run() -> Callable[[], bool]:
        """Writes on until the relay at work has sent something."""
        before = len(runs)

        def look() -> bool:
            write()
            return len(runs) > before

        return look

    def relay() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "echomq.cli", "outbox", "relay", "shop:relay", "--log-level", "error"]
        return subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "ECHOMQ_URL": url})

    async def is_empty() -> bool:
        return (await outbox.status()).waiting == 0

    async with Connection(url) as connection, Worker("orders", run, connection=connection, concurrency=5):
        running = relay()
        try:
            for _ in range(kills):
                await wait_until(more_have_run(), timeout=30)
                await asyncio.sleep(random.random() * 0.03)  # the moment of the kill
                running.kill()
                running.wait()
                running = relay()
            await wait_until(is_empty, timeout=40)
        finally:
            running.kill()
            running.wait()
        await wait_until(lambda: len(runs) == number, timeout=30)
    await outbox.close()
    assert runs == Counter(range(number))
