"""Proves which servers are refused, with which words, and what is learnt about the others."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq._redis.server_info import ServerInfo, check
from echomq.errors import ServerUnavailable, UnsupportedServer
from tests.support.server import Server


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[Link]:
    link = Link(Settings.from_url(url))
    try:
        yield link
    finally:
        await link.close()


@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
async def test_learns_what_the_server_is(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with linked(server.url) as link:
        info = await check(link, hash_tag=False)
    assert info.version is not None
    assert info.version >= (6, 2)
    assert (info.role, info.cluster, info.maxmemory_policy) == ("master", False, "noeviction")
    assert caplog.records == []


async def test_a_replica_is_left_for_a_later_look(make_server: Callable[..., Server]) -> None:
    primary, replica = make_server(), make_server()
    replica.cli("REPLICAOF", "127.0.0.1", primary.port)
    async with linked(replica.url) as link:
        with pytest.raises(ServerUnavailable, match=f"replica of 127.0.0.1:{primary.port}"):
            await check(link, hash_tag=True)
        assert not link.connected
        replica.cli("REPLICAOF", "NO", "ONE")
        assert (await check(link, hash_tag=True)).role == "master"


async def test_a_cluster_needs_hash_tags(make_server: Callable[..., Server]) -> None:
    server = make_server(config={"cluster-enabled": "yes"})
    async with linked(server.url) as link:
        with pytest.raises(UnsupportedServer, match="hash_tag=True"):
            await check(link, hash_tag=False)
        assert (await check(link, hash_tag=True)).cluster is True


async def test_warns_of_a_policy_that_deletes_jobs(
    make_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(config={"maxmemory-policy": "allkeys-lru"})
    async with linked(server.url) as link:
        info = await check(link, hash_tag=True)
    assert info.maxmemory_policy == "allkeys-lru"
    assert [(record.name, record.levelno) for record in caplog.records] == [("echomq", logging.WARNING)]
    assert "allkeys-lru" in caplog.text


async def test_a_user_without_info_passes(make_server: Callable[..., Server]) -> None:
    server = make_server(acl=["user ada on >pw ~* +@all -info"])
    async with linked(server.unix_url_for(user="ada", password="pw")) as link:
        assert await check(link, hash_tag=False) == ServerInfo()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("redis_version:6.0.16", "6.0.16"),
        ("redis_version:5.0.7\r\nredis_mode:standalone", "6.2.0"),
    ],
)
async def test_refuses_an_old_server(facts: str, words: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked(server.url) as link:

        async def answer(*_: object, **__: object) -> list[object]:
            return [f"# Server\r\n{facts}\r\n".encode(), b"", b"role:master\r\n", b"cluster_enabled:0\r\n"]

        monkeypatch.setattr(link, "call_many", answer)
        with pytest.raises(UnsupportedServer, match=words):
            await check(link, hash_tag=True)
