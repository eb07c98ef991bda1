"""``echomq server``: what people and scripts see."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from echomq._redis.embedded import join, stop
from echomq.cli.server import app


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path))
    monkeypatch.delenv("ECHOMQ_SERVER", raising=False)
    yield tmp_path
    for folder in tmp_path.iterdir():
        stop(folder.name, force=True)


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


def run_json(*words: str, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code).stdout)


def test_path_prints_the_folder_whether_it_exists_or_not(home: Path) -> None:
    assert run("path", "orders").stdout == f"{home / 'orders'}\n"
    assert run_json("path") == {"name": "default", "path": str(home / "default")}
    assert list(home.iterdir()) == []


def test_a_server_is_started_looked_at_and_stopped(home: Path) -> None:
    started = run_json("start", "orders", "--fsync", "always")
    assert started["running"]
    assert started["kept"]
    assert started["fsync"] == "always"
    seen = run_json("status", "orders")
    assert (seen["pid"], seen["state"], seen["path"]) == (started["pid"], "ready", str(home / "orders"))
    assert "runs without users until it is stopped" in run("status", "orders").stdout
    assert run("stop", "orders").stdout == "orders: stopped\n"
    assert not run_json("status", "orders", code=3)["running"]
    assert "not running" in run("status", "orders", code=3).stdout
    assert run("stop", "orders").stdout == "orders: not running\n"
    assert run_json("stop", "orders") == {"name": "orders", "ending": "not running", "users": []}


def test_servers_are_listed(home: Path) -> None:
    assert "there is no embedded server yet" in run("list").stderr
    assert run_json("list") == {"servers": []}
    run("start", "orders")
    run("start", "mails")
    run("stop", "mails")
    mails, orders = run("list").stdout.splitlines()
    assert mails.split() == ["embedded://mails", "not", "running", str(home / "mails")]
    assert orders.split() == ["embedded://orders", "running", str(home / "orders")]
    assert [(one["name"], one["running"]) for one in run_json("list")["servers"]] == [
        ("mails", False),
        ("orders", True),
    ]


def test_a_server_that_runs_keeps_the_stricter_fsync_and_says_so() -> None:
    run("start", "orders", "--fsync", "always")
    said = run("start", "orders", "--fsync", "everysec")
    assert "orders: keeps fsync always" in said.stderr
    assert "keeps fsync" not in run("start", "orders").stderr
    assert "keeps fsync" not in run("start", "orders", "--fsync", "always").stderr
    assert run_json("status", "orders")["fsync"] == "always"


def test_a_server_in_use_is_stopped_by_force_only() -> None:
    with join("orders") as server:
        assert str(os.getpid()) in run("stop", "orders", code=1).stderr
        assert run_json("status", "orders")["users"] == [os.getpid()]
        in_use = {"name": "orders", "ending": "in use", "users": [os.getpid()]}
        assert run_json("stop", "orders", code=1) == in_use
        assert run("stop", "orders", "--force").stdout == (
            f"orders: stopped; it was in use by process {os.getpid()}, and one that goes on working starts it again\n"
        )
        assert server.pid is None or not run_json("status", "orders", code=3)["running"]


def test_a_server_that_never_was_is_not_running(home: Path) -> None:
    seen = run_json("status", "orders", code=3)
    assert (seen["running"], seen["version"], seen["path"]) == (False, None, str(home / "orders"))
    assert list(home.iterdir()) == []


def test_an_error_is_one_line_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run("path", "a b", code=2).stderr
    assert refused.startswith("echomq server path: ")
    assert "choose such a name" in refused
    assert run("start", "a b", code=2).stderr.startswith("echomq server start: ")
    monkeypatch.setenv("ECHOMQ_SERVER", "/nowhere/valkey-server")
    assert "set ECHOMQ_SERVER" in run("start", "orders", code=1).stderr
