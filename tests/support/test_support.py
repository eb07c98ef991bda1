"""What the tests stand on: servers start, die and come back as asked and never outlive the tests; leaks are found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from tests.support.leaks import assert_no_clients, assert_no_tasks
from tests.support.server import Kind, Server
from tests.support.wait import wait_until

KINDS: tuple[Kind, ...] = ("valkey", "redis")


@pytest.mark.parametrize("server", KINDS, indirect=True)
def test_shared_server_is_empty_and_answers_on_both_addresses(server: Server) -> None:
    assert server.cli("DBSIZE") == 0
    assert server.cli("SET", "k", "v") == b"OK"
    for url in (server.url, server.tcp_url):
        with redis.Redis.from_url(url) as client:
            assert client.get("k") == b"v"
    # what kind it is
    key = b"server_name" if server.kind == "valkey" else b"redis_version:7"
    assert key in server.cli("INFO", "server")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kill", [False, True])
def test_restart_keeps_addresses_and_appended_data(make_server: Callable[..., Server], kind: Kind, kill: bool) -> None:
    server = make_server(kind, appendonly=True)
    server.cli("SET", "k", "v")
    before = (server.url, server.tcp_url, server.pid)
    server.restart(kill=kill)
    assert server.cli("GET", "k") == b"v"
    assert (server.url, server.tcp_url) == before[:2]
    assert server.pid != before[2]


def test_paused_server_answers_nothing_until_resumed(make_server: Callable[..., Server]) -> None:
    server = make_server()
    server.pause()
    with redis.Redis.from_url(server.url, socket_timeout=0.2, socket_connect_timeout=0.2) as client:
        with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            client.ping()
    server.resume()
    assert server.cli("PING") == b"PONG"
    server.pause()
    server.stop()  # also a paused one ends in an orderly way
    assert not server.is_running


@pytest.mark.parametrize("kind", KINDS)
def test_users_and_passwords(make_server: Callable[..., Server], kind: Kind) -> None:
    server = make_server(kind, password="p@ss/word", acl=["user ada on >s3cret ~emq:* +@all"])
    assert server.cli("PING") == b"PONG"
    with redis.Redis.from_url(server.unix_url_for(user="ada", password="s3cret")) as client:
        client.set("emq:x", 1)
        with pytest.raises(NoPermissionError):
            client.set("other", 1)
    never = Retry(NoBackoff(), 0)
    stranger = redis.Redis(unix_socket_path=str(server.socket_path), retry=never)
    with stranger as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_limits_are_set(make_server: Callable[..., Server]) -> None:
    server = make_server(maxmemory="8mb", maxclients=7, config={"hash-max-listpack-value": "1024"})
    for name, value in {"maxmemory": "8388608", "maxclients": "7", "hash-max-listpack-value": "1024"}.items():
        assert server.cli("CONFIG", "GET", name)[1] == value.encode()


async def test_server_started_in_a_passing_thread_lives_on(make_server: Callable[..., Server]) -> None:
    server = make_server()
    thread = threading.Thread(target=server.restart)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert server.cli("PING") == b"PONG"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_server_dies_with_a_killed_test_process() -> None:
    script = (
        "from tests.support.server import Server; s = Server().start(); print(s.pid, s.folder, flush=True); input()"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        pid, folder = tests.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        tests.kill()
    await wait_until(lambda: not psutil.pid_exists(int(pid)), what="the server has ended")
    subprocess.run(["rm", "-r", folder], check=True)


def test_a_server_that_cannot_start_says_why(make_server: Callable[..., Server]) -> None:
    with pytest.raises(RuntimeError, match="no-such-option"):
        make_server(config={"no-such-option": "1"})


def test_left_connection_is_found(make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.leaks.CLOSING_TIME", 0.05)
    server = make_server()
    assert_no_clients(server)
    with redis.Redis.from_url(server.url, client_name="left-open") as client:
        client.ping()
        with pytest.raises(AssertionError, match="left-open"):
            assert_no_clients(server)
    assert_no_clients(server)


async def test_left_task_is_found() -> None:
    task = asyncio.create_task(asyncio.sleep(60), name="left-running")
    with pytest.raises(AssertionError, match="left-running"):
        await assert_no_tasks()
    task.cancel()
    await assert_no_tasks()


async def test_wait_until_takes_sync_and_async_and_names_what_never_came() -> None:
    async def yes() -> bool:
        return True

    await wait_until(yes)
    start = time.monotonic()
    await wait_until(lambda: time.monotonic() > start + 0.02)
    with pytest.raises(AssertionError, match="godot"):
        await wait_until(lambda: False, timeout=0.02, what="godot")
