"""Proves what can be sent, and which error answers prove that a command did not run."""

from __future__ import annotations

from typing import Any

import pytest

from echomq._redis import wire
from echomq.errors import EncodingError, ServerError


def test_packs_what_a_server_reads() -> None:
    assert wire.pack(("SET", b"k\x00", 12, 1.5)) == b"*4\r\n$3\r\nSET\r\n$2\r\nk\x00\r\n$2\r\n12\r\n$3\r\n1.5\r\n"


@pytest.mark.parametrize("argument", [None, True, [1], {"a": 1}, object()])
def test_refuses_other_types_and_names_the_place(argument: Any) -> None:
    with pytest.raises(TypeError, match=r"argument 2 of 'SET' is (NoneType|bool|list|dict|object)"):
        wire.pack(("SET", "k", argument))


def test_refuses_an_empty_command() -> None:
    with pytest.raises(TypeError, match="at least its name"):
        wire.pack(())


def test_refuses_text_that_is_not_unicode() -> None:
    with pytest.raises(EncodingError, match=r"argument 1 .* character 1") as caught:
        wire.pack(("ECHO", "a\ud800"))
    assert caught.value.path == "arguments[1]"


def test_refuses_more_than_a_server_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_MAX_ARGUMENT_BYTES", 100)
    monkeypatch.setattr(wire, "_MAX_COMMAND_BYTES", 200)
    monkeypatch.setattr(wire, "_MAX_ARGUMENTS", 50)
    wire.pack(("MSET", b"x" * 60, b"x" * 60))
    with pytest.raises(EncodingError, match="argument 1 of 'ECHO' is longer than 100 bytes"):
        wire.pack(("ECHO", b"x" * 101))
    with pytest.raises(EncodingError, match="smaller parts"):
        wire.pack(("MSET", *[b"x" * 60] * 4))
    with pytest.raises(EncodingError, match="51 arguments"):
        wire.pack(("MSET", *["x"] * 50))


def test_a_head_packs_what_the_whole_command_would() -> None:
    head = wire.Head("EVALSHA", "é" * 20, "1", "k")
    for args in (("",), (b"\r\n*3", "x" * 70_000), ("1", 2, 3.5)):
        assert head.pack_with(args) == wire.pack((*head.args, *args))


def test_a_head_refuses_what_the_whole_command_would(monkeypatch: pytest.MonkeyPatch) -> None:
    head = wire.Head("SET", "k")
    with pytest.raises(TypeError, match="argument 2 of 'SET' is NoneType"):
        head.pack_with((None,))  # type: ignore[arg-type]
    with pytest.raises(EncodingError, match="argument 3 of 'SET'"):
        head.pack_with(("v", "\ud800"))
    monkeypatch.setattr(wire, "_MAX_ARGUMENT_BYTES", 100)
    with pytest.raises(EncodingError, match="argument 2 of 'SET' is longer than 100 bytes"):
        head.pack_with((b"x" * 101,))
    monkeypatch.setattr(wire, "_MAX_ARGUMENTS", 50)
    with pytest.raises(EncodingError, match="52 arguments"):
        head.pack_with(["x"] * 50)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("READONLY You can't write against a read only replica.", True),
        ("READONLY You can't write against a read only replica. script: 12, on @user_script:1.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("MASTERDOWN Link with MASTER is down", True),
        ("CLUSTERDOWN The cluster is down", True),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("BUSY Redis is busy running a script.", True),
        ("ERR max number of clients reached", True),
        ("ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't write", True),
        ("ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not allowed", False),
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("NOSCRIPT No matching script.", False),
        ("BUSYGROUP Consumer Group name already exists", False),
        ("MOVED 3999 127.0.0.1:6381", False),
        ("ASK 3999 127.0.0.1:6381", False),
        ("ERR unknown command 'READONLY '", False),
    ],
)
def test_tells_refused_for_now_from_other_errors(text: str, refused: bool) -> None:
    assert wire.refused_for_now(ServerError(text)) is refused
