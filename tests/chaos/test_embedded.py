"""The embedded server: users come and go and are killed, as are the keeper and the server; nothing is lost or left."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest
import redis

from echomq._redis.embedded import (
    EmbeddedServer,
    control,
    join,
    join_async,
    keeper,
    member,
    places,
    start,
    status,
    stop,
)
from echomq._redis.embedded.control import user_pids
from echomq._redis.embedded.keeper import Refused, ask, health, is_held, pid_in
from echomq.errors import InvalidOption, ServerUnavailable, UnsupportedServer
from tests.support.processes import assert_no_processes, processes_of
from tests.support.server import binary
from tests.support.wait import wait_until

USER = Path(__file__).with_name("embedded_user.py")


def servers(folder: Path) -> list[int]:
    return [pid for pid, role in processes_of(folder).items() if role == "server"]


def is_alive(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def keeper_pid(server: EmbeddedServer) -> int:
    pid = status(server.name).keeper_pid
    assert pid is not None
    return pid


async def comes_back(server: EmbeddedServer, *, not_as: int | None) -> None:
    await wait_until(lambda: server.pid != not_as and health(server.socket, timeout=1) == "ready")


def get(server: EmbeddedServer, key: str) -> str:
    return ask(server.socket, "GET", key, timeout=5)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own, with a name that has to be quoted; nothing may run there when the test has ended."""
    folder = tmp_path / 'müller\'s "home"'
    monkeypatch.setenv("ECHOMQ_HOME", str(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("ECHOMQ_SERVER", raising=False)
    yield folder
    assert_no_processes(folder)


class User:
    """Another process that uses a server."""

    def __init__(self, name: str, what: str = "wait") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(USER), name, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def reads(self, word: str) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line[:1] == [word], f"the user said {line}"
        return line[1:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> str:
        """Let it end by itself; what it has said since the last reading."""
        return self.process.communicate()[0]


MakeUser = Callable[..., User]


@pytest.fixture
def make_user() -> Iterator[MakeUser]:
    """Makes users, and ends them with the test."""
    users: list[User] = []

    def make(name: str, what: str = "wait") -> User:
        users.append(User(name, what))
        return users[-1]

    yield make
    for user in users:
        user.kill()
        for pipe in (user.process.stdin, user.process.stdout):
            if pipe is not None:
                pipe.close()


async def test_fifty_processes_come_and_go(home: Path, make_user: MakeUser) -> None:
    folder, chance = home / "shared", random.Random(7)
    written: list[str] = []
    most_servers = 0
    for wave in range(5):
        users = [make_user("shared", "write") for _ in range(10)]
        victims = chance.sample(users, 5)
        deaths = sorted((time.monotonic() + chance.uniform(0.0, 1.2), number) for number in range(5))
        while any(user.process.poll() is None for user in users):
            most_servers = max(most_servers, len(servers(folder)))
            while deaths and time.monotonic() >= deaths[0][0]:
                victims[deaths.pop(0)[1]].process.kill()
            await asyncio.sleep(0.01)
        for user in users:
            said = user.end()
            written += re.findall(r"^wrote (\S+)$", said, re.MULTILINE)
            assert user.process.returncode in (0, -signal.SIGKILL), said
        await asyncio.sleep(
            chance.uniform(0.9, 1.7) if wave else 0
        )  # the next wave meets the server as it stops, or not
    assert most_servers == 1
    assert len(written) >= 75
    with join("shared") as server:
        assert [key for key in written if get(server, key) != "there"] == []
    await wait_until(lambda: not processes_of(folder), what="all gone")
    assert_one_after_another(folder)


def assert_one_after_another(folder: Path) -> None:
    """The servers' log: each one has said good-bye before the next one starts."""
    log = (folder / "server.log").read_text()
    turns = re.findall(r"^(\d+):M .*(is starting|bye bye)", log, re.MULTILINE)
    for (first, hello), (second, goodbye) in zip(turns[::2], turns[1::2], strict=True):
        assert (first, hello, goodbye) == (second, "is starting", "bye bye")


async def test_a_killed_keeper_takes_its_server_along_and_both_are_replaced() -> None:
    with join("orders") as server:
        pid, keeper = server.pid, keeper_pid(server)
        ask(server.socket, "SET", "key", "there", timeout=5)
        kill(keeper)
        await wait_until(lambda: not is_alive(pid))
        server.ensure()
        assert keeper_pid(server) != keeper
        assert server.pid != pid
        assert get(server, "key") == "there"

        url = server.url
        keeper = keeper_pid(server)
        kill(keeper)
        await wait_until(lambda: not is_alive(keeper))
        with join("orders") as joiner:  # a joiner does the same, also while the server is still ending
            assert joiner.url == url
            assert keeper_pid(joiner)
            assert get(joiner, "key") == "there"
            assert health(server.socket, timeout=5) == "ready"


async def test_a_killed_server_comes_back_with_its_data_at_the_same_place() -> None:
    with join("orders", fsync="always") as server:
        for round_number in range(3):
            pid = server.pid
            ask(server.socket, "SET", f"key{round_number}", "there", timeout=5)
            kill(pid)
            await comes_back(server, not_as=pid)
            assert get(server, f"key{round_number}") == "there"


async def test_after_the_death_of_all_the_next_user_finds_the_data(home: Path, make_user: MakeUser) -> None:
    user = make_user("orders")
    user.reads("joined")
    with join("orders", fsync="always") as server:
        ask(server.socket, "SET", "key", "there", timeout=5)
        kill(keeper_pid(server))
        kill(server.pid)
        await wait_until(lambda: not processes_of(home / "orders"))
        server.ensure()
        assert get(server, "key") == "there"
        kill(keeper_pid(server))
        kill(server.pid)
    user.kill()
    await wait_until(lambda: not processes_of(home / "orders"))
    with join("orders") as server:
        assert get(server, "key") == "there"


ROLES = ("keeper", "server", "user")


@pytest.mark.parametrize(
    "order",
    [order for count in (1, 2, 3) for order in permutations(ROLES, count)],
    ids="-".join,
)
async def test_nothing_is_left_whoever_is_killed_in_which_order(
    home: Path, order: tuple[str, ...], make_user: MakeUser
) -> None:
    user = make_user("orders")
    user.reads("joined")
    pids = {role: pid for pid, role in processes_of(home / "orders").items()} | {"user": user.process.pid}
    assert sorted(pids) == sorted(ROLES)
    for role in order:
        with suppress(ProcessLookupError):  # the kill before took it along
            kill(pids[role])
    if "user" not in order:
        user.end()
    assert_no_processes(home / "orders")


@pytest.mark.parametrize("first", ["keeper", "folder"])
async def test_nothing_is_left_when_the_folder_and_the_keeper_are_gone(home: Path, first: str) -> None:
    with join("orders") as server:
        keeper = keeper_pid(server)
        if first == "keeper":
            kill(keeper)
        shutil.rmtree(server.path, ignore_errors=True)
        with suppress(ProcessLookupError):
            kill(keeper)
        assert_no_processes(home / "orders")


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_keeper_killed_while_its_server_starts_leaves_nothing(
    home: Path, goes_on: bool, make_user: MakeUser
) -> None:
    chance = random.Random(3)
    for _ in range(8):
        user = make_user("orders")
        await wait_until(lambda: "keeper" in processes_of(home / "orders").values())
        await asyncio.sleep(chance.uniform(0, 0.05))
        for pid, role in processes_of(home / "orders").items():
            if role == "keeper":
                with suppress(ProcessLookupError):
                    kill(pid)
        if goes_on:
            user.reads("joined")
        user.kill()
        assert_no_processes(home / "orders")


async def test_a_user_killed_while_it_joins_leaves_nothing(home: Path, make_user: MakeUser) -> None:
    chance = random.Random(4)
    for _ in range(6):
        user = make_user("orders")
        await wait_until(lambda: (home / "orders" / "users").exists())
        await asyncio.sleep(chance.uniform(0, 0.12))
        user.kill()
        assert_no_processes(home / "orders")
        (home / "orders" / "users").unlink()


async def test_looking_after_the_server_while_keepers_and_servers_are_killed(home: Path) -> None:
    chance, folder = random.Random(5), home / "orders"
    with join("orders", fsync="always") as one, join("orders", fsync="always") as two:
        for number in range(12):
            victims: list[int] = []

            def found(victims: list[int] = victims) -> bool:  # one that has just begun is not known by its folder yet
                victims[:] = processes_of(folder)
                return bool(victims)

            await wait_until(found)
            looks = [asyncio.create_task(server.ensure_async()) for server in (one, two)]
            await asyncio.sleep(chance.uniform(0, 0.02))
            for pid in chance.sample(victims, chance.randint(1, len(victims))):
                with suppress(ProcessLookupError):
                    kill(pid)
            await asyncio.gather(*looks)
            one.ensure()
            await wait_until(lambda number=number: writes(one, f"key{number}"))
        assert [get(two, f"key{number}") for number in range(12)] == ["there"] * 12
        assert len(servers(folder)) == 1
    assert_no_processes(folder)


def writes(server: EmbeddedServer, key: str) -> bool:
    """Whether the server takes it now; if not, it has been looked after."""
    try:
        return ask(server.socket, "SET", key, "there", timeout=5) == "OK"
    except OSError:
        server.ensure()
        return False


async def test_a_frozen_server_whose_keeper_was_killed_ends(home: Path) -> None:
    with join("orders") as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        kill(keeper_pid(server))
    assert_no_processes(home / "orders")  # the kernel wakes who was stopped and has no parent any more


async def run_for_ever(socket: str) -> asyncio.Task[None]:
    """Have the server run a script that does not end: it hears no SIGTERM until somebody kills the script."""

    def run() -> None:
        with suppress(OSError, Refused):
            ask(socket, "EVAL", "while true do end", "0", timeout=60)

    ask(socket, "CONFIG", "SET", "lua-time-limit", "1", timeout=5)
    running = asyncio.create_task(asyncio.to_thread(run))
    await wait_until(lambda: is_busy(socket))
    return running


def is_busy(socket: str) -> bool:
    try:
        ask(socket, "GET", "key", timeout=0.2)
    except TimeoutError:
        pass  # it came in just before the script
    except Refused as error:
        return str(error).startswith("BUSY")
    return False


async def test_a_busy_server_whose_keeper_was_killed_can_be_stopped(home: Path) -> None:
    server = join("orders")
    running = await run_for_ever(server.socket)
    keeper = keeper_pid(server)
    kill(keeper)
    await wait_until(lambda: not is_alive(keeper))
    assert stop("orders") == "in use"
    server.close()
    assert status("orders").running
    stopping = asyncio.create_task(asyncio.to_thread(stop, "orders"))
    await wait_until(lambda: is_held(str(server.path), "start"))
    with suppress(ConnectionResetError):  # the server may end before it has answered
        ask(server.socket, "SCRIPT", "KILL", timeout=5)
    assert await stopping == "stopped"
    await running
    assert not processes_of(home / "orders")


async def test_a_busy_server_whose_keeper_was_killed_gives_way_to_the_next_one(make_user: MakeUser) -> None:
    user = make_user("memory")  # one that keeps nothing is not asked politely, which would take its time
    socket, folder, pid = user.reads("joined")
    running = await run_for_ever(socket)
    kill(int(Path(folder, "keeper").read_text()))
    user.kill()
    long_ago = time.time() - 2 * member.SWEEP_AGE
    os.utime(folder, (long_ago, long_ago))
    await wait_until(lambda: not is_held(folder, "keeper"))
    assert is_alive(int(pid))
    with join("memory"):
        assert not Path(folder).exists()
        await wait_until(lambda: not is_alive(int(pid)))
    await running


async def test_the_server_ends_when_all_its_users_were_killed(home: Path, make_user: MakeUser) -> None:
    users = [make_user("orders") for _ in range(3)]
    for user in users:
        user.reads("joined")
    assert status("orders").users == sorted(user.process.pid for user in users)
    for user in users:
        user.kill()
    await wait_until(lambda: not processes_of(home / "orders"), timeout=6)
    assert not status("orders").running


@pytest.mark.parametrize("what", ["fork", "children"])
async def test_children_of_a_user_are_no_users(home: Path, what: str, make_user: MakeUser) -> None:
    user = make_user("orders", what)
    user.reads("joined")
    child = int(user.reads("child")[0])
    try:
        assert status("orders").users == [user.process.pid]
        os.kill(user.process.pid, signal.SIGKILL)
        user.process.wait()
        await wait_until(lambda: not processes_of(home / "orders"), timeout=6)
        os.kill(child, 0)
    finally:
        kill(child)


async def test_a_forked_child_that_closes_takes_nothing_from_its_parent(make_user: MakeUser) -> None:
    user = make_user("orders", "fork")
    user.reads("joined")
    child = int(user.reads("child")[0])
    kill(child)
    assert status("orders").in_use
    user.end()


async def test_two_names_are_two_servers() -> None:
    with join("one") as one, join("two") as two:
        ask(one.socket, "SET", "key", "one", timeout=5)
        ask(two.socket, "SET", "key", "two", timeout=5)
        assert (get(one, "key"), get(two, "key")) == ("one", "two")
        assert one.pid != two.pid


async def test_each_join_counts_and_leaving_twice_does_not() -> None:
    first, second = join("orders"), join("orders")
    first.close()
    first.close()
    assert status("orders").users == [os.getpid()]
    with pytest.raises(ServerUnavailable, match="join it again"):
        first.ensure()
    second.close()
    assert not status("orders").in_use


async def test_a_memory_server_is_private_and_ends_with_its_user(make_user: MakeUser) -> None:
    user = make_user("memory")
    socket, folder, pid = user.reads("joined")
    with join("memory") as server:
        assert server.socket != socket
        assert health(socket, timeout=1) == "ready"
    user.kill()
    await wait_until(lambda: not Path(f"/proc/{pid}").exists() and not Path(folder).exists(), timeout=6)
    assert not Path(socket).exists()
    await wait_until(lambda: not server.path.exists(), timeout=6)


async def test_a_memory_server_whose_keeper_was_killed_is_removed_by_the_next_one(make_user: MakeUser) -> None:
    user = make_user("memory")
    _, folder, pid = user.reads("joined")
    kill(int(Path(folder, "keeper").read_text()))
    user.kill()
    await wait_until(lambda: not is_alive(int(pid)))
    long_ago = time.time() - 2 * member.SWEEP_AGE
    os.utime(folder, (long_ago, long_ago))
    with join("memory") as server:
        assert not Path(folder).exists()
    await wait_until(lambda: not server.path.exists(), timeout=6)


async def test_a_server_whose_socket_was_removed_is_started_again_at_the_same_place() -> None:
    with join("orders") as server:
        pid = server.pid
        ask(server.socket, "SET", "key", "there", timeout=5)
        os.unlink(server.socket)
        await comes_back(server, not_as=pid)
        assert get(server, "key") == "there"


async def test_a_server_whose_folder_was_removed_ends(home: Path) -> None:
    with join("orders") as server:
        shutil.rmtree(server.path)
        await wait_until(lambda: not processes_of(home / "orders"))


async def test_a_server_that_cannot_read_its_data_is_an_error_with_its_last_words() -> None:
    with join("orders") as server:
        ask(server.socket, "SET", "key", "there", timeout=5)
    stop("orders")
    next(server.path.glob("appendonlydir/*.base.rdb")).write_bytes(b"REDIS0011 rubbish")
    with pytest.raises(ServerUnavailable, match=r"'orders' does not start: .*last words: .*see .*server\.log"):
        join("orders")


async def test_data_of_another_kind_or_of_a_newer_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOMQ_SERVER", binary("redis"))
    with join("orders") as server:
        ask(server.socket, "SET", "key", "there", timeout=5)
        assert status("orders").kind == "redis"
    stop("orders")
    monkeypatch.setenv("ECHOMQ_SERVER", binary("valkey"))
    with join("orders") as server:  # Valkey reads what Redis wrote up to 7.2
        assert get(server, "key") == "there"
    stop("orders")
    monkeypatch.setenv("ECHOMQ_SERVER", binary("redis"))
    with pytest.raises(UnsupportedServer, match=r"written by valkey 9.*redis 7.*cannot read; set ECHOMQ_SERVER"):
        join("orders")


async def test_the_stricter_fsync_wins_until_the_server_stops() -> None:
    with join("orders") as server, join("orders", fsync="always"):
        pid = server.pid
        assert appendfsync(server) == "always"
        kill(pid)
        await comes_back(server, not_as=pid)
        assert appendfsync(server) == "always"
    stop("orders")
    with join("orders") as server:
        assert appendfsync(server) == "everysec"


def appendfsync(server: EmbeddedServer) -> object:
    with redis.Redis(unix_socket_path=server.socket) as client:
        return client.config_get("appendfsync")["appendfsync"]


async def test_joining_in_an_event_loop_and_being_cancelled_leaves_no_share() -> None:
    with await join_async("orders"):
        joining = asyncio.create_task(join_async("orders"))
        await asyncio.sleep(0)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
    await wait_until(lambda: not status("orders").in_use)


@pytest.mark.parametrize(
    "wait",
    [
        "asyncio.run(join_async('orders'))",
        "asyncio.run(Queue('seats', connection='embedded://orders').counts())",
        "SyncQueue('seats', connection='embedded://orders').counts()",
    ],
)
async def test_ctrl_c_ends_the_wait_for_a_server_that_does_not_answer(home: Path, wait: str) -> None:
    with join("orders") as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        program = (
            f"import asyncio, signal\nfrom echomq import Queue, SyncQueue\nfrom {member.__name__} import join_async\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell has it ignored by what it starts beside itself
            f"{wait}\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
        try:
            await wait_until(lambda: process.pid in (user_pids(home / "orders") or []))
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            _, said = process.communicate(timeout=member.ANSWER_LIMIT)
            assert b"KeyboardInterrupt" in said
            assert time.monotonic() - began < member.ANSWER_LIMIT / 2
        finally:
            process.kill()
            process.communicate()
            os.kill(server.pid, signal.SIGCONT)


async def test_leaving_while_another_task_looks_after_the_server_ends_the_look() -> None:
    with join("orders") as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            looking = asyncio.create_task(server.ensure_async())
            await asyncio.sleep(0)
            server.close()
            with pytest.raises(ServerUnavailable, match="was left"):
                await asyncio.wait_for(looking, member.ANSWER_LIMIT / 2)
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_user_that_cannot_say_so_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with join("orders"):
        pass
    monkeypatch.setattr(member, "ROUND_LIMIT", 0.1)
    with keeper.lock(str(home / "orders"), "users") as users:
        assert users.wait(10)
        with pytest.raises(ServerUnavailable, match="users"):
            join("orders")


def test_a_process_with_many_open_files_may_use_one() -> None:
    program = (
        "import os, resource\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))\n"
        "held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
        "from echomq import SyncQueue\n"
        "SyncQueue('seats', connection='embedded://orders').counts()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_stopping_one_whose_keeper_has_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(folder: str, name: str) -> int:
        monkeypatch.setattr(keeper, "pid_in", pid_in)
        kill(pid_in(folder, name))
        other = subprocess.Popen(["true"])
        other.wait()
        return other.pid

    with join("orders"):
        monkeypatch.setattr(keeper, "pid_in", ended)
        assert stop("orders", force=True) == "stopped"


def test_stopping_one_that_is_started_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker does that goes on working: between two looks its new keeper has taken the lock."""
    with join("orders") as server:
        first, send = keeper_pid(server), os.kill

        def send_and_start_again(pid: int, number: int) -> None:
            monkeypatch.setattr(os, "kill", send)
            send(pid, number)
            deadline = time.monotonic() + 20
            while status("orders").keeper_pid == first:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            server.ensure()

        monkeypatch.setattr(os, "kill", send_and_start_again)
        monkeypatch.setattr(control, "STOP_LIMIT", 2.0)
        assert stop("orders", force=True) == "stopped"
        assert status("orders").running
        assert keeper_pid(server) != first


async def test_started_by_hand_it_runs_without_users_until_it_is_stopped(home: Path) -> None:
    assert start("orders").kept
    await asyncio.sleep(0)
    with join("orders"):
        assert stop("orders") == "in use"
        assert status("orders").running
        assert stop("orders", force=True) == "stopped"
    assert stop("orders") == "not running"
    await wait_until(lambda: not processes_of(home / "orders"))


def test_a_folder_that_cannot_be_written_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ECHOMQ_HOME", str(tmp_path / "file"))
    with pytest.raises(InvalidOption, match=r"cannot be used: .*set ECHOMQ_HOME to a folder on a local disk"):
        join("orders")
    assert places.home() == tmp_path / "file"
