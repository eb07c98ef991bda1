"""What all commands that look at queues share: options, exit codes, errors, a broken pipe, and how fast they start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from echomq import cli
from echomq.cli import _text
from tests.support.command import PROGRAM, echomq, environment
from tests.support.server import Server


async def test_no_server_is_one_line_and_the_timeout_says_how_long_to_try() -> None:
    shown = await echomq("queue", "list", "--timeout", "0.3", url="redis://127.0.0.1:1")
    assert shown.code == 1
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert line.startswith("echomq queue list: ")


@pytest.mark.parametrize(
    "words",
    [
        ["queue", "pause", "orders"],
        ["job", "wait", "orders", "17"],
        ["top", "--once", "--interval", "0.1"],
        ["top", "orders", "--json", "--interval", "0.1"],
    ],
)
async def test_a_server_that_does_not_answer_is_given_up_in_time(
    make_server: Callable[..., Server], words: list[str]
) -> None:
    server = make_server()
    server.pause()
    try:
        shown = await echomq(*words, "--timeout", "0.5", url=server.url)
    finally:
        server.resume()
    assert shown.code == 4
    what = " ".join(word for word in words[:2] if word not in ("--once", "orders"))
    assert shown.err == (f"echomq {what}: not done within 500 ms (--timeout); what was sent may still be carried out\n")


async def test_one_frame_takes_longer_than_the_time_between_its_looks(url: str) -> None:
    shown = await echomq("top", "--once", "--timeout", "1", url=url)
    assert (shown.code, shown.out) == (2, "")
    assert "--timeout 1: one frame takes two looks, 2 s apart" in shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "http://x"], "http://x"),
        (["--url", "redis://127.0.0.1:1", "--prefix", ""], "prefix"),
        (["--timeout", "never"], "'never': must be seconds"),
    ],
)
async def test_wrong_options(words: list[str], said: str) -> None:
    shown = await echomq("queue", "pause", "orders", *words)
    assert (shown.code, shown.out) == (2, "")
    assert said in shown.err


async def test_no_server_was_named() -> None:
    shown = await echomq("queue", "pause", "orders")
    assert shown.code == 2
    for way in ("--url redis://", "--app school:app", "set ECHOMQ_URL"):
        assert way in shown.err


async def test_who_only_looks_makes_no_server_of_its_own(tmp_path: Path) -> None:
    env = {"ECHOMQ_HOME": str(tmp_path)}
    for words in (["queue", "list"], ["job", "show", "orders", "1"], ["top", "--once"], ["events", "orders"]):
        shown = await echomq(*words, "--url", "embedded://typo", env=env)
        assert (shown.code, shown.out) == (3, "")
        assert "there is no embedded server 'typo' yet; echomq server list" in shown.err
    assert list(tmp_path.iterdir()) == []
    assert (await echomq("job", "add", "orders", "pack", "--url", "embedded://till", env=env)).code == 0
    shown = await echomq("queue", "list", "--url", "embedded://till", "--json", env=env)
    assert [one["queue"] for one in shown.json["queues"]] == ["orders"]
    assert (await echomq("server", "stop", "till", "--force", env=env)).code == 0


async def test_prefix_hash_tag_and_url(server: Server) -> None:
    for words, key in [
        ([], "emq:{orders}:meta"),
        (["--prefix", "bull"], "bull:orders:meta"),
        (["--prefix", "mine", "--no-hash-tag"], "mine:orders:meta"),
        (["--prefix", "bull", "--hash-tag"], "bull:{orders}:meta"),
    ]:
        assert (await echomq("queue", "pause", "orders", *words, "--url", server.url)).code == 0
        with server.client() as client:
            assert client.exists(key), key


LETTERING = """\
from echomq import EchoMQ, Worker

app = EchoMQ({url!r}, prefix="mine")
bull = Worker("orders", print, connection={url!r}, prefix="bull")
alone = EchoMQ("embedded://memory")
number = 5
"""


async def test_the_server_and_the_keys_of_an_app(server: Server, tmp_path: Path) -> None:
    (tmp_path / "lettering.py").write_text(LETTERING.format(url=server.url))
    env = {"PYTHONPATH": str(tmp_path)}
    for target, key in [("lettering:app", "mine:{orders}:meta"), ("lettering:bull", "bull:orders:meta")]:
        shown = await echomq("queue", "pause", "orders", "--app", target, env=env, url="redis://127.0.0.1:1")
        assert shown.code == 0, shown.err
        with server.client() as client:
            assert client.exists(key), key
    shown = await echomq("job", "list", "orders", "failed", "--app", "lettering:app", env=env)
    assert shown.code == 0, shown.err
    shown = await echomq("top", "--once", "--interval", "0.1", "--app", "lettering:app", env=env)
    assert (shown.code, "prefix mine" in shown.out) == (0, True), shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lettering:app", "--url", "redis://127.0.0.1:1"], "the app has its server and its keys; leave --url out"),
        (["lettering:app", "--prefix", "emq"], "leave --prefix out"),
        (["lettering:app", "--no-hash-tag"], "leave --hash-tag out"),
        (["lettering:number"], "must name an EchoMQ or a Worker, and is of type int; it has: alone, app, bull"),
        (["lettering:nothing"], "the module lettering has no 'nothing'; it has: alone, app, bull"),
        (["lettering.py"], "must name a module, not a file; write lettering:app"),
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["lettering:alone"], "a server for one process alone; use embedded://NAME"),
    ],
)
async def test_what_is_no_app_is_refused_by_the_command(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "lettering.py").write_text(LETTERING.format(url="redis://127.0.0.1:1"))
    shown = await echomq("queue", "list", "--app", *words, env={"PYTHONPATH": str(tmp_path)})
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("echomq queue list: ")
    assert said in shown.err


@pytest.mark.parametrize("more", [[], ["--json"]])
async def test_a_reader_that_goes_away_is_no_error(url: str, more: list[str]) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "queue", "list", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(url)
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert await asyncio.to_thread(process.stderr.read) == b""
    assert process.wait() == 141
    process.stderr.close()


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    """Their modules need not be loaded for the list, so that it is there at once."""
    import importlib

    for name, (module, attribute, line) in cli._COMMANDS.items():
        found = getattr(importlib.import_module(module), attribute)
        text = found.info.help if hasattr(found, "info") else (found.__doc__ or "").partition("\n")[0]
        assert line == text, name


@pytest.mark.parametrize("words", [["--help"], ["queue", "--help"], ["job", "add", "--help"], ["top", "--help"]])
def test_help_loads_little(words: list[str]) -> None:
    program = (
        "import sys; from echomq.cli import main\n"
        f"sys.argv = ['echomq', *{words!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted(set(sys.modules) & {'uvloop', 'rich.table', 'rich.live', 'asyncpg', 'echomq.cli._demo'}))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (59.96, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (90_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert _text.duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5h", 5400), ("7d", 604_800), ("250ms", 0.25), ("2 min", 120), ("0", 0)]
)
def test_times_of_options(text: str, seconds: float) -> None:
    assert _text.to_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-5", "1e9", "1y", "5 5", "nan", "inf"])
def test_no_times_of_options(text: str) -> None:
    with pytest.raises(ValueError, match="must be seconds"):
        _text.to_seconds(text)
