"""What holds for every Lua file of ours, whatever it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lupa import lua51

import echomq._lua
from echomq._lua.loader import LANE_ARGS, Script, libraries, scripts

FOLDER = Path(echomq._lua.__file__ or "").parent
SCRIPTS = sorted(scripts().values(), key=lambda found: found.name)
SCRIPT_FILES = {path.stem: path for path in (FOLDER / "scripts").rglob("*.lua")}
LIB_FILES = sorted((FOLDER / "lib").glob("*.lua"))
WORDS = {"add", "fetch", "finish", "keep", "schedule", "flow", "control", "read", "effects", "doctor", "events"}
WRITES = re.compile(
    r'redis\.p?call\("(SET|DEL|HSET|HDEL|HINCRBY|INCR|INCRBY|LPUSH|RPUSH|LREM|LTRIM|RENAME|SADD|SREM|ZADD|ZREM|XADD|XTRIM|'
    r'EXPIRE|PEXPIRE|XGROUP|XREADGROUP|XAUTOCLAIM|XCLAIM|XACK)"'
)


def code_of(path: Path) -> str:
    """The text of a Lua file without its comments and strings."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', path.read_text("utf-8"))
    return re.sub(r"--[^\n]*", "", text)


def test_each_script_lies_in_the_folder_of_its_word_under_a_name_of_its_own() -> None:
    assert set(SCRIPT_FILES) == set(scripts())
    assert len(SCRIPT_FILES) == len(list((FOLDER / "scripts").rglob("*.lua")))
    assert {path.parent.name for path in SCRIPT_FILES.values()} <= WORDS


@pytest.mark.parametrize("found", SCRIPTS, ids=lambda found: found.name)
def test_the_name_ends_in_the_number_of_keys(found: Script) -> None:
    assert int(found.name.rpartition("-")[2]) == len(found.keys)
    assert len(set(found.keys)) == len(found.keys)
    assert len(set(found.args)) == len(found.args)
    assert not set(found.keys) & set(found.args)


@pytest.mark.parametrize("found", SCRIPTS, ids=lambda found: found.name)
def test_the_header_says_what_it_does_and_returns(found: Script) -> None:
    first, *_ = SCRIPT_FILES[found.name].read_text("utf-8").splitlines()
    assert first.startswith("--- ")
    assert not first.startswith("--- @")
    assert found.returns


@pytest.mark.parametrize("found", [one for one in SCRIPTS if one.lane], ids=lambda found: found.name)
def test_a_lane_script_ends_by_keeping_its_reply(found: Script) -> None:
    assert found.keys.count("calls") == 1
    assert set(LANE_ARGS) <= set(found.args)
    body = SCRIPT_FILES[found.name].read_text("utf-8")
    kept_at = body.rindex("calls_kept.keep(calls, lane, number, now, now_text, ")
    *_, last = body.rstrip().splitlines()
    # Or by a function that does so: of its own, or the fetch's, which adds what is not kept.
    assert "calls_kept.keep(" in last or last.startswith("return answer(") or last == "end)"
    if last == "end)":
        assert "return fetching.answer({" in body
        assert not WRITES.search(body, kept_at), "it writes after its reply is kept"


@pytest.mark.parametrize("found", [one for one in SCRIPTS if not one.lane], ids=lambda found: found.name)
def test_what_changes_something_has_a_lane_or_says_why_it_needs_none(found: Script) -> None:
    body = SCRIPT_FILES[found.name].read_text("utf-8")
    if WRITES.search(body) or "place.mark(" in body:
        assert "safe to send again" in body.lower()


@pytest.mark.parametrize("path", [*SCRIPT_FILES.values(), *LIB_FILES], ids=lambda path: path.stem)
def test_no_event_that_cannot_be_written_ends_a_script_half_way(path: Path) -> None:
    """An event log whose ids are used up looks like any other until XADD fails; where the event is all, that may be said."""
    assert 'redis.call("XADD"' not in code_of(path) or path.stem == "publishEvent-3"


@pytest.mark.parametrize("path", LIB_FILES, ids=lambda path: path.stem)
def test_a_library_takes_everything_as_arguments(path: Path) -> None:
    code = code_of(path)
    assert "KEYS" not in code
    assert "ARGV" not in code
    used = set(re.findall(r"\b(\w+)\.\w+\(", code)) - {"M", "redis", "cjson", "cmsgpack", "string", "table", "math"}
    assert used <= set(libraries()[path.stem].uses), "uses a library that its header does not name"


@pytest.mark.parametrize("path", LIB_FILES, ids=lambda path: path.stem)
def test_a_library_has_no_effect_when_it_is_loaded(path: Path) -> None:
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    # Everything it might touch raises; other libraries are empty tables.
    lua.execute("forbidden = setmetatable({}, { __index = function() error('touched when loaded') end })")
    lua.execute("redis, cjson, cmsgpack, KEYS, ARGV = forbidden, forbidden, forbidden, forbidden, forbidden")
    for name in libraries()[path.stem].uses:
        lua.execute(f"{name} = {{ CLASS = 1, TICK = 1, EXACT = 1 }}")
    before = lua.execute("local names = {} for name in pairs(_G) do names[#names + 1] = name end return #names")
    made = lua.execute(path.read_text("utf-8"))
    after = lua.execute("local names = {} for name in pairs(_G) do names[#names + 1] = name end return #names")
    type_of: Any = lua.eval("type")
    assert type_of(made) == "table"
    assert before == after, "it sets a global"


@pytest.mark.parametrize("path", LIB_FILES, ids=lambda path: path.stem)
def test_a_library_is_used_and_says_what_it_is(path: Path) -> None:
    used = {name for one in libraries().values() for name in one.uses}
    for file in SCRIPT_FILES.values():
        used |= set(re.findall(r"\w+", " ".join(re.findall(r"^--- @use (.*)$", file.read_text("utf-8"), re.MULTILINE))))
    assert path.stem in used | {"calls_kept"}
    assert any(
        line.startswith("--- ") and not line.startswith("--- @") for line in path.read_text("utf-8").splitlines()[:3]
    )


@pytest.mark.parametrize("found", SCRIPTS, ids=lambda found: found.name)
def test_a_script_uses_what_its_header_names_and_no_more(found: Script) -> None:
    text = SCRIPT_FILES[found.name].read_text("utf-8")
    named = set(" ".join(re.findall(r"^--- @use (.*)$", text, re.MULTILINE)).split())
    code = code_of(SCRIPT_FILES[found.name])
    used = {name for name in libraries() if re.search(rf"(?<![\w.]){name}[.\[]", code)} - {"calls_kept"}
    assert used <= named
    assert named <= used, f"names but does not use {sorted(named - used)}"
