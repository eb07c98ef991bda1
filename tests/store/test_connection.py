"""What a ``Connection`` has open in an event loop, and how that begins and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from echomq._redis.embedded import status
from echomq.connection import Connection, Hub, _own_memory_server
from echomq.errors import ServerUnavailable, UnsupportedServer
from echomq.queue import Queue
from tests.support.processes import assert_no_processes, processes_of
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.wait import wait_until


@pytest.fixture
async def hub(proxy: Proxy) -> AsyncIterator[Hub]:
    hub = Connection(proxy.url, connect_timeout=5).acquire()
    yield hub
    await hub.release()


# -- the shared link ---------------------------------------------------------------------------------------------------------


async def test_all_first_users_share_one_attempt(hub: Hub, server: Server) -> None:
    server.cli("CONFIG", "RESETSTAT")
    links = await asyncio.gather(*(hub.link(hash_tag=True) for _ in range(50)))
    assert len(set(map(id, links))) == 1
    assert len(server.clients()) == 1
    stats = server.cli("INFO", "commandstats").decode()
    assert "cmdstat_info:calls=4," in stats  # the server was asked what it is once


async def test_a_cancelled_first_user_leaves_the_attempt_to_the_others(hub: Hub, proxy: Proxy) -> None:
    proxy.black_hole = True
    first, second = (asyncio.create_task(hub.link(hash_tag=True)) for _ in range(2))
    await wait_until(lambda: proxy.connections)
    first.cancel()
    await asyncio.wait([first])
    proxy.black_hole = False
    assert (await second).connected


async def test_a_failed_attempt_is_made_again(hub: Hub, proxy: Proxy) -> None:
    await proxy.stop_listening()
    with pytest.raises(ServerUnavailable):
        await hub.link(hash_tag=True)
    await proxy.listen()
    assert (await hub.link(hash_tag=True)).connected


async def test_closing_ends_an_attempt_under_way(proxy: Proxy) -> None:
    proxy.black_hole = True
    connection = Connection(proxy.url)
    opening = asyncio.create_task(connection.acquire().link(hash_tag=True))
    await wait_until(lambda: proxy.connections)
    await connection.close()
    with pytest.raises(ServerUnavailable, match="the connection was closed while it opened"):
        await opening


async def test_the_link_closes_with_its_last_user(server: Server) -> None:
    connection = Connection(server.url)
    first, second = connection.acquire(), connection.acquire()
    assert first is second
    await first.link(hash_tag=True)
    await first.release()
    assert len(server.clients()) == 1
    await second.release()
    await wait_until(lambda: server.clients() == [])
    again = connection.acquire()
    assert (await again.link(hash_tag=True)).connected
    await again.release()


async def test_a_cluster_needs_the_hash_tag(make_server: Callable[..., Server]) -> None:
    server = make_server("redis", config={"cluster-enabled": "yes"})
    async with Connection(server.url) as connection:
        hub = connection.acquire()
        await hub.link(hash_tag=True)
        with pytest.raises(UnsupportedServer, match="hash_tag is off"):
            await hub.link(hash_tag=False)


async def test_a_part_is_made_once_and_closed_with_the_hub(server: Server) -> None:
    class Part:
        closed = False

        async def close(self) -> None:
            self.closed = True

    hub = Connection(server.url).acquire()
    part = hub.part("p", Part)
    assert hub.part("p", Part) is part
    await hub.release()
    assert part.closed
    with pytest.raises(RuntimeError, match="closed"):
        hub.part("p", Part)


# -- embedded servers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path))
    return tmp_path


async def test_an_embedded_server_that_is_killed_with_its_keeper_comes_back(home: Path) -> None:
    async with Queue("q", connection=Connection("embedded://portal", wait=20)) as queue:
        first = await queue.add("enroll")
        before = processes_of(home / "portal")
        assert sorted(before.values()) == ["keeper", "server"]
        for pid in before:
            with suppress(ProcessLookupError):  # the server ends with its keeper
                os.kill(pid, signal.SIGKILL)
        second = await queue.add("enroll")
        assert [first.id, second.id] == ["1", "2"]
        after = processes_of(home / "portal")
        assert sorted(after.values()) == ["keeper", "server"]
        assert not before.keys() & after.keys()
    assert_no_processes(home / "portal")


@pytest.mark.parametrize("victim", ["keeper", "server"])
async def test_an_embedded_server_with_one_of_its_processes_killed_leaves_none_behind(home: Path, victim: str) -> None:
    async with Queue("q", connection=Connection("embedded://portal", wait=20)) as queue:
        await queue.add("enroll")
        [pid] = [pid for pid, role in processes_of(home / "portal").items() if role == victim]
        os.kill(pid, signal.SIGKILL)
    assert_no_processes(home / "portal")  # though nobody asked it for anything after that


async def test_a_memory_server_whose_keeper_is_killed_comes_back_empty() -> None:
    async with Queue("q", connection=Connection("embedded://memory", wait=20)) as queue:
        assert (await queue.add("enroll")).id == "1"
        folder = _own_memory_server().path
        os.kill(int((folder / "keeper").read_text()), signal.SIGKILL)
        await wait_until(lambda: not processes_of(folder))
        assert (await queue.add("enroll")).id == "1"


async def test_a_memory_server_is_reached_and_put_back_while_handlers_fill_the_executor() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    free = threading.Event()
    handler = asyncio.create_task(asyncio.to_thread(free.wait))
    try:
        async with asyncio.timeout(20), Queue("full", connection=Connection("embedded://memory", wait=20)) as queue:
            assert (await queue.add("enroll")).id == "1"
            folder = _own_memory_server().path
            os.kill(int((folder / "keeper").read_text()), signal.SIGKILL)
            await wait_until(lambda: not processes_of(folder))
            assert (await queue.add("enroll")).id == "1"
        assert not handler.done()
    finally:
        free.set()
        await handler


async def test_a_cancelled_join_leaves_the_server_again(home: Path) -> None:
    hub = Connection("embedded://portal").acquire()
    joining = asyncio.create_task(hub.settings())
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.wait([joining])
    await hub.release()
    await wait_until(lambda: not status("portal").users)
    assert_no_processes(home / "portal")
