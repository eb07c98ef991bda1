"""Names of hosts are looked up whatever else the process does, and each address of a host gets its part of the time."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from echomq._redis import dial
from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._redis.heartbeat import HeartbeatLink
from echomq.errors import ServerUnavailable
from tests.support.server import Server
from tests.support.wait import wait_until

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
KINDS = [*LOOPS, "heartbeat"]
NAME = "several.example"
Names = Callable[..., None]


def ping(kind: str, url: str, *, timeout: float = 5.0) -> None:
    """Connects with a link of this kind, and has the server answer."""
    settings = Settings.from_url(url)
    if kind == "heartbeat":
        heartbeat = HeartbeatLink(settings, connect_timeout=timeout)
        try:
            assert heartbeat.call("PING", timeout=60) == b"PONG"
        finally:
            heartbeat.close()
        return

    async def main() -> None:
        link = Link(settings, connect_timeout=timeout)
        try:
            assert await link.call("PING") == b"PONG"
        finally:
            await link.close()

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        runner.run(main())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Gives the name these addresses of IPv4."""
    real = socket.getaddrinfo

    def give(*addresses: str) -> None:
        def look_up(host: str, port: int, *args: Any, **more: Any) -> Any:
            if host != NAME:
                return real(host, port, *args, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return give


@contextmanager
def silent(address: str, port: int) -> Iterator[None]:
    """Nobody answers there: whoever listens takes no connection."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((address, port))
        yield


# -- addresses -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_address_leaves_time_for_the_next(kind: str, server: Server, names: Names) -> None:
    names("127.0.0.2", "127.0.0.1")
    with silent("127.0.0.2", server.port):
        started = time.monotonic()
        ping(kind, f"redis://{NAME}:{server.port}", timeout=3)
        assert time.monotonic() - started >= 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_an_address_that_refuses_costs_no_time(kind: str, server: Server, names: Names) -> None:
    names("127.0.0.3", "127.0.0.4", "127.0.0.1")
    ping(kind, f"redis://{NAME}:{server.port}", timeout=60)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_tells_of_each_address(kind: str, server: Server, names: Names) -> None:
    names("127.0.0.2", "127.0.0.3")
    url = f"redis://{NAME}:{server.port}"
    refused = r"127\.0\.0\.3: \[Errno \d+\] Connection refused; is the server running there"
    with pytest.raises(ServerUnavailable, match=rf"127\.0\.0\.2: \[Errno \d+\] Connection refused; {refused}"):
        ping(kind, url)
    with silent("127.0.0.2", server.port):
        with pytest.raises(ServerUnavailable, match=rf"127\.0\.0\.2: no answer; {refused}"):
            ping(kind, url, timeout=0.4)
        names("127.0.0.2", "127.0.0.2")
        with pytest.raises(ServerUnavailable, match=r"no answer within 0\.2 s$"):
            ping(kind, url, timeout=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_has_to_be_that_of_the_name(kind: str, tls_url: str, certificate: Path) -> None:
    named = tls_url.replace("127.0.0.1", "localhost")  # the certificate is for the address alone
    ping(kind, f"{tls_url}?ssl_ca_certs={certificate / 'cert.pem'}")
    ping(kind, f"{named}?ssl_ca_certs={certificate / 'cert.pem'}&ssl_check_hostname=false")
    with pytest.raises(ServerUnavailable, match="certificate is not valid for 'localhost'"):
        ping(kind, f"{named}?ssl_ca_certs={certificate / 'cert.pem'}")


# -- names -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_a_name_is_looked_up_while_handlers_fill_the_executor(loop: str, server: Server) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        free = threading.Event()
        handler = asyncio.create_task(asyncio.to_thread(free.wait))
        link = Link(Settings.from_url(f"redis://localhost:{server.port}"), connect_timeout=3)
        try:
            assert await link.call("PING") == b"PONG"
            assert not handler.done()
        finally:
            free.set()
            await handler
            await link.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


class Hanging:
    """Lookups that end when they are let go, and then fail."""

    def __init__(self) -> None:
        self.begun = 0
        self.let_go = threading.Event()

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.begun += 1
        self.let_go.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    found = Hanging()
    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(dial, "_lookups", {})
    yield found
    found.let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("echomq lookup"):
            thread.join(10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lookup_that_hangs_is_bound_by_the_deadline(kind: str, hanging: Hanging) -> None:
    started = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"no answer within 0\.2 s"):
        ping(kind, f"redis://{NAME}", timeout=0.2)
    assert time.monotonic() - started < 5


async def test_lookups_that_hang_are_shared_and_few(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        link = Link(Settings.from_url(f"redis://{NAME}"), connect_timeout=0.02)
        with pytest.raises(ServerUnavailable, match="no answer"):
            await link.connect()
        await link.close()

    await asyncio.gather(*(fails() for _ in range(20)))
    await fails()
    assert hanging.begun == 1
    monkeypatch.setattr(dial, "_SHARED_FOR", 0.0)
    for _ in range(20):
        await fails()
    assert hanging.begun == dial._MOST_AT_ONCE


@pytest.mark.parametrize("how", ["drop", "close"])
async def test_a_link_is_dropped_and_closed_while_a_name_is_looked_up(hanging: Hanging, how: str) -> None:
    link = Link(Settings.from_url(f"redis://{NAME}"))
    caller = asyncio.create_task(link.call("PING"))
    await wait_until(lambda: hanging.begun)
    if how == "drop":
        link.drop("as the test wants")
    await link.close()
    with pytest.raises(ServerUnavailable, match="dropped"):
        await caller


async def test_who_is_cancelled_takes_the_answer_from_nobody_else(hanging: Hanging) -> None:
    links = [Link(Settings.from_url(f"redis://{NAME}")) for _ in range(2)]
    first, second = [asyncio.create_task(link.connect()) for link in links]
    await wait_until(lambda: hanging.begun)
    links[0].drop("as the test wants")
    with pytest.raises(ServerUnavailable, match="dropped"):
        await first
    hanging.let_go.set()
    with pytest.raises(ServerUnavailable, match=r"name resolution; is the name of the host right\?"):
        await second
    assert hanging.begun == 1
    for link in links:
        await link.close()


def test_an_answer_that_comes_after_the_event_loop_has_ended_is_nobodys(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        link = Link(Settings.from_url(f"redis://{NAME}"))
        connecting = asyncio.create_task(link.connect())
        await wait_until(lambda: hanging.begun)
        connecting.cancel()

    asyncio.run(main())
    hanging.let_go.set()
    [lookups] = dial._lookups.values()
    for _, answer in lookups:
        assert isinstance(answer.exception(10), socket.gaierror)
    assert caplog.records == []


PROGRAM = """
import asyncio, socket, time
from echomq import Connection, Queue, ServerUnavailable

socket.getaddrinfo = lambda *args, **more: time.sleep(600)

async def main():
    async with Queue("q", connection=Connection("redis://hangs.example", wait=0, connect_timeout=0.2)) as queue:
        try:
            await queue.add("paint")
        except ServerUnavailable:
            print("given up")

asyncio.run(main())
"""


def test_a_lookup_that_hangs_keeps_no_process_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=25)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("given up\n", "", 0)
