"""Proves what is read from a URL or a redis-py client, and that what is wrong is refused without showing a password."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import UsernamePasswordCredentialProvider

from echomq._redis.connect import Settings
from echomq.errors import InvalidOption


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", Settings()),
        ("redis://shop.example", Settings(host="shop.example")),
        ("redis://h:7000/3", Settings(host="h", port=7000, db=3)),
        ("redis://h/1?db=5", Settings(host="h", db=5)),
        ("redis://:p%40ss@h", Settings(host="h", password="p@ss")),
        ("redis://ada:p%2Fw%23@h", Settings(host="h", username="ada", password="p/w#")),
        ("redis://[::1]:6380/0", Settings(host="::1", port=6380)),
        ("redis://h?socket_timeout=3&protocol=3&decode_responses=True", Settings(host="h")),
        ("rediss://h", Settings(host="h", tls=())),
        (
            "rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
            Settings(host="h", tls=(("ssl_ca_certs", "/ca.pem"), ("ssl_check_hostname", False))),
        ),
        ("unix:///run/s.sock", Settings(path="/run/s.sock")),
        ("unix://ada:pw@/run/s.sock?db=2", Settings(path="/run/s.sock", username="ada", password="pw", db=2)),
        ("unix:///run/s.sock?password=pw", Settings(path="/run/s.sock", password="pw")),
    ],
)
def test_reads_a_url(url: str, expected: Settings) -> None:
    assert Settings.from_url(url) == expected
    assert hash(Settings.from_url(url)) == hash(expected)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://h", "redis://"),
        ("localhost:6379", "redis://"),
        ("", "redis://"),
        ("redis+sentinel://h/mymaster", "not supported yet"),
        ("redis+cluster://h", "not supported yet"),
        ("redis://h:notaport", "percent-encoded"),
        ("redis://h:70000", "percent-encoded"),
        ("redis://h:0x", "percent-encoded"),
        ("redis://h/shop", "no database number"),
        ("redis://h?db=x", "wrong kind"),
        ("redis://h?db=-1", "database"),
        ("redis://h?colour=red", "colour"),
        ("redis://h?ssl_ca_certs=/ca.pem", "rediss://"),
        ("rediss://h?ssl_colour=red", "ssl_colour"),
        ("unix://", "names no socket"),
        ("redis://:secret#word@h:1", "percent-encoded"),
        ("redis://:secret/word@h:1/0", "percent-encoded"),
        ("redis://ada:12/secret@h:1/0", "percent-encode"),
        ("redis://ada:12?secret@h:1/0", "percent-encode"),
        ("redis://:12#secret@h", "%23"),
        ("redis://ada:secret@h:notaport", "percent-encoded"),
        ("redis://h:x?password=secret", "percent-encoded"),
        ("rediss://h?ssl_password=secret&colour=red", "colour"),
    ],
)
def test_refuses_a_bad_url_and_hides_the_password(url: str, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Settings.from_url(url)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "word" not in str(caught.value).replace("password", "")
    assert caught.value.__cause__ is None


def test_refuses_what_is_no_text() -> None:
    with pytest.raises(InvalidOption, match="int"):
        Settings.from_url(6379)  # type: ignore[arg-type]


@pytest.mark.parametrize("library", [redis, redis.asyncio])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Settings()),
        (
            {"host": "h", "port": 7000, "db": 2, "username": "ada", "password": "pw", "decode_responses": True},
            Settings(host="h", port=7000, db=2, username="ada", password="pw"),
        ),
        ({"unix_socket_path": "/run/s.sock", "db": 1}, Settings(path="/run/s.sock", db=1)),
        ({"host": "h", "password": b"pw", "socket_timeout": 1}, Settings(host="h", password="pw")),
    ],
)
def test_takes_the_settings_of_a_client(library: Any, options: dict[str, Any], expected: Settings) -> None:
    assert Settings.from_client(library.Redis(**options)) == expected


@pytest.mark.parametrize("library", [redis, redis.asyncio])
def test_takes_the_tls_settings_of_a_client(library: Any) -> None:
    client = library.Redis(host="h", ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False)
    context = Settings.from_client(client).tls_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_NONE
    assert context.check_hostname is False


@pytest.mark.parametrize("library", [redis, redis.asyncio])
def test_tls_verifies_by_default(library: Any) -> None:
    for settings in (Settings.from_client(library.Redis(ssl=True)), Settings.from_url("rediss://h")):
        context = settings.tls_context()
        assert context is not None
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname is True


async def test_takes_the_credential_provider_of_a_client() -> None:
    provider = UsernamePasswordCredentialProvider("ada", "pw")
    settings = Settings.from_client(redis.Redis(credential_provider=provider))
    assert settings.credentials() == ("ada", "pw")
    assert await settings.credentials_async() == ("ada", "pw")
    assert hash(settings) == hash(Settings(credential_provider=provider))


class _Own(redis.Connection):
    """Reaches its server in a way of its own, for all we know."""


@pytest.mark.parametrize(
    "client",
    [
        "redis://h",
        None,
        redis.Redis(connection_pool=redis.ConnectionPool(connection_class=_Own)),
        redis.Redis(connection_pool=redis.ConnectionPool(redis_connect_func=print)),
        redis.sentinel.Sentinel([("h", 1)]).master_for("mymaster"),
    ],
)
def test_refuses_a_client_whose_way_of_connecting_is_not_known(client: object) -> None:
    with pytest.raises(InvalidOption, match="URL"):
        Settings.from_client(client)


def test_never_shows_a_password() -> None:
    settings = Settings.from_url("rediss://ada:secret@h?ssl_password=secret") if _knows_ssl_password() else Settings(
        password="secret"
    )  # fmt: skip
    assert "secret" not in repr(settings)
    assert "secret" not in settings.where


def _knows_ssl_password() -> bool:
    return int(redis.__version__.split(".")[0]) >= 7


def test_says_where_the_server_is() -> None:
    assert Settings.from_url("redis://127.0.0.1:6379").where == "127.0.0.1:6379/0"
    assert Settings.from_url("redis://[::1]/2").where == "[::1]:6379/2"
    assert Settings.from_url("unix:///run/s.sock?db=1").where == "unix:///run/s.sock?db=1"
