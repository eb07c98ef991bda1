"""``echomq demo``: it kills what it says it kills, loses nothing, says so, and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from typer.testing import CliRunner

from echomq.cli.demo import demo
from tests.support.server import Server
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "echomq.cli", "demo")


def run_json(*words: str, **environment: str) -> dict[str, Any]:
    ended = subprocess.run(
        [*COMMAND, "--json", *words], capture_output=True, text=True, timeout=55, env={**os.environ, **environment}
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def test_nothing_is_lost_but_by_the_plain_list() -> None:
    report = run_json("--jobs", "600", "--workers", "3", "--kills", "2", "--seed", "7")
    assert report["clean"] is True
    assert report["jobs"] == report["valid_rows"] == report["finished"] == 600
    assert report["rows"] >= 600
    assert report["kills"] == 2
    assert report["freezes"] == 1
    assert report["redelivered"] >= 3  # each of them held at least one job
    assert report["seed"] == 7
    assert [report[name] for name in ("duplicate_effects", "over_limit", "torn", "lost", "failed")] == [0] * 5
    assert 0 < report["effects"] < 600
    assert report["effects"] + report["already_enrolled"] + report["course_full"] == 600
    assert report["naive_kills"] >= 2
    assert 0 < report["naive_lost"] <= report["naive_kills"]
    assert 0 < report["seconds"] < 55


def test_a_roster_and_a_server_of_the_user(server: Server, tmp_path: Path) -> None:
    server.cli("SET", "mine", "1")
    path = tmp_path / "mine.csv"
    path.write_text("learner,course,seats\n1,redis,2\n2,redis,2\n2,redis,2\n3,redis,2\nx,redis,2\n")
    report = run_json("--input", str(path), "--url", server.tcp_url, "--workers", "1", "--kills", "1")
    assert (report["rows"], report["valid_rows"], report["effects"]) == (5, 4, 2)
    assert report["already_enrolled"] + report["course_full"] == 2
    assert report["redelivered"] >= report["kills"]  # so few jobs may be done before the kill finds its worker at work
    assert server.cli("KEYS", "*") == [b"mine"]


def test_an_embedded_server_without_a_name_is_the_default_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("learner,course,seats\n1,redis,2\n")
    home = tmp_path / "home"
    words = ("--input", str(path), "--url", "embedded://", "--workers", "1", "--kills", "0")
    assert run_json(*words, ECHOMQ_HOME=str(home))["clean"]
    assert [folder.name for folder in home.iterdir()] == ["default"]


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A demo that has just frozen a worker, and its processes."""
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while "SIGSTOP" not in said:
            line = process.stdout.readline()
            assert line, f"the demo ended early: {said}"
            said += line
        children = psutil.Process(process.pid).children(recursive=True)
        try:
            yield process, children
        finally:
            process.kill()
            process.stdout.read()


async def all_gone(processes: list[psutil.Process]) -> None:
    await wait_until(lambda: not any(is_there(process) for process in processes), what=f"{processes} have ended")


def is_there(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_everything(server: Server, number: signal.Signals) -> None:
    with running("--url", server.url, "--jobs", "3000") as (process, children):
        assert any(child.status() == psutil.STATUS_STOPPED for child in children)
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        await all_gone(children)
    assert server.cli("KEYS", "*") == []


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_a_killed_demo_leaves_no_process_not_even_a_frozen_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # it cannot remove its folder any more
    with running("--jobs", "3000") as (process, children):
        assert any(child.status() == psutil.STATUS_STOPPED for child in children)
        process.kill()
        process.wait(20)
        await all_gone(children)


async def test_a_server_that_dies_and_comes_back_costs_nothing(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    with running("--url", server.url, "--jobs", "300", "--kills", "1") as (process, _):
        server.restart(kill=True)
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(20) == 0, said
        assert "The audit is clean" in said
    assert server.cli("KEYS", "*") == []


def test_the_wheel_brings_the_portal(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])",
            tmp_path,
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = (
        "from echomq.cli._demo import example; example.make_importable(); import portal.seats as s; print(s.__file__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(installed)
    report = run_json("--jobs", "10", "--workers", "1", "--kills", "1", PYTHONPATH=str(installed))
    assert (report["clean"], report["kills"]) == (True, 1)


def refused(*words: str) -> str:
    app = typer.Typer()
    app.command()(demo)
    result = CliRunner().invoke(app, words, env={"TERM": "dumb", "COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "0"], "'--workers'"),
        (["--jobs", "0"], "'--jobs'"),
        (["--kills", "-1"], "'--kills'"),
        (["--seed", "seven"], "'--seed'"),
        (["--input", "/nowhere/roster.csv"], "/nowhere/roster.csv: cannot be read: No such file"),
        (["--url", "http://example.org"], "its scheme is http"),
        (["--url", "redis://127.0.0.1:1"], "cannot connect"),
        (["--url", "embedded://not/a/name"], "embedded://"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(words: list[str], message: str) -> None:
    assert message in refused(*words)


def test_a_roster_must_have_its_columns_and_enough_rows(tmp_path: Path) -> None:
    path = tmp_path / "roster.csv"
    path.write_text("learner,room\n7,12\n")
    assert "has no column 'course'" in refused("--input", str(path))
    path.write_text("")
    assert "is empty" in refused("--input", str(path))
    path.write_text("learner,course\n7,redis\n")
    assert "are 1; ask for at most that many" in refused("--input", str(path), "--jobs", "2")
