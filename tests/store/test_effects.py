"""What ``RedisOnce`` keeps on the server: one key an effect, which always expires."""

from __future__ import annotations

from datetime import timedelta

import pytest

from echomq.errors import BrokenKey
from echomq.idempotency import RedisOnce
from tests.support.server import Server
from tests.support.wait import wait_until

KINDS = pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)


@KINDS
async def test_every_key_expires(url: str, server: Server) -> None:
    async with RedisOnce(url, expire=timedelta(hours=2), lease=30, prefix="shop") as once:
        async with once("k") as effect:
            assert not effect.done
            assert server.cli("KEYS", "*") == [b"shopx::effect:k"]
            assert 0 < server.cli("PTTL", "shopx::effect:k") <= 30_000
        assert server.cli("KEYS", "*") == [b"shopx::effect:k"]
        assert 7_100_000 < server.cli("PTTL", "shopx::effect:k") <= 7_200_000


async def test_lease_that_was_lost_is_told_and_the_result_kept(
    url: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisOnce(url, lease=0.3) as once:
        async with once("k") as effect:
            assert not effect.done
            server.cli("SET", "emqx::effect:k", "Rsomeone", "PX", "5000")
            await wait_until(lambda: "lease of the effect 'k' was lost" in caplog.text)
            effect.result = 1
        async with once("k") as effect:  # it has happened, whoever holds the lease
            assert effect.done
        assert effect.result == 1


@KINDS
async def test_result_is_kept_when_memory_is_full(url: str, server: Server) -> None:
    async with RedisOnce(url) as once:
        try:
            async with once("k") as effect:
                assert not effect.done
                server.cli("CONFIG", "SET", "maxmemory", "1")
                effect.result = "kept"
        finally:
            server.cli("CONFIG", "SET", "maxmemory", "0")
        async with once("k") as effect:
            assert effect.done
        assert effect.result == "kept"


@KINDS
async def test_key_of_another_type_is_left_alone(url: str, server: Server) -> None:
    server.cli("RPUSH", "emqx::effect:k", "x")
    async with RedisOnce(url) as once:
        with pytest.raises(BrokenKey, match="emqx::effect:k must be a string; nothing was changed"):
            await once("k").__aenter__()
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 -- which is not hidden
            async with once("other") as effect:
                assert not effect.done
                server.cli("DEL", "emqx::effect:other")
                server.cli("RPUSH", "emqx::effect:other", "x")
                raise ZeroDivisionError
    for key in ("k", "other"):
        assert server.cli("LRANGE", f"emqx::effect:{key}", "0", "-1") == [b"x"]
