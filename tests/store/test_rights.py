"""A server whose access list lacks a command that we need: what is missing is named, and nothing is taken for broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from echomq import BrokenKey, Queue, ServerError
from tests.store import scripts as raw
from tests.support.server import Server

BASE = "emq:{orders}:"
Rights = Callable[..., str]


def everything(server: Server) -> raw.Dump:
    with server.client() as client:
        client.response_callbacks.clear()
        return raw.dump(client, BASE + "*")


@pytest.fixture(params=["valkey", "redis"])
def own(request: pytest.FixtureRequest, make_server: Callable[..., Server]) -> Server:
    return make_server(request.param)


@pytest.fixture
def rights(own: Server) -> Rights:
    """Gives the URL of a user who may do all but these commands."""

    def without(*commands: str) -> str:
        lacking = [f"-{command}" for command in commands]
        own.cli("ACL", "SETUSER", "ada", "reset", "on", ">secret", "~*", "&*", "+@all", *lacking)
        return own.tcp_url_for(user="ada", password="secret")

    return without


@pytest.mark.parametrize("command", ["LLEN", "ZCARD", "XLEN", "HMGET"])
async def test_a_command_that_is_denied_is_named_and_nothing_is_changed(
    command: str, own: Server, rights: Rights
) -> None:
    async with Queue("orders", connection=own.tcp_url) as queue:
        await queue.add("pack")
    url = rights(command.lower())
    before = everything(own)
    async with Queue("orders", connection=url) as queue:
        said = rf"the server refuses {command} of emq:\{{orders\}}:.*nothing was changed"
        with pytest.raises(ServerError, match=said) as told:
            await queue.add("pack", delay=1)
    assert told.value.code == "NOPERM"
    assert not isinstance(told.value, BrokenKey)
    assert everything(own) == before


async def test_a_key_that_the_user_may_not_touch_is_named(own: Server) -> None:
    own.cli("ACL", "SETUSER", "ada", "reset", "on", ">secret", "~emqx:*", "&*", "+@all")
    async with Queue("orders", connection=own.tcp_url_for(user="ada", password="secret")) as queue:
        with pytest.raises(ServerError) as told:
            await queue.add("pack")
    assert not isinstance(told.value, BrokenKey)
    assert told.value.code == "NOPERM"


async def test_the_record_of_calls_that_may_not_be_read_is_not_broken(own: Server, rights: Rights) -> None:
    async with Queue("orders", connection=rights("hget")) as queue:
        with pytest.raises(ServerError, match=r"refuses HGET of emqx:\{orders\}:calls") as told:
            await queue.pause()
    assert not isinstance(told.value, BrokenKey)


async def test_jobs_that_a_worker_may_not_read_stay_in_line(own: Server, rights: Rights) -> None:
    async with Queue("orders", connection=own.tcp_url) as queue:
        for _ in range(3):
            await queue.add("pack")
    rights("hgetall")
    with own.client() as client, client.client() as alone:
        alone.execute_command("AUTH", "ada", "secret")
        with pytest.raises(redis.ResponseError, match=r"REFUSED HGETALL of emq:\{orders\}:1"):
            raw.Queue(alone, "orders", prefix="emq").fetch(2)
    assert own.cli("LLEN", BASE + "wait") == 3
    assert own.cli("EXISTS", BASE + "active", BASE + "failed") == 0
    with own.client() as client:
        assert raw.Queue(client, "orders", prefix="emq").fetch(2).ids == ["1", "2"]


async def test_what_a_log_may_not_be_asked_is_told_to_who_writes_it(own: Server, rights: Rights) -> None:
    async with Queue("orders", connection=own.tcp_url) as queue:
        job = await queue.add("pack")
    own.cli("ACL", "SETUSER", "ada", "reset", "on", ">secret", "~*", "&*", "+@all", "-hlen")
    async with Queue("orders", connection=own.tcp_url_for(user="ada", password="secret")) as queue:
        mine = await queue.get_job(job.id)
        assert mine is not None
        with pytest.raises(ServerError, match="refuses HLEN of") as told:
            await mine.log("a line")
    assert not isinstance(told.value, BrokenKey)
    assert own.cli("EXISTS", f"{BASE}{job.id}:logs") == 0
