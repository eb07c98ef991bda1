"""Proves that the blocking link keeps its deadlines, never takes another's reply, and can be closed from outside."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echomq._redis.connect import Settings
from echomq._redis.heartbeat import HeartbeatLink
from echomq._store.keep import extend_locks
from echomq._store.keys import QueueKeys
from echomq.errors import BrokenKey, ConnectionLost, InvalidOption, ServerError, ServerUnavailable
from tests.support.server import Server


@contextmanager
def linked(url: str, *, client_name: str | None = None, connect_timeout: float = 5.0) -> Iterator[HeartbeatLink]:
    link = HeartbeatLink(Settings.from_url(url), client_name=client_name, connect_timeout=connect_timeout)
    try:
        yield link
    finally:
        link.close()


@contextmanager
def peer(*said: bytes, pause: float = 0.0) -> Iterator[str]:
    """A server of one connection that says these, a piece for each request, or drips them with pauses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for piece in said:
                    if not connection.recv(65536):
                        return
                    for byte in [piece] if not pause else [piece[n : n + 1] for n in range(len(piece))]:
                        try:
                            connection.sendall(byte)
                        except OSError:
                            return
                        time.sleep(pause)
                connection.recv(65536)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_works_over(way: str, server: Server) -> None:
    url = server.tcp_url_for(db=3) if way == "tcp" else server.unix_url_for(db=3)
    with linked(url, client_name="a-name") as link:
        assert link.call("SET", "k", 1, timeout=2) == b"OK"
        assert link.call("GET", "k", timeout=2) == b"1"
        assert link.call("EVAL", "return {1, 'a', false}", 0, timeout=2) == [1, b"a", None]
        big = bytes(3_000_000)
        assert link.call("ECHO", big, timeout=5) == big
        assert any("name=a-name" in line for line in server.clients())
    assert server.cli("GET", "k", db=3) == b"1"


def test_an_error_answer_leaves_the_connection(server: Server) -> None:
    with linked(server.url) as link:
        ident = link.call("CLIENT", "ID", timeout=2)
        with pytest.raises(ServerError) as caught:
            link.call("EVALSHA", "0" * 40, 0, timeout=2)
        assert caught.value.code == "NOSCRIPT"
        assert link.call("CLIENT", "ID", timeout=2) == ident


def test_what_a_script_refuses_is_explained_from_the_first_call_on(server: Server) -> None:
    keys = QueueKeys.of("q")
    server.cli("SET", keys.key("active"), "no list")
    with linked(server.url) as link:
        for _ in range(2):  # the first has to load the script
            with pytest.raises(BrokenKey, match=r"active must be a list; nothing was changed \(in "):
                extend_locks(link, keys, [("1", "token", b"::")], lock_duration=30, timeout=2)


def test_a_bad_argument_is_refused_before_anything_is_sent(server: Server) -> None:
    with linked(server.url) as link:
        with pytest.raises(TypeError, match="NoneType"):
            link.call("SET", "k", None, timeout=1)  # type: ignore[arg-type]
        assert link.call("EXISTS", "k", timeout=1) == 0


def test_a_late_reply_is_nobody_elses(make_server: Callable[..., Server]) -> None:
    server = make_server()
    with linked(server.url) as link:
        assert link.call("PING", timeout=2) == b"PONG"
        server.pause()
        with pytest.raises(ConnectionLost, match="in time"):
            link.call("ECHO", "first", timeout=0.1)
        with pytest.raises(ServerUnavailable, match=r"no answer within 0\.1 s"):
            link.call("ECHO", "second", timeout=0.1)
        server.resume()
        assert link.call("ECHO", "third", timeout=5) == b"third"


def test_the_deadline_is_for_the_whole_reply() -> None:
    with peer(b"+PONG\r\n", b"$60\r\n" + b"x" * 60 + b"\r\n", pause=0.02) as url, linked(url) as link:
        start = time.monotonic()
        with pytest.raises(ConnectionLost, match="in time"):
            link.call("GET", "k", timeout=0.4)
        assert time.monotonic() - start < 1.2  # each byte alone came in time


def test_connecting_is_bound_too() -> None:
    with peer(b"", b"") as url, linked(url, connect_timeout=0.1) as link:
        with pytest.raises(ServerUnavailable, match="no answer"):
            link.call("PING", timeout=5)


def test_no_server_is_unavailable_and_names_the_place() -> None:
    with linked("redis://ada:secret@127.0.0.1:1") as link, pytest.raises(ServerUnavailable, match=":1/0") as e:
        link.call("PING", timeout=1)
    assert "secret" not in str(e.value)


def test_a_full_server_is_unavailable() -> None:
    with peer(b"-ERR max number of clients reached\r\n") as url, linked(url, client_name="a-name") as link:
        with pytest.raises(ServerUnavailable, match="max number"):
            link.call("PING", timeout=2)


@pytest.mark.parametrize("said", [b"-READONLY You can't write\r\n", b"-LOADING loading\r\n"])
def test_an_answer_that_means_not_now_drops_the_connection(said: bytes) -> None:
    with peer(b"+PONG\r\n", said) as url, linked(url) as link:
        with pytest.raises(ServerUnavailable, match="refuses work for now"):
            link.call("SET", "k", 1, timeout=2)
        assert link._socket is None


def test_nonsense_costs_the_connection() -> None:
    with peer(b"+PONG\r\n", b"!what\r\n") as url, linked(url) as link:
        with pytest.raises(ConnectionLost):
            link.call("GET", "k", timeout=2)
        assert link._socket is None


def test_a_reply_that_nobody_asked_for_is_not_kept_for_the_next() -> None:
    with peer(b"+PONG\r\n", b":1\r\n:2\r\n", b":3\r\n") as url, linked(url) as link:
        with pytest.raises(ConnectionLost, match="nobody asked"):
            link.call("GET", "k", timeout=2)


def test_a_connection_that_the_server_closed_while_idle_is_replaced(make_server: Callable[..., Server]) -> None:
    server = make_server()
    with linked(server.url) as link:
        assert link.call("PING", timeout=2) == b"PONG"
        server.restart(kill=True)
        assert link.call("PING", timeout=2) == b"PONG"


def test_wrong_password(make_server: Callable[..., Server]) -> None:
    server = make_server(password="right")
    with linked(server.unix_url_for(password="wrong")) as link, pytest.raises(ServerError) as caught:
        link.call("PING", timeout=2)
    assert caught.value.code == "WRONGPASS"


def test_close_from_another_thread_ends_a_call(make_server: Callable[..., Server]) -> None:
    server = make_server()
    with linked(server.url) as link:
        link.call("PING", timeout=2)
        server.pause()
        errors: list[BaseException] = []

        def call() -> None:
            try:
                link.call("PING", timeout=30)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while not link._in_use.locked():
            time.sleep(0.001)
        link.close()
        thread.join(5)
        assert not thread.is_alive()
        # Which one depends on how far the call had come.
        assert isinstance(errors[0], (ConnectionLost, ServerUnavailable, RuntimeError))
        assert link._socket is None
        server.resume()


def test_a_call_does_not_reconnect_after_close(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with linked(server.url) as link:
        link.call("PING", timeout=2)
        kept = link._kept

        def close_then_look() -> socket.socket | None:
            closer = threading.Thread(target=link.close)
            closer.start()
            closer.join()
            return kept()

        monkeypatch.setattr(link, "_kept", close_then_look)
        with pytest.raises(ServerUnavailable, match="closed"):
            link.call("PING", timeout=2)
        assert link._socket is None


def test_is_not_used_again_after_close(server: Server) -> None:
    with linked(server.url) as link:
        link.call("PING", timeout=1)
        link.close()
        link.close()
        with pytest.raises(RuntimeError, match="closed"):
            link.call("PING", timeout=1)


def test_refuses_bad_options() -> None:
    with pytest.raises(InvalidOption, match="client_name"):
        HeartbeatLink(Settings(), client_name="two words")


def test_works_over_tls(tls_url: str, certificate: Path) -> None:
    with linked(f"{tls_url}?ssl_ca_certs={certificate / 'cert.pem'}") as link:
        ident = link.call("CLIENT", "ID", timeout=5)
        big = bytes(3_000_000)
        assert link.call("ECHO", big, timeout=5) == big
        assert link.call("CLIENT", "ID", timeout=5) == ident
    with linked(tls_url) as stranger, pytest.raises(ServerUnavailable, match="certificate"):
        stranger.call("PING", timeout=5)
