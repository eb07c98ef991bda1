"""``echomq bench``: it measures, says what it measured, and leaves nothing. How fast it is, is no test's matter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.server import Server


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "echomq.cli", "bench", *words], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
def test_it_prints_one_object_and_removes_its_queue(server: Server) -> None:
    server.cli("SET", "mine", "stays")
    out = json.loads(run("--jobs", "500", "--concurrency", "20", "--url", server.url, "--json").stdout)
    assert (out["jobs"], out["concurrency"]) == (500, 20)
    rates = ("add_per_second", "add_in_bulk_per_second", "drain_per_second", "latency_p50_ms", "latency_p99_ms")
    assert all(out[rate] > 0 for rate in rates)
    assert out["latency_p50_ms"] <= out["latency_p99_ms"]
    assert server.cli("KEYS", "*") == [b"mine"]


def test_without_a_url_it_has_a_server_of_its_own() -> None:
    lines = run("--jobs", "100").stdout.splitlines()
    assert lines[0].startswith("embedded://memory: 100 jobs")
    for line, word in zip(lines[1:], ("add one by one", "add in bulk", "drain", "pick-up latency"), strict=True):
        assert line.startswith(word)


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    done = run("--url", "redis://127.0.0.1:1/0", code=1)
    assert done.stdout == ""
    assert done.stderr.startswith("echomq bench: ")
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
