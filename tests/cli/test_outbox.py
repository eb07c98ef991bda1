"""``echomq outbox``: the relay as a process, and what it says of its table."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from echomq import EchoMQ, JobSpec
from echomq.outbox import Outbox
from tests.support.wait import wait_until

SHOP = """\
import sqlite3
from echomq import EchoMQ
from echomq.outbox import Outbox, Relay

app = EchoMQ()
relay = Relay(Outbox(lambda: sqlite3.connect("shop.db")), app, interval=0.02)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        for statement in Outbox().create_table("sqlite"):
            db.execute(statement)
    return tmp_path


def write(shop: Path, *specs: JobSpec) -> None:
    with closing(sqlite3.connect(shop / "shop.db")) as db:
        Outbox().add(db, *specs, queue="orders")
        db.commit()


def outbox(shop: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "echomq.cli", "outbox", *words],
        cwd=shop, env={**os.environ, "ECHOMQ_URL": url}, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip


async def test_relay_sends_what_is_committed_until_sigterm(shop: Path, url: str) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "echomq.cli", "outbox", "relay", "shop:relay"],
        cwd=shop, env={**os.environ, "ECHOMQ_URL": url}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        write(shop, JobSpec("pack", 1), JobSpec("pack", 2))
        async with EchoMQ(url) as app:
            await wait_until(lambda: app.queue("orders").counts("waiting"), timeout=20)

            async def both() -> bool:
                return (await app.queue("orders").counts("waiting"))["waiting"] == 2

            await wait_until(both, timeout=20)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=30)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 0, said
    assert "relay of echomq_outbox has stopped" in said


def test_status_list_retry_and_discard(shop: Path, url: str) -> None:
    write(shop, JobSpec("pack", 1), JobSpec("pack", 2), JobSpec("pack", 3))
    with closing(sqlite3.connect(shop / "shop.db")) as db:
        db.execute("UPDATE echomq_outbox SET payload = 'nonsense' WHERE id > 1")
        db.commit()
    assert "3 waiting, the oldest for" in outbox(shop, url, "status", "shop:relay").stdout
    sent = outbox(shop, url, "relay", "shop:relay", "--until-empty")
    assert (sent.returncode, "1 sent" in sent.stderr) == (0, True), sent.stderr
    found = json.loads(outbox(shop, url, "list", "shop:relay", "--json").stdout)
    assert [row["id"] for row in found["rows"]] == [2, 3]
    assert "cannot be read" in outbox(shop, url, "list", "shop:relay").stdout
    assert outbox(shop, url, "discard", "shop:relay", "2").stdout == "1 discarded\n"
    assert outbox(shop, url, "retry", "shop:relay").stdout == "1 retried\n"
    assert json.loads(outbox(shop, url, "status", "shop:relay", "--json").stdout)["waiting"] == 1


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("shop", "must be package.module:name"),
        ("shpo:relay", "there is no module 'shpo'"),
        ("shop:rely", "has no attribute 'rely'"),
        ("shop:app", "must name an echomq.outbox.Relay, and is of type EchoMQ"),
    ],
)
def test_wrong_targets_name_the_remedy(shop: Path, url: str, target: str, says: str) -> None:
    shown = outbox(shop, url, "status", target)
    assert (shown.returncode, shown.stdout) == (2, "")
    [line] = shown.stderr.splitlines()
    assert line.startswith("echomq outbox: ")
    assert says in line


def test_what_the_database_says_is_one_line(shop: Path, url: str) -> None:
    (shop / "shop.db").unlink()
    shown = outbox(shop, url, "status", "shop:relay")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "no such table" in shown.stderr
    assert "Traceback" not in shown.stderr
