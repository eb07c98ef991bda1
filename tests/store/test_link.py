"""Proves what a ``Link`` promises about each call: sent or not, answered or not, and by whom its reply is received."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis
import redis.asyncio
import uvloop

from echomq._redis.client import Link
from echomq._redis.connect import Settings
from echomq.errors import ConnectionLost, InvalidOption, ServerError, ServerUnavailable
from tests.support.server import Server
from tests.support.wait import wait_until

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@asynccontextmanager
async def linked(
    url: str, *, client_name: str | None = None, connect_timeout: float = 5.0, reply_timeout: float = 10.0
) -> AsyncIterator[Link]:
    link = Link(
        Settings.from_url(url), client_name=client_name, connect_timeout=connect_timeout, reply_timeout=reply_timeout
    )
    try:
        yield link
    finally:
        await link.close()


class Peer:
    """A server that says what the test wants: ``PONG`` to the greeting, then what ``answer`` gives for each request."""

    def __init__(self, answer: Callable[[bytes], bytes], greeting: bytes = b"+PONG\r\n") -> None:
        self.connections = 0
        self._answer = answer
        self._greeting = greeting
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            # One round for the handlers to see that their connections have gone.
            await wait_until(lambda: all(writer.transport.is_closing() for writer in self._writers))
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        if await reader.read(65536):
            writer.write(self._greeting)
        while data := await reader.read(65536):
            writer.write(self._answer(data))


# -- the four kinds of connection --------------------------------------------------------------------------------------


async def _scenario(url: str, server: Server) -> None:
    async with linked(url, client_name="a-name") as link:
        assert await link.call("SET", "k", 1) == b"OK"
        assert await link.call("GET", "k") == b"1"
        assert await link.call("GET", "absent") is None
        assert await link.call("INCRBY", "k", 41) == 42
        big = random.Random(1).randbytes(5_000_000)
        replies = await asyncio.gather(*(link.call("ECHO", big[: 1_000_000 * n]) for n in range(1, 6)))
        assert [len(reply) for reply in replies if isinstance(reply, bytes)] == [1_000_000 * n for n in range(1, 6)]
        assert replies[-1] == big
        assert any("name=a-name" in line for line in server.clients())
    assert not link.connected


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_works_over(way: str, loop: str, server: Server) -> None:
    url = server.tcp_url_for(db=3) if way == "tcp" else server.unix_url_for(db=3)
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(_scenario(url, server))
    assert server.cli("GET", "k", db=3) == b"42"


@pytest.mark.parametrize("loop", LOOPS)
def test_works_over_tls(loop: str, tls_url: str, certificate: Path) -> None:
    async def scenario() -> None:
        async with linked(f"{tls_url}?ssl_ca_certs={certificate / 'cert.pem'}") as link:
            big = bytes(3_000_000)
            assert await asyncio.gather(*(link.call("ECHO", big) for _ in range(3))) == [big] * 3
        async with linked(tls_url) as stranger:
            with pytest.raises(ServerUnavailable, match="certificate") as caught:
                await stranger.call("PING")
            assert isinstance(caught.value.__cause__, ssl.SSLError)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


# -- who gets which reply ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_every_reply_belongs_to_its_caller_whoever_is_cancelled(loop: str, server: Server) -> None:
    dice = random.Random(20)

    async def caller(link: Link, number: int, wrong: list[object]) -> int:
        done = 0
        for turn in range(10):
            value = f"{number}:{turn}:".encode() + b"x" * dice.choice([1, 100, 300_000])
            reply = await link.call("ECHO", value)
            if reply != value:
                wrong.append((value[:20], reply))
            done += 1
        return done

    async def scenario() -> None:
        wrong: list[object] = []
        async with linked(server.url) as link:
            ident = await link.call("CLIENT", "ID")
            callers = [asyncio.create_task(caller(link, number, wrong)) for number in range(100)]
            cancelled = dice.sample(callers, 50)
            await link.call("CLIENT", "PAUSE", 50)
            for victim in cancelled:
                victim.cancel()
                await asyncio.sleep(0)
            results = await asyncio.gather(*callers, return_exceptions=True)
            assert wrong == []
            assert [r for r in results if not isinstance(r, asyncio.CancelledError)] == [10] * (
                100 - sum(task.cancelled() for task in callers)
            )
            assert sum(task.cancelled() for task in callers) >= 40
            assert await link.call("CLIENT", "ID") == ident, "a cancelled caller cost the connection"

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


async def test_many_commands_keep_their_order_and_their_errors(server: Server) -> None:
    async with linked(server.url) as link:
        await link.call("SET", "text", "a")
        replies = await link.call_many([("INCR", "n"), ("INCR", "text"), ("GET", "text"), ("NOSUCH",)])
        assert replies[0] == 1
        assert isinstance(replies[1], ServerError)
        assert replies[2] == b"a"
        assert isinstance(replies[3], ServerError)
        assert await link.call_many([]) == []
        assert await link.call("INCR", "n") == 2


async def test_a_cancelled_batch_leaves_the_line_in_order(server: Server) -> None:
    async with linked(server.url) as link:
        await link.connect()
        server.cli("CLIENT", "PAUSE", 100)
        batch = asyncio.create_task(link.call_many([("ECHO", n) for n in range(50)]))
        after = asyncio.create_task(link.call("ECHO", "mine"))
        await asyncio.sleep(0)
        batch.cancel()
        assert await after == b"mine"
        assert batch.cancelled()


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["valkey", "redis"], indirect=True)
async def test_a_script_error_keeps_its_whole_text(server: Server) -> None:
    async with linked(server.url) as link:
        await link.call("SET", "k", "text")
        with pytest.raises(ServerError) as caught:
            await link.call("EVAL", "return redis.call('LPUSH', KEYS[1], 1)", 1, "k")
        assert caught.value.code == "WRONGTYPE"
        assert "script: " in str(caught.value)
        assert "user_script:1" in str(caught.value)
        with pytest.raises(ServerError) as caught:
            await link.call("EVALSHA", "0" * 40, 0)
        assert caught.value.code == "NOSCRIPT"
        assert link.connected


async def test_bad_arguments_are_refused_before_anything_is_sent(server: Server) -> None:
    async with linked(server.url) as link:
        with pytest.raises(TypeError, match="NoneType"):
            await link.call("SET", "k", None)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await link.call_many([("SET", "k", 1), ("SET", "k", [])])  # type: ignore[list-item]
        assert not link.connected
        assert await link.call("EXISTS", "k") == 0


@pytest.mark.parametrize("answer", ["READONLY You can't write", "LOADING Redis is loading", "MASTERDOWN Link is down"])
async def test_an_answer_that_means_not_now_drops_the_connection(answer: str) -> None:
    peer = Peer(lambda data: f"-{answer}\r\n".encode())
    async with peer.listening() as url, linked(url) as link:
        for round_number in (1, 2):
            with pytest.raises(ServerUnavailable, match=answer):
                await link.call("SET", "k", 1)
            assert not link.connected
            assert peer.connections == round_number


async def test_a_replica_is_not_kept(make_server: Callable[..., Server]) -> None:
    primary, replica = make_server(), make_server()
    replica.cli("REPLICAOF", "127.0.0.1", primary.port)
    async with linked(replica.url) as link:
        with pytest.raises(ServerUnavailable, match=r"READONLY|MASTERDOWN"):
            await link.call("SET", "k", 1)
        assert not link.connected
        replica.cli("REPLICAOF", "NO", "ONE")
        assert await link.call("SET", "k", 1) == b"OK"


async def test_a_blocked_call_ends_when_the_server_becomes_a_replica(make_server: Callable[..., Server]) -> None:
    server, other = make_server(), make_server()
    async with linked(server.url) as link:
        blocked = asyncio.create_task(link.call("BZPOPMIN", "marker", 60, reply_timeout=70))
        await wait_until(lambda: "blocked_clients:1" in server.cli("INFO", "clients").decode())
        server.cli("REPLICAOF", "127.0.0.1", other.port)
        with pytest.raises(ServerUnavailable, match="UNBLOCKED"):
            await blocked
        assert not link.connected


@pytest.mark.parametrize(
    "garbage", [b"!what\r\n", b":1\r\n:2\r\n", b"*-5\r\n:x\r\n"], ids=["no type", "one too many", "bad length"]
)
async def test_nonsense_costs_the_connection(garbage: bytes) -> None:
    peer = Peer(lambda data: garbage)
    async with peer.listening() as url, linked(url) as link:
        with suppress(ConnectionLost):
            await link.call("GET", "k")
        await wait_until(lambda: not link.connected)


async def test_a_server_that_is_full_is_unavailable_and_says_so() -> None:
    peer = Peer(lambda data: b"", greeting=b"-ERR max number of clients reached\r\n")
    async with peer.listening() as url, linked(url, client_name="not-needed") as link:
        with pytest.raises(ServerUnavailable, match="max number of clients"):
            await asyncio.wait_for(link.call("PING"), 5)


async def test_max_clients_is_unavailable(make_server: Callable[..., Server]) -> None:
    server = make_server(maxclients=3)
    links = [Link(Settings.from_url(server.url)) for _ in range(6)]
    try:
        results = await asyncio.gather(*(link.call("PING") for link in links), return_exceptions=True)
        failures = [result for result in results if result != b"PONG"]
        assert failures
        for failure in failures:
            assert isinstance(failure, ServerUnavailable)
            # Whether the reason can still be read depends on who was faster, the server's close or our greeting.
            assert "may or may not" not in str(failure), "nothing but the greeting was sent"
    finally:
        for link in links:
            await link.close()


# -- connecting --------------------------------------------------------------------------------------------------------


async def test_no_server_is_unavailable_and_names_the_place(tmp_path: Path) -> None:
    for url, words in (
        ("redis://ada:secret@127.0.0.1:1/0", "127.0.0.1:1/0.*; is the server running there"),
        (f"unix://ada:secret@{tmp_path}/none", "/none.*; there is no such socket"),
        ("redis://:secret@no-such-host.invalid", "no-such-host.invalid.*; is the name of the host right"),
    ):
        async with linked(url) as link:
            with pytest.raises(ServerUnavailable, match=words) as caught:
                await link.call("PING")
            assert isinstance(caught.value.__cause__, OSError)
            assert "secret" not in str(caught.value) + repr(caught.value.__cause__)


async def test_a_server_that_never_greets_is_given_up() -> None:
    peer = Peer(lambda data: b"", greeting=b"")
    async with peer.listening() as url, linked(url, connect_timeout=0.1) as link:
        with pytest.raises(ServerUnavailable, match=r"no answer within 0\.1 s$"):
            await link.call("PING")


async def test_a_server_without_tls_where_tls_is_wanted(server: Server) -> None:
    for url in (f"rediss://127.0.0.1:{server.port}", f"rediss://localhost:{server.port}"):
        async with linked(url, connect_timeout=0.3) as link:
            with pytest.raises(ServerUnavailable, match=r"; does the server speak TLS\?"):
                await link.call("PING")


async def test_a_server_with_tls_where_none_is_wanted(tls_url: str) -> None:
    async with linked(tls_url) as link:
        with pytest.raises(ServerUnavailable, match=r"\?ssl_ca_certs=/path/to/ca\.pem"):
            await link.call("PING")
    async with linked(tls_url.replace("rediss:", "redis:")) as link:
        with pytest.raises(ServerUnavailable, match="a server that speaks TLS needs rediss://"):
            await link.call("PING")


async def test_what_repeats_our_words_is_no_server() -> None:
    peer = Peer(lambda data: data, greeting=b"*1\r\n$4\r\nPING\r\n")
    async with peer.listening() as url, linked(url) as link:
        with pytest.raises(ServerUnavailable, match="no Redis or Valkey server"):
            await link.call("PING")


async def test_a_wrong_password_is_an_error_of_its_own(make_server: Callable[..., Server]) -> None:
    server = make_server(password="right", acl=["user ada on >pw ~* +@all -client -ping"])
    for url, code, remedy in (
        (server.unix_url_for(password="wrong"), "WRONGPASS", "; correct user name and password"),
        (f"unix://{server.socket_path}", "NOAUTH", "; this server asks for a password"),
    ):
        async with linked(url) as link:
            with pytest.raises(ServerError) as caught:
                await link.call("PING")
            assert caught.value.code == code
            assert remedy in str(caught.value)
            assert str(server.socket_path) in str(caught.value)
            assert "wrong" not in str(caught.value)
    async with linked(server.unix_url_for(user="ada", password="pw"), client_name="ada") as link:
        assert await link.call("SET", "k", 1) == b"OK", "a user without CLIENT and PING can work"


async def test_a_database_that_does_not_exist_is_an_error(server: Server) -> None:
    async with linked(server.unix_url_for(db=999)) as link:
        with pytest.raises(ServerError, match=r"SELECT\); the server has no database 999: use a lower number"):
            await link.call("PING")


async def test_a_password_where_none_is_asked_for(server: Server) -> None:
    async with linked(server.unix_url_for(password="pw")) as link:
        with pytest.raises(ServerError, match="; this server asks for no password: leave it out"):
            await link.call("PING")


async def test_callers_share_one_attempt_and_one_may_be_cancelled() -> None:
    peer = Peer(lambda data: b"+OK\r\n")
    async with peer.listening() as url, linked(url) as link:
        tasks = [asyncio.create_task(link.connect()) for _ in range(10)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 9
        assert link.connected
        assert peer.connections == 1


async def test_an_attempt_that_fails_after_all_its_callers_left_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    async with linked("redis://127.0.0.1:1") as link:
        caller = asyncio.create_task(link.call("PING"))
        await asyncio.sleep(0)
        caller.cancel()
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)
        del caller  # it remembers the attempt
    gc.collect()
    assert caplog.records == []


async def test_dropping_while_it_connects_is_no_cancellation_of_the_callers() -> None:
    peer = Peer(lambda data: b"+OK\r\n", greeting=b"")
    async with peer.listening() as url, linked(url) as link:
        caller = asyncio.create_task(link.call("PING"))
        await wait_until(lambda: peer.connections == 1)
        link.drop("as the test wants")
        with pytest.raises(ServerUnavailable, match="dropped"):
            await caller


async def test_a_restarted_server_is_reached_again(make_server: Callable[..., Server]) -> None:
    server = make_server()
    for url in (server.tcp_url, server.url):
        async with linked(url) as link:
            assert await link.call("PING") == b"PONG"
            server.restart(kill=True)
            await wait_until(lambda link=link: not link.connected)
            assert await link.call("PING") == b"PONG"


# -- losing the connection ---------------------------------------------------------------------------------------------


async def test_a_lost_connection_fails_every_outstanding_call(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with linked(server.url) as link:
        await link.connect()
        server.pause()
        calls = [asyncio.create_task(link.call("INCR", "n")) for _ in range(20)]
        batch = asyncio.create_task(link.call_many([("INCR", "n")] * 3))
        await asyncio.sleep(0)
        server.kill()
        for result in await asyncio.gather(*calls, batch, return_exceptions=True):
            assert isinstance(result, ConnectionLost)
        with pytest.raises(ServerUnavailable):
            await link.call("PING")


async def test_a_silent_server_is_given_up_at_the_deadline(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with linked(server.url, reply_timeout=30, connect_timeout=0.3) as link:
        await link.connect()
        server.pause()
        start = time.monotonic()
        patient = asyncio.create_task(link.call("PING"))
        blocking = asyncio.create_task(link.call("PING", reply_timeout=math.inf))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionLost, match="deadline"):
            await link.call("PING", reply_timeout=0.2)
        assert 0.2 <= time.monotonic() - start < 5
        for task in (patient, blocking):
            with pytest.raises(ConnectionLost):
                await task
        with pytest.raises(ServerUnavailable, match="no answer"):
            await link.call("PING")
        server.resume()
        assert await link.call("PING") == b"PONG"


async def test_the_deadline_of_a_cancelled_call_still_counts(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with linked(server.url, reply_timeout=0.2) as link:
        await link.connect()
        server.pause()
        caller = asyncio.create_task(link.call("PING"))
        await asyncio.sleep(0)
        caller.cancel()
        await wait_until(lambda: not link.connected, timeout=5)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_was_held_up_does_not_blame_the_server(loop: str, server: Server) -> None:
    async def scenario() -> None:
        async with linked(server.url, reply_timeout=0.2) as link:
            ident = await link.call("CLIENT", "ID")
            # Too much for the socket, so most of it is still on our side when the loop is held up: then nothing can
            # have come back when the deadline has passed.
            big = bytes(8_000_000)
            call = asyncio.create_task(link.call("ECHO", big))
            await asyncio.sleep(0)
            time.sleep(0.7)
            assert await call == big
            assert await link.call("CLIENT", "ID") == ident

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario())


async def test_writing_waits_while_the_server_does_not_read(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with linked(server.url) as link:
        await link.connect()
        server.pause()
        first = asyncio.create_task(link.call("ECHO", bytes(20_000_000)))
        await asyncio.sleep(0)
        others = [asyncio.create_task(link.call("ECHO", bytes(1_000_000))) for _ in range(20)]
        await asyncio.sleep(0.05)
        pipe = link._pipe
        assert pipe is not None
        assert pipe.paused
        assert pipe._transport is not None
        assert pipe._transport.get_write_buffer_size() <= 20_100_000, "the others wrote although nothing leaves"
        others[0].cancel()
        server.resume()
        assert len(await first) == 20_000_000  # type: ignore[arg-type]
        assert [len(await other) for other in others[1:]] == [1_000_000] * 19  # type: ignore[arg-type]


async def test_a_call_that_could_not_be_written_was_surely_not_carried_out(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with linked(server.url, connect_timeout=0.2) as link:
        await link.connect()
        server.pause()
        first = asyncio.create_task(link.call("ECHO", bytes(20_000_000), reply_timeout=0.2))
        await asyncio.sleep(0)
        second = asyncio.create_task(link.call("INCR", "n"))
        with pytest.raises(ConnectionLost):
            await first
        with pytest.raises(ServerUnavailable):
            await second
        server.resume()
        assert await link.call("EXISTS", "n") == 0


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_drop_and_close(server: Server) -> None:
    link = Link(Settings.from_url(server.url))
    link.drop("nothing there yet")
    call = asyncio.create_task(link.call("BLPOP", "nothing", 60))
    await wait_until(lambda: "blocked_clients:1" in server.cli("INFO", "clients").decode())
    link.drop("as the test wants")
    with pytest.raises(ConnectionLost, match="as the test wants"):
        await call
    assert await link.call("PING") == b"PONG"
    call = asyncio.create_task(link.call("BLPOP", "nothing", 60))
    await asyncio.sleep(0)
    await link.close()
    await link.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await call
    with pytest.raises(RuntimeError, match="closed"):
        await link.call("PING")


def test_belongs_to_one_event_loop_at_a_time(server: Server) -> None:
    link = Link(Settings.from_url(server.url))  # made where no loop runs
    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(link.call("PING")) == b"PONG"
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(link.call("PING"))
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(link.close())

        async def drop() -> None:
            link.drop("moving house")

        first.run(drop())
        assert second.run(link.call("PING")) == b"PONG"
        second.run(link.close())


def test_works_in_the_loop_of_another_thread(server: Server) -> None:
    link = Link(Settings.from_url(server.url))
    replies: list[object] = []

    async def use() -> None:
        replies.append(await link.call("PING"))
        await link.close()

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    thread.join()
    assert replies == [b"PONG"]


@pytest.mark.parametrize(
    "options", [{"client_name": "two words"}, {"client_name": ""}, {"connect_timeout": 0}, {"reply_timeout": -1}]
)
def test_refuses_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        Link(Settings(), **options)  # type: ignore[arg-type]


async def test_takes_the_way_of_a_client_but_not_its_flags(server: Server) -> None:
    client = redis.asyncio.Redis(unix_socket_path=str(server.socket_path), decode_responses=True, db=2)
    link = Link(Settings.from_client(client))
    try:
        await link.call("SET", "k", b"\xff")
        assert await link.call("GET", "k") == b"\xff"
    finally:
        await link.close()
        await client.aclose()
    assert server.cli("EXISTS", "k", db=2) == 1


class _Provider(redis.CredentialProvider):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_credentials(self) -> tuple[str, str]:
        self.asked.append("sync")
        return ("ada", "pw")

    async def get_credentials_async(self) -> tuple[str, str]:
        self.asked.append("async")
        return ("ada", "pw")


async def test_asks_the_credential_provider_at_each_connect(make_server: Callable[..., Server]) -> None:
    server = make_server(acl=["user ada on >pw ~* +@all"])
    provider = _Provider()
    link = Link(Settings(path=str(server.socket_path), credential_provider=provider))
    try:
        assert await link.call("ACL", "WHOAMI") == b"ada"
        link.drop("again")
        assert await link.call("ACL", "WHOAMI") == b"ada"
        assert provider.asked == ["async", "async"]
    finally:
        await link.close()
